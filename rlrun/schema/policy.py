"""Base of the policies' configs; random and scripted policies."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlrun.schema.ranges import Ranged, at_least, positive, require, unit
from rlrun.schema.window import Window


@dataclass(frozen=True)
class PolicyConfig(Ranged):
    """Keys of a policy; properties of its class are ClassVars."""

    actions: ClassVar[tuple[str, ...]] = ("Discrete",)  # action spaces it acts in
    recurrent: ClassVar[bool] = True  # memory may be other than none
    agents: ClassVar[tuple[str, ...]] = ("shared", "separate")  # how several agents are shown
    learns: ClassVar[bool] = True  # rewards change it
    has_values: ClassVar[bool] = False  # acts on action values: explore=boltzmann
    masks: ClassVar[bool] = False  # keeps to an observed action_mask
    counterpart: ClassVar[str | None] = None  # the same algorithm over other action spaces
    recurrent_variant: ClassVar[str | None] = None  # the same algorithm with a memory
    on_policy: ClassVar[bool] = False  # learns once from every rollout, then drops it
    explores: ClassVar[bool] = False  # on-policy, but `explore` gives its random actions
    tolerates_lag: ClassVar[bool] = True  # may learn from rows of weights one chunk old

    name: str

    @property
    def updates(self) -> bool:
        """True if the policy has parameters that a learner updates."""
        return self.on_policy or self.window is not None

    @property
    def records_log_prob(self) -> bool:
        """True if replayed rows hold the log-probability of their action, ``log_prob``."""
        return False

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
