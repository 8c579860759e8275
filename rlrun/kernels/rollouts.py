"""Rollouts of policies with a kernel in environments with a compiled step: one call a chunk."""

import copy
import logging
import math
import time
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rlrun.env import Env
from rlrun.env.classic import (
    TWO,
    Acrobot,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    accelerate,
    finish,
    move,
)
from rlrun.functional.explore import Temperature
from rlrun.jit import inner, jit_ieee
from rlrun.kernels.acting import (
    CHECKED,
    MOST_DIFFERENT,
    ActingNetwork,
    gaussian_actions,
    greedy_actions,
    sample_actions,
    standardise,
)
from rlrun.kernels.dqn import DQNKernel
from rlrun.kernels.layers import N_OUT, ONE, ZERO, F, action_values, forward, part
from rlrun.kernels.on_policy import CompiledLearner, PQNKernel, row_maxima
from rlrun.policy.rollout import RolloutRows
from rlrun.types import Actor

LIMIT = 0  # constant of all: most steps of an episode

# Constants of CartPole.
GRAVITY, POLE_MASS, TOTAL_MASS, LENGTH, POLE_MASS_LENGTH, FORCE, TAU, MOST_THETA, MOST_X = range(
    1, 10
)
LOW, HIGH, SUTTON_BARTO = range(10, 13)

GOAL_VELOCITY = G = 1  # constants of MountainCar and Pendulum


@inner
@jit_ieee
def cartpole(
    c: Any, generator: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any,
    terminated: Any, truncated: Any,
) -> None:  # fmt: skip
    """Step ``CartPoleVectorEnv`` with Euler integration: state [4, E], steps, done [E].

    Every operation is that of Gymnasium, in float64, in the same order. Source: Barto, Sutton &
    Anderson 1983.
    """
    x, v, angle, spin = state
    for i in range(len(steps)):
        force = c[FORCE] if action[i] == 1 else -c[FORCE]
        cosine, sine = math.cos(angle[i]), math.sin(angle[i])
        push = (force + c[POLE_MASS_LENGTH] * (spin[i] * spin[i]) * sine) / c[TOTAL_MASS]
        turning = (c[GRAVITY] * sine - cosine * push) / (
            c[LENGTH] * (4.0 / 3.0 - c[POLE_MASS] * (cosine * cosine) / c[TOTAL_MASS])
        )
        speeding = push - c[POLE_MASS_LENGTH] * turning * cosine / c[TOTAL_MASS]
        x[i] += c[TAU] * v[i]
        v[i] += c[TAU] * speeding
        angle[i] += c[TAU] * spin[i]
        spin[i] += c[TAU] * turning
        fallen = abs(x[i]) > c[MOST_X] or abs(angle[i]) > c[MOST_THETA]
        steps[i] += 1
        terminated[i], truncated[i] = fallen, steps[i] >= c[LIMIT]
        reward[i] = ONE if c[SUTTON_BARTO] == 0 else F(-1.0 if fallen else -0.0)
    for k in range(4):
        for i in range(len(steps)):
            if done[i]:
                state[k, i] = generator.uniform(c[LOW], c[HIGH])
    for i in range(len(steps)):
        if done[i]:
            steps[i], reward[i], terminated[i], truncated[i] = 0, ZERO, False, False
        done[i] = terminated[i] or truncated[i]
        for k in range(4):
            obs[i, k] = F(state[k, i])


@inner
@jit_ieee
def acrobot(
    c: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any, terminated: Any,
    truncated: Any,
) -> None:  # fmt: skip
    """Step ``rlrun.env.classic.Acrobot`` with no column to reset: state [4, E]."""
    columns = len(steps)
    k, cosines, sines = np.empty((4, 4, columns)), np.empty((3, columns)), np.empty(columns)
    s, torque = state.copy(), np.empty(columns)
    for stage in range(4):
        if stage > 0:
            move(state, k[stage - 1], 0.2 if stage == 3 else 0.1, s)
        for i in range(columns):
            torque[i], a, b = action[i] - 1, s[0, i], s[1, i]
            cosines[0, i], sines[i] = math.cos(b), math.sin(b)
            cosines[1, i], cosines[2, i] = math.cos(a + b - math.pi / 2), math.cos(a - math.pi / 2)
        accelerate(s, torque, cosines, sines, TWO, k[stage])
    finish(state, k, 0.2 / 6.0, state)
    for i in range(columns):
        a, b = state[0, i], state[1, i]
        steps[i] += 1
        terminated[i] = -math.cos(a) - math.cos(b + a) > 1.0
        truncated[i], reward[i] = steps[i] >= c[LIMIT], ZERO if terminated[i] else -ONE
        done[i] = terminated[i] or truncated[i]
        obs[i, 0], obs[i, 1] = F(math.cos(a)), F(math.sin(a))
        obs[i, 2], obs[i, 3] = F(math.cos(b)), F(math.sin(b))
        obs[i, 4], obs[i, 5] = F(state[2, i]), F(state[3, i])


@inner
@jit_ieee
def mountain_car(
    c: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any, terminated: Any,
    truncated: Any,
) -> None:  # fmt: skip
    """Step ``rlrun.env.classic.MountainCar`` with no column to reset: state [2, E]."""
    for i in range(len(steps)):
        x, v = state[0, i], state[1, i]
        v = min(max(v + ((action[i] - 1) * 0.001 + math.cos(3 * x) * -0.0025), -0.07), 0.07)
        x = min(max(x + v, -1.2), 0.6)
        if x == -1.2 and v < 0:
            v = 0.0
        state[0, i], state[1, i] = x, v
        steps[i] += 1
        terminated[i], reward[i] = x >= 0.5 and v >= c[GOAL_VELOCITY], -ONE
        truncated[i] = steps[i] >= c[LIMIT]
        done[i] = terminated[i] or truncated[i]
        obs[i, 0], obs[i, 1] = F(x), F(v)


@inner
@jit_ieee
def mountain_car_continuous(
    c: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any, terminated: Any,
    truncated: Any,
) -> None:  # fmt: skip
    """Step ``rlrun.env.classic.MountainCarContinuous`` with no column to reset: state [2, E]."""
    for i in range(len(steps)):
        exact, force = state[0, i], min(max(action[i, 0], -ONE), ONE)
        x, v, fresh = F(exact), F(state[1, i]), steps[i] == 0
        slope = 0.0025 * math.cos(3 * exact if fresh else float(F(3) * x))
        v = min(max(v + (force * F(0.0015) - F(slope)), F(-0.07)), F(0.07))
        x = F(exact + v) if fresh else x + v
        x = min(max(x, F(-1.2)), F(0.6))
        if x == F(-1.2) and v < 0:
            v = ZERO
        state[0, i], state[1, i] = x, v
        steps[i] += 1
        terminated[i] = x >= F(0.45) and v >= F(c[GOAL_VELOCITY])
        truncated[i] = steps[i] >= c[LIMIT]
        done[i] = terminated[i] or truncated[i]
        reward[i] = F((100.0 if terminated[i] else 0.0) - float(action[i, 0]) ** 2 * 0.1)
        obs[i, 0], obs[i, 1] = x, v


@inner
@jit_ieee
def pendulum(
    c: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any, terminated: Any,
    truncated: Any,
) -> None:  # fmt: skip
    """Step ``rlrun.env.classic.Pendulum`` with no column to reset: state [2, E]."""
    for i in range(len(steps)):
        angle, rate, torque = state[0, i], state[1, i], min(max(action[i, 0], F(-2)), F(2))
        normal = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = normal**2 + 0.1 * rate**2 + F(0.001) * (torque * torque)
        push = 3 * c[G] / 2.0 * math.sin(angle) + F(3) * torque
        rate = min(max(rate + push * 0.05, -8.0), 8.0)
        angle = angle + rate * 0.05
        state[0, i], state[1, i] = angle, rate
        steps[i] += 1
        terminated[i], truncated[i], reward[i] = False, steps[i] >= c[LIMIT], F(-cost)
        done[i] = truncated[i]
        obs[i, 0], obs[i, 1], obs[i, 2] = F(math.cos(angle)), F(math.sin(angle)), F(rate)


@inner
@jit_ieee
def begin_row(t: int, arrays: Any, carried: Any, moments: Any, inputs: Any) -> None:
    """Begin row t: write ``valid``, ``first`` and the network's ``inputs`` [E, F]."""
    obs, first, _, _, _, _, valid = arrays
    opened, ended, _, _ = carried
    for i in range(len(opened)):
        valid[t, i], first[t, i] = not ended[i], opened[i]
    standardise(obs[t], moments, inputs)


@inner
@jit_ieee
def count_row(
    t: int, arrays: Any, carried: Any, finished: Any, episodes: int
) -> tuple[int, int]:  # fmt: skip
    """End row t. Return its valid columns, and ``episodes`` with those that it finished."""
    _, _, _, reward, terminated, truncated, valid = arrays
    opened, ended, episode_return, episode_length = carried
    steps = 0
    for i in range(len(opened)):
        truncated[t, i] &= not terminated[t, i]
        opened[i], ended[i] = ended[i], terminated[t, i] or truncated[t, i]
        episode_return[i] += reward[t, i]
        if valid[t, i]:
            episode_length[i] += 1
            steps += 1
            if ended[i]:
                finished[episodes, 0] = episode_return[i]
                finished[episodes, 1] = episode_length[i]
                episodes += 1
                episode_return[i], episode_length[i] = 0.0, 0
    return steps, episodes


@jit_ieee
def rollout(
    net: Any, choice: Any, box: Any, explorer: Any, nature: Any, cart: Any, arm: Any, car: Any,
    hill: Any, pole: Any, world: Any, records: Any, record: Any,
    limits: tuple[int, int, int, int],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect rows of E columns.

    Ends before a row that opens episodes, except of CartPole.

    Args:
        net: layers, heads, parameters and work of the acting network, see ``on_policy.pqn_passes``;
            moments: mean and reciprocal standard deviation of observations [F], largest magnitude.
        choice: whether actions are sampled from logits, and epsilon [E] of those that are not.
        box: arguments of ``gaussian_actions`` between mean and actions, and actions before they are
            clipped [T, E, A]; None: actions are numbers.
        explorer, nature: random generators of exploration and of the environments. (Not one tuple,
            which costs a call 40 us more.)
        cart, arm, car, hill, pole: constants of CartPole, Acrobot, MountainCar,
            MountainCarContinuous or Pendulum; None: it is not compiled.
        world: state [K, E], steps and done [E] of the environments.
        records: arrays: obs, first, action, reward, terminated, truncated, valid [T, E, ...];
            carried: first, ended, episode_return, episode_length [E];
            finished: return and length of the episodes that end, [*, 2].
        record: log-probabilities [T, E] of sampled actions, else max_a Q [R, E] of rows below R.
        limits: the first row, the row before which the call ends at the latest, valid rows of the
            chunk before the first row, and those that complete it.

    Returns: the row after the last, valid rows of the chunk, and valid rows and finished episodes
    of this call.
    """
    (layers, heads, p, work, moments), (arrays, carried, finished) = net, records
    begin, end, units, wanted = limits
    obs, _, action, reward, terminated, truncated, _ = arrays
    (state, ages, done), (h, unit, inverse, _), (samples, epsilon) = world, work, choice
    columns, actions = obs.shape[1], layers[heads[0], N_OUT]
    q, inputs = np.empty((columns, actions), np.float32), np.empty(obs.shape[1:], np.float32)
    t, had, episodes = begin, units, 0 * columns  # with a literal 0 two ``count_row`` are compiled
    while t < end and units < wanted and (cart is not None or not done.any()):
        begin_row(t, arrays, carried, moments, inputs)
        forward(layers, p, inputs.reshape(-1), columns, h, unit, inverse)
        z = part(h, layers[heads[0]], columns)
        if box is not None:
            bounds, raw = box
            noise = explorer.standard_normal(z.shape, np.float32)
            gaussian_actions(z, bounds, noise, raw[t], action[t], record[t])
        elif samples:
            draws = explorer.random(columns, np.float32)
            sample_actions(z, draws, action[t], record[t], q[0])
        else:
            action_values(h, layers, heads, columns, q)
            if t < len(record):
                row_maxima(q, record[t])
            coins = explorer.random(columns)
            others = explorer.integers(0, actions, columns)
            greedy_actions(q, epsilon, coins, others, action[t])
        row = action[t], obs[t + 1], reward[t], terminated[t], truncated[t]
        if cart is not None:
            cartpole(cart, nature, state, ages, done, *row)
        if arm is not None:
            acrobot(arm, state, ages, done, *row)
        if car is not None:
            mountain_car(car, state, ages, done, *row)
        if hill is not None:
            mountain_car_continuous(hill, state, ages, done, *row)
        if pole is not None:
            pendulum(pole, state, ages, done, *row)
        steps, episodes = count_row(t, arrays, carried, finished, episodes)
        t, units = t + 1, units + steps
    return t, units, units - had, episodes


# -- collection ------------------------------------------------------------------------------------

ROWS = 128  # most rows of a call: a signal waits for its end
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
        self.rules: tuple[np.ndarray | None, ...] = constants, *[None] * len(CLASSIC)

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


CLASSIC = {  # environment -> its argument that is a constant; in the order of ``rollout``
    Acrobot: "",
    MountainCar: "goal_velocity",
    MountainCarContinuous: "goal_velocity",
    Pendulum: "g",
}


class Classic:
    """The compiled steps of ``rlrun.env.classic``; rows that open episodes are not compiled."""

    resets, generator = False, None

    def __init__(self, env: Any) -> None:
        self.env, rule = env, CLASSIC[type(env)]
        rule_value = getattr(env, rule) if rule else 0.0
        constants = np.array([env.limit[0], rule_value], np.float64)
        self.rules = None, *(constants if type(env) is task else None for task in CLASSIC)

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


class CompiledRows:
    """Steps environments and acts without leaving compiled code.

    The random numbers are those of the actor and the environments. Rows are those of a loop over
    both, up to the rounding of the network's outputs.
    """

    whose = "collector"

    def __init__(
        self, kernel: CompiledLearner | DQNKernel, env: Env, task: CartPole | Classic
    ) -> None:
        self.kernel, self.env, self.task = kernel, env, task
        self.columns = columns = env.num_envs
        self.network = ActingNetwork(kernel, columns)
        self.finished = np.zeros((ROWS * columns, 2))
        self.greatest = np.zeros((0, columns), np.float32)  # max_a Q of the rows, if it is read
        self.compared = False

    def run(
        self,
        arrays: dict[str, Any],
        world: tuple[np.ndarray, ...],
        carried: tuple[np.ndarray, ...],
        epsilon: np.ndarray | None,
        generators: tuple[np.random.Generator, np.random.Generator],
        limits: tuple[int, int, int, int],
    ) -> tuple[int, int, int, int]:
        """Return the result of ``rollout``, which writes ``world`` and ``carried``.

        ``epsilon`` None: actions are greedy.
        """
        extras, samples = arrays["extras"], self.network.samples
        record = extras["log_prob"] if samples else self.greatest
        zeros = np.zeros(self.columns, np.float32)
        random = zeros if samples or epsilon is None else epsilon
        box, choice = None, (samples and epsilon is not None, random)
        if (bounds := self.network.box()) is not None:
            log_std = np.full_like(bounds[0], -np.inf) if epsilon is None else bounds[0]
            raw = extras["raw_action"].reshape(len(arrays["action"]), self.columns, -1)
            box = (log_std, *bounds[1:]), raw
        records = tuple(arrays[name] for name in ROW_ARRAYS), carried, self.finished
        call: Any = rollout
        out: tuple[int, int, int, int] = call(
            self.network.arguments(), choice, box, *generators, *self.task.rules, world, records,
            record, limits,
        )  # fmt: skip
        return out

    def agrees(
        self, actor: Any, example: dict[str, Any], obs: np.ndarray,
        carried: tuple[np.ndarray, ...], past: tuple[Any, ...], epsilon: np.ndarray | None,
    ) -> bool:  # fmt: skip
        """Return whether the rows after ``obs`` are those of actor and environment, up to rounding.

        Both act on copies with the same random numbers, so the comparison has no other effect.
        ``example``: arrays like those of the rows. ``past``: previous action and reward, and state.
        """
        task, twin = self.task, self.task.twin()
        before = copy.deepcopy(actor.generator)
        rows = {
            name: np.zeros((CHECKED + 1, *x.shape[1:]), x.dtype)
            for name, x in example.items() if name in ROW_ARRAYS
        }  # fmt: skip
        rows["obs"][0] = obs
        log_prob = np.zeros((CHECKED + 1, self.columns), np.float32)
        raw = np.zeros(rows["action"].shape, np.float32)
        checked, *_ = self.run(
            {**rows, "extras": {"log_prob": log_prob, "raw_action": raw}}, task.world(), carried,
            epsilon, (copy.deepcopy(before), copy.deepcopy(task.generator or before)),
            (0, CHECKED, 0, CHECKED * self.columns + 1),
        )  # fmt: skip
        different, generator, actor.generator = 0, actor.generator, before
        try:
            for k in range(checked):
                out = actor.act(rows["obs"][k], rows["first"][k], *past, explore=epsilon)
                same = np.isclose(out.action, rows["action"][k], 0, 1e-4, equal_nan=True)
                if not np.isfinite(out.action).all():  # of a policy that diverged
                    different += int(np.count_nonzero(~same))
                    break
                same = same.reshape(self.columns, -1).all(-1)
                different += int(np.count_nonzero(~same))
                recorded = out.extras.get("log_prob", log_prob[k])
                near = np.isclose(recorded, log_prob[k], atol=1e-3) | ~same | (epsilon is None)
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
            "%s: the compiled rows are not those of this policy and environment; the %s's own "
            "loop is used", self.whose, self.whose,
        )  # fmt: skip
        return False


@jit_ieee
def find_unknown(obs: Any, acted: Any, valid: Any, terminated: Any, unknown: Any) -> None:
    """Write the rows ``unknown`` [T + 1] with a readable observation that is not in ``acted``.

    ``obs``, ``acted`` [T + 1, E, F]; NaN is in none. See ``functional.rows.readable``.
    """
    for t in range(len(unknown)):
        unknown[t] = False
        for i in range(obs.shape[1]):
            follows = t > 0 and valid[t - 1, i] and not terminated[t - 1, i]
            if follows or (t < len(valid) and valid[t, i]):
                for j in range(obs.shape[2]):
                    unknown[t] |= obs[t, i, j] != acted[t, i, j]


class ActedValues:
    """max_a Q of rows as acting computed it, which ``PQNKernel`` reads again for its targets.

    Values of a row are known if acting had the same parameters and readable observations. The
    kernel computes others like acting, all columns of a row in a product, which gives the same
    bits: a resumed run has not seen the acting, nor has the learner of ``pipeline=ray``.
    """

    def __init__(self, kernel: PQNKernel, columns: int) -> None:
        self.kernel, kernel.acted = kernel, self
        self.parameters = np.zeros(0, np.float32)
        self.obs = np.zeros((0, columns, kernel.net.inputs), np.float32)
        self.value = np.zeros((0, columns), np.float32)

    def begin(self, rows: int) -> np.ndarray:
        """Return the array [rows, E] to which acting with the present parameters writes."""
        if rows != len(self.obs) or not np.array_equal(self.parameters, self.kernel.net.values):
            self.parameters = self.kernel.net.values.copy()
            self.obs = np.full((rows, *self.obs.shape[1:]), np.nan, np.float32)
            self.value = np.zeros((rows, self.value.shape[1]), np.float32)
        return self.value

    def remember(self, row: int, obs: np.ndarray) -> None:
        """Note that the values of ``obs`` [N, E, F] were written, from ``row`` on."""
        self.obs[row : row + len(obs)] = obs

    def recall(
        self, rows: RolloutRows, x: np.ndarray, value: np.ndarray, unknown: np.ndarray
    ) -> None:
        """Write max_a Q [T + 1, E] of the inputs ``x`` [T + 1, E, F], and which are unknown."""
        if len(x) <= len(self.obs) and np.array_equal(self.parameters, self.kernel.net.values):
            value[:] = self.value[: len(x)]
            find_unknown(x, self.obs, rows.valid.numpy(), rows.terminated.numpy(), unknown)


class CompiledRollout(CompiledRows):
    """Collects rows of a ``Collector``."""

    def __init__(
        self, kernel: CompiledLearner | DQNKernel, env: Env, actor: Actor, task: CartPole | Classic
    ) -> None:
        super().__init__(kernel, env, task)
        self.actor = actor
        self.memo = None
        if isinstance(kernel, PQNKernel):
            self.memo = ActedValues(kernel, self.columns)

    @classmethod
    def of(cls, collector: Any) -> "CompiledRollout | None":
        """Return the compiled rows of a ``Collector``, or None if it needs its own loop."""
        c, kernel = collector.config, collector.policy.kernel
        known = isinstance(kernel, CompiledLearner | DQNKernel)
        plain = known and c.unit == "step" and not c.keep_info
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
            mixed = np.full_like(epsilon, 0.5)  # greedy actions, too, also of a single column
            past = collector.prev_action, collector.prev_reward, collector.state
            carried = tuple(np.array(getattr(collector, name)) for name in CARRIED)
            rows, obs = collector.arrays, collector.arrays["obs"][t]
            if not self.agrees(collector.actor, rows, obs, carried, past, mixed):
                collector.compiled = None
                return None
        began, generator = time.perf_counter(), collector.policy.generator
        generators, world = (generator, task.generator or generator), task.world()
        carried = tuple(np.array(getattr(collector, name)) for name in CARRIED)
        end = min(collector.capacity, t + ROWS)
        wanted = collector.config.n_sample
        if self.memo is not None:
            self.greatest = self.memo.begin(len(collector.arrays["obs"]))
        stop, units, steps, episodes = self.run(
            collector.arrays, world, carried, epsilon, generators, (t, end, units, wanted)
        )
        if self.memo is not None:
            self.memo.remember(t, collector.arrays["obs"][t:stop])
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
