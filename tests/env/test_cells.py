"""Battleship and MineSweeper: boards, rewards, masks."""

import numpy as np
import pytest

from rlrun.env import make_env
from rlrun.errors import EnvError
from tests.env.presets import preset


def content(env):
    """The hidden boards [E, cells]. Private: no observation shows a whole one."""
    source = env._source
    return (source.envs[0].unwrapped._vector if hasattr(source, "envs") else source.env).content


def test_ships_lie_in_lines_and_not_on_each_other():
    env = make_env(preset("battleship", kwargs={"size": 4, "ships": [3, 2]}), num_envs=300)
    env.reset(seed=0)
    boards = content(env).reshape(-1, 4, 4)
    assert (boards.sum(axis=(1, 2)) == 5).all()
    assert boards.max() == 1
    window = np.lib.stride_tricks.sliding_window_view
    across = window(boards, 3, axis=2).all(axis=-1).any(axis=(1, 2))
    down = window(boards, 3, axis=1).all(axis=-1).any(axis=(1, 2))
    assert (across | down).all()
    assert 0.3 < across.mean() < 0.7


def test_mines_are_counted():
    env = make_env(preset("minesweeper", kwargs={"size": 4, "mines": 3}), num_envs=50)
    env.reset(seed=0)
    for board in content(env).reshape(-1, 4, 4):
        mines = {tuple(place) for place in np.argwhere(board == 9)}
        assert len(mines) == 3
        for (i, j), shown in np.ndenumerate(board):
            near = sum(abs(i - a) <= 1 and abs(j - b) <= 1 for a, b in mines)
            assert shown == (9 if (i, j) in mines else near)


@pytest.mark.parametrize("show", ["board", "last"])
def test_a_game_of_battleship(show):
    env = make_env(preset("battleship", kwargs={"show": show, "size": 2, "ships": [2]}), num_envs=1)
    obs = env.reset(seed=0)
    assert obs["board"].tolist() == [[0] * 4]
    assert obs["action_mask"].tolist() == [[1] * 4]
    ship = content(env)[0].copy()
    water, hits = np.flatnonzero(ship == 0), np.flatnonzero(ship == 1)
    s = env.step(water[:1])
    assert s.reward.tolist() == [-0.5]
    assert s.obs["board"][0, water[0]] == 1
    assert s.obs["action_mask"].sum() == 3
    s = env.step(water[:1])  # again: no effect
    np.testing.assert_allclose(s.reward, [-0.1])
    assert s.obs["board"].sum() == (1 if show == "board" else 0)
    s = env.step(hits[:1])
    assert s.reward.tolist() == [0.5]
    assert s.obs["board"].sum() == (3 if show == "board" else 2)
    s = env.step(hits[1:])
    assert (s.terminated.tolist(), s.truncated.tolist()) == ([True], [False])
    s = env.step(np.zeros(1, int))
    assert s.first.all()
    assert s.obs["action_mask"].tolist() == [[1] * 4]


def test_ends_of_minesweeper():
    env = make_env(preset("minesweeper", kwargs={"size": 2, "mines": 1}), num_envs=2)
    env.reset(seed=0)
    mine = np.flatnonzero(content(env)[0] == 9)[0]
    safe = [np.flatnonzero(content(env)[1] != 9)[k] for k in range(3)]
    s = env.step(np.array([mine, safe[0]]))
    assert (s.reward[0], s.terminated.tolist()) == (0, [True, False])
    assert s.reward[1] == np.float32(1 / 3)
    env.step(np.array([mine, safe[1]]))  # ignored in column 0, whose board is new
    s = env.step(np.array([mine, safe[2]]))
    assert s.terminated[1]


def test_the_limit_truncates_who_repeats_himself():
    env = make_env(preset("battleship", kwargs={"mask": False}), num_envs=1)
    assert set(env.reset(seed=0)) == {"board"}
    steps = [env.step(np.zeros(1, int)) for _ in range(16)]
    assert [bool(s.truncated[0]) for s in steps] == [False] * 15 + [True]


@pytest.mark.parametrize("backend", ["vector", "sync"])
def test_strict_boards_refuse_a_cell_chosen_before(backend):
    env = make_env(preset("minesweeper", kwargs={"strict": True}, backend=backend), num_envs=1)
    env.reset(seed=0)
    cell = np.flatnonzero(content(env)[0] != 9)[:1]
    env.step(cell)
    with pytest.raises(EnvError, match="action"):
        env.step(cell)
