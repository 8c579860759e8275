"""What the configs of all policies have in common."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class PolicyConfig:
    """A policy's keys; what is true of its class stands beside them."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete",)  # action spaces it acts in
    recurrent: ClassVar[bool] = True  # whether memory may be other than none
    learns: ClassVar[bool] = True  # whether rewards change it

    name: str

    @property
    def window(self) -> tuple[int, int, int] | None:
        """(burn-in, learned, nstep) rows of a window; None: it keeps no replay."""
        return None


@dataclass(frozen=True)
class RandomConfig(PolicyConfig):
    learns: ClassVar[bool] = False
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
