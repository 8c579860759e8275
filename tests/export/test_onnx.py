"""Exported policies act as their actors do, over resets, in ONNX Runtime and without torch."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnx
import pytest

from rlrun.errors import ConfigError, NumericError
from rlrun.run import onnx as export
from rlrun.run.onnx import OPSET, onnx_of
from rlrun.run.onnx_check import onnx_session
from rlrun.types import no_actions
from tests.export.factory import eager, untrained
from tests.export.parity import play
from tests.pages import ROOT, blocks

RUNNER = ROOT / "tests/examples/onnx_runner.py"
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])
"""
R2D2 = ("policy=r2d2", "memory=lstm", "env=cartpole_novel", "env.max_episode_steps=40")
PPO = ("policy=ppo", "memory=gru", "env=pendulum", "policy.prev_inputs=true")
PPO = (*PPO, "policy.normalize_obs=true", "env.max_episode_steps=40")
SAC = ("policy=sac", "env=pendulum", "env.max_episode_steps=40")


def returns_of_actor(trained, episodes):
    """Returns of greedy episodes in a plain environment, as the runner plays them."""
    config, actor, out = trained.plan.config.env, trained.policy.actor(1), []
    env = gym.make(config.id, max_episode_steps=config.max_episode_steps, **config.kwargs)
    action, reward, state = no_actions(env.action_space, 1), 0.0, actor.initial_state()
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        first, total, done = True, 0.0, False
        while not done:
            row = np.array([first]), action, np.array([reward], np.float32), state
            acted = actor.act(obs[None], *row, explore=None)
            action, state, first = acted.action, acted.state, False
            obs, reward, terminated, truncated, _ = env.step(action[0])
            total, done = total + float(reward), terminated or truncated
        out.append(total)
    return out


def test_r2d2_from_the_command_line_to_a_process_without_torch(rlrun, monkeypatch, tmp_path):
    trained = untrained(*R2D2)
    monkeypatch.setattr(export, "load_trained", lambda run_dir, **given: trained)
    assert rlrun("run.dir=old", *R2D2).code == 0
    done = rlrun("export", "policy", "old", "--onnx", "out.onnx")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("onnx: out.onnx, ")
    assert done.out.count("\n") == 1
    assert (
        "inputs obs [n, 2], first [n], prev_action [n], prev_reward [n], state.0 [n, 32]"
        in done.out
    )
    assert "outputs action [n], q_values [n, 2], next_state.0 [n, 32]" in done.out

    path = tmp_path / "out.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert [(x.domain, x.version) for x in model.opset_import] == [("", OPSET)]
    kinds = {node.op_type for node in model.graph.node}
    assert kinds <= {
        "Abs", "Add", "ArgMax", "Cast", "Concat", "Div", "Equal", "Expand", "Gemm", "Mul",
        "ReduceMean", "Relu", "Reshape", "Shape", "Sigmoid", "Sign", "Split", "Sqrt", "Sub",
        "Tanh", "Unsqueeze", "Where",
    }  # fmt: skip
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    content = path.read_bytes()
    assert not any(str(p).encode() in content for p in (ROOT, Path(sys.prefix), tmp_path))
    about = json.loads(model.metadata_props[0].value)
    assert about["env"] == {
        "id": "rlrun.env:rlrun/CartPoleNoVel-v0",
        "kwargs": {"max_episode_steps": 40},
        "wrappers": [],
    }
    assert about["action_space"] == {"type": "Discrete", "n": 2, "start": 0}
    assert (about["policy"], about["weights"], about["env_steps"]) == ("r2d2", "final", 7)

    step = export.make_greedy_step(trained.policy.actor(1), trained.plan.row_spec, 1)
    found = play(trained, step, onnx_session(content), 3)
    assert found.within(1e-5), found
    assert found.rows >= 30 * 9

    command = [sys.executable, "-c", WITHOUT_TORCH, str(RUNNER), "out.onnx", "4"]
    played = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (played.returncode, played.stderr) == (0, "")
    returns = [float(line.split()[-1]) for line in played.stdout.splitlines()]
    assert returns == returns_of_actor(trained, 4)
    assert len({*returns}) > 1

    before = path.read_bytes()
    again = rlrun("export", "policy", "old", "--onnx", "out.onnx")
    assert (again.code, again.out) == (2, "")
    assert "--onnx = out.onnx: the file exists; a new one is allowed" in again.err
    assert path.read_bytes() == before


def test_ppo_with_normalised_observations_in_a_box():
    trained = untrained(*PPO)
    content, step = onnx_of(trained)
    found = play(trained, step, onnx_session(content), 2)
    assert found.within(1e-5), found
    assert found.outputs > 0, "rounding alone"
    assert found.rows >= 2 * 40 * 10


def test_sac_and_that_an_export_is_reproducible():
    trained = untrained(*SAC)
    content, step = onnx_of(trained)
    assert content == onnx_of(trained)[0]
    assert [x.name for x in onnx.load_from_string(content).graph.input] == ["obs"]
    found = play(trained, step, onnx_session(content), 2)
    assert found.within(1e-5), found


def test_nothing_is_written_where_the_graph_is_not_the_actor(monkeypatch, tmp_path):
    trained = untrained(*SAC)
    step = export.make_greedy_step(trained.policy.actor(1), trained.plan.row_spec, 1)
    monkeypatch.setattr(export, "load_trained", lambda run_dir, **given: trained)
    monkeypatch.setattr(export, "onnx_of", lambda trained, *, weights: (b"", step))

    def wrong(inputs):
        return {k: x + np.float32(0.01) for k, x in eager(step)(inputs).items()}

    monkeypatch.setattr(export, "onnx_session", lambda content: wrong)
    path = tmp_path / "out.onnx"
    with pytest.raises(NumericError, match=r"differs from the actor by 0\.01 in 64 rows"):
        export.export_policy(tmp_path, path, weights="final", tolerance=1e-5)
    assert not path.exists()
    export.export_policy(tmp_path, path, weights="final", tolerance=0.1)
    assert path.exists()


def test_a_network_that_cannot_be_traced_is_named():
    trained = untrained("policy=r2d2", "memory=gru", "env=cartpole")
    memory = trained.policy.net.memory

    def step(x, state):
        return type(memory).step(memory, -x if float(x.sum()) > 0 else x, state)

    memory.step = step
    with pytest.raises(ConfigError, match=r"policy\.name = r2d2: torch\.onnx cannot trace") as e:
        onnx_of(trained)
    assert "\n" not in str(e.value)


def test_the_runner_is_short_and_shown_in_the_readme():
    text = RUNNER.read_text("utf-8")
    assert len(text.splitlines()) <= 30
    assert text in blocks("rlrun/run/README.md", "py")
