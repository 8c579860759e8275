"""env.backend=async: processes that end, hang or cannot be started; what they leave behind."""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlrun.env import known_spaces, make_env
from rlrun.errors import EnvError
from tests.env.presets import assert_names, config_of
from tests.env.sick import Healthy
from tests.env.test_contract import bad, breach, walk
from tests.pages import ROOT


def processes(env):
    """The worker processes. Private: there is no public way to end one."""
    return env._source.processes


def end_worker(env, i):
    processes(env)[i].kill()
    processes(env)[i].join()


def zero(env):
    return env.step(np.zeros(env.num_envs, int))


def test_a_killed_or_hung_worker_is_named():
    error = breach(bad("kill", backend="async"))
    assert_names(error, "environment 1 at step 3: worker exit code -9")
    error = breach(bad("hang", backend="async", worker_seconds=5))
    assert_names(error, "environment 1 at step 3: within 5 s")


def test_ctrl_c_is_left_to_the_main_process():
    env = make_env(bad("none", backend="async"), num_envs=2)
    env.reset(seed=20)
    for process in processes(env):
        os.kill(process.pid, signal.SIGINT)
    assert (zero(env).obs == 1).all()
    assert (zero(env).obs == 2).all()
    env.close()


# -- env.on_worker_failure=restart -----------------------------------------------------------------


@pytest.fixture
def env(request):
    changes = getattr(request, "param", {})
    made = make_env(bad("none", backend="async", on_worker_failure="restart", **changes),
                    num_envs=3)  # fmt: skip
    made.reset(seed=20)
    yield made
    made.close()


def test_a_dead_worker_is_restarted(env):
    """Its row has no action and opens an episode; the others go on."""
    zero(env)
    processes(env)[1].kill()
    step = zero(env)
    assert step.restarted.tolist() == step.first.tolist() == [False, True, False]
    assert (step.obs[:, 0].tolist(), step.reward[1]) == ([2, 0, 2], 0)
    step = zero(env)
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [3, 1, 3])
    assert not step.first.any()
    assert env.restarts == 1
    assert_names(env.inexact, "environment 1 step 2")


@pytest.mark.parametrize("env", [{"worker_seconds": 5}], indirect=True)
def test_a_stopped_worker_is_restarted(env):
    os.kill(processes(env)[2].pid, signal.SIGSTOP)
    assert zero(env).restarted.tolist() == [False, False, True]


def test_a_worker_that_ends_in_a_reset_is_restarted(env):
    end_worker(env, 1)
    assert env.reset(seed=20)[:, 0].tolist() == [0, 0, 0]
    step = zero(env)
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [1, 1, 1])
    assert (env.restarts, bool(env.inexact)) == (1, True)


def test_a_worker_that_ends_while_its_state_is_saved_or_loaded_is_restarted(env):
    """Its episode ends there, in this run and in one that goes on from the saved state."""
    zero(env)
    end_worker(env, 1)
    state = env.state_dict()
    step = zero(env)
    assert step.restarted.tolist() == step.first.tolist() == [False, True, False]
    assert (step.obs[:, 0].tolist(), step.reward.tolist()) == ([2, 0, 2], [1, 0, 1])
    step = zero(env)
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [3, 1, 3])
    end_worker(env, 2)
    assert env.load_state_dict(state)
    assert env.cut.tolist() == [False, True, True]
    step = zero(env)
    assert (step.first.tolist(), step.obs[:, 0].tolist()) == ([False, True, True], [2, 0, 0])


def test_a_crash_loop_ends():
    """Every process is killed by the third step of an episode; by the twelfth is no loop."""
    changes = {"bad_seed": None, "backend": "async", "on_worker_failure": "restart"}
    env = make_env(bad("kill", **changes), num_envs=2)
    with pytest.raises(EnvError, match=r"environments 0 and 1 at .* 3 "):
        walk(env, 40)
    assert env.restarts == 2 * 3
    env.close()
    assert not any(process.is_alive() for process in processes(env))
    env = make_env(bad("kill", at=12, **changes), num_envs=2)
    walk(env, 50)
    assert env.restarts == 2 * 4
    env.close()


class EndsAtOnce(gym.Wrapper):
    """Ends its process when it is made; where ``once`` is a path, only while nothing is there."""

    def __init__(self, main, once=None):
        if os.getpid() != main and (once is None or not Path(once).exists()):
            if once is not None:
                Path(once).touch()
            os._exit(5)
        super().__init__(gym.make("CartPole-v1"))


def ending(**kwargs):
    """The config of environments that end as they start."""
    return config_of(f"{__name__}:test/EndsAtOnce-v0", backend="async", on_worker_failure="restart",
                     kwargs={"main": os.getpid(), **kwargs})  # fmt: skip


gym.register("test/EndsAtOnce-v0", f"{__name__}:EndsAtOnce")


def test_workers_that_end_while_they_start(tmp_path):
    """They are restarted; one that always does ends the run, with its exit code."""
    env = make_env(ending(once=str(tmp_path / "once")), num_envs=2)
    assert env.reset(seed=0).shape == (2, 4)
    assert env.restarts > 0
    env.close()
    with pytest.raises(EnvError, match=r"exit code 5.*env\.backend=sync"):
        make_env(ending(), num_envs=2)


def test_a_worker_that_cannot_be_started(monkeypatch):
    """The process that forks workers was killed; another one is started by the next attempt."""
    start, calls, failures = ForkServerProcess.start, [], [1]

    def dies(self):
        calls.append(1)
        if len(calls) <= failures[0]:
            raise EOFError("unexpected EOF")
        start(self)

    monkeypatch.setattr(ForkServerProcess, "start", dies)
    env = make_env(bad("none", backend="async"), num_envs=1)
    assert len(env.reset(seed=20)) == 1
    env.close()
    calls.clear()
    failures[0] = 99
    with pytest.raises(EnvError, match=r"environment 0.*EOFError"):
        make_env(bad("none", backend="async"), num_envs=1)


class Varying(Healthy):
    """Its bounds depend on how many copies were made before: environments that count in a file."""

    def __init__(self, counter, size):
        with open(counter, "a") as file:
            file.write(".")
        high = np.full(size, 2.0 if Path(counter).stat().st_size > 1 else 1.0, np.float32)
        self.observation_space = gym.spaces.Box(-high, high)
        self.action_space = gym.spaces.Discrete(2)


gym.register("test/Varying-v0", Varying)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_copies_that_differ_from_the_one_that_was_looked_at_are_named(tmp_path, backend):
    kwargs = {"counter": str(tmp_path / "made"), "size": 2}
    config = config_of("test/Varying-v0", backend=backend, kwargs=kwargs)
    known_spaces(config, None)
    with pytest.raises(EnvError, match=r"observation_space.low\[0\] .*-2.* -1"):
        make_env(config, num_envs=2)


# -- processes -------------------------------------------------------------------------------------

LEFT = """
import signal, numpy as np
from rlrun.env import make_env
from tests.env.test_contract import bad
if __name__ == "__main__":
    env = make_env(bad("none", backend="async"), num_envs=2)
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    print(*(p.pid for p in env._source.processes), flush=True)
    signal.pause()
"""
UNGUARDED = """
from rlrun.env import make_env
from tests.env.presets import config_of
from tests.env.sick import Healthy

env = make_env(config_of("CartPole-v1", backend="async"), num_envs=2)
env.reset(seed=0)
env.close()
print("closed")
"""


def test_workers_leave_nothing_behind(tmp_path):
    """Whatever ends the process: no shared memory, no semaphore, no orphan."""
    (tmp_path / "run.py").write_text(LEFT)
    run = subprocess.Popen([sys.executable, tmp_path / "run.py"], stdout=subprocess.PIPE,
                           text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    handles = [os.pidfd_open(int(pid)) for pid in run.stdout.readline().split()]
    assert len(handles) == 2
    mapped = re.findall(r"/dev/shm/\S+", Path(f"/proc/{run.pid}/maps").read_text())
    assert mapped
    run.kill()
    run.wait()
    run.stdout.close()
    for handle in handles:
        ready, _, _ = select.select([handle], [], [], 60)
        os.close(handle)
        assert ready, "an orphan goes on"
    assert not [name for name in mapped if Path(name).exists()]


def test_a_script_without_a_main_guard_is_reported(tmp_path):
    """Each worker imports the script again, which would start workers of its own."""
    head, body = UNGUARDED.split("\n\n", 1)
    guarded = f'{head}\nif __name__ == "__main__":\n{textwrap.indent(body, "    ")}'
    done = []
    for text in (UNGUARDED, guarded):
        (tmp_path / "script.py").write_text(text)
        given = {"env": os.environ | {"PYTHONPATH": str(ROOT)}, "capture_output": True}
        command = [sys.executable, str(tmp_path / "script.py")]
        done.append(subprocess.run(command, text=True, check=False, **given))
    assert done[0].returncode == 1
    assert done[0].stderr.count("Traceback") == 1, "the script's own"
    last = done[0].stderr.splitlines()[-1]
    assert last.startswith("rlrun.errors.ConfigError: env.backend = async: ")
    assert str(tmp_path / "script.py") in last
    assert 'if __name__ == "__main__":' in last
    assert (done[1].returncode, done[1].stdout, done[1].stderr) == (0, "closed\n", "")
