"""Worker processes of asynchronous environments, killed again and again."""

import os
import signal

import numpy as np

from rlrun.env import make_env
from tests.env.presets import config_of


def test_killed_workers_are_replaced_and_none_is_left():
    config = config_of("CartPole-v1", backend="async", on_worker_failure="restart")
    env = make_env(config, num_envs=2)
    env.reset(seed=0)
    pids = set()
    for number in (0, 1, 0):
        workers = [worker.process.pid for worker in env._source.workers]
        pids |= {*workers}
        os.kill(workers[number], signal.SIGKILL)
        while env.step(np.zeros(2, np.int64)).restarted is None:
            pass
    assert env.restarts == 3
    env.step(np.zeros(2, np.int64))
    pids |= {process.pid for process in env._source.processes}
    env.close()
    assert len(pids) >= 5
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
