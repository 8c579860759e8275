"""An actor of Ray that takes one job after another, as its pool sees it. Torch-free."""

from contextlib import suppress
from typing import Any, Literal

from rlrun.schema.studies import RayLauncherConfig
from rlrun.sweeps.pool import Job
from rlrun.sweeps.ray_host import JobHost, command_environment


class RaySlot:
    """An actor, its job, and ``ref``: the call whose answer is awaited, None while idle."""

    def __init__(self, settings: RayLauncherConfig, path: list[str] | None) -> None:
        """``path``: as of ``JobHost``. The actor waits until a node has what it reserves."""
        import ray

        options: dict[str, Any] = {
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus,
            "resources": dict(settings.resources),
            "max_restarts": 0,
            "max_concurrency": 4,  # a signal passes a call that waits
        }
        make: Any = ray.remote(JobHost)
        self._actor = make.options(**options).remote(path, command_environment())
        self.state: Literal["placing", "idle", "starting", "running"] = "placing"
        self.job: Job | None = None
        self.ref: Any = self._actor.node.remote()

    def start(self, job: Job, *, again: bool) -> None:
        """Begin to start a job. ``again``: an earlier process of it may still be saving."""
        self.job, self.state = job, "starting"
        self.ref = self._actor.start.remote(job.num, job.request, again)

    def wait(self) -> None:
        """Begin to wait for the end of the job."""
        assert self.job is not None
        self.state, self.ref = "running", self._actor.wait.remote()

    def rest(self) -> None:
        """Note that the actor has no job."""
        self.state, self.ref, self.job = "idle", None, None

    def signal(self, number: int) -> None:
        """Send a signal to the job."""
        assert self.job is not None
        self._actor.signal.remote(self.job.num, int(number))

    def end(self) -> None:
        """End the actor, whose resources are free then."""
        import ray

        with suppress(Exception):  # it, or its node, may be gone
            ray.kill(self._actor)
