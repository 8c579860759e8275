"""What the command line does, as functions: the same numbers, files and error lines."""

import itertools
import shutil

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv, MountainCarEnv
from gymnasium.wrappers import TimeLimit

import rlrun
from rlrun.cli.main import main
from tests.api.conftest import SMOKE
from tests.reports.forge import forge_seeds


def printed(capsys, *argv):
    """Standard output of a command line, and its exit code."""
    capsys.readouterr()
    code = main(list(argv))
    return capsys.readouterr().out, code


def test_evaluate(trained, capsys):
    run = trained("dqn")
    found = rlrun.evaluate(run, episodes=3, seed=5)
    out, _ = printed(capsys, "eval", str(run.directory), "--episodes", "3", "--seed", "5")
    assert out == "".join(f"{key:14s} {value:g}\n" for key, value in found.items())
    assert {*found} == {*(run.summary or {})}
    with pytest.raises(rlrun.ConfigError, match=r"--episodes: 0 .* >= 1"):
        rlrun.evaluate(run, episodes=0)
    with pytest.raises(rlrun.CheckpointError, match="env step 7"):
        rlrun.evaluate(run, 7)


def test_evaluate_in_a_changed_environment(trained):
    run = trained("dqn")
    short = "env.max_episode_steps=3"
    assert rlrun.evaluate(run, overrides=[short])["length_mean"] == 3
    assert rlrun.evaluate(run, overrides=short)["length_mean"] == 3
    found = rlrun.evaluate(run, overrides=[short, "env.kwargs.sutton_barto_reward=true"])
    assert found["return_max"] == 0, "an argument that no yaml names"
    for bad, text in (
        ("policy.gamma=0.5", "policy.gamma"),
        ("device=cpu,cuda", "device"),
        ("env=pendulum", "env = pendulum"),
        ("env.max_episode_stps=3", "env.max_episode_steps"),
        ("env.frame_stack=2", r"\(2, 4\)"),
        ("env.kwargs.lenght=3", "lenght"),
    ):
        with pytest.raises(rlrun.ConfigError, match=text):
            rlrun.evaluate(run, overrides=[bad])
    with pytest.raises(rlrun.ConfigError, match=r"\(6,\)"):
        rlrun.evaluate(trained("r2d2"), overrides=["env.id=Acrobot-v1"])
    with pytest.raises(rlrun.ConfigError, match=r"evaluate\(RUN_DIR, overrides="):
        rlrun.evaluate(run, max_episode_steps=3)


def test_export_policy(trained, tmp_path):
    pytest.importorskip("onnxruntime")
    line = rlrun.export_policy(trained("dqn"), tmp_path / "p.onnx")
    assert (tmp_path / "p.onnx").exists()
    assert "p.onnx" in line
    with pytest.raises(rlrun.ConfigError, match=r"p.onnx"):
        rlrun.export_policy(trained("dqn"), tmp_path / "p.onnx")


def test_paths_of_the_home_directory(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(trained("dqn"), tmp_path / "run")
    assert rlrun.resume("~/run", quiet=True).directory == tmp_path / "run"
    assert rlrun.diff("~/run", "~/run")
    assert rlrun.report("~/run", out="~/out")["scores"] is not None
    assert (tmp_path / "out/index.html").exists()
    assert rlrun.fork("~/run", "run.total_steps=300", f"run.dir={tmp_path}/fork", quiet=True)


def test_fork(trained, tmp_path):
    run = trained("dqn")
    more = rlrun.fork(run, f"run.dir={tmp_path}/f", "run.total_steps=300", quiet=True)
    assert more.directory == tmp_path / "f"
    assert (more.status, more.record["env_steps"] >= 300) == ("done", True)
    assert str(run.directory) in more.record["parent"].values()
    assert rlrun.Run(run).record["env_steps"] < 300
    with pytest.raises(rlrun.ConfigError, match=r"run.dir"):
        rlrun.fork(run, "run.total_steps=300")


def test_verify_and_diff(trained, tmp_path, capsys):
    run = trained("dqn")
    copy = shutil.copytree(run.directory, tmp_path / "copy")
    assert rlrun.verify(copy) == []
    equal, lines = rlrun.diff(run, copy)
    assert equal
    assert printed(capsys, "diff", str(run.directory), str(copy)) == ("\n".join([*lines, ""]), 0)
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 999}\n')
    equal, lines = rlrun.diff(run, copy)
    assert (equal, "metrics.jsonl" in lines[0]) == (False, True)
    (copy / "checkpoints/last.safetensors").write_bytes(b"x")
    (problem,) = [line for line in rlrun.verify(copy) if "last" in line]
    assert problem in printed(capsys, "verify", str(copy))[0]
    with pytest.raises(rlrun.ConfigError, match="nowhere"):
        rlrun.diff(run, tmp_path / "nowhere")


def test_compare(tmp_path, capsys):
    sides = [forge_seeds(tmp_path / name, [x, x + 1.0])[0].parent for name, x in
             (("a", 1.0), ("b", 5.0))]  # fmt: skip
    lines = rlrun.compare(*sides)
    assert printed(capsys, "compare", *map(str, sides))[0].split() == "\n".join(lines).split()
    with pytest.raises(rlrun.ConfigError, match="score"):
        rlrun.compare(*sides, score="best")


def test_search(tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["policy=random", "env=bandit", "run.total_steps=20", "logger.tensorboard=false",
             "search.trials=1", "search.seeds=1", "search.final_seeds=1", "search.workers=1",
             "env.reward_scale=choice(1.0,2.0)", f"search.dir={tmp_path}/s"]  # fmt: skip
    found = rlrun.search(words, quiet=True)
    assert capsys.readouterr().out == ""
    assert found["directory"] == f"{tmp_path}/s"
    assert found["overrides"][0].startswith("env.reward_scale=")
    assert len(found["scores"]) == 1
    with pytest.raises(rlrun.ConfigError, match=r"search\.trials = 0"):
        rlrun.search(["search.trials=0", "policy.lr=interval(1,2)"])


# -- an environment in place of its name -----------------------------------------------------------

QUICK = ("policy=dqn", *SMOKE, "collector.num_envs=2")


def make_cartpole(**arguments):
    return TimeLimit(CartPoleEnv(**arguments), 50)


def test_a_function_that_makes_environments(tmp_path):
    """The rows of the registered one; the record says what a resume cannot promise."""
    run = rlrun.train(*QUICK, f"run.dir={tmp_path}/f", env=make_cartpole, quiet=True)
    named = rlrun.train(*QUICK, f"run.dir={tmp_path}/n", "env=gym", "env.id=CartPole-v1",
                        "env.max_episode_steps=50", "env.backend=sync", quiet=True)  # fmt: skip
    assert run.record["digest"] == named.record["digest"]
    assert (run.record["exact"], named.record["exact"]) == (False, True)
    assert run.record["exact_reason"]
    assert run.config["env"]["id"].startswith("python/make_cartpole-v")
    assert rlrun.resume(run, "run.total_steps=300", env=make_cartpole, quiet=True).status == "done"
    gym.registry.pop(run.config["env"]["id"])  # as in another process
    with pytest.raises(rlrun.ConfigError, match=r"rlrun\.resume\(RUN_DIR, env=\.\.\.\)"):
        rlrun.resume(run, "run.total_steps=400")
    assert rlrun.resume(run, "run.total_steps=400", env=make_cartpole, quiet=True).status == "done"


def test_an_id_that_a_notebook_registers_again(tmp_path):
    """Its spaces are those of the new registration."""
    words = ("policy=dqn", *SMOKE, "env=gym", "env.id=Edited-v0")
    for number, entry_point in enumerate((CartPoleEnv, MountainCarEnv)):
        gym.registry.pop("Edited-v0", None)
        gym.register("Edited-v0", entry_point, max_episode_steps=50)
        run = rlrun.train(*words, f"run.dir={tmp_path}/{number}", quiet=True)
        assert run.status == "done"
    del gym.registry["Edited-v0"]


def test_an_environment_object(tmp_path):
    """It alone is stepped, also by evaluations, and it is open afterwards."""
    env = gym.make("CartPole-v1", max_episode_steps=50)
    run = rlrun.train("policy=dqn", *SMOKE, f"run.dir={tmp_path}/o", env=env, quiet=True)
    assert (run.status, run.record["exact"]) == ("done", False)
    assert (run.config["env"]["instances"], run.config["collector"]["num_envs"]) == (1, 1)
    assert env.unwrapped.spec is not None
    assert env.unwrapped.spec.id == "CartPole-v1"
    assert env.reset(seed=0)[0].shape == (4,)


@pytest.mark.parametrize(
    ("words", "env", "text"),
    [(["env=cartpole"], make_cartpole, "env=cartpole: "),
     ([], 3, "env = 3: "),
     ([], "cartpole", 'rlrun.train("env=cartpole"'),
     ([], gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), "env = "),
     (["pipeline=overlapped"], make_cartpole, "pipeline = overlapped: "),
     (["collector.num_envs=2"], CartPoleEnv(), "env.instances = 1"),
     ([], lambda: np.zeros(3), "gymnasium.Env"),
     ([], itertools.repeat(CartPoleEnv()).__next__, "same environment")],
)  # fmt: skip
def test_an_environment_that_is_refused(words, env, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rlrun.ConfigError) as error:
        rlrun.train("policy=dqn", *words, env=env)
    assert text in str(error.value)
    assert [*tmp_path.iterdir()] == []
