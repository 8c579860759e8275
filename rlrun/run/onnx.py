"""Export of a run's greedy policy as an ONNX graph with its recurrent state as input and output."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlrun import __version__
from rlrun.acting.greedy import GreedyStep, make_greedy_step
from rlrun.errors import ConfigError, NumericError, StorageError
from rlrun.run.onnx_check import Deviation, compare_random, onnx_session
from rlrun.run.trained import TrainedPolicy, load_trained
from rlrun.rundir.durable import replace_file
from rlrun.schema import Config
from rlrun.secrets import redact

OPSET = 18  # the one that torch.onnx translates to; others are conversions of it
METADATA = "rlrun"  # key of the JSON in the model's metadata


def export_policy(run_dir: Path, path: Path, *, weights: str, tolerance: float) -> str:
    """Write the greedy policy of ``run_dir`` as an ONNX file; return a line that describes it.

    The graph is compared with the actor on random rows before anything is written.
    ``weights``: as for ``load_trained``. ``tolerance``: largest difference of numbers x, in units
    of max(1, |x|).

    Raises: ConfigError when the policy cannot be exported, NumericError when the graph computes
        something else than the actor, StorageError when the file cannot be written, and what
        ``load_trained`` raises.
    """
    trained = load_trained(run_dir, weights=weights, device="cpu")
    content, step = onnx_of(trained, weights=weights)
    run = onnx_session(content)
    difference = compare_random(run, trained.policy, step, tolerance=tolerance)
    if not difference.within(tolerance):
        raise NumericError(
            f"--onnx = {path}: the graph differs from the actor by {difference}; at most "
            f"{tolerance:g} is allowed; large weights make rounding errors large: then give a "
            "larger --tolerance; else this is a bug"
        )
    try:
        replace_file(path, content)
    except OSError as e:
        why = (e.strerror or str(e)).lower()
        raise StorageError(
            f"--onnx = {path}: {why}; a writable file is needed; choose another"
        ) from e
    return _summary(path, content, step, difference)


@torch.no_grad()
def onnx_of(trained: TrainedPolicy, *, weights: str = "final") -> tuple[bytes, GreedyStep]:
    """Return a model file, and the module that it computes.

    Raises: ConfigError when the policy is not one network, or torch.onnx cannot trace it.
    """
    plan = trained.plan
    step = make_greedy_step(trained.policy.actor(1), plan.row_spec, plan.config.env.frame_stack)
    name = plan.config.policy.name
    if step is None:
        raise ConfigError(
            f"policy.name = {name}: its actions are not those of one network; allowed are policies "
            "with an actor of rlrun.acting; export another run"
        )
    inputs = {k: torch.from_numpy(v) for k, v in step.eval().inputs(2).items()}
    outputs = step.step(inputs)
    try:
        with _silence():
            program = torch.onnx.export(
                step,
                kwargs={"inputs": inputs},
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes={"inputs": {k: {0: "n"} for k in inputs}},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            model: Any = program.model_proto
    except torch.onnx.OnnxExporterError as e:
        cause = " ".join(str(e.__cause__ or e).split())[:300]
        raise ConfigError(
            f"policy.name = {name}: torch.onnx cannot trace its network ({cause}); allowed are "
            "tensor operations without Python branches on values; rewrite the class of yours"
        ) from e
    _strip(model)
    model.producer_name, model.producer_version = "rlrun", __version__
    text = json.dumps(describe(plan.config, trained.env_steps, weights, step, outputs), default=str)
    model.metadata_props.add(key=METADATA, value=text)
    content: bytes = model.SerializeToString(deterministic=True)
    return content, step


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what torch.onnx prints, logs and warns of: none of it is about the user's run."""
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
    """Remove what torch.onnx notes on its own source: paths of this machine among it."""
    graph = model.graph
    graph.name, graph.doc_string = "policy", ""
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]


# -- metadata --------------------------------------------------------------------------------------


def describe(
    config: Config,
    env_steps: int,
    weights: str,
    step: GreedyStep,
    outputs: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Return what a program that has only the file needs to act; plain JSON.

    Shapes are without n, the number of environments. States are zero before the first row.
    """
    env = config.env
    limit = {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    return {
        "format": 1,
        "rlrun": __version__,
        "policy": config.policy.name,
        "weights": weights,
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
    }


def _array(x: np.ndarray) -> dict[str, Any]:
    return {"shape": list(x.shape[1:]), "dtype": x.dtype.name}


def _space(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a description of an action space; an infinite bound is None."""
    fields: dict[str, Any] = {"type": type(space).__name__}
    match space:
        case gym.spaces.Discrete():
            return fields | {"n": int(space.n), "start": int(space.start)}
        case gym.spaces.MultiDiscrete():
            return fields | {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case gym.spaces.Box():
            low, high = (
                [float(v) if np.isfinite(v) else None for v in x.reshape(-1)]
                for x in (space.low, space.high)
            )
            return fields | {"shape": list(space.shape), "low": low, "high": high}
    raise AssertionError(f"checked in rlrun.config: {space}")


def _without_secrets(value: Any) -> Any:
    """Return ``value`` with the names of environment variables in place of what they held."""
    match value:
        case dict():
            return {k: _without_secrets(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_secrets(v) for v in value]
        case str():
            return redact(value)
    return value


@torch.no_grad()
def _summary(path: Path, content: bytes, step: GreedyStep, difference: Deviation) -> str:
    """Return the line that the command prints."""
    inputs = step.inputs(1)
    outputs = step.step({k: torch.from_numpy(v) for k, v in inputs.items()})

    def listed(arrays: dict[str, Any]) -> str:
        shapes = ((k, ", ".join(["n", *map(str, x.shape[1:])])) for k, x in arrays.items())
        return ", ".join(f"{k} [{shape}]" for k, shape in shapes)

    return (
        f"onnx: {path}, {len(content) / 1024:.1f} KiB, opset {OPSET}; inputs {listed(inputs)}; "
        f"outputs {listed(outputs)}; largest difference from the actor {difference}"
    )
