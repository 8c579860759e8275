"""Steps the environments with the policy and writes rows into preallocated chunk arrays."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.buffer.windows.cutter import Cutter
from rlrun.env import Env
from rlrun.env.framestack import FrameStack
from rlrun.functional.explore import Temperature
from rlrun.schema import CollectorConfig
from rlrun.types import Chunk, Counters, Policy, Tree, no_actions, tree_leaves, tree_map

Explore = Callable[[int], np.ndarray]


@dataclass(slots=True)
class Brought:
    """What a chunk adds to the counters."""

    steps: int = 0
    finished: list[tuple[float, int]] = field(default_factory=list)  # (return, length)


class Collector:
    """Collects chunks of rows from E environments; recurrent state is carried between chunks."""

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
        """``explore``: env_steps -> epsilon [E]. ``cutter`` counts windows for unit: window.
        ``stack`` is what the policy sees instead of single observations; rows never hold it."""
        self.config, self.env, self.policy, self.explore = config, env, policy, explore
        self.counters, self.cutter, self.stack = counters, cutter, stack
        self.num_envs, self.seed = env.num_envs, seed
        self.actor = policy.actor(self.num_envs)
        self.obs: Tree = tree_map(np.array, env.reset(seed=seed))
        self.first = np.ones(self.num_envs, bool)
        self.ended = np.zeros(self.num_envs, bool)  # the next row is an end row
        self.prev_action = no_actions(env.action_space, self.num_envs)
        self.prev_reward = np.zeros(self.num_envs, np.float32)
        self.state: Tree = self.actor.initial_state()
        self.fresh: Tree = self.actor.initial_state()  # before an episode's first row
        self.episode_return = np.zeros(self.num_envs)
        self.episode_length = np.zeros(self.num_envs, np.int64)
        self.brought = Brought()  # by the chunk that is not accounted for yet
        self.finished: list[tuple[float, int]] = []  # (return, length) since the last metrics()
        self.cut_first = False  # restored: the open episodes were cut, see load_state_dict
        self.seconds = {"act": 0.0, "env": 0.0}
        self.flat = isinstance(self.obs, np.ndarray)
        self.arrays: dict[str, Any] = {}
        self._allocate(max(2, -(-config.n_sample // self.num_envs) + 8))

    # -- collecting ------------------------------------------------------------------------------

    def collect(self) -> Chunk:
        """``gather`` with the policy's present weights, accounted for at once."""
        self.actor.refresh()
        chunk = self.gather()
        self.account()
        return chunk

    def gather(self) -> Chunk:
        """At least ``n_sample`` units of new rows; overshoot is kept.

        Acts with the weights of the actor's last ``refresh``; changes nothing outside the
        collector but the exploration's random numbers, so it may run beside the learner. The
        chunk's arrays are overwritten by the next call.
        """
        epsilon = self.explore(self.counters.env_steps)
        self._put_obs(0)
        t = units = 0
        while units < self.config.n_sample or t == 0:
            if t == self.capacity:
                self._allocate(2 * self.capacity)
            units += self._step(t, epsilon)
            t += 1
        if self.cutter is not None and self.config.trajectory == "collect":
            self.cutter.origin[:] = self.cutter.row  # the next row opens a new trajectory
        return self._chunk(t)

    def account(self) -> None:
        """Count the gathered chunk."""
        counters, brought = self.counters, self.brought
        counters.env_steps += brought.steps
        counters.episodes += len(brought.finished)
        counters.chunks += 1
        self.finished += brought.finished
        self.brought = Brought()

    def _step(self, t: int, epsilon: np.ndarray) -> int:
        """One row of every environment; how many units it brought."""
        a, first, began = self.arrays, self.first, time.perf_counter()
        if first.any():
            self.state = tree_map(
                lambda s, z: np.where(first.reshape(-1, *[1] * (s.ndim - 1)), z, s),
                self.state,
                self.fresh,
            )
        for store, values in zip(self.states, tree_leaves(self.state), strict=True):
            store[t] = values
        seen = a["obs"][t] if self.flat else tree_map(lambda x: x[t], a["obs"])
        if self.stack is not None:
            seen = self.stack.push(seen, first)
        out = self.actor.act(
            seen, first, self.prev_action, self.prev_reward, self.state, explore=epsilon
        )
        acted = time.perf_counter()
        self.seconds["act"] += acted - began
        action = out.action
        valid = ~self.ended
        a["first"][t], a["valid"][t], a["action"][t] = first, valid, action
        for name, extra in out.extras.items():
            a["extras"][name][t] = extra
        if self.cut_first:
            self._reopen(t)
        else:
            step = self.env.step(action)
            self.obs = step.obs
            a["reward"][t], a["terminated"][t], a["truncated"][t] = (
                step.reward, step.terminated, step.truncated,
            )  # fmt: skip
            self.first, self.ended = step.first, step.terminated | step.truncated
            for name, value in step.info.items():
                a["extras"][name][t] = value
            self.seconds["env"] += time.perf_counter() - acted
        self.state = out.state
        self.prev_action, self.prev_reward = action, a["reward"][t].copy()
        self._put_obs(t + 1)
        return self._count(t, valid)

    def _reopen(self, t: int) -> None:
        """After a restore the environments are new: row t is the end row of the cut episodes."""
        a = self.arrays
        a["valid"][t] = a["terminated"][t] = a["truncated"][t] = False
        a["reward"][t] = 0
        self.first, self.ended = np.ones(self.num_envs, bool), np.zeros(self.num_envs, bool)
        self.obs, self.cut_first = self.fresh_obs, False

    def _count(self, t: int, valid: np.ndarray) -> int:
        a = self.arrays
        valid = a["valid"][t]
        steps = int(np.count_nonzero(valid))
        self.brought.steps += steps
        self.episode_return += a["reward"][t]  # 0 on end rows
        self.episode_length += valid
        over = (
            self.ended & valid
        )  # an agent that waits for its team (rlrun.env.agents.columns) is not
        episodes = int(np.count_nonzero(over))
        if episodes:
            for i in np.flatnonzero(over):
                result = float(self.episode_return[i]), int(self.episode_length[i])
                self.brought.finished.append(result)
                self.episode_return[i] = self.episode_length[i] = 0
        if self.config.unit == "episode":
            return episodes
        if self.config.unit == "window" and self.cutter is not None:
            return self.cutter.count(a["first"][t], valid)
        return steps

    # -- arrays ----------------------------------------------------------------------------------

    def _allocate(self, capacity: int) -> None:
        """Chunk arrays for ``capacity`` rows, what they hold kept."""
        e, old = self.num_envs, self.arrays
        self.capacity = capacity

        def like(x: np.ndarray, rows: int, fill: Any = 0) -> np.ndarray:
            return np.full((rows, *x.shape), fill, x.dtype)

        flag = np.zeros(e, bool)
        extras = {k: np.zeros(e, np.float32) for k in self.config.keep_info} | self.actor.extras
        self.arrays = {
            "obs": tree_map(lambda x: like(x, capacity + 1), self.obs),
            "first": like(flag, capacity + 1),
            "action": like(self.prev_action, capacity),
            "reward": like(self.prev_reward, capacity),
            "terminated": like(flag, capacity),
            "truncated": like(flag, capacity),
            "valid": like(flag, capacity),
            "extras": {k: like(x, capacity) for k, x in extras.items()},
            "states": tree_map(lambda s: like(s, capacity), self.state),
        }
        self.states = tree_leaves(self.arrays["states"])
        if old:
            tree_map(lambda new, was: np.copyto(new[: len(was)], was), self.arrays, old)

    def _put_obs(self, t: int) -> None:
        if self.flat:
            self.arrays["obs"][t] = self.obs
        else:
            tree_map(lambda store, x: np.copyto(store[t], x), self.arrays["obs"], self.obs)

    def example(self) -> Chunk:
        """A chunk of no rows: shapes and dtypes for whoever stores rows."""
        return self._chunk(0)

    def _chunk(self, steps: int) -> Chunk:
        a = self.arrays
        a["first"][steps] = self.first

        def rows(x: np.ndarray, count: int = steps) -> np.ndarray:
            return x[:count]

        return Chunk(
            obs=tree_map(lambda x: rows(x, steps + 1), a["obs"]),
            first=rows(a["first"], steps + 1),
            extras={name: rows(x) for name, x in a["extras"].items()},
            states=tree_map(rows, a["states"]),
            action=rows(a["action"]),
            reward=rows(a["reward"]),
            terminated=rows(a["terminated"]),
            truncated=rows(a["truncated"]),
            valid=rows(a["valid"]),
        )

    # -- accounts --------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """collect/ metrics of the episodes finished since the last call."""
        epsilon = self.explore(self.counters.env_steps)
        name = "temperature" if isinstance(epsilon, Temperature) else "epsilon"
        out = {
            "collect/episodes": float(self.counters.episodes),
            f"collect/{name}_mean": float(epsilon.mean()),
        }
        if self.finished:
            returns, lengths = np.array(self.finished).T
            out["collect/return_mean"] = float(returns.mean())
            out["collect/return_min"] = float(returns.min())
            out["collect/return_max"] = float(returns.max())
            out["collect/length_mean"] = float(lengths.mean())
            self.finished.clear()
        return out

    def state_dict(self) -> dict[str, Any]:
        names = ("obs", "first", "ended", "prev_action", "prev_reward")
        return {n: tree_map(np.array, getattr(self, n)) for n in names} | {
            "state": tree_map(np.array, self.state),
            "cutter": self.cutter.state_dict() if self.cutter is not None else None,
            "stack": self.stack.state_dict() if self.stack is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the columns: environments were reset, so their open episodes are cut.

        The saved last observation becomes the end row of each (value still counts, no return
        looks past it), and the next row opens a new episode.
        """
        seed = self.seed + self.counters.env_steps  # not the episodes the run began with
        self.fresh_obs = tree_map(np.array, self.env.reset(seed=seed))
        for name in ("obs", "first", "ended", "prev_action", "prev_reward"):
            setattr(self, name, tree_map(np.array, state[name]))
        self.state = tree_map(np.array, state["state"])
        if self.cutter is not None and state["cutter"] is not None:
            self.cutter.load_state_dict(state["cutter"])
        if self.stack is not None:
            self.stack.load_state_dict(state["stack"])
        self.cut_first = True
