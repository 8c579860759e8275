"""Several agents: policies of their own are the policies one by one; whole runs of teams."""

import copy
import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.cli.main import main
from rlrun.config import check
from rlrun.errors import ConfigError
from rlrun.spaces import AgentSpace
from rlrun.types import Spec, tree_leaves, tree_map
from tests.compose import config
from tests.pipeline.make import shown
from tests.policy import make
from tests.policy.make import DISCRETE, OBS, build

N = 3
TEAM = Spec(AgentSpace(OBS, N), DISCRETE.action)
SEPARATE = ("agents=separate", "env=relay")
ROLLOUTS = {
    "ppo": {"memory": "gru", "normalize_reward": True, "batch_size": 8},
    "impala": {"memory": "lstm"},
    "pqn": {"memory": "gru", "batch_size": 8},
}


def of(name, **given):
    return build(name, spec=TEAM, words=SEPARATE, **ROLLOUTS.get(name, {}), **given)


def sample_of(name, policy):
    """Windows of agents 0, 1, 2, 0, ..., or a rollout of their columns."""
    if name in ROLLOUTS:
        sample = make.rollout(policy, TEAM, envs=2 * N)
    else:
        sample = make.windows(policy, TEAM)
    s = sample.segment
    number = torch.eye(N)[torch.arange(s.reward.shape[1]) % N].expand(len(s.first), -1, -1)
    return replace(sample, segment=replace(s, obs=s.obs | {"agent": number}))


def part_of(sample, agent):
    """What agent ``agent`` would learn from if it were alone."""
    count = len(sample.weight)
    part = make.window(sample, [b for b in range(count) if b % N == agent])
    return replace(part, segment=replace(part.segment, obs=part.segment.obs["observation"]))


def policy_of(team, name, agent):
    """A copy of the policy of ``agent``."""
    own = build(name, **ROLLOUTS.get(name, {}))
    own.load_state_dict(copy.deepcopy(team.state_dict()[str(agent)]))
    return own


@pytest.mark.parametrize("name", ["dqn", "r2d2", *ROLLOUTS])
def test_an_update_is_the_updates_of_each_agent_alone(name):
    team = of(name)
    sample, alone = sample_of(name, team), []
    for i in range(N):
        own = policy_of(team, name, i)
        alone.append((own, own.update(part_of(sample, i))))
    before = None if name in ROLLOUTS else team.priority(sample)
    update = team.update(make.poisoned(sample, flags=name not in ROLLOUTS))
    if before is not None:
        torch.testing.assert_close(before, update.priority)
    for i, (own, result) in enumerate(alone):
        mine = {k[2:]: w for k, w in team.weights().items() if k.startswith(f"{i}.")}
        assert all(torch.equal(w, mine[k]) for k, w in own.weights().items())
        if result.priority is not None:
            assert torch.equal(update.priority[i::N], result.priority)
    assert update.steps == max(result.steps for _, result in alone)
    want = torch.stack([result.metrics["train/loss"] for _, result in alone]).mean()
    torch.testing.assert_close(update.metrics["train/loss"], want)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_an_agent_without_rows_learns_nothing(name):
    team = of(name)
    sample = sample_of(name, team)
    if name == "dqn":  # windows of agents 0 and 2 alone
        sample = make.window(sample, [b for b in range(len(sample.weight)) if b % N != 1])
    else:  # all its rows are waiting
        valid = sample.segment.valid.clone()
        valid[:, 1::N] = False
        sample = replace(sample, segment=replace(sample.segment, valid=valid))
    before = {k: w.clone() for k, w in team.weights().items()}
    alone = [policy_of(team, name, i).update(part_of(sample, i)) for i in (0, 2)]
    update = team.update(sample)
    assert all(torch.isfinite(x) for x in update.metrics.values())
    if name == "ppo":  # metrics are those of agents that learned
        want = sum(x.metrics["train/loss"] for x in alone) / 2
        torch.testing.assert_close(update.metrics["train/loss"], want)
    moved = {k[0] for k, w in team.weights().items() if not torch.equal(w, before[k])}
    assert moved == {"0", "2"}
    if name == "dqn":
        assert update.priority.shape == sample.weight.shape


def test_agents_start_apart_and_act_by_themselves():
    team, g = of("r2d2"), np.random.default_rng(0)
    weights, envs = team.weights(), 4
    assert not torch.equal(*(weights[f"{i}.torso.layers.0.weight"] for i in (0, 1)))
    actor = team.actor(N * envs)
    obs = make.random_tree(TEAM.obs, (N * envs,), g)
    first = np.zeros(N * envs, bool)
    row = (first, g.integers(5, size=N * envs), g.normal(size=N * envs).astype(np.float32))
    state = tree_map(lambda x: g.normal(size=x.shape).astype(x.dtype), actor.initial_state())
    together = actor.act(obs, *row, state, explore=None)
    for i in range(N):
        own = build("r2d2")
        own.load({k[2:]: w for k, w in weights.items() if k.startswith(f"{i}.")})
        mine = tree_map(lambda x, i=i: x[i::N], (*row, state))
        act = own.actor(envs).act(obs["observation"][i::N], *mine, explore=None)
        np.testing.assert_array_equal(together.action[i::N], act.action)
        for x, y in zip(tree_leaves(together.state), tree_leaves(act.state), strict=True):
            np.testing.assert_array_equal(x[i::N], y)
    eps = np.tile([1.0, 0.0, 0.0], envs)
    mixed = actor.act(obs, *row, state, explore=eps).action
    np.testing.assert_array_equal(mixed.reshape(-1, N)[:, 1:],
                                  together.action.reshape(-1, N)[:, 1:])  # fmt: skip


def test_stacked_frames_keep_the_agent_number():
    words = (*SEPARATE, "env.frame_stack=4")
    team = build("dqn", spec=TEAM, words=words)
    sample = make.windows(team, Spec(gym.spaces.Box(-1, 1, (4, 3)), DISCRETE.action))
    s = sample.segment
    number = torch.eye(N)[torch.full((s.reward.shape[1],), 2)].unsqueeze(1).expand(-1, 4, -1)
    obs = {"agent": number.expand(len(s.first), -1, -1, -1), "observation": s.obs}
    before = {k: w.clone() for k, w in team.weights().items()}
    team.update(make.poisoned(replace(sample, segment=replace(s, obs=obs))))
    moved = {k[0] for k, w in team.weights().items() if not torch.equal(w, before[k])}
    assert moved == {"2"}


# -- whole runs ------------------------------------------------------------------------------------

SMOKE = ("debug=smoke", "-q", "logger.tensorboard=false", "run.stop_return=null",
         "run.total_steps=400", "run.eval_every=100", "torso.hidden=[8]",
         "learner.batch_size=8", "learner.threads=1")  # fmt: skip
LEAVING = ("env=pettingzoo", "env.id=pettingzoo:tests.env.zoo_example",
           "env.kwargs={lives: [1, 3, 2]}", "--trust", "tests")  # fmt: skip


def test_rows_of_agents_that_leave_survive_export_and_loading(tmp_path):
    words = ("policy=r2d2", "memory.hidden=8", *LEAVING, *SMOKE)
    assert main([*words, f"run.dir={tmp_path / 'run'}"]) == 0
    lengths = {x for _, x in shown(tmp_path / "run", "eval/length_mean")}
    assert lengths == {2.0}, "the mean of 1, 3 and 2, once for every episode"
    trust = ["--trust", "tests"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "data"), *trust]) == 0
    more = [*words, f"buffer.load={tmp_path / 'data'}", f"run.dir={tmp_path / 'more'}"]
    assert main(more) == 0
    record = json.loads((tmp_path / "more/run.json").read_text())
    assert record["updates"] > 0


def test_rollouts_have_room_for_agents_that_wait(tmp_path):
    words = ("policy=ppo", "agents=shared", *LEAVING[:2], "collector.n_sample=700",
             "policy.epochs=2", "env.kwargs={lives: [1, 1, 1, 1, 1, 1, 40]}")  # fmt: skip
    with pytest.raises(ConfigError, match=r"buffer\.capacity=9828 or lower"):
        check(config("debug=smoke", *words))
    run_dir = tmp_path / "run"
    line = [*words, *SMOKE[:4], "run.total_steps=700", "buffer.capacity=9828", *LEAVING[3:]]
    assert main([*line, f"run.dir={run_dir}"]) == 0
    assert json.loads((run_dir / "run.json").read_text())["env_steps"] >= 700
