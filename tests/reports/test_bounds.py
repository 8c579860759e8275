"""Intervals stay within the returns that an environment allows.

Private: an interval that is a little wrong is a plausible one.
"""

import json
import math

import gymnasium as gym
import numpy as np
import pytest

import rlrun.env  # noqa: F401  (registers the diagnostic tasks)
from rlrun.reports.bounds import known_bounds, return_bounds
from rlrun.reports.comparison import difference
from rlrun.reports.groups import curve, group_runs
from rlrun.reports.intervals import mean_interval, tolerance_interval
from rlrun.reports.runs import read_runs
from tests.installed import PRESETS, preset_values
from tests.reports.forge import forge, forge_seeds

UNBOUNDED = (-math.inf, math.inf)
SCORES = [20.0, 25.0, 500.0, 30.0, 22.0]


def keys_of(preset):
    """Keys of a preset, with dots."""
    keys = {}

    def add(value, name):
        if isinstance(value, dict):
            for key, inner in value.items():
                add(inner, f"{name}.{key}")
        else:
            keys[name] = value

    add(preset_values(preset), "env")
    return keys


@pytest.mark.parametrize("preset", PRESETS)
def test_random_episodes_and_solved_ones_are_within_the_bounds(preset):
    keys = keys_of(preset)
    low, high = known_bounds(keys)
    assert low < high
    if (solved := keys["env.stop_return"]) is not None:
        assert low <= solved <= high
    if not keys["env.id"].startswith("rlrun/") or keys["env.id"] == "rlrun/Atari-v0":
        return
    kwargs = {k.removeprefix("env.kwargs."): v for k, v in keys.items() if ".kwargs." in k}
    env = gym.make(keys["env.id"], disable_env_checker=True, **kwargs)
    env.action_space.seed(0)
    for seed in range(2):
        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
        assert low - 1e-5 <= total <= high + 1e-5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, 500)),
        ({"env.max_episode_steps": 1000}, (1, 1000)),
        ({"env.kwargs.sutton_barto_reward": True}, UNBOUNDED),
        ({"env.wrappers": [{"name": "repeat_action", "steps": 4}]}, (1, 2000)),
        ({"env.wrappers": ["clip_reward"]}, UNBOUNDED),
        ({"env.wrappers": ["my.module:Wrapper"]}, UNBOUNDED),
        ({"env.id": "mine/CartPole-v9"}, UNBOUNDED),
        ({"env.id": "popgym-RepeatFirstHard-v0"}, (-1, 1)),
        ({"env.id": "rlrun/Atari-v0", "env.kwargs.game": "pong"}, (-21, 21)),
        ({"env.id": "ALE/Pong-v5"}, (-21, 21)),
        ({"env.id": "rlrun/TMaze-v0"}, UNBOUNDED),  # its arguments are not known
        ({"env.id": None}, UNBOUNDED),
        (
            {"env.id": "rlrun/Identity-v0", "env.kwargs.length": 10, "env.eval_kwargs.length": 3},
            (0, 3),
        ),  # evaluations are what is bounded
    ],
)
def test_bounds_follow_from_the_config(changes, expected):
    assert known_bounds({"env.id": "CartPole-v1", **changes}) == expected


def test_no_interval_of_a_report_leaves_the_bounds(tmp_path):
    forge_seeds(tmp_path / "a", SCORES)
    (group,) = group_runs(read_runs([str(tmp_path)]))
    assert group.bounds == (1, 500)
    for function in (mean_interval, tolerance_interval):
        free, cut = function(group.scores), function(group.scores, bounds=group.bounds)
        assert free.low < 1 < 500 < free.high
        assert (cut.value, cut.low, cut.high) == (free.value, 1, 500)
    band = curve(group)
    assert np.nanmin(band.low) == 1
    assert np.nanmax(band.high) == 500


def test_differences_are_within_what_two_returns_allow():
    """Beyond them all scores of one side are above those of the other: the test rejects."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        got = difference(*(rng.random((2, 5)) < rng.random((2, 1))) * 1.0)
        assert got.low is None or -1 <= got.low <= got.high <= 1 + 1e-6


def test_bounds_that_a_score_contradicts_are_not_used():
    """Somebody registered another environment under the id; rounding is no contradiction."""
    free = mean_interval(SCORES)
    assert mean_interval(SCORES, bounds=(1, 499)) == free
    assert mean_interval(SCORES, bounds=(1, 499.9999)).high == 500


def evaluations(path, means, *, seed, worst=0.0, best=1.0):
    """A run whose evaluations have the smallest and largest return ``worst`` and ``best``."""
    forge(path, seed=seed, env__id="mine/Task-v0", returns=means, run__eval_episodes=20)
    lines = []
    for line, mean in zip((path / "metrics.jsonl").read_text().splitlines(), means, strict=True):
        least, most = (mean, mean) if mean in (0.0, 1.0) else (worst, best)
        std = math.sqrt(max(0.0, (1 - mean) * mean))
        more = {"eval/return_std": std, "eval/return_min": least, "eval/return_max": most}
        lines.append(json.dumps({**json.loads(line), **more}) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))


def test_an_extreme_that_two_runs_reach_is_a_limit(tmp_path):
    for seed in range(5):
        evaluations(tmp_path / f"a/{seed}", [0.0, 0.35, 1.0 - 0.05 * seed], seed=seed)
    assert return_bounds(read_runs([str(tmp_path / "a")])) == (0, 1)
    evaluations(tmp_path / "b/0", [0.5] * 5, seed=0, best=2.0)  # by one run
    assert return_bounds(read_runs([str(tmp_path / "a"), str(tmp_path / "b")])) == (0, math.inf)
    evaluations(tmp_path / "c/0", [0.5], seed=0)  # 20 episodes
    assert return_bounds(read_runs([str(tmp_path / "c")])) == UNBOUNDED


@pytest.mark.parametrize(
    ("worst", "best", "expected"),
    [
        (9.0, 500.0, (0, 500)),
        (0.0, 500.0, (0, 500)),
        (-7.0, -1.0, (-math.inf, -1)),
        (-7.0, 3.0, (-math.inf, 3)),
    ],
)
def test_no_interval_passes_zero_where_no_return_does(worst, best, expected, tmp_path):
    middle = [(worst + best) / 2] * 2
    for seed in range(5):  # each has another worst episode, all the same best one
        evaluations(tmp_path / str(seed), middle, seed=seed, worst=worst + seed / 5, best=best)
    assert return_bounds(read_runs([str(tmp_path)])) == expected
