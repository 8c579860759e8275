"""float64 in, float64 out, to the last bit: no function of numbers rounds to float32 on the way."""

from importlib import import_module
from inspect import getmembers, isfunction
from pkgutil import iter_modules

import pytest
import torch

import rlrun.functional
from rlrun.functional import criterion, novelty, returns, value
from rlrun.types import Segment

T, B, A, N, C = 5, 3, 4, 6, 2
NUMPY = {"explore", "masks", "recorded", "script", "squash", "surrogate"}  # of arrays, float32
FLOAT32 = {"support", "midpoints", "whiten"}  # documented so
OF_CONFIG = {"make_criterion", "make_munchausen", "make_trace_target"}  # their grids are float32


def public(module):
    """The functions that a module of rlrun.functional defines."""
    return {
        name: f
        for name, f in getmembers(module, isfunction)
        if f.__module__ == module.__name__ and name[0] != "_"
    }


FUNCTIONS = {
    name: f
    for module in iter_modules(rlrun.functional.__path__)
    if module.name not in NUMPY
    for name, f in public(import_module(f"rlrun.functional.{module.name}")).items()
    if name not in FLOAT32 | OF_CONFIG
}


def tensors(result):
    """The tensors of what a function returns."""
    if isinstance(result, novelty.SampleMoments):
        return [result.mean, result.var]
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple):
        return [x for part in result for x in tensors(part)]
    return [result]


def randn(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def flags(*shape, share=0.5, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=g, dtype=torch.float64) < share


def integers(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(2))


def one(number):
    return torch.tensor(number, dtype=torch.float64)


def segment():
    return Segment(
        obs=randn(T + 1, B, 2),
        first=flags(T + 1, B),
        action=randn(T, B, 2, seed=3),
        reward=randn(T, B),
        terminated=flags(T, B, share=0.2),
        truncated=flags(T, B, share=0.2, seed=4),
        valid=torch.ones(T, B, dtype=torch.bool),
        extras={"prev_action": randn(B, 2), "prev_reward": randn(B)},
        state=(),
    )


def ends():
    s = segment()
    return s.terminated, s.truncated, s.valid


TB, TB1, VALID, WEIGHT = randn(T, B), randn(T + 1, B), flags(T, B, share=0.7), randn(B).abs()
Q, ACTION, ALLOWED = randn(T, B, A), integers(A, T, B), torch.ones(T, B, A, dtype=torch.bool)
STEPS = integers(3, T - 2, B)
CASES = {
    # continuous
    "squashed_gaussian": [randn(T, A), randn(T, A, seed=5), randn(T, A, seed=6)],
    "log_tanh_derivative": [TB],
    "uniform_log_density": [TB],
    "smoothed_action": ([TB, randn(T, B, seed=7)], {"sigma": 0.2, "clip": 0.1}),
    # distributional
    "project": [randn(T, N), randn(T, N).softmax(-1), torch.linspace(-1, 1, N).double()],
    "cross_entropy": [randn(T, N), randn(T, N, seed=5).softmax(-1)],
    "kl_divergence": [randn(T, N), randn(T, N, seed=5).softmax(-1)],
    "quantile_huber": ([randn(T, N), randn(T, N, seed=5), randn(T, N).sigmoid()], {"kappa": 0.7}),
    "cosines": [TB, N],
    "log_policy": ([Q], {"temperature": 0.03}),
    "munchausen_reward": ([Q, ACTION], {"scale": 0.9, "temperature": 0.03, "clip": -0.7}),
    "munchausen_value": ([Q, Q], {"temperature": 0.03}),
    # mixing
    "vdn_total": [TB],
    "qmix_total": [TB, randn(T, B, N), randn(T, N), randn(T, N, seed=5), randn(T)],
    "mask_left_agents": [TB, VALID],
    "team_greedy": [Q, ALLOWED],
    # novelty
    "empty_moments": [(B,), torch.device("cpu")],
    "merge_moments": [novelty.SampleMoments(3.0, randn(B), randn(B).abs()), TB],
    "prediction_error": [TB, randn(T, B, seed=5)],
    "discounted_sums": [TB, VALID, randn(B), 0.9],
    "bonus_reward": ([TB, TB, VALID], {"factor": 0.3}),
    # offline
    "categorical_log_prob": [Q, ACTION],
    "normal_log_prob": [TB, randn(T, B, seed=5), randn(T, B, seed=6)],
    "expectile_loss": [TB, 0.9],
    "advantage_weight": [TB, 0.3, 100.0],
    "conservative_gap": [Q, ACTION, ALLOWED],
    "sampled_gap": [randn(C, N, T, B), randn(N, T, B), randn(C, T, B)],
    # policy
    "categorical": [randn(T, B, 2 * A), integers(A, T, B, 2), (A, A)],
    "mask_logits": [Q, {"action_mask": ALLOWED}],
    "gaussian": [Q, randn(A), randn(T, B, A, seed=5)],
    "standardise": [TB, VALID],
    "mean_terms": [{"loss": TB, "entropy": randn(T, B, seed=5)}, VALID],
    "explained_variance": [TB, randn(T, B, seed=5), VALID],
    # q_traces
    "trace_return": ([TB, TB1, TB, TB.sigmoid(), *ends()], {"gamma": 0.99}),
    "epsilon_greedy_policy": [Q, ALLOWED, 0.1],
    "retrace_coefficient": [TB.sigmoid(), TB.sigmoid().log(), 0.95],
    # returns
    "value_after": [TB1, VALID, VALID],
    "nstep_return": ([TB, *ends()], {"nstep": 3, "gamma": 0.99}),
    "reverse_scan": [TB, TB],
    "trace_continues": [*ends()],
    "gae": ([TB, TB1, *ends()], {"gamma": 0.99, "trace": 0.95}),
    "lambda_return": ([TB, TB1, *ends()], {"gamma": 0.99, "trace": 0.65}),
    "vtrace": (
        [TB, TB, TB1, *ends()],
        {"gamma": 0.99, "trace": 0.95, "rho_clip": 1.1, "c_clip": 0.9},
    ),
    # rows
    "masked_sum": [TB, VALID, 0],
    "masked_mean": [TB, VALID, 0],
    "weighted_row_mean": [TB, VALID, WEIGHT],
    "readable": [VALID, VALID],
    "shape_reward": [TB, 0.1, 0.05],
    "network_inputs": ([segment()], {"scale": 0.1, "clip": 0.05}),
    "readable_obs": [segment()],
    "keep_rows": [VALID, TB],
    "rows": [TB, 1, 3],
    # scan, transition
    "linear_scan": [randn(T, B, N).sigmoid(), randn(T, B, N, seed=5), randn(B, N)],
    "transition": ([segment(), TB], {"nstep": 3, "gamma": 0.99, "prev_inputs": (0.1, 0.05)}),
    # value
    "rescale": [TB, 1e-3],
    "unrescale": [TB, 1e-3],
    "dueling": [randn(T, B, 1), Q],
    "take_action": [Q, ACTION],
    "greedy": [Q, ALLOWED],
    "gather_bootstrap": [TB, STEPS],
    "td_target": ([TB, TB.abs(), randn(T, B, seed=5)], {"rescale_eps": 1e-3}),
    "huber": [TB, 0.3],
    "td_metrics": [TB[0, 0], TB.abs(), TB, TB, VALID],
    "mixed_priority": [TB, VALID, 0.9],
}
MORE = [
    (returns.nstep_return, [TB, *ends()], {"nstep": 1, "gamma": 0.99}),
    (returns.transition, [segment(), TB], {"nstep": 1, "gamma": 0.99}),
    (criterion.munchausen_value, [randn(T, B, A, N), Q], {"temperature": 0.03}),
    (criterion.quantile_huber, [TB, TB, TB.sigmoid()], {"kappa": 0.0}),
    (value.td_target, [TB, TB.abs(), TB], {"rescale_eps": None}),
    (value.huber, [TB, None], {}),
]


def cases():
    for name, case in CASES.items():
        args, kwargs = case if isinstance(case, tuple) else (case, {})
        yield pytest.param(FUNCTIONS[name], args, kwargs, id=name)
    for f, args, kwargs in MORE:
        yield pytest.param(f, args, kwargs, id=f"{f.__module__}.{f.__name__}")


def test_every_function_has_a_case():
    assert sorted(CASES) == sorted(FUNCTIONS)


@pytest.mark.parametrize(("function", "args", "kwargs"), list(cases()))
def test_float64_is_kept(function, args, kwargs):
    """The results are those under a default dtype of float64, where nothing falls to float32."""
    got = tensors(function(*args, **kwargs))
    torch.set_default_dtype(torch.float64)
    try:
        want = tensors(function(*args, **kwargs))
    finally:
        torch.set_default_dtype(torch.float32)
    for x, y in zip(got, want, strict=True):
        assert x.dtype != torch.float32
        assert torch.equal(x, y)
