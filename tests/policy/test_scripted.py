"""Scripts by hand, in every kind of action space, from an episode's start."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.functional.script import action_table, outside, sine
from rlrun.policy.random import Random
from rlrun.policy.scripted import Scripted
from rlrun.schema import Invalid, MemoryConfig, RandomConfig, ScriptedConfig, TorsoConfig
from rlrun.types import Spec, no_actions

FIELDS = {
    "name": "scripted", "script": "cycle", "choices": (0.0,), "hold": 1, "period": 4.0,
    "amplitude": 1.0, "phase": 0.0, "function": None,
}  # fmt: skip
THREE = gym.spaces.Discrete(3, start=4)
ARM = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
PIXEL = gym.spaces.Box(0, 255, (2,), np.uint8)
SWITCHES, KNOBS = gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 4])


def scripted(space, *, seed=0, **changes) -> Scripted:
    return Scripted(
        ScriptedConfig(**(FIELDS | changes)), TorsoConfig("mlp", (), "relu", False),
        MemoryConfig("none", 0, 0.0), spec=Spec(gym.spaces.Discrete(2), space), seed=seed,
        total_steps=1, device=torch.device("cpu"),
    )  # fmt: skip


def play(policy, firsts, explore=0.0):
    """The actions of E environments over the rows of ``firsts`` [T][E]."""
    envs = len(firsts[0])
    actor = policy.actor(envs)
    state, out = actor.initial_state(), []
    nothing = np.zeros(envs, np.int64), np.zeros(envs, np.float32)
    for first in np.array(firsts, bool):
        eps = None if explore is None else np.full(envs, explore, np.float32)
        act = actor.act(np.zeros(envs), first, *nothing, state, explore=eps)
        state = act.state
        out.append(act.action)
    return np.stack(out)


def test_cycle_begins_anew_with_every_episode():
    """hold 2 of [0, 2, 1]; the second environment's episode ends after 3 rows."""
    firsts = [[1, 1], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    actions = play(scripted(THREE, choices=(0.0, 2.0, 1.0), hold=2), firsts)
    assert actions[:, 0].tolist() == [0, 0, 2, 2, 1, 1, 0]
    assert actions[:, 1].tolist() == [0, 0, 2, 0, 0, 2, 2]
    assert actions.dtype == no_actions(THREE, 1).dtype


def test_constant_takes_numbers_and_lists():
    firsts = [[1], [0]]
    assert play(scripted(ARM, script="constant", choices=(0.5,)), firsts).tolist() == [
        [[0.5, 0.5]],
        [[0.5, 0.5]],
    ]
    actions = play(scripted(ARM, script="constant", choices=((-2.0, 1.0),)), firsts)
    assert actions.tolist() == [[[-2, 1]], [[-2, 1]]]
    assert actions.dtype == np.float32


def test_uniform_samples_the_listed_choices():
    policy = scripted(KNOBS, script="uniform", choices=((0.0, 3.0), (1.0, 1.0)))
    drawn = play(policy, [[1] * 200] + [[0] * 200] * 4).reshape(-1, 2).tolist()
    share = drawn.count([0, 3]) / len(drawn)
    assert {tuple(d) for d in drawn} == {(0, 3), (1, 1)}
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / len(drawn))
    before = policy.generator.bit_generator.state
    one, two = (play(policy, [[1] * 9] * 3, None) for _ in range(2))
    assert np.array_equal(one, two), "evaluations draw the same"
    other = play(scripted(KNOBS, script="uniform", choices=((0.0, 3.0), (1.0, 1.0)), seed=1),
                 [[1] * 9] * 3, None)  # fmt: skip
    assert not np.array_equal(one, other), "but not those of another seed"
    assert policy.generator.bit_generator.state == before


def test_uniform_actions_of_an_evaluation_are_those_of_a_seed():
    """Seeds of a random baseline are independent trials; evaluations of one run are the same."""
    spec = Spec(gym.spaces.Discrete(2), KNOBS)
    memory, torso = MemoryConfig("none", 0, 0.0), TorsoConfig("mlp", (), "relu", False)
    drawn = []
    for seed in (0, 0, 1):
        policy = Random(RandomConfig("random"), torso, memory, spec=spec, seed=seed,
                        total_steps=1, device=torch.device("cpu"))  # fmt: skip
        drawn.append(play(policy, [[1] * 9] * 3, None).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_sine_by_hand():
    """Middles 0 and 0.5, halves 2 and 0.5; quarter turns; the second a quarter turn ahead."""
    actions = sine(ARM, np.arange(5), period=4.0, amplitude=0.5, phase=0.25)
    assert actions.dtype == np.float32
    want = [[0, 0.75], [1, 0.5], [0, 0.25], [-1, 0.5], [0, 0.75]]
    np.testing.assert_allclose(actions, want, atol=1e-6)
    full = sine(ARM, np.arange(50), period=7.0, amplitude=1.0, phase=0.1)
    assert all(ARM.contains(a) for a in full)
    assert np.ptp(full[:, 0]) > 3.8
    out = play(scripted(ARM, script="sine"), [[1, 1], [0, 0], [0, 1]])
    np.testing.assert_allclose(out[:, 0, 0], [0, 2, 0], atol=1e-6)
    np.testing.assert_allclose(out[:, 1, 0], [0, 2, 0], atol=1e-6)
    np.testing.assert_allclose(play(scripted(ARM, script="sine"), [[1], [0], [1]])[2, 0, 0], 0)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (THREE, [0, 2], [-1, 3, 0.5, math.nan]),
        (KNOBS, [[0, 3], [1, 0]], [[2, 0], [0, 4], [0.5, 0]]),
        (SWITCHES, [[0, 1]], [[0, 2], [-1, 0]]),
        (ARM, [[-2, 0], [2, 1]], [[-2.5, 0], [0, 1.5], [math.nan, 0], [math.inf, 0]]),
        (PIXEL, [[0, 255]], [[0, 256], [-1, 0], [0.5, 0]]),
    ],
)
def test_what_is_an_action(space, good, bad):
    assert not outside(np.array(good, np.float64), space).any()
    assert outside(np.array(bad, np.float64), space).all()
    choices = [tuple(map(float, g)) if isinstance(g, list) else float(g) for g in good]
    table = action_table(choices, space)
    assert table.tolist() == good
    assert table.dtype == no_actions(space, 1).dtype
    for b in bad:
        with pytest.raises(ValueError, match="is no action of"):
            action_table([tuple(map(float, b)) if isinstance(b, list) else float(b)], space)


def test_a_list_of_the_wrong_length():
    with pytest.raises(ValueError, match="one number or a list of 2 is"):
        action_table([(1.0,)], ARM)
    with pytest.raises(ValueError, match="a bare number is"):
        action_table([(1.0, 1.0)], THREE)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"script": "constant", "choices": (0.0, 1.0)}, "choices"),
        ({"script": "uniform", "choices": ()}, "choices"),
        ({"hold": 0}, "hold"),
        ({"period": 0.0}, "period"),
        ({"amplitude": 1.5}, "amplitude"),
        ({"script": "function"}, "function"),
        ({"function": "a:b"}, "function"),
    ],
)
def test_ranges(changes, key):
    with pytest.raises(Invalid) as e:
        ScriptedConfig(**(FIELDS | changes))
    assert e.value.key == key
