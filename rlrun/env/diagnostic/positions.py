"""POPGym's PositionOnlyCartPole and NoisyPositionOnlyCartPole."""

import math

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.picture import BLUE, GREY, canvas, fill
from rlrun.env.diagnostic.vector import LockstepVectorEnv, SingleFromVector, require_int

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02  # CartPole's constants (Barto, Sutton & Anderson 1983)
POLE, HALF_LENGTH = 0.1, 0.5  # mass in kg, half the pole in m
MASS, MOMENT = POLE + 1.0, POLE * HALF_LENGTH
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360  # m, rad: beyond them an episode terminates
CELLS = 21  # of a picture


class PositionOnlyCartPoleVectorEnv(LockstepVectorEnv):
    """CartPole whose observation float32 [2] is (cart position in m, pole angle in rad).

    ``noise`` is the standard deviation of the normal noise on both numbers, clipped to the bounds
    of the space; 0: none. Reward 1 / ``steps`` per step, the last one of an episode included.
    Terminated when the pole or the cart leaves its range, truncated after ``steps`` steps: the best
    return is 1. ``steps`` 200, 400 and 600 without noise are POPGym's PositionOnlyCartPole easy,
    medium and hard; 200 steps with noise 0.1, 0.2 and 0.3 its NoisyPositionOnlyCartPole.

    The physics is that of Gymnasium's single CartPole in float64, operation by operation, so that
    one seed gives the rows of popgym 1.0.7. Source: Morad et al., ICLR 2023.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        steps: int = 200,
        noise: float = 0.0,
        full_state: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        require_int("steps", steps, 1)
        if not noise >= 0:
            raise ValueError(f"noise = {noise}: must be >= 0")
        bound = np.array([2 * FARTHEST, 2 * STEEPEST], np.float32)
        super().__init__(
            num_envs,
            observation_space=spaces.Box(-bound, bound),
            action_space=spaces.Discrete(2),
            max_episode_steps=max_episode_steps,
            full_state=4 if full_state else None,
        )
        self.bound = bound
        self.steps = steps
        self.noise = noise
        self.state = np.zeros((num_envs, 4))  # position, its rate, angle, its rate
        self.error = np.zeros((num_envs, 2), np.float32)  # of the newest observation

    def _reset_columns(self, columns: np.ndarray) -> None:
        for i in columns:
            self.state[i] = self.rngs[i].uniform(-0.05, 0.05, size=4)
        self.limit[columns] = self.steps
        self._draw_noise(columns)

    def _draw_noise(self, columns: np.ndarray) -> None:
        if self.noise > 0:
            sigma = np.full(2, self.noise)
            for i in columns:
                self.error[i] = self.rngs[i].normal(0, sigma)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, x_dot, theta, theta_dot = self.state.T
        force = np.where(action == 1, FORCE, -FORCE)
        cosine, sine = np.cos(theta), np.sin(theta)
        push = (force + MOMENT * np.square(theta_dot) * sine) / MASS
        theta_acc = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE * np.square(cosine) / MASS)
        )
        x_acc = push - MOMENT * theta_acc * cosine / MASS
        x, theta = x + SECONDS * x_dot, theta + SECONDS * theta_dot
        x_dot, theta_dot = x_dot + SECONDS * x_acc, theta_dot + SECONDS * theta_acc
        self.state = np.stack([x, x_dot, theta, theta_dot], 1)
        self._draw_noise(np.flatnonzero(~self._done))  # a column that resets draws there
        fallen = (np.abs(x) > FARTHEST) | (np.abs(theta) > STEEPEST)
        return np.full(self.num_envs, 1 / self.steps, np.float32), fallen

    def _observe(self) -> np.ndarray:
        obs: np.ndarray = self.state[:, ::2].astype(np.float32)
        if self.noise > 0:
            obs = np.clip(obs + self.error, -self.bound, self.bound)
        return obs

    def _full_state(self) -> np.ndarray:
        return self.state.astype(np.float32)

    def picture(self, column: int) -> np.ndarray:
        """Return the track from above: the cart blue, above it the tip of the pole grey."""
        position, angle = self.state[column, ::2]
        tip = position + 2 * HALF_LENGTH * math.sin(angle)
        image = canvas(2, CELLS)
        for row, at, colour in ((0, tip, GREY), (1, position, BLUE)):
            cell = round((at + FARTHEST) / (2 * FARTHEST) * (CELLS - 1))
            fill(image, row, min(max(cell, 0), CELLS - 1), colour)
        return image


class PositionOnlyCartPoleEnv(SingleFromVector):
    vector = PositionOnlyCartPoleVectorEnv
