"""An environment whose number decides what it suffers while the file ``faulty`` is there."""

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np

from tests.env.base import Env

CRASHES, KILLED, SLOW = 1, 2, (4, 5)
AT = 90  # the step of a fault


class Fragile(Env):
    """Random observations, reward 1 for action 1, episodes of 10 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num):
        self.num, self.steps = num, 0

    def _obs(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.steps += 1
        if Path("faulty").exists():
            self.suffer()
        return self._obs(), float(action), self.steps % 10 == 0, False, {}

    def suffer(self):
        if self.num in SLOW:
            time.sleep(0.1)
        if self.steps == AT and self.num == CRASHES:
            raise ZeroDivisionError("a fault of the environment")
        if self.steps == AT and self.num == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)


gymnasium.register("test/Fragile-v0", entry_point=Fragile)
