"""Check of captured states: a second environment must repeat the recorded steps, bit for bit.

What an environment does must follow from its state and the actions. One that reads the clock, the
operating system's entropy or a global generator, or hides state where ``capture`` does not look,
differs from its twin within a few steps.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlrun.env.contract import faults_ignored, pass_ctrl_c
from rlrun.env.state import Unsupported, capture, restore, tree_hash

BEGIN, STEPS = 8, 24  # steps of a run before the record begins, and in it

HIDDEN = (
    "a second environment with the same state and actions gives other rows; its state is not all "
    "in its attributes, or it draws from a clock or a global generator"
)


class Probe:
    """Records ``STEPS`` steps of ``target`` and compares them with those of a twin."""

    def __init__(self, target: Callable[[], Any], make: Callable[[], Any]) -> None:
        """``target``: returns the environment; ``make``: another one of the same arguments."""
        self._target, self._make = target, make
        self._seen = 0
        self._begin: Any = None
        self._rows: list[tuple[Any, str]] = []

    def record(self, action: Any, *row: Any) -> bool:
        """Record one step (``action`` None: a reset); return whether more are wanted."""
        self._seen += 1
        if self._seen == BEGIN:
            try:
                self._begin = capture(self._target())
            except Unsupported:
                return False
        elif self._seen > BEGIN:
            self._rows.append((np.array(action) if action is not None else None, row_hash(*row)))
        return len(self._rows) < STEPS

    def violation(self) -> str | None:
        """Return how a twin differs; None: it does not, or nothing was recorded yet."""
        if self._begin is None:
            return None
        with global_generators_kept():
            twin = self._make()
            try:
                twin.reset(seed=0)
                restore(twin, self._begin)
                for action, expected in self._rows:
                    row = twin.reset()[:1] if action is None else twin.step(action[()])[:4]
                    if row_hash(*row) != expected:
                        return HIDDEN
            except Unsupported as e:
                return str(e)
            except BaseException as e:
                pass_ctrl_c(e)
                return f"a second environment raised {type(e).__name__}: {e}"
            finally:
                with faults_ignored():
                    twin.close()
        return None


def row_hash(*row: Any) -> str:
    """Return the hash of an observation, or of one with reward and flags."""
    obs, *rest = row
    return tree_hash((obs, *(np.asarray(x, np.float64) for x in rest)))


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Leave Python's and numpy's global generators as they were: a checkpoint changes no number."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
