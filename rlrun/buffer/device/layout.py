"""Arrays of a replay on a device, known before allocation. Torch-free."""

from dataclasses import replace

import numpy as np

from rlrun.buffer.storage.layout import FLAG, ArraySpec, Layout, total

FAN = 128  # children of a tree node: a level costs a dozen kernel launches, however wide it is


def with_device(layout: Layout, kind: str, weight_norm: str = "batch") -> Layout:
    """Return the layout of a ``device_replay`` with this kind of sampler.

    Flags and window table are in host memory (``host_bytes``), flags and the rows of windows
    (``spans``) also on the device, all else only there.
    """
    spans = ArraySpec((layout.slots, 2 if layout.windows is None else 4), np.dtype(np.int32))
    device_flags = ArraySpec((layout.columns * layout.rows,), FLAG)
    sampler = device_blocks(kind, layout.slots, weight_norm)
    return replace(layout, sampler={**sampler, "spans": spans, "device_flags": device_flags})


def host_bytes(layout: Layout) -> int:
    """Bytes of a ``with_device`` layout in host memory."""
    return total(layout.table()) + layout.columns * layout.rows * FLAG.itemsize


def device_blocks(kind: str, slots: int, weight_norm: str = "batch") -> dict[str, ArraySpec]:
    """Name -> ArraySpec of the named sampler's arrays over ``slots``.

    All but the cumulative tables have a dummy slot more, for priorities that must not be kept.
    """

    def block(size: int, dtype: str) -> ArraySpec:
        return ArraySpec((size,), np.dtype(dtype))

    out = {"alive": block(slots + 1, "bool")}
    if kind == "uniform":
        return out | {"cumulative": block(slots, "int32")}
    out |= {"last": block(slots + 1, "int32"), "raw": block(slots + 1, "float32")}
    if kind == "rank":
        ordered = {"sorted_raw": block(slots + 1, "float32"), "order": block(slots + 1, "int64")}
        return out | ordered | {"cdf": block(slots, "float64")}
    nodes = block(sum(tree_levels(slots + 1)), "float64")
    return out | {"sum": nodes} | ({"min": nodes} if weight_norm == "buffer" else {})


def tree_levels(slots: int) -> list[int]:
    """Nodes of every level over ``slots`` leaves, leaves first; padded to FAN but the root."""
    sizes = [-(-slots // FAN) * FAN]
    while sizes[-1] > FAN:
        sizes.append(-(-sizes[-1] // FAN**2) * FAN)
    return [*sizes, 1]
