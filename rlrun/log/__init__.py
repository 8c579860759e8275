"""Logging of metrics to metrics.jsonl, timings.jsonl, TensorBoard, loggers and the terminal."""

import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from rlrun.log.jsonl import NOTHING, Committed, JsonLinesFile, read_records
from rlrun.log.loggers import Loggers
from rlrun.log.progress import Progress, format_duration, resolve_mode
from rlrun.log.trial import TrialRow
from rlrun.schema import LoggerConfig

if TYPE_CHECKING:
    from rlrun.log.tensorboard import TensorBoardWriter

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"
TIMED = ("time/", "codec/", "ray/")  # keys of timings.jsonl begin with one of these
PROGRESS_SECONDS = 5.0  # between plain progress lines
TIMINGS_SECONDS = 0.1  # least time between records of timings.jsonl
_SECONDS = r"time/\w+_seconds"


class Log:
    """Metrics and timings of a run, keyed by env steps.

    ``metrics.jsonl`` is deterministic: the same calls give the same bytes. Keys of ``time/``,
    ``codec/`` and ``ray/`` go to ``timings.jsonl``. TensorBoard shows both. ``open`` opens the
    files. With ``resume_from`` it drops records after that env step from all of them.
    ``committed``: the result of ``committed()`` at that step; None: no record is kept.

    Raises: StorageError if one of the two files cannot be written (failures of TensorBoard and the
    terminal are ignored), NumericError if a metric is not finite.
    """

    def __init__(
        self,
        config: LoggerConfig,
        run_dir: Path,
        *,
        total_steps: int,
        title: str,
        resume_from: int | None = None,
        committed: Mapping[str, Committed] | None = None,
    ) -> None:
        self._config, self._run_dir, self._others = config, run_dir, Loggers()
        self._resume_from, self._known = resume_from, committed or {}
        self._board: TensorBoardWriter | None = None
        self._config_shown = False
        self._progress = Progress(
            resolve_mode(config.progress, sys.stderr),
            title=title,
            total_steps=total_steps,
            start_steps=resume_from or 0,
            seconds=PROGRESS_SECONDS,
            stream=sys.stderr,
        )
        self._files: list[JsonLinesFile] = []
        self._started = time.monotonic()
        self._env_steps, self._updates = resume_from or 0, 0
        self._late: Callable[[], Mapping[str, float]] | None = None  # timings not yet written
        self._written = -math.inf  # wall_seconds of the last record of timings

    def open(self) -> None:
        """Open the files. In a resumed run, drop records after its checkpoint."""
        since = self._resume_from
        for name in (METRICS, TIMINGS):
            known = None if since is None else self._known.get(name, NOTHING)
            self._files.append(JsonLinesFile(self._run_dir / name, committed=known))
        self._metrics, self._timings = self._files
        if self._config.tensorboard:
            from rlrun.log.tensorboard import TensorBoardWriter  # imports protobuf

            purge = None if since is None else since + 1
            tags = set() if since is None else _keys(self._run_dir)
            self._board = TensorBoardWriter(self._run_dir, purge_step=purge, tags=tags)
        last = self._timings.last or {}
        self._earlier = {k: float(v) for k, v in last.items() if re.fullmatch(_SECONDS, k)}
        earlier = self._earlier.pop("time/wall_seconds", 0.0)
        self._started -= earlier
        self._timed: tuple[float, int, int] | None = None if since else (earlier, 0, 0)

    @property
    def wall_seconds(self) -> float:
        """Wall-clock seconds of this run, including those before a resume."""
        return time.monotonic() - self._started

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Write a line of metrics.jsonl and the same points to TensorBoard."""
        if not metrics:
            return
        for key in metrics:
            assert "/" in key, key
            assert not key.startswith("time/"), key
        self._env_steps = env_steps
        self._write(self._metrics, env_steps, metrics)

    def _write(
        self, file: JsonLinesFile, env_steps: int, values: Mapping[str, SupportsFloat]
    ) -> None:
        """Write a record to its file, to TensorBoard and to other loggers."""
        file.write(env_steps, values)
        plain = {key: float(value) for key, value in values.items()}  # finite, as written
        if self._board is not None:
            self._board.scalars(env_steps, plain)
        self._others.write(env_steps, plain)

    def write_timings(self, timings: Callable[[], Mapping[str, float]]) -> None:
        """Write keys of time/, codec/ and ray/, wall_seconds and the rates since the last record.

        Seconds of this process are added to those before a resume. The run's digest contains none
        of these. Env steps and updates are those of the last call of ``progress``. Within
        ``TIMINGS_SECONDS`` of a record ``timings`` is called by ``write_late_timings``, unless a
        later one was by then.
        """
        self._late = timings
        if self.wall_seconds - self._written >= TIMINGS_SECONDS:
            self.write_late_timings()

    def write_late_timings(self) -> None:
        """Write what ``write_timings`` left, before an evaluation or a checkpoint."""
        if self._late is None:
            return
        timings, self._late, wall = self._late(), None, self.wall_seconds
        values = {"time/wall_seconds": wall}
        if self._timed is not None:
            then, steps, updates = self._timed
            span = max(wall - then, 1e-9)
            values["time/env_steps_per_s"] = (self._env_steps - steps) / span
            values["time/updates_per_s"] = (self._updates - updates) / span
        self._timed, self._written = (wall, self._env_steps, self._updates), wall
        for key, value in timings.items():
            assert key.startswith(TIMED), key
            values[key] = value + self._earlier.get(key, 0.0)
        self._write(self._timings, self._env_steps, values)

    def begin(self) -> None:
        """Note that the loop begins: the progress display measures speed from now on."""
        self._progress.begin()

    def progress(self, env_steps: int, updates: int, **latest: float) -> None:
        """Update the progress display. Values that are not passed keep their last value."""
        self._env_steps, self._updates = env_steps, updates
        self._progress.update(env_steps, updates, latest)

    def status(self, text: str) -> None:
        """Show what is being done instead of training, until the next ``progress``."""
        self._progress.update(self._env_steps, self._updates, {}, text)

    def hparams(self, config_yaml: str, trial: TrialRow, final: Mapping[str, float]) -> None:
        """Write the config to TensorBoard, as a text and as a row of the HPARAMS tab.

        Call it at the start with an empty ``final``, so that a killed run has a row, and at the end
        with the final metrics by tag (``eval/return_mean``). The first call starts the other
        loggers (csv, wandb, trackio, mlflow).
        """
        if not self._config_shown:
            sources = (METRICS, TIMINGS)
            self._others.start(self._config, self._run_dir, config_yaml, trial, sources)
        if self._board is not None:
            if not self._config_shown:
                self._board.text("config", f"```yaml\n{config_yaml}\n```")
            self._board.hparams(self._env_steps, trial, final)
        self._config_shown = True

    def text(self, tag: str, text: str) -> None:
        """Write a markdown text to TensorBoard."""
        if self._board is not None:
            self._board.text(tag, text)

    def image(self, tag: str, env_steps: int, encoded: bytes, *, height: int, width: int) -> None:
        """Write a PNG, JPEG or GIF file to TensorBoard. It does not appear in metrics.jsonl."""
        if self._board is not None:
            self._board.image(tag, env_steps, encoded, height=height, width=width)

    def histogram(self, tag: str, env_steps: int, values: np.ndarray) -> None:
        """Write a distribution to TensorBoard."""
        if self._board is not None:
            self._board.histogram(tag, env_steps, values)

    def committed(self) -> dict[str, Committed]:
        """Flush all files. Return size and SHA-256 of the two, for a checkpoint."""
        self.write_late_timings()
        if self._board is not None:
            self._board.flush()
        return {METRICS: self._metrics.committed(), TIMINGS: self._timings.committed()}

    def sync(self) -> None:
        """Fsync the two files, before a checkpoint is written. Any thread may call it."""
        self._metrics.sync()
        self._timings.sync()

    def rewind(self, env_steps: int, committed: Mapping[str, Committed]) -> None:
        """Drop the records after ``env_steps``, when ``committed`` was taken, to go on there."""
        self._metrics.rewind(committed.get(METRICS, NOTHING))
        self._timings.rewind(committed.get(TIMINGS, NOTHING))
        self._timed, self._late, self._written = None, None, -math.inf
        if self._board is not None:
            self._board.purge(env_steps + 1)

    def note(self, line: str) -> None:
        """Print a line to stdout before the run begins (not when progress is off)."""
        self._progress.note(line)

    def finish(self, line: str) -> None:
        """End the display and print the run's last line to stdout (not when progress is off)."""
        self._progress.finish(line)

    def close(self) -> None:
        """End the display and close the files. Idempotent."""
        self._progress.close()
        if self._board is not None:
            self._board.close()
        for file in self._files:
            file.close()
        self._others.close()


def eval_metrics(summary: Mapping[str, float]) -> dict[str, float]:
    """Return the eval/ metrics of an evaluation."""
    skip = ("episodes", "env_steps")
    return {f"eval/{k}": v for k, v in summary.items() if k not in skip}


def _keys(run_dir: Path) -> set[str]:
    """Return the keys of all records of a run."""
    paths = [run_dir / name for name in (METRICS, TIMINGS)]
    return {key for path in paths for _, values in read_records(path) for key in values}


def final_line(
    result: Mapping[str, float] | None,
    *,
    env_steps: int,
    wall_seconds: float,
    run_dir: Path,
    clock: str = "env steps",
    best: float | None = None,
    solved: float | None = None,
    resumed: bool = False,
) -> str:
    """Return the last lines of a run: score, env steps, wall time; the command that shows its
    directory.

    ``result`` is an evaluation with ``return_mean``, ``return_std`` and ``episodes``. ``clock`` is
    the unit of ``env_steps``. ``best``: mean return of the best evaluation, shown if it is not the
    last one. ``solved``: run.stop_return if it ended the run. ``resumed``: the time includes that
    of earlier processes.
    """
    score = "not evaluated"
    if result is not None:
        mean, std, episodes = result["return_mean"], result["return_std"], result["episodes"]
        score = f"return {mean:.4g} +- {std:.3g} over {episodes:.0f} episodes"
        if "success" in result:
            score += f", success {result['success']:.3g}"
        if best is not None and best > mean:
            score += f" (best {best:.4g})"
    score += "; " if solved is None else f"\nrlrun: solved (run.stop_return = {solved:g}); "
    cwd = Path.cwd()
    below = cwd in run_dir.parents  # with hydra.job.chdir=true it is the working directory itself
    path = shlex.quote(str(run_dir.relative_to(cwd) if below else run_dir))
    spent = format_duration(wall_seconds) + (" in all" if resumed else "")
    return (
        f"rlrun: {score}{env_steps} {clock} in {spent}\n"
        f"rlrun: see it with: rlrun tensorboard {path}"
    )
