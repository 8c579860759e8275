"""The windows of a layout: with a table, or without where every window learns one row."""

from rlrun.buffer.storage.base import Storage
from rlrun.buffer.storage.layout import Allocate, Layout
from rlrun.buffer.windows.cutter import Cutter
from rlrun.buffer.windows.single_row import SingleRowWindows
from rlrun.buffer.windows.states import StateStore
from rlrun.buffer.windows.table import WindowTable
from rlrun.types import Window


def num_rows_before(stack: int) -> int:
    """Rows read before a window's own: for the previous action and reward, and for frames."""
    return max(1, stack - 1)


def make_windows(
    layout: Layout,
    ring: Storage,
    states: StateStore,
    *,
    window: Window,
    cutter: Cutter,
    close: bool,
    stack: int,
    allocate: Allocate,
) -> SingleRowWindows | WindowTable:
    """The windows of a layout over ``ring``."""
    before = num_rows_before(stack)
    if layout.windows is None:
        return SingleRowWindows(ring, window, close=close, rows_before=before)
    return WindowTable(
        ring,
        window,
        layout,
        allocate,
        states=states,
        cutter=cutter,
        close=close,
        rows_before=before,
    )
