"""Four agents learn in seconds what an agent of chance, or one without a memory, cannot reach."""

import rlrun

SHORT = ("learner.threads=1", "logger.tensorboard=false", "run.stop_return=null")


def score(tmp_path, *words):
    """Mean return of the final weights, on seeds that training never used."""
    run = rlrun.train(*words, *SHORT, f"run.dir={tmp_path / 'run'}", quiet=True)
    assert run.status == "done"
    return run.summary["return_mean"]


# Best 1; naming suits at random has -0.5, and so has whoever does not remember.
CARDS = (
    "experiment=r2d2_repeat_previous", "env.k=2", "policy.lr.start=3e-3", "run.total_steps=16000",
    "run.eval_every=16000", "run.eval_episodes=20", "torso.hidden=[32]", "memory.hidden=32",
)  # fmt: skip


def test_r2d2_remembers(tmp_path):
    assert score(tmp_path, *CARDS) >= 0.9


# One of four actions is right in every step of ten: best 10, chance has 2.5.
IDENTITY = ("env=identity", "run.eval_every=6000", "collector.num_envs=8", "policy.gamma=0.5")


def test_dqn(tmp_path):
    words = ("policy=dqn", *IDENTITY, "run.total_steps=6000", "torso.hidden=[64]", "policy.nstep=1",
             "learner=transitions", "learner.learning_starts=200")  # fmt: skip
    assert score(tmp_path, *words) >= 9.5


def test_ppo(tmp_path):
    words = ("policy=ppo", *IDENTITY, "run.total_steps=8000", "collector.n_sample=128",
             "learner.batch_size=64", "policy.lr=3e-3")  # fmt: skip
    assert score(tmp_path, *words) >= 9.5


def test_sac(tmp_path):
    """A lever between -1 and 1 is pushed to a fixed place: best 0, chance has -1.24."""
    words = (
        "policy=sac", "env=bandit_continuous", "torso.hidden=[32,32]", "policy.lr=3e-3",
        "policy.actor_lr=3e-3", "learner.batch_size=64", "learner.learning_starts=200",
        "run.eval_every=1500", "run.total_steps=1500", "collector.num_envs=4",
        "collector.n_sample=4", "learner.replay_ratio=64",
    )  # fmt: skip
    assert score(tmp_path, *words) >= -0.02
