"""Every memory: unroll is its step form, resets, packed lengths, stored states, start values."""

import math

import pytest
import torch

from rlrun.errors import EnvError
from rlrun.nets.acting import burn_in
from rlrun.nets.actor_critic import unroll_episodes
from rlrun.nets.memory import make_memory, reset_state
from rlrun.nets.memory.gated import _ONE_LAYER, GRU, _aligned, legendre
from rlrun.nets.memory.linear import ring
from rlrun.policy.compute import Compute, tensor_cores
from rlrun.schema import MEMORY_CONFIGS, MemoryConfig
from tests.compose import config
from tests.nets.cells import CONFIGS, CPU, FEATURES, make, state_of, stepped


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


class MatrixState(GRU):
    def initial_state(self, batch, device):
        return (torch.zeros(batch, self.size, 2, device=device),)

    def step(self, x, state):
        h, (s,) = super().step(x, (state[0][..., 0],))
        return h, (torch.stack([s, s], -1),)


@pytest.mark.parametrize("cell", [Wide, WideState, NoState, MatrixState])
def test_a_users_cell_of_another_width_is_its_fault(cell, monkeypatch):
    monkeypatch.setenv("RLRUN_TRUST", "tests")
    name = f"{__name__}:{cell.__name__}"
    with pytest.raises(EnvError, match=name):
        make_memory(MemoryConfig(name, 4, 0.0), 3)


@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_is_the_step_form_in_values_and_gradients(name):
    memory = make(name, torch.float64)
    for rows in (1, 3, 40):
        x = torch.randn(rows, 3, FEATURES, dtype=torch.float64, requires_grad=True)
        state = [s.requires_grad_() for s in state_of(memory, 6, 3, torch.float64)]
        got, last = memory.unroll(x, tuple(state))
        want, after = stepped(memory, x, tuple(state))
        assert got.shape == (rows, 3, memory.size)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last, after, rtol=1e-12, atol=1e-12)
        of = [x, *state, *memory.parameters()]
        same_gradients(got, want, of, near=1e-12 * rows)


def same_gradients(got, want, of, near):
    weight = torch.randn_like(got)
    pairs = (torch.autograd.grad(out, of, weight, allow_unused=True) for out in (got, want))
    for a, b in zip(*pairs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=max(near, 1e-12), atol=near)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_gpu_unrolls_as_the_cpu_in_values_and_gradients(name):
    memory = make(name)
    x, state = torch.randn(20, 3, FEATURES), state_of(memory, 6, 3, torch.float32)
    found = []
    with tensor_cores("float32"):
        for device in ("cpu", "cuda"):
            memory.to(device)
            out, last = memory.unroll(x.to(device), tuple(s.to(device) for s in state))
            grads = torch.autograd.grad(out.square().sum(), [*memory.parameters()])
            found.append([y.cpu() for y in (out, *last, *grads)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize(("units", "batch"), [(512, 64), (256, 16), (200, 16), (256, 80)])
def test_an_lstm_in_float16(units, batch):
    """Widths for which cuDNN keeps the weights on the chip, and others."""
    memory = make_memory(config("memory=lstm", f"memory.hidden={units}").memory, 19).cuda()
    x, state = torch.randn(20, batch, 19).cuda(), memory.initial_state(batch, torch.device("cuda"))
    found = []
    for precision in ("float32", "bf16"):
        with tensor_cores(precision), Compute(precision).autocast(x.device)():
            out, last = memory.unroll(x, state)
        grads = torch.autograd.grad(out.float().square().mean() * 1024, [*memory.parameters()])
        found.append([y.float() for y in (out, *last, *grads)])
    for rough, exact in zip(found[1], found[0], strict=True):
        assert (rough - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_padded_features_and_weights_in_one_array(name):
    """Private: only a GPU uses it."""
    memory, x = make(name), torch.randn(4, 3, FEATURES)
    state = [s.unsqueeze(0) for s in state_of(memory, 6, 3, torch.float32)]
    padded, weights = _aligned(x, memory.core)
    assert padded.shape[-1] == weights[0].shape[-1] == 8
    assert len({w.untyped_storage().data_ptr() for w in weights}) == 1
    function = torch.lstm if name == "lstm" else torch.gru
    got = function(padded, state if name == "lstm" else state[0], weights, *_ONE_LAYER)
    want, after = memory.unroll(x, tuple(s.squeeze(0) for s in state))
    torch.testing.assert_close(got[0], want)
    torch.testing.assert_close(got[1].squeeze(0), after[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_flat_zero_at_first_and_go_on_where_they_stopped(name):
    """In float32, as everything is stored."""
    memory, config = make(name), CONFIGS[name]
    zero = memory.initial_state(3, CPU)
    assert [(*s.shape, s.dtype) for s in zero] == [
        (3, width, torch.float32) for width in config.state_widths()
    ]
    assert not any(s.any() for s in zero)
    x = torch.randn(11, 3, FEATURES)
    whole, end = memory.unroll(x, zero)
    head, stored = memory.unroll(x[:4], zero)
    stored = tuple(torch.from_numpy(s.detach().numpy().copy()) for s in stored)
    tail, last = memory.unroll(x[4:], stored)
    torch.testing.assert_close(torch.cat([head, tail]), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, end, rtol=1e-5, atol=1e-5)
    again = reset_state(torch.tensor([True, False, True]), stored)
    torch.testing.assert_close(memory.step(x[0, :1], tuple(s[:1] for s in again))[0], whole[0, :1])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_can_be_traced_for_any_number_of_rows(name):
    """As an ONNX file needs."""
    memory, x = make(name), torch.randn(2, FEATURES)
    memory.forward = memory.step
    state = memory.initial_state(2, CPU)
    rows = {0: torch.export.Dim.DYNAMIC}
    shapes = (rows, tuple(rows for _ in state))
    traced = torch.export.export(memory, (x, state), dynamic_shapes=shapes, strict=False).module()
    for n in (1, 5):
        x, state = torch.randn(n, FEATURES), state_of(memory, 3, n)
        torch.testing.assert_close(traced(x, state), memory.step(x, state))


@pytest.mark.parametrize("name", CONFIGS)
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


@pytest.mark.parametrize("name", CONFIGS)
def test_episodes_end_anywhere_in_the_columns_of_an_unroll(name):
    """As steps with a state that starts afresh; a state before row 0 for each of 2000 columns."""
    memory, columns, rows = make(name), 2000, 12
    with torch.no_grad():
        first = torch.rand(rows, columns) < torch.rand(columns) * (torch.rand(columns) < 0.9)
        first[:, :2] = torch.tensor([False, True])
        x, state = torch.randn(rows, columns, FEATURES), state_of(memory, 5, columns)
        got, want = unroll_episodes(memory, x, first, state), stepped(memory, x, state, first)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if name in ("lstm", "gru"):  # scans multiply by zero
        wild = tuple(torch.full_like(s, torch.nan) for s in state)
        begun = first | (torch.arange(rows) == 0)[:, None]
        assert unroll_episodes(memory, x, begun, wild).isfinite().all()
    for share in (0.2, 0.0):
        x, first = torch.randn(9, 4, FEATURES, requires_grad=True), torch.rand(9, 4) < share
        first[0, 1], state = True, state_of(memory, 5, 4)
        got, want = unroll_episodes(memory, x, first, state), stepped(memory, x, state, first)[0]
        same_gradients(got, want, [x, *memory.parameters()], near=1e-4)


@pytest.mark.parametrize("select", [True, False])
@pytest.mark.parametrize("name", ["gru", "lru"])
def test_burn_in_of_windows_with_all_some_and_no_rows_of_their_own(name, select):
    """Each starts from its stored state and reads its own rows alone, the last ones.

    Private: ``select`` False is the way of GPUs.
    """
    memory, own_rows = make(name), (5, 2, 0, 3)
    x = torch.randn(5, len(own_rows), FEATURES)
    state = state_of(memory, 4, len(own_rows))
    valid = torch.stack([torch.arange(5) >= 5 - rows for rows in own_rows], 1)
    with torch.no_grad():
        got = burn_in(memory, x, state, valid, (2, 3), select_partial=select)
        for b, rows in enumerate(own_rows):
            before = tuple(s[b : b + 1] for s in state)
            want = memory.unroll(x[5 - rows :, b : b + 1], before)[1] if rows else before
            for a, w in zip(got, want, strict=True):
                torch.testing.assert_close(a[b : b + 1], w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("lstm", "gru")])
def test_sums_are_in_float32_under_bfloat16(name):
    memory = make(name)
    x, state = torch.randn(12, 3, FEATURES), memory.initial_state(3, CPU)
    with torch.autocast("cpu", torch.bfloat16):
        out, last = memory.unroll(x, state)
    linear_state = last[-1] if name == "lmu" else last[0]
    assert linear_state.dtype == torch.float32
    torch.testing.assert_close(out.float(), memory.unroll(x, state)[0], rtol=0.1, atol=0.1)


# -- formulas and start values by hand -------------------------------------------------------------

DOUBLE = {"dtype": torch.float64}


def given(memory, rows=1):
    """Inputs [rows, F] and a state of one column, in float64."""
    state = tuple(s[0] for s in state_of(memory, 5, 1, torch.float64))
    return torch.randn(rows, FEATURES, **DOUBLE), state


def one_step(memory, x, state):
    y, after = memory.step(x[None], tuple(s[None] for s in state))
    return y[0], tuple(s[0] for s in after)


def test_mingru_is_the_formula():
    """z = sigmoid(gate), h = (1 - z) h + z c; keep gates start spread over time scales."""
    memory = make("mingru_sums")
    keep = torch.sigmoid(memory.core.bias[:6])
    scales = 1 + torch.linspace(0, 4, 6).exp()
    torch.testing.assert_close(1 / (1 - keep), scales, rtol=1e-5, atol=0)
    with torch.no_grad():
        memory.core.weight.zero_()
        memory.core.weight[6:, 0] = 3.0
        memory.core.bias.zero_()
        memory.core.bias[1] = math.log(3)  # keep 3/4, not 1/2
        memory.core.bias[6:] = 1.0
    x = torch.zeros(1, FEATURES)
    x[0, 0] = 2.0
    h, _ = memory.step(x, (torch.full((1, 6), 5.0),))
    torch.testing.assert_close(h[0], torch.tensor([6.0, 0.75 * 5 + 0.25 * 7, 6, 6, 6, 6]))


def test_lru_starts_on_its_ring_and_steps_as_its_formula():
    memory = make("lru_sums").double()
    r = memory.decay().square().sum(-1).sqrt()
    assert ((r >= 0.4) & (r <= 0.99)).all()
    torch.testing.assert_close(
        memory.gamma_log.exp().square() + r.square(), torch.ones(6, **DOUBLE)
    )
    x, s = torch.randn(1, FEATURES).double(), torch.randn(6, dtype=torch.complex128)
    lam = torch.exp(torch.complex(-memory.nu_log.exp(), memory.theta_log.exp()))
    b, c = torch.view_as_complex(memory.b.mT.contiguous()), memory.c
    after = lam * s + memory.gamma_log.exp() * (b @ x[0].cdouble())
    want = c[..., 0] @ after.real + c[..., 1] @ after.imag + memory.d @ x[0]
    y, state = memory.step(x, (s.real[None], s.imag[None]))
    torch.testing.assert_close(torch.complex(*state)[0], after)
    torch.testing.assert_close(y[0], want)
    with torch.no_grad():
        memory.nu_log.fill_(50.0)  # |lambda| < 1 for all parameters
        assert memory.decay().isfinite().all()
    for part in ring(100_000, 0.9999, 1.0, 6.28):  # nu is 0 where |lambda| rounds to 1
        assert torch.isfinite(part).all()


def test_rtu_is_the_formula():
    """c_t = r (rotation by theta) c_{t-1} + sqrt(1 - r^2) W x_t; outputs relu(c1), relu(c2)."""
    memory = make("rtu", torch.float64)
    r, theta = torch.exp(-memory.nu_log.exp()), memory.theta_log.exp()
    turn = r * torch.exp(1j * theta)
    x = torch.randn(2, 1, FEATURES, **DOUBLE)
    drive = (1 - r**2).sqrt() * torch.complex(*(memory.w[:, i] @ x[..., 0, :].T for i in (0, 1))).T
    first = drive[0]
    second = turn * first + drive[1]
    zero = tuple(s.double() for s in memory.initial_state(1, CPU))
    out, last = memory.unroll(x, zero)
    torch.testing.assert_close(torch.complex(*last)[0], second)
    for row, c in zip(out, (first, second), strict=True):
        torch.testing.assert_close(row[0], torch.cat([c.real, c.imag]).relu())


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
        want = torch.full((15,), math.exp(bound)).double()
        torch.testing.assert_close(r, want, rtol=1e-4, atol=0)


def test_ffm_is_the_formula():
    """S_t = exp(-alpha + i omega) S_{t-1} + (l1 sigmoid(l2)) 1^T; LN(l3(S)) g + l5 (1 - g)."""
    memory = make("ffm", torch.float64)
    x = torch.randn(1, FEATURES, **DOUBLE)
    s = torch.randn(5, 3, dtype=torch.complex128)
    turn = torch.exp(-memory.alpha)[:, None] * torch.exp(1j * memory.omega)
    value, gate = memory.input(x)[0].chunk(2)
    after = turn * s + (value * gate.sigmoid())[:, None]
    z = memory.mix(torch.view_as_real(after.flatten()).flatten())
    z = (z - z.mean()) / (z.var(correction=0) + 1e-5).sqrt()
    through, gate = memory.output(x)[0].chunk(2)
    flat = s.flatten()[None]
    y, state = memory.step(x, (flat.real, flat.imag))
    torch.testing.assert_close(torch.complex(*state)[0], after.flatten())
    torch.testing.assert_close(y[0], z * gate.sigmoid() + through * (1 - gate.sigmoid()))


def test_lmu_is_the_formula():
    """u = E_x x + E_h h + E_m m, m' = A m + B u of each channel, h' = tanh(W (x, h, m'))."""
    memory = make("lmu", torch.float64)
    torch.nn.init.normal_(memory.encode.weight)
    x, h, m = torch.randn(FEATURES, **DOUBLE), torch.randn(6, **DOUBLE), torch.randn(2, 5, **DOUBLE)
    e, w = memory.input.weight.split([2, 6])
    u = e @ x + memory.encode.weight @ torch.cat([h, m.flatten()])
    a, b = legendre(5, 8.0)
    after = torch.stack([a @ m[k] + b * u[k] for k in range(2)]).flatten()
    want = torch.tanh(w @ x + memory.hidden.weight @ torch.cat([h, after]))
    y, state = memory.step(x[None], (h[None], m.flatten()[None]))
    torch.testing.assert_close(y[0], want, rtol=1e-6, atol=1e-7)  # a and b are float32
    torch.testing.assert_close(state, (y, after[None]), rtol=1e-6, atol=1e-6)


def test_lmu_is_discretised_by_zero_order_hold_and_starts_as_in_the_paper():
    a, b = legendre(2, 1.0)  # A = [[-1, -1], [3, -3]], B = [1, -3]
    generator = torch.tensor([[-1.0, -1.0], [3.0, -3.0]], **DOUBLE)
    want = torch.matrix_exp(generator)
    torch.testing.assert_close(a, want)
    step = torch.linalg.solve(generator, want - torch.eye(2))
    torch.testing.assert_close(b, step @ torch.tensor([1.0, -3.0], **DOUBLE))
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
        content = [(q[part] + layer.u[h]) @ k[j, part] for j in keys]
        place = [(q[part] + layer.v[h]) @ r[4 + t - j, part] for j in keys]
        score = torch.stack(content) + torch.stack(place)
        weight = (score / math.sqrt(d)).softmax(0)
        read.append(sum(w * v[j, part] for w, j in zip(weight, keys, strict=True)))
    y = layer.gate(rows[4 + t, 0], torch.relu(layer.out(torch.cat(read))))
    torch.testing.assert_close(got, layer.mlp_gate(y, layer.mlp(layer.mlp_norm(y))))


def test_indrnn_is_the_formula():
    """h = relu(W x + u h + b), |u| at most 2^(1/T); a weight beyond the limit has a gradient."""
    memory = make("indrnn", torch.float64)
    limit = 2 ** (1 / 12)
    assert (memory.u >= 0).all()
    assert (memory.u <= limit).all()
    with torch.no_grad():
        memory.u[0], memory.u[1] = 3.0, -3.0
    x, (h,) = given(memory)
    u = torch.cat([torch.tensor([limit, -limit], **DOUBLE), memory.u[2:]])
    y, state = one_step(memory, x[0], (h,))
    want = (memory.input.weight @ x[0] + memory.input.bias + u * h).clamp(min=0)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(state, (want,))
    grad = torch.autograd.grad(y.sum(), memory.u)[0]
    torch.testing.assert_close(grad, torch.where(want > 0, h, 0))


def test_bmru_is_the_formula():
    memory = make("bmru_bits", torch.float64)
    torch.testing.assert_close(memory.core.bias[6:].float(), torch.linspace(0, 1, 6))
    with torch.no_grad():
        memory.alpha.copy_(torch.linspace(0.5, 2, 6))
        memory.core.weight.zero_()
        memory.core.weight[:6, 0] = torch.tensor([3.0, -3.0, 0.9, -0.9, 0.0, 1.1])
        memory.core.bias.zero_()
        memory.core.bias[6:] = torch.tensor([1.0, -1, 1, -1, 1, 1])  # |beta| = 1
    x, h = torch.zeros(FEATURES, **DOUBLE), torch.linspace(-1, 1, 6, **DOUBLE)
    x[0] = 1.0
    y, _ = one_step(memory, x, (h,))
    a = memory.alpha
    torch.testing.assert_close(y, torch.stack([a[0], -a[1], h[2], h[3], h[4], a[5]]))


def test_bmru_gradients_are_those_of_smooth_steps():
    """dz/dv = 1 / (1 + (pi v)^2), and twice that for the sign."""
    memory = make("bmru_bits", torch.float64)
    x, (h,) = given(memory)
    c, b = (memory.core.weight @ x[0] + memory.core.bias).split(6)
    y, _ = one_step(memory, x[0], (h,))
    grad = torch.autograd.grad(y.sum(), memory.core.bias)[0]
    a, v = memory.alpha, c.abs() - b.abs()

    def slope(v):
        return 1 / (1 + (torch.pi * v) ** 2)

    of_z = slope(v) * (c.sign() * a - h)
    want_c = of_z * c.sign() + (v > 0) * 2 * slope(c) * a
    torch.testing.assert_close(grad, torch.cat([want_c, -of_z * b.sign()]))


def test_mlstm_is_the_formula():
    """The unstabilised one: C' = f C + i v k^T, n' = f n + i k, h = o C' q / max(|n' q|, 1)."""
    memory = make("mlstm_sums", torch.float64)
    torch.testing.assert_close(memory.gate.bias[2:].float(), torch.tensor([3.0, 6.0]))
    x, (c, m) = given(memory)
    y, (after, m_after) = one_step(memory, x[0], (c, m))
    (k, v), (q, o) = ((layer.weight @ x[0] + layer.bias).reshape(2, 2, 3) for layer in
                      (memory.kv, memory.qo))  # fmt: skip
    i, f = (memory.gate.weight @ x[0] + memory.gate.bias).reshape(2, 2)
    for head in (0, 1):
        c_true, n_true = (c.reshape(2, 4, 3)[head] * m[head].exp()).split([3, 1])
        key = k[head] / 3**0.5
        c_true = f[head].sigmoid() * c_true + i[head].exp() * torch.outer(v[head], key)
        n_true = f[head].sigmoid() * n_true[0] + i[head].exp() * key
        h = o[head].sigmoid() * (c_true @ q[head]) / (n_true @ q[head]).abs().clamp(min=1)
        torch.testing.assert_close(y.reshape(2, 3)[head], h)
        want = torch.cat([c_true, n_true[None]])
        torch.testing.assert_close(after.reshape(2, 4, 3)[head] * m_after[head].exp(), want)


def test_slstm_is_the_formula():
    """The unstabilised one: c' = f c + i tanh(z), n' = f n + i, h' = o c' / n'."""
    memory = make("slstm", torch.float64)
    x, (c, n, m, h) = given(memory)
    r = torch.zeros(4, 6, 6, **DOUBLE)  # blocks of z, i, f, o
    for head in (0, 1):
        own = slice(3 * head, 3 * head + 3)
        for gate, block in enumerate(memory.hidden[head].split(3, 1)):
            r[gate, own, own] = block.T
    z, i, f, o = (memory.input.weight @ x[0] + memory.input.bias).reshape(4, 6) + r @ h
    y, after = one_step(memory, x[0], (c, n, m, h))
    c_true = f.sigmoid() * c * m.exp() + i.exp() * z.tanh()
    n_true = f.sigmoid() * n * m.exp() + i.exp()
    torch.testing.assert_close(y, o.sigmoid() * c_true / n_true)
    torch.testing.assert_close(after[0] * after[2].exp(), c_true)
    torch.testing.assert_close(after[1] * after[2].exp(), n_true)


@pytest.mark.parametrize("name", ["mlstm", "slstm"])
@pytest.mark.parametrize("size", [1e3, 1e4])
def test_exponential_gates_never_overflow(name, size):
    memory = make(name)
    x = size * torch.randn(50, 2, FEATURES, requires_grad=True)
    out, last = memory.unroll(x, memory.initial_state(2, CPU))
    grads = torch.autograd.grad(out.sum(), (x, *memory.parameters()))
    assert all(v.isfinite().all() for v in (out, *last, *grads))


@pytest.mark.parametrize("name", ["gated_deltanet", "mamba2"])
def test_decays_start_at_the_configured_time_scales(name):
    gate = make(name).gate
    dt, log_decay = gate(torch.zeros(FEATURES))
    torch.testing.assert_close(dt, torch.tensor([0.05, 0.5]))
    torch.testing.assert_close(log_decay, -dt)


def test_gated_deltanet_is_the_formula():
    """S' = S alpha (I - beta k k^T) + beta v k^T, o = S' q."""
    memory = make("gated_deltanet_sums", torch.float64)
    torch.nn.init.normal_(memory.gate.a_log)
    x, (s,) = given(memory)
    y, (after,) = one_step(memory, x[0], (s,))
    raw = (memory.qkv.weight @ x[0] + memory.qkv.bias).reshape(3, 2, 3)
    q, k, v = raw * raw.sigmoid()
    beta = (memory.beta.weight @ x[0] + memory.beta.bias).sigmoid()
    dt = (memory.gate.input.weight @ x[0] + memory.gate.input.bias).exp().add(1).log()
    alpha = torch.exp(-memory.gate.a_log.exp() * dt)
    for head in (0, 1):
        key, query = k[head] / k[head].norm(), q[head] / q[head].norm()
        old = s.reshape(2, 3, 3)[head]
        erased = torch.eye(3, **DOUBLE) - beta[head] * torch.outer(key, key)
        new = alpha[head] * old @ erased + beta[head] * torch.outer(v[head], key)
        torch.testing.assert_close(after.reshape(2, 3, 3)[head], new)
        torch.testing.assert_close(y.reshape(2, 3)[head], new @ query)


def test_gated_deltanet_over_several_chunks():
    memory = make("gated_deltanet", torch.float64)
    x = torch.randn(150, 3, FEATURES, **DOUBLE)
    first = torch.rand(150, 3) < 0.03
    state = state_of(memory, 5, 3, torch.float64)
    torch.testing.assert_close(memory.unroll_episodes(x, first, state),
                               stepped(memory, x, state, first)[0])  # fmt: skip
    lengths = torch.tensor([0, 64, 129])
    after = memory.state_after(x, lengths, state)[0]
    for b, rows in enumerate(lengths.tolist()):
        own = (state[0][b : b + 1],)
        want = stepped(memory, x[:rows, b : b + 1], own)[1][0] if rows else own[0]
        torch.testing.assert_close(after[b : b + 1], want)


def test_mamba2_is_the_formula():
    """S' = exp(A dt) S + dt u B^T, y = (S' C + D u) silu(z)."""
    memory = make("mamba2_sums", torch.float64)
    torch.nn.init.normal_(memory.gate.a_log)
    torch.nn.init.normal_(memory.d)
    x, (s,) = given(memory)
    y, (after,) = one_step(memory, x[0], (s,))

    def silu(v):
        return v * v.sigmoid()

    u, b = silu(memory.ub.weight @ x[0] + memory.ub.bias).split([6, 3])
    c, z = (memory.cz.weight @ x[0] + memory.cz.bias).split([3, 6])
    dt = (memory.gate.input.weight @ x[0] + memory.gate.input.bias).exp().add(1).log()
    decay = torch.exp(-memory.gate.a_log.exp() * dt)
    for head in (0, 1):
        channels = slice(3 * head, 3 * head + 3)
        new = decay[head] * s.reshape(2, 3, 3)[head] + dt[head] * torch.outer(u[channels], b)
        torch.testing.assert_close(after.reshape(2, 3, 3)[head], new)
        want = (new @ silu(c) + memory.d[head] * u[channels]) * silu(z[channels])
        torch.testing.assert_close(y[channels], want)
