"""MinAtar: rows of the package, column by column, and what the arguments change.

Without the package rows are compared with the hash of those that agreed with version 1.0.15.
"""

import hashlib

import numpy as np
import pytest
from gymnasium.utils import seeding

from rlrun.env.diagnostic import minatar
from rlrun.env.diagnostic.minatar import DOWN, FIRE, LEFT, NONE, RIGHT, UP
from rlrun.env.diagnostic.vector import make_tasks

GAMES = {  # ours -> the package's name, env steps that are compared, hash of the rows
    "minatar:MinAtarAsterix": ("asterix", 2000, "3f542a0b2160e656"),
    "minatar:MinAtarBreakout": ("breakout", 3000, "fbe5f4240ce9d324"),
    "minatar:MinAtarFreeway": ("freeway", 3000, "4690a1da3f7856e2"),
    "minatar:MinAtarSpaceInvaders": ("space_invaders", 2000, "e4eaa83c9a5e7ac7"),
    "seaquest:MinAtarSeaquest": ("seaquest", 4000, "ca40e30c7aee4f0b"),
}
COLUMNS, SEED = 4, 5


class Draws:
    """The package's random numbers: those of one of our columns."""

    def __init__(self, seed):
        self.generator, self.left = seeding.np_random(seed)[0], []

    def begin(self):
        if len(self.left) < minatar.MOST_DRAWS:
            self.left = self.generator.random(minatar.DRAWS).tolist()

    def rand(self, size=None):
        return self.left.pop(0) if size is None else np.array([self.rand() for _ in range(size)])

    def randint(self, low, high=None, size=None):
        low, high = (0, low) if high is None else (low, high)
        if size is not None:
            return np.array([self.randint(low, high) for _ in range(size)])
        return low + int(self.left.pop(0) * (high - low))


class Package:
    """An environment of the package, as NEXT_STEP rows (obs [C, 10, 10], reward, terminated)."""

    def __init__(self, game, seed):
        whole = pytest.importorskip("minatar").Environment(game)
        self.draws = whole.random = whole.env.random = Draws(seed)
        self.whole, self.game, self.ended = whole, whole.env, True

    def step(self, action=None):
        self.draws.begin()
        reward = 0
        if self.ended:
            self.whole.reset()
            self.ended = False
        else:
            reward, self.ended = self.whole.act(action)
        return np.moveaxis(self.whole.state(), -1, 0), reward, self.ended


def breakout_player(planes, action):
    """Follow the ball, so that walls are cleared."""
    paddle, ball = (int(np.argmax(planes[k].any(0))) for k in (0, 1))
    return NONE if paddle == ball else LEFT if ball < paddle else RIGHT


def seaquest_player(planes, action):
    """Fetch divers and come up with six, or with one when air is short; shoot on the way."""
    (y, x), air = np.argwhere(planes[0])[0], planes[7].sum()
    if y == 0:
        return DOWN
    if planes[8].sum() == 6 or (air < 3 and planes[8].any()):
        return UP
    targets = np.argwhere(planes[9])
    if action == FIRE or not len(targets):
        return action
    to_y, to_x = targets[np.abs(targets - (y, x)).sum(1).argmin()]
    return (DOWN if to_y > y else UP) if to_y != y else (RIGHT if to_x > x else LEFT)


PLAYERS = {
    "breakout": breakout_player,
    "seaquest": seaquest_player,
    "freeway": lambda planes, action: UP,
}


@pytest.mark.parametrize("peers", [False, True], ids=["recorded", "package"])
@pytest.mark.parametrize("task", GAMES)
def test_rows_are_those_of_the_package(task, peers):
    game, steps, recorded = GAMES[task]
    env = make_tasks(COLUMNS, task=task, all_actions=True)
    peers = [Package(game, SEED + i) for i in range(COLUMNS)] if peers else []
    rng, rows = np.random.default_rng(0), hashlib.sha256()
    obs, reward, ended = env.reset(seed=SEED)[0], np.zeros(COLUMNS), np.zeros(COLUMNS, bool)
    actions = np.zeros(COLUMNS, int)
    sums, ends, most = np.zeros(COLUMNS), 0, 0
    for t in range(steps):
        for i, peer in enumerate(peers):
            planes, r, end = peer.step(actions[i])
            np.testing.assert_array_equal(obs[i], planes, err_msg=f"{t} {i}")
            assert (reward[i], ended[i]) == (r, end), (t, i)
        rows.update(obs.tobytes() + np.float32(reward).tobytes() + ended.tobytes())
        sums, ends, most = sums + reward, ends + ended.sum(), max(most, reward.max())
        actions = rng.integers(6, size=COLUMNS)
        for i in range(2 if game in PLAYERS else 0):  # other columns act at random
            actions[i] = PLAYERS[game](obs[i], actions[i])
        if game == "seaquest" and t % 40 == 0:  # nobody here saves six divers
            env.games["saved"][:2] = 6
            for peer in peers[:2]:
                peer.game.diver_count = 6
        obs, reward, ended, _, _ = env.step(actions)
    assert sums.max() > (30 if game == "breakout" else 0)  # a second wall
    assert ends >= 2
    if game == "seaquest":
        assert most > 5  # air that is left
        assert (env.games["spawn_every"] < 20).any()
    if game == "space_invaders":
        assert sums.max() > 24  # a second block
    assert rows.hexdigest()[:16] == recorded


def test_ramping_and_sticky_actions():
    steady = make_tasks(1, task="minatar:MinAtarAsterix", ramping=False, sticky=0.0)
    steady.reset(seed=0)
    for _ in range(400):
        steady.step(np.array([1]))
    assert steady.games["ramps"][0] == 0
    assert (steady.games["spawn_every"][0], steady.games["move_every"][0]) == (10, 5)
    stuck = make_tasks(1, task="minatar:MinAtarBreakout", sticky=1.0)
    stuck.reset(seed=0)
    stuck.step(np.array([1]))
    assert stuck.games["paddle"][0] == 4  # the action before the first is none
    stuck = make_tasks(1, task="minatar:MinAtarBreakout", sticky=0.0)
    stuck.reset(seed=0)
    stuck.step(np.array([1]))
    assert stuck.games["paddle"][0] == 3


def test_less_is_seen():
    """Without the trail a plane is gone; with ``blank`` observations between two are zeros."""
    whole, less = (make_tasks(2, task="minatar:MinAtarBreakout", trail=t) for t in (True, False))
    blank = make_tasks(2, task="minatar:MinAtarFreeway", blank=2)
    planes, rest, cars = (env.reset(seed=3)[0] for env in (whole, less, blank))
    for t in range(6):
        np.testing.assert_array_equal(planes[:, [0, 1, 3]], rest)
        assert rest.shape == less.observation_space.shape
        assert cars.any() == (t % 2 == 0)
        actions = np.array([1, 2])
        planes, rest, cars = (env.step(actions)[0] for env in (whole, less, blank))
