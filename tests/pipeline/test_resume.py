"""What the loop itself carries over a resume: accumulators, generators, backends, schedules."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from copy import deepcopy

import numpy as np
import pytest
import torch

from rlrun.buffer.replay import Replay
from rlrun.build.pipeline import make_pipeline
from rlrun.build.plan import make_plan
from rlrun.kernels import parity
from rlrun.log import Log
from rlrun.pipeline.backends import backends
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.generators import generators_state, load_generators
from rlrun.pipeline.serial import Pipeline
from rlrun.run import train
from rlrun.rundir.checkpoint import load_newest
from tests.compose import config
from tests.exact import QUIET, differences

BANDIT = ("debug=smoke", "env=bandit", "run.eval_episodes=2", "run.stop_value=null", *QUIET)


@pytest.fixture
def pipeline_of(tmp_path) -> Iterator[Callable[..., Pipeline]]:
    """Makes pipelines of ``overrides``; ``settings``: of the run that they go on with."""
    with ExitStack() as opened:

        def make(*overrides: str, settings: dict | None = None) -> Pipeline:
            c = config(*BANDIT, *overrides)
            plan = make_plan(c)
            plan = plan if settings is None else plan.resumed(settings)
            log = Log(c.logger, tmp_path, total_steps=9, title="", resume_from=0)
            opened.enter_context(log)
            return opened.enter_context(closing(make_pipeline(plan, tmp_path, log)))

        yield make


def turn(pipeline: Pipeline) -> None:
    """One turn of the loop without evaluation."""
    before = pipeline.counters.env_steps
    keys = pipeline._store(pipeline._collect())
    pipeline._learn(pipeline.counters.env_steps - before, keys)


@pytest.mark.parametrize(
    "overrides",
    [("policy=dqn", "bonus=rnd"), ("policy=ppo",), ("policy=dqn", "buffer=prioritized")],
)
def test_means_between_two_log_lines_are_saved(pipeline_of, overrides):
    overrides = (*overrides, "learner.learning_starts=0", "collector.n_sample=16")
    one, two = (pipeline_of(*overrides) for _ in range(2))
    for _ in range(4):
        turn(one)
    two.load_state_dict(one.state_dict())
    assert two.learner.means.updates > 0, "the test must have something to average"
    assert two.learner.metrics() == one.learner.metrics()
    if one.bonus is not None:
        assert one.bonus.totals
        assert two.bonus.metrics() == one.bonus.metrics()
    assert two.buffer.metrics(9) == one.buffer.metrics(9)


@pytest.mark.parametrize(
    "overrides",
    [
        ("policy=dqn", "buffer=prioritized", "bonus=rnd"),
        ("policy=dqn", "buffer=rank", "buffer.capacity=96"),
        ("policy=dqn", "buffer.capacity=96", "env.frame_stack=2"),
        ("policy=r2d2", "env=tmaze", "buffer.capacity=200"),
        ("policy=dqn", "env=bitflip", "env.bits=4", "buffer.relabel=future"),
        ("policy=ppo", "env=cartpole", "env.frame_stack=2", "policy.normalize_reward=true"),
        ("policy=sac", "env=pendulum"),
    ],
)
def test_a_pipeline_in_use_goes_back_as_a_new_one_does(pipeline_of, overrides):
    """run.on_nan=rollback loads a checkpoint into objects that have gone on since."""
    overrides = (*overrides, "learner.learning_starts=20")
    used, new = pipeline_of(*overrides), pipeline_of(*overrides)
    for _ in range(5):
        turn(used)
    state = deepcopy(used.state_dict())
    for _ in range(9):
        turn(used)
    for pipeline in (used, new):
        pipeline.load_state_dict(deepcopy(state))
    if isinstance(new.buffer, Replay):
        used.buffer.check()
    generators = used.state_dict()["generators"]
    for pipeline in (used, new):
        load_generators(generators)
        for _ in range(9):
            turn(pipeline)
    assert not list(differences(used.state_dict(), new.state_dict()))


@pytest.mark.parametrize("policy", ["dqn", "ppo", "r2d2"])
def test_saving_changes_nothing(tmp_path, policy):
    """Metrics and digest do not depend on when checkpoints are saved."""
    found = set()
    for every in (25, 100, 10**6):
        run_dir = tmp_path / str(every)
        run_dir.mkdir()
        c = config(*BANDIT, f"policy={policy}", f"run.checkpoint_every={every}")
        assert train.run(c, run_dir, raw_yaml="", overrides=[]) == 0
        digest = json.loads((run_dir / "run.json").read_text())["digest"]
        found.add((digest, (run_dir / "metrics.jsonl").read_bytes()))
    assert len(found) == 1


def test_a_resumed_pipeline_goes_on_with_the_saved_global_generators(pipeline_of):
    """Environments and policies of users may draw from them."""

    def drawn():
        return random.gauss(0, 1), np.random.normal(), torch.randn(1).item()

    saved, resumed = pipeline_of("policy=dqn"), pipeline_of("policy=dqn")
    state = deepcopy(saved.state_dict())
    expected = drawn()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    resumed.load_state_dict(state)
    assert drawn() == expected


def test_the_global_generators_are_restored():
    state = generators_state()
    drawn = [(random.gauss(0, 1), np.random.normal(), torch.randn(1).item()) for _ in range(2)]
    load_generators(state)
    again = [(random.gauss(0, 1), np.random.normal(), torch.randn(1).item()) for _ in range(2)]
    assert drawn == again


def test_an_interrupted_evaluation_leaves_no_trace(pipeline_of, monkeypatch):
    """It will be repeated, with the random numbers that it would have had."""
    pipeline = pipeline_of("policy=random")

    def interrupted(self, stop, policy, *, env_steps):
        policy.generator.random(3)
        np.random.random(3)

    before = pipeline.state_dict() | {"owed": True}
    monkeypatch.setattr(Evaluator, "run_until", interrupted)
    from rlrun.pipeline.stop import StopRequest

    pipeline._evaluate(StopRequest())
    assert not list(differences(before, pipeline.state_dict()))


def test_a_run_stays_inexact_after_an_evaluation_that_was_disturbed(pipeline_of):
    pipeline = pipeline_of("policy=random")
    for reason in (None, "a worker was restarted", None):
        result = Evaluation(np.ones(1), np.ones(1), None, env_steps=0, inexact=reason)
        pipeline._record_evaluation(result, 0)
    assert pipeline.inexact == "a worker was restarted"


@pytest.mark.parametrize("agrees", [True, False])
def test_the_backend_of_the_first_update_stays(pipeline_of, monkeypatch, agrees):
    """A resumed run does not compare anew, whatever the comparison would find now."""
    words = ("policy=dqn", "learner.learning_starts=0")
    one = pipeline_of(*words)
    assert backends(one.policy) == ["unchecked"]
    monkeypatch.setattr(parity, "TOLERANCE", 1.0 if agrees else -1.0)
    while not one.counters.updates:
        turn(one)
    monkeypatch.setattr(parity, "TOLERANCE", -1.0 if agrees else 1.0)
    two = pipeline_of(*words)
    two.load_state_dict(one.state_dict())
    expected = ["numpy" if agrees else "torch"]
    assert backends(two.policy) == backends(one.policy) == expected
    turn(two)
    assert backends(two.policy) == expected


SCHEDULED = (
    "policy=dqn", "buffer=prioritized", "buffer.alpha={kind: linear, start: 0, end: 1}",
    "buffer.beta={kind: linear, start: 0, end: 1}", "policy.lr={kind: linear, start: 1, end: 0}",
    "explore=schedule", "explore.epsilon={kind: linear, start: 1, end: 0, over: null}",
)  # fmt: skip


def scheduled(pipeline: Pipeline, env_steps: int) -> set[float]:
    """Every scheduled value, as a share of its way."""
    sampler, policy = pipeline.buffer.sampler, pipeline.policy
    falling = policy.rates_at(env_steps)[0], float(pipeline.source.collector.explore(env_steps)[0])
    rising = sampler.alpha_at(env_steps), sampler.beta_at(env_steps)
    return {round(1 - x, 6) for x in falling} | {round(x, 6) for x in rising}


def test_schedules_keep_the_horizon_of_the_runs_beginning(pipeline_of):
    one = pipeline_of(*SCHEDULED, "run.total_steps=1000")
    settings = one.state_dict()["settings"]
    assert scheduled(one, 100) == {0.1}
    for total in (200, 4000):
        words = (*SCHEDULED, f"run.total_steps={total}")
        assert scheduled(pipeline_of(*words, settings=settings), 100) == {0.1}
        words = (*words, "resume.rescale=true")
        rescaled = pipeline_of(*words, settings=settings)
        assert scheduled(rescaled, 100) == {100 / total}
        assert rescaled.state_dict()["settings"]["horizon"] == total


def test_threads_of_the_runs_beginning_stay(monkeypatch):
    words = ("policy=r2d2", "learner.batch_size=256", "memory.hidden=256", "learner.threads=null")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = make_plan(config(*BANDIT, *words))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    after = make_plan(config(*BANDIT, *words))
    assert (before.threads, after.threads) == (4, 1)
    assert after.resumed(before.settings()).threads == 4
    given = make_plan(config(*BANDIT, *words[:3], "learner.threads=2"))
    assert given.resumed(before.settings()).threads == 2, "what is given anew counts"


def test_a_run_remembers_its_horizon(tmp_path):
    """Extending a run twice: the horizon is that of the beginning, or of the last rescale."""
    c = config(*BANDIT, "policy=random", "run.total_steps=100")
    train.run(c, tmp_path, raw_yaml="", overrides=[])
    for total, words, horizon in (
        (200, (), 100),
        (300, ("resume.rescale=true",), 300),
        (400, (), 300),
    ):
        c = config(*BANDIT, "policy=random", f"run.total_steps={total}", *words)
        train.resume(tmp_path, c, raw_yaml="", overrides=[])
        assert load_newest(tmp_path / "checkpoints")[0]["settings"]["horizon"] == horizon


def test_a_resume_that_changes_numbers_is_recorded(tmp_path):
    """Once, and for the run's later resumes too."""
    words = (*BANDIT, "policy=random", "run.total_steps=100")
    train.run(config(*words), tmp_path, raw_yaml="", overrides=[])
    reason = "resumed with logger.every, resume.rescale"
    for total, given, expected in (
        (200, ["run.max_time=3h", "transport=raw", "watchdog.max_seconds=99"], None),
        (300, ["resume.rescale=true", "logger.every=50"], reason),
        (400, [], reason),
    ):
        given = [*given, f"run.total_steps={total}"]
        train.resume(tmp_path, config(*words, *given), raw_yaml="", overrides=given)
        record = json.loads((tmp_path / "run.json").read_text())
        assert (record["exact"], record["exact_reason"]) == (expected is None, expected)
