"""A replay whose rows, states and priorities are on a device and never leave it.

Rows come from the host. Which windows they complete and which slots are dropped is decided there,
by the same ``Cutter``, ``SingleRowWindows`` and ``WindowTable``, and ``add`` uploads the outcome.
``sample`` and ``prioritize`` are torch ops that never wait for the device.
"""

from rlrun.buffer.device.proportional import DeviceSampler
from rlrun.buffer.device.reader import DeviceReader
from rlrun.buffer.device.ring import DeviceRing
from rlrun.buffer.device.states import DeviceStates
from rlrun.buffer.replay import Replay
from rlrun.buffer.storage.layout import Layout, in_memory
from rlrun.buffer.windows.choose import make_windows, num_rows_before
from rlrun.buffer.windows.cutter import Cutter
from rlrun.types import Window


def device_replay(
    layout: Layout,
    *,
    window: Window,
    cutter: Cutter,
    close: bool,
    sampler: DeviceSampler,
    stack: int = 1,
) -> Replay:
    """A replay on a device: the windows of ``host_replay``, bit for bit, under the same keys.

    Differences: samples are on the device, their ``key`` is an int64 tensor that ``prioritize``
    takes as it is; random numbers are the device's; ``Segment.partial`` names every length there
    can be instead of those in the batch; bad priorities are dropped, and raised by ``metrics`` or
    ``state_dict``, which wait for the device anyway. ``counts["late"]`` is as of then, too.

    ``layout``: from ``with_device``; the device is the sampler's. Raises: ConfigError, as
    ``host_replay``.
    """
    layout.require_rows(window.rows, num_rows_before(stack))
    assert not layout.goals, "hindsight goals are found in host memory"
    assert layout.columns * layout.rows < 2**31, "cells are numbered in int32"
    device = sampler.deferred.device  # its index, too
    ring = DeviceRing(layout, device)
    states = DeviceStates(layout.states(), device)
    windows = make_windows(
        layout, ring, states, window=window, cutter=cutter, close=close, stack=stack,
        allocate=in_memory,
    )  # fmt: skip
    bs, stride = window.burnin, cutter.stride
    reader = DeviceReader(
        ring, windows, states, layout.sampler["spans"], window, alive=sampler.alive, stack=stack,
        partial=() if cutter.plain else tuple(range(stride, bs, stride)),
    )  # fmt: skip
    return Replay(
        layout, window=window, close=close, stack=stack, storage=ring, windows=windows,
        sampler=sampler, reader=reader,
    )  # fmt: skip
