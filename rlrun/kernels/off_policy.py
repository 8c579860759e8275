"""Compiled updates of feed-forward networks on single rows: DQN, SAC, TD3, DDPG.

Between two matrix products of an update in numpy or torch stand calls whose own code has left the
CPU's cache since the last update: some 20 microseconds each, 0.4 ms of an update of 64 rows. Here a
call computes the whole update, or the critics' and the actor's halves.

Parameters, gradients and Adam's moments are flat arrays. A network is a table with a row per layer
(``LAYER``), sources before those that read them. The outputs of layer i for N rows are
``h[N OUT : N (OUT + N_OUT)]``, and their gradients are in the same place of ``d``. All compiled
code is in this file because numba's cache does not notice edits of other files.
"""

import math
from typing import Any

import numpy as np

from rlrun import blas
from rlrun.functional.policy import LOG_STD_BOUNDS
from rlrun.jit import COMPILED, jit_ieee, jit_sums
from rlrun.policy.optim import BETAS

F = np.float32
ZERO, ONE, TWO, HALF = F(0), F(1), F(2), F(0.5)
BETA1, BETA2 = BETAS
LOW, HIGH = (F(x) for x in LOG_STD_BOUNDS)
LOG_2, LOG_ROOT = F(math.log(2.0)), F(0.5 * math.log(2 * math.pi))

# Columns of the table of layers. SOURCE: the layer that is read, -1: the input. WEIGHT, BIAS, NORM:
# offsets in the parameters (NORM: of scale, then shift; -1: none). TURNED: weights are [in, out],
# not [out, in]. OUT: offset in a row of all outputs.
SOURCE, N_IN, N_OUT, WEIGHT, BIAS, TURNED, NORM, ACTIVATION, OUT = range(9)
NONE, RELU, TANH, ELU = range(4)
NORM_EPS = F(1e-5)  # of nn.LayerNorm

sgemm: Any = None
if COMPILED:
    import llvmlite.binding as llvm
    from numba.core import types

    # Found by name when compiled code is loaded, so that numba can cache the code. Arrays are
    # passed as addresses. Without a product no kernel of this file is used (config/backend.py).
    llvm.add_symbol("rlrun_sgemm", blas.sgemm() or 0)
    _FLAG, _SIZE, _NUMBER, _ARRAY = types.int32, types.int64, types.float32, types.uintp
    _MATRIX = _ARRAY, _SIZE
    sgemm = types.ExternalFunction(
        "rlrun_sgemm",
        types.void(
            *[_FLAG] * 3, *[_SIZE] * 3, _NUMBER, *_MATRIX, *_MATRIX, _NUMBER, *_MATRIX
        ),
    )  # fmt: skip


# -- layers ----------------------------------------------------------------------------------------


@jit_ieee
def product(
    turn_a: bool, turn_b: bool, m: int, n: int, k: int, a: np.ndarray, ao: int, lda: int,
    b: np.ndarray, bo: int, ldb: int, add: bool, c: np.ndarray, co: int, ldc: int,
) -> None:  # fmt: skip
    """C [m, n] = (C if ``add``) + A B with A [m, k] and B [k, n], or their transposes, row-major.

    ``ao``, ``bo``, ``co``: offsets in the flat arrays; ``lda``, ...: lengths of rows.
    """
    sgemm(
        101, 112 if turn_a else 111, 112 if turn_b else 111, m, n, k, ONE,
        a.ctypes.data + np.uintp(4 * ao), lda, b.ctypes.data + np.uintp(4 * bo), ldb,
        ONE if add else ZERO, c.ctypes.data + np.uintp(4 * co), ldc,
    )  # fmt: skip


@jit_sums
def tanh(x: np.float32) -> np.float32:
    """Return tanh(x) within +-1, NaN for NaN, in a form that loops can vectorise.

    x P(x^2) / Q(x^2) on [-8.5, 8.5], fitted; relative error 4e-7.
    """
    x = -F(8.5) if x < -F(8.5) else x
    x = F(8.5) if x > F(8.5) else x
    u = x * x
    p = F(2.12510785786435e-05) + u * F(1.426927376257936e-08)
    p = F(1.341324895620346e-01) + u * (F(3.5340290050953627e-03) + u * p)
    q = F(3.3488680492155254e-04) + u * F(8.145142373905401e-07)
    q = F(4.6746572852134705e-01) + u * (F(2.6022758334875107e-02) + u * q)
    y = x * (ONE + u * p) / (ONE + u * q)
    y = -ONE if y < -ONE else y
    return ONE if y > ONE else y


@jit_sums
def activate(h: np.ndarray, kind: int) -> None:
    """Apply an activation to a row, NaN for NaN."""
    if kind == RELU:
        for j in range(len(h)):
            h[j] = ZERO if h[j] < ZERO else h[j]
    elif kind == TANH:
        for j in range(len(h)):
            h[j] = tanh(h[j])
    elif kind == ELU:
        for j in range(len(h)):
            h[j] = F(math.expm1(h[j])) if h[j] <= ZERO else h[j]


@jit_sums
def activate_backward(d: np.ndarray, h: np.ndarray, kind: int) -> None:
    """Multiply the gradient of a row of outputs ``h`` by the derivative of the activation."""
    if kind == RELU:
        for j in range(len(d)):
            d[j] *= ONE if h[j] > ZERO else ZERO
    elif kind == TANH:
        for j in range(len(d)):
            d[j] *= ONE - h[j] * h[j]
    elif kind == ELU:
        for j in range(len(d)):
            d[j] *= ONE if h[j] > ZERO else h[j] + ONE


@jit_sums
def normalise(h: np.ndarray, scale: np.ndarray, shift: np.ndarray, unit: np.ndarray) -> np.float32:
    """Write ``unit`` = (h - mean) / sqrt(var + eps), h = scale unit + shift. Return the factor."""
    size = len(h)
    mean = square = ZERO
    for j in range(size):
        mean += h[j]
    mean /= F(size)
    for j in range(size):
        unit[j] = h[j] - mean
        square += unit[j] * unit[j]
    inverse: np.float32 = ONE / np.sqrt(square / F(size) + NORM_EPS)
    for j in range(size):
        unit[j] *= inverse
        h[j] = unit[j] * scale[j] + shift[j]
    return inverse


@jit_sums
def normalise_backward(
    d: np.ndarray, unit: np.ndarray, inverse: np.float32, scale: np.ndarray,
    scale_grad: np.ndarray, shift_grad: np.ndarray,
) -> None:  # fmt: skip
    """Replace d loss / d output by d loss / d input; add to the gradients of the parameters.

    With g = d scale: inverse (g - mean g - unit mean(g unit)).
    """
    size = len(d)
    mean = along = ZERO
    for j in range(size):
        scale_grad[j] += d[j] * unit[j]
        shift_grad[j] += d[j]
        d[j] *= scale[j]
        mean += d[j]
        along += d[j] * unit[j]
    mean /= F(size)
    along /= F(size)
    for j in range(size):
        d[j] = inverse * (d[j] - mean - unit[j] * along)


@jit_sums
def add_to(total: np.ndarray, x: np.ndarray) -> None:
    """total += x."""
    for j in range(len(total)):
        total[j] += x[j]


@jit_ieee
def forward(
    layers: np.ndarray, p: np.ndarray, x: np.ndarray, rows: int, h: np.ndarray, units: np.ndarray,
    inverse: np.ndarray,
) -> None:  # fmt: skip
    """Write the outputs ``h`` of all layers for inputs ``x``, flat [rows, F].

    ``units``, ``inverse``: what normalisations keep; like ``h``, and [layers, rows].
    """
    for i in range(len(layers)):
        source, n_in, n_out, weight, bias, turned, norm, activation, out = layers[i]
        begin = out * rows
        if source < 0:
            given, start = x, 0
        else:
            given, start = h, layers[source, OUT] * rows
        product(
            False, not turned, rows, n_out, n_in, given, start, n_in, p, weight,
            n_out if turned else n_in, False, h, begin, n_out,
        )  # fmt: skip
        offsets = p[bias : bias + n_out]
        for r in range(rows):
            a = begin + r * n_out
            row = h[a : a + n_out]
            add_to(row, offsets)
            if norm >= 0:
                inverse[i, r] = normalise(
                    row, p[norm : norm + n_out], p[norm + n_out : norm + 2 * n_out],
                    units[a : a + n_out],
                )  # fmt: skip
            activate(row, activation)


@jit_ieee
def backward(
    layers: np.ndarray, p: np.ndarray, g: np.ndarray, x: np.ndarray, room: int, rows: int,
    h: np.ndarray, units: np.ndarray, inverse: np.ndarray, d: np.ndarray, first: int,
    x_grad: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients ``g`` of the parameters from those of the outputs of the last layers.

    ``room``: rows of the ``forward`` pass, of which the loss depends on the first ``rows``. ``d``:
    the last layers' gradients; those of other layers are overwritten. ``g`` empty: not computed.
    ``x_grad``, flat [rows, F - first], zeros: d loss / d inputs from column ``first`` on; empty:
    not computed.
    """
    seen = np.zeros(len(layers), np.bool_)
    for i in range(len(layers) - 1, -1, -1):
        source, n_in, n_out, weight, bias, turned, norm, activation, out = layers[i]
        begin = out * room
        if len(g):
            g[bias : bias + n_out] = ZERO
            if norm >= 0:
                g[norm : norm + 2 * n_out] = ZERO
        for r in range(rows):
            a = begin + r * n_out
            row = d[a : a + n_out]
            activate_backward(row, h[a : a + n_out], activation)
            if norm >= 0:
                normalise_backward(
                    row, units[a : a + n_out], inverse[i, r], p[norm : norm + n_out],
                    g[norm : norm + n_out], g[norm + n_out : norm + 2 * n_out],
                )  # fmt: skip
            if len(g):
                add_to(g[bias : bias + n_out], row)
        if source < 0:
            given, start = x, 0
        else:
            given, start = h, layers[source, OUT] * room
        if len(g) and turned:
            product(True, False, n_in, n_out, rows, given, start, n_in, d, begin, n_out, False,
                    g, weight, n_out)  # fmt: skip
        elif len(g):
            product(True, False, n_out, n_in, rows, d, begin, n_out, given, start, n_in, False,
                    g, weight, n_in)  # fmt: skip
        length = n_out if turned else n_in
        if source >= 0:
            product(False, turned, rows, n_in, n_out, d, begin, n_out, p, weight, length,
                    seen[source], d, start, n_in)  # fmt: skip
            seen[source] = True
        elif len(x_grad):
            at = weight + (first * n_out if turned else first)
            product(False, turned, rows, n_in - first, n_out, d, begin, n_out, p, at, length,
                    True, x_grad, 0, n_in - first)  # fmt: skip


@jit_sums
def norm_of(g: np.ndarray) -> float:
    """Return the Euclidean norm."""
    total = ZERO
    for k in range(len(g)):
        total += g[k] * g[k]
    return math.sqrt(total)


@jit_sums
def adam(
    p: np.ndarray, g: np.ndarray, mean: np.ndarray, square: np.ndarray, scale: np.float32,
    step: float, lr: float, eps: float,
) -> None:  # fmt: skip
    """Make step number ``step`` of ``policy.optim.Adam`` with the gradients ``scale`` g."""
    size, root = F(lr / (1 - BETA1**step)), F(1 / math.sqrt(1 - BETA2**step))
    keep1, keep2, offset = F(1 - BETA1), F(1 - BETA2), F(eps)
    for k in range(len(p)):
        x = g[k] * scale
        mean[k] += keep1 * (x - mean[k])
        square[k] += keep2 * (x * x - square[k])
        p[k] -= size * mean[k] / (np.sqrt(square[k]) * root + offset)


@jit_ieee
def step(
    p: np.ndarray, g: np.ndarray, mean: np.ndarray, square: np.ndarray, steps: np.ndarray,
    most: float, lr: float, eps: float,
) -> float:  # fmt: skip
    """Clip the gradients to norm ``most`` (inf: not) and step. Return the norm before clipping.

    ``steps`` [1]: number of steps, counted here. No step is made if the norm is not finite.
    """
    norm = norm_of(g)
    if np.isfinite(norm):
        steps[0] += ONE
        scale = F(most / (norm + 1e-6)) if norm > most else ONE
        adam(p, g, mean, square, scale, steps[0], lr, eps)
    return norm


@jit_sums
def follow(target: np.ndarray, p: np.ndarray, tau: np.float32) -> None:
    """target += tau (p - target)."""
    for k in range(len(p)):
        target[k] += tau * (p[k] - target[k])


# -- rows ------------------------------------------------------------------------------------------


@jit_ieee
def clamp(x: np.float32, limit: np.float32) -> np.float32:
    """Return ``x`` clipped to +-limit, NaN for NaN."""
    x = -limit if x < -limit else x
    return limit if x > limit else x


@jit_ieee
def rescale(x: np.float32, eps: np.float32) -> np.float32:
    """Return h(x), see functional.value.rescale."""
    size = abs(x)
    h: np.float32 = size / (np.sqrt(size + ONE) + ONE) + eps * size
    return -h if x < ZERO else h


@jit_ieee
def unrescale(x: np.float32, eps: np.float32) -> np.float32:
    """Return the inverse of h, see functional.value.unrescale."""
    size = abs(x)
    root = np.sqrt(ONE + F(4) * eps * (size + ONE + eps))
    u = TWO * size / (root + ONE + TWO * eps)
    h: np.float32 = u * (u + TWO)
    return -h if x < ZERO else h


@jit_ieee
def read_rows(
    window: tuple[np.ndarray, ...], shaping: tuple[np.float32, np.float32], powers: np.ndarray,
    x: np.ndarray, next_x: np.ndarray, reward: np.ndarray, discount: np.ndarray,
) -> None:  # fmt: skip
    """Read row 0 of every window with its n-step return (functional.returns.nstep_return).

    ``window``: obs float32 [T+1, B, F], reward, terminated, truncated, valid [T, B]. ``shaping``:
    scale and clip of rewards. ``powers``: gamma^0 .. gamma^n. Fills ``x`` and ``next_x``, flat
    [B, F], with the row's observation and the one from which its target bootstraps, 0 where there
    is none, and the return and gamma^k, 0 after a termination, [B].
    """
    obs, raw, terminated, truncated, valid = window
    batch, size = obs.shape[1], obs.shape[2]
    for b in range(batch):
        total, k, dead = ZERO, 0, False
        while k < len(powers) - 1 and k < len(valid) and valid[k, b]:
            total += powers[k] * clamp(raw[k, b] * shaping[0], shaping[1])
            k += 1
            if terminated[k - 1, b] or truncated[k - 1, b]:
                dead = terminated[k - 1, b]
                break
        reward[b], discount[b] = total, (ZERO if dead else powers[k])
        own, bootstraps = valid[0, b], valid[0, b] and not dead
        for j in range(size):
            x[b * size + j] = obs[0, b, j] if own else ZERO
            next_x[b * size + j] = obs[k, b, j] if bootstraps else ZERO


# -- DQN -------------------------------------------------------------------------------------------


@jit_ieee
def action_values(
    h: np.ndarray, at: tuple[int, int, int], row: int, rows: int, q: np.ndarray
) -> None:
    """Write Q [A] of a row. ``at``: offsets of advantage and value (-1: no dueling), A."""
    advantage, value, actions = at
    mean = ZERO
    for j in range(actions):
        q[j] = h[advantage * rows + row * actions + j]
        mean += q[j]
    if value >= 0:
        change = h[value * rows + row] - mean / F(actions)
        for j in range(actions):
            q[j] += change


@jit_ieee
def dqn_gradients(
    net: Any, p: np.ndarray, g: np.ndarray, target_p: np.ndarray, window: Any, action: np.ndarray,
    weight: np.ndarray, rewards: Any, rule: Any, work: Any, td_abs: np.ndarray,
    metrics: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients ``g`` of DQN's loss.

    Args:
        net: layers, and the offsets of ``action_values``.
        p, target_p: parameters of the network and its target network.
        window, rewards: see ``read_rows``.
        action, weight: [B].
        rule: double, eps of the value rescaling (negative: none), td_clip.
        work: see ``DQNKernel.arrays``.
        td_abs: [B], to be filled with |delta|.
        metrics: to be filled: loss, means of |delta|, Q and target over valid rows, their share.
    """
    (layers, at), (double, eps, td_clip) = net, rule
    x, reward, discount, h, target_h, units, inverse, d, none = work
    valid, batch, actions = window[4], len(weight), at[2]
    size = batch * window[0].shape[2]
    read_rows(window, rewards[0], rewards[1], x[:size], x[size:], reward, discount)
    forward(layers, target_p, x[size:], batch, target_h, units, inverse)
    rows = 2 * batch if double else batch
    forward(layers, p, x, rows, h, units, inverse)

    q, next_q, choice = np.empty(actions, F), np.empty(actions, F), np.empty(actions, F)
    loss = sizes = predictions = targets = 0.0
    count = 0
    for b in range(batch):
        for j in range(actions):
            d[at[0] * rows + b * actions + j] = ZERO
        if at[1] >= 0:
            d[at[1] * rows + b] = ZERO
        td_abs[b] = ZERO
        if not valid[0, b]:
            continue
        target, taken = reward[b], action[b]
        if discount[b] > ZERO:
            action_values(target_h, at, b, batch, next_q)
            if double:
                action_values(h, at, batch + b, rows, choice)
                value = next_q[choice.argmax()]
            else:
                value = next_q[next_q.argmax()]
            target += discount[b] * (value if eps < ZERO else unrescale(value, eps))
        if eps >= ZERO:
            target = rescale(target, eps)
        action_values(h, at, b, rows, q)
        delta = target - q[taken]
        clipped = clamp(delta, td_clip)
        weighted = clipped * (weight[b] / F(batch))
        if at[1] >= 0:
            d[at[1] * rows + b] = -weighted
            for j in range(actions):
                d[at[0] * rows + b * actions + j] = weighted / F(actions)
        d[at[0] * rows + b * actions + taken] -= weighted
        td_abs[b] = abs(delta)
        loss += float(weighted * (delta - HALF * clipped))
        sizes += float(td_abs[b])
        predictions += float(q[taken])
        targets += float(target)
        count += 1
    some = max(count, 1)
    metrics[0], metrics[1], metrics[2] = loss, sizes / some, predictions / some
    metrics[3], metrics[4] = targets / some, count / batch
    backward(layers, p, g, x, rows, batch, h, units, inverse, d, 0, none)
