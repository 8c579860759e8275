"""Policies, layouts of agents and kinds of observation learn for two chunks at least; so do
experiments. (tests/learning runs the experiments that are not here.)
"""

import json

import pytest

from rlrun.run import start
from rlrun.run.checkpoint import load_newest
from tests.compose import config
from tests.env import boxes
from tests.installed import needs

assert boxes  # registers its environments
QUIET = ("logger.progress=off", "logger.tensorboard=false", "run.stop_return=null")
SMOKE = ("debug=smoke", "run.total_steps=150", "torso.hidden=[8]")
UNIT = "env=gym env.id=test/Levers-v0 env.kwargs.length=5"
CASES = {
    "r2d2": ["env=gym env.id=FrozenLake-v1", "env=gym env.id=Blackjack-v1",
             "env=relay agents=shared", "env=relay agents=separate", "env=battleship"],
    "r2d2 memory=gru": ["env=gym env.id=tests.env.screen:test/Beside-v0 torso=image_and_vector"],
    "ppo": ["env=gym env.id=tests.env.screen:test/Beside-v0 torso=image_and_vector",
            "env=relay agents=shared", "env=relay agents=separate"],
    "dqn": ["env=bitflip", "env=relay agents=separate", "env=cartpole env.frame_stack=3"],
    "pqn": ["env=relay agents=separate", "env=relay agents=shared"],
    "qmix": ["env=relay agents=joint"],
    "vdn": ["env=twostep agents=joint"],
    "random": ["env=pendulum", "env=relay agents=separate", "env=twostep agents=joint"],
    "sac": ["env=gym env.id=test/Reach-v0 buffer.relabel=future env.success=is_success",
            f"{UNIT} buffer=prioritized policy.nstep=3 buffer.initial_priority=td"],
    "td3": [f"{UNIT} buffer=rank policy.nstep=3 buffer.initial_priority=td"],
    "rsac": [f"{UNIT} buffer=rank policy.nstep=3 buffer.initial_priority=td"],
    "rtd3": [UNIT],
}  # fmt: skip
INSTALLED = {  # one of each package
    "minigrid": "policy=r2d2 env=minigrid_memory_s7",
    "mujoco": "policy=sac env=halfcheetah",
    "Box2D": "policy=dqn env=lunarlander",
    "ale_py": "policy=dqn env=atari torso=nature_cnn torso.hidden=[8] env.max_episode_steps=30",
}
FEW = ("collector.num_envs=8", "collector.n_sample=128", "run.total_steps=300",
       "run.eval_every=200", "run.eval_episodes=2", "learner.batch_size=8")  # fmt: skip
REPLAY = ("buffer.capacity=4000", "learner.learning_starts=100", "learner.replay_ratio=5")
EXPERIMENTS = {
    "r2d2_paper": ("env=cartpole", "memory.hidden=16", *REPLAY),
    "r2d2_tmaze50": (*REPLAY, "policy.learn_unroll_len=20"),
    "diengine_r2d2_cartpole": ("buffer.capacity=4000", "collector.n_sample=4"),
    "zoo_dqn_cartpole": ("learner.learning_starts=100",),
    "zoo_dqn_mountaincar": ("learner.learning_starts=100",),
    "zoo_ppo_cartpole": (),
    "zoo_ppo_acrobot": (),
    "zoo_a2c_acrobot": (),
    "zoo_sac_mountaincar_continuous": REPLAY,
    "zoo_td3_mountaincar_continuous": REPLAY,
    "zoo_rsac_mountaincar_continuous_novel": REPLAY,
    "ppo_count_recall": (),
    "ppo_noisy_cartpole": (),
    "pqn_repeat_previous": (),
    "minatar_pqn": ("torso.hidden=[8]",),
    "minatar_dqn": (*REPLAY, "torso.hidden=[8]"),
}


def learns(directory, *words):
    """A run of ``rlrun *words`` ends well, in chunks, with updates."""
    c = config(*words, *QUIET)
    assert start.start(start.Launch(c, directory, "")) == 0
    state, _ = load_newest(directory / "checkpoints")
    assert state["counters"]["chunks"] >= 2
    return json.loads((directory / "run.json").read_text())["updates"] > 0


@pytest.mark.parametrize(("policy", "env"), [(p, e) for p, envs in CASES.items() for e in envs])
def test_policies_learn(tmp_path, policy, env):
    words = f"policy={policy} {env}".split()
    assert learns(tmp_path, *words, *SMOKE) == (policy != "random")


@pytest.mark.parametrize("line", [pytest.param(x, marks=needs(m)) for m, x in INSTALLED.items()])
def test_environments_of_other_packages(tmp_path, line):
    assert learns(tmp_path, *line.split(), *SMOKE, "learner.learning_starts=50")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments(tmp_path, experiment):
    assert learns(tmp_path, f"experiment={experiment}", *FEW, *EXPERIMENTS[experiment])


@needs("ale_py")
@pytest.mark.parametrize("experiment", ["dqn_atari", "ppo_atari"])
def test_experiments_with_games(tmp_path, experiment):
    own = ("policy.epochs=1",) if experiment == "ppo_atari" else ("learner.learning_starts=100",)
    assert learns(tmp_path, f"experiment={experiment}", *FEW, *own, "env.max_episode_steps=30")


@needs("Box2D")
@pytest.mark.parametrize(
    ("experiment", "own"), [("ppo", ()), ("sac", REPLAY), ("tqc", REPLAY), ("crossq", REPLAY)]
)
def test_experiments_with_box2d(tmp_path, experiment, own):
    assert learns(tmp_path, f"experiment=zoo_{experiment}_lunarlander_continuous", *FEW, *own)
