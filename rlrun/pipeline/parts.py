"""The parts of a pipeline: shared state, log, evaluations, saving and faults."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout, Rollouts
from rlrun.buffer.saved import MOST_ROWS, check_counts, integer, reason, require
from rlrun.errors import (
    CheckpointError,
    EnvError,
    NumericError,
    ResourceError,
    RlrunError,
    StorageError,
)
from rlrun.log import Log, eval_metrics
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.evaluate import Evaluation, loaded_summary
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.source import Source
from rlrun.pipeline.state import (
    backends,
    generators_state,
    load_generators,
    remember_streams,
    restore_backends,
)
from rlrun.pipeline.stop import StopRequest
from rlrun.run import checkpoint
from rlrun.run.checkpoint import Saver
from rlrun.run.files import require_in_place
from rlrun.run.manifest import CHECKPOINTS, how_to_go_on
from rlrun.run.tensors import copied, require_kind
from rlrun.schema import RunConfig
from rlrun.schema.run import CHECKPOINT_SECONDS, CHECKPOINT_STEPS
from rlrun.trust import fault_of_users
from rlrun.types import Counters, Policy

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoopProgress:
    """Progress shared by the parts of the loop."""

    counters: Counters
    rollbacks: int = 0  # to an earlier checkpoint after a non-finite update
    phase: str = "start"  # what the loop is doing, for the watchdog
    unsaved: bool = True  # whether the state has changed since the last checkpoint
    seconds: dict[str, float] = field(default_factory=dict)  # of each part in this process

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the seconds of ``name``, unless it raises."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def due(self, every: int, before: int) -> bool:
        """Return whether a multiple of ``every`` env steps was reached since step ``before``."""
        return self.counters.env_steps // every > before // every


class LoopEvaluator(Protocol):
    """Plays evaluation episodes."""

    steps: int  # since the process began, for the watchdog

    def run_until(
        self, stop: Callable[[], bool], policy: Policy, *, env_steps: int
    ) -> Evaluation | None:
        """Return the evaluation, or None as soon as ``stop()`` is true."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run that its loop, evaluations, saving and faults share."""

    run_dir: Path
    log: Log
    progress: LoopProgress
    source: Source
    policy: Policy
    buffer: Replay | Mixed | Rollout | Rollouts | None  # None: the policy does not learn
    learner: Learner | RolloutLearner | None
    evaluator: LoopEvaluator
    bonus: RND | None = None  # the learner adds it to rewards


def require_finite(parts: Parts) -> None:
    """Raise NumericError if the policy, the bonus or the metrics hold NaN or infinity."""
    if parts.learner is not None:
        parts.learner.means.require_finite()
    learned = {"policy": parts.policy.state_dict()}
    if parts.bonus is not None:
        learned["bonus"] = parts.bonus.state_dict()
    path = first_non_finite(learned)
    if path is not None:
        raise NumericError(
            f"{path} is not finite after {parts.progress.counters.updates} updates: the policy "
            "diverged; what is saved must be finite; lower policy.lr or set policy.max_grad_norm"
        )


@torch.no_grad()
def first_non_finite(state: Any) -> str | None:
    """Return the path of a tensor in a state tree that holds NaN or infinity, or None.

    The usual case takes one fused reduction: norms are finite unless an element is not, or a sum of
    squares overflows. The elements decide only then.
    """
    named = [(path, x) for path, x in _tensors(state, "") if x.is_floating_point() and x.numel()]
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for _, x in named:
        groups.setdefault((x.dtype, x.device), []).append(x)
    norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in groups.values())
    if all(bool(norm.isfinite().all()) for norm in norms):
        return None
    for path, x in named:  # the logarithm of a coefficient of 0 is -inf
        allowed = x == -torch.inf if path.rpartition("/")[2] == "log" else False
        if not (x.isfinite() | allowed).all():
            return path
    return None


def _tensors(node: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every tensor in a tree of dicts, lists and tuples."""
    if isinstance(node, Tensor):
        yield path, node
    elif isinstance(node, Mapping):
        for key, child in node.items():
            yield from _tensors(child, f"{path}/{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from _tensors(child, f"{path}/{i}")


@dataclass(slots=True)
class LoopEvaluations:
    """The evaluations of a run: every ``run.eval_every`` env steps, and of the final weights."""

    config: RunConfig
    parts: Parts
    ready: Callable[[], bool] = lambda: True  # False: a due evaluation waits
    best: dict[str, float] | None = None  # summary of the best one so far
    last: dict[str, float] | None = None  # summary of the last one
    consecutive_solved: int = 0  # successive ones at stop_return
    pending: bool = False  # one was interrupted by a signal; a resumed run begins with it
    waiting: bool = False  # a due one waits for ``ready``
    inexact: str | None = None  # why one differs from that of an undisturbed run

    @property
    def solved(self) -> bool:
        """Whether the last ``stop_after`` evaluations reached ``stop_return``."""
        goal = self.config.stop_return
        return goal is not None and self.consecutive_solved >= self.config.stop_after

    @property
    def current(self) -> bool:
        """Whether the present weights are those last evaluated."""
        steps = self.parts.progress.counters.env_steps
        return self.last is not None and self.last["env_steps"] == steps

    def after_chunk(self, before: int, stop: StopRequest) -> None:
        """Evaluate if one became due since env step ``before``, or is waiting and now ready."""
        due = self.parts.progress.due(self.config.eval_every, before)
        if due or self.waiting:
            ready, again = self.ready(), due and self.waiting
            self.waiting = not (ready or again)
            if not self.waiting:
                self.evaluate(stop)

    def evaluate(self, stop: StopRequest) -> None:
        """Evaluate the present weights. If a signal interrupts, it stays pending."""
        require_finite(self.parts)
        p, steps = self.parts, self.parts.progress.counters.env_steps
        restore_streams = remember_streams(p.policy)
        self.pending, p.progress.unsaved, p.progress.phase = True, True, "evaluate"
        p.log.write_late_timings()  # which say when the evaluation began
        began = p.evaluator.steps

        def shown_stop() -> bool:  # shows on the way how long the evaluation already is
            done = p.evaluator.steps - began
            if done and done % 1024 == 0:
                p.log.status(f"evaluating, step {done}")
            return stop()

        with p.progress.part("eval"):
            evaluation = p.evaluator.run_until(shown_stop, p.policy, env_steps=steps)
            self.pending = evaluation is None
            if evaluation is not None:
                self.record(evaluation, steps)
            else:  # it is repeated later with the same random numbers
                restore_streams()

    def record(
        self, evaluation: Evaluation, steps: int, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Log an evaluation at env step ``steps`` and keep the best weights.

        ``weights`` are those evaluated; None: the policy's.
        """
        p, goal = self.parts, self.config.stop_return
        require_in_place(p.run_dir)
        summary = evaluation.summary()
        self.inexact, self.last = self.inexact or evaluation.inexact, summary
        if self.best is None or summary["return_mean"] > self.best["return_mean"]:
            self.best = summary
            path = p.run_dir / CHECKPOINTS / "best.safetensors"
            checkpoint.save_weights(path, weights or p.policy.weights(), summary)
        solved = goal is not None and summary["return_mean"] >= goal
        self.consecutive_solved = self.consecutive_solved + 1 if solved else 0
        best = {"eval/best_return_mean": self.best["return_mean"]}
        diagnosis = p.learner.diagnose() if p.learner is not None else {}
        p.log.write(steps, eval_metrics(summary) | best | diagnosis)
        counters = p.progress.counters  # beyond ``steps`` if an evaluator ran at the same time
        p.log.progress(counters.env_steps, counters.updates, eval=summary["return_mean"])

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "last": self.last,
            "consecutive_solved": self.consecutive_solved,
            "pending": self.pending,
            "waiting": self.waiting,
            "inexact_evaluation": self.inexact,
            "stop_return": self.config.stop_return,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.last = (loaded_summary(state[name]) for name in ("best", "last"))
        same_goal = state["stop_return"] == self.config.stop_return
        solved = integer("consecutive_solved", state["consecutive_solved"], 0, MOST_ROWS)
        self.consecutive_solved = solved if same_goal else 0
        self.pending, self.waiting = bool(state["pending"]), bool(state["waiting"])
        if self.waiting:
            self.ready()  # lets the collector end its episode
        self.inexact = reason("inexact_evaluation", state["inexact_evaluation"])


@dataclass(slots=True)
class Saving:
    """Saves and loads all that the later steps of a run depend on."""

    config: RunConfig
    parts: Parts
    evaluations: LoopEvaluations
    saver: Saver  # writes a copy of the state while the run goes on
    versions: int  # of past weights that are kept, checkpoint.history
    settings: dict[str, Any]  # of the plan, for resumed runs
    warned: bool = False  # that the run cannot be resumed exactly
    past_bytes: tuple[int, int] | None = None  # of the past weights: uncompressed, in files
    began: float = -math.inf  # monotonic time of the last checkpoint

    def after_chunk(self, before: int) -> None:
        """Save if a checkpoint became due since env step ``before``.

        Without ``run.checkpoint_every`` it is left out soon after another one. A run that diverged
        ends there all the same, because its end must not depend on the speed of the machine; nor
        may a rollback.
        """
        config = self.config
        if not self.parts.progress.due(config.checkpoint_every or CHECKPOINT_STEPS, before):
            return
        exact = config.checkpoint_every is not None or config.on_nan == "rollback"
        if exact or time.monotonic() - self.began >= CHECKPOINT_SECONDS:
            self.save()
        else:
            require_finite(self.parts)

    def save(self) -> None:
        """Save a checkpoint. Raises: NumericError, StorageError."""
        p, progress = self.parts, self.parts.progress
        progress.phase, self.began = "save", time.monotonic()
        require_in_place(p.run_dir)
        with progress.part("checkpoint"):
            state = self.state_dict()
            require_finite(p)  # only finite states are saved
            self._write(state)
            progress.unsaved = False

    def _write(self, state: Mapping[str, Any]) -> None:
        """Write ``state``, the newest weights and past ones. Raises: StorageError."""
        p, directory, meta = self.parts, self.saver.directory, self._meta()
        weights = {name: copied(x) for name, x in p.policy.weights().items()}

        def write_past() -> None:  # repeated by a run that resumes before this checkpoint
            p.log.sync()
            if self.versions:
                from rlrun.run import history  # imports the codec

                past = directory / history.DIRECTORY
                self.past_bytes = history.save(past, weights, **meta, keep=self.versions)

        def write_newest() -> None:
            checkpoint.save_weights(directory / "last.safetensors", weights, meta)

        self.saver.save(
            state, env_steps=meta["env_steps"], keep=self.config.keep_checkpoints,
            committed=p.log.committed(), before=write_past, after=write_newest,
        )  # fmt: skip

    def _meta(self) -> dict[str, int]:
        counters = self.parts.progress.counters
        return {"env_steps": counters.env_steps, "updates": counters.updates}

    def save_weights(self) -> None:
        """Save the newest weights alone; they are those of an existing checkpoint."""
        path = self.saver.directory / "last.safetensors"
        checkpoint.save_weights(path, self.parts.policy.weights(), self._meta())

    def codec_metrics(self) -> dict[str, float]:
        """Return codec/ metrics of the past weights, empty while there are none."""
        if self.past_bytes is None:
            return {}
        raw, coded = self.past_bytes
        return {"codec/history_ratio": coded / raw, "codec/history_bytes": float(coded)}

    def finish(self) -> None:
        """Save what is not saved yet and wait until it is durable."""
        if self.parts.progress.unsaved:
            self.save()
        self.saver.wait()

    def close(self) -> None:
        """Wait for the last checkpoint. An error is logged, to not hide the run's own."""
        try:
            self.saver.wait()
        except StorageError as e:
            _logger.warning("%s", e)

    @property
    def inexact(self) -> str | None:
        """Why the run differs, or would if resumed, from an undisturbed one; None: it does not."""
        return self.parts.source.inexact or self.evaluations.inexact

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part. Reading it changes no part."""
        p, counters = self.parts, self.parts.progress.counters
        source = p.source.state_dict()  # first: see ``Source``
        reason = p.source.inexact
        if reason is not None and not self.warned:
            self.warned = True
            text = "resumed after a kill, this run will differ from an uninterrupted one: %s"
            _logger.warning(text, reason)
        state: dict[str, Any] = {
            "counters": {n: getattr(counters, n) for n in counters.__slots__},
            "policy": p.policy.state_dict(),
            "collector": source.pop("collector"),
            **self.evaluations.state_dict(),
            "settings": self.settings,
            "backends": backends(p.policy),
            "generators": generators_state(),
            "rollbacks": p.progress.rollbacks,
        }
        if p.buffer is not None and p.learner is not None:
            state |= {"buffer": p.buffer.state_dict(), "learner": p.learner.state_dict()}
        if p.bonus is not None:
            state["bonus"] = p.bonus.state_dict()
        return state | source

    def load_state_dict(self, state: dict[str, Any]) -> None:
        p, counters = self.parts, self.parts.progress.counters
        for name, value in check_counts(state["counters"], counters.__slots__).items():
            setattr(counters, name, value)
        with checkpoint.fitting("checkpoints", checkpoint.NETWORKS):
            require_kind("policy", state["policy"], p.policy.state_dict())
            path = first_non_finite({n: state[n] for n in ("policy", "bonus") if n in state})
            require(path is None, str(path), "is not finite")
            p.policy.load_state_dict(state["policy"])
            restore_backends(p.policy, state["backends"])
        with checkpoint.fitting("checkpoints", checkpoint.ENVIRONMENTS):
            p.source.load_state_dict(state)
        p.progress.rollbacks = integer("rollbacks", state["rollbacks"], 0, MOST_ROWS)
        p.progress.unsaved = False
        self.evaluations.load_state_dict(state)
        if p.buffer is not None and p.learner is not None:
            with checkpoint.fitting("checkpoints", checkpoint.REPLAY):
                p.buffer.load_state_dict(state["buffer"])
                p.learner.load_state_dict(state["learner"])
        if p.bonus is not None:
            p.bonus.load_state_dict(state["bonus"])
        load_generators(state["generators"])


MAX_ROLLBACKS = 3  # per run
# Parts of a state whose generators decide what is learned. Environments, and what users draw from
# the process's global generators, go on as they would have.
_STREAMS = ("policy", "buffer")


@dataclass(frozen=True, slots=True)
class Faults:
    """Decides whether a run continues after an error."""

    config: RunConfig
    parts: Parts
    saving: Saving

    def handle(self, error: BaseException) -> None:
        """Load an earlier checkpoint after a non-finite update if run.on_nan allows it.

        Raises: ``error`` otherwise. For faults of environments, users' code and the loss, its text
        says what was saved.
        """
        if isinstance(error, NumericError) and self._roll_back(error):
            return
        if isinstance(error, ResourceError):  # without the cluster nothing can be saved
            error.args = (f"{error}{how_to_go_on(self.parts.run_dir)}",)
            raise error
        fault = error if isinstance(error, NumericError | EnvError) else fault_of_users(error)
        if fault is None:
            raise error
        saved = "saved" if self._save() else ""
        fault.args = (f"{fault}{how_to_go_on(self.parts.run_dir, saved)}",)
        if fault is error:
            raise error
        raise fault from error

    def _save(self) -> bool:
        """Save the state before the fault. Return False if it is not finite, or not writable."""
        try:
            self.saving.saver.wait()
            self.saving.save()
            self.saving.saver.wait()
        except RlrunError:
            return False
        return True

    def _roll_back(self, error: NumericError) -> bool:
        """Load the newest checkpoint with other random numbers. Return False if not allowed."""
        progress = self.parts.progress
        if self.config.on_nan != "rollback" or progress.rollbacks >= MAX_ROLLBACKS:
            return False
        self.saving.saver.wait()
        try:
            state, path = checkpoint.load_newest(self.saving.saver.directory)
        except CheckpointError:  # none was saved yet
            return False
        done = progress.rollbacks + 1
        self.saving.load_state_dict(other_streams(state, done))
        progress.rollbacks = done
        self.parts.log.rewind(progress.counters.env_steps, checkpoint.committed(path))
        _logger.warning("%s; back to %s (%d of %d)", error, path.name, done, MAX_ROLLBACKS)
        return True


def other_streams(state: dict[str, Any], number: int) -> dict[str, Any]:
    """Return ``state`` with every generator of policies and buffer moved to another stream.

    The next actions and samples then differ from those that led to a non-finite update. ``number``
    counts the rollbacks from 1, so each one gets a stream of its own.
    """
    moved = {name: _moved(x, number) if name in _STREAMS else x for name, x in state.items()}

    def acts_anew(collector: dict[str, Any] | None) -> dict[str, Any] | None:  # a policy of its own
        if collector is None or "generator" not in collector:
            return collector
        return collector | {"generator": _moved(collector["generator"], number)}

    if "collectors" in state:  # pipeline=ray
        moved["collectors"] = [acts_anew(x) for x in state["collectors"]]
    elif "collector" in state:
        moved["collector"] = acts_anew(state["collector"])
    return moved


def _moved(node: Any, number: int) -> Any:
    if isinstance(node, dict):
        if isinstance(node.get("bit_generator"), str):
            generator = getattr(np.random, node["bit_generator"])()
            generator.state = node
            return node | generator.jumped(number).state
        return {key: _moved(x, number) for key, x in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_moved(x, number) for x in node)
    return node


PARTS = (  # in the order of the loop; indented ones are part of the one before
    "collect", " act", " env", "add", "sample", "update", " forward", " backward", " optimiser",
    "prioritize", "eval", "log", "checkpoint",
)  # fmt: skip
OPS = 12  # lines of the table of operators


class Profiler:
    """Records ``updates`` updates and the collecting between them, once learning has begun.

    Writes the trace to ``directory/profile.pt.trace.json``, for Perfetto and TensorBoard's profiler
    plugin (torch-tb-profiler). Recorded updates run slower.
    """

    def __init__(self, directory: Path, updates: int) -> None:
        self.directory, self.updates = directory, updates
        self.first_update: int | None = None
        self.table: str | None = None
        self.torch: profile | None = None
        self.seconds = 0.0  # to write the trace

    def step(self, updates: int) -> None:
        """Start or stop recording. Called between chunks with the number of updates so far."""
        if self.table is not None or updates == 0:
            return
        if self.torch is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self.torch = profile(activities=activities, acc_events=True)
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self.torch.start()
            self.first_update = updates
        elif self.first_update is not None and updates - self.first_update >= self.updates:
            self.stop()

    def stop(self) -> None:
        """Write the trace if something was recorded."""
        if self.torch is None or self.table is not None:
            return
        began = time.perf_counter()
        self.torch.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.torch.export_chrome_trace(str(self.directory / "profile.pt.trace.json"))
        averages = self.torch.key_averages()
        self.table = averages.table(sort_by="self_cpu_time_total", row_limit=OPS)
        self.seconds += time.perf_counter() - began


def time_table(seconds: Mapping[str, float], wall: float) -> list[str]:
    """Return lines with the seconds of each part and its share of ``wall`` seconds."""
    lines = ["part          seconds   share"]
    for part in PARTS:
        took = seconds.get(part.strip())
        if took is not None:
            lines.append(f"{part:12s} {took:8.2f}  {took / max(wall, 1e-9):6.1%}")
    listed = sum(seconds.get(p, 0.0) for p in PARTS if not p.startswith(" "))
    rest = max(0.0, wall - listed)
    return [*lines, f"{'other':12s} {rest:8.2f}  {rest / max(wall, 1e-9):6.1%}"]


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Writes a record of metrics every ``every`` env steps."""

    every: int  # logger.every
    parts: Parts
    saving: Saving
    profiler: Profiler | None
    shown: Mapping[str, str]  # metric -> its name in the terminal

    def after_chunk(self, before: int) -> None:
        """Show the counters. Write a record if one became due since env step ``before``."""
        counters = self.parts.progress.counters
        self.parts.log.progress(counters.env_steps, counters.updates)
        if self.profiler is not None:
            self.profiler.step(counters.updates)
        if self.parts.progress.due(self.every, before):
            self._write()

    def _write(self) -> None:
        p, counters = self.parts, self.parts.progress.counters
        with p.progress.part("log"):
            metrics = p.source.metrics()
            if p.learner is not None:
                metrics |= p.learner.metrics()
            if p.bonus is not None:
                metrics |= p.bonus.metrics()
            p.log.write(counters.env_steps, metrics)
            shown = {short: metrics[name] for name, short in self.shown.items() if name in metrics}
            p.log.progress(counters.env_steps, counters.updates, **shown)
        p.log.write_timings(self._timings)

    def _timings(self) -> dict[str, float]:
        """Return what the digest leaves out, so that it is the same with and without coding."""
        p = self.parts
        timings = {f"time/{name}_seconds": value for name, value in self.elapsed().items()}
        timings |= p.source.transport_metrics() | self.saving.codec_metrics()
        return timings | (p.buffer.codec_metrics() if isinstance(p.buffer, Replay | Mixed) else {})

    def elapsed(self) -> dict[str, float]:
        """Return the seconds of each part since this process began.

        act and env are parts of collect. forward, backward and optimiser are parts of update.
        """
        p = self.parts
        seconds = p.progress.seconds | p.source.seconds
        if p.learner is not None:
            inside = p.policy.seconds
            seconds |= p.learner.seconds | inside
            seconds["forward"] = max(0.0, seconds["update"] - sum(inside.values()))
        return seconds

    def finish(self) -> None:
        """Write the trace of the profiler."""
        if self.profiler is not None:
            self.profiler.stop()
