"""Environments of several agents as joint rows and as columns; PettingZoo's interface."""

from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.env import make_env, probe_agents
from rlrun.env.agents.columns import AgentColumns
from rlrun.errors import ConfigError, EnvError, ResourceError
from rlrun.joint import AgentSpace, JointSpace, agent_action, joint_actions
from rlrun.schema import AgentsConfig
from rlrun.types import Window, tree_map
from tests.buffer.factory import make_replay
from tests.env.presets import config_of, preset
from tests.pipeline.test_collector import copied, joined, make

JOINT = AgentsConfig("joint", False, "mean", "env")
SHARED = AgentsConfig("shared", False, "mean", "env")
NUMBERED = AgentsConfig("shared", True, "mean", "env")
ZOO = "pettingzoo:tests.env.zoo_example"


def zoo(agents=JOINT, num_envs=1, keep_info=(), limit=None, backend="auto", **kwargs):
    config = config_of(ZOO, kwargs=kwargs, max_episode_steps=limit, backend=backend)
    return make_env(config, num_envs=num_envs, keep_info=keep_info, agents=agents)


def play(env, steps):
    """``steps`` rows and the observations before them."""
    obs, out = tree_map(np.array, env.reset(seed=0)), []
    zero = np.zeros((env.num_envs, *(env.action_space.shape or ())), env.action_space.dtype)
    for _ in range(steps):
        step = env.step(zero)
        flags = (step.reward, step.terminated, step.truncated, step.first)
        out.append((obs, *(np.array(x) for x in flags)))
        obs = tree_map(np.array, step.obs)
    return out


# -- joint rows ----------------------------------------------------------------------------------


def test_joint_rows_of_agents_that_leave():
    env = zoo(lives=(2, 4))
    assert isinstance(env.obs_space, JointSpace)
    assert env.action_space == spaces.MultiDiscrete([3, 3])
    rows = play(env, 6)
    alive = [row[0]["alive"][0].tolist() for row in rows]
    # t = 0, 1 both, 2, 3 the second, the end row nobody (terminated), then the next episode
    assert alive == [[1, 1], [1, 1], [0, 1], [0, 1], [0, 0], [1, 1]]
    assert [row[0]["agents"][0, 0].tolist() for row in rows[:4]] == [
        [0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 0],
    ]  # fmt: skip
    assert [float(row[1][0]) for row in rows[:4]] == [51.0, 52.0, 51.5, 52.0]
    assert [bool(row[2][0]) for row in rows] == [False, False, False, True, False, False]
    assert not any(row[3].any() for row in rows)
    assert rows[4][4][0], "the row behind the end row opens an episode"


def test_the_team_reward_is_the_mean_or_the_sum():
    team = AgentsConfig("joint", False, "sum", "env")
    assert play(zoo(team, lives=(3, 3, 3)), 1)[0][1][0] == 1 + 101 + 201
    assert play(zoo(lives=(3, 3, 3)), 1)[0][1][0] == 101


def test_a_team_is_truncated_when_one_of_the_last_was_and_its_value_counts():
    rows = play(zoo(lives=(2, 2), ends=("terminated", "truncated")), 3)
    assert (rows[1][2][0], rows[1][3][0]) == (False, True)
    assert rows[2][0]["alive"][0].tolist() == [0, 1]
    rows = play(zoo(lives=(9, 9), limit=2), 4)
    assert [bool(r[3][0]) for r in rows] == [False, True, False, False]
    assert rows[2][0]["alive"][0].tolist() == [1, 1]


def test_vectors_are_filled_up_and_actions_may_differ():
    env = zoo(lives=(2, 2), sizes=[2, 4], actions=[2, 5])
    assert env.obs_space.agent.shape == (4,)
    assert env.action_space == spaces.MultiDiscrete([2, 5])
    assert env.reset(seed=0)["agents"][0].tolist() == [[0, 0, 0, 0], [1, 0, 0, 7]]


def test_the_global_state_is_the_environments_or_all_observations():
    found = play(zoo(lives=(2, 3)), 4)
    assert [r[0]["state"][0].tolist() for r in found[:3]] == [
        [0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 0, 1], [0, 0, 2, 1, 0, 2],
    ]  # fmt: skip
    own = play(zoo(lives=(2, 3), state=True), 3)
    assert [r[0]["state"][0, 1] for r in own] == [0, 1, 2]
    assert own[0][0]["state"].dtype == np.float32
    both = AgentsConfig("joint", False, "mean", "concat")
    assert zoo(both, state=True).obs_space["state"].shape == (6,)


def test_two_environments_and_processes_give_the_same_rows():
    kwargs = {"lives": (2, 3)}
    one, two = (
        play(zoo(num_envs=2, **kwargs), 5),
        play(zoo(num_envs=2, backend="async", **kwargs), 5),
    )
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a[1:], b[1:], strict=True):
            np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(a[0]["agents"], b[0]["agents"])


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"actions": [3, spaces.Box(0, 1, (2,), np.float32)]}, "action spaces are incompatible"),
        ({"wrong": 1}, "env.kwargs"),
    ],
)
def test_what_cannot_be_made(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        zoo(**kwargs)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("pettingzoo:pettingzooo.sisl.pursuit_v4", "no package 'pettingzooo'.*working directory"),
        ("pettingzoo:nowhere_at_all", "no package 'nowhere_at_all'.*working directory"),
        ("pettingzoo:tests.env.nothing_v0", "has no module"),
        ("pettingzoo:tests.env.presets", "has no parallel_env"),
        ("pettingzoo:", "names no module"),
    ],
)
def test_missing_environments(env_id, words):
    with pytest.raises((ConfigError, ResourceError), match=words):
        make_env(config_of(env_id), num_envs=1, agents=JOINT)


def test_backends_that_do_not_fit():
    with pytest.raises(ConfigError, match="no native vector"):
        zoo(backend="vector")
    with pytest.raises(ConfigError, match=r"env.backend = async.*agents=joint"):
        probe_agents(config_of(ZOO, backend="async"), SHARED)


def test_an_observation_that_is_not_of_its_space_is_the_environments_fault():
    env = zoo(lives=(2, 2))
    env._raw.envs[0].unwrapped.parallel_env.sizes = [2, 2]
    with pytest.raises(EnvError, match="shape"):
        env.reset(seed=0)


def broken(change):
    """The error of a step whose results ``change`` has changed."""
    env = zoo(SHARED, lives=(5, 5))
    env.reset(seed=0)
    raw = env._raw.joint.envs[0].unwrapped.parallel_env
    step = raw.step

    def changed(actions):
        out = step(actions)
        change(out)
        return out

    raw.step = changed
    with pytest.raises(EnvError) as caught:
        env.step(np.zeros(2, int))
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (0, None, "agent_1: it is in the episode and has no observation"),
        (0, np.zeros(2, np.float32), "agent_1: observation has shape (2,)"),
        (1, None, "agent_1: it is in the episode and has no reward"),
        (1, 1e39, "agent_1: reward is 1e+39; allowed is a finite number that float32 holds"),
        (1, "1", "agent_1: reward is '1'"),
        (2, "no", "agent_1: terminated is 'no'"),
        (3, 2, "agent_1: truncated is 2"),
    ],
)
def test_what_a_living_agent_lacks_or_gets_wrong(column, value, text):
    def change(out):
        out[column].pop("agent_1")
        if value is not None:
            out[column]["agent_1"] = value

    assert f"environment 0 at step 1: agent {text}" in broken(change)


def test_infos_and_results_are_dicts():
    assert "infos are a NoneType; allowed is a dict" in broken(lambda out: out.__setitem__(4, None))
    assert "step() must return (observations," in broken(lambda out: out.pop())


# -- spaces --------------------------------------------------------------------------------------


def test_joint_and_single_actions_are_inverse():
    several = spaces.MultiDiscrete([2, 3, 2])
    for space in (spaces.Discrete(4), spaces.Box(-1, 2, (3,), np.float32), several):
        assert agent_action(joint_actions([space] * 3)) == space
    assert agent_action(spaces.MultiDiscrete([2, 3])) is None
    assert joint_actions([spaces.Discrete(2), spaces.Discrete(2, start=1)]) is None
    assert joint_actions([spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,))]) is None
    assert joint_actions([several, spaces.MultiDiscrete([2, 3])]) is None
    assert joint_actions([several, spaces.MultiDiscrete([2, 3, 2], start=[0, 1, 0])]) is None
    assert agent_action(joint_actions([several, spaces.MultiDiscrete([2, 3, 3])])) is None


def test_columns_need_agents_that_act_alike():
    with pytest.raises(ConfigError, match="differ in their actions"):
        zoo(SHARED, actions=[2, 5])
    several = [spaces.MultiDiscrete([2, n]) for n in (3, 4)]
    with pytest.raises(ConfigError, match="of one action space; choose another environment"):
        zoo(SHARED, actions=several)


# -- columns -------------------------------------------------------------------------------------


def test_columns_of_agents_that_leave():
    env = zoo(SHARED, lives=(1, 3), num_envs=2)
    assert (env.num_envs, env.action_space) == (4, spaces.Discrete(3))
    rows = play(env, 7)
    of = [np.stack(x) for x in zip(*rows, strict=True)]
    np.testing.assert_array_equal(of[1][:, 0], of[1][:, 2], "both environments do the same")
    reward, terminated, truncated, first = (x[:, :2] for x in of[1:])
    # the first agent: its step, its end row, two rows of waiting, the next episode
    assert terminated[:, 0].tolist() == [True, False, False, False, True, False, False]
    assert truncated[:, 0].tolist() == [False, True, True, False, False, True, True]
    assert first[:, 0].tolist() == [False, True, True, True, False, True, True]
    assert reward[:, 0].tolist() == [1, 0, 0, 0, 11, 0, 0]
    # the second one: three steps, its end row
    assert terminated[:, 1].tolist() == [False, False, True, False, False, False, True]
    assert not truncated[:, 1].any()
    assert first[:, 1].tolist() == [False, False, False, True, False, False, False]
    assert reward[:, 1].tolist() == [101, 102, 103, 0, 111, 112, 113]
    np.testing.assert_array_equal(of[0][1, 0], [0, 0, 1], "the end row shows the last observation")


def test_numbers_and_info():
    env = zoo(NUMBERED, num_envs=2, lives=(3, 3), keep_info=("t",))
    assert isinstance(env.obs_space, AgentSpace)
    obs = env.reset(seed=0)
    assert obs["agent"].tolist() == [[1, 0], [0, 1]] * 2
    assert obs["observation"][:, 0].tolist() == [0, 1, 0, 1]
    assert env.step(np.zeros(4, np.int64)).info["t"].tolist() == [1, 1, 1, 1]


def test_actions_reach_their_agents():
    env = zoo(SHARED, lives=(5, 5))
    env.reset(seed=0)
    env.step(np.array([2, 1]))
    assert env._raw.joint.envs[0].unwrapped.parallel_env.taken == [{"agent_0": 2, "agent_1": 1}]


def test_agents_that_come_late_are_refused():
    joint = zoo(lives=(2, 2))._raw
    columns = AgentColumns(joint, SHARED, "some id")
    reset = joint.envs[0].unwrapped.parallel_env.reset

    def late(seed=None, options=None):
        found = reset(seed=seed, options=options)
        joint.envs[0].unwrapped.parallel_env.agents = ["agent_0"]
        return found

    joint.envs[0].unwrapped.parallel_env.reset = late
    with pytest.raises(EnvError, match="not all agents are alive"):
        columns.reset(seed=0)


def collected(chunks, n_sample, **kwargs):
    """A collector over two environments of leaving agents, and its rows."""
    config = config_of(ZOO, kwargs=kwargs)
    collector = make(env_config=config, agents=SHARED, num_envs=2, n_sample=n_sample)
    return collector, joined([copied(collector.collect()) for _ in range(chunks)])


def test_the_collector_counts_steps_and_episodes_of_agents_only():
    collector, rows = collected(5, 16, lives=(1, 4))
    assert collector.counters.env_steps == int(rows.valid.sum())
    ends = (rows.terminated | rows.truncated) & rows.valid
    assert collector.counters.episodes == int(ends.sum())
    metrics = collector.metrics()
    lengths = [1] * int(ends[:, ::2].sum()) + [4] * int(ends[:, 1::2].sum())
    assert metrics["collect/length_mean"] == pytest.approx(np.mean(lengths))
    # a row that waits opens nothing, is no step, and pays nothing
    waits = ~rows.valid & rows.first[:-1]
    assert waits.sum() > 0
    assert (rows.reward[waits] == 0).all()
    assert not rows.terminated[waits].any()


@pytest.mark.parametrize(
    ("window", "table"),
    [
        (Window(0, 1, 1), None),
        (Window(0, 1, 3), None),
        (Window(0, 1, 3), 512),
        (Window(2, 3, 2), 512),
    ],
)
def test_windows_of_columns_learn_every_step_once(window, table):
    """A window contains its agent's rows, whichever other agents have left."""
    _, rows = collected(6, 20, lives=(2, 5, 1))
    replay = make_replay(rows, rows=len(rows.reward) + 8, window=window, capacity=table)
    segment = replay.get(replay.add(rows), 0).segment
    assert replay.check() is None
    learned = slice(window.burnin, window.burnin + window.learned)
    found = Counter(segment.reward[learned][segment.valid[learned]].tolist())
    held = Counter(rows.reward[rows.valid].tolist())
    closed, ended = Counter(), torch.zeros(rows.valid.shape[1], dtype=torch.bool)
    for t in reversed(range(len(rows.valid))):
        ended |= ~rows.valid[t]
        closed.update(rows.reward[t, ended & rows.valid[t]].tolist())
    assert closed <= found <= held
    obs, own = segment.obs[:-1], segment.valid
    spelled = 100 * obs[..., 0] + 10 * obs[..., 1] + obs[..., 2] + 1
    assert torch.equal(spelled[own], segment.reward[own])
    ends = (segment.terminated & own)[learned].sum()
    assert ends == ((rows.terminated & rows.valid).sum()), "every terminal step reaches the loss"


def test_native_teams_as_columns_share_reward_and_end():
    env = make_env(preset("twostep"), num_envs=3, agents=SHARED)
    assert (env.num_envs, env.obs_space) == (6, spaces.Discrete(3))
    env.reset(seed=0)
    env.step(np.ones(6, np.int64))
    step = env.step(np.array([1, 1, 0, 1, 0, 0]))
    assert step.reward.tolist() == [8, 8, 1, 1, 0, 0]
    assert step.terminated.all()
