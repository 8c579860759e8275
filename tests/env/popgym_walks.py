"""Episodes of POPGym's environments and of the native ones, with the same seed and actions.

``python -m tests.env.popgym_walks`` records what POPGym does, for machines without it; its mazes
need mazelib too.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np

from rlrun.env import make_env
from rlrun.env.catalog import find_spec, make_single
from rlrun.env.diagnostic.games import MOVES, WALL
from tests.env.presets import preset

GOLDEN = Path(__file__).with_name("popgym_golden.json")
SEED, FIRST, LAST = 7, 8, 4  # rows of an episode that are recorded: at its start, at its end

LEVELS: dict[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    # POPGym's name -> (preset, arguments of easy, medium and hard)
    "RepeatPrevious": ("repeat_previous", [{}, {"k": 32, "decks": 2}, {"k": 64, "decks": 3}]),
    "RepeatFirst": ("repeat_first", [{}, {"decks": 8}, {"decks": 16}]),
    "CountRecall": (
        "count_recall",
        [{}, {"decks": 2, "kind": "suits"}, {"decks": 4, "kind": "ranks"}],
    ),
    "Autoencode": ("autoencode", [{}, {"decks": 2}, {"decks": 3}]),
    "HigherLower": ("higher_lower", [{}, {"decks": 2}, {"decks": 3}]),
    "MultiarmedBandit": (
        "multiarmed_bandit",
        [{}, {"arms": 20, "steps": 400}, {"arms": 30, "steps": 600}],
    ),
    "PositionOnlyCartPole": ("position_only_cartpole", [{}, {"steps": 400}, {"steps": 600}]),
    "NoisyPositionOnlyCartPole": (
        "position_only_cartpole",
        [{"noise": 0.1}, {"noise": 0.2}, {"noise": 0.3}],
    ),
    "VelocityOnlyCartpole": (
        "position_only_cartpole",
        [{"show": "velocities", **steps} for steps in ({}, {"steps": 400}, {"steps": 600})],
    ),
    "PositionOnlyPendulum": ("position_only_pendulum", [{}, {"steps": 150}, {"steps": 100}]),
    "NoisyPositionOnlyPendulum": (
        "position_only_pendulum",
        [{"noise": 0.1}, {"noise": 0.2}, {"noise": 0.3}],
    ),
    "Concentration": ("concentration", [{}, {"decks": 2}, {"kind": "ranks"}]),
    "Battleship": ("hidden_battleship", [{}, {"size": 10}, {"size": 12}]),
    "MineSweeper": ("hidden_minesweeper", [{}, {"size": 6, "mines": 6}, {"size": 8, "mines": 10}]),
    "LabyrinthEscape": ("labyrinth_escape", [{}, {"size": 7}, {"size": 9}]),
    "LabyrinthExplore": ("labyrinth_explore", [{}, {"size": 7}, {"size": 9}]),
}
TASKS = {
    name + level: (preset_name, dict(kwargs))
    for name, (preset_name, levels) in LEVELS.items()
    for level, kwargs in zip(("Easy", "Medium", "Hard"), levels, strict=True)
}

Row = tuple[np.ndarray, float, bool, bool]  # observation, reward, terminated, truncated


def skilled(task: str, env: Any, rng: np.random.Generator, i: int) -> Any:
    """An action of column ``i`` that random ones hardly find, so that episodes end in every way."""
    options: Any = []
    match TASKS[task][0]:
        case "count_recall" if rng.random() < 0.5:  # one of 27 is right
            options = env._asked()[0][i : i + 1]
        case "position_only_cartpole" if not task.endswith("Medium"):
            force = env.state[i].astype(np.float32) @ [0.1, 0.3, 3.0, 1.0]
            options = [int(force + rng.normal(0, 0.3) > 0)]
        case "concentration" if not task.endswith("Medium") and rng.random() < 0.9:
            first = env.first[i]
            hidden = ~env.face_up[i] & (np.arange(env.size) != first)
            options = np.flatnonzero(
                hidden & (env.cards[i] == env.cards[i, first]) if first >= 0 else hidden
            )
        case "hidden_battleship" if not task.endswith("Medium") and rng.random() < 0.9:
            options = np.argwhere(env.afloat[i])
        case "hidden_minesweeper" if rng.random() < 0.9:
            options = np.argwhere(~env.mine[i] & ~env.viewed[i])
        case "labyrinth_explore":
            cells = np.clip(env.position[i] + MOVES, 0, env.side - 1).T
            options = np.flatnonzero(
                (env.maze[i][tuple(cells)] != WALL) & ~env.explored[i][tuple(cells)]
            )
    return options[0] if len(options) else None


def native(task: str, episodes: int = 2, seed: int = SEED) -> tuple[list[Row], list[Any]]:
    """Rows of the native environment (column 1 of 2, seeds ``seed`` - 1 and ``seed``), actions.

    Private: a skilled action is chosen by the state, which observations hide.
    """
    name, kwargs = TASKS[task]
    env = make_env(preset(name, kwargs=kwargs, backend="vector"), num_envs=2)
    rows: list[Row] = [(env.reset(seed=seed - 1)[1].copy(), 0.0, False, False)]
    rng, actions = np.random.default_rng(0), []
    env.action_space.seed(0)
    while episodes:
        action = np.stack([env.action_space.sample() for _ in range(2)])
        for column in range(2):
            better = skilled(task, env._source.env, rng, column)
            action[column] = action[column] if better is None else better
        step = env.step(action)
        rows.append((step.obs[1].copy(), step.reward[1], step.terminated[1], step.truncated[1]))
        actions.append(action[1].copy())
        episodes -= bool(step.terminated[1] or step.truncated[1])
    return rows, actions


def one_generator(env: Any) -> ExitStack:
    """Let the mazes of mazelib draw from the environment's generator, not from global ones."""
    from mazelib import mazelib
    from mazelib.generate import HuntAndKill, MazeGenAlgo

    def draw(n: int) -> int:
        return int(env.unwrapped.np_random.integers(n))

    def randrange(start: int, stop: int | None = None, step: int = 1) -> int:
        low, high = (0, start) if stop is None else (start, stop)
        return low + step * draw(len(range(low, high, step)))

    stack = ExitStack()
    for module, name, function in (
        (mazelib, "randrange", randrange),
        (HuntAndKill, "randrange", randrange),
        (HuntAndKill, "choice", lambda options: options[draw(len(options))]),
        (MazeGenAlgo, "shuffle", lambda options: None),
    ):
        stack.enter_context(patch.object(module, name, function))
    return stack


def popgym(task: str, actions: list[Any], seed: int = SEED) -> list[Row]:
    """Rows of POPGym's environment under ``actions``; after an end the action resets, as ours."""
    env: gym.Env[Any, Any] = make_single(find_spec(f"popgym-{task}-v0"), {}, 0)
    with one_generator(env) if task.startswith("Labyrinth") else ExitStack():
        rows: list[Row] = [(np.asarray(env.reset(seed=seed)[0]), 0.0, False, False)]
        ended = False
        for action in actions:
            if ended:
                rows.append((np.asarray(env.reset()[0]), 0.0, False, False))
                ended = False
                continue
            obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((np.asarray(obs), float(reward), terminated, truncated))
            ended = terminated or truncated
    return rows


def excerpt(rows: list[Row]) -> list[Any]:
    """The first and last rows of the first episode and the start of the second, as JSON."""
    end = next(t for t, row in enumerate(rows) if row[2] or row[3])
    kept = [*range(FIRST), *range(end - LAST + 1, end + 2)]
    return [
        [t, rows[t][0].tolist(), float(np.float32(rows[t][1])), bool(rows[t][2]), bool(rows[t][3])]
        for t in kept
    ]


def main() -> None:
    golden = {task: excerpt(popgym(task, native(task)[1])) for task in TASKS}
    lines = [f"{json.dumps(task)}: {json.dumps(rows)}" for task, rows in golden.items()]
    GOLDEN.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
