"""Training runs: start or resume, build, loop, record."""

import hashlib
import logging
import math
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.config import check_precision
from rlrun.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    RlrunError,
    StorageError,
)
from rlrun.log import Log, final_line
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.report import Profiler, time_table
from rlrun.pipeline.state import process_restored, seed_generators
from rlrun.pipeline.stop import End, StopRequest, Watchdog, stop_on_signals
from rlrun.run import checkpoint
from rlrun.run.branch import checkpoint_at, go_back
from rlrun.run.build import backend_used, load_rows, make_pipeline, prepare_process
from rlrun.run.files import CONFIG, RECORD, hashes, lock_run_dir, replace_file, require_in_place
from rlrun.run.hparams import final_metrics, policy_title, replay_page, trial_of
from rlrun.run.manifest import CHECKPOINTS
from rlrun.run.plan import Plan, make_plan
from rlrun.run.record import (
    RunningRecord,
    RunRecord,
    close_record,
    end_at_once,
    interrupted_error,
    raise_in_main_thread,
    record_failure,
    run_digest,
)
from rlrun.schema import Config
from rlrun.trust import fault_of_users

_SAME_NUMBERS = (
    *(f"run.{name}" for name in ("total_steps", "stop_value", "stop_after", "max_time", "on_nan")),
    *(
        "run.video_every",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "checkpoint",
        "watchdog",
        "transport",
    ),
    *(f"logger.{name}" for name in ("progress", "progress_seconds", "tensorboard", "profile")),
    *(f"logger.{name}" for name in ("figures_every", "csv", "wandb", "mlflow")),
    *("buffer.mmap", "buffer.max_bytes", "resume.allow", "pipeline.address"),
)  # keys whose change by a resume leaves the numbers of a run those of the uncut one


def run(
    config: Config, run_dir: Path, *, raw_yaml: str, overrides: list[str], own_process: bool = True
) -> int:
    """Run in ``run_dir``, which exists; return the exit code. Errors are recorded and raised.

    ``own_process``: False in the process of a user's script, which is left as it was; neither
    signals nor the watchdog end it.
    """
    return _run(config, run_dir, raw_yaml=raw_yaml, resumed=None, own_process=own_process)


def resume(
    run_dir: Path,
    config: Config,
    *,
    raw_yaml: str,
    overrides: list[str],
    step: int | None = None,
    own_process: bool = True,
) -> int:
    """Continue a run from its newest valid checkpoint; return the exit code.

    ``raw_yaml`` (config.yaml with ``overrides`` in it) becomes the run's config. A run that is done
    stays as it is, to the byte. ``step``: go back to the checkpoint of this env step; what is later
    is deleted.
    """
    done = _done(run_dir, config) if step is None else None
    if done is not None:
        if config.logger.progress != "off":
            print(done)
        return 0
    handler = logging.FileHandler(run_dir / "rlrun.log")
    logging.getLogger().addHandler(handler)
    try:
        given: dict[str, Any] = {"resumed": overrides, "step": step, "own_process": own_process}
        return _run(config, run_dir, raw_yaml=raw_yaml, **given)
    finally:
        logging.getLogger().removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.close()


def _done(run_dir: Path, config: Config) -> str | None:
    """A line on a run that has nothing left to do, with how to extend it; None: it has."""
    try:
        record = RunRecord.read(run_dir)
    except (ConfigError, CheckpointError):  # reported once the directory is locked
        return None
    goal, score = config.run.stop_value, (record.eval or {}).get("return_mean", -math.inf)
    solved = record.ended_by == "run.stop_value" and goal is not None and score >= goal
    if record.status != "done" or not (solved or record.env_steps >= config.run.total_steps):
        return None
    path = shlex.quote(str(run_dir))
    later = 2 * max(config.run.total_steps, record.env_steps) or config.env.total_steps
    more = f"run.total_steps={later}"
    more += " run.stop_value=null" if solved else ""
    return (
        f"rlrun: {path}: the run is done ({record.env_steps} env steps); nothing was changed; to "
        f"go on: rlrun resume {path} {more}"
    )


def _run(
    config: Config,
    run_dir: Path,
    *,
    raw_yaml: str,
    resumed: list[str] | None,
    own_process: bool,
    step: int | None = None,
) -> int:
    """Start a run, or resume one with the overrides ``resumed``."""
    began = time.monotonic()
    check_precision(config)  # the run may have begun, or its job been sent from, elsewhere
    plan = make_plan(config)
    with lock_run_dir(run_dir), nullcontext() if own_process else process_restored():
        state, path, earlier = None, None, None
        if resumed is not None:
            path, state = _saved_state(run_dir, step)
            earlier = _earlier_record(run_dir, state)
            with checkpoint.fitting(run_dir / CHECKPOINTS):
                plan = plan if state is None else plan.resumed(state["settings"])
        prepare_process(plan)
        record = RunRecord(config.seed, config.device, plan.threads, parameters=0)
        deadline = began + (math.inf if config.run.max_time is None else config.run.max_time)
        if resumed is not None:
            if earlier is not None:
                record.started, record.command = earlier.started, earlier.command
                record.parent = earlier.parent
            if earlier is not None or (run_dir / "metrics.jsonl").exists():
                record.resumes = [*(earlier.resumes if earlier else []), list(sys.argv)]
            record.changed = sorted(
                {*(earlier.changed if earlier else []), *_changes_of_numbers(resumed)}
            )
        unchanged = earlier is not None  # until all parts are loaded nothing is written

        def begin() -> None:
            nonlocal unchanged
            unchanged = False
            if path is not None and step is not None:
                go_back(run_dir, path)
            if resumed is not None:
                _replace_config(run_dir, earlier, raw_yaml)
            record.files = hashes(run_dir)

        try:
            with ExitStack() as signals:  # caught from the loop's start until all is written
                caught = stop_on_signals(deadline, own_process=own_process)
                catch = partial(signals.enter_context, caught)
                return _run_to_end(plan, run_dir, record, raw_yaml, state, begin, catch)
        except (Interrupted, KeyboardInterrupt):
            if record.status == "running" and not (own_process or unchanged):  # it may live long
                with suppress(StorageError):
                    close_record(record, run_dir, "interrupted", Interrupted.exit_code)
            raise
        except Exception as e:
            error = e if isinstance(e, RlrunError) else fault_of_users(e)
            if not unchanged:
                code = RlrunError.exit_code if error is None else error.exit_code
                record.files = record.files or hashes(run_dir)
                record_failure(record, run_dir, code)
            if error is None or error is e:
                raise
            raise error from e


def _earlier_record(run_dir: Path, state: dict[str, Any] | None) -> RunRecord | None:
    """The record of the run so far; None: a job of a sweep that was not started, or was killed
    before it wrote one.
    """
    if state is None and not (run_dir / RECORD).exists():
        return None
    return RunRecord.read(run_dir)


def _replace_config(run_dir: Path, record: RunRecord | None, raw_yaml: str) -> None:
    """Replace config.yaml; killed at any time, it is one that run.json has the hash of."""
    content = raw_yaml.encode()
    if record is None:
        replace_file(run_dir / CONFIG, content)
        return
    known = record.files.get(CONFIG, [])
    record.files[CONFIG] = [*known, hashlib.sha256(content).hexdigest()]
    record.write(run_dir)
    replace_file(run_dir / CONFIG, content)


def _changes_of_numbers(overrides: list[str]) -> list[str]:
    """The keys of a resume after which the numbers are not those of the uncut run."""
    keys = (text.partition("=")[0].strip() for text in overrides)
    return [k for k in keys if not any(k == n or k.startswith(f"{n}.") for n in _SAME_NUMBERS)]


def _saved_state(run_dir: Path, step: int | None) -> tuple[Path | None, dict[str, Any] | None]:
    """The checkpoint of an env step (None: the newest) and its state, which a run resumes from.

    None: the run was killed before it saved one, and begins anew. The newest weights are saved
    after the first checkpoint: where they are, one is missing.
    """
    directory = run_dir / CHECKPOINTS
    if step is not None:
        path = checkpoint_at(run_dir, step)
        state = checkpoint.load(path)
    elif checkpoint.list_checkpoints(directory) or (directory / "last.json").exists():
        state, path = checkpoint.load_newest(directory)
    else:
        return None, None
    return path, state | {"committed": checkpoint.committed(path)}


def _run_to_end(
    plan: Plan,
    run_dir: Path,
    record: RunRecord,
    raw_yaml: str,
    state: dict[str, Any] | None,
    begin: Callable[[], None],
    catch_signals: Callable[[], StopRequest],
) -> int:
    """Build and load the pipeline, run it, write its record.

    ``begin``: called once nothing can be refused any more; until then nothing is written.
    """
    config = plan.config
    name = policy_title(config, run_dir)
    title = f"{name} on {config.env.id}, seed {config.seed}"
    with checkpoint.fitting(run_dir / CHECKPOINTS):
        since = int(state["counters"]["env_steps"]) if state is not None else None
    if state is None and record.resumes:
        since = -1  # no record of the metrics is kept
    total = config.run.total_steps
    seed_generators(config.seed)
    log = Log(
        config.logger,
        run_dir,
        total_steps=total,
        title=title,
        resume_from=since,
        committed=state["committed"] if state else None,
        replay=replay_page(config),
    )
    with closing(log), closing(make_pipeline(plan, run_dir, log)) as pipeline:
        parts, counters = pipeline.parts, pipeline.parts.progress.counters
        if state is not None:
            _load(pipeline, state)
        begin()
        log.open()
        if state is not None:
            if not (run_dir / CHECKPOINTS / "last.json").exists():  # of a fork
                pipeline.saving.files.save_weights(parts.policy.weights(), counters)
        elif isinstance(parts.buffer, Replay | Mixed) and config.buffer.load is not None:
            log.note(load_rows(plan, parts.buffer))
        record.parameters = sum(w.numel() for w in parts.policy.weights().values())
        record.backend, record.backend_reason = plan.backend
        _note_exactness(record, pipeline)
        running = RunningRecord(record, run_dir, parts.progress, log)
        running.update()  # of a resumed run, the counters it goes on from
        record.write(run_dir)
        trial = trial_of(run_dir, raw_yaml, record.started)
        log.hparams(raw_yaml, trial, {})
        stop = catch_signals()
        end: End = partial(end_at_once, record, run_dir, pipeline)
        if not stop.own_process:
            end = partial(raise_in_main_thread, stop, run_dir)
        watchdog = Watchdog(
            config.watchdog, pipeline.pulse, stop, end, env_id=config.env.id,
            in_place=partial(require_in_place, run_dir), report=running,
        )  # fmt: skip
        log.begin()
        try:
            with watchdog:
                result = pipeline.run(stop)
        finally:
            running.update()
            record.backend, record.backend_reason = backend_used(parts.policy, plan)
            _note_exactness(record, pipeline)
        record.best_eval = result.best
        record.eval = result.final
        record.digest = run_digest(run_dir / "metrics.jsonl", parts.policy.weights())
        if result.stopped is not None:
            close_record(record, run_dir, "interrupted", result.stopped)
            raise interrupted_error(result.stopped, counters.env_steps, run_dir)
        if (profiler := pipeline.report.profiler) is not None:
            _report_profile(profiler, pipeline.report.elapsed(), log)
        record.ended_by = "run.stop_value" if pipeline.evaluations.solved else "run.total_steps"
        log.hparams(raw_yaml, trial, final_metrics(record))
        close_record(record, run_dir, "done", 0)
        log.finish(
            final_line(
                record.eval,
                env_steps=record.env_steps,
                wall_seconds=record.wall_seconds,
                run_dir=run_dir,
                clock=parts.source.clock,
                best=None if record.best_eval is None else record.best_eval["return_mean"],
                solved=config.run.stop_value if pipeline.evaluations.solved else None,
            )
        )
    return 0


def _note_exactness(record: RunRecord, pipeline: Pipeline) -> None:
    changed = f"resumed with {', '.join(record.changed)}" if record.changed else None
    record.exact_reason = pipeline.saving.inexact or changed
    record.exact = record.exact_reason is None


def _load(pipeline: Pipeline, state: dict[str, Any]) -> None:
    """Load a checkpoint. Raises: CheckpointError when it is not one of this config's parts."""
    try:
        pipeline.saving.load_state_dict(state)
    except checkpoint.MISFITS as e:
        text = " ".join(str(e).split())
        raise CheckpointError(
            f"checkpoints: do not fit the config ({type(e).__name__}: {text}); allowed are the "
            "networks, buffer and environments that the run began with; undo the changes of its "
            "config"
        ) from e


def _report_profile(profiler: Profiler, elapsed: dict[str, float], log: Log) -> None:
    """Write the seconds of each part to the terminal and to TensorBoard."""
    lines = time_table(elapsed, log.wall_seconds - profiler.seconds)
    if profiler.table is not None:
        lines += ["", profiler.table, f"trace: {profiler.directory}/profile.pt.trace.json"]
    log.text("profile", "```text\n" + "\n".join(lines) + "\n```")
    log.note("\n".join(lines))
