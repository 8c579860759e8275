"""CQL on SAC: what conservatism does, its multiplier, its options; the naive twin: test_control."""

import math
from itertools import pairwise

import pytest
import torch

from tests.policy.factory import RECURRENT, box_batch, control
from tests.policy.test_control import check_against_naive, gradients


def values(policy, sample):
    """(mean value of the rows' own actions, of even ones) by both critics."""
    s = sample.segment
    view = policy.q.encoder.torso(s.obs[:1])
    own = policy.bounds.to_unit(s.action[:1])
    even = 2 * policy.noise(10**6, 64, *own.shape, uniform=True) - 1
    with torch.no_grad():
        many = policy.q(view.expand(64, *view.shape), even)
        return policy.q(view, own).mean().item(), many.mean().item()


@pytest.mark.parametrize("shape", [{}, RECURRENT], ids=["single", "lstm"])
@pytest.mark.parametrize("option", [{"entropy_in_target": True}, {"samples": 1}, {"td_clip": 0.05}])
def test_options_are_those_of_the_naive_loop(option, shape):
    check_against_naive(control("cql_sac", **shape, **option))


def test_without_conservatism_it_is_sac():
    """The same losses and gradients."""
    mild = control("cql_sac", conservatism=0.0, gap_threshold=None, entropy_in_target=True)
    plain, sample = control("sac"), box_batch(control("sac"))
    a, b = (p.losses(sample.segment, sample.weight) for p in (mild, plain))
    torch.testing.assert_close(a.critic, b.critic)
    torch.testing.assert_close(gradients(mild, a), gradients(plain, b))
    assert a.multipliers.keys() == b.multipliers.keys() == {"temperature"}


@pytest.mark.parametrize("shape", [{}, RECURRENT], ids=["single", "lstm"])
def test_overfits_one_sample(shape):
    """With gamma 0 and little conservatism the values of the rows' actions are their rewards."""
    mild = {"conservatism": 1e-3, "gap_threshold": None, "gamma": 0.0, "nstep": 1}
    policy = control("cql_sac", **(shape | mild), torso=(32,))
    sample = box_batch(policy)
    first, *_, last = (policy.update(sample).metrics["train/td_abs"].item() for _ in range(200))
    assert last < 0.1 * first


def test_values_of_other_actions_are_pushed_down():
    """The more conservatism the lower even actions stand below the rows' own, and the gap."""
    apart, gaps = [], []
    for conservatism in (0.0, 1.0, 10.0):
        policy = control("cql_sac", conservatism=conservatism, gap_threshold=None, gamma=0.0)
        sample = box_batch(policy)
        for _ in range(200):
            out = policy.update(sample)
        own, even = values(policy, sample)
        apart.append(own - even)
        gaps.append(out.metrics["train/conservative_gap"].item())
    assert apart[0] + 0.03 < apart[1] < apart[2] - 0.03
    assert gaps[0] > gaps[1] > gaps[2]


@pytest.mark.parametrize(("threshold", "rises"), [(-50.0, True), (50.0, False)])
def test_the_weight_moves_until_the_gap_is_the_threshold(threshold, rises):
    policy = control("cql_sac", gap_threshold=threshold)
    sample = box_batch(policy)
    seen = [policy.update(sample).metrics["train/conservatism"].item() for _ in range(6)]
    assert seen[0] == pytest.approx(0.7)
    assert all((b > a) == rises for a, b in pairwise(seen))


def test_a_fixed_weight_stays():
    policy = control("cql_sac", gap_threshold=None)
    sample = box_batch(policy)
    seen = [policy.update(sample).metrics["train/conservatism"].item() for _ in range(3)]
    assert seen == pytest.approx([0.7] * 3)


def test_the_weight_grows_until_the_gap_is_narrow_enough_then_falls():
    """The gap starts near log 4, the volume of the actions, and crosses the threshold; the weight
    turns where it does, up to what Adam's momentum carries it on."""
    policy = control("cql_sac", gap_threshold=0.3, gamma=0.0)
    sample = box_batch(policy)
    logged = [policy.update(sample).metrics for _ in range(450)]
    gaps, weights = (
        [m[f"train/{name}"].item() for m in logged] for name in ("conservative_gap", "conservatism")
    )
    assert gaps[0] == pytest.approx(math.log(4), abs=0.1)
    crossed = next(i for i, gap in enumerate(gaps) if gap < 0.3)
    peak = max(range(450), key=weights.__getitem__)
    assert 0 < crossed - 40 < peak < crossed + 40 < 450
    assert weights[-1] < 0.5 * weights[peak]
