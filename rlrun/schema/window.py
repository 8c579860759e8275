"""The rows a policy learns from at once."""

from typing import NamedTuple


class Window(NamedTuple):
    """The rows ``update`` needs of one window: S = burnin + learned + nstep positions.

    Positions [0, burnin) warm the state up, [burnin, burnin + learned) are learned, the last
    ``nstep`` are only read by targets.
    """

    burnin: int
    learned: int
    nstep: int

    @property
    def rows(self) -> int:
        """S."""
        return self.burnin + self.learned + self.nstep
