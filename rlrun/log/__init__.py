"""Where a run writes what it measured: metrics.jsonl, timings.jsonl, TensorBoard, the terminal."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rlrun.log.jsonl import JsonLines, number
from rlrun.log.progress import Progress, choose
from rlrun.log.reading import duration
from rlrun.schema import LoggerConfig

__all__ = ["Log", "final_line"]

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"


class Log:
    """The one way out for numbers.

    ``metrics.jsonl`` holds what determinism covers: same calls, same bytes. ``time/`` and
    ``codec/`` keys go to ``timings.jsonl``. TensorBoard shows both. Everything is keyed by env
    steps. With ``resume_from`` all of them forget what came after that env step.

    Raises: StorageError when one of the two files cannot be written (TensorBoard and the terminal
    may fail without harm), NumericError when a metric is not finite.
    """

    def __init__(
        self,
        config: LoggerConfig,
        run_dir: Path,
        *,
        total_steps: int,
        title: str,
        resume_from: int | None = None,
    ) -> None:
        self._metrics = JsonLines(run_dir / METRICS, resume_from=resume_from)
        self._timings = JsonLines(run_dir / TIMINGS, resume_from=resume_from)
        self._board, self._config_shown = None, False
        if config.tensorboard:
            from rlrun.log.tensorboard import TensorBoard  # protobuf, only when wanted

            purge = None if resume_from is None else resume_from + 1
            self._board = TensorBoard(run_dir, purge_step=purge)
        start = resume_from or 0
        self._progress = Progress(
            choose(config.progress, sys.stderr),
            title=title,
            total_steps=total_steps,
            start_steps=start,
            seconds=config.progress_seconds,
            stream=sys.stderr,
        )
        earlier = float((self._timings.last or {}).get("time/wall_seconds", 0.0))
        self._started = time.monotonic() - earlier
        self._env_steps, self._updates = start, 0
        self._timed: tuple[float, int, int] | None = None if resume_from else (earlier, 0, 0)

    @property
    def wall_seconds(self) -> float:
        """Seconds this run has taken, those before a resume included."""
        return time.monotonic() - self._started

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes one line of metrics.jsonl, and the same points to TensorBoard."""
        if not metrics:
            return
        for key in metrics:
            assert "/" in key, key
            assert not key.startswith("time/"), key
        self._metrics.write(env_steps, metrics)
        self._env_steps = env_steps
        if self._board is not None:
            self._board.scalars(env_steps, {k: number(k, v) for k, v in metrics.items()})

    def time(self, env_steps: int, timings: Mapping[str, float]) -> None:
        """Writes ``time/`` and ``codec/`` keys, what the digest leaves out; wall_seconds and the
        rates since the last call are added.

        The updates behind ``time/updates_per_s`` are those last told to ``progress``.
        """
        wall = self.wall_seconds
        values = {"time/wall_seconds": wall}
        if self._timed is not None:
            then, steps, updates = self._timed
            span = max(wall - then, 1e-9)
            values["time/env_steps_per_s"] = (env_steps - steps) / span
            values["time/updates_per_s"] = (self._updates - updates) / span
        self._timed = (wall, env_steps, self._updates)
        for key, value in timings.items():
            assert key.startswith(("time/", "codec/")), key
            values[key] = value
        self._timings.write(env_steps, values)
        if self._board is not None:
            self._board.scalars(env_steps, {k: number(k, v) for k, v in values.items()})

    def progress(self, env_steps: int, updates: int, **latest: float) -> None:
        """Tells the terminal where the run is; values not named keep their last reading."""
        self._env_steps, self._updates = env_steps, updates
        self._progress.update(env_steps, updates, latest)

    def hparams(
        self,
        config_yaml: str,
        flat: Mapping[str, bool | int | float | str | None],
        final: Mapping[str, float],
    ) -> None:
        """Shows the config in TensorBoard: as a text, and as a row of the HPARAMS tab.

        Call it at the start with an empty ``final`` (a killed run then has its row too), and at
        the end with the final metrics, named by their tags (``eval/return_mean``).
        """
        if self._board is not None:
            if not self._config_shown:
                self._board.text("config", f"```yaml\n{config_yaml}\n```")
            self._config_shown = True
            self._board.hparams(self._env_steps, flat, final)

    def text(self, tag: str, text: str) -> None:
        """Shows a markdown text in TensorBoard."""
        if self._board is not None:
            self._board.text(tag, text)

    def sync(self) -> None:
        """Returns when the disk has all of it: to be called before a checkpoint is saved."""
        self._metrics.sync()
        self._timings.sync()
        if self._board is not None:
            self._board.flush()

    def note(self, line: str) -> None:
        """Prints a line to stdout before the run begins (not when progress is off)."""
        self._progress.note(line)

    def done(self, line: str) -> None:
        """Ends the display and prints the run's last line to stdout (not when progress is off)."""
        self._progress.done(line)

    def close(self) -> None:
        """Ends the display and closes the files; harmless twice."""
        self._progress.close()
        if self._board is not None:
            self._board.close()
        self._metrics.close()
        self._timings.close()

    def __enter__(self) -> Self:
        """The log itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the log, so that an error's text finds the terminal as it should be."""
        self.close()


def final_line(
    result: Mapping[str, float] | None,
    *,
    env_steps: int,
    wall_seconds: float,
    run_dir: Path,
    clock: str = "env steps",
) -> str:
    """The last line of a run: score, env steps, wall time, run directory, TensorBoard command.

    ``clock``: what ``env_steps`` counts.

    ``result`` is an evaluation with ``return_mean``, ``return_std`` and ``episodes``.
    """
    score = "not evaluated"
    if result is not None:
        mean, std, episodes = result["return_mean"], result["return_std"], result["episodes"]
        score = f"return {mean:.4g} +- {std:.3g} over {episodes:.0f} episodes"
        if "success" in result:
            score += f", success {result['success']:.3g}"
    path = shlex.quote(str(run_dir))
    return (
        f"rlrun: {score}; {env_steps} {clock} in {duration(wall_seconds)}; run directory {path}; "
        f"see it with: tensorboard --logdir {path}"
    )
