"""Compiled rollouts: environments, selection of actions, and the loop over rows."""

import math
from typing import Any

import numpy as np

from rlrun.jit import jit_ieee
from rlrun.kernels.layers import N_OUT, ONE, ZERO, F, action_values, forward, part

# Constants of CartPole.
GRAVITY, POLE_MASS, TOTAL_MASS, LENGTH, POLE_MASS_LENGTH, FORCE, TAU, MOST_THETA, MOST_X = range(9)
LOW, HIGH, LIMIT, SUTTON_BARTO = range(9, 13)


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


@jit_ieee
def greedy_actions(q: Any, epsilon: Any, generator: Any, action: Any) -> None:
    """Write ``functional.explore.epsilon_greedy`` of the values q [E, A]."""
    coins = generator.random(len(action))
    others = generator.integers(0, q.shape[1], len(action))
    for i in range(len(action)):
        action[i] = others[i] if coins[i] < epsilon[i] else q[i].argmax()


@jit_ieee
def rollout(
    layers: Any, heads: Any, p: Any, work: Any, epsilon: Any, generators: Any,
    constants: Any, world: Any, arrays: Any, log_prob: Any, carried: Any, finished: Any,
    begin: int, end: int, units: int, wanted: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect rows begin, ..., at most end - 1 of E columns, until ``wanted`` valid ones.

    Args:
        layers, heads, p, work: of the acting network; see ``on_policy.pqn_passes``.
        epsilon: [E], or None for actions sampled from logits.
        generators: of exploration and of the environments.
        constants, world: of the environments; world: state, steps, done.
        arrays: obs, first, action, reward, terminated, truncated, valid [T, E, ...].
        log_prob: [T, E], or [1, E] if it is not recorded.
        carried: first, ended, episode_return, episode_length [E].
        finished: return and length of the episodes that end, [*, 2].
        units: valid rows of the chunk before row ``begin``.

    Returns: the row after the last, units, valid rows and finished episodes of this call.
    """
    obs, first, action, reward, terminated, truncated, valid = arrays
    opened, ended, episode_return, episode_length = carried
    h, unit, inverse, _ = work
    columns, actions = obs.shape[1], layers[heads[0], N_OUT]
    q = np.empty((columns, actions), np.float32)
    t, steps, episodes = begin, 0, 0
    while t < end and units < wanted:
        for i in range(columns):
            valid[t, i], first[t, i] = not ended[i], opened[i]
        forward(layers, p, obs[t].reshape(-1), columns, h, unit, inverse)
        if epsilon is None:
            z = part(h, layers[heads[0]], columns)
            sample_actions(z, generators[0], action[t], log_prob[t], q[0])
        else:
            action_values(h, layers, heads, columns, q)
            greedy_actions(q, epsilon, generators[0], action[t])
        cartpole(
            constants, generators[1], world[0], world[1], world[2], action[t], obs[t + 1],
            reward[t], terminated[t], truncated[t],
        )  # fmt: skip
        for i in range(columns):
            truncated[t, i] &= not terminated[t, i]
            opened[i], ended[i] = ended[i], terminated[t, i] or truncated[t, i]
            episode_return[i] += reward[t, i]
            if valid[t, i]:
                episode_length[i] += 1
                units += 1
                steps += 1
                if ended[i]:
                    finished[episodes, 0] = episode_return[i]
                    finished[episodes, 1] = episode_length[i]
                    episodes += 1
                    episode_return[i], episode_length[i] = 0.0, 0
        t += 1
    return t, units, steps, episodes
