"""MinAtar's Seaquest; rules, arguments and draws as in ``minatar.py``.

Things that come and go (fish, bullets) are rows of an array and a count, in the order in which the
package's lists hold them, since one that is hit is the first of its cell.
"""

from typing import Any

import numpy as np

from rlrun.env.diagnostic.minatar import (
    DOWN,
    FIRE,
    LEFT,
    NONE,
    RIGHT,
    SIDE,
    UP,
    MinAtarVectorEnv,
    integer_in,
    toward,
    uniform,
)
from rlrun.jit import jit

MOST = 64  # fish, or other things of one kind, at once

_THINGS = ("i8", (MOST, 5))  # column, row, 1: to the right, steps until it moves, until it shoots
_SEAQUEST = np.dtype([
    ("x", "i8"), ("y", "i8"), ("right", "i8"), ("oxygen", "i8"), ("saved", "i8"), ("wait", "i8"),
    ("above", "i8"), ("spawn_every", "i8"), ("spawn_in", "i8"), ("diver_in", "i8"),
    ("move_every", "i8"), ("ramps", "i8"),
    ("n_shots", "i8"), ("n_bullets", "i8"), ("n_fish", "i8"), ("n_subs", "i8"), ("n_divers", "i8"),
    ("shots", *_THINGS), ("bullets", *_THINGS), ("fish", *_THINGS), ("subs", *_THINGS),
    ("divers", *_THINGS),
])  # fmt: skip


@jit
def _push(things: Any, count: int, x: int, y: int, right: int, timer: int, shot: int) -> int:
    """Append a thing, and return how many there are."""
    things[count, 0], things[count, 1], things[count, 2] = x, y, right
    things[count, 3], things[count, 4] = timer, shot
    return count + 1


@jit
def _drop(things: Any, count: int, k: int) -> int:
    """Remove the first thing equal to thing k, as ``list.remove``, and return its place."""
    first = k
    for j in range(k):
        if (things[j] == things[k]).all():
            first = j
            break
    for j in range(first, count - 1):
        things[j] = things[j + 1]
    return first


@jit
def _at(things: Any, count: int, x: int, y: int) -> int:
    """Return the place of the first thing in a cell, or -1."""
    for k in range(count):
        if things[k, 0] == x and things[k, 1] == y:
            return k
    return -1


@jit
def _plot(things: Any, count: int, plane: Any, trail: Any, trails: bool) -> None:
    """Mark the cells of things, and the cells behind them in ``trail``."""
    for k in range(count):
        x, y = things[k, 0], things[k, 1]
        plane[y, x] = 1
        back = toward(x, 1 - things[k, 2])
        if trails and 0 <= back < SIDE:
            trail[y, back] = 1


@jit
def _begin_seaquest(games: Any, i: int, rng: Any, ramping: bool) -> None:
    g = games[i]
    g.x, g.y, g.right, g.oxygen, g.saved = 5, 0, 0, 200, 0
    g.wait, g.above, g.ramps = 0, 1, 0
    g.spawn_every = g.spawn_in = 20
    g.diver_in, g.move_every = 30, 5
    g.n_shots = g.n_bullets = g.n_fish = g.n_subs = g.n_divers = 0


@jit
def _spawn_enemy(g: Any, rng: Any, i: int) -> None:
    """A fish or submarine, unless its lane has one of the other direction."""
    right = int(uniform(rng, i) < 1 / 2)
    is_sub = uniform(rng, i) < 1 / 3
    y = integer_in(rng, i, 1, 9)
    for k in range(g.n_subs):
        if g.subs[k, 1] == y and g.subs[k, 2] != right:
            return
    for k in range(g.n_fish):
        if g.fish[k, 1] == y and g.fish[k, 2] != right:
            return
    x = 0 if right else 9
    if is_sub and g.n_subs < MOST:
        g.n_subs = _push(g.subs, g.n_subs, x, y, right, g.move_every, 10)
    elif not is_sub and g.n_fish < MOST:
        g.n_fish = _push(g.fish, g.n_fish, x, y, right, g.move_every, 0)


@jit
def _move_shots(g: Any) -> int:
    """Return how many enemies the player's shots hit."""
    hits = 0
    for k in range(g.n_shots - 1, -1, -1):
        shot = g.shots[k]
        shot[0] = toward(shot[0], shot[2])
        gone = shot[0] < 0 or shot[0] > 9
        if not gone:
            fish = _at(g.fish, g.n_fish, shot[0], shot[1])
            sub = _at(g.subs, g.n_subs, shot[0], shot[1])
            if fish >= 0:
                _drop(g.fish, g.n_fish, fish)
                g.n_fish -= 1
            elif sub >= 0:
                _drop(g.subs, g.n_subs, sub)
                g.n_subs -= 1
            gone = fish >= 0 or sub >= 0
            hits += gone
        if gone:
            _drop(g.shots, g.n_shots, k)
            g.n_shots -= 1
    return hits


@jit
def _move_divers(g: Any) -> None:
    for k in range(g.n_divers - 1, -1, -1):
        diver = g.divers[k]
        rescued = diver[0] == g.x and diver[1] == g.y and g.saved < 6
        gone = False
        if not rescued:
            if diver[3] == 0:
                diver[3] = 5
                diver[0] = toward(diver[0], diver[2])
                gone = diver[0] < 0 or diver[0] > 9
                rescued = not gone and diver[0] == g.x and diver[1] == g.y and g.saved < 6
            else:
                diver[3] -= 1
        if rescued or gone:
            _drop(g.divers, g.n_divers, k)
            g.n_divers -= 1
            g.saved += rescued


@jit
def _move_enemy(g: Any, things: Any, count: int, k: int) -> tuple[int, int, bool]:
    """Move a fish or submarine. Return its place or -1, the count, and whether it hit the player.

    One that meets a shot takes it with it.
    """
    thing = things[k]
    hit = thing[0] == g.x and thing[1] == g.y
    if thing[3] > 0:
        thing[3] -= 1
        return k, count, hit
    thing[3] = g.move_every
    thing[0] = toward(thing[0], thing[2])
    shot = -1
    if 0 <= thing[0] <= 9:
        if thing[0] == g.x and thing[1] == g.y:
            return k, count, True
        shot = _at(g.shots, g.n_shots, thing[0], thing[1])
        if shot < 0:
            return k, count, hit
    first = _drop(things, count, k)
    if shot >= 0:
        _drop(g.shots, g.n_shots, shot)
        g.n_shots -= 1
    return -1 if first == k else k - 1, count - 1, hit


@jit
def _move_enemies(g: Any, things: Any, count: int, shoot: bool) -> tuple[int, int, bool]:
    """Return the count, how many met a shot, and whether one hit the player; submarines shoot."""
    hits, hit = 0, False
    for k in range(count - 1, -1, -1):
        before, thing = g.n_shots, things[k].copy()
        place, count, struck = _move_enemy(g, things, count, k)
        hits += before - g.n_shots
        hit |= struck
        if not shoot:
            continue
        x = things[place, 0] if place >= 0 else toward(thing[0], thing[2])
        if thing[4] > 0:
            if place >= 0:
                things[place, 4] -= 1
            continue
        if place >= 0:
            things[place, 4] = 10
        if g.n_bullets < MOST:
            g.n_bullets = _push(g.bullets, g.n_bullets, x, thing[1], thing[2], 0, 0)
    return count, hits, hit


@jit
def _move_bullets(g: Any) -> bool:
    """Return whether a bullet hit the player."""
    hit = False
    for k in range(g.n_bullets - 1, -1, -1):
        bullet = g.bullets[k]
        hit |= bullet[0] == g.x and bullet[1] == g.y
        bullet[0] = toward(bullet[0], bullet[2])
        if bullet[0] < 0 or bullet[0] > 9:
            _drop(g.bullets, g.n_bullets, k)
            g.n_bullets -= 1
        else:
            hit |= bullet[0] == g.x and bullet[1] == g.y
    return hit


@jit
def _surface(g: Any, ramping: bool) -> int:
    """Come up with at least one diver: air, and with six of them a reward for what was left."""
    reward = 0
    g.above = 1
    if g.saved == 6:
        g.saved = 0
        reward = g.oxygen * 10 // 200
    g.oxygen = 200
    g.saved -= 1  # the package's count is -1 after six divers
    if ramping and (g.spawn_every > 1 or g.move_every > 2):
        if g.move_every > 2 and g.ramps % 2:
            g.move_every -= 1
        if g.spawn_every > 1:
            g.spawn_every -= 1
        g.ramps += 1
    return reward


@jit
def _steer(g: Any, action: int) -> None:
    if action == FIRE and g.wait == 0:
        g.n_shots = _push(g.shots, g.n_shots, g.x, g.y, g.right, 0, 0)
        g.wait = 5
    elif action == LEFT:
        g.x, g.right = max(0, g.x - 1), 0
    elif action == RIGHT:
        g.x, g.right = min(9, g.x + 1), 1
    elif action == UP:
        g.y = max(0, g.y - 1)
    elif action == DOWN:
        g.y = min(8, g.y + 1)


@jit
def _step_seaquest(games: Any, action: Any, done: Any, rng: Any, ramping: bool, out: Any) -> None:
    reward, ended = out
    for i in range(len(games)):
        if done[i]:
            continue
        g = games[i]
        if g.spawn_in == 0:
            _spawn_enemy(g, rng, i)
            g.spawn_in = g.spawn_every
        if g.diver_in == 0:
            right = int(uniform(rng, i) < 1 / 2)
            y = integer_in(rng, i, 1, 9)
            g.n_divers = _push(g.divers, g.n_divers, 0 if right else 9, y, right, 5, 0)
            g.diver_in = 30
        _steer(g, action[i])
        hits = _move_shots(g)
        _move_divers(g)
        g.n_subs, by_subs, end = _move_enemies(g, g.subs, g.n_subs, True)
        end |= _move_bullets(g)
        g.n_fish, by_fish, bitten = _move_enemies(g, g.fish, g.n_fish, False)
        gain = hits + by_subs + by_fish
        end |= bitten
        g.spawn_in -= g.spawn_in > 0
        g.diver_in -= g.diver_in > 0
        g.wait -= g.wait > 0
        end |= g.oxygen <= 0
        if g.y > 0:
            g.oxygen -= 1
            g.above = 0
        elif not g.above:
            if g.saved == 0:
                end = True
            else:
                gain += _surface(g, ramping)
        reward[i] += gain
        ended[i] = end


@jit
def _show_seaquest(games: Any, obs: Any) -> None:
    for i in range(len(games)):
        g, planes = games[i], obs[i]
        planes[0, g.y, g.x] = 1
        planes[1, g.y, toward(g.x, 1 - g.right)] = 1
        _plot(g.shots, g.n_shots, planes[2], planes[3], False)
        _plot(g.bullets, g.n_bullets, planes[4], planes[3], False)
        _plot(g.fish, g.n_fish, planes[5], planes[3], True)
        _plot(g.subs, g.n_subs, planes[6], planes[3], True)
        planes[7, 9, : max(0, g.oxygen) * 10 // 200] = 1
        planes[8, 9, 9 - max(0, g.saved) : 9] = 1
        _plot(g.divers, g.n_divers, planes[9], planes[3], True)


class MinAtarSeaquestVectorEnv(MinAtarVectorEnv):
    """Shoot fish and submarines, save divers, breathe. Planes: front and back of the submarine,
    its shots, trails, bullets, fish, submarines, oxygen, divers on board, divers.
    """

    record, planes, actions = _SEAQUEST, 10, (NONE, LEFT, UP, RIGHT, DOWN, FIRE)
    kernels = _begin_seaquest, _step_seaquest, _show_seaquest
