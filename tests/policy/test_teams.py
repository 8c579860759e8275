"""Whole runs with several agents: the same bytes again, resumed, exported, from PettingZoo."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rlrun.config import check
from rlrun.dataset import open_source
from rlrun.errors import ConfigError
from rlrun.run import train
from rlrun.run.export import export_run
from rlrun.rundir.checkpoint import load_newest
from rlrun.rundir.record import RunRecord
from tests.compose import config

SMOKE = ("debug=smoke", "logger.progress=off", "logger.tensorboard=false", "run.stop_value=null")
LEAVING = ("env=pettingzoo", "env.id=pettingzoo:tests.env.zoo_example",
           "env.kwargs={lives: [1, 3, 2]}", "run.total_steps=400")  # fmt: skip
SEVERAL = ("env=pettingzoo", "env.id=pettingzoo:tests.env.zoo_several", "run.total_steps=400")
SHORT = ("collector.n_sample=96",)
FEW = ("policy.epochs=2",)  # of PPO's 10, each of which shuffles anew
TEAMS = {
    "qmix": ("policy=qmix", "env=relay"),
    "qmix_leaving": ("policy=qmix", *LEAVING),
    "vdn_overlapped": ("policy=vdn", "env=relay", "pipeline=overlapped"),
    "r2d2_shared": ("policy=r2d2", *LEAVING),
    "dqn_separate": ("policy=dqn", "agents=separate", "pipeline=overlapped", *LEAVING),
    "r2d2_separate": ("policy=r2d2", "agents=separate", "env=relay"),
    "ppo_separate": ("policy=ppo", "memory=gru", "agents=separate", *FEW, *SHORT, *LEAVING),
    "impala_separate": (
        "policy=impala",
        "agents=separate",
        "pipeline=overlapped",
        "env=relay",
        *SHORT,
    ),
    "pqn_shared": ("policy=pqn", "memory=gru", *FEW, *SHORT, *LEAVING),
    "ppo_several": (
        "policy=ppo",
        "agents=separate",
        "policy.normalize_obs=true",
        "policy.normalize_reward=true",
        *FEW,
        *SHORT,
        *SEVERAL,
    ),
    "a2c_several_shared": ("policy=a2c", *SHORT, *SEVERAL),
}


def go(run_dir: Path, *overrides: str) -> RunRecord:
    run_dir.mkdir(exist_ok=True)
    assert train.run(config(*SMOKE, *overrides), run_dir, raw_yaml="", overrides=[]) == 0
    return RunRecord.read(run_dir)


@pytest.mark.parametrize("team", TEAMS)
def test_same_seed_same_bytes_also_when_resumed(tmp_path, team):
    one, two = (go(tmp_path / name, *TEAMS[team]) for name in ("one", "two"))
    assert one.digest == two.digest
    assert one.updates > 0
    assert go(tmp_path / "other", *TEAMS[team], "seed=1").digest != one.digest
    shutil.rmtree(tmp_path / "two")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    longer = config(*SMOKE, *TEAMS[team], "run.total_steps=700")
    digests = set()
    for name in ("one", "two"):
        assert train.resume(tmp_path / name, longer, raw_yaml="", overrides=[]) == 0
        record = RunRecord.read(tmp_path / name)
        assert record.env_steps >= 700
        assert record.updates > one.updates
        digests.add(record.digest)
        state, _ = load_newest(tmp_path / name / "checkpoints")
        if "counts" in state["buffer"]:  # a replay, not a rollout
            assert state["buffer"]["counts"]["rows"] == state["counters"]["env_steps"]
    assert len(digests) == 1


@pytest.mark.parametrize("team", ["qmix_leaving", "r2d2_shared", "r2d2_separate"])
def test_rows_of_teams_survive_export_and_loading(tmp_path, team):
    go(tmp_path / "run", *TEAMS[team])
    given = config(*SMOKE, *TEAMS[team])
    export_run(tmp_path / "run", tmp_path / "data", given, raw_yaml="", shard_rows=64)
    state, _ = load_newest(tmp_path / "run" / "checkpoints")
    source = open_source(str(tmp_path / "data"))
    assert source.steps == state["counters"]["env_steps"]
    record = go(tmp_path / "more", *TEAMS[team], f"buffer.load={tmp_path / 'data'}")
    assert record.updates > 0


def test_lengths_of_agents_are_their_own(tmp_path):
    go(tmp_path, *TEAMS["r2d2_shared"], "run.eval_episodes=6", "env.kwargs={lives: [1, 3, 2]}")
    lines = [json.loads(li) for li in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = Counter(li["eval/length_mean"] for li in lines if "eval/length_mean" in li)
    assert set(found) == {2.0}, "the mean of 1, 3 and 2, once for every episode"


def test_agents_that_choose_several_numbers(tmp_path):
    for policy, others in (("qmix", "policy=ppo"), ("vdn", "policy=ppo"), ("dqn", "policy=ppo")):
        with pytest.raises(ConfigError, match=others):
            check(config(*SMOKE, f"policy={policy}", *SEVERAL))
    record = go(tmp_path, "policy=random", "agents=joint", *SEVERAL)
    assert record.env_steps >= 400


@pytest.mark.parametrize("agents", ["shared", "separate"])
def test_rollouts_have_room_for_agents_that_wait(tmp_path, agents):
    words = ["policy=ppo", f"agents={agents}", *FEW, *LEAVING, "run.total_steps=1000",
             "env.kwargs={lives: [1, 1, 1, 1, 1, 1, 40]}", "collector.n_sample=700"]  # fmt: skip
    with pytest.raises(ConfigError, match=r"buffer\.capacity=9828 or lower"):
        check(config(*SMOKE, *words))
    assert go(tmp_path, *words, "buffer.capacity=9828").env_steps >= 1000


@pytest.mark.parametrize("policy", ["qmix", "dqn"])
@pytest.mark.parametrize(
    ("package", "module"),
    [("mpe2", "mpe2.simple_spread_v3"), ("pettingzoo", "classic/rps-v2")],
)
def test_real_environments(tmp_path, policy, package, module):
    pytest.importorskip(package, exc_type=ImportError)
    if module == "classic/rps-v2" and not hasattr(pytest.importorskip("pettingzoo"), "make"):
        pytest.skip("no registry before 1.27")
    record = go(tmp_path, f"policy={policy}", "env=pettingzoo", f"env.id=pettingzoo:{module}")
    assert record.updates > 0
    assert record.eval["length_mean"] > 1
