"""Compiled forward and backward passes of linear layers, and Adam's step, for all kernels.

Between two matrix products of an update in numpy or torch stand calls whose own code has left the
CPU's cache since the last update: some 20 microseconds each. Compiled code has nothing there.

Parameters, gradients and Adam's moments are flat arrays in the order of ``FlatParameters``. A
network is a table with a row per layer, sources before those that read them. The outputs of layer i
for N rows are ``h[N OUT : N (OUT + N_OUT)]``; their gradients are in the same place of ``d``, and
their normalised sums in the same place of ``unit``.
"""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from rlrun import blas
from rlrun.jit import COMPILED, inner, jit_ieee, jit_sums, leaf
from rlrun.nets.actor_and_critics import Critics
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP
from rlrun.policy.base import Part
from rlrun.policy.optim import BETAS, RAdam

F = np.float32
ZERO, ONE, HALF = F(0), F(1), F(0.5)
BETA1, BETA2 = BETAS
NORM_EPS = F(1e-5)  # of nn.LayerNorm

# Columns of the table of layers. SOURCE: the layer that is read, -1: the input. WEIGHT, BIAS, NORM:
# offsets in the parameters; NORM: of scale, then shift, -1: none. OUT: offset in a row of all
# outputs. SHARED: whether a later layer has the same source. IN_FIRST: weights are [in, out], as a
# critic's, not [out, in].
SOURCE, N_IN, N_OUT, WEIGHT, BIAS, NORM, ACTIVATION, OUT, SHARED, IN_FIRST = range(10)
NONE, RELU, TANH, ELU = range(4)  # activations
ADAM, RADAM = range(2)

ROWS, PLAIN, TURNED = 101, 111, 112  # row-major, as it is, transposed; see ``sgemm``
BYTES = 4  # of a number
sgemm: Any = None
if COMPILED:
    import llvmlite.binding as llvm
    from numba.core import types

    # C = alpha A B + beta C, or with transposes of A and B (cblas_sgemm). Found by name when
    # compiled code is loaded, so that numba can cache the code. Arrays are passed as addresses.
    # Without a product no kernel of this file is used (config/backend.py).
    llvm.add_symbol("rlrun_sgemm", blas.sgemm() or 0)
    _FLAG, _SIZE, _NUMBER, _ARRAY = types.int32, types.int64, types.float32, types.int64
    _MATRIX = _ARRAY, _SIZE
    sgemm = types.ExternalFunction(
        "rlrun_sgemm",
        types.void(
            *[_FLAG] * 3, *[_SIZE] * 3, _NUMBER, *_MATRIX, *_MATRIX, _NUMBER, *_MATRIX
        ),
    )  # fmt: skip


# -- activations -----------------------------------------------------------------------------------

# tanh(x) = x P(x^2) / Q(x^2) on [-8.5, 8.5], fitted; relative error 4e-7 in float32.
_END = F(8.5)
_P1, _P2 = F(1.341324895620346e-01), F(3.5340290050953627e-03)
_P3, _P4 = F(2.12510785786435e-05), F(1.426927376257936e-08)
_Q1, _Q2 = F(4.6746572852134705e-01), F(2.6022758334875107e-02)
_Q3, _Q4 = F(3.3488680492155254e-04), F(8.145142373905401e-07)


@jit_ieee
def tanh(x: np.float32) -> np.float32:
    """Return tanh(x) within +-1, NaN for NaN, in a form that loops can vectorise."""
    x = -_END if x < -_END else x
    x = _END if x > _END else x
    u = x * x
    p = (((_P4 * u + _P3) * u + _P2) * u + _P1) * u + ONE
    q = (((_Q4 * u + _Q3) * u + _Q2) * u + _Q1) * u + ONE
    y = x * p / q
    y = -ONE if y < -ONE else y
    return ONE if y > ONE else y


@inner
@jit_sums
def activate(y: np.ndarray, shift: np.ndarray, kind: int) -> None:
    """Replace sums ``y`` [N, units] by the activations of y + shift, NaN for NaN."""
    rows, units = y.shape
    for i in range(rows):
        if kind == RELU:  # of a sum that is stored first, LLVM stores the zeros one by one
            for j in range(units):
                x = y[i, j] + shift[j]
                y[i, j] = ZERO if x < ZERO else x
        elif kind == TANH:
            for j in range(units):
                y[i, j] = tanh(y[i, j] + shift[j])
        elif kind == ELU:
            for j in range(units):
                x = y[i, j] + shift[j]
                y[i, j] = F(math.expm1(x)) if x <= ZERO else x
        else:
            for j in range(units):
                y[i, j] += shift[j]


@inner
@jit_sums
def activate_backward(d: np.ndarray, y: np.ndarray, shift_grad: np.ndarray, kind: int) -> None:
    """Replace the gradients of activations ``y`` by those of the sums; add to the shift's."""
    rows, units = d.shape
    for i in range(rows):
        if kind == RELU:
            for j in range(units):
                d[i, j] *= ONE if y[i, j] > ZERO else ZERO
        elif kind == TANH:
            for j in range(units):
                d[i, j] *= ONE - y[i, j] * y[i, j]
        elif kind == ELU:
            for j in range(units):
                d[i, j] *= ONE if y[i, j] > ZERO else y[i, j] + ONE
        for j in range(units):
            shift_grad[j] += d[i, j]


@inner
@jit_sums
def normalise(
    y: np.ndarray, bias: np.ndarray, scale: np.ndarray, unit: np.ndarray, inverse: np.ndarray
) -> None:
    """Write unit = (x - mean x) / sqrt(var x + eps) for rows x = y + bias, and y = scale unit.

    ``inverse`` [N]: 1 / sqrt(...). The shift is added by ``activate``.
    """
    rows, units = y.shape
    for i in range(rows):
        mean = square = ZERO
        for j in range(units):
            y[i, j] += bias[j]
            mean += y[i, j]
        mean /= F(units)
        for j in range(units):
            unit[i, j] = y[i, j] - mean
            square += unit[i, j] * unit[i, j]
        inverse[i] = ONE / np.sqrt(square / F(units) + NORM_EPS)
        for j in range(units):
            unit[i, j] *= inverse[i]
            y[i, j] = unit[i, j] * scale[j]


@inner
@jit_sums
def normalise_backward(
    d: np.ndarray, unit: np.ndarray, inverse: np.ndarray, scale: np.ndarray,
    scale_grad: np.ndarray, bias_grad: np.ndarray,
) -> None:  # fmt: skip
    """Replace d loss / d (scale unit) by d loss / d x; add to the gradients of scale and bias.

    With g = d scale: inverse (g - mean g - unit mean(g unit)).
    """
    rows, units = d.shape
    for i in range(rows):
        mean = along = ZERO
        for j in range(units):
            scale_grad[j] += d[i, j] * unit[i, j]
            d[i, j] *= scale[j]
            mean += d[i, j]
            along += d[i, j] * unit[i, j]
        mean /= F(units)
        along /= F(units)
        for j in range(units):
            d[i, j] = inverse[i] * (d[i, j] - mean - unit[i, j] * along)
            bias_grad[j] += d[i, j]


# -- passes ----------------------------------------------------------------------------------------


@inner
@jit_ieee
def address(x: np.ndarray) -> np.int64:
    """Return the address of an array's first number."""
    return np.int64(x.ctypes.data)


@jit_ieee
def part(h: np.ndarray, layer: np.ndarray, rows: int) -> np.ndarray:
    """Return the part of a layer, [rows, N_OUT], of an array for ``rows`` rows of all layers."""
    start, units = layer[OUT] * rows, layer[N_OUT]
    return h[start : start + rows * units].reshape(rows, units)


@jit_ieee
def forward(
    layers: np.ndarray, p: np.ndarray, x: np.ndarray, rows: int, h: np.ndarray, unit: np.ndarray,
    inverse: np.ndarray,
) -> None:  # fmt: skip
    """Write the outputs ``h`` of all layers for inputs ``x``, flat [rows, F].

    ``unit``, ``inverse``: what normalisations keep; flat, like ``h`` and [layers, rows].
    """
    at_x, at_p, at_h = address(x), address(p), address(h)
    for i in range(len(layers)):
        source, n_in, n_out, weight, bias, norm, activation, out, _, in_first = layers[i]
        below = at_x if source < 0 else at_h + BYTES * layers[source, OUT] * rows
        sgemm(
            ROWS, PLAIN, PLAIN if in_first else TURNED, rows, n_out, n_in, ONE, below, n_in,
            at_p + BYTES * weight, n_out if in_first else n_in, ZERO, at_h + BYTES * out * rows,
            n_out,
        )  # fmt: skip
        y, offset = part(h, layers[i], rows), p[bias : bias + n_out]
        if norm >= 0:
            scale, shift = p[norm : norm + n_out], p[norm + n_out : norm + 2 * n_out]
            layer_inverse = inverse[i * rows : (i + 1) * rows]
            normalise(y, offset, scale, part(unit, layers[i], rows), layer_inverse)
            offset = shift
        activate(y, offset, activation)


@jit_ieee
def backward(
    layers: np.ndarray, p: np.ndarray, g: np.ndarray, x: np.ndarray, room: int, rows: int,
    h: np.ndarray, unit: np.ndarray, inverse: np.ndarray, d: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients ``g`` of the parameters from those of the last layers' outputs in ``d``.

    ``g`` without numbers: those of the layers' outputs alone. ``room``: rows of the ``forward``
    pass, of which the loss depends on the first ``rows``. Gradients of other layers are
    overwritten.
    """
    at_x, at_p, at_g, at_h, at_d = address(x), address(p), address(g), address(h), address(d)
    for i in range(len(layers) - 1, -1, -1):
        source, n_in, n_out, weight, bias, norm, activation, out, shared, in_first = layers[i]
        y, dy = part(h, layers[i], room)[:rows], part(d, layers[i], room)[:rows]
        bias_grad = g[bias : bias + n_out] if len(g) else np.empty(n_out, np.float32)
        bias_grad[:] = ZERO
        if norm >= 0:
            norm_grad = g[norm : norm + 2 * n_out] if len(g) else np.empty(2 * n_out, np.float32)
            norm_grad[:] = ZERO
            activate_backward(dy, y, norm_grad[n_out:], activation)
            normalise_backward(
                dy, part(unit, layers[i], room), inverse[i * room : (i + 1) * room],
                p[norm : norm + n_out], norm_grad[:n_out], bias_grad,
            )  # fmt: skip
        else:
            activate_backward(dy, y, bias_grad, activation)
        at = BYTES * layers[max(source, 0), OUT] * room
        below, slope = at_x if source < 0 else at_h + at, at_d + BYTES * out * room
        if len(g) and in_first:
            sgemm(
                ROWS, TURNED, PLAIN, n_in, n_out, rows, ONE, below, n_in, slope, n_out, ZERO,
                at_g + BYTES * weight, n_out,
            )  # fmt: skip
        elif len(g):
            sgemm(
                ROWS, TURNED, PLAIN, n_out, n_in, rows, ONE, slope, n_out, below, n_in, ZERO,
                at_g + BYTES * weight, n_in,
            )  # fmt: skip
        if source >= 0:
            sgemm(
                ROWS, PLAIN, TURNED if in_first else PLAIN, rows, n_in, n_out, ONE, slope, n_out,
                at_p + BYTES * weight, n_out if in_first else n_in, F(shared), at_d + at, n_in,
            )  # fmt: skip


@inner
@jit_ieee
def input_gradients(
    layers: np.ndarray, p: np.ndarray, d: np.ndarray, room: int, first: int, grad: np.ndarray
) -> None:  # fmt: skip
    """Write the gradients of the input's columns from ``first`` on, after a ``backward`` pass.

    ``grad`` [rows, at least as many columns]: to be filled. Layers that read the input, of which
    the first of the table is one, add up.
    """
    columns, beta = layers[0, N_IN] - first, ZERO
    for i in range(len(layers)):
        source, n_in, n_out, weight, _, _, _, out, _, in_first = layers[i]
        if source < 0:
            at = weight + first * (n_out if in_first else 1)
            sgemm(
                ROWS, PLAIN, TURNED if in_first else PLAIN, len(grad), columns, n_out, ONE,
                address(d) + BYTES * out * room, n_out, address(p) + BYTES * at,
                n_out if in_first else n_in, beta, address(grad), grad.strides[0] // BYTES,
            )  # fmt: skip
            beta = ONE


# -- action values ---------------------------------------------------------------------------------


@inner
@jit_ieee
def action_values(
    h: np.ndarray, layers: np.ndarray, heads: tuple[int, int], rows: int, q: np.ndarray
) -> None:
    """Write Q [n, A] of the first n of ``rows`` rows.

    ``heads``: numbers of the layers of advantages and value (-1: no dueling): V + A - mean A.
    """
    advantage = part(h, layers[heads[0]], rows)
    value = part(h, layers[max(heads[1], 0)], rows)
    actions = q.shape[1]
    for i in range(len(q)):
        mean = ZERO
        for j in range(actions):
            q[i, j] = advantage[i, j]
            mean += q[i, j]
        if heads[1] >= 0:
            change = value[i, 0] - mean / F(actions)
            for j in range(actions):
                q[i, j] += change


@leaf
@jit_ieee
def action_values_backward(
    advantage: np.ndarray, value: np.ndarray, dueling: bool, i: int, taken: int, slope: np.float32
) -> None:
    """Write the gradients of a row's heads from ``slope``, that of Q of the action ``taken``.

    ``advantage`` [n, A], ``value`` [n, 1] (read if ``dueling``): gradients of the heads' outputs.
    """
    mean = ZERO
    if dueling:
        value[i, 0] = slope
        mean = slope / F(advantage.shape[1])
    for j in range(advantage.shape[1]):
        advantage[i, j] = -mean
    advantage[i, taken] += slope


# -- Adam ------------------------------------------------------------------------------------------


@inner
@jit_sums
def norm_of(g: np.ndarray) -> float:
    """Return the Euclidean norm of ``g`` [N], summed in float32."""
    total = ZERO
    for k in range(len(g)):
        total += g[k] * g[k]
    return math.sqrt(total)


@inner
@jit_sums
def move(
    p: np.ndarray, g: np.ndarray, mean: np.ndarray, square: np.ndarray, scale: np.float32,
    size: np.float32, root: np.float32, offset: np.float32,
) -> None:  # fmt: skip
    """Update Adam's moments with ``scale`` g, and p -= size mean / (sqrt(square) root + offset)."""
    keep1, keep2 = F(1 - BETA1), F(1 - BETA2)
    for k in range(len(p)):
        x = g[k] * scale
        mean[k] += keep1 * (x - mean[k])
        square[k] += keep2 * (x * x - square[k])
        p[k] -= size * mean[k] / (np.sqrt(square[k]) * root + offset)


@jit_ieee
def step(kind: int, arrays: tuple[np.ndarray, ...], most: float, lr: float, eps: float) -> float:
    """Clip the gradients to norm ``most`` (inf: not) and step. Return the norm before clipping.

    No step is made if it is not finite.

    Args:
        kind: ADAM or RADAM, see ``policy.optim``.
        arrays: parameters, gradients, both moments, and the number of steps [1], counted here.
    """
    p, g, mean, square, steps = arrays
    norm = norm_of(g)
    if not np.isfinite(norm):
        return norm
    steps[0] += ONE
    t = float(steps[0])
    scale = F(most / (norm + 1e-6)) if norm > most else ONE
    size, debias = lr / (1 - BETA1**t), 1 - BETA2**t
    root, offset = 1 / math.sqrt(debias), eps
    if kind == RADAM:
        rho_inf = 2 / (1 - BETA2) - 1
        rho = rho_inf - 2 * t * BETA2**t / debias
        root = 1.0
        if rho <= 5:  # without the second moment
            root, offset = 0.0, 1.0
        else:
            rectifier = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
            size *= math.sqrt(rectifier * debias)
    move(p, g, mean, square, scale, F(size), F(root), F(offset))
    return norm


# -- networks and optimisers as arrays -------------------------------------------------------------

_KINDS = {nn.ReLU: RELU, nn.Tanh: TANH, nn.ELU: ELU}


class Layer(NamedTuple):
    """A row of the table of layers."""

    source: int
    n_in: int
    n_out: int
    weight: int
    bias: int
    norm: int
    activation: int
    out: int
    shared: int = 0
    in_first: int = 0


class PackedNet:
    """A part's optimiser as flat arrays, and the table of its network's layers."""

    def __init__(self, part: Part) -> None:
        """Move the parameters of ``part``, and those of its target network, into one array each."""
        self.adam, (flat, target) = part.adam, part.flatten()
        self.values, self.grads, self.target = (
            x.numpy() for x in (flat.values, flat.grads, target)
        )
        self.kind = RADAM if isinstance(self.adam, RAdam) else ADAM
        most = self.adam.max_grad_norm
        self.most, self.eps = np.inf if most is None else float(most), float(self.adam.eps)
        self.rows, self.width = list[Layer](), 0

    @cached_property
    def state(self) -> tuple[np.ndarray, ...]:
        """Return the ``arrays`` of ``step``, for which all parameters have one learning rate."""
        (group,) = self.adam.groups
        steps = self.adam.counted[0].numpy().reshape(1)
        return self.values, self.grads, group.mean[0].numpy(), group.square[0].numpy(), steps

    def offset(self, parameter: Tensor) -> int:
        """Return where a parameter begins in the array."""
        return (parameter.data_ptr() - self.values.ctypes.data) // 4

    def add(self, modules: Iterable[nn.Module], source: int) -> int:
        """Add linear layers with normalisations and activations. Return the last one's number.

        ``source``: the layer that they read, -1: the input; it is returned if there are none.
        """
        for module in modules:
            if isinstance(module, nn.Linear):
                n_out, n_in = module.weight.shape
                offsets = self.offset(module.weight), self.offset(module.bias)
                self.rows.append(Layer(source, n_in, n_out, *offsets, -1, NONE, self.width))
                self.width += n_out
                source = len(self.rows) - 1
            elif isinstance(module, nn.LayerNorm):
                norm = self.offset(module.weight)
                assert self.offset(module.bias) == norm + len(module.weight)
                self.rows[-1] = self.rows[-1]._replace(norm=norm)
            else:
                self.rows[-1] = self.rows[-1]._replace(activation=_KINDS[type(module)])
        return source

    def add_action_values(self, net: QNet) -> tuple[int, int]:
        """Add the layers of a ``QNet`` without a memory. Return ``heads`` of its action values."""
        return self.add_heads(net, self.add(cast("MLP", net.torso).layers, -1))

    def add_heads(self, net: QNet, features: int) -> tuple[int, int]:
        """Add the heads of a ``QNet``, which read layer ``features``.

        Returns: numbers of the layers of advantages and value, see ``action_values``.
        """
        advantage = self.add(cast("nn.Sequential", net.advantage), features)
        value = -1 if net.value is None else self.add(cast("nn.Sequential", net.value), features)
        return advantage, value

    def add_critics(self, critics: Critics) -> list[int]:
        """Add the layers of ``critics``, one critic after another. Return the last one of each."""
        last = list[int]()
        for c in range(critics.count):
            source = -1
            for i, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
                n_in, n_out = weight.shape[1:]
                offsets = self.offset(weight) + c * n_in * n_out, self.offset(bias) + c * n_out
                hidden = i < len(critics.activations)
                activation = _KINDS[type(critics.activations[i])] if hidden else NONE
                row = Layer(source, n_in, n_out, *offsets, -1, activation, self.width, in_first=1)
                self.rows.append(row)
                self.width += n_out
                source = len(self.rows) - 1
            last.append(source)
        return last

    def table(self) -> np.ndarray:
        """Return the table of layers, int64 [layers, 10]."""
        sources = [row.source for row in self.rows]
        shared = (source in sources[i + 1 :] for i, source in enumerate(sources))
        rows = [row._replace(shared=x) for row, x in zip(self.rows, shared, strict=True)]
        return np.array(rows, np.int64).reshape(-1, len(Layer._fields))

    @property
    def inputs(self) -> int:
        """The number of inputs of the first layers."""
        return next(row.n_in for row in self.rows if row.source < 0)

    def optimiser(self, lr: float) -> tuple[Any, ...]:
        """Return the arguments of ``step``."""
        return self.kind, self.state, self.most, lr, self.eps

    def step(self, lr: float, *apart: float) -> float:
        """Step with ``grads``. Return their norm before clipping.

        ``apart``: as for ``Adam.flat_step``; no parameter has its own learning rate.

        Raises: NumericError before the step if it is not finite.
        """
        norm: float = step(*self.optimiser(lr))
        self.adam.require_finite(norm)
        return norm

    def work(self, rows: int) -> tuple[np.ndarray, ...]:
        """Return arrays for ``rows`` rows: h, unit, inverse and d of the passes; see ``layers``."""
        sizes = *[rows * self.width] * 2, rows * len(self.rows), rows * self.width
        return tuple(np.zeros(size, np.float32) for size in sizes)
