"""The connection of a sweep to Ray: opened, compared with what its jobs reserve. Torch-free."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rlrun.config.checks.ray import no_cluster, require_head
from rlrun.errors import Interrupted, ResourceError
from rlrun.schema.studies import RayLauncherConfig

if TYPE_CHECKING:
    from rlrun.pipeline.ray.cluster import Cluster


is_lost = False  # whether the head of a cluster of this process was lost


@contextmanager
def same_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, which ``ray.init`` replaces by one that exits.

    Raises: Interrupted for a SIGTERM within the block.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as e:
        error = Interrupted("interrupted while Ray was starting")
        error.exit_code = 75
        raise error from e
    finally:
        with suppress(ValueError):  # outside the main thread Python refuses handlers
            signal.signal(signal.SIGTERM, before)


def connect(settings: RayLauncherConfig, workers: int | None) -> "Cluster":
    """Connect to the cluster of ``settings``, or start a Ray on this machine.

    Raises: ResourceError.
    """
    from rlrun.pipeline.ray.cluster import Cluster

    address = settings.address
    cpus = settings.num_cpus * (workers or 1) if address is None else 0.0
    require_head(address, "hydra.launcher.address")
    try:
        return Cluster(address, cpus=cpus, gpus=0, custom={})
    except ResourceError as e:
        text = " ".join(f"{type(e.__cause__).__name__}: {e.__cause__}".split())[:300]
        if address is None:
            raise ResourceError(
                f"hydra/launcher = ray: Ray did not start ({text}); it needs free memory, /dev/shm "
                "or /tmp; hydra/launcher=local runs without it"
            ) from e
        raise no_cluster("hydra.launcher.address", address, text) from e


@contextmanager
def quiet_driver() -> Iterator[None]:
    """Keep Ray from printing lost workers into the table of a sweep; its jobs' output has them."""
    import ray._private.worker as driver

    before = driver.print_to_stdstream
    driver.print_to_stdstream = lambda *given, **named: None
    try:
        yield
    finally:
        driver.print_to_stdstream = before


def note_lost() -> None:
    """Note that Ray cannot be shut down in this process any more."""
    global is_lost
    is_lost = True


def require_room(settings: RayLauncherConfig) -> None:
    """Raise ResourceError when no node has what a job reserves."""
    import ray

    found = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in found if node["Alive"]]
    need = settings.reserved
    if any(all(node.get(n, 0.0) + 1e-9 >= x for n, x in need.items()) for node in nodes):
        return
    largest = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in need}
    name = next((n for n, x in need.items() if x > largest[n] + 1e-9), "CPU")
    keys = {"CPU": "num_cpus", "GPU": "num_gpus"}
    raise ResourceError(
        f"hydra.launcher.{keys.get(name, f'resources.{name}')} = {need[name]:g}: no node has what "
        f"a job reserves; the largest has {largest[name]:g} {name}; reserve less, or add a node"
    )


def is_running(pid: int | None) -> bool:
    """Return whether a process of this machine runs."""
    import psutil

    try:
        return pid is not None and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
