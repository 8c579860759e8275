"""Training runs: start or resume, build, run the loop, record."""

import hashlib
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.config.checks import check_precision
from rlrun.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    RlrunError,
    StorageError,
    storage_errors,
)
from rlrun.log import Log, final_line
from rlrun.pipeline.loop import Pipeline, Result
from rlrun.pipeline.parts import Profiler, time_table
from rlrun.pipeline.state import process_restored, seed_generators
from rlrun.pipeline.stop import End, StopRequest, Watchdog, stop_on_signals
from rlrun.policy.compute import flushed, tensor_cores
from rlrun.run import checkpoint
from rlrun.run.branch import checkpoint_at, go_back
from rlrun.run.build import backend_used, load_rows, make_pipeline, prepare_process
from rlrun.run.files import (
    CONFIG,
    RECORD,
    added_log,
    hashes,
    lock_run_dir,
    replace_file,
    require_in_place,
)
from rlrun.run.hparams import final_metrics, policy_title, trial_of
from rlrun.run.manifest import CHECKPOINTS, METRICS, how_to_go_on, list_checkpoints, run_digest
from rlrun.run.plan import Plan, make_plan
from rlrun.run.precompile import compile_update
from rlrun.run.record import (
    RunningRecord,
    RunRecord,
    end_at_once,
    raise_in_main_thread,
    record_failure,
)
from rlrun.schema import Config
from rlrun.schema.override import read_overrides
from rlrun.schema.run import OBJECT
from rlrun.trust import fault_of_users, resume_line

_SAME_NUMBERS = (
    "run.dir", "run.total_steps", "run.stop_return", "run.stop_after", "run.max_time", "run.on_nan",
    "run.video_every", "run.checkpoint_every", "run.keep_checkpoints", "checkpoint", "watchdog",
    "transport", "logger.progress", "logger.tensorboard",
    "logger.profile", "logger.figures_every", "logger.csv", "logger.wandb",
    "logger.trackio", "logger.mlflow",
    "buffer.mmap", "buffer.max_bytes", "resume.allow", "pipeline.address",
)  # fmt: skip  # keys that a resume or a fork may change without changing numbers


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments of a command that starts or resumes a run.

    ``run_dir`` exists. ``raw_yaml``: its config.yaml, with the overrides of a resume applied.
    ``resumed``: these overrides; None: the run begins. ``step``: a resume goes back to the
    checkpoint of this env step and deletes later ones; None: the newest valid one. ``own_process``:
    False in a user's process, which is left unchanged, and which neither signals nor the watchdog
    end.
    """

    config: Config
    run_dir: Path
    raw_yaml: str
    resumed: Sequence[str] | None = None
    step: int | None = None
    own_process: bool = True


def start(launch: Launch) -> int:
    """Run to the end and return the exit code. Errors are recorded and raised.

    A finished run stays unchanged to the byte.
    """
    began, config, run_dir = time.monotonic(), launch.config, launch.run_dir
    if launch.resumed is not None and launch.step is None and (line := _done(run_dir, config)):
        if config.logger.progress != "off":
            print(line)
        return 0
    with nullcontext() if launch.resumed is None else added_log(run_dir):
        check_precision(config)  # the run may have begun on another machine
        plan = make_plan(config)
        restored = nullcontext() if launch.own_process else process_restored()
        with lock_run_dir(run_dir), restored, flushed(), tensor_cores(config.learner.precision):
            saved = _Saved() if launch.resumed is None else _read_saved(launch)
            if saved.state is not None:
                with checkpoint.fitting(run_dir / CHECKPOINTS):
                    plan = plan.resumed(saved.state["settings"])
            prepare_process(plan)
            run = _Run(launch, plan, saved)
            deadline = began + (math.inf if config.run.max_time is None else config.run.max_time)
            with (
                run.failures_recorded(),
                ExitStack() as signals,  # from the loop's start until all is written
                closing(run.make_log()) as log,
                closing(run.make_pipeline()) as pipeline,
            ):
                if launch.own_process and plan.backend.name == "numpy":
                    compile_update(config, pipeline.parts)
                run.load()
                caught = stop_on_signals(deadline, own_process=launch.own_process)
                stop = signals.enter_context(caught)
                watchdog = run.watchdog(stop)
                log.begin()
                try:
                    with watchdog:
                        result = pipeline.run(stop)
                finally:
                    run.update()
                run.finish(result)
    return 0


@dataclass(frozen=True, slots=True)
class _Saved:
    """The saved state from which a resume continues: a checkpoint, its state, and the record so
    far.

    ``state`` None: the run was killed before its first checkpoint, and starts from the beginning.
    ``record`` None: a sweep's job that was not started, or was killed before it wrote one.
    """

    state: dict[str, Any] | None = None
    path: Path | None = None
    record: RunRecord | None = None


def _read_saved(launch: Launch) -> _Saved:
    """Read the checkpoint and the record from which ``launch`` continues.

    The newest weights are saved after the first checkpoint. If only they exist, a checkpoint is
    missing.
    """
    run_dir, directory = launch.run_dir, launch.run_dir / CHECKPOINTS
    if launch.step is not None:
        path = checkpoint_at(run_dir, launch.step)
        state = checkpoint.load(path)
    elif list_checkpoints(directory) or (directory / "last.json").exists():
        state, path = checkpoint.load_newest(directory)
    else:
        return _Saved(record=RunRecord.read(run_dir) if (run_dir / RECORD).exists() else None)
    state = state | {"committed": checkpoint.committed(path)}
    return _Saved(state, path, RunRecord.read(run_dir))


class _Run:
    """A run from its plan to its last record."""

    log: Log
    pipeline: Pipeline

    def __init__(self, launch: Launch, plan: Plan, saved: _Saved) -> None:
        self.launch, self.plan, self.saved = launch, plan, saved
        self.config, self.run_dir, self.state = plan.config, launch.run_dir, saved.state
        self.unchanged = saved.record is not None  # nothing is written until all parts are loaded
        self.record = RunRecord(self.config.seed, self.config.device, plan.threads, parameters=0)
        if launch.resumed is None:
            return
        record, earlier = self.record, saved.record  # the record so far goes on
        if earlier is not None:
            record.started, record.command = earlier.started, earlier.command
            record.parent = earlier.parent
        if earlier is not None or (self.run_dir / "metrics.jsonl").exists():
            record.resumes = [*(earlier.resumes if earlier else []), list(sys.argv)]
        changed = [o.key for o in read_overrides(launch.resumed) if not o.is_below(*_SAME_NUMBERS)]
        record.changed = sorted({*(earlier.changed if earlier else []), *changed})

    @contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Record errors of the block, once the directory may be written."""
        record, run_dir = self.record, self.run_dir
        try:
            yield
        except (Interrupted, KeyboardInterrupt):
            open_ended = record.status == "running" and not self.launch.own_process
            if open_ended and not self.unchanged:  # the process may live long
                with suppress(StorageError):
                    record.close(run_dir, "interrupted", Interrupted.exit_code)
            raise
        except (Exception, SystemExit) as e:
            error = e if isinstance(e, RlrunError) else fault_of_users(e)
            if not self.unchanged:
                code = RlrunError.exit_code if error is None else error.exit_code
                record.files = record.files or hashes(run_dir)
                record_failure(record, run_dir, code)
            if error is None or error is e:
                raise
            raise error from e

    def make_log(self) -> Log:
        """Return the log. In a resumed run it continues after the checkpoint."""
        config, state = self.config, self.state
        since = -1 if self.record.resumes else None  # -1: keep no record of the metrics
        if state is not None:
            with checkpoint.fitting(self.run_dir / CHECKPOINTS):
                since = int(state["counters"]["env_steps"])
        title = f"{policy_title(config, self.run_dir)} on {config.env.id}, seed {config.seed}"
        seed_generators(config.seed)
        self.log = Log(
            config.logger, self.run_dir, total_steps=config.run.total_steps, title=title,
            resume_from=since, committed=state["committed"] if state else None,
        )  # fmt: skip
        return self.log

    def make_pipeline(self) -> Pipeline:
        """Return the loop over the parts of the run, which pipeline=ray places on a cluster."""
        make = make_pipeline
        if self.config.pipeline.name == "ray":
            from rlrun.run.ray import make_ray_pipeline as make
        self.pipeline = make(self.plan, self.run_dir, self.log)
        return self.pipeline

    def load(self) -> None:
        """Load the checkpoint, and after that succeeds open the files for writing."""
        pipeline, parts = self.pipeline, self.pipeline.parts
        record, run_dir, config = self.record, self.run_dir, self.config
        if self.state is not None:
            with checkpoint.fitting(run_dir / CHECKPOINTS):
                pipeline.saving.load_state_dict(self.state)
        self._note_start()
        self.unchanged = False
        if self.saved.path is not None and self.launch.step is not None:
            go_back(run_dir, self.saved.path)
        if self.launch.resumed is not None:
            _replace_config(run_dir, self.saved.record, self.launch.raw_yaml)
        record.files = hashes(run_dir)
        self.log.open()
        if self.state is not None:  # a fork has no weights, a killed run perhaps earlier ones
            pipeline.saving.save_weights()
        elif isinstance(parts.buffer, Replay | Mixed) and config.buffer.load is not None:
            self.log.note(load_rows(self.plan, parts.buffer))
        record.parameters = sum(map(Tensor.numel, parts.policy.weights().values()))
        record.backend, record.backend_reason = self.plan.backend[:2]
        self._note_exactness()
        self.running = RunningRecord(record, run_dir, parts.progress, self.log)
        self.running.update()  # the counters from which a resumed run continues
        record.write(run_dir)
        self.trial = trial_of(run_dir, self.launch.raw_yaml, record.started)
        self.log.hparams(self.launch.raw_yaml, self.trial, {})

    def _note_start(self) -> None:
        """Print where a resume goes on, or that its checkpoint is past run.total_steps.

        Of a new run: that its policy is known not to learn the environment, or lacks a memory.
        """
        total, steps = self.config.run.total_steps, self.pipeline.parts.progress.counters.env_steps
        if self.launch.resumed is None:
            c, name = self.config, self.config.policy.name
            if name in c.env.not_learned_by and c.bonus.name == "none":
                fact = f"measured with its defaults, {name} did not learn this task"
                self.log.note(f"rlrun: {fact}; presets of tasks: rlrun list env")
            if _lacks_memory(c):
                fix = "memory=lstm" if c.policy.recurrent else c.policy.recurrent_variant
                fix = fix or "a policy with a memory"
                self.log.note(f"rlrun: this task needs a memory, and {name} has none: try {fix}")
            if self.plan.displaces_kernel():
                kept = "float32 keeps the compiled update, up to 3 times as fast for small networks"
                self.log.note(f"rlrun: learner.precision = {c.learner.precision}: {kept}")
            return
        clock = self.pipeline.parts.source.clock
        if self.state is None:
            self.log.note("rlrun: there is no checkpoint yet: the run starts again")
        elif steps <= total:
            self.log.note(f"rlrun: goes on from {steps} {clock}")
        else:
            command = resume_line(self.run_dir, f"run.total_steps={2 * steps}")
            self.log.note(
                f"rlrun: run.total_steps = {total}: the checkpoint is of env step {steps}, so "
                f"nothing is trained; to train on: {command}"
            )

    def watchdog(self, stop: StopRequest) -> Watchdog:
        end: End = partial(end_at_once, self.running)
        if not stop.own_process:
            end = partial(raise_in_main_thread, stop, self.run_dir)
        return Watchdog(
            self.config.watchdog, self.pipeline.pulse, stop, end, env_id=self.config.env.id,
            in_place=partial(require_in_place, self.run_dir), report=self.running,
            tell=self.log.note,
        )  # fmt: skip

    def update(self) -> None:
        """Update the record after the loop."""
        record = self.record
        self.running.update()
        policy = self.pipeline.parts.policy
        record.backend, record.backend_reason = backend_used(policy, self.plan)[:2]
        self._note_exactness()

    def _note_exactness(self) -> None:
        record, is_given = self.record, self.config.env.id.startswith(OBJECT)
        changed = f"resumed with {', '.join(record.changed)}" if record.changed else None
        scripted = "a script gave its environment" if is_given else None
        record.exact_reason = self.pipeline.saving.inexact or changed or scripted
        record.exact = record.exact_reason is None

    def finish(self, result: Result) -> None:
        """Close the record. Raises: Interrupted if a signal or the time limit ended the run."""
        record, run_dir, log, pipeline = self.record, self.run_dir, self.log, self.pipeline
        record.best_eval, record.eval = result.best, result.final
        need = "a run needs its metrics and weights; check whether its directory was moved"
        with storage_errors(f"{run_dir}:", need, "cannot be read"):
            weights = run_dir / CHECKPOINTS / "last.safetensors"
            record.digest = run_digest(run_dir / METRICS, weights)
        if result.stopped is not None:
            record.close(run_dir, "interrupted", result.stopped)
            saved = how_to_go_on(run_dir, "saved")
            text = f"interrupted at env step {record.env_steps}{saved}"
            raise Interrupted(text).with_code(result.stopped)
        if (profiler := pipeline.report.profiler) is not None:
            _report_profile(profiler, pipeline.report.elapsed(), log)
        solved = pipeline.evaluations.solved
        record.ended_by = "run.stop_return" if solved else "run.total_steps"
        log.hparams(self.launch.raw_yaml, self.trial, final_metrics(record))
        record.close(run_dir, "done", 0)
        line = final_line(
            record.eval, env_steps=record.env_steps, wall_seconds=record.wall_seconds,
            run_dir=run_dir, clock=pipeline.parts.source.clock,
            best=None if record.best_eval is None else record.best_eval["return_mean"],
            solved=self.config.run.stop_return if solved else None,
            resumed=bool(record.resumes),
        )  # fmt: skip
        log.finish(line)


def _lacks_memory(config: Config) -> bool:
    """Return whether a policy cannot remember what the rewards of its task depend on."""
    env = config.env
    hidden = env.needs_memory and env.frame_stack == 1 and not env.kwargs.get("full_state")
    return hidden and config.policy.learns and config.memory.name == "none"


def _done(run_dir: Path, config: Config) -> str | None:
    """Return a line on a finished run and how to extend it, or None if it is not finished."""
    try:
        record = RunRecord.read(run_dir)
    except (ConfigError, CheckpointError):  # raised again once the directory is locked
        return None
    goal, score = config.run.stop_return, (record.eval or {}).get("return_mean", -math.inf)
    solved = record.ended_by == "run.stop_return" and goal is not None and score >= goal
    if record.status != "done" or not (solved or record.env_steps >= config.run.total_steps):
        return None
    path = shlex.quote(str(run_dir))
    later = 2 * max(config.run.total_steps, record.env_steps) or config.env.total_steps
    overrides = [f"run.total_steps={later}", *["run.stop_return=null"] * solved]
    return (
        f"rlrun: {path}: the run is done ({record.env_steps} env steps); nothing was changed; to "
        f"go on: {resume_line(run_dir, *overrides)}"
    )


def _replace_config(run_dir: Path, record: RunRecord | None, raw_yaml: str) -> None:
    """Replace config.yaml. Killed at any time, run.json has the hash of the file that is there."""
    content = raw_yaml.encode()
    if record is not None:
        known = record.files.get(CONFIG, [])
        record.files[CONFIG] = [*known, hashlib.sha256(content).hexdigest()]
        record.write(run_dir)
    replace_file(run_dir / CONFIG, content)


def _report_profile(profiler: Profiler, elapsed: dict[str, float], log: Log) -> None:
    """Write the seconds of each part to the terminal and to TensorBoard."""
    lines = time_table(elapsed, log.wall_seconds - profiler.seconds)
    if profiler.table is not None:
        lines += ["", profiler.table, f"trace: {profiler.directory}/profile.pt.trace.json"]
    log.text("profile", "```text\n" + "\n".join(lines) + "\n```")
    log.note("\n".join(lines))
