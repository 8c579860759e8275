"""What the configs of all policies have in common."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.ranges import Ranged, at_least, positive, require, unit
from rlrun.schema.window import Window


@dataclass(frozen=True)
class PolicyConfig(Ranged):
    """A policy's keys; what is true of its class stands beside them."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete",)  # action spaces it acts in
    recurrent: ClassVar[bool] = True  # whether memory may be other than none
    agents: ClassVar[tuple[str, ...]] = ("shared", "separate")  # how it may be shown several agents
    learns: ClassVar[bool] = True  # whether rewards change it
    has_values: ClassVar[bool] = False  # whether it acts on action values: explore=boltzmann
    masks: ClassVar[bool] = False  # whether it keeps to an observed action_mask
    twin: ClassVar[str | None] = None  # the same algorithm over other action spaces
    remembers: ClassVar[str | None] = None  # the same with a memory, where it has none itself
    on_policy: ClassVar[bool] = False  # whether it learns once from every rollout, then drops it
    off_by_one: ClassVar[bool] = True  # whether rows of weights one chunk old will do

    name: str

    @property
    def updates(self) -> bool:
        """Whether it has parameters that a learner updates."""
        return self.on_policy or self.window is not None

    @property
    def window(self) -> Window | None:
        """The rows of a window; None: the policy keeps no replay."""
        return None


@dataclass(frozen=True)
class RandomConfig(PolicyConfig):
    agents: ClassVar[tuple[str, ...]] = ("shared", "separate", "joint")
    learns: ClassVar[bool] = False
    masks: ClassVar[bool] = True
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")


@dataclass(frozen=True)
class ScriptedConfig(PolicyConfig):
    actions: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
    recurrent: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    script: Literal["constant", "cycle", "uniform", "sine", "function"]
    choices: tuple[float | tuple[float, ...], ...]
    hold: int = field(metadata=at_least(1))
    period: float = field(metadata=positive())
    amplitude: float = field(metadata=unit())
    phase: float
    function: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.choices)
        if self.script in ("constant", "cycle", "uniform"):
            allowed = "exactly one" if self.script == "constant" else "at least one"
            fine = count == 1 if self.script == "constant" else count >= 1
            text = f"policy.script={self.script} takes {allowed} action; set 'policy.choices=[0]'"
            require(fine, "choices", list(self.choices), text)
        named = self.script == "function"
        require(
            (self.function is not None) == named,
            "function",
            self.function,
            "policy.script=function needs mypkg.mod:function; give policy.function"
            if named
            else f"policy.script is {self.script}; set policy.script=function",
        )
