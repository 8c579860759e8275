"""Greedy episodes in environments with a compiled step: one call for many rows."""

from typing import Any

import numpy as np

from rlrun.env import Env
from rlrun.kernels.dqn import DQNKernel
from rlrun.kernels.on_policy import CompiledLearner
from rlrun.kernels.rollouts import ROW_ARRAYS, ROWS, CartPole, Classic, CompiledRows, task_of
from rlrun.types import no_actions

Row = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # obs, first, previous action, reward


class CompiledEpisodes(CompiledRows):
    """Plays rows of an ``Evaluator`` with a policy's weights."""

    whose = "evaluation"

    def __init__(
        self, kernel: CompiledLearner | DQNKernel, env: Env, task: CartPole | Classic
    ) -> None:
        super().__init__(kernel, env, task)
        columns, example = (ROWS + 1, env.num_envs), no_actions(env.action_space, env.num_envs)
        flags, numbers = np.zeros((4, *columns), bool), np.zeros((2, *columns), np.float32)
        action = np.zeros((ROWS + 1, *example.shape), example.dtype)
        obs = np.zeros((*columns, *(env.obs_space.shape or ())), np.float32)
        rows = obs, flags[0], action, numbers[0], *flags[1:]
        self.arrays: dict[str, Any] = dict(zip(ROW_ARRAYS, rows, strict=True))
        self.arrays["extras"] = {"log_prob": numbers[1], "raw_action": np.zeros_like(action)}
        self.agreed = True
        self.unused = np.random.default_rng(0)  # of actions that are drawn, but not taken

    @classmethod
    def of(cls, env: Env, policy: Any) -> "CompiledEpisodes | None":
        """Return the compiled rows of a policy's episodes, or None if they need an actor."""
        kernel, task = policy.kernel, task_of(env.native)
        if task is None or not isinstance(kernel, CompiledLearner | DQNKernel):
            return None
        return cls(kernel, env, task)

    def play(
        self, actor: Any, row: Row, state: Any, counted: Any, most: int
    ) -> tuple[Row, int]:  # fmt: skip
        """Play at most ``most`` rows from ``row``, where the episodes of ``counted`` are.

        Returns: the row after the last, and how many were played; 0: the next row needs the
        evaluator's loop.
        """
        task, (obs, first, *past) = self.task, row
        if not self.agreed or most <= 0 or (not task.resets and counted.ended.any()):
            return row, 0
        carried = np.array(first), counted.ended, counted.total, counted.length
        if not self.compared:
            self.compared, copies = True, tuple(np.array(x) for x in carried)
            self.agreed = self.agrees(actor, self.arrays, obs, copies, (*past, state), None)
            if not self.agreed:
                return row, 0
        world, arrays = task.world(), self.arrays
        generators = self.unused, task.generator or self.unused
        arrays["obs"][0] = obs
        limits = 0, min(ROWS, most), 0, (ROWS + 1) * self.columns
        stop, _, _, episodes = self.run(arrays, world, carried, None, generators, limits)
        finite = np.isfinite(arrays["action"][:stop]).reshape(stop, -1).all(-1)
        if not finite.all():
            self.env.step(arrays["action"][finite.argmin()])  # raises NumericError
        task.put(world)
        self.env.stepped(stop, counted.ended)
        ends = arrays["valid"] & (arrays["terminated"] | arrays["truncated"])
        columns = np.nonzero(ends[:stop])[1]
        for i, (score, steps) in zip(columns, self.finished[:episodes].tolist(), strict=True):
            counted.count(int(i), score, int(steps))
        last = stop - 1
        action, reward = arrays["action"][last].copy(), arrays["reward"][last].copy()
        return (arrays["obs"][stop].copy(), carried[0], action, reward), stop
