"""Scripts by hand, in every kind of action space, from an episode's start."""

import math

import gymnasium as gym
import numpy as np
import pytest

from rlrun.functional.explore import action_table, outside, sine
from rlrun.types import Spec, no_actions
from tests.policy.make import build

THREE = gym.spaces.Discrete(3, start=4)
ARM = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
PIXEL = gym.spaces.Box(0, 255, (2,), np.uint8)
SWITCHES, KNOBS = gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 4])
LISTED = {"script": "uniform", "choices": ((0.0, 3.0), (1.0, 1.0))}


def scripted(space, **given):
    fields = {"script": "cycle", "choices": (0.0,), "hold": 1, "period": 4.0, "amplitude": 1.0,
              "phase": 0.0}  # fmt: skip
    return build("scripted", spec=Spec(gym.spaces.Discrete(2), space), **fields | given)


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


@pytest.mark.parametrize(
    ("choice", "want"), [(0.5, [0.5, 0.5]), ((-2.0, 1.0), [-2, 1])], ids=["number", "list"]
)
def test_constant_takes_numbers_and_lists(choice, want):
    actions = play(scripted(ARM, script="constant", choices=(choice,)), [[1], [0]])
    assert actions.tolist() == [[want]] * 2
    assert actions.dtype == np.float32


@pytest.mark.parametrize(
    ("space", "values"),
    [(THREE, {0, 1, 2}), (gym.spaces.Box(3, 5, (2,), np.uint8), {3, 4, 5}), (SWITCHES, {0, 1}),
     (KNOBS, {0, 1, 2, 3})],
)  # fmt: skip
def test_uniform_actions_take_every_value_of_a_space(space, values):
    policy = build("random", spec=Spec(gym.spaces.Discrete(2), space), seed=0)
    actions = play(policy, [[1] * 9] * 9)
    assert set(actions.ravel().tolist()) == values
    assert actions.dtype == no_actions(space, 1).dtype


@pytest.mark.parametrize("name", ["scripted", "random"])
def test_uniform_actions_of_an_evaluation_are_those_of_a_seed(name):
    """Seeds of a random baseline are independent trials; evaluations of one run are the same."""

    def of(seed):
        if name == "scripted":
            return scripted(KNOBS, seed=seed, **LISTED)
        return build("random", spec=Spec(gym.spaces.Discrete(2), KNOBS), seed=seed)

    policies = [of(seed) for seed in (0, 0, 1)]
    before = str(policies[0].state_dict())
    drawn = [play(p, [[1] * 9] * 3, None).tolist() for p in policies]
    assert drawn[0] == drawn[1] == play(policies[0], [[1] * 9] * 3, None).tolist() != drawn[2]
    assert str(policies[0].state_dict()) == before
    collected = play(policies[0], [[1] * 9] * 3).tolist()
    assert collected != play(policies[0], [[1] * 9] * 3).tolist(), "collecting goes on"
    policies[2].load_state_dict(policies[0].state_dict())
    one, other = (play(p, [[1] * 9] * 3).tolist() for p in (policies[0], policies[2]))
    assert one == other


def test_uniform_samples_the_listed_choices():
    drawn = play(scripted(KNOBS, **LISTED), [[1] * 200] + [[0] * 200] * 4).reshape(-1, 2).tolist()
    share = drawn.count([0, 3]) / len(drawn)
    assert {tuple(d) for d in drawn} == {(0, 3), (1, 1)}
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / len(drawn))


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
    np.testing.assert_allclose(out[:, :, 0], [[0, 0], [2, 2], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(play(scripted(ARM, script="sine"), [[1], [1]])[:, 0, 0], 0)


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
    def choice(x):
        return tuple(map(float, x)) if isinstance(x, list) else float(x)

    assert not outside(np.array(good, np.float64), space).any()
    assert outside(np.array(bad, np.float64), space).all()
    table = action_table([choice(g) for g in good], space)
    assert table.tolist() == good
    assert table.dtype == no_actions(space, 1).dtype
    short = (1.0,) if space.shape else (1.0, 1.0)
    for wrong in (*map(choice, bad), short):
        with pytest.raises(ValueError):  # noqa: PT011
            action_table([wrong], space)
