"""Exported policies act as their actors do, over resets."""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch

from rlrun.errors import ConfigError, NumericError
from rlrun.run import onnx as export
from rlrun.run.onnx import OPSET, Deviation, compare_random, onnx_of, onnx_session
from tests.in_process import build, rlrun
from tests.pages import ROOT
from tests.policy.export import eager, play, step_of, untrained

assert build  # fixtures
assert rlrun
R2D2 = ("policy=r2d2", "memory=lstm", "env=cartpole_novel", "env.max_episode_steps=40")
SAC = ("policy=sac", "env=pendulum", "env.max_episode_steps=40", "torso.hidden=[8]")

# -- the module that is exported, for every family and kind of space -------------------------------

OFFLINE = ("pipeline=serial", "learner=transitions")
SMALL = ("torso.hidden=[8]", "policy.head_hidden=[8]")
MEMORIES = ["lstm", "gru", "mingru", "indrnn", "bmru", "mlstm", "slstm", "gated_deltanet", "mamba2"]
FAMILIES = [
    *[("policy=r2d2", "env=cartpole", f"memory={m}") for m in MEMORIES],
    ("policy=r2d2", "env=cartpole", "policy.reward_scale=0.1", "policy.reward_clip=0.05"),
    *[(f"policy={p}", "env=cartpole") for p in ("r2d2_qr", "dqn")],
    ("policy=r2d2_c51", "env=cartpole", "policy.dueling=false"),
    ("policy=rainbow", "env=cartpole", "env.frame_stack=3"),
    ("policy=iqn", "env=cartpole", "policy.noisy=0.5"),
    ("policy=ppo", "env=pendulum", "policy.normalize_obs=true", "env.frame_stack=4"),
    ("policy=impala", "env=cartpole", "memory=lstm", "policy.prev_inputs=true"),
    ("policy=pqn", "env=cartpole", "memory=gru", "policy.prev_inputs=true"),
    *[(f"policy={p}", "env=pendulum") for p in ("sac", "ddpg", "rtd3", "tqc", "crossq")],
    *[(f"policy={p}", "env=cartpole", *OFFLINE) for p in ("bc_recurrent", "cql")],
]
BOX = gym.spaces.Box(-5, 5, (3,), np.float32)
FOUR = gym.spaces.Discrete(4, start=3)
ACTIONS = gym.spaces.Box(np.array([[-2.0, -1, 0]]), np.array([[2.0, 3, 0.5]]), dtype=np.float64)
IMAGE = gym.spaces.Dict({"a": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), "b": BOX})
MASK = gym.spaces.Dict({"a": BOX, "action_mask": gym.spaces.Box(0, 1, (4,), np.int8)})
OBSERVATIONS = [
    gym.spaces.Box(-5, 5, (2, 2), np.float64),
    gym.spaces.Box(0, 255, (4,), np.uint8),
    gym.spaces.Discrete(4, start=2),
    gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
    gym.spaces.MultiBinary(5),
    gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple([gym.spaces.Discrete(3), BOX])}),
    gym.spaces.Dict({"a.b": BOX, "a": gym.spaces.Dict({"b": BOX})}),
    MASK,
]
HALF = gym.spaces.Box(np.float32([0, -np.inf]), np.float32([np.inf, 3]))
BOTH = "torso=image_and_vector"
DISCRETE = ("policy=r2d2", "env=cartpole", "policy.prev_inputs=true", *SMALL)
PPO = ("policy=ppo", "memory=lstm", "policy.prev_inputs=true", "policy.separate_value=true", *SMALL)
SPACES = [
    *[(DISCRETE, obs, FOUR) for obs in OBSERVATIONS],
    ((*DISCRETE, BOTH), IMAGE, FOUR),
    (("policy=sac", "env=pendulum", "policy.head_hidden=[8]", BOTH), IMAGE, ACTIONS),
    ((*PPO, "env=cartpole"), BOX, gym.spaces.MultiDiscrete([2, 3], start=[1, 0])),
    ((*PPO, "env=cartpole"), MASK, FOUR),
    *[((*PPO, "env=pendulum"), BOX, box) for box in (ACTIONS, HALF)],
    (("policy=rsac", "env=pendulum", *SMALL), BOX, ACTIONS),
    (("policy=iql", "env=pendulum", *OFFLINE), BOX, ACTIONS),
    (("policy=bc", "env=cartpole", *OFFLINE), MASK, FOUR),
    (("policy=dqn", "env=cartpole", "env.frame_stack=4", "torso=nature_cnn"),
     gym.spaces.Box(0, 255, (36, 36), np.uint8), FOUR),
]  # fmt: skip


def difference(words, spaces=None) -> Deviation:
    trained = untrained(*words, spaces=spaces)
    step = step_of(trained)
    return compare_random(eager(step), trained.policy, step)


@pytest.mark.parametrize("words", FAMILIES, ids=" ".join)
def test_families(words):
    found = difference(words)
    assert found.within(1e-5), found
    assert found.rows == 64


@pytest.mark.parametrize(("words", "obs", "action"), SPACES, ids=str)
def test_spaces(words, obs, action):
    found = difference(words, (obs, action, 1))
    assert found.within(1e-5), found


def test_a_difference_is_found_and_a_tie_is_none():
    """The comparison can fail: by a state that is not reset, a shifted action, NaN."""
    trained = untrained(*DISCRETE, spaces=(BOX, FOUR, 1))
    step = step_of(trained)
    run = eager(step)

    def compare(change):
        return compare_random(change, trained.policy, step)

    found = compare(lambda x: run({**x, "first": np.zeros_like(x["first"])}))
    assert found.outputs > 1e-3
    assert not found.within(1e-3)
    found = compare(lambda x: (out := run(x)) | {"action": 3 + (out["action"] - 2) % 4})
    assert (found.unlike, found.outputs < 1e-5) == (64, True)
    nan = np.float32(np.nan)
    assert not compare(lambda x: (out := run(x)) | {"q_values": out["q_values"] * nan}).within(1)
    trained.policy.load({k: torch.zeros_like(x) for k, x in trained.policy.weights().items()})
    found = compare(lambda x: (out := run(x)) | {"action": out["action"] + 1})
    assert (found.ties, found.unlike, found.within(1e-5)) == (64, 0, True)


def test_only_what_is_read_is_an_input():
    def inputs(*words):
        return [*step_of(untrained(*words)).inputs(1)]

    assert inputs("policy=dqn", "env=cartpole") == ["obs"]
    assert inputs("policy=dqn", "env=cartpole", "env.frame_stack=2") == ["obs", "first", "state.0"]
    past = ["obs", "first", "prev_action", "prev_reward"]
    assert inputs("policy=r2d2", "env=cartpole") == [*past, "state.0", "state.1"]
    one = ["policy.prev_inputs=false", "policy.separate_value=true"]  # not the value's state
    assert inputs("policy=ppo", "env=cartpole", "memory=gru", *one) == ["obs", "first", "state.0"]


# -- the file --------------------------------------------------------------------------------------


def test_the_file_that_the_command_line_writes(rlrun, monkeypatch, tmp_path):
    trained = untrained(*R2D2)
    monkeypatch.setattr(export, "load_trained", lambda run_dir, **given: trained)
    assert rlrun("run.dir=old", *R2D2).code == 0
    done = rlrun("export", "policy", "old", "--onnx", "out.onnx")
    assert (done.code, done.err) == (0, "")
    for fact in ("out.onnx", "obs [n, 2], first [n], prev_action [n], prev_reward [n], state.0 [n,",
                 "action [n], q_values [n, 2], next_state.0 [n, 32]"):  # fmt: skip
        assert fact in done.out

    path = tmp_path / "out.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert [(x.domain, x.version) for x in model.opset_import] == [("", OPSET)]
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    content = path.read_bytes()
    assert content == onnx_of(trained)[0], "an export is reproducible"
    assert not any(str(p).encode() in content for p in (ROOT, Path(sys.prefix), tmp_path))
    assert {x.key: x.value for x in model.metadata_props}["rlrun_interface"] == "1"
    about = json.loads(model.metadata_props[0].value)
    assert about["env"] == {
        "id": "rlrun.env:rlrun/CartPoleNoVel-v0",
        "kwargs": {"max_episode_steps": 40},
        "wrappers": [],
    }
    assert about["action_space"] == {"type": "Discrete", "n": 2, "start": 0}
    assert (about["policy"], about["weights"], about["env_steps"]) == ("r2d2", "final", 7)
    found = play(trained, step_of(trained), onnx_session(content), 1)
    assert found.within(1e-5), found
    assert found.rows >= 10 * 9

    again = rlrun("export", "policy", "old", "--onnx", "out.onnx")
    assert (again.code, again.out) == (2, "")
    assert "--onnx = out.onnx: " in again.err
    assert path.read_bytes() == content


def test_bounds_of_actions_of_several_numbers_are_in_the_file():
    trained = untrained(*SAC, spaces=(BOX, ACTIONS, 1))
    about = export.describe(trained.plan.config, 7, "final", step_of(trained), {})
    bounds = {"low": [-2.0, -1.0, 0.0], "high": [2.0, 3.0, 0.5]}
    assert about["action_space"] == {"type": "Box", "shape": [1, 3], **bounds}


def test_nothing_is_written_where_the_graph_is_not_the_actor(monkeypatch, tmp_path):
    trained = untrained(*SAC)
    step = step_of(trained)
    monkeypatch.setattr(export, "load_trained", lambda run_dir, **given: trained)
    monkeypatch.setattr(export, "onnx_of", lambda trained, *, weights: (b"", step))
    monkeypatch.setattr(export, "description_in", lambda content: {"inputs": {}, "outputs": {}})

    def wrong(inputs):
        return {k: x + np.float32(0.01) for k, x in eager(step)(inputs).items()}

    monkeypatch.setattr(export, "onnx_session", lambda content: wrong)
    path = tmp_path / "out.onnx"
    with pytest.raises(NumericError, match=r"0\.01 in 64 rows"):
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
    with pytest.raises(ConfigError, match=r"policy\.name = r2d2: "):
        onnx_of(trained)
