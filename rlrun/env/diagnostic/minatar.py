"""MinAtar's five games for many columns at once, compiled; pictures of 10 x 10 cells.

The rules are those of the package ``minatar`` 1.0.15, step by step, so a column has its rows when
both read the same random numbers. Source: Young and Tian 2019, arXiv 1903.03176.

A game is a record of integers. ``step(games, action, done, rng, ramping, (reward, ended))`` moves
every column whose episode is not ``done``, with the action it got; ``begin(games, i, rng,
ramping)`` starts column i anew; ``show(games, obs)`` writes planes uint8 [E, C, 10, 10] of zeros
and ones. ``rng`` holds uniform numbers [E, DRAWS], and [E] how many are already taken.
Cells have a row y from the top and a column x from the left. Seaquest is in ``seaquest.py``.
"""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlrun.env.diagnostic.vector import LockstepVectorEnv, Spaces, choice, flag, number
from rlrun.jit import jit

SIDE = 10  # cells
DRAWS = 256  # uniform numbers that a column draws at once
MOST_DRAWS = 32  # that a step or a new episode takes
ACTIONS = ("none", "left", "up", "right", "down", "fire")
NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)


@jit
def uniform(rng: Any, i: int) -> float:
    """Return the next number of column i, float64 in [0, 1)."""
    draws, used = rng
    u = draws[i, used[i]]
    used[i] += 1
    return u  # type: ignore[no-any-return]


@jit
def integer_in(rng: Any, i: int, low: int, high: int) -> int:
    """Return an integer within [low, high)."""
    return low + int(uniform(rng, i) * (high - low))


@jit
def toward(x: int, right: int) -> int:
    """Return the next column in a direction."""
    return x + 1 if right else x - 1


# -- Breakout: a paddle returns a ball that breaks three rows of bricks ----------------------------
_BREAKOUT = np.dtype([
    ("ball_x", "i8"), ("ball_y", "i8"), ("last_x", "i8"), ("last_y", "i8"), ("direction", "i8"),
    ("paddle", "i8"), ("struck", "i8"), ("bricks", "u1", (SIDE, SIDE)),
])  # fmt: skip
# Directions: 0 up left, 1 up right, 2 down right, 3 down left.
_BOUNCE_SIDE, _BOUNCE_TOP, _BOUNCE_BACK = (1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1)


@jit
def _begin_breakout(games: Any, i: int, rng: Any, ramping: bool) -> None:
    g = games[i]
    right = integer_in(rng, i, 0, 2)
    g.ball_x, g.ball_y, g.direction = (9, 3, 3) if right else (0, 3, 2)
    g.last_x, g.last_y, g.paddle, g.struck = g.ball_x, g.ball_y, 4, 0
    g.bricks[:] = 0
    g.bricks[1:4] = 1


@jit
def _step_breakout(games: Any, action: Any, done: Any, rng: Any, ramping: bool, out: Any) -> None:
    reward, ended = out
    for i in range(len(games)):
        if done[i]:
            continue
        g = games[i]
        if action[i] == LEFT:
            g.paddle = max(0, g.paddle - 1)
        elif action[i] == RIGHT:
            g.paddle = min(9, g.paddle + 1)
        g.last_x, g.last_y = g.ball_x, g.ball_y
        x = g.ball_x + (1 if g.direction == 1 or g.direction == 2 else -1)
        y = g.ball_y + (1 if g.direction >= 2 else -1)
        if x < 0 or x > 9:
            x = min(max(x, 0), 9)
            g.direction = _BOUNCE_SIDE[g.direction]
        hits = False
        if y < 0:
            y = 0
            g.direction = _BOUNCE_TOP[g.direction]
        elif g.bricks[y, x]:
            hits = True
            if not g.struck:  # a ball that has just broken a brick passes the next one
                reward[i] += 1
                g.struck = 1
                g.bricks[y, x] = 0
                y = g.last_y
                g.direction = _BOUNCE_TOP[g.direction]
        elif y == 9:
            if not g.bricks.any():
                g.bricks[1:4] = 1
            if g.ball_x == g.paddle:
                g.direction = _BOUNCE_TOP[g.direction]
                y = g.last_y
            elif x == g.paddle:
                g.direction = _BOUNCE_BACK[g.direction]
                y = g.last_y
            else:
                ended[i] = True
        if not hits:
            g.struck = 0
        g.ball_x, g.ball_y = x, y


@jit
def _show_breakout(games: Any, obs: Any) -> None:
    for i in range(len(games)):
        g = games[i]
        obs[i, 0, 9, g.paddle] = 1
        obs[i, 1, g.ball_y, g.ball_x] = 1
        obs[i, 2, g.last_y, g.last_x] = 1
        obs[i, 3] = g.bricks


# -- Freeway: a chicken crosses eight lanes; the row above the last car is worth 1 ----------------
_FREEWAY = np.dtype([
    ("row", "i8"), ("wait", "i8"), ("left", "i8"),  # steps until it may move; of the episode
    ("cars", "i8", (8, 3)),  # column, steps until it moves, speed with the sign of its direction
])  # fmt: skip


@jit
def _new_speeds(games: Any, i: int, rng: Any) -> None:
    cars = games[i].cars
    for k in range(8):
        cars[k, 1] = integer_in(rng, i, 1, 6)
    for k in range(8):
        direction = np.sign(uniform(rng, i) - 0.5)
        cars[k, 2] = cars[k, 1] * int(direction)
        cars[k, 1] = abs(cars[k, 2])


@jit
def _begin_freeway(games: Any, i: int, rng: Any, ramping: bool) -> None:
    g = games[i]
    _new_speeds(games, i, rng)
    g.cars[:, 0] = 0
    g.row, g.wait, g.left = 9, 3, 2500


@jit
def _step_freeway(games: Any, action: Any, done: Any, rng: Any, ramping: bool, out: Any) -> None:
    reward, ended = out
    for i in range(len(games)):
        if done[i]:
            continue
        g = games[i]
        if g.wait == 0 and (action[i] == UP or action[i] == DOWN):
            g.wait = 3
            g.row = max(0, g.row - 1) if action[i] == UP else min(9, g.row + 1)
        if g.row == 0:
            reward[i] += 1
            _new_speeds(games, i, rng)
            g.row = 9
        for k in range(8):
            car = g.cars[k]
            if car[0] == 4 and k + 1 == g.row:
                g.row = 9
            if car[1] == 0:
                car[1] = abs(car[2])
                car[0] = (car[0] + (1 if car[2] > 0 else -1)) % SIDE
                if car[0] == 4 and k + 1 == g.row:
                    g.row = 9
            else:
                car[1] -= 1
        g.wait = max(0, g.wait - 1)
        g.left -= 1
        ended[i] = g.left < 0


@jit
def _show_freeway(games: Any, obs: Any) -> None:
    for i in range(len(games)):
        g = games[i]
        obs[i, 0, g.row, 4] = 1
        for k in range(8):
            x, speed = g.cars[k, 0], g.cars[k, 2]
            obs[i, 1, k + 1, x] = 1
            if speed != 0:
                obs[i, 1 + abs(speed), k + 1, (x - (1 if speed > 0 else -1)) % SIDE] = 1


# -- Asterix: enemies and gold cross eight lanes; gold is worth 1, an enemy ends the episode -------
_ASTERIX = np.dtype([
    ("x", "i8"), ("y", "i8"), ("spawn_every", "i8"), ("spawn_in", "i8"), ("move_every", "i8"),
    ("move_in", "i8"), ("ramp_in", "i8"), ("ramps", "i8"),
    ("lanes", "i8", (8, 4)),  # 1: it has something; its column, 1: to the right, 1: gold
])  # fmt: skip


@jit
def _begin_asterix(games: Any, i: int, rng: Any, ramping: bool) -> None:
    g = games[i]
    g.x = g.y = 5
    g.spawn_every = g.spawn_in = 10
    g.move_every = g.move_in = 5
    g.ramp_in, g.ramps = 100, 0
    g.lanes[:] = 0


@jit
def _fill_lane(lanes: Any, rng: Any, i: int) -> None:
    right = int(uniform(rng, i) < 1 / 2)
    gold = int(uniform(rng, i) < 1 / 3)
    free = 8 - lanes[:, 0].sum()
    if free == 0:
        return
    skip = integer_in(rng, i, 0, free)
    for k in range(8):
        if not lanes[k, 0]:
            if skip == 0:
                lanes[k, 0], lanes[k, 1] = 1, 0 if right else 9
                lanes[k, 2], lanes[k, 3] = right, gold
                return
            skip -= 1


@jit
def _meet(g: Any, lane: Any, y: int) -> tuple[int, bool]:
    """Return reward and end of what the player meets in a lane."""
    if not lane[0] or lane[1] != g.x or y != g.y:
        return 0, False
    if not lane[3]:
        return 0, True
    lane[0] = 0
    return 1, False


@jit
def _step_asterix(games: Any, action: Any, done: Any, rng: Any, ramping: bool, out: Any) -> None:
    reward, ended = out
    for i in range(len(games)):
        if done[i]:
            continue
        g = games[i]
        if g.spawn_in == 0:
            _fill_lane(g.lanes, rng, i)
            g.spawn_in = g.spawn_every
        if action[i] == LEFT:
            g.x = max(0, g.x - 1)
        elif action[i] == RIGHT:
            g.x = min(9, g.x + 1)
        elif action[i] == UP:
            g.y = max(1, g.y - 1)
        elif action[i] == DOWN:
            g.y = min(8, g.y + 1)
        for k in range(8):
            gold, end = _meet(g, g.lanes[k], k + 1)
            reward[i] += gold
            ended[i] |= end
        if g.move_in == 0:
            g.move_in = g.move_every
            for k in range(8):
                lane = g.lanes[k]
                if lane[0]:
                    lane[1] = toward(lane[1], lane[2])
                    if lane[1] < 0 or lane[1] > 9:
                        lane[0] = 0
                    gold, end = _meet(g, lane, k + 1)
                    reward[i] += gold
                    ended[i] |= end
        g.spawn_in -= 1
        g.move_in -= 1
        if ramping and (g.spawn_every > 1 or g.move_every > 1):
            if g.ramp_in >= 0:
                g.ramp_in -= 1
            else:
                if g.move_every > 1 and g.ramps % 2:
                    g.move_every -= 1
                if g.spawn_every > 1:
                    g.spawn_every -= 1
                g.ramps += 1
                g.ramp_in = 100


@jit
def _show_asterix(games: Any, obs: Any) -> None:
    for i in range(len(games)):
        g = games[i]
        obs[i, 0, g.y, g.x] = 1
        for k in range(8):
            if g.lanes[k, 0]:
                x = g.lanes[k, 1]
                obs[i, 3 if g.lanes[k, 3] else 1, k + 1, x] = 1
                back = toward(x, 1 - g.lanes[k, 2])
                if 0 <= back < SIDE:
                    obs[i, 2, k + 1, back] = 1


# -- Space Invaders: a cannon below a block of aliens, each worth 1 -------------------------------
_INVADERS = np.dtype([
    ("x", "i8"), ("direction", "i8"), ("move_every", "i8"), ("move_in", "i8"), ("shot_in", "i8"),
    ("wait", "i8"), ("aliens", "u1", (SIDE, SIDE)),
    ("shots", "u1", (SIDE, SIDE)), ("bombs", "u1", (SIDE, SIDE)),  # upward and downward
])  # fmt: skip


@jit
def _begin_invaders(games: Any, i: int, rng: Any, ramping: bool) -> None:
    g = games[i]
    g.x, g.direction, g.move_every, g.move_in = 5, -1, 12, 12
    g.shot_in, g.wait = 10, 0
    g.shots[:] = 0
    g.bombs[:] = 0
    g.aliens[:] = 0
    g.aliens[0:4, 2:8] = 1


@jit
def _roll(cells: Any, down: int, right: int) -> None:
    """Move all cells; those that leave on one side come back on the other."""
    old = cells.copy()
    for y in range(SIDE):
        for x in range(SIDE):
            cells[(y + down) % SIDE, (x + right) % SIDE] = old[y, x]


@jit
def _drop_bomb(g: Any) -> None:
    """The lowest alien of the column nearest to the cannon, the left one of two, drops a bomb."""
    for distance in range(SIDE):
        for x in (g.x - distance, g.x + distance):
            if 0 <= x < SIDE:
                for y in range(SIDE - 1, -1, -1):
                    if g.aliens[y, x]:
                        g.bombs[y, x] = 1
                        return


@jit
def _step_invaders(games: Any, action: Any, done: Any, rng: Any, ramping: bool, out: Any) -> None:
    reward, ended = out
    for i in range(len(games)):
        if done[i]:
            continue
        g = games[i]
        if action[i] == FIRE and g.wait == 0:
            g.shots[9, g.x] = 1
            g.wait = 5
        elif action[i] == LEFT:
            g.x = max(0, g.x - 1)
        elif action[i] == RIGHT:
            g.x = min(9, g.x + 1)
        _roll(g.shots, -1, 0)
        g.shots[9] = 0
        _roll(g.bombs, 1, 0)
        g.bombs[0] = 0
        end = g.bombs[9, g.x] > 0 or g.aliens[9, g.x] > 0
        if g.move_in == 0:
            g.move_in = min((g.aliens > 0).sum(), g.move_every)
            edge = 0 if g.direction < 0 else 9
            if g.aliens[:, edge].any():
                g.direction = -g.direction
                end |= g.aliens[9].any()
                _roll(g.aliens, 1, 0)
            else:
                _roll(g.aliens, 0, g.direction)
            end |= g.aliens[9, g.x] > 0
        if g.shot_in == 0:
            g.shot_in = 10
            _drop_bomb(g)
        for y in range(SIDE):
            for x in range(SIDE):
                if g.aliens[y, x] and g.shots[y, x]:
                    reward[i] += 1
                    g.aliens[y, x] = g.shots[y, x] = 0
        g.wait = max(0, g.wait - 1)
        g.move_in -= 1
        g.shot_in -= 1
        if not g.aliens.any():
            if g.move_every > 6 and ramping:
                g.move_every -= 1
            g.aliens[0:4, 2:8] = 1
        ended[i] = end


@jit
def _show_invaders(games: Any, obs: Any) -> None:
    for i in range(len(games)):
        g = games[i]
        obs[i, 0, 9, g.x] = 1
        obs[i, 1] = g.aliens
        obs[i, 2 if g.direction < 0 else 3] = g.aliens
        obs[i, 4] = g.shots
        obs[i, 5] = g.bombs


class MinAtarVectorEnv(LockstepVectorEnv):
    """A game: observations uint8 [C, 10, 10] of zeros and ones, rewards of 0, 1 or more."""

    sticky: float = number(0.1, 0, 1)
    ramping: bool = flag(True)
    all_actions: bool = flag(False)
    record: ClassVar[np.dtype[Any]]
    planes: ClassVar[int]
    actions: ClassVar[tuple[int, ...]]
    kernels: ClassVar[tuple[Any, Any, Any]]  # begin, step, show
    render_fps = 15

    def _setup(self) -> Spaces:
        self.state = np.zeros((self.num_envs, self.record.itemsize), np.uint8)
        self.last = np.zeros(self.num_envs, np.int64)  # action, which goes on over episodes
        self.draws = np.zeros((self.num_envs, DRAWS))
        self.used = np.full(self.num_envs, DRAWS)
        self.known = np.array(range(6) if self.all_actions else self.actions)
        shape = (self.planes, SIDE, SIDE)
        return spaces.Box(0, 1, shape, np.uint8), spaces.Discrete(len(self.known))

    @property
    def games(self) -> np.ndarray:
        """The columns' records [E]."""
        return self.state.view(self.record)[:, 0]

    def _begin(self, i: int, rng: np.random.Generator) -> None:
        if self.episode[i] == 0:  # numbers and actions of before are none of a new seed's
            self.used[i], self.last[i] = DRAWS, NONE
        if self.used[i] > DRAWS - MOST_DRAWS:
            self.draws[i], self.used[i] = rng.random(DRAWS), 0
        self.kernels[0](self.games, i, (self.draws, self.used), self.ramping)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        playing = np.flatnonzero(~self._done)
        for i in playing[self.used[playing] > DRAWS - MOST_DRAWS]:
            self.draws[i], self.used[i] = self.rngs[i].random(DRAWS), 0
        same = self.draws[playing, self.used[playing]] < self.sticky
        self.used[playing] += 1
        self.last[playing] = np.where(same, self.last[playing], self.known[action[playing]])
        reward, ended = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        rng, out = (self.draws, self.used), (reward, ended)
        self.kernels[1](self.games, self.last, self._done, rng, self.ramping, out)
        return reward, ended

    def _observe(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, self.planes, SIDE, SIDE), np.uint8)
        self.kernels[2](self.games, obs)
        return obs


class MinAtarBreakoutVectorEnv(MinAtarVectorEnv):
    """A paddle returns a ball that breaks bricks. Planes: paddle, ball, trail, bricks.

    ``trail``: False leaves out the plane that shows where the ball was before.
    """

    trail: bool = flag(True)
    record, planes, actions = _BREAKOUT, 4, (NONE, LEFT, RIGHT)
    kernels = _begin_breakout, _step_breakout, _show_breakout

    def _setup(self) -> Spaces:
        _, actions = super()._setup()
        shape = (self.planes if self.trail else self.planes - 1, SIDE, SIDE)
        return spaces.Box(0, 1, shape, np.uint8), actions

    def _observe(self) -> np.ndarray:
        obs = super()._observe()
        return obs if self.trail else np.delete(obs, 2, 1)


class MinAtarFreewayVectorEnv(MinAtarVectorEnv):
    """A chicken crosses a road in 2,500 steps. Planes: chicken, cars, five of their speeds.

    ``blank``: of so many observations one shows the planes, the others are zeros.
    """

    blank: int = choice(1, 2, 3, 4)
    record, planes, actions = _FREEWAY, 7, (NONE, UP, DOWN)
    kernels = _begin_freeway, _step_freeway, _show_freeway

    def _observe(self) -> np.ndarray:
        obs = super()._observe()
        obs[self.t % self.blank != 0] = 0
        return obs


class MinAtarAsterixVectorEnv(MinAtarVectorEnv):
    """Collect gold, avoid enemies. Planes: player, enemies, trails, gold."""

    record, planes, actions = _ASTERIX, 4, (NONE, LEFT, UP, RIGHT, DOWN)
    kernels = _begin_asterix, _step_asterix, _show_asterix


class MinAtarSpaceInvadersVectorEnv(MinAtarVectorEnv):
    """Shoot aliens. Planes: cannon, aliens, those moving left, right, shots, bombs."""

    record, planes, actions = _INVADERS, 6, (NONE, LEFT, RIGHT, FIRE)
    kernels = _begin_invaders, _step_invaders, _show_invaders
