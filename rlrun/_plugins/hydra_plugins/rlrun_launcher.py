"""Hydra's launchers ``hydra/launcher=local`` and ``ray``; values: conf/hydra/launcher/*.yaml.

Sweeps of Hydra's basic sweeper run without them (rlrun/cli/sweep.py). Sweepers that choose their
jobs adaptively call ``launch``. Hydra loads this file by scanning ``hydra_plugins``.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LocalLauncher(Launcher):
    """Runs jobs in processes of this machine, forked from one that has imported torch."""

    def __init__(self, workers: int | None) -> None:
        self.workers = workers
        self.task: Any = None
        self.config: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.task, self.config = task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rlrun.cli.sweep import launch_batch

        returns = []
        for overrides, result in launch_batch(self.task.sweep, self.config, job_overrides):
            done = JobReturn(overrides=overrides)
            failed = isinstance(result, Exception)
            done.status = JobStatus.FAILED if failed else JobStatus.COMPLETED
            done.return_value = result
            returns.append(done)
        return returns


class RayLauncher(LocalLauncher):
    """Runs jobs in processes that Ray actors start, on this machine or on a cluster.

    rlrun/cli/sweep.py reads its keys from the config that ``setup`` receives.
    """

    def __init__(
        self,
        workers: int | None,
        address: str | None,
        num_cpus: float,
        num_gpus: float,
        resources: dict[str, float],
        retries: int,
    ) -> None:
        super().__init__(workers)
