"""A run that was killed and resumed is the run that was not; every path of the code is one case."""

import random
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.kernels import parity
from rlrun.pipeline.evaluate import Evaluator
from rlrun.run import checkpoint, start
from rlrun.run.diff import differences
from tests.compose import config
from tests.exact import QUIET, Killed, assert_exact_resume
from tests.pipeline.make import R2D2, STEPWISE, TINY, go, record_of, resumed, shown, state_of

SMALL = ("run.total_steps=240", "run.eval_every=120", "run.eval_episodes=1", "logger.every=40",
         "collector.n_sample=16", "collector.unit=step", "run.stop_return=null")  # fmt: skip
LEARN = (*SMALL, "learner.learning_starts=32", "learner.batch_size=8", "buffer.capacity=400",
         "torso.hidden=[8]", "memory.hidden=8", "learner.replay_ratio=8")  # fmt: skip
ON_POLICY = (*SMALL, "torso.hidden=[8]", "memory.hidden=8")

CASES = {
    "dqn": ("policy=dqn", "env=cartpole", "collector.num_envs=1", *LEARN),
    "coded stack prioritized": (
        "policy=dqn", "env=cartpole", "transport=coded", "env.frame_stack=2",
        "buffer=prioritized", "buffer.initial_priority=td", *LEARN,
    ),
    "rank": ("policy=rainbow", "env=cartpole", "buffer=rank", *LEARN, "buffer.capacity=96"),
    "async": (
        "policy=dqn", "env=acrobot", "env.backend=async", "collector.num_envs=2", *LEARN,
    ),
    "her": ("policy=dqn", "env=bitflip", "env.kwargs.bits=4", "buffer.relabel=future", *LEARN),
    "columns rnd": ("policy=dqn", "env=relay", "bonus=rnd", *LEARN),
    "separate": ("policy=r2d2", "env=twostep", "agents=separate", *LEARN, "buffer.capacity=1600"),
    "several actions": (
        "policy=ppo", "memory=lstm", "env=pettingzoo", "agents=separate",
        "env.id=pettingzoo:tests.env.zoo_several", "policy.normalize_obs=true",
        "policy.normalize_reward=true", *ON_POLICY,
    ),
    "joint rnd": ("policy=qmix", "env=twostep", "bonus=rnd", *LEARN),
    "joint overlapped": ("policy=vdn", "env=relay", "pipeline=overlapped", *LEARN),
    "r2d2": (
        "policy=r2d2", "env=cartpole_novel", "pipeline=overlapped", *LEARN,
        "learner.replay_ratio=40",
    ),
    "windows": (
        "policy=r2d2", "env=tmaze", "memory=gru", "buffer=uniform", *LEARN,
        "collector.unit=window", "collector.n_sample=2", "collector.num_envs=4",
        "policy.burnin_step=2", "policy.learn_unroll_len=4", "policy.nstep=1",
    ),
    "sac": ("policy=sac", "env=mountaincar_continuous", "collector.num_envs=2", *LEARN),
    "ppo lstm": (
        "policy=ppo", "memory=lstm", "env=pendulum", "policy.prev_inputs=true",
        "policy.normalize_obs=true", *ON_POLICY,
    ),
    "a2c": ("policy=a2c", "env=cartpole", "env.frame_stack=2", "policy.normalize_reward=true",
            *ON_POLICY),
    "impala": ("policy=impala", "memory=gru", "env=cartpole", "pipeline=overlapped", *ON_POLICY),
    "pqn": ("policy=pqn", "memory=gru", "env=cartpole", "learner.batch_size=32", *ON_POLICY),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_equals_the_run_that_was_not(case, tmp_path):
    state = assert_exact_resume(CASES[case], (70, 130), tmp_path)
    assert state["counters"]["updates"] > 0
    assert record_of(tmp_path / "whole")["exact"] is True


@pytest.mark.parametrize("buffer", ["prioritized", "rank"])
def test_a_replay_on_a_device_is_resumed_exactly(buffer, tmp_path, monkeypatch):
    """buffer.device=cuda, with the CPU as that device."""
    monkeypatch.setattr("rlrun.run.build.torch_device", lambda name: torch.device("cpu"))
    policy = "r2d2" if buffer == "prioritized" else "dqn"
    words = (f"policy={policy}", "env=cartpole", f"buffer={buffer}", "buffer.device=cuda")
    assert_exact_resume((*words, *LEARN), (130,), tmp_path)


def test_killed_between_its_last_checkpoint_and_the_weights_beside_it(tmp_path, monkeypatch):
    """The resumed run trains nothing, and still leaves the weights of its end."""
    words = (*CASES["dqn"], "run.total_steps=96", "run.checkpoint_every=48", "run.eval_every=48")
    cut, whole, save = tmp_path / "cut", tmp_path / "whole", checkpoint.save_weights
    cut.mkdir()
    (cut / "config.yaml").write_text("{}")

    def die_at_the_end(path, weights, meta):
        if path.name == "last.safetensors" and meta["env_steps"] == 96:
            raise Killed
        save(path, weights, meta)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_weights", die_at_the_end)
        with pytest.raises(Killed):
            start.start(start.Launch(config(*words), cut, "seed: 0"))
    assert resumed(cut, *words)["updates"] == go(whole, *words)["updates"] > 0
    left, wanted = ((d / "checkpoints/last.safetensors").read_bytes() for d in (cut, whole))
    assert left == wanted


def test_saving_changes_nothing(tmp_path):
    """Metrics and digest do not depend on when checkpoints are saved, nor in which storage."""
    found = set()
    for more in (
        "run.checkpoint_every=25", "run.checkpoint_every=1000000",
        f"buffer.mmap={tmp_path / 'rows'}", "checkpoint.history=2",
    ):  # fmt: skip
        run_dir = tmp_path / more[-6:].replace("/", "")
        record = go(run_dir, *R2D2, more)
        found.add((record["digest"], (run_dir / "metrics.jsonl").read_bytes()))
    assert len(found) == 1
    assert not list((tmp_path / "rows").iterdir()), "the directory is emptied"
    other = go(tmp_path / "other", *R2D2, "seed=1")
    assert other["digest"] not in {digest for digest, _ in found}


# -- what a run says of its exactness --------------------------------------------------------------


def test_a_run_that_cannot_be_exact_says_so_and_resumes(tmp_path, caplog):
    """Its environment draws from a global generator."""
    words = ("policy=random", "env=gym", "env.id=tests.env.walks:test/Walk-v0", *SMALL, *QUIET,
             "+env.kwargs.hidden=global", "collector.num_envs=2")  # fmt: skip
    (tmp_path / "config.yaml").write_text("{}")
    c = config(*words, "run.checkpoint_every=60")
    assert start.start(start.Launch(c, tmp_path, "seed: 0\n")) == 0
    record = record_of(tmp_path)
    assert (record["exact"], bool(record["exact_reason"])) == (False, True)
    warnings = [r for r in caplog.records if record["exact_reason"] in r.getMessage()]
    assert len(warnings) == 1, "once, though there are four checkpoints"
    longer = config(*words, "run.total_steps=400")
    assert start.start(start.Launch(longer, tmp_path, "seed: 0\n", [])) == 0
    assert (record_of(tmp_path)["exact"], record_of(tmp_path)["env_steps"]) == (False, 400)


def test_a_run_stays_inexact_after_an_evaluation_that_was_disturbed(tmp_path, monkeypatch):
    """Of three evaluations a worker was restarted in the second; a resumed run knows it."""
    run_until, reasons = Evaluator.run_until, iter([None, "a worker was restarted", None, None])

    def disturbed(*given, **more):
        return replace(run_until(*given, **more), inexact=next(reasons))

    monkeypatch.setattr(Evaluator, "run_until", disturbed)
    for total in (24, 32):
        record = (go if total == 24 else resumed)(tmp_path, *STEPWISE, f"run.total_steps={total}")
        assert (record["exact"], record["exact_reason"]) == (False, "a worker was restarted")


def test_a_resume_that_changes_numbers_is_recorded(tmp_path):
    """Once, and for the run's later resumes too."""
    words = (*STEPWISE, *QUIET, "debug=smoke", "run.total_steps=16")
    start.start(start.Launch(config(*words), tmp_path, ""))
    reason = "resumed with logger.every, resume.rescale"
    for total, given, expected in (
        (24, ["run.max_time=3h", "transport=raw", "watchdog.max_seconds=99"], None),
        (32, ["resume.rescale=true", "logger.every=50"], reason),
        (40, [], reason),
    ):
        given = [*given, f"run.total_steps={total}"]
        start.start(start.Launch(config(*words, *given), tmp_path, "", given))
        record = record_of(tmp_path)
        assert (record["exact"], record["exact_reason"]) == (expected is None, expected)


# -- what a resumed run takes from its beginning ---------------------------------------------------

FALLING = "{kind: linear, start: 1, end: 0, over: null}"
SCHEDULED = (
    "policy=dqn", "env=bandit", "buffer=prioritized", *TINY, "run.stop_return=null",
    "logger.every=20", "collector.n_sample=4", "collector.num_envs=1", "learner.learning_starts=8",
    f"policy.lr={FALLING}", "explore=schedule", f"explore.epsilon={FALLING}",
    "buffer.beta={kind: linear, start: 0, end: 1}",
)  # fmt: skip


def test_schedules_keep_the_horizon_of_the_runs_beginning(tmp_path):
    """Extended twice: the horizon is that of the beginning, or of the last rescale."""
    go(tmp_path, *SCHEDULED, "run.total_steps=100")
    for total, more, horizon in (
        (140, (), 100), (200, ("resume.rescale=true",), 200), (220, (), 200),
    ):  # fmt: skip
        resumed(tmp_path, *SCHEDULED, f"run.total_steps={total}", *more)
        assert state_of(tmp_path)["settings"]["horizon"] == horizon
    for name, begin, end, near in (
        ("collect/epsilon_mean", 1, 0, 0.05), ("train/lr", 1, 0, 0.2), ("buffer/beta", 0, 1, 0.05),
    ):  # fmt: skip
        found = dict(shown(tmp_path, name))
        for step, share in ((20, 0.2), (100, 1.0), (140, 1.0), (180, 0.9), (220, 1.0)):
            assert found[step] == pytest.approx(begin + (end - begin) * share, abs=near), name


@pytest.mark.parametrize("agrees", [True, False])
def test_the_backend_of_the_first_update_stays(tmp_path, monkeypatch, agrees):
    """A resumed run does not compare anew, whatever the comparison would find now."""
    words = ("policy=dqn", "env=bandit", *TINY, "run.stop_return=null")
    expected = ["numpy" if agrees else "torch"]
    for total in (150, 200):
        within = agrees == (total == 150)
        monkeypatch.setattr(parity, "TOLERANCE", 1.0 if within else -1.0)
        (go if total == 150 else resumed)(tmp_path, *words, f"run.total_steps={total}")
        assert state_of(tmp_path)["backends"] == expected


def test_a_resumed_pipeline_goes_on_with_the_saved_global_generators(pipeline_of):
    """Environments and policies of users may draw from them."""

    def drawn():
        return random.gauss(0, 1), np.random.normal(), torch.randn(1).item()

    saved, again = pipeline_of("policy=dqn"), pipeline_of("policy=dqn")
    state = deepcopy(saved.saving.state_dict())
    expected = drawn(), drawn()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    again.saving.load_state_dict(state)
    assert (drawn(), drawn()) == expected


class Until:
    """A request to stop at ``env_steps``."""

    code, error, since = None, None, None

    def __init__(self, pipeline, env_steps):
        self.counters, self.env_steps = pipeline.parts.progress.counters, env_steps

    def __call__(self):
        return self.counters.env_steps >= self.env_steps


@pytest.mark.parametrize(
    "overrides",
    [
        ("policy=dqn", "buffer=prioritized", "bonus=rnd"),
        ("policy=dqn", "buffer=rank", "buffer.capacity=96", "env.frame_stack=2"),
        ("policy=r2d2", "env=tmaze", "buffer.capacity=200"),
        ("policy=dqn", "env=bitflip", "env.bits=4", "buffer.relabel=future"),
        ("policy=ppo", "env=cartpole", "env.frame_stack=2", "policy.normalize_reward=true"),
        ("policy=sac", "env=pendulum"),
    ],
)
def test_a_pipeline_in_use_goes_back_as_a_new_one_does(pipeline_of, overrides):
    """run.on_nan=rollback loads a checkpoint into objects that have gone on since."""
    overrides = (*overrides, "learner.learning_starts=20", *TINY)
    used, new = pipeline_of(*overrides), pipeline_of(*overrides)
    used.run(Until(used, 80))
    state = deepcopy(used.saving.state_dict())
    used.run(Until(used, 220))
    for pipeline in (used, new):
        pipeline.saving.load_state_dict(deepcopy(state))
        pipeline.run(Until(pipeline, 220))
    if hasattr(used.parts.buffer, "check"):
        used.parts.buffer.check()
    assert used.parts.progress.counters.updates > state["counters"]["updates"]
    assert not list(differences(used.saving.state_dict(), new.saving.state_dict()))
