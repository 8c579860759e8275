"""The collector: steps the environments with the policy and returns chunks of rows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.buffer import saved
from rlrun.buffer.cutter import Cutter
from rlrun.env import Env
from rlrun.env.framestack import FrameStack
from rlrun.errors import EnvError
from rlrun.functional.explore import Temperature
from rlrun.functional.recorded import RowSpaces
from rlrun.functional.schedule import make_schedule
from rlrun.run.tensors import require_kind
from rlrun.schema import CollectorConfig, ExploreConfig
from rlrun.types import (
    Actor,
    Chunk,
    Counters,
    Policy,
    Tree,
    no_actions,
    returned,
    tree_leaves,
    tree_map,
)

BINS = 16  # equal parts of the range of a real action
MOST_VALUES = 4096  # actions with more values are not counted


class ActionCounts:
    """Counts the values of every component of the actions since the last ``entropy``.

    Components are the action itself (Discrete), its entries (MultiDiscrete, MultiBinary), or its
    dimensions in ``BINS`` equal bins (Box with finite bounds). Actions beyond the bounds count in
    the outer bins, NaN in none. Components with one value, with too many, or without bounds are not
    counted.
    """

    def __init__(self, space: gym.Space[np.ndarray]) -> None:
        """``space``: the actions of one environment; discrete actions are numbered from 0."""
        self.low, self.per_unit = np.zeros(1), np.ones(1)
        sizes = np.zeros(0, np.int64)
        if isinstance(space, gym.spaces.Discrete):
            sizes = np.array([space.n])
        elif isinstance(space, gym.spaces.MultiDiscrete):
            sizes = space.nvec.reshape(-1).astype(np.int64)
        elif isinstance(space, gym.spaces.MultiBinary):
            sizes = np.full(int(np.prod(space.shape)), 2)
        elif isinstance(space, gym.spaces.Box):
            low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
            with np.errstate(over="ignore", invalid="ignore"):
                span = high - low
            bounded = np.isfinite(span) & (span > 0)
            self.low, self.per_unit = low[bounded], BINS / span[bounded]
            sizes = np.where(bounded, BINS, 0)
        self.kept = (sizes > 1) & (sizes <= MOST_VALUES)
        self.sizes = sizes[self.kept]
        self.starts = np.cumsum(self.sizes) - self.sizes  # of the components in ``counts``
        self.counts = np.zeros(int(self.sizes.sum()), np.int64)
        self.single = len(sizes) == 1 and isinstance(space, gym.spaces.Discrete)
        self.binned = isinstance(space, gym.spaces.Box)

    def add(self, action: np.ndarray, valid: np.ndarray) -> None:
        """Count the actions [T, E, *A] of the rows that are ``valid`` [T, E]."""
        if not len(self.counts):
            return
        taken = action[valid]
        if not self.single:
            taken = taken.reshape(len(taken), -1)[:, self.kept]
            if self.binned:
                part = np.clip((taken - self.low) * self.per_unit, 0, BINS - 1)
                counted = ~np.isnan(part)
                part = np.where(counted, part, 0).astype(np.int64)  # NaN cannot be cast to int
                taken = (part + self.starts)[counted]
            else:
                taken = np.clip(taken, 0, self.sizes - 1) + self.starts
        self.counts += np.bincount(taken.reshape(-1), minlength=len(self.counts))

    def entropy(self) -> float | None:
        """Return the entropy of the counted actions relative to the largest, and reset.

        The mean over components of -sum_a f(a) log f(a) / log n, in [0, 1], where f is the
        empirical distribution. None: no action was counted.
        """
        if not self.counts.any():
            return None
        shares = []
        for start, size in zip(self.starts, self.sizes, strict=True):
            count = self.counts[start : start + size]
            if not count.any():
                continue
            f = count[count > 0] / count.sum()
            shares.append(-float((f * np.log(f)).sum()) / np.log(size))
        self.counts = np.zeros_like(self.counts)
        return float(np.clip(np.mean(shares), 0.0, 1.0))

    def load(self, counts: np.ndarray | None) -> None:
        """Continue from saved ``counts``. None, or counts of another space, starts from zero."""
        known = counts is not None and counts.shape == self.counts.shape
        self.counts = np.array(counts, np.int64) if known else np.zeros_like(self.counts)


def ladder(eps: float, alpha: float, num_envs: int) -> np.ndarray:
    """Return eps ** (1 + alpha i / (N - 1)) for environments i = 0..N-1, float32 [N].

    N = 1 gives [eps]. Source: Horgan et al. 2018 (Ape-X), section 4; eps 0.4, alpha 7.
    """
    position = np.arange(num_envs) / max(num_envs - 1, 1)
    return (eps ** (1 + alpha * position)).astype(np.float32)


def make_explore(
    config: ExploreConfig, *, num_envs: int, total_steps: int
) -> Callable[[int], np.ndarray]:
    """Return a function: env_steps -> epsilon of every environment, float32 [num_envs].

    For softmax exploration it returns a Temperature. A single environment follows the ``epsilon``
    schedule, because a ladder over one environment would be the constant ``base_epsilon``.
    """
    if config.name == "ladder" and num_envs > 1:
        assert config.base_epsilon is not None  # checked by ExploreConfig
        assert config.alpha is not None
        fixed = ladder(config.base_epsilon, config.alpha, num_envs)
        return lambda env_steps: fixed
    if config.name == "none":
        zero = np.zeros(num_envs, np.float32)
        return lambda env_steps: zero
    if config.name == "boltzmann":
        assert config.temperature is not None  # checked by ExploreConfig
        temperature = make_schedule(config.temperature, total_steps=total_steps)
        return lambda env_steps: np.full(num_envs, temperature(env_steps), np.float32).view(
            Temperature
        )
    schedule = make_schedule(config.epsilon, total_steps=total_steps)
    return lambda env_steps: np.full(num_envs, schedule(env_steps), np.float32)


Explore = Callable[[int], np.ndarray]
"""env_steps -> epsilon of every environment, float32 [E]"""


@dataclass(slots=True)
class ChunkStats:
    """The steps of one chunk and the episodes that finished in it."""

    steps: int = 0
    finished_episodes: list[tuple[float, int]] = field(default_factory=list)  # (return, length)
    restarts: int = 0  # of failed environment processes (env.on_worker_failure)
    without_action: int = 0  # rows of open episodes whose mask allows no action


def loaded_stats(part: str, state: dict[str, Any]) -> ChunkStats:
    """Return the statistics of a chunk from a checkpoint. Raises: CheckpointError."""
    steps = saved.integer(f"{part}.steps", state["steps"], 0, saved.MOST_ROWS)
    return ChunkStats(steps, _episodes(part, state))


def _episodes(part: str, state: dict[str, Any]) -> list[tuple[float, int]]:
    """Return the (return, length) of every finished episode in a checkpoint."""
    most = float(np.finfo(np.float64).max)
    return [
        (
            saved.number(f"{part}.finished_episodes", score, -most, most),
            saved.integer(f"{part}.finished_episodes", steps, 0, saved.MOST_ROWS),
        )
        for score, steps in state["finished_episodes"]
    ]


@dataclass(slots=True)
class CollectMetrics:
    """Adds chunks to the run's counters and averages episodes between two records."""

    counters: Counters
    explore: Explore
    actions: ActionCounts
    # Since the last ``report``:
    finished_episodes: list[tuple[float, int]] = field(default_factory=list)
    restarts: int = 0
    without_action: int = 0

    def commit(self, stats: ChunkStats, chunk: Chunk) -> None:
        """Add the statistics of a chunk."""
        self.actions.add(chunk.action, chunk.valid)
        self.counters.env_steps += stats.steps
        self.counters.episodes += len(stats.finished_episodes)
        self.counters.chunks += 1
        self.finished_episodes += stats.finished_episodes
        self.restarts += stats.restarts
        self.without_action += stats.without_action

    def state_dict(self) -> dict[str, Any]:
        return {
            "finished_episodes": list(self.finished_episodes),
            "actions": self.actions.counts.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.finished_episodes = _episodes("collector", state)
        self.actions.load(state["actions"])

    def report(self) -> dict[str, float]:
        """Return collect/ metrics of the episodes finished since the last call."""
        epsilon = self.explore(self.counters.env_steps)
        name = "temperature" if isinstance(epsilon, Temperature) else "epsilon"
        out = {
            "collect/episodes": float(self.counters.episodes),
            f"collect/{name}_mean": float(epsilon.mean()),
        }
        if (entropy := self.actions.entropy()) is not None:
            out["collect/action_entropy"] = entropy
        if self.restarts:
            out["collect/restarts"], self.restarts = float(self.restarts), 0
        if self.without_action:
            out["collect/without_action"] = float(self.without_action)
            self.without_action = 0
        if self.finished_episodes:
            returns, lengths = np.array(self.finished_episodes).T
            out["collect/return_mean"] = float(returns.mean())
            out["collect/return_min"] = float(returns.min())
            out["collect/return_max"] = float(returns.max())
            out["collect/length_mean"] = float(lengths.mean())
            self.finished_episodes.clear()
        return out


_CARRIED = (
    "obs", "first", "ended", "prev_action", "prev_reward", "state",
    "episode_return", "episode_length",
)  # fmt: skip


class ChunkInterrupted(Exception):
    """Raised between two rows of a chunk when ``Collector.stop`` is true."""


class Collector:
    """Collects chunks of rows from E environments. Recurrent state carries over between chunks."""

    def __init__(
        self,
        config: CollectorConfig,
        *,
        env: Env,
        policy: Policy,
        explore: Explore,
        counters: Counters,
        seed: int,
        cutter: Cutter | None,
        stack: FrameStack | None,
    ) -> None:
        """``explore``: env_steps -> epsilon [E].

        ``cutter`` counts windows for unit: window. ``stack`` stacks the frames that the policy
        sees; rows hold single observations.
        """
        self.config, self.env, self.policy, self.explore = config, env, policy, explore
        self.counters, self.cutter, self.stack = counters, cutter, stack
        self.num_envs, self.seed = env.num_envs, seed
        self.actor: Actor = returned(policy.actor(self.num_envs), Actor, "actor()")
        self.obs: Tree = tree_map(np.array, env.reset(seed=seed))
        self.spaces = RowSpaces(env.obs_space, env.action_space)
        self.first = np.ones(self.num_envs, bool)
        self.ended = np.zeros(self.num_envs, bool)  # the next row is an end row
        self.prev_action = no_actions(env.action_space, self.num_envs)
        self.prev_reward = np.zeros(self.num_envs, np.float32)
        self.state: Tree = self.actor.initial_state()
        self.initial_state: Tree = self.actor.initial_state()  # before an episode's first row
        self.episode_return = np.zeros(self.num_envs)
        self.episode_length = np.zeros(self.num_envs, np.int64)
        self.stats = ChunkStats()  # of the chunk that is not committed yet
        self.collect_metrics = CollectMetrics(counters, explore, ActionCounts(env.action_space))
        self.stop: Callable[[], bool] = lambda: False  # asked before every row
        self.interrupted = 0  # rows of a chunk that ``stop`` or an error interrupted
        self.interrupted_units = 0
        self.wanted = False  # by an evaluation, once the episode has ended (env.instances=1)
        self.failed: str | None = None  # the environments' error; they cannot be stepped again
        self.inexact: str | None = None  # why a resumed run differs from an uninterrupted one
        self.pushed = False  # the stack already holds the present observation
        self.seconds = {"act": 0.0, "env": 0.0}
        self.compiled: Any = None  # a ``CompiledRollout``: collects rows in place of ``_step``
        self.flat = isinstance(self.obs, np.ndarray)
        self.arrays: dict[str, Any] = {}
        self._allocate(max(2, -(-config.n_sample // self.num_envs) + 8))

    # -- collecting ------------------------------------------------------------------------------

    def collect(self) -> Chunk:
        """Collect rows with the policy's present weights and count them."""
        if self.compiled is None:
            self.actor.refresh()
        chunk = self.collect_rows()
        self.collect_metrics.commit(self.take_stats(), chunk)
        return chunk

    def collect_rows(self) -> Chunk:
        """Return at least ``n_sample`` units of new rows, with the actor's weights.

        Rows beyond ``n_sample`` are kept. The chunk is shorter if an evaluation waits for the
        environment (``wanted``) and an episode ends. Outside the collector only the exploration
        generator changes. The next call overwrites the chunk's arrays.
        """
        epsilon = self.explore(self.counters.env_steps)
        t, units = self.interrupted, self.interrupted_units
        self._put_obs(t)
        while units < self.config.n_sample or t == 0:
            if self.wanted and t and self.ended.all():
                break
            if t == self.capacity:
                self._allocate(2 * self.capacity)
            try:
                if self.stop():
                    raise ChunkInterrupted
                progress = self.compiled and self.compiled.collect(self, t, units, epsilon)
                if progress:
                    t, units = progress
                    continue
                units += self._step(t, epsilon)
            except Exception as e:
                self.interrupted, self.interrupted_units = t, units
                self.failed = str(e) if isinstance(e, EnvError) else None
                raise
            t += 1
        self.interrupted = self.interrupted_units = 0
        self.arrays["first"][t] = self.first
        return Chunk(**self.arrays).rows(0, t)

    def take_stats(self) -> ChunkStats:
        """Return the statistics of the chunk collected last, and reset them."""
        stats, self.stats = self.stats, ChunkStats()
        return stats

    def _step(self, t: int, epsilon: np.ndarray) -> int:
        """Collect one row of every environment. Return the number of units."""
        a, first, start = self.arrays, self.first, time.perf_counter()
        if np.count_nonzero(first):  # any() takes 3 us
            self.state = tree_map(
                lambda s, z: np.where(first.reshape(-1, *[1] * (s.ndim - 1)), z, s),
                self.state,
                self.initial_state,
            )
        for store, values in zip(self.states, tree_leaves(self.state), strict=True):
            store[t] = values
        obs = a["obs"][t] if self.flat else tree_map(lambda x: x[t], a["obs"])
        if self.stack is not None:
            obs = self.stack.present() if self.pushed else self.stack.push(obs, first)
            self.pushed = True
        out = self.actor.act(
            obs, first, self.prev_action, self.prev_reward, self.state, explore=epsilon
        )
        acted = time.perf_counter()
        self.seconds["act"] += acted - start
        action = out.action
        a["valid"][t] = ~self.ended
        a["first"][t], a["action"][t] = first, action
        for name, extra in out.extras.items():
            a["extras"][name][t] = extra
        step = self.env.step(action)
        self.obs, self.pushed = step.obs, False
        a["reward"][t], a["terminated"][t], a["truncated"][t] = (
            step.reward, step.terminated, step.truncated,
        )  # fmt: skip
        self.first, self.ended = step.first, step.terminated | step.truncated
        if step.restarted is not None:
            a["valid"][t] &= ~step.restarted  # end rows: their actions were not taken
            self._forget_returns(step.restarted)
            self.stats.restarts += int(np.count_nonzero(step.restarted))
        self.stats.without_action += step.without_action
        for name in self.config.keep_info:
            a["extras"][name][t] = step.info[name]
        self.seconds["env"] += time.perf_counter() - acted
        self.state = out.state
        self.prev_action, self.prev_reward = action, a["reward"][t].copy()
        self._put_obs(t + 1)
        return self._count(t)

    def _count(self, t: int) -> int:
        a = self.arrays
        valid = a["valid"][t]
        steps = int(np.count_nonzero(valid))
        self.stats.steps += steps
        self.episode_return += a["reward"][t]  # 0 on end rows
        self.episode_length += valid
        finished = self.ended & valid  # an invalid row: the agent waits for its team
        episodes = int(np.count_nonzero(finished))
        if episodes:
            for i in np.flatnonzero(finished):
                result = float(self.episode_return[i]), int(self.episode_length[i])
                self.stats.finished_episodes.append(result)
                self.episode_return[i] = self.episode_length[i] = 0
        if self.config.unit == "episode":
            return episodes
        if self.config.unit == "window" and self.cutter is not None:
            return self.cutter.count(a["first"][t], valid)
        return steps

    # -- arrays ----------------------------------------------------------------------------------

    def _allocate(self, capacity: int) -> None:
        """Allocate chunk arrays for ``capacity`` rows and copy the rows so far."""
        old, flag, self.capacity = self.arrays, np.zeros(self.num_envs, bool), capacity

        def rows(x: np.ndarray) -> np.ndarray:
            return np.zeros((capacity, *x.shape), x.dtype)

        def observed(x: np.ndarray) -> np.ndarray:
            return np.zeros((capacity + 1, *x.shape), x.dtype)

        extras = dict.fromkeys(self.config.keep_info, self.prev_reward) | self.actor.extras
        self.arrays = {
            "obs": tree_map(observed, self.obs), "first": observed(flag),
            "action": rows(self.prev_action), "reward": rows(self.prev_reward),
            "terminated": rows(flag), "truncated": rows(flag), "valid": rows(flag),
            "extras": tree_map(rows, extras), "states": tree_map(rows, self.state),
        }  # fmt: skip
        self.states = tree_leaves(self.arrays["states"])
        if old:
            tree_map(
                lambda new, previous: np.copyto(new[: len(previous)], previous), self.arrays, old
            )

    def _put_obs(self, t: int) -> None:
        if self.flat:
            self.arrays["obs"][t] = self.obs
        else:
            tree_map(lambda store, x: np.copyto(store[t], x), self.arrays["obs"], self.obs)

    # -- state -----------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return collect/ metrics of the episodes finished since the last call."""
        return self.collect_metrics.report()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next row depends on, except the policy and the counters.

        After an environment's error: the rows before it, without the environments' state.
        """
        state = self.light_state_dict()
        if self.failed is None:
            try:
                state["env"] = self.env.state_dict()
            except EnvError as e:  # a worker that has ended; the next step raises it again
                self.failed = str(e)
            self.inexact = self.inexact or self.env.inexact
        return state | {"inexact": self.inexact}

    def light_state_dict(self) -> dict[str, Any]:
        """Return ``state_dict`` without the environments. Loading it cuts their open episodes."""
        state = {name: tree_map(np.array, getattr(self, name)) for name in _CARRIED}
        return state | {
            "cutter": self.cutter.state_dict() if self.cutter is not None else None,
            "stack": self.stack.state_dict() if self.stack is not None else None,
            "pushed": self.pushed,
            **self.collect_metrics.state_dict(),
            "interrupted": self._interrupted_rows(),
            "env": None,
            "inexact": self.inexact,
        }

    def _interrupted_rows(self) -> dict[str, Any] | None:
        """Return the rows before an environment's error and their statistics, or None.

        The source saves the statistics of rows that it has received.
        """
        t = self.interrupted
        if not t:
            return None
        rows = {name: tree_map(lambda x: x[:t].copy(), x) for name, x in self.arrays.items()}
        return {
            "rows": rows,
            "units": self.interrupted_units,
            "steps": self.stats.steps,
            "finished_episodes": list(self.stats.finished_episodes),
        }

    def load_state_dict(self, state: dict[str, Any], *, incarnation: int = 0) -> None:
        """Continue from ``state``. ``incarnation``: how often this process was lost.

        If an environment cannot be restored, its saved last observation becomes the end row of the
        open episode: its value counts, and no return extends past it. The next row opens a new
        episode.
        """
        for name in _CARRIED:
            saved.check_tree(f"collector.{name}", state[name], getattr(self, name))
            require_kind(f"collector.{name}", state[name], getattr(self, name))
            setattr(self, name, tree_map(np.array, state[name]))
        obs = tree_map(lambda x: x[None], self.obs)
        saved.check_values("collector", self.spaces, obs, self.prev_action[None], ~self.first[None])
        if self.cutter is not None and state["cutter"] is not None:
            self.cutter.load_state_dict(state["cutter"])
        if self.stack is not None:
            self.stack.load_state_dict(state["stack"])
        self.pushed, self.failed = bool(state["pushed"]), None
        self.collect_metrics.load_state_dict(state)
        self.stats, self.interrupted, self.interrupted_units = ChunkStats(), 0, 0
        if (interrupted := state["interrupted"]) is not None:
            self._load_interrupted_rows(interrupted)
        entropy = self.counters.env_steps, incarnation
        reasons = self.env.load_state_dict(state["env"], entropy=entropy)
        earlier = saved.reason("collector.inexact", state["inexact"])
        self.inexact = earlier or (reasons[0] if reasons else None)
        self.ended |= self.env.cut  # the next row is an end row
        self._forget_returns(self.env.cut)

    def _load_interrupted_rows(self, state: dict[str, Any]) -> None:
        rows, t = state["rows"], len(state["rows"]["action"])
        self._allocate(max(self.capacity, t + 1))
        template = tree_map(lambda store: store[:t], self.arrays)
        require_kind("collector.interrupted", rows, template)
        obs, valid = rows["obs"], rows["valid"]
        saved.check_values("collector.interrupted", self.spaces, obs, rows["action"], valid)
        tree_map(lambda store, x: np.copyto(store[:t], x), self.arrays, rows)
        most = saved.MOST_ROWS
        units = saved.integer("collector.interrupted.units", state["units"], 0, most)
        self.interrupted, self.interrupted_units = t, units
        self.stats = loaded_stats("collector.interrupted", state)

    @contextmanager
    def lent_env(self) -> Iterator[Env]:
        """Lend the environment to the block. An open episode is cut."""
        with self.env.lent():
            yield self.env
        self.wanted = False
        self.ended |= self.env.cut  # the next row is an end row
        self._forget_returns(self.env.cut)

    def _forget_returns(self, cut: np.ndarray) -> None:
        """Reset the statistics of the columns ``cut`` [E], whose episodes were lost."""
        self.episode_return[cut] = 0
        self.episode_length[cut] = 0
