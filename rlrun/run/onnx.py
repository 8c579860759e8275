"""Export of a run's greedy policy as an ONNX graph with its recurrent state as input and output."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlrun import __version__
from rlrun.env.framestack import make_frame_stack
from rlrun.errors import ConfigError, NumericError, redact, storage_errors
from rlrun.functional.masks import FORBIDDEN
from rlrun.nets.acting import discrete_sizes
from rlrun.nets.actor_critic import ActorCritic
from rlrun.policy.actor import NetActor
from rlrun.policy.dqn import ValueActor
from rlrun.policy.greedy import GreedyStep, as_tree, make_greedy_step, named_leaves
from rlrun.run.agent import TrainedPolicy, load_trained
from rlrun.run.files import replace_file
from rlrun.schema import Config
from rlrun.spaces import value_range
from rlrun.types import Policy, Tree, no_actions, tree_leaves

_LARGE = 1e4  # larger bounds do not tell the size of observations
_ROWS = 16  # of the comparison on random rows
_COUNTS = (1, 3)  # environments of that comparison

Numbers = dict[str, np.ndarray]
GraphFunction = Callable[[Numbers], Numbers]  # inputs -> outputs, by name


@dataclass(slots=True)
class Deviation:
    """Largest differences of numbers x in units of max(1, |x|), and counts of unequal actions."""

    rows: int = 0
    outputs: float = 0.0  # values, logits, means
    actions: float = 0.0  # of a Box
    unlike: int = 0  # discrete actions that differ without a tie
    ties: int = 0  # discrete actions that differ in a tie within the tolerance

    def within(self, tolerance: float) -> bool:
        """Return whether the deviation is within ``tolerance``; False for NaN."""
        return self.outputs <= tolerance and self.actions <= tolerance and not self.unlike

    def __str__(self) -> str:
        worst = max(self.outputs, self.actions, key=lambda x: (x != x, x))
        unlike = f", {self.unlike} other actions" if self.unlike else ""
        return f"{worst:.1g}{unlike} in {self.rows} rows"


def onnx_session(model: bytes | str) -> GraphFunction:
    """Return the function of a model file, or of its content, on one CPU thread."""
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
        """``run``: the graph of ``step``, which is used only for names and shapes.

        ``count``: number of environments. ``tolerance``: two actions whose outputs differ by less
        are a tie.
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
        """Return the actor's greedy actions for single frames ``obs``, counted from 0.

        ``action``, ``reward``: of the row before.
        """
        inputs = dict(zip(self.names, tree_leaves(obs), strict=True)) | {
            "first": first,
            "prev_action": (action + self.start).astype(action.dtype),
            "prev_reward": reward,
        }
        self.inputs |= {k: x for k, x in inputs.items() if k in self.inputs}
        out = self.run(self.inputs)
        self.inputs |= {k[len("next_") :]: x for k, x in out.items() if k.startswith("next_")}
        seen = obs if self.stack is None else self.stack.push(obs, first)
        act = self.actor.act(seen, first, action, reward, self.state, explore=None)
        self.state = act.state
        self._compare(out, self.actor.outputs, act.action)
        return act.action

    def _compare(self, out: Numbers, outputs: np.ndarray, chosen: np.ndarray) -> None:
        d = self.deviation
        d.rows += len(outputs)
        exported = next(out[k] for k in ("q_values", "logits", "mean") if k in out)
        want = outputs[:, : exported.shape[-1]]
        want = np.where(exported == FORBIDDEN, exported, want)  # the actor masks later
        shown = want
        if isinstance(self.actor, ValueActor):  # Q from h(Q) if the actor's outputs are rescaled
            shown = self.actor.q_values(torch.from_numpy(want)).numpy()
        d.outputs = _largest(d.outputs, shown, exported)
        action = out["action"] - self.start
        if not self.sizes:
            d.actions = _largest(d.actions, chosen, action)
            return
        ours, theirs = (_at(want, a, self.sizes) for a in (chosen, action))
        differs = (chosen != action).reshape(len(chosen), -1).any(-1)
        tie = np.abs(ours - theirs) <= self.tolerance * np.maximum(1, np.abs(ours))
        d.ties += int((differs & tie).sum())
        d.unlike += int((differs & ~tie).sum())


def compare_random(
    run: GraphFunction, policy: Policy, step: GreedyStep, *, tolerance: float = 1e-5
) -> Deviation:
    """Return the differences on random rows, in which episodes begin now and then."""
    total, space = Deviation(), step.spec.action
    for count in _COUNTS:
        rng = np.random.default_rng(count)
        comparison = SideBySide(run, policy, step, count, tolerance=tolerance)
        comparison.deviation = total
        action, reward = no_actions(space, count), np.zeros(count, np.float32)
        draw = _sampler(step, rng, count)
        for row in range(_ROWS):
            first = rng.random(count) < 0.2 if row else np.ones(count, np.bool_)
            action = comparison.act(draw(), first, action, reward)
            reward = rng.normal(size=count).astype(np.float32)
    return total


def _sampler(step: GreedyStep, rng: np.random.Generator, count: int) -> Callable[[], Tree]:
    """Return a function that samples observations, those of a normalised Box around its mean."""
    net, space = step.net, step.spec.obs
    moments = net.moments if isinstance(net, ActorCritic) else None

    def draw() -> Tree:
        if moments is None or not isinstance(space, gym.spaces.Box):
            leaves = (random_leaf(leaf, rng, count) for _, leaf in named_leaves(space))
            return as_tree(space, leaves)
        mean, scale = moments.mean.numpy(), moments.scale().numpy()
        shape = (count, *(space.shape or ()))
        if step.frames > 1:  # statistics are those of stacks
            mean, scale = mean[-1], scale[-1]
        return (mean + rng.normal(size=shape) / scale).astype(space.dtype)

    return draw


def random_leaf(space: gym.Space[Any], rng: np.random.Generator, count: int) -> np.ndarray:
    """Return random observations [count, ...] of moderate size, for a space that is not a tree."""
    shape = (count, *(space.shape or ()))
    low, high = value_range(space)
    if np.dtype(space.dtype).kind != "f":
        return rng.integers(low, high, shape, space.dtype, endpoint=True)
    low, high = low.astype(np.float64), high.astype(np.float64)
    bounded = (np.abs(low) < _LARGE) & (np.abs(high) < _LARGE)
    uniform = rng.uniform(np.where(bounded, low, 0), np.where(bounded, high, 1), shape)
    normal = np.clip(rng.normal(size=shape), low, high)
    return np.where(bounded, uniform, normal).astype(space.dtype)


def _at(outputs: np.ndarray, action: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the sum over components of the outputs [n, sum of sizes] of the choices [n, *A]."""
    index = action.reshape(len(action), -1).astype(np.int64)
    index = index + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    total: np.ndarray = np.take_along_axis(outputs, index, 1).sum(1)
    return total


def _largest(before: float, want: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest of ``before`` and |want - actual| / max(1, |want|), NaN if one is."""
    want, actual = want.astype(np.float64), actual.astype(np.float64)
    return float((np.abs(want - actual) / np.maximum(1, np.abs(want))).max(initial=before))


OPSET = 18  # torch.onnx's native version; others are converted from it
METADATA = "rlrun"  # key of the JSON in the model's metadata
INTERFACE = "1"  # version of the names and meaning of inputs and outputs; metadata rlrun_interface


def export_policy(run_dir: Path, path: Path, *, weights: str, tolerance: float) -> str:
    """Write the greedy policy of ``run_dir`` as an ONNX file. Return a line that describes it.

    The graph is compared with the actor on random rows before anything is written. ``weights``: as
    for ``load_trained``. ``tolerance``: largest difference of numbers x, in units of max(1, |x|).

    Raises: ConfigError if the policy cannot be exported, NumericError if the graph's results differ
    from the actor's, StorageError if the file cannot be written, and the errors of
    ``load_trained``.
    """
    trained = load_trained(run_dir, weights=weights, device="cpu")
    content, difference = verified_onnx(
        trained, f"--onnx = {path}", weights=weights, tolerance=tolerance
    )
    with storage_errors(f"--onnx = {path}:", "a writable file is needed; choose another"):
        replace_file(path, content)
    return _summary(path, content, difference)


def verified_onnx(
    trained: TrainedPolicy, subject: str, *, weights: str, tolerance: float
) -> tuple[bytes, Deviation]:
    """Return a model file, and how far the graph is from the actor on random rows.

    ``subject``: how an error begins. Raises: NumericError for more than ``tolerance``, and what
        ``onnx_of`` raises.
    """
    content, step = onnx_of(trained, weights=weights)
    difference = compare_random(onnx_session(content), trained.policy, step, tolerance=tolerance)
    if not difference.within(tolerance):
        raise NumericError(
            f"{subject}: the graph differs from the actor by {difference}; at most {tolerance:g} "
            "is allowed; large weights make rounding errors large: then give a larger "
            "--tolerance; else this is a bug"
        )
    return content, difference


@torch.no_grad()
def onnx_of(trained: TrainedPolicy, *, weights: str = "final") -> tuple[bytes, GreedyStep]:
    """Return a model file and the module that it computes.

    Raises: ConfigError if the policy is not one network, or torch.onnx cannot trace it.
    """
    plan = trained.plan
    step = make_greedy_step(trained.policy.actor(1), plan.row_spec, plan.config.env.frame_stack)
    name = plan.config.policy.name
    if step is None:
        raise ConfigError(
            f"policy.name = {name}: its actions are not those of one network; allowed are policies "
            "with an actor of rlrun.policy.actor; export another run"
        )
    inputs = {k: torch.from_numpy(v) for k, v in step.eval().inputs(2).items()}
    outputs = step.step(inputs)
    try:
        with _silence():
            program = torch.onnx.export(
                step, kwargs={"inputs": inputs}, input_names=list(inputs),
                output_names=list(outputs), opset_version=OPSET, dynamo=True, verbose=False,
                dynamic_shapes={"inputs": {k: {0: "n"} for k in inputs}},
            )  # fmt: skip
            assert program is not None
            model: Any = program.model_proto
    except torch.onnx.OnnxExporterError as e:
        cause = " ".join(str(e.__cause__ or e).split())[:300]
        raise ConfigError(
            f"policy.name = {name}: torch.onnx cannot trace its network ({cause}); allowed are "
            "tensor operations without Python branches on values; rewrite your class"
        ) from e
    _strip(model)
    model.producer_name, model.producer_version = "rlrun", __version__
    text = json.dumps(describe(plan.config, trained.env_steps, weights, step, outputs), default=str)
    model.metadata_props.add(key=METADATA, value=text)
    model.metadata_props.add(key=f"{METADATA}_interface", value=INTERFACE)
    content: bytes = model.SerializeToString(deterministic=True)
    return content, step


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the output, logs and warnings of torch.onnx: none concern the user's run."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)


def _strip(model: Any) -> None:
    """Remove torch.onnx's notes on its source, which contain paths of this machine."""
    graph = model.graph
    graph.name, graph.doc_string = "policy", ""
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]


def describe(
    config: Config, env_steps: int, weights: str, step: GreedyStep, outputs: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the information that a program with only the file needs to act, as plain JSON.

    Shapes are without n, the number of environments. States are zero before the first row.
    """
    env = config.env
    limit = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    return {
        "format": 1, "rlrun": __version__, "policy": config.policy.name, "weights": weights,
        "env_steps": env_steps,
        "env": {
            "id": f"rlrun.env:{env.id}" if env.id.startswith("rlrun/") else env.id,
            "kwargs": _without_secrets(env.kwargs | env.eval_kwargs) | limit,
            "wrappers": [wrapper.name for wrapper in env.wrappers],
        },
        "frame_stack": env.frame_stack,
        "action_space": _space(step.spec.action),
        "inputs": {k: _array(v) for k, v in step.inputs(1).items()},
        "outputs": {k: _array(v.numpy()) for k, v in outputs.items()},
    }  # fmt: skip


def description_in(content: bytes) -> dict[str, Any]:
    """Return the ``describe`` that a model file holds."""
    import onnx

    metadata = {x.key: x.value for x in onnx.load_from_string(content).metadata_props}
    about: dict[str, Any] = json.loads(metadata[METADATA])
    return about


def _array(x: np.ndarray) -> dict[str, Any]:
    return {"shape": list(x.shape[1:]), "dtype": x.dtype.name}


def _space(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a description of an action space. An infinite bound is None."""
    fields: dict[str, Any] = {"type": type(space).__name__}
    match space:
        case gym.spaces.Discrete():
            return fields | {"n": int(space.n), "start": int(space.start)}
        case gym.spaces.MultiDiscrete():
            return fields | {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case gym.spaces.Box():
            low, high = ([float(v) if np.isfinite(v) else None for v in x.reshape(-1)]
                         for x in (space.low, space.high))  # fmt: skip
            return fields | {"shape": list(space.shape), "low": low, "high": high}
    raise AssertionError(f"checked in rlrun.config: {space}")


def _without_secrets(value: Any) -> Any:
    """Return ``value`` with values of environment variables replaced by their names."""
    match value:
        case dict():
            return {k: _without_secrets(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_secrets(v) for v in value]
        case str():
            return redact(value)
    return value


def _summary(path: Path, content: bytes, difference: Deviation) -> str:
    """Return the line that the command prints."""

    def listed(arrays: dict[str, Any]) -> str:
        shapes = ((k, ", ".join(["n", *map(str, x["shape"])])) for k, x in arrays.items())
        return ", ".join(f"{k} [{shape}]" for k, shape in shapes)

    about = description_in(content)
    return (
        f"onnx: {path}, {len(content) / 1024:.1f} KiB, opset {OPSET}; inputs "
        f"{listed(about['inputs'])}; outputs {listed(about['outputs'])}; largest difference from "
        f"the actor {difference}"
    )
