"""``seeds=auto``: groups of seeds until the comparison is decided or the budget is spent."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.schema import Invalid, SeedsConfig
from rlrun.sweeps.seeds import (
    Place,
    SeedsResult,
    Setting,
    check_plan,
    plan_seeds,
    run_until_decided,
)

DQN, R2D2, PPO = (Setting(f"policy={name}", "cartpole") for name in ("dqn", "r2d2", "ppo"))


def config(most: int = 20, group: int = 5, level: float = 0.05) -> SeedsConfig:
    return SeedsConfig(max=most, group=group, level=level, objective="final")


def normal(means: Sequence[float], seed: int = 0) -> Callable[[Sequence[Place]], list[float]]:
    """Scores of normal noise around the mean of each setting; equal for equal places."""

    def run(places: Sequence[Place]) -> list[float]:
        return [
            means[index] + np.random.default_rng([seed, index, at]).normal() for index, at in places
        ]

    return run


def decide(
    settings: Sequence[Setting], run: Callable[[Sequence[Place]], Sequence[float]], *given: int
) -> SeedsResult:
    planned = plan_seeds(settings, config(*given), first_seed=100)
    return run_until_decided(planned, run, lambda result: None)


def test_a_large_difference_is_decided_at_the_first_look() -> None:
    result = decide([DQN, R2D2], normal([0.0, 8.0]))
    assert result.decision.winners == {(0, 1): 1}
    assert [len(scores) for scores in result.scores] == [5, 5]
    lines = result.lines()
    assert lines[2] == "policy=r2d2 is better than policy=dqn: decided after 5 seeds each"
    claim = "the comparison names a difference between equal distributions with a chance of"
    assert lines[3] == f"{claim} at most 5% (family-wise)"
    assert lines[4].startswith("settings of equal mean and unlike spread, e.g. where only one")


def test_equal_settings_spend_the_budget_and_nothing_is_claimed() -> None:
    seen: list[Place] = []

    def run(places: Sequence[Place]) -> list[float]:
        seen.extend(places)
        return normal([0.0, 0.0])(places)

    result = decide([DQN, R2D2], run, 12, 5)
    assert [seed for index, seed in seen if index == 0] == [*range(100, 112)]
    assert len(seen) == len(set(seen)) == 24
    assert result.decision.status == "budget spent"
    assert result.undecided == [(0, 1)]
    assert "policy=dqn against policy=r2d2: undecided after 12 seeds each" in result.lines()


def test_a_setting_whose_comparisons_are_decided_gets_no_more_seeds() -> None:
    result = decide([DQN, R2D2, PPO], normal([0.0, 0.0, 20.0]))
    assert len(result.scores[2]) < len(result.scores[0]) == len(result.scores[1]) == 20
    assert result.decision.winners[0, 2] == 2
    assert result.decision.winners[1, 2] == 2
    assert result.decision.winners[0, 1] is None
    assert "policy=ppo is better than policy=dqn: decided after 10 seeds each" in result.lines()
    dqn_r2d2, dqn_ppo, _ = result.to_dict()["comparisons"]
    assert dqn_r2d2 == {"settings": [0, 1], "better": None, "look": None, "seeds": None}
    assert dqn_ppo == {"settings": [0, 2], "better": 2, "look": 2, "seeds": 10}


def test_a_decision_says_after_how_many_seeds_it_was_made() -> None:
    """Two and two are equal, so that all get 20 seeds, though 10 told the twos apart."""
    other = Setting("policy=sac", "cartpole")
    result = decide([DQN, R2D2, PPO, other], normal([0.0, 0.0, 20.0, 20.0]))
    assert [len(scores) for scores in result.scores] == [20] * 4
    assert "policy=ppo is better than policy=dqn: decided after 10 seeds each" in result.lines()
    assert "policy=dqn against policy=r2d2: undecided after 20 seeds each" in result.lines()


def test_settings_are_compared_within_their_environment() -> None:
    other = [Setting(s.name, "tmaze") for s in (DQN, R2D2)]
    result = decide([DQN, other[0], R2D2, other[1]], normal([0.0, 50.0, 9.0, 59.0]))
    assert result.decision.winners == {(0, 2): 2, (1, 3): 3}


def test_a_setting_without_a_rival_is_run_once() -> None:
    result = decide([DQN, R2D2, Setting("policy=sac", "pendulum")], normal([0.0, 0.0, 3.0]))
    assert [len(scores) for scores in result.scores] == [20, 20, 5]


def test_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match=r"seeds = auto: nothing is compared: 1 settings"):
        decide([DQN], normal([0.0]))


def test_null_comparisons_name_few_differences() -> None:
    """Three equal settings, three comparisons: any false difference in at most 5 % of studies."""
    wrong = sum(
        len(decide([DQN, R2D2, PPO], normal([0, 0, 0], seed), 10).undecided) < 3
        for seed in range(40)
    )
    assert wrong <= 5  # P(more) < 0.02 for a true rate of 5 %


def test_the_last_group_is_what_the_budget_leaves() -> None:
    result = decide([DQN, R2D2], normal([0.0, 0.0]), 8, 5)
    assert [len(scores) for scores in result.scores] == [8, 8]


def test_group_within_the_budget() -> None:
    with pytest.raises(Invalid, match=r"group = 9: is more than seeds.max = 8"):
        config(8, 9)


PLAN = plan_seeds([DQN, R2D2], config(), first_seed=0)


def test_the_same_plan_may_go_on() -> None:
    check_plan(json.loads(json.dumps(PLAN.to_dict())), PLAN, "out")


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"max": 60}, r"seeds.max = 20: out was planned with seeds.max=60 \(seeds.json\)"),
        ({"group": 4}, "type seeds.group=4 or choose a new sweep.dir"),
        ({"level": 0.1}, "seeds.level = 0.05: out was planned with seeds.level=0.1"),
        ({"objective": "auc"}, "type seeds.objective=auc or choose"),
        ({"seed": 4}, "seed = 0: out was planned with seed=4"),
        ({"settings": ["policy=dqn"]}, "its seeds=auto compares other settings"),
        ({"tasks": ["tmaze", "tmaze"]}, "its seeds=auto compares other settings"),
    ],
)
def test_another_plan_is_refused(found: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_plan({**PLAN.to_dict(), **found}, PLAN, "out")
    for damaged in ([], {}, None):
        with pytest.raises(ConfigError, match="choose a new directory"):
            check_plan(damaged, PLAN, "out")


def test_as_many_settings_as_a_look_can_compare() -> None:
    def plan(count: int, *given: int) -> None:
        names = [Setting(str(i), "cartpole") for i in range(count)]
        plan_seeds(names, config(*given), first_seed=0)

    plan(50)
    plan(7, 200)
    with pytest.raises(ConfigError, match="80 settings make 3160 comparisons, whose 4 looks take "
                                          "too long; 50 settings of one environment"):  # fmt: skip
        plan(80)
    with pytest.raises(ConfigError, match="whose 2000 looks take too long"):
        plan(3, 10_000)
