"""Gymnasium's Acrobot, MountainCar and Pendulum for many columns at once, with the same bits.

Every formula is that of ``gymnasium.envs.classic_control``, operation by operation, on arrays in
place of numbers, so a column has the rows of the single environment with its seed. Fifty columns
of Acrobot take a tenth of the time of fifty environments.
"""

import math

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, Spaces, number

NATIVE = {
    "Acrobot-v1": "rlrun.env.classic:Acrobot",
    "MountainCar-v0": "rlrun.env.classic:MountainCar",
    "MountainCarContinuous-v0": "rlrun.env.classic:MountainCarContinuous",
    "Pendulum-v1": "rlrun.env.classic:Pendulum",
}
"""id of Gymnasium without a native vector environment -> ours"""


def _cos(x: np.ndarray) -> np.ndarray:
    """Return the cosines float64 of the C library, as ``math.cos``."""
    return np.array([math.cos(v) for v in x.tolist()])


def _square(x: np.ndarray) -> np.ndarray:
    """Return the squares float64 of the C library, as ``**`` of numbers; numpy's may differ."""
    return np.array([v**2 for v in x.tolist()])


class Acrobot(LockstepVectorEnv):
    """A two-link arm that swings up; torque -1, 0 or 1 on its joint. Reward -1 per step."""

    def _setup(self) -> Spaces:
        self.state = np.zeros((4, self.num_envs))  # two angles, their rates
        high = np.array([1, 1, 1, 1, 4 * np.pi, 9 * np.pi], np.float32)
        return spaces.Box(-high, high), spaces.Discrete(3)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.state[:, i] = self.rngs[i].uniform(-0.1, 0.1, size=4).astype(np.float32)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        torque, s, dt = (action - 1).astype(np.float64), self.state, 0.2
        k1 = _rates(s, torque)  # Runge and Kutta, fourth order
        k2 = _rates(s + dt / 2.0 * k1, torque)
        k3 = _rates(s + dt / 2.0 * k2, torque)
        k4 = _rates(s + dt * k3, torque)
        s = s + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        for angle in s[:2]:
            while (over := angle > np.pi).any():
                angle[over] -= np.pi - -np.pi
            while (under := angle < -np.pi).any():
                angle[under] += np.pi - -np.pi
        s[2] = np.clip(s[2], -4 * np.pi, 4 * np.pi)
        s[3] = np.clip(s[3], -9 * np.pi, 9 * np.pi)
        self.state = s
        up = -np.cos(s[0]) - np.cos(s[1] + s[0]) > 1.0
        return np.where(up, 0.0, -1.0).astype(np.float32), up

    def _observe(self) -> np.ndarray:
        a, b, da, db = self.state
        obs = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b), da, db], 1).astype(np.float32)
        if (fresh := self.t == 0).any():  # the single environment begins in float32
            a, b = self.state[:2, fresh].astype(np.float32)
            obs[fresh, :4] = np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b)], 1)
        return obs


def _rates(s: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Return d state / dt [4, E]. Links of mass and length 1, centres at 0.5, inertia 1."""
    a, b, da, db = s
    cos_b, sin_b = np.cos(b), np.sin(b)
    d1 = 1.0 * 0.5**2 + 1.0 * (1.0**2 + 0.5**2 + 2 * 1.0 * 0.5 * cos_b) + 1.0 + 1.0
    d2 = 1.0 * (0.5**2 + 1.0 * 0.5 * cos_b) + 1.0
    phi2 = 1.0 * 0.5 * 9.8 * np.cos(a + b - np.pi / 2.0)
    phi1 = (
        -1.0 * 1.0 * 0.5 * _square(db) * sin_b
        - 2 * 1.0 * 1.0 * 0.5 * db * da * sin_b
        + (1.0 * 0.5 + 1.0 * 1.0) * 9.8 * np.cos(a - np.pi / 2)
        + phi2
    )
    ddb = (torque + d2 / d1 * phi1 - 1.0 * 1.0 * 0.5 * _square(da) * sin_b - phi2) / (
        1.0 * 0.5**2 + 1.0 - _square(d2) / d1
    )
    return np.stack([da, db, -(d2 * ddb + phi1) / d1, ddb])


class MountainCar(LockstepVectorEnv):
    """An underpowered car between two hills; pushed left, not at all or right. Reward -1."""

    goal_velocity: float = number(0)

    def _setup(self) -> Spaces:
        self.state = np.zeros((2, self.num_envs))  # position, velocity
        low, high = np.array([[-1.2, -0.07], [0.6, 0.07]], np.float32)
        return spaces.Box(low, high), spaces.Discrete(3)

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.state[:, i] = self.rngs[i].uniform(-0.6, -0.4), 0

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        position, velocity = self.state
        velocity = velocity + ((action - 1) * 0.001 + _cos(3 * position) * -0.0025)
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity[(position == -1.2) & (velocity < 0)] = 0
        self.state = np.stack([position, velocity])
        there = (position >= 0.5) & (velocity >= self.goal_velocity)
        return np.full(self.num_envs, -1, np.float32), there

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
        there = (position >= np.float32(0.45)) & (velocity >= self.goal_velocity)
        reward = np.where(there, 100.0, 0.0) - _square(action[:, 0]) * 0.1
        return reward.astype(np.float32), there


class Pendulum(LockstepVectorEnv):
    """A pole that is swung up and held by one torque in [-2, 2]; the reward is minus a cost."""

    g: float = number(10.0)

    def _setup(self) -> Spaces:
        self.state = np.zeros((2, self.num_envs))  # angle, its rate
        high = np.array([1, 1, 8], np.float32)
        return spaces.Box(-high, high), spaces.Box(-2.0, 2.0, (1,), np.float32)

    def _reset_columns(self, columns: np.ndarray) -> None:
        high = np.array([np.pi, 1.0])
        for i in columns:
            self.state[:, i] = self.rngs[i].uniform(-high, high)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (angle, rate), torque = self.state, np.clip(action[:, 0], -2.0, 2.0)
        normal = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = _square(normal) + 0.1 * _square(rate) + 0.001 * torque**2
        rate = rate + (3 * self.g / (2 * 1.0) * np.sin(angle) + 3.0 * torque) * 0.05
        rate = np.clip(rate, -8, 8)
        self.state = np.stack([angle + rate * 0.05, rate])
        return (-cost).astype(np.float32), np.zeros(self.num_envs, np.bool_)

    def _observe(self) -> np.ndarray:
        angle, rate = self.state
        return np.stack([np.cos(angle), np.sin(angle), rate], 1).astype(np.float32)
