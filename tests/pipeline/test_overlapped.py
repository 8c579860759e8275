"""pipeline=overlapped: one chunk in flight, weights one chunk old; its process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlrun.errors import CheckpointError, EnvError
from rlrun.pipeline import overlapped as process_module
from rlrun.pipeline.collector import ChunkInterrupted
from rlrun.pipeline.overlapped import CollectedChunk, CollectorProcess
from rlrun.pipeline.transport import make_collector_side, make_learner_side
from rlrun.run import build
from rlrun.run.build import make_policy
from rlrun.run.plan import make_plan
from rlrun.types import Counters
from tests.compose import config
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.pipeline.make import (
    R2D2,
    SMOKE,
    STEPWISE,
    TINY,
    evaluations,
    fails,
    go,
    state_of,
)

OVERLAPPED = "pipeline=overlapped"
STEPS_ONLY = ("policy=random", "env=bandit", OVERLAPPED, "run.stop_return=null",
              "run.total_steps=64")  # fmt: skip

# -- the source, its collector in this process -----------------------------------------------------


class InTurn:
    """``CollectorProcess`` without a process: weights at ``start``, rows at ``result``."""

    failing = 0  # number of the chunk that fails, from 1

    def __init__(self, make, policy, transport, make_collector_side, **limits):
        self.counters, self.in_flight, self.transport = Counters(), False, transport
        self.collector, self.policy = make(self.counters), policy
        self.started, self.updates, self.loaded = [], [], None

    def start(self, env_steps):
        assert not self.in_flight, "one chunk at a time"
        self.in_flight, self.counters.env_steps = True, env_steps
        self.started.append(env_steps)
        if hasattr(self.policy, "updates"):
            self.updates.append(self.policy.updates)
            self.collector.policy.load(self.policy.weights())
            self.collector.actor.refresh()

    def result(self):
        self.in_flight = False
        if len(self.started) == self.failing:
            raise EnvError("this chunk")
        chunk = self.collector.collect_rows()
        return CollectedChunk(chunk, self.collector.take_stats(), {}, self.state())

    def state(self):
        generator = self.collector.policy.generator.bit_generator.state
        return self.collector.state_dict() | {"generator": generator}

    def load(self, behind, env_steps):
        self.loaded, self.counters.env_steps = env_steps, env_steps
        self.collector.load_state_dict(behind)

    def close(self):
        self.collector.env.close()


@pytest.fixture
def made(monkeypatch):
    """The ``InTurn`` of each run."""
    made = []
    monkeypatch.setattr(
        process_module, "CollectorProcess", lambda *a, **k: made.append(InTurn(*a)) or made[-1]
    )
    return made


def test_weights_are_exactly_one_chunk_old(tmp_path, request):
    """The digest equals that of collecting and learning in turn."""
    apart, serial = go(tmp_path / "a", *R2D2, OVERLAPPED), go(tmp_path / "s", *R2D2)
    made = request.getfixturevalue("made")
    inside = go(tmp_path / "i", *R2D2, OVERLAPPED)
    assert inside["digest"] == apart["digest"] != serial["digest"]
    updates = np.array(made[0].updates)  # smoke: one update behind every chunk, once it learns
    assert updates[0] == updates[1] == 0
    assert (np.diff(updates) <= 1).all()
    assert inside["updates"] == updates[-1] + 2, "the last two chunks were not yet learned from"


def test_every_chunk_is_started_at_its_env_step_and_none_after_the_end(tmp_path, made):
    record = go(tmp_path, *STEPS_ONLY)
    assert made[0].started == [0, 16, 32, 48]
    assert record["env_steps"] == 64
    assert "received" not in state_of(tmp_path)


def test_a_chunk_that_failed_while_a_checkpoint_waited_for_it_ends_the_run(
    tmp_path, monkeypatch, made
):
    monkeypatch.setattr(InTurn, "failing", 2)
    error, _ = fails(EnvError, tmp_path, *STEPS_ONLY, "run.checkpoint_every=16")
    assert str(error).startswith("this chunk")
    assert made[0].started == [0, 16], "no other chunk takes its place"
    assert state_of(tmp_path)["counters"]["env_steps"] == 16


def test_a_chunk_that_fails_in_flight_loses_nothing_learned(tmp_path, monkeypatch, made):
    """The run is solved while it is on its way."""
    evaluations(monkeypatch, 1.0)
    monkeypatch.setattr(InTurn, "failing", 9)
    words = (*STEPWISE, OVERLAPPED, "run.stop_return=1", "run.stop_after=1", "run.total_steps=40")
    record = go(tmp_path, *words)
    assert (record["status"], record["env_steps"]) == ("done", 8)
    assert "received" not in state_of(tmp_path)


def test_a_failed_resume_leaves_no_process(tmp_path):
    words = ("policy=dqn", "env=bandit", *TINY, OVERLAPPED, "run.stop_return=null")
    go(tmp_path, *words, "run.total_steps=120")
    before = set(multiprocessing.active_children())
    fails(CheckpointError, tmp_path, *words, "buffer.capacity=3000", "run.total_steps=900")
    assert set(multiprocessing.active_children()) <= before


# -- the process -----------------------------------------------------------------------------------

RAW = config(*SMOKE, "env=cartpole").transport


def remote_to(make, policy, max_seconds=60):
    """A collector's process and the learner's side of its transport."""
    return CollectorProcess(
        make, policy, make_learner_side(RAW), partial(make_collector_side, RAW),
        check=lambda rows, sender: rows, max_seconds=max_seconds,
    )  # fmt: skip


def remote_of(*overrides):
    """(a local collector, the same collector in a process)."""
    make = partial(build.make_collector, make_plan(config(*SMOKE, *overrides)))
    here = make(Counters())
    return here, remote_to(make, here.policy)


def bandit_policy():
    return make_policy(make_plan(config(*SMOKE, "policy=random", "env=bandit")))


def failing(counters):
    """A collector whose environment 0 fails at its third step."""
    seed = make_plan(config(*SMOKE)).env_seeds.collect
    words = ("env=gym", "env.id=test/Faulty-v0", f"env.kwargs={{fault: raise, bad_seed: {seed}}}")
    return build.make_collector(make_plan(config(*SMOKE, "policy=random", *words)), counters)


def dying(counters):
    os._exit(7)


class Hangs:
    """A collector that says where it is and never returns."""

    seconds = {}  # noqa: RUF012

    def __init__(self):
        self.policy = self.actor = self
        self.generator = np.random.default_rng(0)

    def load(self, weights):
        pass

    def refresh(self):
        pass

    def collect_rows(self):
        while True:
            time.sleep(1)


def hanging(counters):
    return Hangs()


def telling(path, counters):
    """As ``hanging``, once ``path`` holds the process's number."""
    Path(path).write_text(str(os.getpid()))
    return Hangs()


def test_errors_of_the_process_are_raised_in_the_main_process():
    remote = remote_to(failing, bandit_policy())
    remote.start(0)
    with pytest.raises(EnvError, match=r"environment 0 at step 3: .*ZeroDivisionError"):
        remote.result()
    remote.close()


def test_signals_and_the_end_of_the_process():
    """It leaves signals to the main process and ends with its pipe; its death is an error."""
    _, remote = remote_of("policy=random", "env=bandit")
    for _ in range(2):
        remote.start(0)
        remote.result()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(remote.process.pid, number)
    remote.close()
    assert remote.process.exitcode == 0
    dead, killed = remote_to(dying, bandit_policy()), remote_of("policy=random", "env=bandit")[1]
    killed.start(0)
    killed.result()
    os.kill(killed.process.pid, signal.SIGKILL)
    for gone, code in ((dead, 7), (killed, -signal.SIGKILL)):
        with pytest.raises(EnvError, match=f"exit code {code}"):
            _ = gone.start(0), gone.result()
        gone.close()


def test_a_process_that_does_not_answer_is_ended(monkeypatch):
    """After watchdog.max_seconds, or soon after a signal."""
    monkeypatch.setattr(process_module, "STOP_SECONDS", 0.25)
    for limit, stop, kind in ((0.5, False, EnvError), (None, True, ChunkInterrupted)):
        remote = remote_to(hanging, bandit_policy(), max_seconds=limit)
        remote.start(0)
        remote.stop = lambda stop=stop: stop
        with pytest.raises(kind):
            remote.result()
        remote.process.join()
        remote.close()
        assert remote.process.exitcode == -signal.SIGKILL


HANGS = """
import os, sys, time
from functools import partial
from pathlib import Path
from tests.pipeline import test_overlapped as t
if __name__ == "__main__":
    remote = t.remote_to(partial(t.telling, sys.argv[1]), t.bandit_policy())
    remote.start(0)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    print(remote.process.pid, flush=True)
    os._exit(130)
"""


def test_a_process_that_hangs_ends_with_the_main_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "pid")], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the collector's process outlived the main process")


EARLY = """
import os, signal, sys
from rlrun.pipeline.overlapped import CollectorProcess
start = CollectorProcess.start
def tell(self, *given):
    CollectorProcess.start = start
    os.killpg(os.getpgrp(), signal.SIGINT)
    start(self, *given)
CollectorProcess.start = tell
from rlrun.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_while_the_process_starts_is_a_request_to_stop(tmp_path):
    """The process group receives it; the process importing torch must survive."""
    given = [*SMOKE, "policy=random", "env=cartpole", OVERLAPPED, f"run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", EARLY, *given], capture_output=True, text=True,
        start_new_session=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert f"rlrun resume {tmp_path}/run" in done.stderr


def test_a_warmed_start_forks_from_a_process_that_has_torch_and_one_thread(tmp_path):
    """Before the main process imports torch; the fork server ignores signals."""
    code = (
        "import multiprocessing, os, signal, sys\n"
        "from multiprocessing import forkserver\n"
        "from rlrun.pipeline.forkserver import start_forkserver\n"
        "def look(pipe):\n"
        "    pipe.send(('torch' in sys.modules, os.getppid()))\n"
        "if __name__ == '__main__':\n"
        "    start_forkserver()\n"
        "    assert 'torch' not in sys.modules\n"
        "    context = multiprocessing.get_context('forkserver')\n"
        "    pipe, theirs = context.Pipe()\n"
        "    context.Process(target=look, args=(theirs,)).start()\n"
        "    loaded, server = pipe.recv()\n"
        "    os.kill(server, signal.SIGTERM)\n"
        "    print(loaded, len(os.listdir(f'/proc/{server}/task')))\n"
    )
    script = tmp_path / "warmed.py"
    script.write_text(code)
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as ``rlrun`` sets it
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.split() == ["True", "1"]
