"""Broken contracts: EnvError (exit code 3) naming environment, step and what was got."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlrun.env import make_env
from rlrun.env.checked import CheckedEnv
from rlrun.env.contract import BatchValidator, numbered
from rlrun.env.workers import AsyncEnv
from rlrun.errors import EnvError
from tests.env import faulty
from tests.env.presets import config_of

FAULTS = {
    "raise": "step() raised ZeroDivisionError: division by zero in physics",
    "nan": "observation has nan at position [1]; allowed is float32 (3,), finite",
    "inf": "observation has inf at position [0]",
    "shape": "observation has shape (2,); allowed is float32 (3,)",
    "scalar": "observation has shape (); allowed is float32 (3,)",
    "dtype": "observation has dtype float64; allowed is float32",
    "list": "observation is a list; allowed is float32 (3,)",
    "nan_reward": "reward is nan; allowed is a finite number",
    "array_reward": "reward is array([1., 1.]); allowed is one finite number",
    "no_reward": "reward is None; allowed is one finite number",
    "text_reward": "reward is '1'; allowed is one finite number",
    "flag": "terminated is 'yes'; allowed is True or False",
    "four": "step() must return (observation, reward, terminated, truncated, info)",
    "huge_reward": "reward is 1e+39; allowed is a finite number that float32 holds",
    "long_reward": "reward is a int that cannot be printed; allowed is a finite number",
    "interrupt": "step() raised KeyboardInterrupt: (no message)",
    "exit": "step() called sys.exit(7); it must return",
    "base": "step() raised Unforeseen: not an Exception",
}


def walk(env, steps):
    env.reset(seed=20)
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, int))


def breach(config, steps=6, num_envs=3):
    """The EnvError of a run; the environment with seed 21 (number 1) misbehaves."""
    env = make_env(config, num_envs=num_envs)
    try:
        with pytest.raises(EnvError) as caught:
            walk(env, steps)
    finally:
        env.close()
    assert caught.value.exit_code == 3
    return caught.value


def bad(fault, at=3, **changes):
    kwargs = {"fault": fault, "bad_seed": 21, "at": at}
    return config_of("test/Faulty-v0", **{"kwargs": kwargs, **changes})


@pytest.mark.parametrize("fault", FAULTS)
def test_sync_faults_name_environment_and_step(fault):
    error = breach(bad(fault, backend="sync"))
    assert str(error).startswith(
        f"env.id = test/Faulty-v0: environment 1 at step 3: {FAULTS[fault]}"
    )
    if fault == "raise":
        assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("fault", ["nan", "raise"])
def test_faults_in_reset(fault, backend):
    error = breach(bad(fault, at=0, backend=backend))
    text = FAULTS[fault].replace("step()", "reset()")
    assert str(error).startswith(f"env.id = test/Faulty-v0: environment 1 in reset: {text}")


def test_a_fault_in_an_autoreset_counts_the_vector_steps():
    kwargs = {"fault": "nan", "bad_seed": 21, "at": 6, "length": 5}
    error = breach(config_of("test/Faulty-v0", kwargs=kwargs, backend="sync"))
    assert "environment 1 at step 6: observation has nan" in str(error)


@pytest.mark.parametrize("backend", ["sync", "vector"])
def test_a_signal_during_a_step_stays_a_keyboard_interrupt(backend):
    env_id = "test/FaultyVector-v0" if backend == "vector" else "test/Faulty-v0"
    config = config_of(env_id, backend=backend, kwargs={"fault": "ctrl_c", "at": 1})
    env = make_env(config, num_envs=2)
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, int))


def test_an_environment_whose_init_raises_keyboard_interrupt(monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(faulty.Boxes, "__init__", interrupt)
    with pytest.raises(EnvError, match="cannot be made: __init__\\(\\) raised KeyboardInterrupt"):
        make_env(config_of("test/Boxes-v0"), num_envs=1)


@pytest.mark.parametrize("fault", ["raise", "shape", "nan_reward", "exit", "base", "interrupt"])
def test_async_faults_arrive_as_they_are(fault):
    error = breach(bad(fault, backend="async"))
    assert str(error).startswith(
        f"env.id = test/Faulty-v0: environment 1 at step 3: {FAULTS[fault]}"
    )
    assert "env.backend=sync shows its traceback" in str(error)


def test_a_killed_worker_is_named():
    error = breach(bad("kill", backend="async"))
    assert "environment 1 at step 3: a worker process ended (exit code -9)" in str(error)


def test_a_worker_killed_between_steps_is_named():
    env = make_env(bad("none", backend="async"), num_envs=2)
    env.reset(seed=20)
    env._raw.processes[1].kill()
    env._raw.processes[1].join()
    with pytest.raises(EnvError, match=r"environment 1 at step 1: a worker process ended"):
        env.step(np.zeros(2, int))
    env.close()
    env.close()


def test_a_hung_worker_is_named():
    error = breach(bad("hang", backend="async", worker_seconds=0.5))
    assert "environment 1 at step 3: no answer within 0.5 s" in str(error)


def test_ctrl_c_is_left_to_the_main_process():
    env = make_env(bad("none", backend="async"), num_envs=2)
    env.reset(seed=20)
    for process in env._raw.processes:
        os.kill(process.pid, signal.SIGINT)
    assert (env.step(np.zeros(2, int)).obs == 1).all()
    assert (env.step(np.zeros(2, int)).obs == 2).all()
    env.close()


def test_closing_with_a_dead_worker_is_quiet():
    env = make_env(bad("none", backend="async"), num_envs=2)
    env.reset(seed=20)
    env._raw.processes[0].kill()
    env._raw.processes[0].join()
    env.close()
    assert not any(process.is_alive() for process in env._raw.processes)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_exception_in_close(backend):
    with pytest.raises(EnvError, match=r"0: close\(\) raised RuntimeError: the window is gone"):
        make_env(bad("close", backend=backend), num_envs=1).close()
    error = breach(bad("raise", backend=backend), num_envs=3)  # closed while that is under way
    assert "ZeroDivisionError" in str(error)


def test_floats_out_of_bounds_are_reported_once(caplog):
    """Many environments exceed the bounds of their space: not an error."""
    env = make_env(config_of("test/Nested-v0", kwargs={"fault": "number"}), num_envs=1)
    env.reset(seed=0)
    for _ in range(400):
        env.step(np.zeros((1, 2), np.float32))
    [record] = caplog.records
    expected = "observation['pair'][1] is 1.5 at position [0]; allowed is [-1, 1]"
    assert expected in record.getMessage()


@pytest.mark.parametrize("low", [0, -2])
def test_integers_out_of_bounds_of_a_native_environment(low):
    validate = BatchValidator(gym.spaces.Discrete(3, start=low), 4, "test/Native-v0")
    right = np.array([low, low + 2, low, low])
    validate.obs(right, 1)
    for wrong, place in ((low + 3, 2), (low - 1, 3)):
        obs = right.copy()
        obs[place] = wrong
        text = rf"is {wrong} at position \[{place}\]; allowed is \[{low}, {low + 2}\]"
        with pytest.raises(EnvError, match=text):
            validate.obs(obs, 1)


def restarting(**changes):
    return make_env(bad("none", backend="async", on_worker_failure="restart", **changes),
                    num_envs=3)  # fmt: skip


def test_a_dead_worker_is_restarted():
    """Its row has no action and opens an episode; the others go on."""
    env = restarting()
    env.reset(seed=20)
    env.step(np.zeros(3, int))
    env._raw.processes[1].kill()
    step = env.step(np.zeros(3, int))
    assert step.restarted.tolist() == step.first.tolist() == [False, True, False]
    assert (step.obs[:, 0].tolist(), step.reward[1]) == ([2, 0, 2], 0)
    step = env.step(np.zeros(3, int))
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [3, 1, 3])
    assert not step.first.any()
    assert env.restarts == 1
    assert "environment 1 was restarted at step 2" in env.inexact
    env.close()


def test_a_stopped_worker_is_restarted():
    env = restarting(worker_seconds=0.5)
    env.reset(seed=20)
    os.kill(env._raw.processes[2].pid, signal.SIGSTOP)
    assert env.step(np.zeros(3, int)).restarted.tolist() == [False, False, True]
    env.close()


def end_worker(env, i):
    env._raw.processes[i].kill()
    env._raw.processes[i].join()


def test_a_worker_that_ends_in_a_reset_is_restarted():
    env = restarting()
    end_worker(env, 1)
    assert env.reset(seed=20)[:, 0].tolist() == [0, 0, 0]
    step = env.step(np.zeros(3, int))
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [1, 1, 1])
    assert (env.restarts, bool(env.inexact)) == (1, True)
    env.close()


def test_a_worker_that_ends_while_its_state_is_saved_is_restarted():
    """Its episode ends there, in this run and in one that goes on from the saved state."""
    env = restarting()
    env.reset(seed=20)
    env.step(np.zeros(3, int))
    end_worker(env, 1)
    state = env.state_dict()
    step = env.step(np.zeros(3, int))
    assert step.restarted.tolist() == step.first.tolist() == [False, True, False]
    assert (step.obs[:, 0].tolist(), step.reward.tolist()) == ([2, 0, 2], [1, 0, 1])
    step = env.step(np.zeros(3, int))
    assert (step.restarted, step.obs[:, 0].tolist()) == (None, [3, 1, 3])
    env.close()
    copy = restarting()
    assert copy.load_state_dict(state)
    assert copy.cut.tolist() == [False, True, False]
    step = copy.step(np.zeros(3, int))
    assert (step.first.tolist(), step.obs[:, 0].tolist()) == ([False, True, False], [2, 0, 2])
    copy.close()


def test_a_worker_that_ends_while_its_state_is_loaded_is_restarted():
    env = restarting()
    env.reset(seed=20)
    env.step(np.zeros(3, int))
    state = env.state_dict()
    end_worker(env, 2)
    assert env.load_state_dict(state)
    assert env.cut.tolist() == [False, False, True]
    step = env.step(np.zeros(3, int))
    assert (step.first.tolist(), step.obs[:, 0].tolist()) == ([False, False, True], [2, 2, 0])
    env.close()


def test_a_worker_that_ends_while_it_starts_is_restarted(tmp_path):
    changes = {"backend": "async", "on_worker_failure": "restart"}
    make = [EndsAtOnce(tmp_path / "once"), EndsAtOnce(tmp_path / "once")]
    env = AsyncEnv(make, config_of("CartPole-v1", **changes), keep_info=())
    assert env.reset(seed=0).shape == (2, 4)
    assert env.restarts > 0
    env.close()


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
    with pytest.raises(EnvError, match=r"environment 0.* could not be started .*EOFError"):
        make_env(bad("none", backend="async"), num_envs=1)


def test_many_workers_that_end_are_one_line():
    env = make_env(bad("kill", backend="async", kwargs={"fault": "kill", "bad_seed": None}),
                   num_envs=12)  # fmt: skip
    with pytest.raises(EnvError, match="environments 0 to 11 at step 3: a worker process ended"):
        walk(env, 6)
    env.close()
    assert numbered([1, 2, 5, 7, 8, 9]) == "environments 1, 2, 5, 7 and 2 more"
    assert numbered([4, 5]) == "environments 4 and 5"


def test_restarts_far_apart_are_no_crash_loop():
    """Steps are counted since the vector was made, not since the last reset."""
    env = restarting()
    for _ in range(5):
        walk(env, 11)
        end_worker(env, 0)
        assert env.step(np.zeros(3, int)).restarted.tolist() == [True, False, False]
    env.close()


def test_a_crash_loop_ends():
    """Every process is killed by the third step of an episode."""
    kwargs = {"fault": "kill", "bad_seed": None, "at": 3}
    changes = {"backend": "async", "on_worker_failure": "restart", "kwargs": kwargs}
    env = make_env(bad("kill", **changes), num_envs=3)
    with pytest.raises(EnvError, match=r"environments 0 to 2 at step .*restarted 3 times in a row"):
        walk(env, 40)
    env.close()
    assert not any(process.is_alive() for process in env._raw.processes)


def test_workers_leave_nothing_behind(tmp_path):
    """Whatever ends the processes: no shared memory, no semaphore, no orphan."""
    script = """
        import os, sys, signal, numpy as np
        from tests.env import faulty
        from tests.env.test_faults import bad
        from rlrun.env import make_env
        if __name__ == "__main__":
            env = make_env(bad("none", backend="async"), num_envs=2)
            env.reset(seed=0)
            env.step(np.zeros(2, int))
            print(*(p.pid for p in env._raw.processes), flush=True)
            signal.pause()
    """
    (tmp_path / "run.py").write_text(textwrap.dedent(script))
    before = set(os.listdir("/dev/shm"))
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    run = subprocess.Popen([sys.executable, tmp_path / "run.py"], stdout=subprocess.PIPE,
                           text=True, env=env)  # fmt: skip
    pids = [int(pid) for pid in run.stdout.readline().split()]
    assert len(pids) == 2
    run.kill()
    run.wait()
    run.stdout.close()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)
    assert not {x for x in set(os.listdir("/dev/shm")) - before if "sem" in x or str(run.pid) in x}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("fault", ["nan", "inf", "nan_reward", "huge_reward"])
def test_native_faults_name_the_column(fault):
    config = config_of(
        "test/FaultyVector-v0",
        kwargs={"fault": fault, "bad_seed": 1, "at": 3},
        backend="vector",
    )
    start = f"env.id = test/FaultyVector-v0: environment 1 at step 3: {FAULTS[fault]}"
    assert str(breach(config)).startswith(start)


@pytest.mark.parametrize("fault", ["reward_list", "flag_shape"])
def test_native_rewards_and_flags_have_a_value_for_each_environment(fault):
    kwargs = {"fault": fault, "at": 1}
    error = breach(config_of("test/FaultyVector-v0", kwargs=kwargs, backend="vector"))
    assert "at step 1: " in str(error)
    assert "of all environments is" in str(error)


@pytest.mark.parametrize("fault", ["raise", "shape", "dtype", "list", "exit", "base", "interrupt"])
def test_native_faults_of_the_whole_batch(fault):
    kwargs = {"fault": fault, "at": 3}
    error = breach(config_of("test/FaultyVector-v0", kwargs=kwargs, backend="vector"))
    assert "environments 0 to 2 at step 3: " in str(error)
    got = {"raise": "ZeroDivisionError", "exit": "sys.exit(7)", "base": "Unforeseen",
           "interrupt": "KeyboardInterrupt",
           "shape": "(3, 2)", "dtype": "float64", "list": "[[3.0"}  # fmt: skip
    assert got[fault] in str(error)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("key", "observation is ['image']; allowed is a dict with keys ['image', 'pair']"),
        ("range", "observation['pair'][0] is 6; allowed is an integer within [1, 5]"),
        ("nan", "observation['pair'][1] has nan at position [0]"),
    ],
)
def test_faults_in_nested_observations(fault, text):
    env = make_env(config_of("test/Nested-v0", kwargs={"fault": fault}), num_envs=2)
    env.reset(seed=0)
    env.step(np.zeros((2, 2), np.float32))
    with pytest.raises(EnvError) as caught:
        env.step(np.zeros((2, 2), np.float32))
    assert f"environment 0 at step 2: {text}" in str(caught.value)


@pytest.mark.parametrize("env_id", ["test/SameStep-v0", "test/Undeclared-v0"])
def test_only_next_step_vectors_are_taken(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(make_env(config_of(env_id), num_envs=2)).__name__ == "SyncEnv"
        with pytest.raises(EnvError, match=r"env.backend = vector: .*env.backend=sync"):
            make_env(config_of(env_id, backend="vector"), num_envs=2)


def test_auto_takes_sync_if_the_native_environment_lacks_an_argument():
    config = config_of("test/FaultyVector-v0", kwargs={"length": 4})
    assert type(make_env(config, num_envs=2)).__name__ == "SyncEnv"


def test_kept_info_must_be_numbers():
    env = make_env(config_of("test/Faulty-v0"), num_envs=1, keep_info=("name",))
    env.reset(seed=0)
    text = r"environment 0 at step 1: info\['name'\] is 'x' .*only numbers can be kept"
    with pytest.raises(EnvError, match=text):
        env.step(np.zeros(1, int))


NO_GUARD = """
from rlrun.env import make_env
from tests.env.presets import config_of

env = make_env(config_of("CartPole-v1", backend="async"), num_envs=2)
env.reset(seed=0)
env.close()
print("closed")
"""


def test_async_without_a_main_guard_is_reported(tmp_path):
    """Each worker imports the script again, which would start workers of its own."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, str(path)]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    done = run(NO_GUARD)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, "the script's own"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rlrun.errors.ConfigError: env.backend = async: ")
    assert str(tmp_path / "script.py") in last
    assert 'if __name__ == "__main__":' in last
    head, body = NO_GUARD.split("\n\n", 1)
    guarded = textwrap.indent(body, "    ")
    done = run(f'{head}\nif __name__ == "__main__":\n{guarded}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_a_run_in_a_script_without_a_main_guard(tmp_path):
    """The workers run nothing of the script, so that no second run is begun."""
    line = ["policy=random", "env=cartpole", "env.backend=async", "debug=smoke", "-q"]
    (tmp_path / "script.py").write_text(f"from rlrun.cli.main import main\nmain({line})\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stderr.count("\n") == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert len(list(tmp_path.glob("outputs/*/*"))) <= 1


def test_async_worker_that_ends_while_it_starts():
    """Its exit code is told, and nothing goes on running."""
    text = r"a worker process ended \(exit code 5\).*env\.backend=sync shows why"
    config = config_of("CartPole-v1", backend="async")
    with pytest.raises(EnvError, match=text) as caught:
        AsyncEnv([EndsAtOnce()] * 2, config, keep_info=())
    assert caught.value.exit_code == 3


class EndsAtOnce:
    """Ends its process; where ``once`` is a path, only while nothing is there."""

    def __init__(self, once=None):
        self.main, self.once = os.getpid(), once

    def __call__(self):
        if os.getpid() != self.main and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            os._exit(5)
        return CheckedEnv(partial(gym.make, "CartPole-v1"), env_id="CartPole-v1", index=0)
