"""Compiled rollouts: environments, selection of actions, and the loop over rows."""

import math
from typing import Any

import numpy as np

from rlrun.env.classic import TWO, accelerate, finish, move
from rlrun.functional.explore import LOG_2PI
from rlrun.jit import inner, jit_ieee
from rlrun.kernels.layers import N_OUT, ONE, ZERO, F, action_values, forward, part

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
def gaussian_actions(mean: Any, box: Any, t: int, generator: Any, out: Any, log_prob: Any) -> None:
    """Write ``functional.explore.draw_gaussian`` of ``mean`` [E, A], and actions in bounds."""
    log_std, middle, half_width, low, high, raw = box
    constant = F(log_std.sum() + 0.5 * LOG_2PI * len(log_std))
    noise = generator.standard_normal(mean.shape, np.float32)
    for i in range(len(mean)):
        total = ZERO
        for j in range(len(log_std)):
            total += noise[i, j] * noise[i, j]
            raw[t, i, j] = mean[i, j] + noise[i, j] * np.exp(log_std[j])
            out[i, j] = min(max(F(middle[j] + half_width[j] * raw[t, i, j]), low[j]), high[j])
        log_prob[i] = F(-0.5) * total - constant


@inner
@jit_ieee
def sample_actions(z: Any, generator: Any, action: Any, log_prob: Any, p: Any) -> None:
    """Write ``functional.explore.draw_categorical`` of the logits z [E, A]."""
    draws = generator.random(len(action), np.float32)
    actions = len(p)
    for i in range(len(action)):
        most, total = z[i, 0], ZERO
        for j in range(1, actions):
            most = max(most, z[i, j])
        for j in range(actions):
            total += np.exp(z[i, j] - most)
            p[j] = total
        threshold = min(draws[i] * total, np.nextafter(total, ZERO))
        chosen = 0
        for j in range(actions - 1):
            chosen += p[j] <= threshold
        action[i], log_prob[i] = chosen, z[i, chosen] - most - np.log(total)


@inner
@jit_ieee
def greedy_actions(q: Any, epsilon: Any, generator: Any, action: Any) -> None:
    """Write ``functional.explore.select_action`` of the values q [E, A]."""
    coins = generator.random(len(action))
    others = generator.integers(0, q.shape[1], len(action))
    for i in range(len(action)):
        action[i] = others[i] if coins[i] < epsilon[i] else q[i].argmax()


@inner
@jit_ieee
def begin_row(t: int, arrays: Any, carried: Any, moments: Any, inputs: Any) -> None:
    """Begin row t: write ``valid``, ``first`` and the network's ``inputs`` [E, F]."""
    obs, first, _, _, _, _, valid = arrays
    opened, ended, _, _ = carried
    mean, scale, most = moments
    for i in range(len(opened)):
        valid[t, i], first[t, i] = not ended[i], opened[i]
        for j in range(obs.shape[2]):
            inputs[i, j] = min(max((obs[t, i, j] - mean[j]) * scale[j], -most), most)


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
    net: Any, epsilon: Any, generators: Any, cart: Any, arm: Any, car: Any, world: Any,
    records: Any, log_prob: Any, limits: tuple[int, int, int, int],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect rows of E columns.

    Ends before a row that opens episodes, except of CartPole.

    Args:
        net: layers, heads, parameters and work of the acting network, see ``on_policy.pqn_passes``;
            moments: mean and reciprocal standard deviation of observations [F], largest magnitude.
        epsilon: [E], or None for actions sampled from logits.
        generators: of exploration and of the environments.
        cart, arm, car: constants of CartPole, Acrobot or MountainCar; None: it is not compiled.
        world: state [K, E], steps and done [E] of the environments.
        records: arrays: obs, first, action, reward, terminated, truncated, valid [T, E, ...];
            carried: first, ended, episode_return, episode_length [E];
            finished: return and length of the episodes that end, [*, 2].
        log_prob: [T, E] of sampled actions, or None.
        limits: the first row, the row before which the call ends at the latest, valid rows of the
            chunk before the first row, and those that complete it.

    Returns: the row after the last, valid rows of the chunk, and valid rows and finished episodes
    of this call.
    """
    (layers, heads, p, work, moments), (arrays, carried, finished) = net, records
    begin, end, units, wanted = limits
    obs, _, action, reward, terminated, truncated, _ = arrays
    (state, ages, done), (h, unit, inverse, _) = world, work
    columns, actions = obs.shape[1], layers[heads[0], N_OUT]
    q, inputs = np.empty((columns, actions), np.float32), np.empty(obs.shape[1:], np.float32)
    t, had, episodes = begin, units, 0 * columns  # with a literal 0 two ``count_row`` are compiled
    while t < end and units < wanted and (cart is not None or not done.any()):
        begin_row(t, arrays, carried, moments, inputs)
        forward(layers, p, inputs.reshape(-1), columns, h, unit, inverse)
        if log_prob is not None:
            z = part(h, layers[heads[0]], columns)
            sample_actions(z, generators[0], action[t], log_prob[t], q[0])
        if epsilon is not None:
            action_values(h, layers, heads, columns, q)
            greedy_actions(q, epsilon, generators[0], action[t])
        row = action[t], obs[t + 1], reward[t], terminated[t], truncated[t]
        if cart is not None:
            cartpole(cart, generators[1], state, ages, done, *row)
        if arm is not None:
            acrobot(arm, state, ages, done, *row)
        if car is not None:
            mountain_car(car, state, ages, done, *row)
        steps, episodes = count_row(t, arrays, carried, finished, episodes)
        t, units = t + 1, units + steps
    return t, units, units - had, episodes


@jit_ieee
def box_rollout(
    net: Any, box: Any, generators: Any, car: Any, pole: Any, world: Any, records: Any,
    log_prob: Any, limits: tuple[int, int, int, int],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect rows as ``rollout``, with actions of a Box sampled from a Gaussian.

    ``car``, ``pole``: constants of MountainCarContinuous or Pendulum, or None. ``box``: logarithms
    of standard deviations, middle, half width, lowest and highest actions [A], and actions before
    they are clipped [T, E, A].
    """
    (layers, heads, p, work, moments), (arrays, carried, finished) = net, records
    begin, end, units, wanted = limits
    obs, _, action, reward, terminated, truncated, _ = arrays
    (state, ages, done), (h, unit, inverse, _) = world, work
    columns, inputs = obs.shape[1], np.empty(obs.shape[1:], np.float32)
    t, had, episodes = begin, units, 0 * columns
    while t < end and units < wanted and not done.any():
        begin_row(t, arrays, carried, moments, inputs)
        forward(layers, p, inputs.reshape(-1), columns, h, unit, inverse)
        mean = part(h, layers[heads[0]], columns)
        gaussian_actions(mean, box, t, generators[0], action[t], log_prob[t])
        row = action[t], obs[t + 1], reward[t], terminated[t], truncated[t]
        if pole is not None:
            pendulum(pole, state, ages, done, *row)
        if car is not None:
            mountain_car_continuous(car, state, ages, done, *row)
        steps, episodes = count_row(t, arrays, carried, finished, episodes)
        t, units = t + 1, units + steps
    return t, units, units - had, episodes
