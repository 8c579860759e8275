"""Bounds of the returns that an environment allows, as far as known. Intervals are cut at them.

There are three sources: the rules of environments that rlrun knows by id, the arguments of the
diagnostic tasks, and the smallest and largest return of the evaluated episodes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.reports.intervals import UNBOUNDED, Bounds
from rlrun.reports.runs import RunData, finite, resolve

_PENDULUM = math.pi**2 + 0.1 * 8**2 + 0.001 * 2**2  # largest cost of a step: angle, speed, torque
# id -> (registered steps, smallest and largest return of an episode of at most n steps)
_BY_STEPS: dict[str, tuple[float, Callable[[float], Bounds]]] = {
    "CartPole-v0": (200, lambda n: (1, n)),
    **dict.fromkeys(("CartPole-v1", "rlrun/CartPoleNoVel-v0"), (500, lambda n: (1, n))),
    "MountainCar-v0": (200, lambda n: (-n, -1)),
    "MountainCarContinuous-v0": (999, lambda n: (-0.1 * n, 100)),
    "Acrobot-v1": (500, lambda n: (-n, 0)),
    "Pendulum-v1": (200, lambda n: (-_PENDULUM * n, 0)),
    **dict.fromkeys(("InvertedPendulum-v4", "InvertedPendulum-v5"), (1000, lambda n: (0, n))),
    "FrozenLake-v1": (100, lambda n: (0, 1)),
    "FrozenLake8x8-v1": (200, lambda n: (0, 1)),
    **dict.fromkeys(("CliffWalking-v0", "CliffWalking-v1", "CliffWalkingSlippery-v1"),
                    (math.inf, lambda n: (-100 * n, -1))),
    "Taxi-v3": (200, lambda n: (-10 * n, 20)),
    "Blackjack-v1": (math.inf, lambda n: (-1, 1)),
}  # fmt: skip
_HARMLESS = ("desc", "g", "goal_velocity", "is_slippery", "map_name", "render_mode", "screen_size")
# diagnostic task -> smallest and largest return by its arguments
_BY_ARGUMENTS: dict[str, Callable[[Mapping[str, float]], Bounds]] = {
    **dict.fromkeys(
        ("Autoencode", "Concentration", "CountRecall", "HiddenMineSweeper", "HigherLower",
         "LabyrinthEscape", "LabyrinthExplore", "MemoryChain", "MultiarmedBandit",
         "PositionOnlyPendulum", "RepeatFirst", "RepeatPrevious"), lambda k: (-1, 1)),
    **dict.fromkeys(("Bandit", "PositionOnlyCartPole", "Relay"), lambda k: (0, 1)),
    "BanditContinuous":
        lambda k: (-(max(k["target"] - k["low"], k["high"] - k["target"]) ** 2), 0),
    "Battleship": lambda k: (-1 - max(k["penalty"], 0) * k["size"] ** 2, 1),
    "BitFlip": lambda k: (-k["bits"], 0),
    "Chain": lambda k: (0, 12),
    "HiddenBattleship": lambda k: (-2, 1),
    "Identity": lambda k: (0, k["length"]),
    "MineSweeper": lambda k: (-max(k["penalty"], 0) * k["size"] ** 2, 1),
    "TMaze": lambda k: (-0.1 - 4 * k["length"] * k["penalty"], 1),
    "Tracking": lambda k: (-9 * k["length"], 0),
    "TwoStep": lambda k: (0, 8),
}  # fmt: skip
# ids of other packages, and Atari games by the name of their ROM
_BY_NAME: tuple[tuple[str, Bounds], ...] = (
    (r"popgym-\w*CartPole\w*-v\d", (0, 1)),
    (r"popgym-Battleship\w*-v\d", (-2, 1)),
    (r"popgym-\w+-v\d", (-1, 1)),
    (r"MiniGrid-(?!Dynamic)[\w-]+-v\d", (0, 1)),
    (r"(ALE/)?Pong\w*(-ram)?(-v\d)?", (-21, 21)),
    (r"(ALE/)?Boxing\w*(-ram)?(-v\d)?", (-100, 100)),
    (r"(ALE/)?Breakout\w*(-ram)?(-v\d)?", (0, 864)),
    (r"(ALE/)?Freeway\w*(-ram)?(-v\d)?", (0, math.inf)),
)
_SKIPPING = ("max_and_skip", "repeat_action")
_REWARDING = ("clip_reward",)
_EPISODES = 100  # fewest evaluated episodes whose extremes are limits


def return_bounds(runs: Sequence[RunData]) -> Bounds:
    """Return the smallest and the largest return that the environment of ``runs`` allows.

    Unknown bounds are infinite. If the runs differ in their arguments, the widest bounds are
    returned.
    """
    lows, highs = zip(*(known_bounds(run.keys) for run in runs), strict=True)
    known = min(lows), max(highs)
    return known if known != UNBOUNDED else _seen(runs)


def known_bounds(keys: Mapping[str, Any]) -> Bounds:
    """Return the bounds that follow from a config: full name of each key -> value."""
    name = resolve(keys.get("env.id"), dict(keys))
    wrappers = _wrappers(keys.get("env.wrappers"))
    if not isinstance(name, str) or wrappers is None or {*wrappers} & {*_REWARDING}:
        return UNBOUNDED
    arguments = {
        key.removeprefix(part): value
        for part in ("env.kwargs.", "env.eval_kwargs.")  # scores are those of evaluations
        for key, value in keys.items()
        if key.startswith(part)
    }
    task = re.fullmatch(r"rlrun/(\w+)-v0", name)
    if task is not None and task[1] in _BY_ARGUMENTS:
        try:
            return _BY_ARGUMENTS[task[1]]({key: finite(value) for key, value in arguments.items()})
        except KeyError:  # the config leaves the argument to the task
            return UNBOUNDED
    if name in _BY_STEPS and {*arguments} <= {*_HARMLESS}:
        registered, bounds = _BY_STEPS[name]
        limit = finite(keys.get("env.max_episode_steps"))
        return bounds((registered if math.isnan(limit) else limit) * math.prod(wrappers.values()))
    game = str(arguments.get("game", "")).title().replace("_", "")
    shown = game if name == "rlrun/Atari-v0" else name
    return next((known for text, known in _BY_NAME if re.fullmatch(text, shown)), UNBOUNDED)


def _wrappers(entries: Any) -> dict[str, float] | None:
    """Return the env steps per step of each wrapper, or None if one is not rlrun's own."""
    factors = {}
    for entry in entries if isinstance(entries, list | tuple) else []:
        name = entry.get("name") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or ":" in name:
            return None
        steps = finite(entry.get("steps")) if isinstance(entry, dict) else math.nan
        factors[name] = steps if name in _SKIPPING and steps >= 1 else 1.0
    return factors


def _seen(runs: Sequence[RunData]) -> Bounds:
    """Return the smallest and the largest return of evaluated episodes, as far as each is a limit.

    A limit is an extreme that two runs have reached, or 0 if no return is beyond it.
    """
    names = ("eval/return_min", "eval/return_max")
    ends = [[run.records.columns[name][1] for name in names] for run in runs]
    whole = [(lows, highs) for lows, highs in ends if 0 < len(lows) == len(highs)]
    episodes = min(finite(run.keys.get("run.eval_episodes")) for run in runs)
    if not sum(len(lows) for lows, _ in whole) * episodes >= _EPISODES:
        return UNBOUNDED
    least, most = [float(x.min()) for x, _ in whole], [float(x.max()) for _, x in whole]
    low, high = min(least), max(most)
    return (
        low if least.count(low) > 1 else 0.0 if low >= 0 else -math.inf,
        high if most.count(high) > 1 else 0.0 if high <= 0 else math.inf,
    )
