"""Passes of networks with an LSTM or GRU, and on-policy updates made of them.

Between products, numpy's or compiled, there are compiled loops. Most of an update of 256 rows
through 32 units in torch is the overhead of some four hundred small operations.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from rlrun.jit import jit_ieee
from rlrun.kernels.gated import NO_ROWS, GatedPasses, State, Trace
from rlrun.kernels.layers import (
    PackedNet,
    action_values,
    backward,
    forward,
    input_gradients,
    part,
)
from rlrun.kernels.on_policy import (
    APPROX_KL,
    ActorCriticTerms,
    OnePassTerms,
    PPOTerms,
    PQNTerms,
    action_value_loss,
    actor_critic_loss,
    greatest,
    log_std_of,
)
from rlrun.nets.memory.gated import GRU, LSTM
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import MLP, make_flatten
from rlrun.policy.base import Part
from rlrun.policy.rollout import Batches, RolloutPolicy, RolloutRows

Work = tuple[np.ndarray, ...]  # see ``PackedNet.work``
H, D = 0, 3  # of its arrays: outputs, and their gradients


@jit_ieee
def heads_backward(
    layers: np.ndarray, p: np.ndarray, g: np.ndarray, out: np.ndarray, room: int, work: Any,
    grad: np.ndarray,
) -> None:  # fmt: skip
    """Write the gradients of the heads' parameters, and of the memory's outputs, ``grad`` [N, H].

    ``out``: the outputs, flat [room, H], of which the loss depends on the first N.
    """
    h, unit, inverse, d = work
    backward(layers, p, g, out, room, len(grad), h, unit, inverse, d)
    input_gradients(layers, p, d, room, 0, grad)


def gradients_of(learned: Part, memory: LSTM | GRU) -> list[np.ndarray]:
    """Return the arrays for the gradients of a memory's weights, parts of that of all."""
    flat, _ = learned.flatten()
    views = dict(zip(map(id, learned.params), flat.grad_views, strict=True))
    return [views[id(p)].numpy() for p in memory.core.all_weights[0]]


class RecurrentPasses:
    """Passes of a torso, an LSTM or GRU, and the ``heads`` that read it.

    Weights are views of the network's.
    """

    def __init__(
        self, learned: Part, torso: MLP, memory: LSTM | GRU, p: np.ndarray,
        grads: Sequence[np.ndarray] | None,
    ) -> None:  # fmt: skip
        """``p``: all parameters. ``memory``: of the network, or of its target network.

        ``grads``: arrays for the gradients of its weights; None: forward only.
        """
        self.torso, self.heads, self.p = PackedNet(learned), PackedNet(learned), p
        self.torso.add(torso.layers, -1)
        self.torso_layers = self.torso.table()
        self.width, self.memory = torso.size, GatedPasses(memory.core, grads)
        self.room = -1  # rows of the arrays of both passes
        self.torso_work: Work = ()
        self.head_work: Work = ()

    @cached_property
    def head_layers(self) -> np.ndarray:
        """The table of the heads' layers."""
        return self.heads.table()

    def run_memory(
        self, x: np.ndarray, previous: np.ndarray, state: State, *, filler: np.ndarray = NO_ROWS,
        first: np.ndarray = NO_ROWS,
    ) -> Trace:  # fmt: skip
        """Unroll torso and memory over ``x`` [T, B, F] and ``previous`` [T, B, P]; see ``QNet``.

        ``filler``, ``first``: see ``GatedPasses.unroll``.
        """
        inputs = np.empty((*x.shape[:2], self.width + previous.shape[2]), np.float32)
        features, rows = x, x.shape[0] * x.shape[1]
        if rows > self.room:
            self.room, self.torso_work = rows, self.torso.work(rows)
            self.head_work = self.heads.work(rows)
        if len(self.torso_layers):
            h, unit, inverse, _ = self.torso_work
            forward(self.torso_layers, self.p, x.reshape(-1), rows, h, unit, inverse)
            features = self.last_layer(h, x)
        inputs[..., : self.width], inputs[..., self.width :] = features, previous
        return self.memory.unroll(inputs, state, filler=filler, first=first)

    def last_layer(self, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the last layer of the torso [T, B, H] for ``x`` [T, B, F] in an array of all."""
        rows, end = x.shape[0] * x.shape[1], self.torso.width
        last = h[rows * (end - self.width) : rows * end]
        return last.reshape(*x.shape[:2], self.width)

    def warm(self, x: np.ndarray, previous: np.ndarray, state: State, real: np.ndarray) -> State:
        """Return the state after the burn-in; ``real`` bool [T, B]: rows that are not filler."""
        return self.run_memory(x, previous, state, filler=~real).state(-1) if len(x) else state

    def run_heads(self, trace: Trace) -> Work:
        """Compute the heads of the last ``run_memory``. Return their arrays."""
        rows = trace.out.shape[0] * trace.out.shape[1]
        h, unit, inverse, d = self.head_work
        forward(self.head_layers, self.p, trace.out.reshape(-1), rows, h, unit, inverse)
        return h, unit, inverse, d

    def torso_backward(self, g: np.ndarray, x: np.ndarray, grad: np.ndarray) -> None:
        """Write the gradients of the torso's parameters from those of its outputs, ``grad`` [N, H].

        ``x`` [T, B, F]: of the last ``run_memory``, of whose rows the loss depends on the first N.
        """
        if not len(self.torso_layers):
            return
        rows = x.shape[0] * x.shape[1]
        h, unit, inverse, d = self.torso_work
        self.last_layer(d, x).reshape(rows, -1)[: len(grad)] = grad
        backward(
            self.torso_layers, self.p, g, x.reshape(-1), rows, len(grad), h, unit, inverse, d
        )  # fmt: skip

    def backward(self, g: np.ndarray, x: np.ndarray, trace: Trace) -> None:
        """Write the gradients of all parameters from those of the heads' outputs.

        ``x`` [T, B, F]: of the last ``run_memory``, on all of whose rows the loss depends.
        """
        rows = x.shape[0] * x.shape[1]
        grad = np.empty((rows, trace.out.shape[2]), np.float32)
        out = trace.out.reshape(-1)
        heads_backward(self.head_layers, self.p, g, out, rows, self.head_work, grad)
        grad = self.memory.backward(trace, grad.reshape(trace.out.shape), inputs=self.width)
        self.torso_backward(g, x, grad)


# -- passes over segments of a rollout -------------------------------------------------------------


class Inputs(NamedTuple):
    """The inputs of networks for a rollout of T rows and B columns, flattened."""

    obs: np.ndarray  # [(T + 1) B, F]
    previous: np.ndarray  # [(T + 1) B, P]
    first: np.ndarray  # bool [(T + 1) B]
    valid: np.ndarray  # bool [T B]
    states: list[State]  # of every trunk, [T B, H] each


class SegmentPasses:
    """The passes of the trunks of an on-policy policy over segments of a rollout."""

    def __init__(
        self, policy: RolloutPolicy[Any], trunks: Sequence[tuple[MLP, LSTM | GRU]]
    ) -> None:
        learned = policy.parts["net"]
        flat, _ = learned.flatten()
        self.grads, values = flat.grads.numpy(), flat.values.numpy()
        self.trunks = [
            RecurrentPasses(learned, torso, memory, values, gradients_of(learned, memory))
            for torso, memory in trunks
        ]
        self.flatten = make_flatten(trunks[0][0].space)
        self.net = self.trunks[0].heads  # for its optimiser
        self.step: Callable[..., float] = self.net.step
        if len(learned.adam.groups) > 1:  # memories have their own learning rate
            self.step = learned.adam.flat_step

    def read(self, rows: RolloutRows, obs: Any, states: Sequence[Any]) -> Inputs:
        """Return the inputs. ``states``: of every trunk, tensors [T, B, H]."""
        flat = [x.flatten(0, 1).numpy() for x in (self.flatten(obs), rows.previous, rows.first)]
        return Inputs(
            flat[0], flat[1], flat[2], rows.valid.reshape(-1).numpy(),
            [tuple(s.flatten(0, 1).numpy() for s in state) for state in states],
        )  # fmt: skip

    def unroll(self, inputs: Inputs, numbers: np.ndarray) -> tuple[np.ndarray, list[Trace]]:
        """Compute all trunks and heads of rows ``numbers`` [S, M], -1: padding.

        Returns: the observations [S, M, F], and the trace of every trunk.
        """
        index = np.maximum(numbers, 0)
        obs, previous = inputs.obs[index], inputs.previous[index]
        first = inputs.first[index] & (numbers >= 0)
        first, traces = first if first.any() else NO_ROWS, []
        for trunk, state in zip(self.trunks, inputs.states, strict=True):
            begin = tuple(s[index[0]] for s in state)
            traces.append(trunk.run_memory(obs, previous, begin, first=first))
            trunk.run_heads(traces[-1])
        return obs, traces

    def whole(self, rows: RolloutRows, inputs: Inputs) -> int:
        """Compute trunks and heads of the whole rollout. Return its (T + 1) B rows."""
        steps, columns = rows.valid.shape
        count = (steps + 1) * columns
        self.unroll(inputs, np.arange(count).reshape(steps + 1, columns))
        return count

    def run(
        self, inputs: Inputs, batches: Batches, rates: Sequence[float],
        loss: Callable[[np.ndarray], None], ended: Callable[[], bool],
    ) -> tuple[int, float]:  # fmt: skip
        """Make all passes. Return their number and the norm of the last gradient.

        Args:
            loss: writes the gradients of the heads' outputs in the last ``unroll``, of whose
                flattened rows it gets the numbers, -1: not learned.
            ended: asked after every pass.
        """
        norm, passes = 0.0, 0
        for order in batches.orders:
            for start, stop in pairwise(batches.bounds.tolist()):
                chosen = order[start:stop] if len(order) else slice(start, stop)
                numbers = np.ascontiguousarray(batches.rows[:, chosen])
                obs, traces = self.unroll(inputs, numbers)
                learned = (numbers >= 0) & inputs.valid[np.maximum(numbers, 0)]
                loss(np.where(learned, numbers, -1).reshape(-1))
                for trunk, trace in zip(self.trunks, traces, strict=True):
                    trunk.backward(self.grads, obs, trace)
                norm = self.step(*rates)
            passes += 1
            if ended():
                break
        return passes, norm


# -- PPO, A2C, IMPALA ------------------------------------------------------------------------------


@jit_ieee
def policy_gradients(
    numbers: Any, rollout: Any, sizes: Any, log_std: Any, outputs: Any, grads: Any, rule: Any,
    metrics: Any,
) -> None:  # fmt: skip
    """Write the gradients of outputs and log standard deviations; see ``actor_critic_loss``."""
    chances = np.empty(outputs[0].shape[1], np.float32)
    entropies = np.empty(max(1, len(sizes)), np.float32)
    actor_critic_loss(
        numbers, rollout, sizes, log_std, outputs, grads, rule, chances, entropies, metrics
    )


class RecurrentActorCritic(ActorCriticTerms):
    """Base class for policies with an ``ActorCritic`` with a memory."""

    function = staticmethod(policy_gradients)  # see run/precompile.py

    def __init__(self, policy: Any) -> None:
        self.policy, net = policy, policy.net
        self.segments = SegmentPasses(policy, [(t.torso, t.memory) for t in net.trunks])
        trunks, packed = self.segments.trunks, self.segments.net
        self.places = (  # of the outputs: a trunk, and the number of the layer
            (trunks[0], trunks[0].heads.add(net.policy, -1)),
            (trunks[-1], trunks[-1].heads.add(net.value, -1)),
        )
        place, self.sizes = log_std_of(packed, net), np.array(net.sizes, np.int64)
        self.log_std = None if place is None else (packed.values[place], packed.grads[place])

    def parts_of(self, which: int, rows: int) -> tuple[np.ndarray, ...]:
        """Return the policy's outputs [rows, K] and V [rows, 1] in the heads' array ``which``."""
        return tuple(part(t.head_work[which], t.head_layers[i], rows) for t, i in self.places)

    def evaluate(
        self, rows: RolloutRows, obs: Any, batches: Batches
    ) -> tuple[Inputs, np.ndarray, np.ndarray]:
        inputs = self.segments.read(rows, obs, rows.states)
        params, value = self.parts_of(H, self.segments.whole(rows, inputs))
        return inputs, params.copy(), value.copy()

    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], rule: tuple[float, ...],
        metrics: np.ndarray,
    ) -> tuple[int, float]:  # fmt: skip
        inputs, *others = rollout
        arrays = inputs.obs, *others

        def loss(numbers: np.ndarray) -> None:
            outputs, grads = (self.parts_of(which, len(numbers)) for which in (H, D))
            self.function(numbers, arrays, self.sizes, self.log_std, outputs, grads, rule, metrics)

        def ended() -> bool:
            return bool(metrics[APPROX_KL] > rule[4])

        return self.segments.run(inputs, batches, rates, loss, ended)


class RecurrentPPOKernel(PPOTerms, RecurrentActorCritic):
    """``PPO.passes`` with an LSTM or GRU."""


class RecurrentOnePassKernel(OnePassTerms, RecurrentActorCritic):
    """``OnePassLearner.passes`` with an LSTM or GRU."""


# -- PQN -------------------------------------------------------------------------------------------


@jit_ieee
def value_gradients(
    numbers: Any, rollout: Any, layers: Any, heads: Any, h: Any, d: Any, metrics: Any
) -> None:
    """Write the gradients of the heads' outputs; see ``action_value_loss``."""
    rows = len(numbers)
    advantage, value = part(d, layers[heads[0]], rows), part(d, layers[max(heads[1], 0)], rows)
    q = np.empty(advantage.shape, np.float32)
    action_values(h, layers, heads, rows, q)
    action_value_loss(numbers, rollout, q, advantage, value, heads[1] >= 0, metrics)


class RecurrentPQNKernel(PQNTerms):
    """``PQN.passes`` with an LSTM or GRU."""

    function = staticmethod(value_gradients)  # see run/precompile.py

    def __init__(self, policy: Any) -> None:
        self.policy, net = policy, policy.net
        self.segments = SegmentPasses(policy, [(net.torso, net.memory)])
        (self.trunk,), self.actions = self.segments.trunks, net.actions
        self.heads = self.trunk.heads.add_heads(cast("QNet", net), -1)

    def evaluate(self, rows: RolloutRows, batches: Batches) -> tuple[Inputs, np.ndarray]:
        inputs = self.segments.read(rows, rows.obs, [rows.states])
        value = np.empty(self.segments.whole(rows, inputs), np.float32)
        layers, h = self.trunk.head_layers, self.trunk.head_work[H]
        greatest(h, layers, self.heads, self.actions, value)
        return inputs, value

    def run(
        self, rollout: Any, batches: Batches, rates: Sequence[float], metrics: np.ndarray
    ) -> tuple[int, float]:
        inputs, *others = rollout
        arrays, layers = (inputs.obs, *others), self.trunk.head_layers

        def loss(numbers: np.ndarray) -> None:
            h, _, _, d = self.trunk.head_work
            self.function(numbers, arrays, layers, self.heads, h, d, metrics)

        return self.segments.run(inputs, batches, rates, loss, lambda: False)
