"""Actors: their networks are those that learn, exploration, masks, what is read of them."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.functional.explore import Temperature, draw_categorical, log_probability, select_action
from rlrun.functional.masks import FORBIDDEN
from rlrun.policy.actor import RecordingActor
from rlrun.types import Spec, tree_leaves
from tests.policy import make
from tests.policy.make import BOX, DISCRETE, MASKED, OBS, build

PICTURE = gym.spaces.Box(0, 255, (36, 36), np.uint8)
HOT = np.full(4, 1.5, np.float32).view(Temperature)
CNN = {"words": ("torso=nature_cnn",), "torso": (8,), "activation": "relu"}


def of(obs, **given):
    spec = Spec(obs, DISCRETE.action)
    return build("r2d2", spec=spec, trace="retrace", **given), spec


@pytest.mark.parametrize(
    ("obs", "given"),
    [
        *((obs, {"memory": "none", "activation": a}) for obs, a in zip(
            (*make.SPACES.values(), PICTURE),
            ("relu", "elu", "tanh", "relu", "elu", "tanh", "relu"), strict=True)),
        (OBS, {"memory": "lstm", "reward_clip": 0.5}),
        (OBS, {"memory": "gru", "dueling": False, "head_hidden": ()}),
        (OBS, {"memory": "mingru", "torso": (8, 5), "head_hidden": (5, 4)}),
        (OBS, {"memory": "bmru", "head_hidden": ()}),
        (OBS, {"memory": "lstm", "prev_inputs": False, "dueling": False}),
        (OBS, {"memory": "ffm", "prev_inputs": True}),  # a memory that only torch computes
        (gym.spaces.Box(0, 255, (1, 40, 40), np.uint8), {"memory": "gru", **CNN}),
        (MASKED.obs, {"memory": "lstm"}),
    ],
)  # fmt: skip
def test_acting_values_are_the_learned_ones_along_episodes(obs, given):
    """A Boltzmann policy records log softmax(Q / temperature): all of Q is in it."""
    assert_acting_is_learning(*of(obs, **given))


def test_features_that_hardly_differ_are_normalised_as_in_learning():
    """Their variance is as small as what layer normalisation adds to it."""
    policy, spec = of(OBS, memory="none", words=("torso.layer_norm=true",))
    flat = {k: w * 1e-3 for k, w in policy.weights().items() if k.startswith("torso.layers.0.")}
    policy.load(policy.weights() | flat)
    assert_acting_is_learning(policy, spec)


def assert_acting_is_learning(policy, spec):
    s = make.rollout(policy, spec, explore=HOT, before=0).segment
    q = make.stepped_q(make.nets(policy), s).detach()[:-1]
    if spec.obs is MASKED.obs:
        mask = s.obs["action_mask"][:-1] > 0
        q = torch.where(mask | ~mask.any(-1, keepdim=True), q, -torch.inf)
    want = (q / 1.5).log_softmax(-1).gather(-1, s.action[..., None])[..., 0]
    torch.testing.assert_close(s.extras["log_prob"], want, rtol=1e-4, atol=1e-5)


# -- exploration -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_epsilon_flips_one_coin_for_each_environment(name):
    policy = build(name)
    greedy = make.act_once(policy, envs=6).action
    eps = np.array([0, 0, 0, 1, 1, 1.0])
    draws = np.stack([make.act_once(policy, envs=6, explore=eps).action for _ in range(300)])
    assert (draws[:, :3] == greedy[:3]).all()
    share = (draws[:, 3:, None] == np.arange(5)).mean((0, 1))
    assert np.abs(share - 0.2).max() < 0.06
    assert (draws[:, 3] == draws[:, 4]).mean() < 0.5, "environments share a coin or a draw"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heat", [False, True])
def test_probabilities_are_the_frequencies(heat, masked):
    """Rows 0 and 1 explore by 0.3 and 2 (a share, or a temperature), row 2 not at all."""
    count, q = 6000, np.array([[1.0, 3.0, 2.5, 0.0]] * 3)
    mask = np.array([[True, False, True, True]] * 3) if masked else None
    level = np.array([0.3, 2.0 if heat else 1.0, 0.0], np.float32)
    explore, rng = level.view(Temperature) if heat else level, np.random.default_rng(0)
    many = None if mask is None else np.repeat(mask, count, 0)
    action = select_action(np.repeat(q, count, 0), np.repeat(explore, count), rng, many)
    for choice in range(4):
        frequency = (action.reshape(3, count) == choice).mean(1)
        if masked and choice == 1:
            assert (frequency == 0).all()
            continue
        with np.errstate(divide="ignore"):  # the probability of what greedy actions are not
            log_mu = log_probability(q, np.full(3, choice), explore, mask)
        rows = frequency > 0
        np.testing.assert_allclose(np.exp(log_mu)[rows], frequency[rows], atol=0.02)
    warm = np.exp((q[0] - 3) / 0.3) * (1 if mask is None else mask[0])
    if heat:
        share = np.bincount(action[:count], minlength=4) / count
        np.testing.assert_allclose(share, warm / warm.sum(), atol=0.02)


@pytest.mark.parametrize("memory", ["none", "ffm"])
def test_weight_noise_of_acting_is_that_of_learning(memory):
    """Spread over 4000 environments of the difference between two values, in numpy and torch."""
    count, spec = 4000, Spec(OBS, gym.spaces.Discrete(2))
    policy = build("r2d2", spec=spec, trace="retrace", noisy=0.8, memory=memory)
    actor, obs = policy.actor(count), np.tile(np.float32([0.3, -1, 2]), (count, 1))
    row = np.ones(count, bool), np.zeros(count, int), np.zeros(count, np.float32)
    hot = np.ones(count, np.float32).view(Temperature)
    act = actor.act(obs, *row, actor.initial_state(), explore=hot)
    p = np.exp(act.extras["log_prob"].astype(np.float64))
    gap = np.log(p / (1 - p)) * np.where(act.action == 0, 1, -1)
    net = make.nets(policy).net
    previous = net.encode_previous(torch.tensor([-1]), torch.zeros(1)) * 0
    state = net.memory.initial_state(1, torch.device("cpu"))
    h, _ = net.memory.step(net.inputs(torch.from_numpy(obs[:1]), previous), state)
    with torch.no_grad():
        mean = net.head_outputs(h)[0]
        q = torch.stack(
            [net.head_outputs(h, make.noise_at(policy, i).online)[0] for i in range(1200)]
        )
    learned = (q[:, 0] - q[:, 1]).numpy()
    one, other = (np.subtract(*np.quantile(x, [0.75, 0.25])) for x in (gap, learned))
    assert one == pytest.approx(other, rel=0.1)
    assert other > 0.1
    assert gap.mean() == pytest.approx((mean[0] - mean[1]).item(), abs=0.06)


@pytest.mark.parametrize("held", [False, True])
def test_noise_is_a_switch_of_exploring_and_may_be_held_until_the_weights_are_fetched(held):
    """Greedy: mean weights; exploring: every environment has noise of its own."""
    policy = build("dqn", noisy=3.0, noisy_resample="chunk" if held else "step")
    actor, row = policy.actor(64), [np.ones((64, 3), np.float32), np.ones(64, bool)]
    row += [np.zeros(64, int), np.zeros(64, np.float32), ()]

    def act(explore):
        return actor.act(*row, explore=explore).action

    none = np.zeros(64, np.float32)
    greedy, first, second = act(None), act(none), act(none)
    assert len({*greedy}) == 1
    assert len({*first}) > 1
    assert (first == second).all() == held
    actor.refresh()
    third = act(none)
    assert (first != third).any()
    np.testing.assert_array_equal(act(None), greedy)
    after = act(none)
    assert (after != third).any(), "greedy steps end it"
    assert len({*after}) > 1, "fresh noise behind them, not mean weights"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("r2d2", {"memory": m}) for m in ("lstm", "gru", "mingru", "bmru", "ffm")),
        ("dqn", {"distribution": "implicit", "noisy": 0.5}),
        ("ppo", {"normalize_obs": True, "memory": "gru", "spec": BOX}),
        ("ppo", {"normalize_obs": True, "memory": "ffm", "spec": BOX}),  # only torch has it
        ("bc", {"spec": BOX}),
        ("sac", {"spec": BOX}),
        ("dqn", {**CNN, "spec": Spec(gym.spaces.Box(0, 255, (1, 40, 40), np.uint8),
                                     DISCRETE.action)}),
    ],
)  # fmt: skip
def test_an_actor_keeps_its_weights_until_it_is_refreshed(name, given):
    policy, spec = build(name, **given), given.get("spec", DISCRETE)
    actor = policy.actor(64)

    def leaves(who):
        act = make.act_once(policy, spec, actor=who)
        return [x for x in tree_leaves((act.action, act.extras, act.state))]

    before = leaves(actor)
    learn = make.rollout if name == "ppo" else make.windows
    policy.update(learn(policy, spec))
    kept = leaves(actor)
    actor.refresh()
    now, fresh = leaves(actor), leaves(policy.actor(64))
    assert all(np.array_equal(a, b) for a, b in zip(before, kept, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(now, fresh, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(before, now, strict=True))


# -- masks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dqn", {}), ("dqn", {"distribution": "quantile", "noisy": 9.0}), ("r2d2", {}),
        ("cql", {}), ("pqn", {"memory": "gru"}), ("ppo", {"memory": "lstm"}), ("bc", {}),
        ("iql", {}), ("random", {}),
    ],
)  # fmt: skip
def test_no_actor_takes_a_forbidden_action(name, given):
    """Greedy, random, hot; random actions are uniform over the allowed; no action: all are."""
    policy, envs = build(name, spec=MASKED, **given), 3000
    actor = policy.actor(envs)
    mask = np.tile(np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]], np.int8),
                   (envs // 3, 1))  # fmt: skip
    obs = {"action_mask": mask, "observation": np.random.default_rng(0).normal(
        size=(envs, 3)).astype(np.float32)}  # fmt: skip
    row = np.ones(envs, bool), np.zeros(envs, int), np.zeros(envs, np.float32)
    hot = np.full(envs, 100.0, np.float32).view(Temperature)
    valued = name in ("dqn", "r2d2", "cql", "pqn")
    for explore in (None, np.ones(envs), np.full(envs, 0.5), hot)[: 4 if valued else 3]:
        action = actor.act(obs, *row, actor.initial_state(), explore=explore).action
        taken = np.take_along_axis(mask, action[:, None], 1)[:, 0]
        assert (taken == 1)[mask.any(1)].all()
        if valued and explore is not None and (explore == 1).all():
            share = np.bincount(action[::3], minlength=5) / (envs / 3)
            np.testing.assert_allclose(share, [1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.05)
    assert len({*action[1::3]}) == 5


def test_the_highest_uniform_number_draws_an_allowed_action():
    """Times the total it rounds to the total, which is where the forbidden last one begins."""

    class Highest:
        def random(self, count, dtype):
            return np.full(count, np.nextafter(np.float32(1), np.float32(0)))

    for count in range(1, 60):
        head = np.zeros((1, count + 1), np.float32)
        head[:, -1] = FORBIDDEN
        action, log_prob = draw_categorical(head, (count + 1,), Highest())
        assert action == count - 1
        assert np.isfinite(log_prob).all()


# -- what a person is shown of an actor ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "spec", "kind"),
    [("r2d2", DISCRETE, "Q"), ("dqn", DISCRETE, "Q"), ("ppo", DISCRETE, "probability"),
     ("ppo", BOX, "mean"), ("sac", BOX, "mean"), ("bc", MASKED, "probability"),
     ("random", DISCRETE, "")],
)  # fmt: skip
def test_a_reading_is_of_the_first_environment_and_changes_no_action(name, spec, kind):
    plain, read = build(name, spec=spec), build(name, spec=spec)
    found = []
    recorder = RecordingActor(read.actor(3), found.append)
    assert recorder.extras.keys() == plain.actor(3).extras.keys()
    one, two = (make.act_once(plain, spec, envs=3, actor=a) for a in (plain.actor(3), recorder))
    np.testing.assert_array_equal(one.action, two.action)
    (reading,) = found
    assert reading.kind == kind
    np.testing.assert_array_equal(reading.action, one.action[0])
    if kind in ("Q", "probability"):
        assert int(reading.values.argmax()) == int(one.action[0])
    if kind == "mean":
        want = one.action[0].ravel()
        np.testing.assert_allclose(reading.values.clip(spec.action.low, spec.action.high), want)
    if kind == "probability":
        assert reading.values.sum() == pytest.approx(1)
    if name == "r2d2":
        np.testing.assert_array_equal(reading.state, one.state[0][0])  # h, not c
