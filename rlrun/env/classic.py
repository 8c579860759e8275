"""Gymnasium's Acrobot, MountainCar and Pendulum for many columns at once, with the same bits.

Every formula is that of ``gymnasium.envs.classic_control``, operation by operation, on arrays in
place of numbers, so a column has the rows of the single environment with its seed. Fifty columns
of Acrobot take a tenth of the time of fifty environments.
"""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, Spaces, number
from rlrun.jit import jit_ieee

TWO = 2.0  # as an argument: compiled with a constant exponent, ``x**2`` would be ``x * x``


@jit_ieee
def _cos(x: np.ndarray) -> np.ndarray:
    """Return the cosines float64 [E] of the C library, as ``math.cos``; numpy's may differ."""
    out = np.empty(len(x))
    for i in range(len(x)):
        out[i] = math.cos(x[i])
    return out


@jit_ieee
def _power(x: np.ndarray, exponent: float) -> np.ndarray:
    """Return float64 [E] of the C library, as ``**`` of numbers; numpy's may differ."""
    out = np.empty(len(x))
    for i in range(len(x)):
        out[i] = float(x[i]) ** exponent
    return out


class Acrobot(LockstepVectorEnv):
    """A two-link arm that swings up; torque -1, 0 or 1 on its joint. Reward -1 per step."""

    def _setup(self) -> Spaces:
        self.state = np.zeros((4, self.num_envs))  # two angles, their rates
        high = np.array([1, 1, 1, 1, 4 * np.pi, 9 * np.pi], np.float32)
        return spaces.Box(-high, high), spaces.Discrete(3)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[:, i] = rng.uniform(-0.1, 0.1, size=4).astype(np.float32)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start, torque, dt = self.state, (action - 1).astype(np.float64), 0.2
        k, s, angles = np.empty((4, *start.shape)), start.copy(), np.empty((3, len(torque)))
        for stage, step in enumerate((0.0, dt / 2.0, dt / 2.0, dt)):  # Runge and Kutta
            if stage:
                move(start, k[stage - 1], step, s)
            a, b = s[:2]
            angles[0], angles[1], angles[2] = b, a + b - np.pi / 2.0, a - np.pi / 2
            accelerate(s, torque, np.cos(angles), np.sin(b), TWO, k[stage])
        finish(start, k, dt / 6.0, s)
        self.state = s
        up = -np.cos(self.state[0]) - np.cos(self.state[1] + self.state[0]) > 1.0
        return np.where(up, 0.0, -1.0).astype(np.float32), up

    def _observe(self) -> np.ndarray:
        a, b, da, db = self.state
        obs = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b), da, db], 1).astype(np.float32)
        if (fresh := self.t == 0).any():  # the single environment begins in float32
            a, b = self.state[:2, fresh].astype(np.float32)
            obs[fresh, :4] = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b)], 1)
        return obs


@jit_ieee
def move(start: Any, rates: Any, step: float, out: Any) -> None:
    """Write ``start`` moved along ``rates``, [4, E] each."""
    for k in range(4):
        for i in range(start.shape[1]):
            out[k, i] = start[k, i] + step * rates[k, i]


@jit_ieee
def finish(start: Any, k: Any, step: float, out: Any) -> None:
    """Write ``start`` [4, E] moved along the four ``k``, angles wrapped and rates bounded."""
    for j in range(4):
        for i in range(start.shape[1]):
            rate = k[0, j, i] + 2 * k[1, j, i] + 2 * k[2, j, i] + k[3, j, i]
            x = start[j, i] + step * rate
            if j < 2:
                while x > math.pi:
                    x = x - (math.pi - -math.pi)
                while x < -math.pi:
                    x = x + (math.pi - -math.pi)
            else:
                most = (4 if j == 2 else 9) * math.pi
                x = min(max(x, -most), most)
            out[j, i] = x


@jit_ieee
def accelerate(s: Any, torque: Any, cosines: Any, sines: Any, two: float, out: Any) -> None:
    """Write d state / dt. Links of mass and length 1, centres at 0.5, inertia 1."""
    for i in range(len(torque)):
        da, db, cos_b, sin_b = s[2, i], s[3, i], cosines[0, i], sines[i]
        d1 = 1.0 * 0.5**2 + 1.0 * (1.0**2 + 0.5**2 + 2 * 1.0 * 0.5 * cos_b) + 1.0 + 1.0
        d2 = 1.0 * (0.5**2 + 1.0 * 0.5 * cos_b) + 1.0
        phi2 = 1.0 * 0.5 * 9.8 * cosines[1, i]
        phi1 = (
            -1.0 * 1.0 * 0.5 * db**two * sin_b
            - 2 * 1.0 * 1.0 * 0.5 * db * da * sin_b
            + (1.0 * 0.5 + 1.0 * 1.0) * 9.8 * cosines[2, i]
            + phi2
        )
        ddb = (torque[i] + d2 / d1 * phi1 - 1.0 * 1.0 * 0.5 * da**two * sin_b - phi2) / (
            1.0 * 0.5**2 + 1.0 - d2**two / d1
        )
        out[0, i], out[1, i], out[2, i], out[3, i] = da, db, -(d2 * ddb + phi1) / d1, ddb


class MountainCar(LockstepVectorEnv):
    """An underpowered car between two hills; pushed left, not at all or right. Reward -1."""

    goal_velocity: float = number(0)

    def _setup(self) -> Spaces:
        self.state = np.zeros((2, self.num_envs))  # position, velocity
        low, high = np.array([[-1.2, -0.07], [0.6, 0.07]], np.float32)
        return spaces.Box(low, high), spaces.Discrete(3)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        self.state[:, i] = rng.uniform(-0.6, -0.4), 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        position, velocity = self.state
        velocity = velocity + ((action - 1) * 0.001 + _cos(3 * position) * -0.0025)
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity[(position == -1.2) & (velocity < 0)] = 0
        self.state = np.stack([position, velocity])
        reached = (position >= 0.5) & (velocity >= self.goal_velocity)
        return np.full(self.num_envs, -1, np.float32), reached

    def _observe(self) -> np.ndarray:
        return np.ascontiguousarray(self.state.T, np.float32)


class MountainCarContinuous(MountainCar):
    """MountainCar with a force in [-1, 1]: reward -0.1 force^2, and 100 at the goal.

    The single environment computes in float32 from an episode's second step on.
    """

    def _setup(self) -> Spaces:
        obs, _ = super()._setup()
        return obs, spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        fresh, force = self.t == 0, np.clip(action[:, 0], -1, 1)
        exact, (position, velocity) = self.state[0], self.state.astype(np.float32)
        slope = 0.0025 * _cos(np.where(fresh, 3 * exact, 3 * position))
        velocity = velocity + (force * np.float32(0.0015) - slope.astype(np.float32))
        velocity = np.clip(velocity, np.float32(-0.07), np.float32(0.07))
        position = np.where(fresh, (exact + velocity).astype(np.float32), position + velocity)
        position = np.clip(position, np.float32(-1.2), np.float32(0.6))
        velocity[(position == np.float32(-1.2)) & (velocity < 0)] = 0
        self.state = np.stack([position, velocity]).astype(np.float64)
        reached = (position >= np.float32(0.45)) & (velocity >= self.goal_velocity)
        reward = np.where(reached, 100.0, 0.0) - _power(action[:, 0], TWO) * 0.1
        return reward.astype(np.float32), reached


class Pendulum(LockstepVectorEnv):
    """A pole that is swung up and held by one torque in [-2, 2]; the reward is minus a cost."""

    g: float = number(10.0)

    def _setup(self) -> Spaces:
        self.state = np.zeros((2, self.num_envs))  # angle, its rate
        high = np.array([1, 1, 8], np.float32)
        return spaces.Box(-high, high), spaces.Box(-2.0, 2.0, (1,), np.float32)

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        high = np.array([np.pi, 1.0])
        self.state[:, i] = rng.uniform(-high, high)

    def _swing(self, action: np.ndarray) -> np.ndarray:
        """Move the poles. Return the cost of the step, float64 [E]."""
        (angle, rate), torque = self.state, np.clip(action[:, 0], -2.0, 2.0)
        normal = (angle + np.pi) % (2 * np.pi) - np.pi
        cost: np.ndarray = _power(normal, TWO) + 0.1 * _power(rate, TWO) + 0.001 * torque**2
        rate = rate + (3 * self.g / (2 * 1.0) * np.sin(angle) + 3.0 * torque) * 0.05
        rate = np.clip(rate, -8, 8)
        self.state = np.stack([angle + rate * 0.05, rate])
        return cost

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (-self._swing(action)).astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        angle, rate = self.state
        return np.stack([np.cos(angle), np.sin(angle), rate], 1).astype(np.float32)
