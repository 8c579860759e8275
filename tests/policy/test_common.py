"""What every policy that learns promises: padding counts for nothing, rewards are shaped before
they are read, a zero start ignores the stored state, a checkpoint goes on bit for bit.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.types import tree_map
from tests.policy import make, test_offline, test_on_policy, test_qmix, test_value
from tests.policy.make import BOX, DISCRETE, RECURRENT, build
from tests.policy.test_control import NAMES as CONTROL
from tests.policy.test_control import shape_of
from tests.policy.test_qmix import TEAM

ROLLOUTS = (*test_on_policy.NAMES, "pqn")
CASES = {  # case -> (policy, its keys)
    **{case: (test_value.name_of(case), x) for case, x in test_value.CASES.items()},
    **{case: (case.split()[0], x) for case, x in test_offline.CASES.items()},
    **{f"qmix, {case}": ("qmix", {"spec": TEAM} | x) for case, x in test_qmix.CASES.items()},
    **{f"{name} {shape}": (name, shape_of(name, shape) | {"spec": BOX})
       for name in CONTROL for shape in ("inputs", "lstm", "partial")},
    **{f"{name} {memory}": (name, {"memory": memory, "prev_inputs": True, "hidden": 8})
       for name in ROLLOUTS for memory in ("none", "lstm")},
}  # fmt: skip


def sample_of(name, given, **more):
    """A sample for a policy, by another one with the same keys."""
    made = make.rollout if name in ROLLOUTS else make.windows
    return made(build(name, **given), given.get("spec", DISCRETE), **more)


@pytest.mark.parametrize(
    ("case", "value"),
    [*((case, float("nan")) for case in CASES), ("dqn", 1e9), ("r2d2", 1e9), ("ppo lstm", 1e9)],
)
def test_padding_changes_no_bit(case, value):
    """Of loss, gradients, priorities: NaN, huge numbers and wrong flags where no row is."""
    name, given = CASES[case]
    one, other = (build(name, **given) for _ in range(2))
    sample = sample_of(name, given)
    wild = make.poisoned(sample, value, flags=name not in ROLLOUTS)
    if name == "qmix":  # no number of a network
        obs = wild.segment.obs | {"alive": sample.segment.obs["alive"]}
        wild = replace(wild, segment=replace(wild.segment, obs=obs))
    make.assert_same_update(one, other, sample, wild)


SHAPED = {
    "dqn": {"prev_inputs": True}, "r2d2": {"prev_inputs": True}, "qmix": {"spec": TEAM}, "cql": {},
    "iql": {}, **{name: RECURRENT | {"spec": BOX} for name in CONTROL},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPED)
def test_rewards_are_scaled_then_clipped(name):
    """In targets and inputs: the same as rewards that were shaped before."""
    given = SHAPED[name]
    one = build(name, **given, reward_scale=0.8, reward_clip=0.5)
    other = build(name, **given, reward_scale=1.0)
    sample = sample_of(name, given)
    s = sample.segment
    reward, before = ((0.8 * x).clamp(-0.5, 0.5) for x in (s.reward, s.extras["prev_reward"]))
    shaped = replace(s, reward=reward, extras=s.extras | {"prev_reward": before})
    make.assert_same_update(one, other, sample, replace(sample, segment=shaped))


@pytest.mark.parametrize("name", ["r2d2", "qmix", "td3", "sac"])
def test_a_zero_start_ignores_the_stored_state(name):
    given = {"r2d2": {}, "qmix": {"spec": TEAM}}.get(name, RECURRENT | {"spec": BOX})
    one, other = build(name, **given, state_init="zero"), build(name, **given)
    sample = sample_of(name, given)
    blank = replace(sample.segment, state=tree_map(torch.zeros_like, sample.segment.state))
    make.assert_same_update(one, other, sample, replace(sample, segment=blank))


RATE = {"lr": make.linear(1e-2, 0.0), "adam_eps": 1e-3}
COPIED = {"target_update_every": 2, "target_tau": None}
STATISTICS = {"normalize_obs": True, "normalize_reward": True}
PASSES = {"epochs": 2, "batch_size": 20, "segment_len": 4}
SAVED = {
    **{case: (test_value.name_of(case), test_value.CASES[case] | COPIED)
       for case in ("c51", "r2d2", "r2d2 iqn")},
    "qmix": ("qmix", {"spec": TEAM} | COPIED),
    **{case: (case.split()[0], test_offline.CASES[case]) for case in ("bc lstm box", "cql", "iql")},
    **{name: (name, RECURRENT | {"spec": BOX, "actor_lr": RATE["lr"], "actor_every": 2})
       for name in CONTROL},
    "ppo": ("ppo", {"memory": "lstm"} | STATISTICS | PASSES),
    **{name: (name, {"memory": "lstm"} | STATISTICS) for name in ("a2c", "impala")},
    "pqn": ("pqn", {"memory": "lstm", "normalize_reward": True} | PASSES),
}  # fmt: skip


@pytest.mark.parametrize("case", SAVED)
def test_a_checkpoint_goes_on_bit_for_bit(case):
    """Networks, optimiser, statistics, noise and shuffling of updates, exploration.

    Between two steps of an actor that learns every second update.
    """
    name, given = SAVED[case][0], SAVED[case][1] | RATE
    spec = given.get("spec", DISCRETE)
    one, twin, other, weights = (build(name, **given, seed=seed) for seed in (0, 0, 5, 8))
    samples = [replace(sample_of(name, given, seed=i), env_steps=100) for i in range(5)]
    for sample in samples[:3]:
        make.assert_same_update(one, twin, sample, sample)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    if name not in ROLLOUTS:
        torch.testing.assert_close(one.priority(samples[0]), other.priority(samples[0]))
    for sample in samples[3:]:
        make.assert_same_update(one, other, sample, sample)
    assert one.update(samples[0]).metrics["train/lr"].item() == pytest.approx(9e-3)
    other.update(samples[0])
    weights.load(one.weights())
    for two, explore in ((other, 0.5), (weights, None)):
        acts = [make.act_once(p, spec, explore=explore).action for p in (one, two)]
        np.testing.assert_array_equal(*acts)
