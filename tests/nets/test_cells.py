"""Every memory: unroll is its step form, resets, packed lengths, stored states, start values."""

import math
from types import SimpleNamespace

import pytest
import torch

from rlrun.errors import EnvError
from rlrun.nets.actor_critic import unroll_episodes
from rlrun.nets.memory import make_memory, reset_state
from rlrun.nets.memory.burn_in import burn_in
from rlrun.nets.memory.complex_cell import ring
from rlrun.nets.memory.lmu import legendre
from rlrun.nets.memory.lstm_gru import GRU
from rlrun.schema import MEMORY_CONFIGS, MemoryConfig
from tests.nets.cells import CONFIGS, CPU, FEATURES, make, state_of, stepped

NEW = ["lru", "lru_sums", "ffm", "rtu", "rtu_nonlinear", "lmu", "gtrxl"]
PATTERNS = 10_000


def test_every_built_in_memory_has_a_small_config():
    assert {c.name for c in CONFIGS.values()} == {*MEMORY_CONFIGS} - {"none"}


class Wide(GRU):
    """A user's cell whose output is one number wider than it says."""

    def step(self, x, state):
        h, state = super().step(x, state)
        return torch.cat([h, h[:, :1]], -1), state


class WideState(GRU):
    def step(self, x, state):
        h, (s,) = super().step(x, state)
        return h, (torch.cat([s, s], -1),)


class NoState(GRU):
    def step(self, x, state):
        return super().step(x, state)[0], ()


@pytest.mark.parametrize("cell", [Wide, WideState, NoState])
def test_a_users_cell_of_another_width_is_its_fault(cell, monkeypatch):
    monkeypatch.setenv("RLRUN_TRUST", "tests")
    name = f"tests.nets.test_cells:{cell.__name__}"
    with pytest.raises(EnvError, match=name):
        make_memory(MemoryConfig(name, 4, 0.0), 3)


@pytest.mark.parametrize("select", [True, False])
@pytest.mark.parametrize("name", ["gru", "lru"])
def test_burn_in_of_windows_with_all_some_and_no_rows_of_their_own(name, select):
    """Each starts from its stored state and reads its own rows alone, the last ones."""
    memory, own_rows = make(name), (5, 2, 0, 3)
    x = torch.randn(5, len(own_rows), FEATURES)
    state = state_of(memory, 4, len(own_rows))
    valid = torch.stack([torch.arange(5) >= 5 - rows for rows in own_rows], 1)
    net = SimpleNamespace(memory=memory)
    with torch.no_grad():
        got = burn_in(net, x, state, valid, (2, 3), select_partial=select)
        for b, rows in enumerate(own_rows):
            before = tuple(s[b : b + 1] for s in state)
            want = memory.unroll(x[5 - rows :, b : b + 1], before)[1] if rows else before
            for a, w in zip(got, want, strict=True):
                torch.testing.assert_close(a[b : b + 1], w, rtol=1e-5, atol=1e-6)


def test_rtu_is_the_formula():
    """c_t = r (rotation by theta) c_{t-1} + sqrt(1 - r^2) W x_t; outputs relu(c1), relu(c2)."""
    memory = make("rtu", torch.float64)
    r, theta = torch.exp(-memory.nu_log.exp()), memory.theta_log.exp()
    turn = r * torch.exp(1j * theta)
    x = torch.randn(2, 1, FEATURES, dtype=torch.float64)
    drive = (1 - r**2).sqrt() * torch.complex(*(memory.w[:, i] @ x[..., 0, :].T for i in (0, 1))).T
    first = drive[0]
    second = turn * first + drive[1]
    zero = tuple(s.double() for s in memory.initial_state(1, CPU))
    out, last = memory.unroll(x, zero)
    torch.testing.assert_close(torch.complex(*last)[0], second)
    for row, c in zip(out, (first, second), strict=True):
        torch.testing.assert_close(row[0], torch.cat([c.real, c.imag]).relu())


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unroll_is_the_step_form_in_values_and_gradients(name, dtype):
    memory, near = make(name, dtype), 1e-5 if dtype == torch.float32 else 1e-12
    for rows in (1, 3, 21, 70):
        x = torch.randn(rows, 3, FEATURES, dtype=dtype, requires_grad=True)
        state = [s.requires_grad_() for s in state_of(memory, 6, 3, dtype)]
        got, last = memory.unroll(x, tuple(state))
        want, after = stepped(memory, x, tuple(state))
        torch.testing.assert_close(got, want, rtol=near, atol=near)
        torch.testing.assert_close(last, after, rtol=near, atol=near)
        weight, of = torch.randn_like(got), [x, *state, *memory.parameters()]
        pairs = (torch.autograd.grad(out, of, weight, allow_unused=True) for out in (got, want))
        for a, b in zip(*pairs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=near, atol=near * rows)


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("lstm", "gru")])
def test_random_resets(name):
    """10^4 patterns of episode ends, as columns of one batch; a state before row 0 for each."""
    memory, rows = make(name), 12
    with torch.no_grad():
        share = torch.rand(PATTERNS)
        first = torch.rand(rows, PATTERNS) < share * (torch.rand(PATTERNS) < 0.9)
        x, state = torch.randn(rows, PATTERNS, FEATURES), state_of(memory, 5, PATTERNS)
        got, want = unroll_episodes(memory, x, first, state), stepped(memory, x, state, first)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_ring_at_one_starts_finite():
    """nu = -log |lambda| is 0 where |lambda| rounds to 1; its logarithm is a parameter."""
    for part in ring(100_000, 0.9999, 1.0, 6.28):
        assert torch.isfinite(part).all()


@pytest.mark.parametrize("name", ["mingru", *NEW])
def test_gradients_over_resets(name):
    memory = make(name)
    x, first = torch.randn(15, 4, FEATURES, requires_grad=True), torch.rand(15, 4) < 0.2
    state = state_of(memory, 5, 4)
    got, want = unroll_episodes(memory, x, first, state), stepped(memory, x, state, first)[0]
    weight, of = torch.randn_like(got), [x, *memory.parameters()]
    pairs = (torch.autograd.grad(out, of, weight) for out in (got, want))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NEW)
def test_nothing_before_a_reset_reaches_anything_behind_it(name):
    memory = make(name)
    x, first = torch.randn(9, 2, FEATURES, requires_grad=True), torch.zeros(9, 2, dtype=torch.bool)
    first[4] = True
    out = unroll_episodes(memory, x, first, state_of(memory, 5, 2))
    fresh = unroll_episodes(memory, x[4:], first[4:], memory.initial_state(2, CPU))
    torch.testing.assert_close(out[4:], fresh, rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(out[4:].square().sum(), x)
    assert not grad[:4].any()
    assert grad[4:].any()


@pytest.mark.parametrize("name", NEW)
def test_states_are_flat_zero_at_first_and_go_on_where_they_stopped(name):
    memory, config = make(name), CONFIGS[name]
    zero = memory.initial_state(3, CPU)
    assert [(*s.shape, s.dtype) for s in zero] == [
        (3, width, torch.float32) for width in config.state_widths()
    ]
    assert not any(s.any() for s in zero)
    x = torch.randn(11, 3, FEATURES)
    whole, end = memory.unroll(x, zero)
    assert whole.shape == (11, 3, memory.size)
    head, stored = memory.unroll(x[:4], zero)
    stored = tuple(torch.from_numpy(s.detach().numpy().copy()) for s in stored)
    tail, last = memory.unroll(x[4:], stored)
    torch.testing.assert_close(torch.cat([head, tail]), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, end, rtol=1e-5, atol=1e-5)
    again = reset_state(torch.tensor([True, False, True]), stored)
    torch.testing.assert_close(memory.step(x[0, :1], tuple(s[:1] for s in again))[0], whole[0, :1])


@pytest.mark.parametrize("name", NEW)
def test_states_after_packed_lengths(name):
    memory = make(name)
    x, state, lengths = torch.randn(7, 4, FEATURES), state_of(memory, 3, 4), [0, 3, 7, 1]
    got = memory.state_after(x, torch.tensor(lengths), state)
    for b, n in enumerate(lengths):
        own = tuple(s[b : b + 1] for s in state)
        want = stepped(memory, x[:n, b : b + 1], own)[1] if n else own
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one[b : b + 1], other, rtol=1e-5, atol=1e-5)
    none = memory.state_after(x[:0], torch.zeros(4, dtype=torch.int64), state)
    assert all(torch.equal(a, b) for a, b in zip(none, state, strict=True))


@pytest.mark.parametrize("name", NEW)
def test_sums_are_in_float32_under_bfloat16(name):
    memory = make(name)
    x, state = torch.randn(12, 3, FEATURES), memory.initial_state(3, CPU)
    with torch.autocast("cpu", torch.bfloat16):
        out, last = memory.unroll(x, state)
    linear_state = last[-1] if name == "lmu" else last[0]
    assert linear_state.dtype == torch.float32
    torch.testing.assert_close(out.float(), memory.unroll(x, state)[0], rtol=0.1, atol=0.1)


# -- formulas and start values by hand -----------------------------------------------------------


def test_lru_starts_on_its_ring_with_normalised_inputs():
    memory = make("lru")
    r = memory.decay().square().sum(-1).sqrt()
    assert ((r >= 0.4) & (r <= 0.99)).all()
    torch.testing.assert_close(memory.gamma_log.exp().square() + r.square(), torch.ones(6))
    with torch.no_grad():
        memory.nu_log.fill_(50.0)  # |lambda| < 1 for all parameters
        assert memory.decay().isfinite().all()


def test_lru_step_is_the_formula():
    memory = make("lru_sums").double()
    x, s = torch.randn(1, FEATURES).double(), torch.randn(6, dtype=torch.complex128)
    lam = torch.exp(torch.complex(-memory.nu_log.exp(), memory.theta_log.exp()))
    b, c = torch.view_as_complex(memory.b.mT.contiguous()), memory.c
    after = lam * s + memory.gamma_log.exp() * (b @ x[0].cdouble())
    want = c[..., 0] @ after.real + c[..., 1] @ after.imag + memory.d @ x[0]
    y, state = memory.step(x, (s.real[None], s.imag[None]))
    torch.testing.assert_close(torch.complex(*state)[0], after)
    torch.testing.assert_close(y[0], want)


def test_rtu_turns_and_decays():
    """r = 1/2, theta = pi/2: (c1, c2) becomes (-c2, c1) / 2; outputs are its positive parts."""
    memory = make("rtu")
    with torch.no_grad():
        memory.nu_log.fill_(math.log(math.log(2)))
        memory.theta_log.fill_(math.log(math.pi / 2))
    c1, c2 = torch.full((1, 6), 4.0), torch.full((1, 6), 2.0)
    y, state = memory.step(torch.zeros(1, FEATURES), (c1, c2))
    torch.testing.assert_close(state, (torch.full((1, 6), -1.0), torch.full((1, 6), 2.0)))
    assert y[0].tolist() == pytest.approx([0.0] * 6 + [2.0] * 6, abs=1e-6)


def test_ffm_starts_with_the_papers_time_scales():
    memory = make("ffm")
    r = memory.decay().square().sum(-1).sqrt().unflatten(0, (5, 3))
    torch.testing.assert_close(r[:, 0], r[:, 2])  # contexts share the decay of their trace
    torch.testing.assert_close(r[-1, 0] ** 20, torch.tensor(0.01))  # 1 % after the horizon
    torch.testing.assert_close(memory.omega, 2 * math.pi / torch.tensor([1.0, 10.5, 20.0]))
    with torch.no_grad():
        memory.alpha.fill_(-3.0)  # a trace never grows
        assert (memory.decay().square().sum(-1) <= 1 + 1e-6).all()
        memory.alpha.fill_(1e9)
        bound = -math.log(torch.finfo(torch.float64).max) / 20 + 0.01
        r = memory.decay().double().square().sum(-1).sqrt()
        torch.testing.assert_close(
            r, torch.full((15,), math.exp(bound)).double(), rtol=1e-4, atol=0
        )


def test_lmu_remembers_a_signal_for_theta_rows():
    """Held inputs: m(t) are coefficients of u over the last theta rows; their sum with
    P_i(2 r - 1) is u(t - r theta). Voelker et al. 2019, equation 3."""
    order, theta = 8, 20.0
    a, b = legendre(order, theta)
    u = torch.sin(torch.arange(200, dtype=torch.float64) / 15)
    m = torch.zeros(order, dtype=torch.float64)
    for value in u:
        m = a @ m + b * value
    signs = (-1.0) ** torch.arange(order)  # P_i(-1): no delay; P_i(1) = 1: theta rows
    assert (m * signs).sum() == pytest.approx(float(u[-1]), abs=0.05)
    assert m.sum() == pytest.approx(float(u[-1 - int(theta)]), abs=0.05)


def test_lmu_is_discretised_by_zero_order_hold():
    """One state: A = -1 / theta, B = 1 / theta, e^A and 1 - e^A."""
    a, b = legendre(1, 4.0)
    assert (a.item(), b.item()) == pytest.approx((math.exp(-0.25), 1 - math.exp(-0.25)))
    a, b = legendre(2, 1.0)  # A = [[-1, -1], [3, -3]], B = [1, -3]
    want = torch.matrix_exp(torch.tensor([[-1.0, -1.0], [3.0, -3.0]], dtype=torch.float64))
    torch.testing.assert_close(a, want)
    step = torch.linalg.solve(
        torch.tensor([[-1.0, -1.0], [3.0, -3.0]], dtype=torch.float64), want - torch.eye(2)
    )
    torch.testing.assert_close(b, step @ torch.tensor([1.0, -3.0], dtype=torch.float64))


def test_lmu_encoders_start_as_in_the_paper():
    memory = make("lmu")
    assert not memory.encode.weight[:, 6:].any()
    assert memory.encode.weight[:, :6].abs().max() <= math.sqrt(3 / 6)
    assert not {n for n, _ in memory.named_parameters()} & {"a", "b"}


def test_gtrxl_starts_near_the_identity_and_forgets_after_its_window():
    memory = make("gtrxl")
    x, zero = torch.randn(30, 2, FEATURES), memory.initial_state(2, CPU)
    out, _ = memory.unroll(x, zero)
    shift = (out - memory.embed(x)).norm() / memory.embed(x).norm()
    assert shift < 0.5  # gates let sigmoid(-2) = 12 % through in each of four places
    changed = x.clone()
    changed[10] += 1
    diff = (memory.unroll(changed, zero)[0] - out).abs().amax((1, 2))
    reach = 2 * 4  # layers x window
    assert not diff[:10].any()
    assert (diff[10 : 10 + reach + 1] > 0).all()
    assert not diff[10 + reach + 1 :].any()


def test_gtrxl_attention_by_hand():
    """A naive loop over the keys of one query of one head agrees with the blocks."""
    memory = make("gtrxl", torch.float64)
    layer = memory.layers[0]
    rows, heads, d = torch.randn(4 + 6, 1, 6).double(), 2, 3
    t, lowest = 5, 6  # the last row; keys 0-5 of the sequence are past a reset
    oldest = torch.full((6, 1), 0)
    oldest[t] = lowest
    got = layer(rows, oldest)[t, 0]
    n = layer.norm(rows)[:, 0]
    k, v = layer.key_value(n).chunk(2, -1)
    q, r = layer.query(n[4 + t]), layer.position(layer.ages)
    read = []
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        keys = range(max(lowest, t), 4 + t + 1)
        score = torch.stack(
            [
                ((q[part] + layer.u[h]) @ k[j, part] + (q[part] + layer.v[h]) @ r[4 + t - j, part])
                for j in keys
            ]
        )
        weight = (score / math.sqrt(d)).softmax(0)
        read.append(sum(w * v[j, part] for w, j in zip(weight, keys, strict=True)))
    y = layer.gate(rows[4 + t, 0], torch.relu(layer.out(torch.cat(read))))
    torch.testing.assert_close(got, layer.mlp_gate(y, layer.mlp(layer.mlp_norm(y))))
