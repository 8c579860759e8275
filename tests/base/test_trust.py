"""Code named by a config: only of packages that the command line or the environment trusts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlrun
from rlrun import trust
from rlrun.cli.main import main
from rlrun.errors import ConfigError
from rlrun.trust import trusted_function, trusting

MODULE = """
import pathlib
pathlib.Path({mark!r}).touch()
import numpy as np

def leftmost(obs, steps):
    return np.zeros(len(steps), int)

def alternating(obs, steps):
    return steps % 2

def wide(obs, steps):
    return steps + 5

def ragged(obs, steps):
    return np.zeros((len(steps), 3))

def broken(obs, steps):
    raise KeyError("no such thing")

def greedy(obs, steps):
    obs[:] = 0
    return steps

number = 3
"""
LINE = ["policy=scripted", "policy.script=function", "env=cartpole", "debug=smoke", "-q"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A user's package ``mine`` on the path; it leaves a mark where it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "lib/mine").mkdir(parents=True)
    (tmp_path / "lib/mine/__init__.py").write_text("")
    (tmp_path / "lib/mine/acts.py").write_text(MODULE.format(mark=str(mark)))
    (tmp_path / "lib/mine/torn.py").write_text("import nothing_like_it\n")
    (tmp_path / "lib/minefield.py").write_text(MODULE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    yield mark
    for name in [n for n in sys.modules if n.partition(".")[0] in ("mine", "minefield")]:
        del sys.modules[name]


def refused(name):
    with pytest.raises(ConfigError) as e:
        trusted_function("policy.function", name)
    return str(e.value)


def test_nothing_is_imported_without_trust(package):
    text = refused("mine.acts:leftmost")
    assert "policy.function = mine.acts:leftmost" in text
    assert "--trust mine" in text
    assert not package.exists()
    with trusting(["mine"]):
        assert trusted_function("policy.function", "mine.acts:leftmost").__name__ == "leftmost"
        assert "--trust minefield" in refused("minefield:leftmost"), "a prefix is not the package"
        assert "--trust os" in refused("os:system")
    assert package.exists()
    assert "--trust mine" in refused("mine.acts:leftmost"), "only while it lasts"


def test_trust_in_a_part_of_a_package(package):
    with trusting(["mine.acts"]):
        trusted_function("policy.function", "mine.acts:leftmost")
        assert "--trust mine" in refused("mine.torn:f")


def test_environment_variable(package, monkeypatch):
    monkeypatch.setenv(trust.VARIABLE, "other, mine")
    trusted_function("policy.function", "mine.acts:leftmost")
    with trusting(["third"]):
        assert trust.trusted() == ["other", "mine", "third"]
    assert os.environ[trust.VARIABLE] == "other, mine"


@pytest.mark.parametrize(
    "name",
    ["mine.acts", "mine.acts:", "mine acts:f", "mine.acts:number", "mine.acts:nothing",
     "mine.torn:f", "mine.gone:f"],
)  # fmt: skip
def test_what_is_no_function(package, name):
    with trusting(["mine"]):
        assert name in refused(name)


def test_names_of_packages(package):
    for name in ("", "a,", "a,../x", "../x", "a:b", "1a"):
        with pytest.raises(ConfigError), trusting([name]):
            pass


def line(function, *more):
    return [*LINE, f"policy.function={function}", *more]


def test_command_line(package, capsys):
    assert main(line("mine.acts:leftmost", "run.dir=no")) == 2
    assert "--trust mine" in capsys.readouterr().err
    assert not Path("no").exists()
    assert not package.exists()
    assert main(["--trust", "mine", *line("mine.acts:leftmost", "run.dir=one")]) == 0
    assert main(line("mine.acts:alternating", "run.dir=two", "--trust=mine")) == 0
    assert trust.VARIABLE not in os.environ
    assert main(["eval", "one", "--episodes", "3"]) == 2, "the run's config cannot vouch for itself"
    assert main(["eval", "one", "--episodes", "3", "--trust", "mine"]) == 0
    assert main(["resume", "two", "run.total_steps=500"]) == 2
    assert main(["--trust", "mine", "resume", "two", "run.total_steps=500", "-q"]) == 0
    assert main(line("mine.acts:leftmost", "run.dir=one", "--trust", "mine")) == 2
    assert re.search("rlrun resume .*one --trust mine", capsys.readouterr().err)
    assert main(["--trust"]) == 2
    assert "--trust" in capsys.readouterr().err


def test_an_environment_that_was_typed(tmp_path, capsys, monkeypatch):
    """Its process may load the run; the line to go on with in another one names the package."""
    (tmp_path / "typedenv.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Typed-v0', 'gymnasium.envs.classic_control:CartPoleEnv', 20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["policy=random", "debug=smoke", "env=gym", "env.id=typedenv:Typed-v0", "run.dir=one"]
    assert main([*words, "-q"]) == 0
    assert main(words) == 2
    assert re.search("rlrun resume .*one --trust typedenv", capsys.readouterr().err)
    assert main(["eval", "one", "--episodes", "1"]) == 2, "another command"
    assert "eval one --episodes 1 --trust typedenv" in capsys.readouterr().err
    run = rlrun.train(*words[:-1], quiet=True)
    assert rlrun.evaluate(run, episodes=1)["length_mean"] <= 20


def test_a_file_cannot_trust(package, capsys):
    """Neither a key of a config nor a yaml of the user's own."""
    Path("my/policy").mkdir(parents=True)
    text = "defaults: [scripted, _self_]\nscript: function\nfunction: mine.acts:leftmost\n"
    Path("my/policy/own.yaml").write_text(text)
    own = ["--config-dir", "my", "policy=own", "env=cartpole", "debug=smoke", "-q"]
    assert main(own) == 2
    for key in ("trust=[mine]", "+trust=mine", "+policy.trust=mine"):
        assert main([*own, key]) == 2
    assert not package.exists()
    assert main([*own, "--trust", "mine"]) == 0


@pytest.mark.parametrize("function", ["wide", "ragged", "broken", "greedy"])
def test_a_function_is_held_to_the_action_space(package, capsys, function):
    assert main(line(f"mine.acts:{function}", "--trust", "mine")) == 3
    err = capsys.readouterr().err
    assert f"policy.function = mine.acts:{function}: " in err
    assert "Traceback" not in err


def test_the_process_of_the_overlapped_pipeline_trusts_too(package):
    words = line("mine.acts:alternating", "pipeline=overlapped", "--trust", "mine")
    done = subprocess.run(
        [sys.executable, "-m", "rlrun", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
