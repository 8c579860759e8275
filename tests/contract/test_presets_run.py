"""Every preset composes, instantiates and runs at least two chunks."""

import json
from pathlib import Path

import pytest

from rlrun.run import train
from tests.compose import config
from tests.installed import CONTINUOUS, PRESETS, case, env_of, module_of, needs

CONF = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(p.stem for p in CONF.glob("experiment/*.yaml"))
QUIET = ("logger.progress=off", "logger.tensorboard=false", "run.eval_episodes=2")
SHRUNK = {  # what a laptop's test needs of the large presets
    "r2d2_paper": ("env=cartpole", "collector.num_envs=8", "collector.n_sample=160",
                   "memory.hidden=16", "buffer.capacity=4000", "learner.batch_size=2",
                   "learner.learning_starts=200", "learner.replay_ratio=0.5"),
    "diengine_r2d2_cartpole": ("buffer.capacity=20000", "run.total_steps=1000",
                               "run.eval_every=800"),
    "dqn_atari": ("buffer.capacity=4000", "learner.learning_starts=200", "learner.batch_size=2",
                  "learner.replay_ratio=0.1", "env.max_episode_steps=30"),
    "ppo_atari": ("policy.epochs=1", "env.max_episode_steps=30"),
    "ppo_count_recall": ("collector.num_envs=8", "collector.n_sample=512"),
    "pqn_memory_chain": ("collector.n_sample=512",),
    "r2d2_stored_state": ("learner.replay_ratio=3",),
    "ppo_noisy_cartpole": ("collector.num_envs=8", "collector.n_sample=512"),
}  # fmt: skip


def chunks(tmp_path: Path, *overrides: str) -> dict:
    c = config(*overrides, *QUIET)
    assert train.run(c, tmp_path, raw_yaml="", overrides=[]) == 0
    from rlrun.rundir.checkpoint import load_newest

    state, _ = load_newest(tmp_path / "checkpoints")
    assert state["counters"]["chunks"] >= 2
    return json.loads((tmp_path / "run.json").read_text())


@pytest.mark.parametrize("env", [case(env) for env in PRESETS if env in CONTINUOUS])
@pytest.mark.parametrize("policy", ["random", "sac", "rtd3"])
def test_continuous_environments(tmp_path, env, policy):
    record = chunks(tmp_path, f"policy={policy}", f"env={env}", "debug=smoke",
                    "run.total_steps=250")  # fmt: skip
    assert (record["updates"] > 0) == (policy != "random")


@pytest.mark.parametrize("buffer", ["prioritized", "rank"])
@pytest.mark.parametrize("policy", ["sac", "td3", "ddpg", "rsac"])
def test_continuous_policies_draw_by_priority_over_n_steps(tmp_path, policy, buffer):
    record = chunks(tmp_path, f"policy={policy}", "env=pendulum", "debug=smoke", "policy.nstep=3",
                    f"buffer={buffer}", "run.total_steps=250",
                    "buffer.initial_priority=td")  # fmt: skip
    assert record["updates"] > 0


WANTS = {"atari": ("torso=nature_cnn", "env.max_episode_steps=30")}


@pytest.mark.parametrize("env", [case(env) for env in PRESETS if env not in CONTINUOUS])
@pytest.mark.parametrize("policy", ["r2d2", "dqn"])
def test_environments(tmp_path, env, policy):
    record = chunks(tmp_path, f"policy={policy}", f"env={env}", "debug=smoke", *WANTS.get(env, ()),
                    "run.total_steps=150", "run.stop_value=null")  # fmt: skip
    assert record["updates"] > 0


@pytest.mark.parametrize("policy", ["qmix", "vdn", "random"])
@pytest.mark.parametrize("env", ["twostep", "relay"])
def test_teams(tmp_path, env, policy):
    chunks(tmp_path, f"policy={policy}", f"env={env}", "agents=joint", "debug=smoke",
           "run.total_steps=150", "run.stop_value=null")  # fmt: skip


@pytest.mark.parametrize("agents", ["shared", "separate"])
@pytest.mark.parametrize("policy", ["dqn", "r2d2", "drqn", "random", "ppo", "a2c", "impala", "pqn"])
def test_independent_learners(tmp_path, policy, agents):
    record = chunks(tmp_path, f"policy={policy}", "env=relay", f"agents={agents}", "debug=smoke",
                    "run.total_steps=300", "run.stop_value=null")  # fmt: skip
    assert record["updates"] > 0 or policy == "random"


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(e, marks=needs(module_of(env)) if (env := env_of(e)) else ())
        for e in EXPERIMENTS
    ],
)
def test_experiments(tmp_path, experiment):
    short = ("run.total_steps=2500", "run.eval_every=2000", "run.stop_value=null")
    record = chunks(tmp_path, f"experiment={experiment}", *short, *SHRUNK.get(experiment, ()))
    assert record["updates"] > 0


@pytest.mark.parametrize("id", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_other_observation_spaces(tmp_path, id):
    record = chunks(tmp_path, "policy=r2d2", "env=gym", f"env.id={id}", "debug=smoke",
                    "run.total_steps=150", "env.max_episode_steps=20")  # fmt: skip
    assert record["updates"] > 0


@pytest.mark.parametrize("words", [("policy=r2d2", "memory=gru"), ("policy=ppo",)], ids=" ".join)
def test_an_image_beside_a_vector(tmp_path, words):
    record = chunks(tmp_path, *words, "env=gym", "env.id=tests.env.screen:test/Beside-v0",
                    "torso=image_and_vector", "torso.hidden=[16]", "debug=smoke",
                    "run.total_steps=150", "env.max_episode_steps=20")  # fmt: skip
    assert record["updates"] > 0
