"""``rlrun tensorboard``: the viewer on this machine. ``rlrun tensorboard-rebuild``: its files."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlrun.errors import ConfigError, ResourceError, RlrunError, printable

if TYPE_CHECKING:
    from rlrun.run.tensorboard import BoardView

HOST, PORT = "127.0.0.1", 6006
REFRESH = 10.0  # seconds between looks for new runs
_ENDING = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
_START = 60.0  # seconds for TensorBoard to answer


def serve(args: Namespace) -> int:
    """Run the viewer until Ctrl-C."""
    if args.dirs == ["outputs"] and not Path("outputs").exists():
        raise ConfigError("DIR = outputs: no such directory; a directory with runs; give its name")
    from rlrun.run.tensorboard import BoardView

    with _ending(), tempfile.TemporaryDirectory(prefix="rlrun-tensorboard-") as directory:
        view = Path(directory, "runs")
        view.mkdir()
        if args.port is not None and _bound(args.port) is None:
            raise ResourceError(
                f"--port = {args.port}: another program listens there; a free port is needed; "
                "choose another one, or none for one that is free"
            )
        port = args.port or _bound(PORT) or _bound(0)
        if port is None:
            text = "no port is free; one is needed; try again later"
            raise ResourceError(f"rlrun tensorboard: {text}")
        return _serve(BoardView(args.dirs, view), port)


def _serve(view: "BoardView", port: int) -> int:
    """Run the viewer until it ends or a signal comes."""
    address = f"http://{HOST}:{port}/"
    server = _Server(view, address)
    try:
        server.wait()
        runs = f"{len(view.names)} run{'s' if len(view.names) > 1 else ''}"
        print(f"rlrun: TensorBoard shows {runs} at {address} (Ctrl-C ends it)", flush=True)
        while True:
            changed = False
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(REFRESH)
                raise server.failed()
            with suppress(RlrunError, OSError):  # directories may come and go
                changed = view.refresh()
            if changed:
                server.end()
                server.start()
                server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.end()


class _Server:
    """TensorBoard in its own process."""

    def __init__(self, view: "BoardView", address: str) -> None:
        self.log, self.address = view.directory.with_name("log"), address
        self.logdir = str(view.directory)
        title = printable(f"rlrun {' '.join(view.directories)}")
        port = address.rstrip("/").rpartition(":")[2]
        self.line = [
            sys.executable, "-m", "tensorboard.main", "--logdir", self.logdir, "--host", HOST,
            "--port", port, "--window_title", title,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as out:
            options: Any = {"stdout": out, "stderr": out, "start_new_session": True}
            self.process = subprocess.Popen(self.line, **options)

    def wait(self) -> None:
        """Return when it answers. An answer of another program at its port does not count."""
        from http.client import HTTPException  # slow to import

        end = time.monotonic() + _START
        while self.process.poll() is None and time.monotonic() < end:
            with suppress(OSError, ValueError, HTTPException):
                if self._answered() == self.logdir:
                    return
            time.sleep(0.1)
        raise self.failed()

    def _answered(self) -> object:
        """Return the directory that the server shows, or None if it is not TensorBoard."""
        from urllib.request import urlopen  # slow to import

        with urlopen(f"{self.address}data/environment", timeout=5) as answer:
            reply = json.load(answer)
        return reply.get("data_location") if isinstance(reply, dict) else None

    def failed(self) -> ResourceError:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        why = printable(lines[-1])[:300] if lines else f"no answer in {_START:.0f} s"
        text = "a free port and the package tensorboard are needed; choose another --port"
        return ResourceError(f"rlrun tensorboard: it did not start or has ended ({why}); {text}")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def _ending() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, which ends the server and removes its links."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bound(port: int) -> int | None:
    """Return the port, or for 0 one that the system chooses. None: it is not available."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError:
            return None
        return int(s.getsockname()[1])


def rebuild(args: Namespace) -> str:
    """Rebuild the event files of a run. Return the path of the new one."""
    from rlrun.run.tensorboard import rebuild as write

    return str(write(args.run_dir))
