"""What a replay on a device allocates, known before any is made. Torch-free, as ``layout``."""

from dataclasses import replace

import numpy as np

from rlrun.buffer.storage.layout import FLAG, Block, Layout, total

FAN = 128  # children of a tree's node: searching a level takes a dozen launches, however wide it is


def with_device(layout: Layout, kind: str, weight_norm: str = "batch") -> Layout:
    """The layout of a ``DeviceReplay`` with this kind of sampler: more arrays, some of them twice.

    On the host are the flags and the window table, ``host_bytes``; the rest is on the device.
    """
    spans = Block((layout.slots, 2 if layout.windows is None else 4), np.dtype(np.int32))
    marks = Block((layout.columns * layout.rows,), FLAG)
    sampler = device_blocks(kind, layout.slots, weight_norm)
    return replace(layout, sampler={**sampler, "spans": spans, "marks": marks})


def host_bytes(layout: Layout) -> int:
    """Bytes of a ``with_device`` layout that stay in host memory."""
    return total(layout.table()) + layout.columns * layout.rows * FLAG.itemsize


def device_blocks(kind: str, slots: int, weight_norm: str = "batch") -> dict[str, Block]:
    """Name -> Block of the named sampler's arrays over ``slots``.

    All but the cumulative tables have a slot more: priorities that must not be kept go there.
    """

    def block(size: int, dtype: str) -> Block:
        return Block((size,), np.dtype(dtype))

    out = {"alive": block(slots + 1, "bool")}
    if kind == "uniform":
        return out | {"upto": block(slots, "int32")}
    out |= {"last": block(slots + 1, "int32"), "raw": block(slots + 1, "float32")}
    if kind == "rank":
        ordered = {"falling": block(slots + 1, "float32"), "order": block(slots + 1, "int64")}
        return out | ordered | {"cdf": block(slots, "float64")}
    nodes = block(sum(tree_levels(slots + 1)), "float64")
    return out | {"sum": nodes} | ({"least": nodes} if weight_norm == "buffer" else {})


def tree_levels(slots: int) -> list[int]:
    """Nodes of every level over ``slots`` leaves, leaves first; all but the root fill their fan."""
    sizes = [-(-slots // FAN) * FAN]
    while sizes[-1] > FAN:
        sizes.append(-(-sizes[-1] // FAN**2) * FAN)
    return [*sizes, 1]
