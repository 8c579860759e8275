"""Compiled forward and backward passes of linear layers, and the loops of PPO and PQN over them.

One call computes all passes over a rollout. For networks of 64 units, numpy's calls cost as much as
the products they make; here nothing is between two products.

Parameters, gradients and Adam's moments are packed into arrays in which the weights of a layer are
a matrix [n_in + 1, ld]: the last row is the bias, ``ld`` the row length of ``row_length(n_out)``.
Activations are rows of the same length with a 1 behind the last unit, which multiplies the bias.
All columns beyond the units are 0. The arrays are flat, and all offsets come from a table with a
row per layer (``LAYER``). All code is in this file because numba's cache does not notice edits of
other files.
"""

import math
from typing import Any

import numpy as np

from rlrun.jit import COMPILED, jit_ieee, jit_sums

F = np.float32
ZERO, ONE, HALF = F(0), F(1), F(0.5)
LANES = 16  # columns of a tile: two registers of AVX2, one of AVX-512
BLOCK = 64  # rows of B, approximately, that are multiplied before the next, from the L1 cache
BETA1, BETA2 = 0.9, 0.999  # ``policy.optim.BETAS``
# Columns of the table of layers.
SOURCE, N_IN, N_OUT, WEIGHT, LD, NORM, ACTIVATION, OUT = range(8)
# SOURCE: the layer whose output is the input, -1: the observation. WEIGHT, NORM: offsets of the
# matrix and of the normalisation's scale (then shift) in packed parameters; NORM -1: none.
# OUT: offset of a row's outputs in a row of all activations.
NONE, RELU, TANH, ELU = range(4)  # activations
ADAM, RADAM = range(2)


def row_length(units: int) -> int:
    """Return an odd multiple of LANES above ``units``: rows of even ones share cache sets."""
    tiles = units // LANES + 1
    return LANES * (tiles + (tiles % 2 == 0))


if COMPILED:
    from llvmlite import ir
    from llvmlite.binding import get_host_cpu_features
    from numba.core import cgutils as untyped
    from numba.core import types
    from numba.extending import intrinsic

    cgutils: Any = untyped

    def _make_tile(rows: int) -> Any:
        """Return a function: C[:rows, :LANES] = (C if add) + A[:rows, :count] B[:count, :LANES].

        Element (i, k) of A is a[ao + i ai + k ak], row k of B begins at b[bo + k bk], row i of C at
        c[co + i ci]. The sums stay in registers. Their order is that of k on every CPU.
        """

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(ir.FloatType(), LANES)
            a, b, c = (
                context.make_array(sig.args[i])(context, builder, args[i]).data for i in (0, 4, 7)
            )
            ao, ai, ak, bo, bk, co, ci, count, add = (
                args[i] for i in (1, 2, 3, 5, 6, 8, 9, 10, 11)
            )

            def as_vector(base: Any, offset: Any) -> Any:
                return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())

            zero = ir.Constant(vector, [0.0] * LANES)
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
            )
            index = [ir.Constant(ci.type, i) for i in range(rows)]
            outs = [as_vector(c, builder.add(co, builder.mul(i, ci))) for i in index]
            starts = [builder.add(ao, builder.mul(i, ai)) for i in index]
            sums = [cgutils.alloca_once(builder, vector) for _ in index]
            for total, out in zip(sums, outs, strict=True):
                builder.store(zero, total)
                with builder.if_then(cgutils.is_not_null(builder, add)):
                    builder.store(builder.load(out, align=4), total)
            with cgutils.for_range(builder, count) as loop:
                row = builder.load(
                    as_vector(b, builder.add(bo, builder.mul(loop.index, bk))), align=4
                )
                step = builder.mul(loop.index, ak)
                for total, start in zip(sums, starts, strict=True):
                    x = builder.load(builder.gep(a, [builder.add(start, step)]))
                    x = builder.insert_element(
                        ir.Constant(vector, ir.Undefined), x, ir.Constant(ir.IntType(32), 0)
                    )
                    x = builder.shuffle_vector(x, ir.Constant(vector, ir.Undefined), lanes)
                    builder.store(builder.call(fma, [x, row, builder.load(total)]), total)
            for total, out in zip(sums, outs, strict=True):
                builder.store(builder.load(total), out, align=4)
            return context.get_dummy_value()

        def tile(
            typingctx: Any, a: Any, ao: Any, ai: Any, ak: Any, b: Any, bo: Any, bk: Any, c: Any,
            co: Any, ci: Any, count: Any, add: Any,
        ) -> Any:  # fmt: skip
            i, array = types.intp, types.Array(types.float32, 1, "C")
            given = (array, i, i, i, array, i, i, array, i, i, i, types.boolean)
            return types.void(*given), codegen

        return intrinsic(tile)

    TILE = 8 if get_host_cpu_features().get("avx512f") else 4  # rows; sums do not depend on it
    one_row, four_rows, several_rows = _make_tile(1), _make_tile(4), _make_tile(TILE)


# -- products --------------------------------------------------------------------------------------


@jit_ieee
def product(
    a: Any, ao: int, ai: int, ak: int, b: Any, bo: int, bk: int, c: Any, co: int, ci: int,
    rows: int, count: int, columns: int, add: bool,
) -> None:  # fmt: skip
    """C = (C if ``add``) + A B for A [rows, count], B [count, columns]; see ``_make_tile``.

    Columns beyond ``columns`` up to a multiple of LANES are computed, too.
    """
    parts = max(1, count // BLOCK)
    for part in range(parts):
        first = part * count // parts
        size = (part + 1) * count // parts - first
        xo, yo, more = ao + first * ak, bo + first * bk, add or part > 0
        for j in range(0, columns, LANES):
            i = 0
            while i + TILE <= rows:
                several_rows(
                    a, xo + i * ai, ai, ak, b, yo + j, bk, c, co + i * ci + j, ci, size, more
                )
                i += TILE
            if i + 4 <= rows:
                four_rows(a, xo + i * ai, ai, ak, b, yo + j, bk, c, co + i * ci + j, ci, size, more)
                i += 4
            while i < rows:
                one_row(a, xo + i * ai, ai, ak, b, yo + j, bk, c, co + i * ci + j, ci, size, more)
                i += 1


# -- layers ----------------------------------------------------------------------------------------


@jit_sums
def tanh_(x: Any) -> Any:
    """Return tanh(x), as a quotient of polynomials that vectorises; error below 1e-6.

    Source: the coefficients are those of Eigen's ``ptanh_float``.
    """
    x = min(max(x, F(-7.90531110763549805)), F(7.90531110763549805))
    u = x * x
    p = F(2.00018790482477e-13) + u * F(-2.76076847742355e-16)
    p = F(-8.60467152213735e-11) + u * p
    p = F(5.12229709037114e-08) + u * p
    p = F(1.48572235717979e-05) + u * p
    p = F(6.37261928875436e-04) + u * p
    p = F(4.89352455891786e-03) + u * p
    q = F(1.18534705686654e-04) + u * F(1.19825839466702e-06)
    q = F(2.26843463243900e-03) + u * q
    q = F(4.89352518554385e-03) + u * q
    return x * p / q


@jit_sums
def normalise(h: Any, u: Any, inverse: Any, scale: Any, shift: Any, eps: float) -> None:
    """Write u = (h - mean h) / sqrt(var h + eps) and h = scale u + shift of rows h, u [n, ld].

    ``inverse`` [n]: 1 / sqrt(...). ``scale``, ``shift`` [units].
    """
    units = len(scale)
    for i in range(len(h)):
        mean, square = ZERO, ZERO
        for j in range(units):
            mean += h[i, j]
        mean /= F(units)
        for j in range(units):
            x = h[i, j] - mean
            square += x * x
        x = ONE / np.sqrt(square / F(units) + F(eps))
        inverse[i] = x
        for j in range(units):
            unit = (h[i, j] - mean) * x
            u[i, j] = unit
            h[i, j] = unit * scale[j] + shift[j]


@jit_sums
def normalise_backward(
    d: Any, u: Any, inverse: Any, scale: Any, scale_grad: Any, shift_grad: Any
) -> None:
    """Replace d loss / d output by d loss / d input of ``normalise``; write both gradients.

    With x = d scale: (x - mean x - u mean(x u)) / sqrt(...).
    """
    units = len(scale)
    for j in range(units):
        scale_grad[j] = shift_grad[j] = ZERO
    for i in range(len(d)):
        mean, along = ZERO, ZERO
        for j in range(units):
            grad, unit = d[i, j], u[i, j]
            scale_grad[j] += grad * unit
            shift_grad[j] += grad
            mean += grad * scale[j]
            along += grad * scale[j] * unit
        mean /= F(units)
        along /= F(units)
        x = inverse[i]
        for j in range(units):
            d[i, j] = x * (d[i, j] * scale[j] - mean - u[i, j] * along)


@jit_sums
def activate(h: Any, units: int, ld: int, kind: int) -> None:
    """Apply an activation to rows of ``ld`` outputs, and write the 1 behind their units."""
    if kind == RELU:
        for k in range(len(h)):
            h[k] = max(h[k], ZERO)
    elif kind == TANH:
        for k in range(len(h)):
            h[k] = tanh_(h[k])
    elif kind == ELU:
        for k in range(len(h)):
            h[k] = h[k] if h[k] > ZERO else F(math.expm1(h[k]))
    for k in range(units, len(h), ld):
        h[k] = ONE


@jit_sums
def activate_backward(d: Any, h: Any, kind: int) -> None:
    """Multiply gradients of outputs ``h`` by the derivative of the activation."""
    if kind == RELU:
        for k in range(len(d)):
            d[k] = d[k] if h[k] > ZERO else ZERO
    elif kind == TANH:
        for k in range(len(d)):
            d[k] *= ONE - h[k] * h[k]
    elif kind == ELU:
        for k in range(len(d)):
            d[k] *= ONE if h[k] > ZERO else h[k] + ONE


@jit_ieee
def forward(
    layers: Any, eps: float, p: Any, x: Any, rows: int, room: int, h: Any, u: Any, inverse: Any
) -> None:
    """Write the outputs of all layers for ``rows`` inputs x [rows, F + 1].

    ``h``, ``u``: flat, outputs and normalised values of all layers for up to ``room`` rows.
    ``inverse``: flat [layers, room].
    """
    for i in range(len(layers)):
        layer = layers[i]
        count, units, ld = layer[N_IN] + 1, layer[N_OUT], layer[LD]
        start, norm = layer[OUT] * room, layer[NORM]
        if layer[SOURCE] < 0:
            product(x, 0, count, 1, p, layer[WEIGHT], ld, h, start, ld, rows, count, units, False)
        else:
            source = layers[layer[SOURCE]]
            product(
                h, source[OUT] * room, source[LD], 1, p, layer[WEIGHT], ld, h, start, ld, rows,
                count, units, False,
            )  # fmt: skip
        y = h[start : start + rows * ld]
        if norm >= 0:
            normalise(
                y.reshape(rows, ld), u[start : start + rows * ld].reshape(rows, ld),
                inverse[i * room : i * room + rows], p[norm : norm + units],
                p[norm + units : norm + 2 * units], eps,
            )  # fmt: skip
        activate(y, units, ld, layer[ACTIVATION])


@jit_ieee
def backward(
    layers: Any, p: Any, g: Any, x: Any, rows: int, room: int, h: Any, u: Any, inverse: Any, d: Any,
    turned: Any,
) -> None:  # fmt: skip
    """Write the gradients ``g`` of the packed parameters, from those of the last layers in ``d``.

    ``d``: like ``h`` of ``forward``, 0 beyond the units; other layers' parts are overwritten.
    ``turned``: scratch for the transposed weights of one layer.
    """
    seen = np.zeros(len(layers), np.bool_)
    for i in range(len(layers) - 1, -1, -1):
        layer = layers[i]
        count, units, ld, norm = layer[N_IN] + 1, layer[N_OUT], layer[LD], layer[NORM]
        start, weight = layer[OUT] * room, layer[WEIGHT]
        end = start + rows * ld
        activate_backward(d[start:end], h[start:end], layer[ACTIVATION])
        if norm >= 0:
            normalise_backward(
                d[start:end].reshape(rows, ld), u[start:end].reshape(rows, ld),
                inverse[i * room : i * room + rows], p[norm : norm + units],
                g[norm : norm + units], g[norm + units : norm + 2 * units],
            )  # fmt: skip
        if layer[SOURCE] < 0:
            product(x, 0, 1, count, d, start, ld, g, weight, ld, count, rows, units, False)
            continue
        source = layers[layer[SOURCE]]
        before, length = source[OUT] * room, source[LD]
        product(h, before, 1, length, d, start, ld, g, weight, ld, count, rows, units, False)
        turn(p, weight, ld, turned, length, count - 1, units)
        product(
            d, start, ld, 1, turned, 0, length, d, before, length, rows, units, count - 1,
            seen[layer[SOURCE]],
        )  # fmt: skip
        seen[layer[SOURCE]] = True


@jit_ieee
def turn(p: Any, start: int, ld: int, turned: Any, length: int, n_in: int, n_out: int) -> None:
    """Write weights [n_in, ld] as [n_out, length], 0 in columns from n_in on."""
    for o in range(n_out):
        for k in range(n_in):
            turned[o * length + k] = p[start + k * ld + o]
        for k in range(n_in, length):
            turned[o * length + k] = ZERO


@jit_sums
def norm_of(g: Any) -> float:
    """Return the Euclidean norm."""
    total = ZERO
    for k in range(len(g)):
        total += g[k] * g[k]
    return math.sqrt(total)


@jit_sums
def adam_step(
    p: Any, g: Any, mean: Any, square: Any, scale: Any, step: int, lr: float, eps: float, kind: int
) -> None:
    """Make step number ``step`` of ``policy.optim.Adam`` or ``RAdam`` with ``scale`` g."""
    size, debias = lr / (1 - BETA1**step), 1 - BETA2**step
    keep1, keep2 = F(1 - BETA1), F(1 - BETA2)
    factor, root, offset = F(size), F(1 / math.sqrt(debias)), F(eps)
    if kind == RADAM:
        rho_inf = 2 / (1 - BETA2) - 1
        rho = rho_inf - 2 * step * BETA2**step / debias
        if rho <= 5:
            for k in range(len(p)):
                x = g[k] * scale
                mean[k] += keep1 * (x - mean[k])
                square[k] += keep2 * (x * x - square[k])
                p[k] -= factor * mean[k]
            return
        rectifier = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        factor, root = F(size * math.sqrt(rectifier * debias)), ONE
    for k in range(len(p)):
        x = g[k] * scale
        mean[k] += keep1 * (x - mean[k])
        square[k] += keep2 * (x * x - square[k])
        p[k] -= factor * mean[k] / (np.sqrt(square[k]) * root + offset)


@jit_ieee
def clipped_step(
    p: Any, g: Any, mean: Any, square: Any, most: float, step: int, lr: float, eps: float, kind: int
) -> float:
    """Clip the gradients to norm ``most`` (inf: not) and step. Return the norm before.

    No step is made if it is not finite.
    """
    norm = norm_of(g)
    if np.isfinite(norm):
        scale = F(most / (norm + 1e-6)) if norm > most else ONE
        adam_step(p, g, mean, square, scale, step, lr, eps, kind)
    return norm


@jit_ieee
def pack(flat: Any, index: Any, packed: Any) -> None:
    """Write packed[index] = flat."""
    for k in range(len(index)):
        packed[index[k]] = flat[k]


@jit_ieee
def unpack(packed: Any, index: Any, flat: Any) -> None:
    """Write flat = packed[index]."""
    for k in range(len(index)):
        flat[k] = packed[index[k]]


@jit_ieee
def gather(obs: Any, rows: Any, count: int, x: Any) -> None:
    """Write rows [count] of obs [N, F] to inputs x, flat [count, F + 1], with a 1 at the end."""
    width = obs.shape[1]
    for i in range(count):
        a = i * (width + 1)
        for j in range(width):
            x[a + j] = obs[rows[i], j]
        x[a + width] = ONE


@jit_ieee
def choose(valid_rows: Any, orders: Any, epoch: int, begin: int, end: int, rows: Any) -> int:
    """Write the rows of a minibatch to ``rows``. Return their number."""
    for k in range(begin, end):
        rows[k - begin] = valid_rows[orders[epoch, k] if orders.shape[1] else k]
    return end - begin


# -- PPO -------------------------------------------------------------------------------------------

# Metrics of ``ppo_loss``, in this order.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION = range(5)


@jit_ieee
def gae(
    reward: Any, value: Any, terminated: Any, truncated: Any, valid: Any, gamma: float,
    trace: float, advantage: Any,
) -> None:  # fmt: skip
    """Write ``functional.returns.gae``'s advantages [T, B]; ``value`` [T + 1, B]."""
    steps, columns = reward.shape
    for b in range(columns):
        following = 0.0
        for t in range(steps - 1, -1, -1):
            if not valid[t, b]:
                following = advantage[t, b] = 0.0
                continue
            if terminated[t, b] or truncated[t, b] or t + 1 == steps or not valid[t + 1, b]:
                following = 0.0
            after = 0.0 if terminated[t, b] else value[t + 1, b]
            following = reward[t, b] + gamma * (after + trace * following) - value[t, b]
            advantage[t, b] = following


@jit_ieee
def moments(x: Any, index: Any) -> tuple[float, float]:
    """Return (mean, 1 / (std + 1e-8)) of x[index], (0, 1) of a single row; see ``standardise``."""
    count = len(index)
    if count < 2:
        return 0.0, 1.0
    mean, square = 0.0, 0.0
    for i in range(count):
        mean += x[index[i]]
    mean /= count
    for i in range(count):
        apart = x[index[i]] - mean
        square += apart * apart
    return mean, 1 / (math.sqrt(square / (count - 1)) + 1e-8)


@jit_ieee
def explained_variance(value: Any, advantage: Any, rows: Any) -> float:
    """Return ``functional.policy.explained_variance`` of rows [n]; targets are A + V."""
    count = max(1, len(rows))
    mean, residual_mean, total, residual = 0.0, 0.0, 0.0, 0.0
    for i in range(len(rows)):
        mean += value[rows[i]] + advantage[rows[i]]
        residual_mean += advantage[rows[i]]
    mean, residual_mean = mean / count, residual_mean / count
    for i in range(len(rows)):
        x, y = value[rows[i]] + advantage[rows[i]] - mean, advantage[rows[i]] - residual_mean
        total += x * x
        residual += y * y
    return 1 - residual / total if total > 1e-10 * (total + count * mean * mean) else 0.0


@jit_ieee
def choices(z: Any, action: Any, sizes: Any, p: Any, entropies: Any) -> Any:
    """Return log pi of a row's choices; write the probabilities, and the entropy of each choice.

    ``z`` [sum(sizes)]: logits.
    """
    log_prob, start = ZERO, 0
    for c in range(len(sizes)):
        stop = start + sizes[c]
        most, total, mean = z[start], ZERO, ZERO
        for j in range(start + 1, stop):
            most = max(most, z[j])
        for j in range(start, stop):
            p[j] = np.exp(z[j] - most)
            total += p[j]
        for j in range(start, stop):
            p[j] /= total
            mean += p[j] * (z[j] - most)
        log_total = np.log(total)
        log_prob += z[start + int(action[c])] - most - log_total
        entropies[c] = log_total - mean
        start = stop
    return log_prob


@jit_ieee
def choices_backward(
    d: Any, action: Any, sizes: Any, z: Any, p: Any, entropies: Any, log_prob: Any, entropy: Any
) -> None:
    """Write d loss / d logits for those of log pi and of the entropy; see ``categorical_grad``."""
    start = 0
    for c in range(len(sizes)):
        stop, own = start + sizes[c], entropies[c]
        for j in range(start, stop):
            d[j] = -log_prob * p[j]
            if entropy != ZERO and p[j] > ZERO:
                d[j] -= entropy * p[j] * (np.log(p[j]) + own)
        d[start + int(action[c])] += log_prob
        start = stop


@jit_ieee
def ppo_loss(
    rows: Any, action: Any, behaviour: Any, advantage: Any, old: Any, sizes: Any, log_std: Any,
    log_std_grad: Any, h: Any, d: Any, at: Any, clip: float, value_clip: float, value_coef: float,
    entropy_coef: float, standardised: bool, metrics: Any,
) -> None:  # fmt: skip
    """Write the gradients of ``PPO.loss`` for ``rows`` of the rollout; add to the metrics.

    ``at``: offset and row length of the policy's outputs in ``h``, then of the value's. ``sizes``
    empty: a Gaussian with ``log_std``.
    """
    count = len(rows)
    share, low, high = F(1 / max(1, count)), F(1 - clip), F(1 + clip)
    mean, inverse = moments(advantage, rows) if standardised else (0.0, 1.0)
    numbers = len(log_std)
    p, entropies = np.empty(at[1], np.float32), np.empty(max(1, len(sizes)), np.float32)
    weight, constant = F(-entropy_coef) * share, ZERO
    for j in range(numbers):
        log_std_grad[j] = ZERO
        constant += log_std[j] + F(0.5 * math.log(2 * math.pi))
    for i in range(count):
        r = rows[i]
        z, dz = h[at[0] + i * at[1] :], d[at[0] + i * at[1] :]
        if numbers == 0:
            log_prob, entropy = choices(z, action[r], sizes, p, entropies), ZERO
            for c in range(len(sizes)):
                entropy += entropies[c]
        else:
            log_prob, entropy = -constant, constant + F(0.5 * numbers)
            for j in range(numbers):
                p[j] = (action[r, j] - z[j]) * np.exp(-log_std[j])
                log_prob -= HALF * p[j] * p[j]
        gain = F((advantage[r] - mean) * inverse)
        log_ratio = log_prob - behaviour[r]
        ratio = np.exp(log_ratio)
        clipped = min(max(ratio, low), high)
        slope = -ratio * gain * share if ratio * gain <= clipped * gain else ZERO
        if numbers == 0:
            choices_backward(dz, action[r], sizes, z, p, entropies, slope, weight)
        else:
            for j in range(numbers):
                dz[j] = slope * p[j] * np.exp(-log_std[j])
                log_std_grad[j] += slope * (p[j] * p[j] - ONE) + weight

        value = h[at[2] + i * at[3]]
        error = value - F(old[r] + advantage[r])
        loss, active = error * error, ONE
        if value_clip < np.inf:
            change = value - F(old[r])
            limited = error + (min(max(change, F(-value_clip)), F(value_clip)) - change)
            if limited * limited > loss:
                loss, active = limited * limited, ZERO
        d[at[2] + i * at[3]] = F(value_coef) * active * error * share

        metrics[POLICY_LOSS] += max(-gain * ratio, -gain * clipped) * share
        metrics[VALUE_LOSS] += HALF * loss * share
        metrics[ENTROPY] += entropy * share
        metrics[APPROX_KL] += (ratio - ONE - log_ratio) * share
        metrics[CLIP_FRACTION] += share if ratio != clipped else ZERO


@jit_ieee
def ppo_passes(
    layers: Any, eps: float, index: Any, state: Any, work: Any, obs: Any, action: Any,
    behaviour: Any, reward: Any, ends: Any, valid_rows: Any, orders: Any, bounds: Any, sizes: Any,
    heads: Any, log_std_at: int, returns: Any, loss: Any, step: Any, advantage: Any, value: Any,
    metrics: Any,
) -> tuple[int, int, float]:  # fmt: skip
    """Make all passes of PPO over a rollout. Return (passes, steps, norm of the last gradient).

    Args:
        layers, eps: the table of layers, and the normalisations' epsilon.
        index: position of every parameter in packed arrays.
        state: parameters and Adam's moments, flat, in the policy's order; overwritten.
        work: arrays of ``CompiledNet``.
        obs: inputs [(T + 1) B, F]; action [T B, S]; behaviour [T B]; reward [T, B].
        ends: terminated, truncated, valid [T, B].
        valid_rows: rows to learn from [n]; orders [epochs, n]: positions in it, or [epochs, 0].
        bounds: where the minibatches of a pass begin, and n.
        sizes: of the choices of an action, [] for real numbers.
        heads: numbers of the layers of the policy and of the value.
        returns: gamma, lambda. loss: clip, value clip, value and entropy coefficient, target KL,
            whether advantages are standardised.
        step: number of steps before, learning rate, largest norm, epsilon.
        advantage, value, metrics: outputs [T, B], [T + 1, B], [6]: those of ``ppo_loss`` for the
            last minibatch, and the explained variance of the values before the update.
    """
    x, h, u, inverse, d, turned, g, p, mean, square = work
    pack(state[0], index, p)
    pack(state[1], index, mean)
    pack(state[2], index, square)
    policy, critic = layers[heads[0]], layers[heads[1]]
    room = len(inverse) // len(layers)
    rows = np.empty(room, np.int64)
    at = (policy[OUT] * room, policy[LD], critic[OUT] * room, critic[LD])
    flat_value, flat_advantage = value.reshape(-1), advantage.reshape(-1)
    for first in range(0, len(obs), room):
        count = min(room, len(obs) - first)
        for i in range(count):
            rows[i] = first + i
        gather(obs, rows, count, x)
        forward(layers, eps, p, x, count, room, h, u, inverse)
        for i in range(count):
            flat_value[first + i] = h[at[2] + i * at[3]]
    gae(reward, value, ends[0], ends[1], ends[2], returns[0], returns[1], advantage)

    numbers = 0 if len(sizes) else policy[N_OUT]
    log_std = p[log_std_at : log_std_at + numbers]
    log_std_grad = g[log_std_at : log_std_at + numbers]
    steps, norm, passes = int(step[0]), 0.0, 0
    parts = len(bounds) - 1
    for epoch in range(len(orders)):
        for k in range(parts):
            count = choose(valid_rows, orders, epoch, bounds[k], bounds[k + 1], rows)
            if parts > 1 or epoch == 0:
                gather(obs, rows, count, x)
            forward(layers, eps, p, x, count, room, h, u, inverse)
            for j in range(len(metrics)):
                metrics[j] = 0.0
            ppo_loss(
                rows[:count], action, behaviour, flat_advantage, flat_value, sizes, log_std,
                log_std_grad, h, d, at, loss[0], loss[1], loss[2], loss[3], loss[5] > 0, metrics,
            )  # fmt: skip
            backward(layers, p, g, x, count, room, h, u, inverse, d, turned)
            steps += 1
            norm = clipped_step(p, g, mean, square, step[2], steps, step[1], step[3], ADAM)
            if not np.isfinite(norm):
                steps -= 1
                break
        passes += 1
        if not np.isfinite(norm) or metrics[APPROX_KL] > loss[4]:
            break
    unpack(p, index, state[0])
    unpack(mean, index, state[1])
    unpack(square, index, state[2])
    metrics[5] = explained_variance(flat_value, flat_advantage, valid_rows)
    return passes, steps - int(step[0]), norm


# -- PQN -------------------------------------------------------------------------------------------

# Metrics of ``pqn_loss``, in this order.
LOSS, TD_ABS, Q_TAKEN, TARGET = range(4)


@jit_ieee
def lambda_return(
    reward: Any, value: Any, terminated: Any, truncated: Any, valid: Any, gamma: float,
    trace: float, target: Any,
) -> None:  # fmt: skip
    """Write ``functional.returns.lambda_return`` [T, B]; ``value`` [T + 1, B]."""
    steps, columns = reward.shape
    for b in range(columns):
        following = 0.0
        for t in range(steps - 1, -1, -1):
            if not valid[t, b]:
                following = target[t, b] = 0.0
                continue
            decay = trace
            if terminated[t, b] or truncated[t, b] or t + 1 == steps or not valid[t + 1, b]:
                decay = 0.0
            after = 0.0 if terminated[t, b] else value[t + 1, b]
            following = reward[t, b] + gamma * ((1 - decay) * after + decay * following)
            target[t, b] = following


@jit_ieee
def action_values(h: Any, at: Any, row: int, actions: int, q: Any) -> None:
    """Write the values [actions] of a row: advantages, or with a second stream V + A - mean A."""
    mean = ZERO
    for j in range(actions):
        q[j] = h[at[0] + row * at[1] + j]
        mean += q[j]
    if at[2] >= 0:
        shift = h[at[2] + row * at[3]] - mean / F(actions)
        for j in range(actions):
            q[j] += shift


@jit_ieee
def largest(q: Any) -> Any:
    """Return the maximum of q."""
    most = q[0]
    for j in range(1, len(q)):
        most = max(most, q[j])
    return most


@jit_ieee
def pqn_loss(
    rows: Any, action: Any, target: Any, h: Any, d: Any, at: Any, q: Any, metrics: Any
) -> None:
    """Write the gradients of ``PQN.loss`` for ``rows`` of the rollout; add to the metrics."""
    count, actions = len(rows), len(q)
    share = F(1 / max(1, count))
    for i in range(count):
        action_values(h, at, i, actions, q)
        taken = action[rows[i]]
        error = q[taken] - target[rows[i]]
        slope, mean = error * share, ZERO
        if at[2] >= 0:
            d[at[2] + i * at[3]] = slope
            mean = slope / F(actions)
        for j in range(actions):
            d[at[0] + i * at[1] + j] = (slope if j == taken else ZERO) - mean
        metrics[LOSS] += HALF * error * error * share
        metrics[TD_ABS] += abs(error) * share
        metrics[Q_TAKEN] += q[taken] * share
        metrics[TARGET] += target[rows[i]] * share


@jit_ieee
def pqn_passes(
    layers: Any, eps: float, index: Any, state: Any, work: Any, obs: Any, action: Any, reward: Any,
    ends: Any, valid_rows: Any, orders: Any, bounds: Any, heads: Any, returns: Any, step: Any,
    target: Any, value: Any, metrics: Any,
) -> tuple[int, int, float]:  # fmt: skip
    """Make all passes of PQN over a rollout. Return (passes, steps, norm of the last gradient).

    Arguments are those of ``ppo_passes``, except action [T B], heads: numbers of the layers of the
    advantages and of the value (-1: none), target [T, B] for ``advantage``, metrics [4].
    """
    x, h, u, inverse, d, turned, g, p, mean, square = work
    pack(state[0], index, p)
    pack(state[1], index, mean)
    pack(state[2], index, square)
    room = len(inverse) // len(layers)
    rows = np.empty(room, np.int64)
    stream, actions = layers[heads[0]], layers[heads[0]][N_OUT]
    critic = layers[max(heads[1], 0)]
    start = critic[OUT] * room if heads[1] >= 0 else -1
    at = (stream[OUT] * room, stream[LD], start, critic[LD])
    q = np.empty(actions, np.float32)
    flat_value, flat_target = value.reshape(-1), target.reshape(-1)
    for first in range(0, len(obs), room):
        count = min(room, len(obs) - first)
        for i in range(count):
            rows[i] = first + i
        gather(obs, rows, count, x)
        forward(layers, eps, p, x, count, room, h, u, inverse)
        for i in range(count):
            action_values(h, at, i, actions, q)
            flat_value[first + i] = largest(q)
    lambda_return(reward, value, ends[0], ends[1], ends[2], returns[0], returns[1], target)
    steps, norm, passes = int(step[0]), 0.0, 0
    parts = len(bounds) - 1
    for epoch in range(len(orders)):
        for k in range(parts):
            count = choose(valid_rows, orders, epoch, bounds[k], bounds[k + 1], rows)
            if parts > 1 or epoch == 0:
                gather(obs, rows, count, x)
            forward(layers, eps, p, x, count, room, h, u, inverse)
            for j in range(len(metrics)):
                metrics[j] = 0.0
            pqn_loss(rows[:count], action, flat_target, h, d, at, q, metrics)
            backward(layers, p, g, x, count, room, h, u, inverse, d, turned)
            steps += 1
            norm = clipped_step(p, g, mean, square, step[2], steps, step[1], step[3], RADAM)
            if not np.isfinite(norm):
                steps -= 1
                break
        passes += 1
        if not np.isfinite(norm):
            break
    unpack(p, index, state[0])
    unpack(mean, index, state[1])
    unpack(square, index, state[2])
    return passes, steps - int(step[0]), norm


# -- rollouts --------------------------------------------------------------------------------------

SAMPLED, EPSILON_GREEDY = range(2)  # how actions are selected
# Constants of CartPole.
GRAVITY, POLE_MASS, TOTAL_MASS, LENGTH, POLE_MASS_LENGTH, FORCE, TAU, MOST_THETA, MOST_X = range(9)
LOW, HIGH, LIMIT, SUTTON_BARTO = range(9, 13)


@jit_ieee
def cartpole(
    c: Any, generator: Any, state: Any, steps: Any, done: Any, action: Any, obs: Any, reward: Any,
    terminated: Any, truncated: Any,
) -> None:  # fmt: skip
    """Step ``CartPoleVectorEnv`` with Euler integration: state [4, E], steps, done [E].

    Every operation is that of Gymnasium, in float64, in the same order. Source: Barto, Sutton &
    Anderson 1983.
    """
    x, v, angle, spin = state
    for i in range(len(steps)):
        force = c[FORCE] if action[i] == 1 else -c[FORCE]
        cosine, sine = math.cos(angle[i]), math.sin(angle[i])
        push = (force + c[POLE_MASS_LENGTH] * (spin[i] * spin[i]) * sine) / c[TOTAL_MASS]
        turning = (c[GRAVITY] * sine - cosine * push) / (
            c[LENGTH] * (4.0 / 3.0 - c[POLE_MASS] * (cosine * cosine) / c[TOTAL_MASS])
        )
        speeding = push - c[POLE_MASS_LENGTH] * turning * cosine / c[TOTAL_MASS]
        x[i] += c[TAU] * v[i]
        v[i] += c[TAU] * speeding
        angle[i] += c[TAU] * spin[i]
        spin[i] += c[TAU] * turning
        fallen = abs(x[i]) > c[MOST_X] or abs(angle[i]) > c[MOST_THETA]
        steps[i] += 1
        terminated[i], truncated[i] = fallen, steps[i] >= c[LIMIT]
        reward[i] = ONE if c[SUTTON_BARTO] == 0 else F(-1.0 if fallen else -0.0)
    for k in range(4):
        for i in range(len(steps)):
            if done[i]:
                state[k, i] = generator.uniform(c[LOW], c[HIGH])
    for i in range(len(steps)):
        if done[i]:
            steps[i], reward[i], terminated[i], truncated[i] = 0, ZERO, False, False
        done[i] = terminated[i] or truncated[i]
        for k in range(4):
            obs[i, k] = F(state[k, i])


@jit_ieee
def sample_actions(
    h: Any, start: int, ld: int, actions: int, generator: Any, action: Any, log_prob: Any, p: Any
) -> None:
    """Write ``functional.explore.draw_categorical`` of the logits in ``h`` for every column."""
    draws = generator.random(len(action), np.float32)
    for i in range(len(action)):
        z, most, total = h[start + i * ld :], h[start + i * ld], ZERO
        for j in range(1, actions):
            most = max(most, z[j])
        for j in range(actions):
            total += np.exp(z[j] - most)
            p[j] = total
        threshold = min(draws[i] * total, np.nextafter(total, ZERO))
        chosen = 0
        for j in range(actions - 1):
            chosen += p[j] <= threshold
        action[i], log_prob[i] = chosen, z[chosen] - most - np.log(total)


@jit_ieee
def greedy_actions(
    h: Any, at: Any, actions: int, epsilon: Any, generator: Any, action: Any, q: Any
) -> None:
    """Write ``functional.explore.epsilon_greedy`` of the values in ``h`` for every column."""
    coins = generator.random(len(action))
    others = generator.integers(0, actions, len(action))
    for i in range(len(action)):
        action_values(h, at, i, actions, q)
        chosen = 0
        for j in range(1, actions):
            if q[j] > q[chosen]:
                chosen = j
        action[i] = others[i] if coins[i] < epsilon[i] else chosen


@jit_ieee
def rollout(
    rule: int, layers: Any, eps: float, p: Any, work: Any, heads: Any, epsilon: Any,
    generators: Any, constants: Any, world: Any, arrays: Any, log_prob: Any, carried: Any,
    finished: Any, begin: int, end: int, units: int, wanted: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Collect rows begin, ..., at most end - 1 of E columns, until ``wanted`` valid ones.

    Args:
        rule: SAMPLED or EPSILON_GREEDY. epsilon: [E].
        layers, eps, p, work, heads: of the acting network; see ``pqn_passes``.
        generators: of exploration and of the environments.
        constants, world: of the environments; world: state, steps, done.
        arrays: obs, first, action, reward, terminated, truncated, valid [T, E, ...].
        log_prob: [T, E], or [1, E] if it is not recorded.
        carried: first, ended, episode_return, episode_length [E].
        finished: return and length of the episodes that end, [*, 2].
        units: valid rows of the chunk before row ``begin``.

    Returns: the row after the last, units, valid rows and finished episodes of this call.
    """
    obs, first, action, reward, terminated, truncated, valid = arrays
    opened, ended, episode_return, episode_length = carried
    x, h, u, inverse = work
    columns, width = obs.shape[1], obs.shape[2]
    head = layers[heads[0]]
    actions, critic = head[N_OUT], layers[max(heads[1], 0)]
    at = (
        head[OUT] * columns, head[LD], critic[OUT] * columns if heads[1] >= 0 else -1, critic[LD],
    )  # fmt: skip
    q = np.empty(actions, np.float32)
    t, steps, episodes = begin, 0, 0
    while t < end and units < wanted:
        for i in range(columns):
            for j in range(width):
                x[i * (width + 1) + j] = obs[t, i, j]
            x[i * (width + 1) + width] = ONE
            valid[t, i], first[t, i] = not ended[i], opened[i]
        forward(layers, eps, p, x, columns, columns, h, u, inverse)
        if rule == SAMPLED:
            sample_actions(h, at[0], at[1], actions, generators[0], action[t], log_prob[t], q)
        else:
            greedy_actions(h, at, actions, epsilon, generators[0], action[t], q)
        cartpole(
            constants, generators[1], world[0], world[1], world[2], action[t], obs[t + 1],
            reward[t], terminated[t], truncated[t],
        )  # fmt: skip
        for i in range(columns):
            truncated[t, i] &= not terminated[t, i]
            opened[i], ended[i] = ended[i], terminated[t, i] or truncated[t, i]
            episode_return[i] += reward[t, i]
            if valid[t, i]:
                episode_length[i] += 1
                units += 1
                steps += 1
                if ended[i]:
                    finished[episodes, 0] = episode_return[i]
                    finished[episodes, 1] = episode_length[i]
                    episodes += 1
                    episode_return[i], episode_length[i] = 0.0, 0
        t += 1
    return t, units, steps, episodes
