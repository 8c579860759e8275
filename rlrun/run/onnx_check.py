"""Comparison of an exported policy with the actor it was made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlrun.acting.actor import NetActor
from rlrun.acting.greedy import GreedyStep, as_tree, named_leaves
from rlrun.acting.values import ValueActor
from rlrun.env.framestack import make_frame_stack
from rlrun.functional.masks import FORBIDDEN
from rlrun.functional.value import unrescale
from rlrun.nets.actor_critic import ActorCritic, discrete_sizes
from rlrun.types import Policy, Tree, no_actions, tree_leaves

_LARGE = 1e4  # bounds of observations beyond this one say nothing about their size
_ROWS = 16  # of the comparison on random rows
_COUNTS = (1, 3)  # environments of that comparison

Numbers = dict[str, np.ndarray]
GraphFunction = Callable[[Numbers], Numbers]  # outputs of inputs, by name


@dataclass(slots=True)
class Deviation:
    """Largest differences of numbers x in units of max(1, |x|), and counts of unlike actions."""

    rows: int = 0
    outputs: float = 0.0  # values, logits, means
    actions: float = 0.0  # of a Box
    unlike: int = 0  # discrete actions that differ where the actor's outputs decide
    ties: int = 0  # discrete actions that differ where two outputs are equal to the tolerance

    def __add__(self, other: "Deviation") -> "Deviation":
        """Return the differences over the rows of both."""
        return Deviation(
            self.rows + other.rows,
            _larger(self.outputs, other.outputs),
            _larger(self.actions, other.actions),
            self.unlike + other.unlike,
            self.ties + other.ties,
        )

    def within(self, tolerance: float) -> bool:
        """False also where a number is NaN."""
        return self.outputs <= tolerance and self.actions <= tolerance and not self.unlike

    def __str__(self) -> str:
        worst = max(self.outputs, self.actions, key=lambda x: (x != x, x))
        unlike = f", {self.unlike} other actions" if self.unlike else ""
        return f"{worst:.1g}{unlike} in {self.rows} rows"


def onnx_session(model: bytes | str) -> GraphFunction:
    """Return the function that a model file, or its content, computes on one CPU thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


class SideBySide:
    """The actor and the exported policy on the same rows, each with its own state."""

    def __init__(
        self,
        run: GraphFunction,
        policy: Policy,
        step: GreedyStep,
        count: int,
        *,
        tolerance: float = 1e-5,
    ) -> None:
        """``run``: the graph of ``step``, of which nothing but names and shapes is read.

        ``count``: number of environments. ``tolerance``: two actions whose outputs differ by
        less are a tie.
        """
        actor = policy.actor(count)
        assert isinstance(actor, NetActor)
        self.run, self.actor, self.spec, self.tolerance = run, actor, step.spec, tolerance
        self.stack = make_frame_stack(step.frames, self.spec.obs, count)
        self.state, self.inputs = actor.initial_state(), step.inputs(count)
        self.names = [name for name, _ in named_leaves(self.spec.obs)]
        self.start = np.asarray(getattr(self.spec.action, "start", 0))
        self.sizes, self.deviation = discrete_sizes(self.spec.action), Deviation()

    def act(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray
    ) -> np.ndarray:
        """Return the actor's greedy actions of single frames ``obs``, counted from 0.

        ``action``, ``reward``: of the row before.
        """
        given = dict(zip(self.names, tree_leaves(obs), strict=True)) | {
            "first": first,
            "prev_action": (action + self.start).astype(action.dtype),
            "prev_reward": reward,
        }
        self.inputs |= {k: x for k, x in given.items() if k in self.inputs}
        out = self.run(self.inputs)
        self.inputs |= {k[len("next_") :]: x for k, x in out.items() if k.startswith("next_")}
        seen = obs if self.stack is None else self.stack.push(obs, first)
        outputs, self.state = self.actor.evaluate(
            seen, first, action, reward, self.state, explore=None
        )
        chosen, _ = self.actor.choose(outputs, seen, None)
        self._compare(out, outputs, chosen)
        return chosen

    def _compare(self, out: Numbers, outputs: np.ndarray, chosen: np.ndarray) -> None:
        d = self.deviation
        d.rows += len(outputs)
        got = next(out[k] for k in ("q_values", "logits", "mean") if k in out)
        want = outputs[:, : got.shape[-1]]
        want = np.where(got == FORBIDDEN, got, want)  # the actor masks later
        d.outputs = _larger(d.outputs, _distance(self._as_read(want), got))
        action = out["action"] - self.start
        if not self.sizes:
            d.actions = _larger(d.actions, _distance(chosen, action))
            return
        one, two = (_at(want, a, self.sizes) for a in (chosen, action))
        differs = (chosen != action).reshape(len(chosen), -1).any(-1)
        tie = np.abs(one - two) <= self.tolerance * np.maximum(1, np.abs(one))
        d.ties += int((differs & tie).sum())
        d.unlike += int((differs & ~tie).sum())

    def _as_read(self, outputs: np.ndarray) -> np.ndarray:
        """Return Q of h(Q), where the actor's outputs are that."""
        eps = self.actor.value_rescale_eps if isinstance(self.actor, ValueActor) else None
        return outputs if eps is None else unrescale(torch.from_numpy(outputs), eps).numpy()


def compare_random(
    run: GraphFunction, policy: Policy, step: GreedyStep, *, tolerance: float = 1e-5
) -> Deviation:
    """Return the differences on random rows, in which episodes begin now and then."""
    total, space = Deviation(), step.spec.action
    for count in _COUNTS:
        rng = np.random.default_rng(count)
        comparison = SideBySide(run, policy, step, count, tolerance=tolerance)
        action, reward = no_actions(space, count), np.zeros(count, np.float32)
        draw = _sampler(step, rng, count)
        for row in range(_ROWS):
            first = rng.random(count) < 0.2 if row else np.ones(count, np.bool_)
            action = comparison.act(draw(), first, action, reward)
            reward = rng.normal(size=count).astype(np.float32)
        total += comparison.deviation
    return total


def _sampler(step: GreedyStep, rng: np.random.Generator, count: int) -> Callable[[], Tree]:
    """Return a function that draws observations; those of a normalised Box around its mean."""
    net, space = step.net, step.spec.obs
    moments = net.moments if isinstance(net, ActorCritic) else None

    def draw() -> Tree:
        if moments is None or not isinstance(space, gym.spaces.Box):
            leaves = (random_leaf(leaf, rng, count) for _, leaf in named_leaves(space))
            return as_tree(space, leaves)
        mean, scale = moments.mean.numpy(), moments.scale().numpy()
        shape = (count, *(space.shape or ()))
        if step.frames > 1:  # the statistics are of stacks
            mean, scale = mean[-1], scale[-1]
        return (mean + rng.normal(size=shape) / scale).astype(space.dtype)

    return draw


def random_leaf(space: gym.Space[Any], rng: np.random.Generator, count: int) -> np.ndarray:
    """Return observations [count, ...] of a space that is no tree, of moderate size."""
    shape = (count, *(space.shape or ()))
    match space:
        case gym.spaces.Discrete() | gym.spaces.MultiDiscrete():
            number = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
            return (space.start + rng.integers(number, size=shape)).astype(space.dtype)
        case gym.spaces.Box() if space.dtype.kind == "f":
            low, high = (x.astype(np.float64) for x in (space.low, space.high))
            bounded = (np.abs(low) < _LARGE) & (np.abs(high) < _LARGE)
            uniform = rng.uniform(np.where(bounded, low, 0), np.where(bounded, high, 1), shape)
            normal = np.clip(rng.normal(size=shape), low, high)
            return np.where(bounded, uniform, normal).astype(space.dtype)
        case gym.spaces.Box():
            return rng.integers(space.low, space.high, shape, space.dtype, endpoint=True)
    return rng.integers(2, size=shape).astype(space.dtype)  # MultiBinary


def _at(outputs: np.ndarray, action: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the sum over components of the outputs [n, sum of sizes] of the choices [n, *A]."""
    index = action.reshape(len(action), -1).astype(np.int64)
    index = index + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    total: np.ndarray = np.take_along_axis(outputs, index, 1).sum(1)
    return total


def _distance(want: np.ndarray, got: np.ndarray) -> float:
    """Return the largest |want - got| / max(1, |want|)."""
    want, got = want.astype(np.float64), got.astype(np.float64)
    return float((np.abs(want - got) / np.maximum(1, np.abs(want))).max(initial=0.0))


def _larger(one: float, two: float) -> float:
    """Return the maximum, NaN if one of them is."""
    return float(np.maximum(one, two))
