"""Other loggers: metrics.csv, Weights & Biases, MLflow.

Each has ``write``, which receives a record of all metrics, including ``time/`` and ``codec/``, and
``close``, called once. None of them can end a run: after its first error a logger stops with one
warning, and training goes on.
"""

import csv
import io
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from rlrun.errors import redact
from rlrun.log.jsonl import read_records
from rlrun.log.trial import TrialRow
from rlrun.schema import LoggerConfig

CSV, CSV_SECONDS = "metrics.csv", 60.0  # the file, and the shortest time between two writes
PROJECT = "rlrun"  # of Weights & Biases and Trackio; the experiment of MLflow
WANDB_ID, MLFLOW_ID = "wandb_id.txt", "mlflow_id.txt"  # in the run directory, for a resume
TRACKIO_NAME = "trackio_name.txt"  # likewise: Trackio knows a run by its name

_logger = logging.getLogger(__name__)


class CsvLogger:
    """metrics.csv: a row per env step with records, a column per metric.

    The columns are known only at the end, so the file is rewritten from the records, at most once a
    minute and at the end. Missing metrics are empty cells.
    """

    def __init__(self, run_dir: Path, sources: tuple[str, ...]) -> None:
        self.path, self.sources = run_dir / CSV, [run_dir / name for name in sources]
        self.written = time.monotonic()

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        if time.monotonic() - self.written > CSV_SECONDS:
            self.close()

    def close(self) -> None:
        self.written = time.monotonic()
        rows: dict[int, dict[str, float]] = {}
        for path in self.sources:
            for step, values in read_records(path):
                rows.setdefault(step, {}).update(values)
        names = sorted({name for row in rows.values() for name in row})
        part = self.path.with_name(f".tmp_{CSV}")
        part.unlink(missing_ok=True)
        with part.open("x", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, ["env_steps", *names], lineterminator="\n")
            table.writeheader()
            table.writerows({"env_steps": step} | rows[step] for step in sorted(rows))
        os.replace(part, self.path)


class WandbLogger:
    """Weights & Biases.

    ``mode`` offline writes files to WANDB_DIR, by default wandb/ in the working directory. They are
    not in the run directory because they contain links, which a run directory must not have.
    """

    def __init__(
        self, mode: Literal["offline", "online"], run_dir: Path, config_yaml: str, trial: TrialRow
    ) -> None:
        import wandb

        known = _read(run_dir / WANDB_ID)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=trial.name,
            id=known,
            resume="allow",
            mode=mode,
            config=yaml.safe_load(config_yaml),  # with names in place of secrets
            settings=wandb.Settings(console="off", silent=True),
        )
        if known is None:
            (run_dir / WANDB_ID).write_text(self.run.id)
        self.run.define_metric("env_steps")
        self.run.define_metric("*", step_metric="env_steps")

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "env_steps": env_steps})

    def close(self) -> None:
        self.run.finish()


class TrackioLogger:
    """Trackio: files in TRACKIO_DIR (default: the user's cache), or its Space or server."""

    def __init__(self, run_dir: Path, config_yaml: str, trial: TrialRow) -> None:
        import trackio as wandb

        self.package = wandb
        known = _read(run_dir / TRACKIO_NAME)
        name = known or f"{trial.name}-{secrets.token_hex(3)}"
        with redirect_stdout(io.StringIO()):
            self.run = wandb.init(
                project=PROJECT, name=name, resume="allow", config=yaml.safe_load(config_yaml),
                auto_log_cpu=False, auto_log_gpu=False,
            )  # fmt: skip
        (run_dir / TRACKIO_NAME).write_text(name)

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=env_steps)

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self.package.finish()  # which forgets the run, too: it would end it again, and say so


class MlflowLogger:
    """MLflow at the tracking address ``uri``. The settings are its parameters."""

    def __init__(self, uri: str, run_dir: Path, trial: TrialRow) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        run_id = _read(run_dir / MLFLOW_ID)
        if run_id is None:
            known = self.client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else self.client.create_experiment(PROJECT)
            run_id = self.client.create_run(experiment, run_name=trial.name).info.run_id
            for key, value in trial.settings.items():
                self.client.log_param(run_id, key, value)
            (run_dir / MLFLOW_ID).write_text(run_id)
        else:
            self.client.set_terminated(run_id, "RUNNING")
        self.run_id = run_id

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(key, value, now, env_steps) for key, value in values.items()]
        self.client.log_batch(self.run_id, metrics=points)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


class Loggers:
    """The loggers of a run. After its first error, a warning, a logger receives nothing more."""

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}

    def start(
        self,
        config: LoggerConfig,
        run_dir: Path,
        config_yaml: str,
        trial: TrialRow,
        sources: tuple[str, ...],
    ) -> None:
        """Start the loggers that ``config`` names. ``sources``: the files with all records."""
        wanted: dict[str, Callable[[], Any]] = {}
        mode, uri = config.wandb, config.mlflow
        if config.csv:
            wanted["csv"] = lambda: CsvLogger(run_dir, sources)
        if mode is not None:
            wanted["wandb"] = lambda: WandbLogger(mode, run_dir, config_yaml, trial)
        if config.trackio:
            wanted["trackio"] = lambda: TrackioLogger(run_dir, config_yaml, trial)
        if uri is not None:
            wanted["mlflow"] = lambda: MlflowLogger(uri, run_dir, trial)
        for name, make in wanted.items():
            logger = self._attempt(name, make)
            if logger is not None:
                self.open[name] = logger

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Pass a record to all loggers."""
        for name, logger in list(self.open.items()):
            self._attempt(name, partial(logger.write, env_steps, values))

    def close(self) -> None:
        """Close all. Idempotent."""
        for name, logger in list(self.open.items()):
            self._attempt(name, logger.close)
        self.open = {}

    def _attempt(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as e:  # optional packages must not end the run
            self.open.pop(name, None)
            text = redact(" ".join(str(e).split()))[:300]
            _logger.warning(
                "logger.%s stops, training continues: %s: %s", name, type(e).__name__, text
            )
            return None


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None
