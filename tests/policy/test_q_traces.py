"""policy.trace of DQN and R2D2: naive loops, padding, what acting records, what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.functional.explore import Temperature, log_probability, select_action
from rlrun.schema import Invalid
from tests.policy.factory import batch_of, dqn, gradient, r2d2
from tests.policy.test_r2d2 import poisoned
from tests.policy.test_switches import draws_of, moved
from tests.reference.value import one_window

CASES = [
    (dqn, {"trace": "retrace"}),
    (r2d2, {"trace": "retrace", "double": False}),
    (dqn, {"trace": "peng_q_lambda", "double": False, "value_rescale_eps": None, "nstep": 5}),
    (r2d2, {"trace": "peng_q_lambda", "value_rescale_eps": None}),
    (r2d2, {"trace": "watkins_q_lambda", "noisy": 0.5}),
    (dqn, {"trace": "harutyunyan_q_lambda", "noisy": 0.5, "prev_inputs": False}),
]
NAMES = [f"{make.__name__}-{options['trace']}" for make, options in CASES]


def recorded(segment):
    """The windows with log-probabilities of their actions."""
    g = torch.Generator().manual_seed(5)
    log_prob = torch.empty(segment.reward.shape).uniform_(0.05, 1, generator=g).log()
    return replace(segment, extras=segment.extras | {"log_prob": log_prob})


@pytest.mark.parametrize(("make", "options"), CASES, ids=NAMES)
def test_loss_is_the_naive_loop_and_reads_no_padding(make, options):
    policy = moved(make(**options))
    segment = recorded(batch_of(policy).segment)
    count = segment.reward.shape[1]
    weight = torch.linspace(0.2, 1, count)
    out = policy.loss(segment, weight)
    naive = [one_window(policy, segment, b, draws_of(policy, count)) for b in range(count)]
    loss = sum(w * x for w, (x, _) in zip(weight, naive, strict=True)) / count
    torch.testing.assert_close(out.loss, loss.detach(), rtol=1e-4, atol=1e-6)
    eta = getattr(policy.config, "eta", 1.0)
    for got, (_, found) in zip(out.priority, naive, strict=True):
        want = eta * max(found) + (1 - eta) * np.mean(found) if found else 0.0
        assert got.item() == pytest.approx(want, rel=2e-3, abs=2e-5)
    expected = torch.autograd.grad(loss, list(policy.net.parameters()))
    for got, want in zip(gradient(policy, out), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-6)

    dirty = poisoned(segment, float("nan"))
    log_prob = torch.where(segment.valid, segment.extras["log_prob"], torch.nan)
    dirty = replace(dirty, extras=segment.extras | {"log_prob": log_prob})
    again = policy.loss(dirty, weight)
    assert torch.equal(again.loss, out.loss)
    assert torch.equal(again.priority, out.priority)
    for one, two in zip(gradient(policy, again), gradient(policy, out), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("make", [dqn, r2d2])
def test_acting_records_the_probability_of_its_action(make):
    """0.1 / 5 of a random action, 0.9 more of the greedy one; nothing where nobody reads it."""
    policy = make(trace="retrace", prev_inputs=False)
    actor = policy.actor(200)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(200, 3)).astype(np.float32)
    given = (obs, np.ones(200, bool), np.zeros(200, int), np.zeros(200, np.float32))
    state = actor.initial_state()
    greedy = actor.act(*given, state, explore=None)
    np.testing.assert_array_equal(greedy.extras["log_prob"], np.zeros(200, np.float32))
    out = actor.act(*given, state, explore=np.full(200, 0.1, np.float32))
    same = out.action == greedy.action
    assert not same.all()
    mu = np.where(same, 0.92, 0.02)
    np.testing.assert_allclose(np.exp(out.extras["log_prob"]), mu, rtol=1e-5)
    assert out.extras["log_prob"].dtype == np.float32
    assert make(prev_inputs=False).actor(2).extras == {}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heat", [False, True])
def test_probabilities_are_the_frequencies(heat, masked):
    """Rows 0 and 1 explore by 0.3 and 2 (a share, or a temperature), row 2 not at all."""
    count, q = 6000, np.array([[1.0, 3.0, 2.5, 0.0]] * 3)
    mask = np.array([[True, False, True, True]] * 3) if masked else None
    level = np.array([0.3, 2.0 if heat else 1.0, 0.0], np.float32)
    explore, rng = level.view(Temperature) if heat else level, np.random.default_rng(0)
    tables = [None if mask is None else np.repeat(mask, count, 0), np.repeat(explore, count)]
    action = select_action(np.repeat(q, count, 0), tables[1], rng, tables[0]).reshape(3, count)
    for choice in range(4):
        frequency = (action == choice).mean(1)
        if masked and choice == 1:
            assert (frequency == 0).all()
            continue
        with np.errstate(divide="ignore"):  # the probability of what greedy actions are not
            log_mu = log_probability(q, np.full(3, choice), explore, mask)
        rows = frequency > 0
        np.testing.assert_allclose(np.exp(log_mu)[rows], frequency[rows], atol=0.02)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"distribution": "quantile"}, "policy.distribution=none"),
        ({"munchausen": 0.9, "double": False, "value_rescale_eps": None}, "policy.munchausen=null"),
        ({"nstep": 1}, "set policy.nstep=3"),
    ],
)
def test_what_it_is_not_derived_for_is_refused(options, text):
    with pytest.raises(Invalid, match=text):
        dqn(trace="retrace", **options)
