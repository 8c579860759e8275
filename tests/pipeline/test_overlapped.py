"""pipeline=overlapped: one chunk in flight, weights one chunk old, deterministic."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.errors import CheckpointError, EnvError, Interrupted
from rlrun.pipeline.collect_metrics import CollectMetrics
from rlrun.pipeline.forkserver import start_method
from rlrun.pipeline.process import CollectedChunk, CollectorProcess
from rlrun.run import train
from rlrun.rundir.checkpoint import load_newest
from rlrun.rundir.record import RunRecord
from rlrun.transport import make_collector_side, make_learner_side
from rlrun.types import Counters, tree_leaves
from tests.compose import config
from tests.env.faulty import register
from tests.log.records import read_records
from tests.pipeline.test_serial import SMOKE, go

OVERLAPPED = "pipeline=overlapped"
COLLECT_SEED = make_plan(config(*SMOKE)).env_seeds.collect


def failing(counters):
    """A collector whose environment 0 fails at its third step."""
    register()
    seed = COLLECT_SEED
    faulty = ("env=gym", "env.id=test/Faulty-v0", f"env.kwargs={{fault: raise, bad_seed: {seed}}}")
    return build.make_collector(make_plan(config(*SMOKE, "policy=random", *faulty)), counters)


def dying(counters):
    os._exit(7)


RAW = config(*SMOKE, "env=cartpole").transport


def bandit_policy():
    return make_policy(make_plan(config(*SMOKE, "policy=random", "env=bandit")))


def remote_to(make, policy, transport=RAW):
    """A collector's process and the learner's side of its transport."""
    return CollectorProcess(
        make, policy, make_learner_side(transport), partial(make_collector_side, transport),
        check=lambda rows, sender: rows, max_seconds=60,
    )  # fmt: skip


class InTurn:
    """``CollectorProcess`` without a process: weights at ``start``, rows at ``result``."""

    def __init__(self, make, policy, transport, make_collector_side, **limits):
        self.counters, self.in_flight, self.transport = Counters(), False, transport
        self.collector, self.policy = make(self.counters), policy
        self.started = []

    def start(self, env_steps):
        self.in_flight, self.counters.env_steps = True, env_steps
        self.collector.policy.load(self.policy.weights())
        self.collector.actor.refresh()
        self.started.append(self.policy.updates)

    def result(self):
        self.in_flight, chunk = False, self.collector.collect_rows()
        return CollectedChunk(chunk, self.collector.take_stats(), {}, self.state())

    def state(self):
        generator = self.collector.policy.generator.bit_generator.state
        return self.collector.state_dict() | {"generator": generator}

    def close(self):
        self.collector.env.close()


@pytest.mark.parametrize("policy", ["r2d2", "dqn", "random", "ppo", "impala"])
def test_same_seed_same_bytes(tmp_path, policy):
    overrides = (f"policy={policy}", "env=cartpole", OVERLAPPED)
    one, two = (go(tmp_path / name, *overrides) for name in ("one", "two"))
    serial = go(tmp_path / "serial", *overrides[:2])
    names = ("metrics.jsonl", "checkpoints/last.safetensors")
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one["digest"] == two["digest"]
    if policy == "random":
        assert one["digest"] == serial["digest"], "without weights nothing lags"
    elif policy in ("r2d2", "ppo", "impala"):
        assert one["digest"] != serial["digest"], "weights are one chunk old"


def test_weights_are_exactly_one_chunk_old(tmp_path, monkeypatch):
    """The digest equals that of collecting and learning in turn."""
    overrides = ("policy=r2d2", "env=cartpole", OVERLAPPED)
    apart = go(tmp_path / "apart", *overrides)
    made = []
    monkeypatch.setattr(
        build, "CollectorProcess", lambda *a, **k: made.append(InTurn(*a)) or made[-1]
    )
    inside = go(tmp_path / "inside", *overrides)
    assert inside["digest"] == apart["digest"]
    started = np.array(made[0].started)  # smoke: one update behind every chunk, once it learns
    assert started[0] == started[1] == 0
    assert (np.diff(started) <= 1).all()
    assert inside["updates"] == started[-1] + 2, "the last two chunks were not yet learned from"


def test_resume_continues_with_the_chunk_in_flight(tmp_path):
    """A checkpoint before the end contains an uncounted chunk, which is learned next."""
    go(tmp_path, "policy=r2d2", "env=cartpole", OVERLAPPED)
    longer = config(*SMOKE, "policy=r2d2", "env=cartpole", OVERLAPPED, "run.total_steps=900")
    assert train.resume(tmp_path, longer, raw_yaml="", overrides=[]) == 0
    record = RunRecord.read(tmp_path)
    assert record.env_steps >= 900
    after, _ = load_newest(tmp_path / "checkpoints")
    assert after["buffer"]["counts"]["rows"] == after["counters"]["env_steps"]
    steps = [line["env_steps"] for line in read_records(tmp_path / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_an_interrupted_run_keeps_its_chunk_in_flight(tmp_path, monkeypatch):
    """The chunk in flight at the signal is in the checkpoint and the first after the resume."""
    from rlrun.pipeline.learner import Learner

    step = Learner.step

    def signalled(self, *given):
        if self.counters.chunks == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *given)

    monkeypatch.setattr(Learner, "step", signalled)
    (tmp_path / "run").mkdir()
    c = config(*SMOKE, "policy=r2d2", "env=cartpole", OVERLAPPED)
    with pytest.raises(Interrupted):
        train.run(c, tmp_path / "run", raw_yaml="", overrides=[])
    state, _ = load_newest(tmp_path / "run" / "checkpoints")
    flight = state["flight"]
    assert flight["steps"] == int(flight["rows"]["valid"].sum()) > 0
    behind = state["collector"]["obs"]  # the collector goes on behind the flight, not before it
    np.testing.assert_array_equal(behind, flight["rows"]["obs"][-1])
    monkeypatch.setattr(Learner, "step", step)
    clocks, load = [], CollectorProcess.load
    monkeypatch.setattr(
        CollectorProcess, "load", lambda self, *x: clocks.append(x[1]) or load(self, *x)
    )
    assert train.resume(tmp_path / "run", c, raw_yaml="", overrides=[]) == 0
    assert clocks == [state["counters"]["env_steps"] + flight["steps"]], "new episodes' seeds"
    after, _ = load_newest(tmp_path / "run" / "checkpoints")
    ring = after["buffer"]["ring"]
    start = state["buffer"]["ring"]["head"]
    rows = flight["rows"]["reward"].shape[0]
    columns = flight["rows"]["reward"].shape[1]
    stored = ring["fields"]["reward"].read(start, start + rows).reshape(columns, -1)
    np.testing.assert_array_equal(stored, flight["rows"]["reward"].T)


def leaves(chunk):
    return tree_leaves(tuple(getattr(chunk, name) for name in chunk.__slots__))


def test_rows_of_the_process_equal_those_of_a_local_collector():
    c = config(*SMOKE, "policy=r2d2", "env=cartpole")
    make = partial(build.make_collector, make_plan(c))
    here = make(Counters())
    remote = remote_to(make, here.policy)
    try:
        for steps in (0, 100, 200):
            here.counters.env_steps = steps
            remote.start(steps)
            here.actor.refresh()
            own, far = here.collect_rows(), remote.result()
            for x, y in zip(
                leaves(own),
                leaves(far.chunk),
                strict=True,
            ):
                np.testing.assert_array_equal(x, y)
            assert far.stats == here.take_stats()
            with torch.no_grad():
                for p in here.policy.net.parameters():
                    p.mul_(1.1)
        assert far.state["generator"] == here.policy.generator.bit_generator.state
        np.testing.assert_array_equal(far.state["obs"], here.obs)
    finally:
        remote.close()
    assert not remote.process.is_alive()


def test_errors_of_the_process_are_raised_in_the_main_process():
    policy = bandit_policy()
    remote = remote_to(failing, policy)
    remote.start(0)
    with pytest.raises(EnvError, match=r"environment 0 at step 3: .*raised ZeroDivisionError"):
        remote.result()
    remote.close()


def ask(remote):
    remote.start(0)
    remote.result()


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_process_that_dies_is_an_error_in_one_line(when):
    policy = bandit_policy()
    c = config(*SMOKE, "policy=random", "env=bandit")
    remote = remote_to(
        dying if when == "at once" else partial(build.make_collector, make_plan(c)), policy
    )
    if when == "later":
        remote.start(0)
        remote.result()
        os.kill(remote.process.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match=r"overlapped: the collector's process ended \(exit code"):
        ask(remote)
    remote.close()


def test_the_process_ends_when_its_pipe_closes():
    """Also if the main process is killed, which closes the pipe."""
    policy = bandit_policy()
    c = config(*SMOKE, "policy=random", "env=bandit")
    remote = remote_to(partial(build.make_collector, make_plan(c)), policy)
    remote.start(0)
    remote.result()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(remote.process.pid, number)
    time.sleep(0.3)
    assert remote.process.is_alive(), "signals are the main process's to answer"
    remote.close()
    assert remote.process.exitcode == 0


def test_run_json_contains_the_pipeline(tmp_path: Path):
    record = go(tmp_path, "policy=dqn", "env=cartpole", OVERLAPPED)
    assert record["status"] == "done"
    assert json.loads((tmp_path / "run.json").read_text())["threads"] == 1


def remote_of(*overrides):
    """(a local collector, the same collector in a process)."""
    make = partial(build.make_collector, make_plan(config(*SMOKE, *overrides)))
    here = make(Counters())
    return here, remote_to(make, here.policy)


def test_a_state_without_environments_starts_new_episodes():
    """What is sent with every chunk: the state of the environments is asked for when saved."""
    here, remote = remote_of("policy=r2d2", "env=cartpole")
    begun = here.obs.copy()
    remote.start(0)
    behind = remote.result().state
    whole = remote.state()
    remote.close()
    assert behind["env"] is None
    assert whole["env"]["raw"]["state"]
    _, again = remote_of("policy=r2d2", "env=cartpole")
    assert "no state of the environments" in again.load(behind, 500)
    again.start(500)
    chunk = again.result().chunk
    again.close()
    np.testing.assert_array_equal(chunk.obs[0], behind["obs"])  # the cut episodes' end
    assert chunk.first[1].all()
    assert not chunk.valid[0].any()
    assert (chunk.obs[1] != begun).any()


FAILS_LATER = (  # the training environments fail in a chunk that nobody learns from any more
    "policy=dqn", "env=gym", "env.id=tests.env.faulty:test/Faulty-v0", "env.backend=sync",
    OVERLAPPED,
    "+env.eval_kwargs.fault='none'", "run.stop_value=1", "run.stop_after=1", "collector.num_envs=1",
    "collector.n_sample=50", "run.eval_every=100", "run.total_steps=1000", "env.kwargs.length=20",
)  # fmt: skip


def test_a_chunk_that_fails_in_flight_loses_nothing_learned(tmp_path):
    """The run is solved at 100; steps 101 to 150 are in flight and fail."""
    register()
    seed = COLLECT_SEED
    fault = f"env.kwargs={{fault: raise, at: 130, bad_seed: {seed}, length: 20}}"
    record = go(tmp_path, *FAILS_LATER[:-1], fault)
    assert record["status"] == "done"
    state, _ = load_newest(tmp_path / "checkpoints")
    assert "flight" not in state
    assert state["buffer"]["counts"]["rows"] == state["counters"]["env_steps"]


def test_a_serial_run_refuses_a_chunk_in_flight(tmp_path, monkeypatch):
    test_an_interrupted_run_keeps_its_chunk_in_flight(tmp_path, monkeypatch)
    state, path = load_newest(tmp_path / "run" / "checkpoints")
    del path
    pipeline = build.make_pipeline(
        make_plan(config(*SMOKE, "policy=r2d2", "env=cartpole")), tmp_path, Silent()
    )
    with pytest.raises(CheckpointError, match="chunk in flight"):
        pipeline.load_state_dict(state | {"flight": {}})
    pipeline.close()


class Silent:
    def note(self, line):
        pass


def test_a_failed_resume_leaves_no_process(tmp_path):
    go(tmp_path, "policy=r2d2", "env=cartpole", OVERLAPPED)
    other = config(*SMOKE, "policy=r2d2", "env=cartpole", OVERLAPPED, "buffer.capacity=3000",
                   "run.total_steps=900")  # fmt: skip
    before = set(multiprocessing.active_children())
    with pytest.raises(CheckpointError):
        train.resume(tmp_path, other, raw_yaml="", overrides=[])
    assert set(multiprocessing.active_children()) <= before


EARLY = """
import os, signal, sys, threading, time
from rlrun.pipeline.collect_metrics import CollectMetrics
from rlrun.pipeline.process import CollectorProcess
started = CollectorProcess.__init__
def tell(self, *given, **limits):
    started(self, *given, **limits)
    threading.Timer(0.3, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
CollectorProcess.__init__ = tell
from rlrun.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_while_the_process_starts_is_a_request_to_stop(tmp_path):
    """The process group receives it; the process importing torch must survive."""
    given = [*SMOKE, "policy=r2d2", "env=cartpole", OVERLAPPED, f"run.dir={tmp_path}/run"]
    done = subprocess.run(
        [sys.executable, "-c", EARLY, *given], capture_output=True, text=True,
        start_new_session=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "saved" in done.stderr


HANGS = """
import os, sys, time
from functools import partial
from tests.pipeline import test_overlapped as t
if __name__ == "__main__":
    policy = t.bandit_policy()
    remote = t.remote_to(t.hanging, policy)
    remote.start(0)
    time.sleep(4)
    print(remote.process.pid, flush=True)
    os._exit(130)
"""


def hanging(counters):
    """A collector whose environment never answers its third step."""
    register()
    seed = COLLECT_SEED
    faulty = ("env=gym", "env.id=test/Faulty-v0", f"env.kwargs={{fault: hang, bad_seed: {seed}}}")
    return build.make_collector(make_plan(config(*SMOKE, "policy=random", *faulty)), counters)


def test_a_process_that_hangs_ends_with_the_main_process():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    pid = int(done.stdout)
    for _ in range(50):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the collector's process outlived the main process")


@pytest.mark.skipif(start_method() != "forkserver", reason="nothing to warm without forks")
def test_a_warmed_start_forks_from_a_process_that_has_torch_and_one_thread():
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
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "warmed.py"
        script.write_text(code)
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as ``rlrun`` sets it
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, env=env, check=True
        )
    assert done.stdout.split() == ["True", "1"]


class Clocked(InTurn):
    """Records the env steps at which chunks start; for policies without weights."""

    def start(self, env_steps):
        assert not self.in_flight, "one chunk at a time"
        self.in_flight, self.counters.env_steps = True, env_steps
        self.started.append(env_steps)

    def load(self, behind, env_steps):
        self.loaded, self.counters.env_steps = env_steps, env_steps
        self.collector.load_state_dict(behind)


STEPS_ONLY = ("policy=random", "env=bandit", OVERLAPPED, "run.stop_value=null",
              "run.total_steps=64", "logger.tensorboard=false")  # fmt: skip


def test_every_chunk_is_started_at_its_env_step_and_none_after_the_end(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        build, "CollectorProcess", lambda *a, **k: made.append(Clocked(*a)) or made[-1]
    )
    record = go(tmp_path, *STEPS_ONLY)
    assert made[0].started == [0, 16, 32, 48]
    assert record["env_steps"] == 64
    assert "flight" not in load_newest(tmp_path / "checkpoints")[0]


def test_episodes_of_the_chunk_in_flight_are_counted(tmp_path, monkeypatch):
    """An interrupted run counts as many episodes as an uninterrupted one."""
    c, commit = config(*SMOKE, *STEPS_ONLY), CollectMetrics.commit
    made = []
    monkeypatch.setattr(
        build, "CollectorProcess", lambda *a, **k: made.append(Clocked(*a)) or made[-1]
    )

    def signalled(self, stats, chunk):
        commit(self, stats, chunk)
        if self.counters.chunks == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(CollectMetrics, "commit", signalled)
        with pytest.raises(Interrupted):
            train.run(c, tmp_path, raw_yaml="", overrides=[])
    state = load_newest(tmp_path / "checkpoints")[0]
    assert len(state["flight"]["finished"]) == state["flight"]["steps"] == 16, "of one step each"
    behind = made[0].collector.policy.generator.bit_generator.state
    generator = state["collector"].pop("generator")
    assert generator == behind, "exploration goes on where the flight ended"
    finished = state["collector"].pop("finished")
    saved = made[0].collector.state_dict() | {"env": state["collector"]["env"]}  # it was closed
    assert (len(finished), saved.pop("finished")) == (32, []), "of two chunks, not reported"
    actions = state["collector"].pop("actions").sum()
    assert (actions, saved.pop("actions").sum()) == (32, 0), "the same of their actions"
    np.testing.assert_equal(state["collector"], saved)
    longer = config(*SMOKE, *STEPS_ONLY, "run.total_steps=96")
    assert train.resume(tmp_path, longer, raw_yaml="", overrides=[]) == 0
    assert [remote.started for remote in made] == [[0, 16, 32], [48, 64, 80]]
    assert made[1].loaded == 48, "the clock behind the flight"
    counters = load_newest(tmp_path / "checkpoints")[0]["counters"]
    assert (counters["episodes"], counters["env_steps"], counters["chunks"]) == (96, 96, 6)


def test_a_chunk_that_failed_while_a_checkpoint_waited_for_it_ends_the_run(tmp_path, monkeypatch):
    made = []

    class Failing(Clocked):
        def result(self):
            if len(self.started) == 2:
                self.in_flight = False
                raise EnvError("the second chunk")
            return super().result()

    monkeypatch.setattr(
        build, "CollectorProcess", lambda *a, **k: made.append(Failing(*a)) or made[-1]
    )
    c = config(*SMOKE, *STEPS_ONLY, "run.checkpoint_every=16")
    with pytest.raises(EnvError, match="the second chunk"):
        train.run(c, tmp_path, raw_yaml="", overrides=[])
    assert made[0].started == [0, 16], "no other chunk takes its place"
    assert load_newest(tmp_path / "checkpoints")[0]["counters"]["env_steps"] == 16
