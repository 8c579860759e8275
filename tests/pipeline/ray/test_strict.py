"""Lock-step: one collector is the serial pipeline, bit for bit; several are the same every time."""

from types import SimpleNamespace

import pytest

from rlrun.errors import CheckpointError
from rlrun.pipeline.ray.source import RaySource
from rlrun.rundir.record import RunRecord
from tests.compose import config
from tests.exact import ONLY_STOPS, assert_exact_resume, kill_and_resume
from tests.pipeline.test_exact import LEARN, SMALL
from tests.pipeline.test_serial import SMOKE, go

STRICT = ("pipeline=ray", "pipeline.strict=true", "watchdog.max_seconds=60")
ONE = (*STRICT, "pipeline.num_actors=1")
CASES = {
    "td_coded": (
        "policy=r2d2", "env=cartpole_novel", "buffer.initial_priority=td", "transport=coded",
    ),
    "central": ("policy=r2d2", "env=tmaze", "memory=gru"),
    "sac": ("policy=sac", "env=pendulum", "run.total_steps=250"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_collector_gives_the_digest_of_the_serial_pipeline(case, tmp_path):
    words = CASES[case]
    own = ("pipeline.inference=central",) if case == "central" else ()
    serial, strict = go(tmp_path / "serial", *words), go(tmp_path / "ray", *words, *ONE, *own)
    assert serial["digest"] == strict["digest"]
    assert strict["exact"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("serial", "ray")]
    assert metrics[0] == metrics[1]


def test_several_collectors_give_the_same_numbers_every_time_and_after_a_kill(tmp_path):
    """Two collectors, two shards, and a predictor: one run whole, the same killed and resumed."""
    words = ("policy=r2d2", "env=cartpole_novel", "collector.num_envs=2", "memory.hidden=8",
             "buffer.initial_priority=td", "learner.replay_ratio=40", "pipeline.num_actors=2",
             "pipeline.num_shards=2", "pipeline.inference=central")  # fmt: skip
    state = assert_exact_resume((*words, *LEARN, *STRICT), (90,), tmp_path)
    assert state["counters"]["updates"] > 0


def test_a_rollout_run_that_is_resumed_is_the_serial_one(tmp_path):
    words = ("policy=ppo", "memory=lstm", "env=pendulum", *SMALL, "torso.hidden=[8]",
             "collector.num_envs=2")  # fmt: skip
    serial = go(tmp_path / "serial", *words)
    c = config(*SMOKE, *words, *ONE, f"run.checkpoint_every={ONLY_STOPS}")
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.yaml").write_text("{}")
    kill_and_resume(c, cut, (90,))
    assert RunRecord.read(cut).digest == serial["digest"]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("serial", "cut")]
    assert metrics[0] == metrics[1]


def test_a_resume_with_another_number_of_collectors_is_refused():
    roles = SimpleNamespace(collectors=[None, None], pump=None)
    source = RaySource.__new__(RaySource)
    source.roles = roles
    for saved, text in (({"collectors": [{}]}, "is of 1 collectors"), ({}, "of another pipeline")):
        with pytest.raises(CheckpointError, match=f"num_actors = 2: the checkpoint {text}|{text}"):
            source.load_state_dict(saved)
