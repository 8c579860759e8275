"""Formulas by hand of the memories in files of their own."""

import pytest
import torch

from tests.nets.cells import CPU, FEATURES, make, state_of
from tests.nets.cells import stepped as by_steps

DOUBLE = {"dtype": torch.float64}


def given(memory, rows=1):
    """Inputs [rows, F] and a state of one column, in float64."""
    state = tuple(s[0] for s in state_of(memory, 5, 1, torch.float64))
    return torch.randn(rows, FEATURES, **DOUBLE), state


def stepped(memory, x, state):
    y, after = memory.step(x[None], tuple(s[None] for s in state))
    return y[0], tuple(s[0] for s in after)


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
    y, state = stepped(memory, x[0], (h,))
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
    y, _ = stepped(memory, x, (h,))
    a = memory.alpha
    torch.testing.assert_close(y, torch.stack([a[0], -a[1], h[2], h[3], h[4], a[5]]))


def test_bmru_gradients_are_those_of_smooth_steps():
    """dz/dv = 1 / (1 + (pi v)^2), and twice that for the sign."""
    memory = make("bmru_bits", torch.float64)
    x, (h,) = given(memory)
    c, b = (memory.core.weight @ x[0] + memory.core.bias).split(6)
    y, _ = stepped(memory, x[0], (h,))
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
    y, (after, m_after) = stepped(memory, x[0], (c, m))
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
    y, after = stepped(memory, x[0], (c, n, m, h))
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
    y, (after,) = stepped(memory, x[0], (s,))
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
                               by_steps(memory, x, state, first)[0])  # fmt: skip
    lengths = torch.tensor([0, 64, 129])
    after = memory.state_after(x, lengths, state)[0]
    for b, rows in enumerate(lengths.tolist()):
        own = (state[0][b : b + 1],)
        want = by_steps(memory, x[:rows, b : b + 1], own)[1][0] if rows else own[0]
        torch.testing.assert_close(after[b : b + 1], want)


def test_mamba2_is_the_formula():
    """S' = exp(A dt) S + dt u B^T, y = (S' C + D u) silu(z)."""
    memory = make("mamba2_sums", torch.float64)
    torch.nn.init.normal_(memory.gate.a_log)
    torch.nn.init.normal_(memory.d)
    x, (s,) = given(memory)
    y, (after,) = stepped(memory, x[0], (s,))

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
