"""Broken classes of users: one line that names them, exit code 3 (2: not importable), no bug."""

import re
from pathlib import Path

import pytest

import rlrun
from rlrun.cli.main import main
from rlrun.errors import ConfigError
from rlrun.run.record import RunRecord

MODULE = """
import gymnasium as gym, numpy as np, torch
from gymnasium import spaces
from rlrun.nets.memory import Cell
from rlrun.policy.dqn import DQN

class Abstract(Cell):
    pass

class Zeros(Cell):
    def initial_state(self, batch, device):
        return (torch.zeros(batch, 4),)
    def step(self, x, state):
        return torch.zeros(len(x), self.size), state

class Raises(Zeros):
    def step(self, x, state):
        raise ValueError("boom")

class OneResult(Zeros):
    def step(self, x, state):
        return torch.zeros(len(x), self.size)

class NoState(Zeros):
    def initial_state(self, batch, device):
        return None

class OneColumn(Zeros):
    def initial_state(self, batch, device):
        return (torch.zeros(1, 4),)

class Doubles(Zeros):
    def initial_state(self, batch, device):
        return (torch.zeros(batch, 4, dtype=torch.float64),)

class Dictionary(Zeros):
    def initial_state(self, batch, device):
        return {"h": torch.zeros(batch, 4)}

class DoubleOutput(Zeros):
    def step(self, x, state):
        return torch.zeros(len(x), self.size, dtype=torch.float64), state

class Ones(Zeros):
    def initial_state(self, batch, device):
        return (torch.ones(batch, 4),)

class InPlace(Zeros):
    def step(self, x, state):
        return torch.zeros(len(x), self.size), (state[0].add_(1),)

class FewArguments(Zeros):
    def __init__(self, config):
        super().__init__(config, 3)

class NoArguments(DQN):
    def __init__(self):
        pass

class LossIsNumber(DQN):
    def loss(self, segment, weight):
        return 3.0

class NoUpdate(DQN):
    def update(self, sample):
        return None

class Leaves(DQN):
    def update(self, sample):
        raise SystemExit(0)

class NoActor(DQN):
    def actor(self, num_envs):
        return None

class NoSpace(gym.Env):
    action_space = spaces.Discrete(2)

class Huge(gym.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.array([0, 1e40, 0]), {}

gym.register("NoSpace-v0", NoSpace)
gym.register("Huge-v0", Huge)
"""


@pytest.fixture
def botched(tmp_path, monkeypatch):
    """The package ``botched``, on the path of an empty working directory."""
    (tmp_path / "botched.py").write_text(MODULE)
    (tmp_path / "leaves.py").write_text("raise SystemExit(4)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [("Abstract", "NotImplementedError"), ("Raises", "ValueError: boom"), ("OneResult", "step()"),
     ("NoState", "NoneType"), ("OneColumn", "initial_state(2)"), ("FewArguments", "__init__()"),
     ("Doubles", "a state of torch.float64"), ("Dictionary", "a state of dict"),
     ("DoubleOutput", "an output of torch.float64"), ("Ones", "not zero"), ("InPlace", "not zero")],
)  # fmt: skip
def test_cells(botched, capsys, name, told):
    line = [
        "policy=r2d2",
        f"memory.name=botched:{name}",
        "env=bandit",
        "debug=smoke",
        "run.dir=run",
    ]
    assert main([*line, "--trust", "botched"]) == 3
    err = capsys.readouterr().err.splitlines()[-1]
    assert f"memory.name = botched:{name}" in err
    assert told in err


@pytest.mark.parametrize(
    ("name", "told"),
    [("NoArguments", "__init__()"), ("LossIsNumber", "loss() returned float"),
     ("NoUpdate", "update() returned NoneType"), ("NoActor", "actor() returned NoneType")],
)  # fmt: skip
def test_policies(botched, capsys, name, told):
    line = ["policy=dqn", f"policy.name=botched:{name}", "env=bandit", "debug=smoke", "run.dir=run"]
    assert main([*line, "--trust", "botched"]) == 3
    err = capsys.readouterr().err.splitlines()[-1]
    assert "policy.name" in err
    assert told in err


@pytest.mark.parametrize(
    ("name", "told"), [("NoSpace", "has no observation_space"), ("Huge", "1e+40 at position [1]")]
)
def test_environments(botched, capsys, name, told):
    words = ["env=gym", f"env.id=botched:{name}-v0"]
    assert main(["policy=dqn", *words, "debug=smoke", "run.dir=run"]) == 3
    assert told in capsys.readouterr().err
    assert main(["doctor", *words]) in (0, 3)  # a finding, or it cannot be made
    assert told in " ".join("".join(capsys.readouterr()).split())


def test_a_policy_that_leaves(botched, capsys):
    line = ["policy=dqn", "policy.name=botched:Leaves", "env=bandit", "debug=smoke", "run.dir=run"]
    assert main([*line, "--trust", "botched"]) == 3
    assert "SystemExit" in capsys.readouterr().err
    assert RunRecord.read(Path("run")).status == "failed"


def test_a_module_that_leaves(botched, capsys):
    line = ["policy=dqn", "policy.name=leaves:X", "env=bandit", "debug=smoke"]
    assert main([*line, "--trust", "leaves"]) == 2
    assert re.search("leaves .*SystemExit", capsys.readouterr().err)
    with pytest.raises(ConfigError, match="SystemExit"):
        rlrun.train(*line, trust=["leaves"])
