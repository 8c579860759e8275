"""The data types and protocols shared by all rooms.

Glossary
    step      one action taken in one environment; the clock ``env_steps`` counts these
    row       obs[t] --action[t]--> reward[t], terminated[t], truncated[t]; obs[t+1] is the next row
    end row   the row that only holds an episode's final observation (valid = False)
    null row  padding after a trajectory's end inside a window (valid = False, never stored);
              made by ``read_windows`` (buffer/kernels.py)
    filler    the unused burn-in positions before a window's own rows (valid = False, never stored)
    waiting   rows of an agent whose episode has ended before its team's: each an episode of no
              steps (first, valid = False), stored, never learned
    joint row one row for all agents of an environment, with the team's reward (rlrun.spaces)
    chunk     the rows of one collect call, time-major [T, B], in host memory
    trajectory rows of one episode in a column; a collect call ends it too where
              collector.trajectory = collect; buffer/windows.py cuts windows from it
    window    S positions that a policy learns from at once: consecutive rows of one trajectory,
              filler before them, null rows behind them
    segment   a time-major batch of rows: a chunk, or a batch of B windows
    column    index along B of one environment, or of one agent of an environment
    key       the name of a stored window; opaque, never reused
    weight    importance-sampling weight of a sampled window
    priority  sampling probability of a window, up to a power and a factor

Termination kills the discount, truncation kills the trace, padding kills the loss.
Letters: T time, B batch, E environments, S window rows, A actions, H hidden, N capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.schema.policy import Window as Window  # the four are part of this vocabulary
from rlrun.tree import Tree as Tree
from rlrun.tree import tree_leaves as tree_leaves
from rlrun.tree import tree_map as tree_map


@dataclass(frozen=True, slots=True)
class Spec:
    """The observation and action space of one (unbatched) environment."""

    obs: gym.Space[Any]
    action: gym.Space[Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """Time-major, always. Row t is obs[t] --action[t]--> obs[t+1]. Tensors on one device.

    A window of S positions is a Segment with T = S - 1: S observations, S - 1 transitions.
    ``extras`` of a sampled window hold ``prev_action`` [B, *A] and ``prev_reward`` [B], those of
    the row before the window (zero where the window opens an episode). A collected segment has
    ``states``, the recurrent state before every row, which lives until windows are cut from it.
    """

    obs: Tree  # [T+1, B, *O] native dtype
    first: Tensor  # [T+1, B] bool: opens an episode
    action: Tensor  # [T, B, *A]
    reward: Tensor  # [T, B] float32, raw
    terminated: Tensor  # [T, B] bool: no value after this step
    truncated: Tensor  # [T, B] bool: cut; the value of obs[t+1] still counts (padding: no meaning)
    valid: Tensor  # [T, B] bool: False on end rows, null rows and filler
    extras: dict[str, Tensor] = field(default_factory=dict)  # recorded by acting: log_prob, ...
    state: Tree = ()  # [B, ...] recurrent state before the first own row, which follows the filler
    partial: tuple[int, ...] = ()  # burn-in lengths in the batch besides 0 and all (host numbers)
    states: Tree = ()  # [T, B, ...] only in collected segments

    def to(self, device: torch.device) -> "Segment":
        """The segment on ``device``; itself where it is on it already."""
        return self if self.reward.device == device else self.map(lambda x: moved(x, device))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Segment":
        """The segment of ``function(x)`` for every tensor x."""
        return replace(self, **{n: tree_map(function, getattr(self, n)) for n in _FIELDS})

    def tensors(self) -> list[Tensor]:
        """All tensors, in the same order for segments of one kind."""
        return [x for name in _FIELDS for x in tree_leaves(getattr(self, name))]


_FIELDS = (
    "obs", "first", "action", "reward", "terminated", "truncated", "valid",
    "extras", "state", "states",
)  # fmt: skip


def moved(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; copies to a GPU are asynchronous, copies from it are not."""
    return x.to(device, non_blocking=device.type == "cuda")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A collected segment as numpy arrays, passed from a collector to a buffer.

    Fields, shapes and meaning are those of ``Segment``.
    """

    obs: Tree  # [T+1, B, *O] native dtype
    first: np.ndarray  # [T+1, B] bool
    action: np.ndarray  # [T, B, *A]
    reward: np.ndarray  # [T, B] float32
    terminated: np.ndarray  # [T, B] bool
    truncated: np.ndarray  # [T, B] bool
    valid: np.ndarray  # [T, B] bool
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    states: Tree = ()  # [T, B, ...] recurrent state before every row

    @classmethod
    def of(cls, rows: "Segment | Chunk") -> "Chunk":
        """The same rows; arrays share memory with the tensors of a segment on the host.

        Raises: ValueError when a tensor has a gradient or is not in host memory.
        """
        if isinstance(rows, Chunk):
            return rows
        try:
            return cls(*(tree_map(Tensor.numpy, getattr(rows, n)) for n in CHUNK_FIELDS))
        except (RuntimeError, TypeError) as e:
            raise ValueError(
                "chunk: a tensor of it has a gradient or is not in host memory; collected rows "
                "have neither; add what x.detach().cpu() gives"
            ) from e

    def segment(self) -> Segment:
        """The same rows as tensors that share the arrays' memory."""
        fields = {n: tree_map(torch.from_numpy, getattr(self, n)) for n in CHUNK_FIELDS}
        state = tree_map(lambda x: x[0], fields["states"]) if len(self.reward) else ()
        return Segment(**fields, state=state)

    def rows(self, start: int, stop: int) -> "Chunk":
        """Rows [start, stop), not copied."""

        def part(x: Any) -> Any:
            return x[start:stop]

        fields = {n: tree_map(part, getattr(self, n)) for n in CHUNK_FIELDS}
        fields["obs"] = tree_map(lambda x: x[start : stop + 1], self.obs)
        fields["first"] = self.first[start : stop + 1]
        return Chunk(**fields)


CHUNK_FIELDS = (
    "obs", "first", "action", "reward", "terminated", "truncated", "valid", "extras", "states",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """B windows sampled from a buffer, the argument of ``Policy.update``."""

    segment: Segment
    weight: Tensor  # [B] float32 importance weights (N P)^-beta / max, in (0, 1]
    key: np.ndarray  # [B] int64, in host memory, returned unchanged with the priorities
    env_steps: int  # the clock of the policy's schedules

    def to(self, device: torch.device) -> tuple[Segment, Tensor]:
        """Windows and weights on ``device``."""
        return self.segment.to(device), moved(self.weight, device)


@dataclass(frozen=True, slots=True)
class Update:
    """Result of one learning step: priorities, and metrics as 0-d tensors."""

    priority: Tensor | None  # [B] >= 0, in the order of Sample.key
    metrics: dict[str, Tensor]
    steps: int = 1  # gradient steps


@dataclass(frozen=True, slots=True)
class Act:
    """Actions for E environments, on the host."""

    action: np.ndarray  # [E, *A]
    extras: dict[str, np.ndarray]  # [E, ...]
    state: Tree  # [E, ...] the state before the next row


@dataclass(slots=True)
class Counters:
    """Counters of a run, saved in every checkpoint."""

    env_steps: int = 0  # valid rows collected; pipeline=offline, which collects none: updates
    updates: int = 0
    chunks: int = 0
    episodes: int = 0


class Actor(Protocol):
    """Acts for E environments with the policy's weights of the last ``refresh``; numpy on the host.

    It changes nothing of the policy except the exploration generator.
    """

    extras: dict[str, np.ndarray]  # examples of ``act``'s extras: shapes and dtypes, [E, ...]

    def refresh(self) -> None:
        """Copy the policy's current weights."""

    def initial_state(self) -> Tree:
        """The state before an episode's first row, fresh arrays [E, ...]."""

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        """Actions of E environments; ``explore`` [E] probabilities of a random action (or a
        functional.explore.Temperature, for actors with action values), None: greedy.

        ``prev_action``/``prev_reward`` are those of the row before; they and ``state`` are
        ignored where ``first``.
        """


class Loss(NamedTuple):
    """The loss of a batch of windows, what ``loss`` of a policy returns."""

    loss: Tensor  # 0-d, with a graph
    priority: Tensor  # [B] >= 0, detached
    metrics: dict[str, Tensor]  # 0-d each, detached
    td: Tensor | None = None  # [L, B] or [B] |delta| of learned rows, detached as the next
    q: Tensor | None = None  # [L, B] or [B] values of the actions taken


class Policy(Protocol):
    """A policy that learns from samples and makes actors; it has no train or eval mode."""

    window: Window | None  # None: the policy does not learn
    generator: np.random.Generator  # of exploration; may be replaced before ``actor``
    seconds: dict[str, float]  # spent in parts of ``update``: backward, optimiser

    def actor(self, num_envs: int) -> Actor:
        """Return an actor for ``num_envs`` environments."""

    def update(self, sample: Sample) -> Update:
        """One learning step; owns optimisers and target networks."""

    def priority(self, sample: Sample) -> Tensor:
        """|TD| priority [B] of windows that were just collected (initial_priority: td)."""

    def weights(self) -> dict[str, Tensor]:
        """The parameters an actor needs."""

    def load(self, weights: dict[str, Tensor]) -> None:
        """The inverse of ``weights``."""

    def state_dict(self) -> dict[str, Any]:
        """Everything ``update`` and ``act`` depend on: nets, optimiser, generator, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""


@runtime_checkable
class RecurrentPolicy(Protocol):
    """A policy that measures the effect of a window's initial state."""

    device: torch.device

    def delta_q(self, windows: Segment, history: Segment) -> dict[str, Tensor]:
        """Metrics of the error due to stored and zero states."""


@runtime_checkable
class NetworkPolicy(Protocol):
    """A policy with online and target networks that learn from windows."""

    window: Window | None
    device: torch.device

    def network_health(self, windows: Segment) -> dict[str, Tensor]:
        """train/ metrics of the present networks on stored windows; changes nothing."""


def no_actions(space: gym.Space[Any], num_envs: int) -> np.ndarray:
    """Zero actions [E, *A] in the dtype of ``space``."""
    return np.zeros((num_envs, *(space.shape or ())), space.dtype)


def generator(seed: int, name: str) -> np.random.Generator:
    """The named component's own numpy generator, spawned from the run's seed."""
    return np.random.default_rng([seed, *name.encode()])


def torch_seed(seed: int, name: str) -> int:
    """A 63-bit torch seed for the named component, spawned from the run's seed."""
    return int(generator(seed, name).integers(2**63 - 1))
