"""Episodes of POPGym's environments and of the native ones, with the same seed and actions.

``python -m tests.env.popgym_walks`` records what POPGym does, for machines without it.
"""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env import make_env
from rlrun.env.catalog import find_spec, make_single
from tests.env.presets import preset

GOLDEN = Path(__file__).with_name("popgym_golden.json")
SEED, FIRST, LAST = 7, 8, 4  # rows of an episode that are recorded: at its start, at its end

TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # POPGym's name -> (preset, arguments)
    "RepeatPreviousEasy": ("repeat_previous", {}),
    "RepeatPreviousMedium": ("repeat_previous", {"k": 32, "decks": 2}),
    "RepeatPreviousHard": ("repeat_previous", {"k": 64, "decks": 3}),
    "RepeatFirstEasy": ("repeat_first", {}),
    "RepeatFirstMedium": ("repeat_first", {"decks": 8}),
    "RepeatFirstHard": ("repeat_first", {"decks": 16}),
    "CountRecallEasy": ("count_recall", {}),
    "CountRecallMedium": ("count_recall", {"decks": 2, "kind": "suits"}),
    "CountRecallHard": ("count_recall", {"decks": 4, "kind": "ranks"}),
    "AutoencodeEasy": ("autoencode", {}),
    "AutoencodeMedium": ("autoencode", {"decks": 2}),
    "HigherLowerEasy": ("higher_lower", {}),
    "HigherLowerHard": ("higher_lower", {"decks": 3}),
    "PositionOnlyCartPoleEasy": ("position_only_cartpole", {}),
    "PositionOnlyCartPoleMedium": ("position_only_cartpole", {"steps": 400}),
    "PositionOnlyCartPoleHard": ("position_only_cartpole", {"steps": 600}),
    "NoisyPositionOnlyCartPoleEasy": ("position_only_cartpole", {"noise": 0.1}),
    "NoisyPositionOnlyCartPoleMedium": ("position_only_cartpole", {"noise": 0.2}),
    "NoisyPositionOnlyCartPoleHard": ("position_only_cartpole", {"noise": 0.3}),
    "MultiarmedBanditEasy": ("multiarmed_bandit", {}),
    "MultiarmedBanditHard": ("multiarmed_bandit", {"arms": 30, "steps": 600}),
}

Row = tuple[np.ndarray, float, bool, bool]  # observation, reward, terminated, truncated


def native(task: str, episodes: int = 2) -> tuple[list[Row], list[int]]:
    """Rows of the native environment (column 1 of 2, seeds SEED - 1 and SEED) and its actions."""
    name, kwargs = TASKS[task]
    env = make_env(preset(name, kwargs=kwargs, backend="vector"), num_envs=2)
    hidden = make_env(preset(name, kwargs={**kwargs, "full_state": True}), num_envs=2)
    rows: list[Row] = [(env.reset(seed=SEED - 1)[1].copy(), 0.0, False, False)]
    state = hidden.reset(seed=SEED - 1)
    rng, actions = np.random.default_rng(0), []
    while episodes:
        action = rng.integers(env.action_space.n, size=2)
        if task.startswith("Count") and rng.random() < 0.5:
            action = state.argmax(1)  # one of 27 is right: chance alone would hardly be paid
        if "CartPole" in task:  # long episodes, some of them, need some skill
            state = state.reshape(2, 4)
            action = (state @ [0.1, 0.3, 3.0, 1.0] + rng.normal(0, 0.3, 2) > 0).astype(int)
        step, state = env.step(action), hidden.step(action).obs
        rows.append((step.obs[1].copy(), step.reward[1], step.terminated[1], step.truncated[1]))
        actions.append(int(action[1]))
        episodes -= bool(step.terminated[1] or step.truncated[1])
    return rows, actions


def popgym(task: str, actions: list[int]) -> list[Row]:
    """Rows of POPGym's environment under ``actions``; after an end the action resets, as ours."""
    env: gym.Env[Any, Any] = make_single(find_spec(f"popgym-{task}-v0"), {}, 0)
    rows: list[Row] = [(np.asarray(env.reset(seed=SEED)[0]), 0.0, False, False)]
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
