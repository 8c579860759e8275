"""Checks of ``pipeline=ray``. Torch-free."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from rlrun.config.checks.learning import policies_that
from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError, ResourceError, extra
from rlrun.schema import Config, PriorityConfig, RayConfig, SwitchedConfig
from rlrun.schema.policy import Window

CONNECT_SECONDS = 1.0  # that a cluster's head has to accept a connection
ANSWER_SECONDS = 6.0  # and to answer Ray
IMPORT_SECONDS = 60.0  # that Ray's client may take to be imported, on a busy machine


def ray_errors(config: Config, window: Window | None) -> Iterator[ConfigError]:
    """Yield what does not fit together with roles in processes of their own."""
    c = config.pipeline
    if not isinstance(c, RayConfig):
        if config.transport.copies != "float32":
            wrong = "only collectors of pipeline=ray act with copies of another precision"
            yield config_error(
                "transport.copies", config.transport.copies, wrong, "float32 is allowed", "set it"
            )
        return
    if not config.policy.updates:
        wrong = f"policy {config.policy.name} learns nothing, so that there is nothing to place"
        fix = f"set pipeline=serial, or use {policies_that(lambda p: True)}"
        yield config_error("pipeline", "ray", wrong, "a policy that learns", fix)
    if c.num_shards > c.num_actors:
        wrong = f"a shard stores the trajectories of whole collectors, here {c.num_actors}"
        yield config_error(
            "pipeline.num_shards", c.num_shards, wrong, f"at most {c.num_actors}", "lower it"
        )
    if config.device != "cpu" and not c.learner.num_gpus:
        wrong = f"the networks are on device = {config.device}, the role would see no GPU"
        yield config_error(
            "pipeline.learner.num_gpus", c.learner.num_gpus, wrong, "1 is allowed", "set it"
        )
    yield from _unshared(config, c)
    yield from _capacity(config, c, window)
    yield from _address(c)


def _unshared(config: Config, c: RayConfig) -> Iterator[ConfigError]:
    """Yield the errors of parts that belong to one process, or to one replay."""
    serial = "or set pipeline=serial"
    if config.bonus.name != "none":
        wrong = "its statistics belong beside one replay, pipeline=ray has it elsewhere"
        yield config_error("bonus", config.bonus.name, wrong, "bonus=none is allowed", serial)
    for key in ("mmap", "demos", "load"):
        value, several = getattr(config.buffer, key), c.num_actors > 1 or key == "mmap"
        if value is not None and several:
            wrong = "every collector has a replay of its own"
            yield config_error(f"buffer.{key}", value, wrong, "null is allowed", serial)
    if config.buffer.device != "cpu":
        wrong = "replay shards keep their rows in host memory"
        yield config_error("buffer.device", config.buffer.device, wrong, "cpu is allowed", "set it")
    buffer = config.buffer
    if isinstance(buffer, PriorityConfig) and buffer.weight_norm == "buffer" and c.num_actors > 1:
        wrong = "the largest weight would be that of one collector's windows"
        yield config_error("buffer.weight_norm", "buffer", wrong, "batch is allowed", "set it")
    if config.logger.profile is not None:
        wrong = "the updates are in another process"
        yield config_error(
            "logger.profile", config.logger.profile, wrong, "null is allowed", serial
        )
    policy = config.policy
    kept = isinstance(policy, SwitchedConfig) and policy.noisy is not None
    if c.inference == "central" and kept and policy.noisy_resample == "chunk":  # type: ignore[attr-defined]
        wrong = "policy.noisy_resample=chunk keeps the noise of a chunk in its collector"
        fix = "set policy.noisy_resample=step"
        yield config_error("pipeline.inference", "central", wrong, "local is allowed", fix)


def _capacity(config: Config, c: RayConfig, window: Window | None) -> Iterator[ConfigError]:
    """Yield the error of a replay that is too small for so many collectors."""
    if window is None or config.policy.on_policy:
        return
    columns = c.num_actors * config.collector.num_envs
    least = columns * (window.rows + 1 + config.env.frame_stack)
    if config.buffer.capacity < least:
        wrong = f"each of {columns} environments needs the rows of a window, {least} in all"
        fix = f"set buffer.capacity={least}, or use fewer collectors"
        allowed = f"at least {least} is allowed"
        yield config_error("buffer.capacity", config.buffer.capacity, wrong, allowed, fix)


def _address(c: RayConfig) -> Iterator[ConfigError]:
    """Yield the errors of ``pipeline.address``."""
    if c.address is None:
        return
    host = c.address.rpartition(":")[0].strip("[]")
    if c.address != "auto" and (not host or "://" in c.address):
        wrong = "is no host:port of a cluster's head"
        fix = "run rlrun on a node of the cluster, or leave it out for a Ray of its own"
        yield config_error("pipeline.address", c.address, wrong, "host:port or auto", fix)
    elif not is_loopback(c.address) and not has_token():
        wrong = "anyone who reaches an open cluster can run code on it"
        fix = "start it with RAY_AUTH_MODE=token and set RAY_AUTH_MODE and RAY_AUTH_TOKEN here too"
        allowed = "a cluster that asks for a token, or one on this machine, is allowed"
        yield config_error("pipeline.address", c.address, wrong, allowed, fix)


def is_loopback(address: str) -> bool:
    """Return whether ``host:port`` is on this machine; ``auto`` is, without RAY_ADDRESS."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "localhost:0")
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def has_token() -> bool:
    """Return whether Ray would send a token: RAY_AUTH_MODE=token with a token in its places."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return False
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    return Path(path).expanduser().is_file()


def require_ray(key: str = "pipeline", value: str = "ray") -> None:
    """Raise ResourceError unless the packages of the extra ``ray`` are installed."""
    missing = [name for name in ("ray", "psutil") if find_spec(name) is None]
    if missing:
        raise ResourceError(
            f"{key} = {value}: the package {missing[0]} is missing; it comes with the extra ray; "
            f"pip install {extra('ray')}"
        )


def require_head(address: str | None, key: str = "pipeline.address") -> None:
    """Raise ResourceError unless the head of a Ray cluster answers at ``address``, host:port.

    Ray itself tries for minutes, and prints lines of its own; so it tries in another process.
    """
    if address is None or address in _answered:
        return
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            given = host.strip("[]"), int(port)
            socket.create_connection(given, timeout=CONNECT_SECONDS).close()
        asked = [sys.executable, "-P", "-c", _ASK, address, str(ANSWER_SECONDS), *sys.path]
        done = subprocess.run(
            asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=IMPORT_SECONDS,
            check=False, start_new_session=True,
        )  # fmt: skip
        if done.returncode == -signal.SIGALRM:
            raise OSError(f"none within {ANSWER_SECONDS:g} s")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended"]
            raise OSError(lines[-1][:300])
    except subprocess.TimeoutExpired as e:
        raise no_cluster(key, address, f"none within {IMPORT_SECONDS:g} s") from e
    except (OSError, ValueError, OverflowError) as e:
        raise no_cluster(key, address, str(e)) from e
    _answered.add(address)


_answered: set[str] = set()  # addresses of heads that answered this process
_ASK = """import signal, sys
address, seconds, sys.path[:] = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
try:
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient
except ImportError:  # private parts, which may change
    sys.exit()
signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever it waits for
signal.setitimer(signal.ITIMER_REAL, seconds)
found = canonicalize_bootstrap_address(address)
if found is None:
    sys.exit("no Ray runs on this machine")
GcsClient(address=found)
"""


def no_cluster(key: str, address: str, text: str) -> ResourceError:
    """Return the error of a cluster that does not answer."""
    return ResourceError(
        f"{key} = {address}: no Ray cluster answers ({text}); host:port of a running head of the "
        "same Ray and Python version is allowed; start one with `ray start --head`, or leave it out"
    )
