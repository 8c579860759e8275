"""Environments of several agents as joint rows and as columns; PettingZoo's interface."""

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.env import known_spaces, make_env
from rlrun.errors import ConfigError, EnvError, ResourceError
from rlrun.schema import AgentsConfig
from rlrun.spaces import AgentSpace, JointSpace
from rlrun.types import Window, tree_map
from tests.buffer.make import make_replay
from tests.env import zoo_example
from tests.env.presets import assert_names, config_of, preset
from tests.env.telling import STRANGE
from tests.env.zoo_example import Leaving
from tests.pipeline.make import copied, joined, make

JOINT = AgentsConfig("joint", False, "mean", "env")
SHARED = AgentsConfig("shared", False, "mean", "env")
NUMBERED = AgentsConfig("shared", True, "mean", "env")
ZOO = "pettingzoo:tests.env.zoo_example"


def zoo(agents=JOINT, num_envs=1, keep_info=(), limit=None, backend="auto", env_id=ZOO,
        on_worker_failure="stop", **kwargs):  # fmt: skip
    config = config_of(env_id, kwargs=kwargs, max_episode_steps=limit, backend=backend,
                       on_worker_failure=on_worker_failure)  # fmt: skip
    return make_env(config, num_envs=num_envs, keep_info=keep_info, agents=agents)


def nothing(env):
    return np.zeros((env.num_envs, *(env.action_space.shape or ())), np.int64)


def play(env, steps):
    """``steps`` rows and the observations before them."""
    obs, out = tree_map(np.array, env.reset(seed=0)), []
    for _ in range(steps):
        step = env.step(nothing(env))
        flags = (step.reward, step.terminated, step.truncated, step.first)
        out.append((obs, *(np.array(x) for x in flags)))
        obs = tree_map(np.array, step.obs)
    return out


# -- joint rows ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("agents", [JOINT, SHARED])
def test_environments_in_processes_give_the_same_rows(agents):
    given = {"num_envs": 2, "agents": agents, "lives": (2, 3)}
    one, two = (play(zoo(backend=b, **given), 5) for b in ("auto", "async"))
    for a, b in zip(one, two, strict=True):
        tree_map(np.testing.assert_array_equal, a, b)


def test_a_restarted_worker_opens_an_episode_of_all_its_agents():
    env = zoo(num_envs=2, agents=SHARED, backend="async", on_worker_failure="restart")
    env.reset(seed=0)
    env.step(np.zeros(4, int))
    env._source.joint.processes[1].kill()  # private: there is no public way to end one
    step = env.step(np.zeros(4, int))
    assert step.restarted.tolist() == [False, False, True, True]
    assert step.first[2:].all()
    assert not (step.terminated | step.truncated)[2:].any()
    assert not step.reward[2:].any()
    assert env.step(np.zeros(4, int)).restarted is None
    env.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"actions": [3, spaces.Box(0, 1, (2,), np.float32)]}, r"Discrete\(3\).*Box\("),
        ({"wrong": 1}, "env.kwargs"),
        ({"env_id": "pettingzoo:pettingzooo.sisl.pursuit_v4"}, "'pettingzooo'"),
        ({"env_id": "pettingzoo:nowhere_at_all"}, "'nowhere_at_all'"),
        ({"env_id": "pettingzoo:tests.env.nothing_v0"}, r"env\.id = .*nothing_v0"),
        ({"env_id": "pettingzoo:tests.env.presets"}, "parallel_env"),
        ({"env_id": "pettingzoo:"}, r"env\.id = pettingzoo:: "),
        ({"env_id": "pettingzoo:.foo"}, r"env\.id = pettingzoo:\.foo: "),
        ({"backend": "vector"}, "env.backend = vector: "),
        ({"agents": SHARED, "actions": [2, 5]}, r"\[2 5\].*agents=joint"),
        (
            {"agents": SHARED, "actions": [spaces.MultiDiscrete([2, n]) for n in (3, 4)]},
            r"\[\[2 3\]",
        ),
    ],
)
def test_what_cannot_be_made(given, words):
    with pytest.raises((ConfigError, ResourceError), match=words):
        zoo(**given)


def test_a_team_that_is_defined_again_has_its_new_spaces(monkeypatch):
    config = config_of(ZOO)
    assert known_spaces(config, JOINT)[0].num_agents == 2
    monkeypatch.setattr(zoo_example, "parallel_env", lambda: Leaving(lives=(2, 4, 6)))
    assert known_spaces(config, JOINT)[0].num_agents == 3
    make_env(config, num_envs=1, agents=JOINT).close()


def test_the_extra_of_a_family_is_named(monkeypatch):
    for name in ("pygame", "Box2D"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ResourceError, match=r"pip install 'pettingzoo\[sisl\]'"):
        zoo(env_id="pettingzoo:pettingzoo.sisl.multiwalker_v9")


class Breaking(Leaving):
    """Two agents; ``change`` changes the results of a step, ``late`` those of a reset."""

    change: Any = None
    late = short = False

    def __init__(self):
        super().__init__(lives=(5, 5))

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        self.agents = self.agents[:1] if self.late else self.agents
        return ({a: x[:2] for a, x in obs.items()} if self.short else obs), infos

    def step(self, actions):
        out = super().step(actions)
        if Breaking.change is not None:
            Breaking.change(out)
            self.agents = [a for a in self.agents if out[3].get(a) is not True]
        return out


def parallel_env():
    return Breaking()


def broken(agents=SHARED):
    """The error of a reset and a step of ``Breaking``."""
    env = zoo(agents, env_id=f"pettingzoo:{__name__}")
    with pytest.raises(EnvError) as caught:
        play(env, 1)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (0, None, "observation"),
        (0, np.zeros(2, np.float32), "observation (2,)"),
        (1, None, "reward"),
        (1, 1e39, "reward 1e+39 finite"),
        (1, "1", "reward '1'"),
        (2, "no", "terminated 'no'"),
        (3, 2, "truncated 2"),
    ],
)
def test_what_a_living_agent_lacks_or_gets_wrong(column, value, words, monkeypatch):
    def change(out):
        out[column].pop("agent_1")
        if value is not None:
            out[column]["agent_1"] = value

    monkeypatch.setattr(Breaking, "change", change)
    assert_names(broken(), f"environment 0 at step 1: agent agent_1: {words}")


def test_what_a_step_or_a_reset_gets_wrong(monkeypatch):
    monkeypatch.setattr(
        Breaking, "change", lambda out: (out[0].pop("agent_1"), out[3].update(agent_1=True))
    )
    assert_names(broken(), "agent_1: observation")  # its value counts
    monkeypatch.setattr(Breaking, "change", lambda out: out.__setitem__(4, None))
    assert_names(broken(), "infos NoneType dict")
    monkeypatch.setattr(Breaking, "change", lambda out: out.pop())
    assert_names(broken(), "step() (observations,")
    monkeypatch.setattr(Breaking, "short", True)
    assert "shape" in broken(JOINT)
    monkeypatch.setattr(Breaking, "short", False)
    monkeypatch.setattr(Breaking, "late", True)
    assert "alive" in broken()


# -- columns ---------------------------------------------------------------------------------------


def test_columns_of_agents_that_leave():
    env = zoo(SHARED, lives=(1, 3), num_envs=2)
    assert (env.num_envs, env.action_space) == (4, spaces.Discrete(3))
    of = [np.stack(x) for x in zip(*play(env, 7), strict=True)]
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


def test_numbers_of_agents_are_part_of_their_observations():
    env = zoo(NUMBERED, num_envs=2, lives=(3, 3), keep_info=("t",))
    assert isinstance(env.obs_space, AgentSpace)
    obs = env.reset(seed=0)
    assert obs["agent"].tolist() == [[1, 0], [0, 1]] * 2
    assert obs["observation"][:, 0].tolist() == [0, 1, 0, 1]
    assert env.step(np.zeros(4, np.int64)).info["t"].tolist() == [1, 1, 1, 1]


def test_actions_reach_their_agents(monkeypatch):
    taken, step = [], Leaving.step
    monkeypatch.setattr(Leaving, "step", lambda self, a: (taken.append(dict(a)), step(self, a))[1])
    env = zoo(SHARED, lives=(5, 5))
    env.reset(seed=0)
    env.step(np.array([2, 1]))
    assert taken == [{"agent_0": 2, "agent_1": 1}]


@pytest.mark.parametrize("agents", ["shared", "separate", "joint"])
def test_infos_of_agents(agents, monkeypatch):
    """With names that rlrun uses itself; agents are told apart by ``own``."""

    def change(out):
        for i, name in enumerate(out[4]):
            out[4][name] = dict.fromkeys(("agent_reward", "alive", "state", *STRANGE), 100.0)
            out[4][name] |= {"own": i + 1, "event": "text", "path": np.zeros(i + 2)}

    monkeypatch.setattr(Breaking, "change", change)
    layout, here = AgentsConfig(agents, False, "mean", "env"), f"pettingzoo:{__name__}"
    env = zoo(layout, 2, ("own", "agent_reward"), env_id=here)
    env.reset(seed=0)
    joint, row = agents == "joint", env.step(nothing(env))
    assert row.reward.tolist() == ([51.0] * 2 if joint else [1.0, 101.0] * 2)
    assert row.info["own"].tolist() == ([1.5] * 2 if joint else [1.0, 2.0] * 2)
    assert row.info["agent_reward"].tolist() == [100.0] * env.num_envs
    assert not row.terminated.any()
    env = zoo(layout, 1, ("event",), env_id=here)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"at step 1: agent agent_0: info\['event'\] .*'text'"):
        env.step(nothing(env))
    monkeypatch.setattr(Breaking, "change", lambda out: out[4].update(agent_0=3))
    with pytest.raises(EnvError, match=r"at step 2: agent agent_0: info .*3; .*dict"):
        env.step(nothing(env))


def collected(chunks, n_sample, **kwargs):
    """A collector over two environments of leaving agents, and its rows."""
    config = config_of(ZOO, kwargs=kwargs)
    collector = make(env_config=config, agents=SHARED, num_envs=2, n_sample=n_sample)
    return collector, joined([copied(collector.collect()) for _ in range(chunks)])


@pytest.mark.parametrize(("window", "table"), [(Window(0, 1, 1), None), (Window(2, 3, 2), 512)])
def test_windows_of_columns_learn_every_step_once(window, table):
    """A window contains its agent's rows, whichever other agents have left."""
    _, rows = collected(6, 20, lives=(2, 5, 1))
    replay = make_replay(rows, rows=len(rows.reward) + 8, window=window, capacity=table)
    segment = replay.get(replay.add(rows), 0).segment
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
    env = make_env(preset("twostep"), num_envs=3, agents=SHARED, keep_info=("won",))
    assert (env.num_envs, env.obs_space) == (6, spaces.Discrete(3))
    env.reset(seed=0)
    env.step(np.ones(6, np.int64))
    step = env.step(np.array([1, 1, 0, 1, 0, 0]))
    assert step.reward.tolist() == [8, 8, 1, 1, 0, 0]
    assert step.info["won"].tolist() == [0] * 6, "each agent has the team's"
    assert step.terminated.all()
