"""``seeds=auto``: groups of seeds until the comparison is decided or the budget is spent."""

import json
import re

import numpy as np
import pytest

from rlrun.errors import ConfigError
from rlrun.schema.studies import SeedsConfig
from rlrun.sweeps.seeds import Place, Setting, check_plan, plan_seeds, run_until_decided

DQN, R2D2, PPO = (Setting(f"policy={name}", "cartpole") for name in ("dqn", "r2d2", "ppo"))


def config(most=20, group=5, level=0.05):
    return SeedsConfig(max=most, group=group, level=level, objective="final")


def normal(means, seed=0):
    """Scores of normal noise around the mean of each setting; equal for equal places."""

    def run(places):
        return [
            means[index] + np.random.default_rng([seed, index, at]).normal() for index, at in places
        ]

    return run


def decide(settings, run, *given):
    planned = plan_seeds(settings, config(*given), first_seed=100)
    return run_until_decided(planned, run, lambda result: None)


def test_a_large_difference_is_decided_at_the_first_look():
    result = decide([DQN, R2D2], normal([0.0, 8.0]))
    assert result.decision.winners == {(0, 1): 1}
    assert [len(scores) for scores in result.scores] == [5, 5]
    text = "\n".join(result.lines())
    assert re.search("policy=r2d2 .* policy=dqn", text)
    assert "5%" in text


def test_equal_settings_spend_the_budget_and_nothing_is_claimed():
    seen: list[Place] = []

    def run(places):
        seen.extend(places)
        return normal([0.0, 0.0])(places)

    result = decide([DQN, R2D2], run, 12, 5)
    assert [seed for index, seed in seen if index == 0] == [*range(100, 112)]
    assert len(seen) == len(set(seen)) == 24
    assert result.decision.status == "budget spent"
    assert result.decision.winners == {(0, 1): None}


def test_a_setting_whose_comparisons_are_decided_gets_no_more_seeds():
    result = decide([DQN, R2D2, PPO], normal([0.0, 0.0, 20.0]))
    assert len(result.scores[2]) < len(result.scores[0]) == len(result.scores[1]) == 20
    assert result.decision.winners[0, 2] == 2
    assert result.decision.winners[1, 2] == 2
    assert result.decision.winners[0, 1] is None
    dqn_r2d2, dqn_ppo, _ = result.to_dict()["comparisons"]
    assert dqn_r2d2 == {"settings": [0, 1], "better": None, "look": None, "seeds": None}
    assert dqn_ppo == {"settings": [0, 2], "better": 2, "look": 2, "seeds": 10}


def test_settings_are_compared_within_their_environment():
    other = [Setting(s.name, "tmaze") for s in (DQN, R2D2)]
    result = decide([DQN, other[0], R2D2, other[1]], normal([0.0, 50.0, 9.0, 59.0]))
    assert result.decision.winners == {(0, 2): 2, (1, 3): 3}


def test_the_last_group_is_what_the_budget_leaves():
    """A setting without a rival is run once."""
    result = decide([DQN, R2D2, Setting("policy=sac", "pendulum")], normal([0.0, 0.0, 3.0]), 8, 5)
    assert [len(scores) for scores in result.scores] == [8, 8, 5]


def test_nothing_to_compare():
    with pytest.raises(ConfigError, match=r"seeds = auto"):
        decide([DQN], normal([0.0]))


PLAN = plan_seeds([DQN, R2D2], config(), first_seed=0)


def test_the_same_plan_may_go_on():
    check_plan(json.loads(json.dumps(PLAN.to_dict())), PLAN, "out")


@pytest.mark.parametrize(
    ("found", "typed"),
    [
        ({"max": 60}, "seeds.max=60"), ({"group": 4}, "seeds.group=4"),
        ({"level": 0.1}, "seeds.level=0.1"), ({"objective": "auc"}, "seeds.objective=auc"),
        ({"seed": 4}, "seed=4"), ({"settings": ["policy=dqn"]}, "settings"),
        ({"tasks": ["tmaze", "tmaze"]}, "settings"),
    ],
)  # fmt: skip
def test_another_plan_is_refused(found, typed):
    with pytest.raises(ConfigError, match=typed):
        check_plan({**PLAN.to_dict(), **found}, PLAN, "out")
    for damaged in ([], {}, None):
        with pytest.raises(ConfigError):
            check_plan(damaged, PLAN, "out")


def test_as_many_settings_as_a_look_can_compare():
    def plan(count, *given):
        names = [Setting(str(i), "cartpole") for i in range(count)]
        plan_seeds(names, config(*given), first_seed=0)

    plan(50)
    plan(7, 200)
    with pytest.raises(ConfigError, match=r"80 .* 50 "):
        plan(80)
    with pytest.raises(ConfigError, match="2000"):
        plan(3, 10_000)
