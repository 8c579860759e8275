"""The training loop: collect, store, learn, evaluate, save.

All pipelines run this loop. They differ in where chunks come from (``rlrun.pipeline.source``).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.buffer.saved import MOST_ROWS, integer, reason, require
from rlrun.errors import CheckpointError, EnvError, NumericError, RlrunError
from rlrun.log import Log
from rlrun.pipeline.backends import backends, restore_backends
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.collector import ChunkInterrupted
from rlrun.pipeline.evaluate import Evaluation, eval_metrics, loaded_counts, loaded_summary
from rlrun.pipeline.finite import first_non_finite, require_finite
from rlrun.pipeline.generators import generators_state, load_generators
from rlrun.pipeline.parts import LoopBuffer, LoopEvaluator, LoopLearner
from rlrun.pipeline.profile import Profiler
from rlrun.pipeline.rollback import MAX_ROLLBACKS, other_streams
from rlrun.pipeline.saving import RunSaver
from rlrun.pipeline.source import Source, warn_inexact
from rlrun.pipeline.stop import StopRequest
from rlrun.rundir import checkpoint
from rlrun.rundir.lock import require_in_place
from rlrun.rundir.statetree import require_kind
from rlrun.schema import LoggerConfig, RunConfig
from rlrun.trust import fault_of_users
from rlrun.types import Counters, Policy

_logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_SHOWN = {"collect/return_mean": "return", "collect/epsilon_mean": "epsilon"}  # in the display
_NO_WINDOWS = np.empty(0, np.int64)


@dataclass(slots=True)
class Result:
    """End of a run. ``stopped``: exit code of the signal that ended it, None: it is done."""

    final: dict[str, float] | None  # summary of the final weights, where they were evaluated
    best: dict[str, float] | None
    stopped: int | None


@dataclass(slots=True)
class Pipeline:
    """A source of chunks, a buffer, a learner and an evaluator."""

    run_config: RunConfig
    logger: LoggerConfig
    run_dir: Path
    source: Source
    policy: Policy
    buffer: LoopBuffer | None  # None: the policy does not learn
    learner: LoopLearner | None
    evaluator: LoopEvaluator
    log: Log
    counters: Counters
    settings: dict[str, Any]  # of the plan, for resumed runs
    profiler: Profiler | None = None
    bonus: RND | None = None  # the learner adds it to rewards
    versions: int = 0  # past weights kept (checkpoint.history)
    best: dict[str, float] | None = None  # summary of the best evaluation so far
    last: dict[str, float] | None = None  # summary of the last evaluation
    consecutive_solved: int = 0  # successive evaluations at stop_value
    pending_evaluation: bool = False  # a signal interrupted one; a resumed run begins with it
    inexact_evaluation: str | None = None  # why an evaluation was not what it would be without
    rollbacks: int = 0  # to an earlier checkpoint, after non-finite updates
    warned: bool = False  # of a run that cannot be resumed exactly; True: say nothing
    ready: Callable[[], bool] = lambda: True  # whether a due evaluation need not wait
    waiting: bool = False  # an evaluation, for ``ready``
    phase: str = "start"  # what the loop is doing, for the watchdog
    dirty: bool = True  # something has changed since the last checkpoint
    seconds: dict[str, float] = field(default_factory=dict)
    saver: RunSaver = field(init=False)

    def __post_init__(self) -> None:
        directory, keep = self.run_dir / CHECKPOINTS, self.run_config.keep_checkpoints
        versions = self.versions if self.learner is not None else 0
        self.saver = RunSaver(directory, self.log, keep=keep, versions=versions)

    def run(self, stop: StopRequest) -> Result:
        """Run until total_steps, stop_value or ``stop``; the last state is always saved.

        Raises: EnvError, NumericError: the state before the fault is saved where it is finite.
        """
        self.source.stop = stop
        while True:
            try:
                return self._run(stop)
            except NumericError as e:
                if not self._roll_back(e):
                    raise self._saved(e) from e
            except EnvError as e:
                raise self._saved(e) from e
            except Exception as e:
                fault = fault_of_users(e)
                if fault is None:
                    raise
                raise self._saved(fault) from e

    def _run(self, stop: StopRequest) -> Result:
        if self.pending_evaluation:
            self._evaluate(stop)
            self._save()  # else a second resume would evaluate again
        self._train(stop)
        while not stop() and not self._evaluated():
            self._evaluate(stop)
            self._train(stop)  # where older weights had solved it, and these have not
        if self.dirty:
            self._save()
        self.saver.wait()
        if self.profiler is not None:
            self.profiler.stop()
        return Result(self.last if self._evaluated() else None, self.best, stop.code)

    def _train(self, stop: StopRequest) -> None:
        """Collect and learn until total_steps, stop_value or ``stop``."""
        c, counters = self.run_config, self.counters
        while counters.env_steps < c.total_steps and not stop() and not self.solved:
            before = counters.env_steps
            try:
                chunk = self._collect()
            except ChunkInterrupted:  # ``stop``: its rows so far are part of the state
                break
            keys = self._store(chunk)
            self._learn(counters.env_steps - before, keys)
            self.log.progress(counters.env_steps, counters.updates)
            if self.profiler is not None:
                self.profiler.step(counters.updates)
            if self._due(self.logger.every, before):
                self._log()
            due = self._due(c.eval_every, before)
            if due or self.waiting:
                ready, again = self.ready(), due and self.waiting
                self.waiting = not (ready or again)
                if not self.waiting:
                    self._evaluate(stop)
            if self._due(c.checkpoint_every, before):
                self._save()

    def close(self) -> None:
        """Close all environments; the last checkpoint is durable then."""
        self.source.close()
        self.evaluator.close()
        self.saver.close()

    def _collect(self) -> Any:
        start, self.phase, self.dirty = time.perf_counter(), self.source.phase, True
        chunk = self.source.next_chunk()
        if chunk is not None:
            self._add_seconds("collect", start)
        return chunk

    def _store(self, chunk: Any) -> np.ndarray:
        """Add the chunk to the buffer; return the keys of its windows."""
        if chunk is None:
            return _NO_WINDOWS
        start, keys = time.perf_counter(), _NO_WINDOWS
        if self.buffer is not None:
            keys = self.buffer.add(chunk)
        self._add_seconds("add", start)
        if self.bonus is not None:
            start = time.perf_counter()
            self.bonus.observe(chunk)
            self._add_seconds("bonus", start)
        return keys

    def _learn(self, rows: int, keys: np.ndarray) -> None:
        """Learn after ``rows`` new rows and windows ``keys``."""
        self.phase = "learn"
        if self.learner is not None:
            self.source.after_updates(self.learner.step(rows, keys))
        if self.bonus is not None:  # after the policy, for which the chunk was still new
            start = time.perf_counter()
            self.bonus.update(self.counters.env_steps)
            self._add_seconds("bonus", start)

    def _due(self, every: int, before: int) -> bool:
        return self.counters.env_steps // every > before // every

    @property
    def solved(self) -> bool:
        """True once the last ``stop_after`` evaluations reached ``stop_value``."""
        c = self.run_config
        return c.stop_value is not None and self.consecutive_solved >= c.stop_after

    def _evaluated(self) -> bool:
        """Return whether the present weights are those last evaluated."""
        return self.last is not None and self.last["env_steps"] == self.counters.env_steps

    def _log(self) -> None:
        start, steps = time.perf_counter(), self.counters.env_steps
        metrics = self.source.metrics()
        if self.buffer is not None and self.learner is not None:
            metrics |= self.learner.metrics() | self.buffer.metrics(steps)
        if self.bonus is not None:
            metrics |= self.bonus.metrics()
        self.log.write(steps, metrics)
        shown = {short: metrics[name] for name, short in _SHOWN.items() if name in metrics}
        self.log.progress(steps, self.counters.updates, **shown)
        self._add_seconds("log", start)
        elapsed = {f"time/{name}_seconds": value for name, value in self.elapsed().items()}
        self.log.write_timings(steps, elapsed | self._codec_metrics())

    def _codec_metrics(self) -> dict[str, float]:
        """codec/ metrics, logged with ``time/``: a run has the same digest whether coded or not."""
        metrics = self.source.transport_metrics()
        if self.buffer is not None:
            metrics |= self.buffer.codec_metrics()
        return metrics | self.saver.codec_metrics()

    def elapsed(self) -> dict[str, float]:
        """Seconds of each part since this process began.

        act and env are part of collect; forward, backward and optimiser of update.
        """
        seconds = self.seconds | self.source.seconds
        if self.learner is not None:
            parts = self.policy.seconds
            seconds |= self.learner.seconds | parts
            seconds["forward"] = max(0.0, seconds["update"] - sum(parts.values()))
        return seconds

    def _evaluate(self, stop: StopRequest) -> None:
        """Evaluate the present weights; pending, without results, when a signal interrupts it."""
        self._require_finite()
        start, steps = time.perf_counter(), self.counters.env_steps
        before = self.policy.generator.bit_generator.state, generators_state()
        self.pending_evaluation, self.dirty, self.phase = True, True, "evaluate"
        evaluation = self.evaluator.run_until(stop, self.policy, env_steps=steps)
        self.pending_evaluation = evaluation is None
        if evaluation is not None:
            self._record_evaluation(evaluation, steps)
        else:  # it will be repeated, with the same random numbers
            self.policy.generator.bit_generator.state = before[0]
            load_generators(before[1])
        self._add_seconds("eval", start)

    def _record_evaluation(self, evaluation: Evaluation, steps: int) -> None:
        require_in_place(self.run_dir)
        summary = evaluation.summary()
        self.inexact_evaluation = self.inexact_evaluation or evaluation.inexact
        self.last, target = summary, self.run_config.stop_value
        if self.best is None or summary["return_mean"] > self.best["return_mean"]:
            self.best = summary
            path = self.run_dir / CHECKPOINTS / "best.safetensors"
            checkpoint.save_weights(path, self.policy.weights(), summary)
        solved = target is not None and summary["return_mean"] >= target
        self.consecutive_solved = self.consecutive_solved + 1 if solved else 0
        best = {"eval/best_return_mean": self.best["return_mean"]}
        diagnosis = self.learner.diagnose() if self.learner is not None else {}
        self.log.write(steps, eval_metrics(summary) | best | diagnosis)
        self.log.progress(steps, self.counters.updates, eval=summary["return_mean"])

    @property
    def inexact(self) -> str | None:
        """Why the run is not, or cannot be resumed as, the one that nothing disturbed."""
        return self.source.inexact or self.inexact_evaluation

    def pulse(self) -> tuple[str, Any]:
        """Return the phase of the loop and numbers that change as long as it moves."""
        steps = self.counters.env_steps, self.counters.updates, self.evaluator.steps
        return self.phase, (self.source.pulse, *steps)

    # -- faults and saving -------------------------------------------------------------------------

    def _require_finite(self) -> None:
        """Raise NumericError when something that was learned is NaN or infinite."""
        if self.learner is not None:
            self.learner.means.require_finite()
        learned = {"policy": self.policy.state_dict()}
        if self.bonus is not None:
            learned["bonus"] = self.bonus.state_dict()
        require_finite(learned, self.counters.updates)

    def _saved(self, error: RlrunError) -> RlrunError:
        """``error``, once the state before it is saved, and the text that says so."""
        try:
            self.saver.wait()
            self._save()
            self.saver.wait()
            end = "saved"
        except RlrunError:  # this state is not finite, or cannot be written
            earlier = checkpoint.list_checkpoints(self.run_dir / CHECKPOINTS)
            end = f"the newest checkpoint is {earlier[-1].name}" if earlier else ""
        if end:
            error.args = (f"{error}; {end}; go on: rlrun resume {self.run_dir}",)
        return error

    def _roll_back(self, error: NumericError) -> bool:
        """Go back to the newest checkpoint with other random numbers; False: not allowed."""
        if self.run_config.on_nan != "rollback" or self.rollbacks >= MAX_ROLLBACKS:
            return False
        self.saver.wait()
        try:
            state, path = checkpoint.load_newest(self.run_dir / CHECKPOINTS)
        except CheckpointError:  # none was saved yet
            return False
        done = self.rollbacks + 1
        self.load_state_dict(other_streams(state, done))
        self.rollbacks = done
        self.log.rewind(self.counters.env_steps, checkpoint.committed(path))
        _logger.warning("%s; back to %s (%d of %d)", error, path.name, done, MAX_ROLLBACKS)
        return True

    def _save(self) -> None:
        start, self.phase = time.perf_counter(), "save"
        require_in_place(self.run_dir)
        self._require_finite()
        self.saver.save(self.state_dict(), self.policy.weights(), self.counters)
        self.dirty = False
        self._add_seconds("checkpoint", start)

    def _add_seconds(self, part: str, start: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on. Reading it changes none of it."""
        counters, source = self.counters, self.source.state_dict()  # first: see ``Source``
        self.warned = warn_inexact(self.source.inexact, self.warned)
        state: dict[str, Any] = {
            "counters": {n: getattr(counters, n) for n in counters.__slots__},
            "policy": self.policy.state_dict(),
            "collector": source.pop("collector"),
            "best": self.best,
            "last": self.last,
            "hits": self.consecutive_solved,
            "owed": self.pending_evaluation,
            "waiting": self.waiting,
            "inexact_evaluation": self.inexact_evaluation,
            "stop_value": self.run_config.stop_value,
            "settings": self.settings,
            "backends": backends(self.policy),
            "generators": generators_state(),
            "rollbacks": self.rollbacks,
        }
        if self.buffer is not None and self.learner is not None:
            state |= {"buffer": self.buffer.state_dict(), "learner": self.learner.state_dict()}
        if self.bonus is not None:
            state["bonus"] = self.bonus.state_dict()
        return state | source

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in loaded_counts(state["counters"], self.counters.__slots__).items():
            setattr(self.counters, name, value)
        with checkpoint.fitting_part(checkpoint.NETWORKS):
            require_kind("policy", state["policy"], self.policy.state_dict())
            found = first_non_finite({n: state[n] for n in ("policy", "bonus") if n in state})
            require(found is None, str(found), "is not finite")
            self.policy.load_state_dict(state["policy"])
            restore_backends(self.policy, state["backends"])
        with checkpoint.fitting_part(checkpoint.ENVIRONMENTS):
            self.source.load_state_dict(state)
        self.best, self.last = (loaded_summary(state[name]) for name in ("best", "last"))
        same_goal = state["stop_value"] == self.run_config.stop_value
        hits, self.rollbacks = (integer(n, state[n], 0, MOST_ROWS) for n in ("hits", "rollbacks"))
        self.consecutive_solved = hits if same_goal else 0
        self.pending_evaluation, self.dirty = bool(state["owed"]), False
        self.waiting = bool(state.get("waiting", False))
        if self.waiting:
            self.ready()  # the collector is to end its episode
        inexact = state.get("inexact_evaluation")  # earlier versions had none
        self.inexact_evaluation = reason("inexact_evaluation", inexact)
        if self.buffer is not None and self.learner is not None:
            with checkpoint.fitting_part(checkpoint.REPLAY):
                self.buffer.load_state_dict(state["buffer"])
                self.learner.load_state_dict(state["learner"])
        if self.bonus is not None:
            self.bonus.load_state_dict(state["bonus"])
        load_generators(state["generators"])
