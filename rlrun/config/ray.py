"""Requirements of ``pipeline=ray`` on this machine and on a cluster. Does not import torch."""

import os
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

from rlrun.errors import no_cluster

PACKAGES = "ray", "psutil"  # of the extra ray
CONNECT_SECONDS = 1.0  # for a cluster's head to accept a connection
ANSWER_SECONDS = 6.0  # for the head to answer Ray
IMPORT_SECONDS = 60.0  # for importing Ray's client on a busy machine


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
    """Return whether Ray would send a token: RAY_AUTH_MODE=token and one in one of its places."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return False
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    return Path(path).expanduser().is_file()


def require_head(address: str | None, key: str = "pipeline.address") -> None:
    """Raise ResourceError unless the head of a Ray cluster answers at ``address``, host:port.

    Ray itself tries for minutes and prints its own lines, so another process tries.
    """
    if address is None or address in _answered:
        return
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            endpoint = host.strip("[]"), int(port)
            socket.create_connection(endpoint, timeout=CONNECT_SECONDS).close()
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
signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
signal.setitimer(signal.ITIMER_REAL, seconds)
found = canonicalize_bootstrap_address(address)
if found is None:
    sys.exit("no Ray runs on this machine")
GcsClient(address=found)
"""
