"""The data types and protocols shared by all rooms.

Glossary
    step      one action taken in one environment; the clock ``env_steps`` counts these
    row       obs[t] --action[t]--> reward[t], terminated[t], truncated[t]; obs[t+1] is the next row
    end row   a row that holds only an episode's final observation (valid = False)
    null row  padding after a trajectory's end inside a window (valid = False, never stored);
              made by ``read_windows`` (buffer/kernels.py)
    filler    the unused burn-in positions before a window's own rows (valid = False, never stored)
    waiting   rows of an agent whose episode has ended before its team's: each an episode of no
              steps (first, valid = False), stored, never learned
    joint row one row for all agents of an environment, with the team's reward (rlrun.spaces)
    chunk     the rows of one collect call, time-major [T, B], in host memory
    trajectory rows of one episode in a column; buffer/replay.py cuts windows from it
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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.errors import EnvError
from rlrun.schema.policy import Window as Window  # re-exported, as the three below
from rlrun.spaces import Tree as Tree
from rlrun.spaces import tree_leaves as tree_leaves
from rlrun.spaces import tree_map as tree_map


@dataclass(frozen=True, slots=True)
class Spec:
    """The observation and action space of one (unbatched) environment."""

    obs: gym.Space[Any]
    action: gym.Space[Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """A time-major batch of rows: tensors on one device.

    Row t is obs[t] --action[t]--> obs[t+1]. A window of S positions is a segment with T = S - 1: S
    observations and S - 1 transitions.

    In sampled windows ``extras`` holds ``prev_action`` [B, *A] and ``prev_reward`` [B] of the row
    before the window, zero if the window opens an episode. In collected segments ``states`` holds
    the recurrent state before every row; it is kept until windows are cut from the segment.
    """

    obs: Tree  # [T+1, B, *O] native dtype
    first: Tensor  # [T+1, B] bool: opens an episode
    action: Tensor  # [T, B, *A]
    reward: Tensor  # [T, B] float32, raw
    terminated: Tensor  # [T, B] bool: no value after this step
    truncated: Tensor  # [T, B] bool: cut; the value of obs[t+1] still counts (padding: no meaning)
    valid: Tensor  # [T, B] bool: False on end rows, null rows and filler
    extras: dict[str, Tensor] = field(default_factory=dict)  # recorded by acting: log_prob, ...
    state: Tree = ()  # [B, ...] recurrent state before the first row after the filler
    partial: tuple[int, ...] = ()  # burn-in lengths in the batch other than 0 and the full one
    states: Tree = ()  # [T, B, ...] only in collected segments

    def to(self, device: torch.device) -> "Segment":
        """Return the segment on ``device``, or itself if it is there already."""
        return self if self.reward.device == device else self.map(lambda x: moved(x, device))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Segment":
        """Return the segment with ``function`` applied to every tensor."""
        return replace(self, **{n: tree_map(function, getattr(self, n)) for n in _FIELDS})

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in the same order for all segments of one kind."""
        return [x for name in _FIELDS for x in tree_leaves(getattr(self, name))]


_FIELDS = (
    "obs", "first", "action", "reward", "terminated", "truncated", "valid",
    "extras", "state", "states",
)  # fmt: skip


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return ``x`` on ``device``. A copy to a GPU is asynchronous, a copy from it is not."""
    return x.to(device, non_blocking=device.type == "cuda")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A collected segment as numpy arrays, passed from a collector to a buffer.

    The fields and their shapes are those of ``Segment``.
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
        """Return the rows as arrays that share memory with the tensors.

        Raises: ValueError if a tensor has a gradient or is not in host memory.
        """
        if isinstance(rows, Chunk):
            return rows
        try:
            return cls(*(tree_map(Tensor.numpy, getattr(rows, n)) for n in CHUNK_FIELDS))
        except (RuntimeError, TypeError) as e:
            raise ValueError(
                "chunk: a tensor has a gradient or is not in host memory; collected rows "
                "need host tensors without gradients; pass x.detach().cpu()"
            ) from e

    def segment(self) -> Segment:
        """Return the rows as tensors that share memory with the arrays."""
        fields = {n: tree_map(torch.from_numpy, getattr(self, n)) for n in CHUNK_FIELDS}
        state = tree_map(lambda x: x[0], fields["states"]) if len(self.reward) else ()
        return Segment(**fields, state=state)

    def rows(self, start: int, stop: int) -> "Chunk":
        """Return a view of rows [start, stop)."""

        def part(x: Any) -> Any:
            return x[start:stop]

        obs = tree_map(lambda x: x[start : stop + 1], self.obs)
        return Chunk(
            obs, self.first[start : stop + 1], part(self.action), part(self.reward),
            part(self.terminated), part(self.truncated), part(self.valid),
            tree_map(part, self.extras), tree_map(part, self.states),
        )  # fmt: skip


CHUNK_FIELDS = (
    "obs", "first", "action", "reward", "terminated", "truncated", "valid", "extras", "states",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """B windows sampled from a buffer: the argument of ``Policy.update``."""

    segment: Segment
    weight: Tensor  # [B] float32 importance weights (N P)^-beta / max, in (0, 1]
    key: np.ndarray  # [B] int64, in host memory, returned unchanged with the priorities
    env_steps: int  # the clock of the policy's schedules

    def to(self, device: torch.device) -> tuple[Segment, Tensor]:
        """Return the windows and the weights on ``device``."""
        if self.weight.device == device:
            return self.segment, self.weight
        return self.segment.to(device), moved(self.weight, device)


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one learning step: new priorities, and metrics as 0-d tensors or numbers."""

    priority: Tensor | None  # [B] >= 0, in the order of Sample.key
    metrics: Mapping[str, Tensor | float]
    steps: int = 1  # gradient steps


@dataclass(frozen=True, slots=True)
class Act:
    """Actions for E environments, in host memory."""

    action: np.ndarray  # [E, *A]
    extras: dict[str, np.ndarray]  # [E, ...]
    state: Tree  # [E, ...] the state before the next row


@dataclass(slots=True)
class Counters:
    """Counters of a run, saved in every checkpoint."""

    env_steps: int = 0  # valid rows collected; updates if pipeline=offline, which collects none
    updates: int = 0
    chunks: int = 0
    episodes: int = 0


ActRow = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, Tree]
"""The first arguments of ``Actor.act``."""


@runtime_checkable
class Actor(Protocol):
    """Selects actions for E environments with the weights of the last ``refresh``.

    Inputs and outputs are numpy arrays. Acting changes nothing in the policy except its exploration
    generator.
    """

    extras: dict[str, np.ndarray]  # examples of ``act``'s extras: shapes and dtypes, [E, ...]

    def refresh(self) -> None:
        """Copy the policy's current weights."""

    def initial_state(self) -> Tree:
        """Return the recurrent state before an episode's first row, in new arrays [E, ...]."""

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
        """Return the actions of E environments.

        ``explore`` [E] holds probabilities of a random action; None acts greedily. Actors with
        action values also take a ``functional.explore.Temperature``. ``prev_action`` and
        ``prev_reward`` are those of the row before. They and ``state`` are ignored where ``first``.
        """


class Loss(NamedTuple):
    """The loss of a batch of windows, returned by a policy's ``loss``."""

    loss: Tensor  # 0-d, part of the autograd graph
    priority: Tensor  # [B] >= 0, detached
    metrics: dict[str, Tensor]  # 0-d each, detached
    td: Tensor | None = None  # [L, B] or [B] |delta| of learned rows, detached like ``q``
    q: Tensor | None = None  # [L, B] or [B] values of the actions taken


class Policy(Protocol):
    """A policy that learns from samples and makes actors. It has no train or eval mode.

    Three methods are optional, and change nothing: ``inspect(sample) -> Loss`` has ``td`` and ``q``
    of every learned row; ``delta_q(windows, history)`` returns metrics (0-d tensors by name) of the
    error that stored and zero recurrent states cause; ``network_health(windows)`` returns metrics
    of the networks on stored windows. The last two take segments on ``policy.device``.
    """

    window: Window | None  # None: the policy does not learn
    generator: np.random.Generator  # of exploration; may be replaced before ``actor``
    seconds: dict[str, float]  # spent in parts of ``update``: backward, optimiser

    def actor(self, num_envs: int) -> Actor:
        """Return an actor for ``num_envs`` environments."""

    def update(self, sample: Sample) -> Update:
        """Take one learning step, including the update of the target networks."""

    def priority(self, sample: Sample) -> Tensor:
        """Return the TD priorities [B] of newly collected windows (initial_priority: td)."""

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters that an actor needs."""

    def load(self, weights: dict[str, Tensor]) -> None:
        """Load what ``weights`` returned."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that ``update`` and ``act`` depend on: networks, optimiser, generator,
        counters.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""


def returned(result: object, kind: type, method: str) -> Any:
    """Return the result of a policy's ``method``. Raises: EnvError if it is no ``kind``."""
    if isinstance(result, kind):
        return result
    raise EnvError(
        f"policy.name: {method} returned {type(result).__name__}; rlrun.types.{kind.__name__} is "
        "allowed; correct the policy"
    )


def no_actions(space: gym.Space[Any], num_envs: int) -> np.ndarray:
    """Return zero actions [E, *A] in the dtype of ``space``."""
    return np.zeros((num_envs, *(space.shape or ())), space.dtype)


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the numpy generator of the named component, spawned from the run's seed."""
    return np.random.default_rng([seed, *name.encode()])


def torch_seed(seed: int, name: str) -> int:
    """Return a 63-bit torch seed for the named component, spawned from the run's seed."""
    return int(generator(seed, name).integers(2**63 - 1))
