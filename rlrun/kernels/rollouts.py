"""Rollouts of on-policy policies in environments with a compiled step: one call for all rows."""

import copy
import logging
import time
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rlrun.env import Env
from rlrun.env.classic import Acrobot, MountainCar, MountainCarContinuous, Pendulum
from rlrun.functional.explore import Temperature
from rlrun.kernels.minibatches import ActorCriticKernel, CompiledLearner
from rlrun.kernels.rollout_loops import box_rollout, rollout
from rlrun.nets.actor_critic import CLIP
from rlrun.types import Actor

ROWS = 128  # most rows of a call: a signal waits for its end
CHECKED, MOST_DIFFERENT = 32, 0.05  # rows that are compared, share of actions that may differ
ROW_ARRAYS = "obs", "first", "action", "reward", "terminated", "truncated", "valid"
CARRIED = "first", "ended", "episode_return", "episode_length"
_logger = logging.getLogger(__name__)


class CartPole:
    """The compiled step of Gymnasium's ``CartPoleVectorEnv``."""

    resets = True  # within compiled rows

    def __init__(self, env: Any) -> None:
        self.env = env
        constants = np.array([
            env.max_episode_steps, env.gravity, env.masspole, env.total_mass, env.length,
            env.polemass_length, env.force_mag, env.tau, env.theta_threshold_radians,
            env.x_threshold, env.low, env.high, env._sutton_barto_reward,
        ], np.float64)  # fmt: skip
        self.rules: tuple[np.ndarray | None, ...] = constants, None, None

    @property
    def generator(self) -> np.random.Generator | None:
        """Return the random numbers of the compiled step."""
        generator: np.random.Generator = self.env.np_random
        return generator

    def world(self) -> tuple[np.ndarray, ...]:
        """Return copies of the arrays that a step changes."""
        env: Any = self.env
        return np.array(env.state), env.steps.astype(np.int64), env.prev_done.copy()

    def put(self, world: tuple[np.ndarray, ...]) -> None:
        """Continue from the arrays of ``world``."""
        self.env.state, steps, self.env.prev_done = world
        self.env.steps = steps.astype(self.env.steps.dtype)

    def twin(self) -> Any:
        """Return an environment in the same state."""
        twin = copy.copy(self.env)
        CartPole(twin).put(self.world())
        twin._np_random = copy.deepcopy(self.env.np_random)
        return twin


CLASSIC = {  # environment -> its place among those of a loop, their number, its argument
    Acrobot: (1, 3, ""),
    MountainCar: (2, 3, "goal_velocity"),
    MountainCarContinuous: (0, 2, "goal_velocity"),
    Pendulum: (1, 2, "g"),
}


class Classic:
    """The compiled steps of ``rlrun.env.classic``; rows that open episodes are not compiled."""

    resets, generator = False, None

    def __init__(self, env: Any) -> None:
        self.env, (place, count, rule) = env, CLASSIC[type(env)]
        rule_value = getattr(env, rule) if rule else 0.0
        constants = np.array([env.limit[0], rule_value], np.float64)
        self.rules = tuple(constants if i == place else None for i in range(count))

    def world(self) -> tuple[np.ndarray, ...]:
        return self.env.state.copy(), self.env.t.copy(), self.env._done.copy()

    def put(self, world: tuple[np.ndarray, ...]) -> None:
        self.env.state, self.env.t, self.env._done = world

    def twin(self) -> Any:
        return copy.deepcopy(self.env)


def task_of(env: Any) -> "CartPole | Classic | None":
    """Return the compiled step of an environment, or None."""
    if type(env) is CartPoleVectorEnv:
        return CartPole(env) if env.kinematics_integrator == "euler" else None
    known = type(env) in CLASSIC and (env.limit == env.limit[0]).all()
    return Classic(env) if known else None


class CompiledRollout:
    """Collects rows of a ``Collector`` without leaving compiled code.

    The random numbers are those of the actor and the environments. Rows are those of the
    collector's own loop up to the rounding of the network's outputs.
    """

    def __init__(
        self, kernel: CompiledLearner, env: Env, actor: Actor, task: CartPole | Classic
    ) -> None:
        self.kernel, self.env, self.actor, self.task = kernel, env, actor, task
        self.columns = columns = env.num_envs
        self.layers, self.heads = kernel.layers, kernel.heads
        self.samples = isinstance(kernel, ActorCriticKernel)
        if isinstance(kernel, ActorCriticKernel):  # the value is computed with the update
            self.layers, self.heads = kernel.layers[: kernel.heads[0] + 1], (kernel.heads[0], -1)
            self.log_std = kernel.log_std and kernel.log_std[0]
        net: Any = kernel.policy.net
        self.moments, self.bounds = getattr(net, "moments", None), net.bounds
        self.work = kernel.net.work(columns)
        self.finished = np.zeros((ROWS * columns, 2))
        self.compared = False

    @classmethod
    def of(cls, collector: Any) -> "CompiledRollout | None":
        """Return the compiled rows of a ``Collector``, or None if it needs its own loop."""
        c, kernel = collector.config, collector.policy.kernel
        plain = isinstance(kernel, CompiledLearner) and c.unit == "step" and not c.keep_info
        task = task_of(collector.env.native)
        if not plain or collector.stack is not None or task is None:
            return None
        boltzmann = isinstance(collector.explore(0), Temperature)
        return None if boltzmann else cls(kernel, collector.env, collector.actor, task)

    def collect(
        self, collector: Any, t: int, units: int, epsilon: np.ndarray
    ) -> tuple[int, int] | None:
        """Collect rows from row ``t`` of a chunk that has ``units`` valid ones, with the policy's
        weights, until it is complete, full, or ``ROWS`` rows longer.

        Returns: the row after the last, and the units; None: the next row needs the collector's
        loop.
        """
        env, task = self.env, self.task
        if collector.actor is not self.actor:  # a predictor's, with weights of its own
            collector.compiled = None
            return None
        if not env.continues or (not task.resets and collector.ended.any()):
            collector.actor.refresh()
            return None
        if not self.compared:
            self.compared = True
            collector.actor.refresh()
            if not self._compare(collector, t, epsilon):
                collector.compiled = None
                return None
        began, generator = time.perf_counter(), collector.policy.generator
        generators, world = (generator, task.generator or generator), task.world()
        carried = tuple(np.array(getattr(collector, name)) for name in CARRIED)
        end = min(collector.capacity, t + ROWS)
        wanted = collector.config.n_sample
        stop, units, steps, episodes = self._run(
            collector.arrays, world, carried, epsilon, generators, (t, end, units, wanted)
        )
        task.put(world)
        for name, x in zip(CARRIED, carried, strict=True):
            setattr(collector, name, x)
        env.stepped(stop - t, collector.ended)
        last = {name: collector.arrays[name][stop - 1].copy() for name in ("action", "reward")}
        collector.prev_action, collector.prev_reward = last["action"], last["reward"]
        collector.obs = collector.arrays["obs"][stop].copy()
        collector.stats.steps += steps
        collector.stats.finished_episodes += [
            (score, int(length)) for score, length in self.finished[:episodes].tolist()
        ]
        collector.seconds["env"] += time.perf_counter() - began
        return stop, units

    def _run(
        self,
        arrays: dict[str, Any],
        world: tuple[np.ndarray, ...],
        carried: tuple[np.ndarray, ...],
        epsilon: np.ndarray,
        generators: tuple[np.random.Generator, np.random.Generator],
        limits: tuple[int, int, int, int],
    ) -> tuple[int, int, int, int]:
        """Return the result of ``rollout``, which writes ``world`` and ``carried``."""
        extras, box = arrays["extras"], None
        if (bounds := self.bounds) is not None:
            raw = extras["raw_action"].reshape(len(arrays["action"]), self.columns, -1)
            low, high = bounds.space.low.reshape(-1), bounds.space.high.reshape(-1)
            box = self.log_std, bounds.middle, bounds.half_width, low, high, raw
        size = arrays["obs"].shape[-1]
        moments = np.zeros(size), np.ones(size), np.inf
        if self.moments is not None:
            moments = self.moments.center().numpy(), self.moments.inverse_std().numpy(), CLIP
        collect: Any = rollout if box is None else box_rollout
        choice = box or (None if self.samples else epsilon)
        records = tuple(arrays[name] for name in ROW_ARRAYS), carried, self.finished
        out: tuple[int, int, int, int] = collect(
            (self.layers, self.heads, self.kernel.net.values, self.work, moments), choice,
            generators, *self.task.rules, world, records,
            extras["log_prob"] if self.samples else None, limits,
        )  # fmt: skip
        return out

    def _compare(self, collector: Any, t: int, epsilon: np.ndarray) -> bool:
        """Return whether the next rows are those of actor and environment, up to rounding.

        Both act on copies with the same random numbers, so the comparison has no other effect.
        """
        actor, task, twin = collector.actor, self.task, self.task.twin()
        before = copy.deepcopy(actor.generator)
        rows = {
            name: np.zeros((CHECKED + 1, *x.shape[1:]), x.dtype)
            for name, x in collector.arrays.items() if name in ROW_ARRAYS
        }  # fmt: skip
        rows["obs"][0] = collector.arrays["obs"][t]
        log_prob = np.zeros((CHECKED + 1, self.columns), np.float32)
        raw = np.zeros(rows["action"].shape, np.float32)
        checked, *_ = self._run(
            {**rows, "extras": {"log_prob": log_prob, "raw_action": raw}}, task.world(),
            tuple(np.array(getattr(collector, name)) for name in CARRIED), epsilon,
            (copy.deepcopy(before), copy.deepcopy(task.generator or before)),
            (0, CHECKED, 0, CHECKED * self.columns + 1),
        )  # fmt: skip
        different, past = 0, (collector.prev_action, collector.prev_reward, collector.state)
        generator, actor.generator = actor.generator, before
        try:
            for k in range(checked):
                out = actor.act(rows["obs"][k], rows["first"][k], *past, explore=epsilon)
                same = np.isclose(out.action, rows["action"][k], rtol=0, atol=1e-4)
                same = same.reshape(self.columns, -1).all(-1)
                different += int(np.count_nonzero(~same))
                recorded = out.extras.get("log_prob", log_prob[k])
                near = np.isclose(recorded, log_prob[k], atol=1e-3) | ~same
                obs, reward, terminated, truncated, _ = twin.step(rows["action"][k])
                flags = zip((terminated, truncated & ~terminated), ("terminated", "truncated"),
                            strict=True)  # fmt: skip
                if not (
                    near.all()
                    and np.allclose(obs, rows["obs"][k + 1], atol=1e-5)
                    and np.allclose(reward, rows["reward"][k], rtol=1e-5)
                    and all((x == rows[name][k]).all() for x, name in flags)
                ):
                    different = CHECKED * self.columns
                    break
        finally:
            actor.generator = generator
        if different <= MOST_DIFFERENT * checked * self.columns:
            return True
        _logger.warning(
            "collector: the compiled rows are not those of this policy and environment; the "
            "collector's own loop is used"
        )
        return False
