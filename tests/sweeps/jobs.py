"""Jobs of the tests: functions that a server calls by name, and how tests start them."""

import ctypes
import json
import multiprocessing
import os
import sys
import threading
import time
import weakref
from pathlib import Path

from rlrun.pipeline.stop import stop_on_signals
from rlrun.run.files import lock_run_dir
from tests.waiting import wait_until


def start(pool, path, name, *arguments, threads=None):
    call = f"tests.sweeps.jobs:{name}"
    return pool.submit(call, [*arguments], ["rlrun"], path, path / "log", threads)


def finish(pool, *jobs):
    """The exit codes of jobs, which are waited for."""
    wait_until(lambda: all(job.code is not None for job in jobs), pool)
    return [job.code for job in jobs]


def statuses(sweep):
    return [job["status"] for job in json.loads((sweep / "sweep.json").read_text())["jobs"]]


def succeed():
    print("out")
    print("err", file=sys.stderr)
    return 0


def finalizers():
    """How many would be called at the end of this process."""
    return min(99, sum(x.atexit for x in weakref.finalize._registry))


def exit_with(code):
    sys.exit(code)


def segfault():
    ctypes.string_at(0)
    return 0


def out_of_memory():
    raise MemoryError("4 GB wanted")


def sleep(seconds):
    time.sleep(seconds)
    return 0


def note(path):
    """Append when it began and ended."""
    with Path(path).open("a") as file:
        file.write(f"{time.monotonic()}\n")
    time.sleep(0.05)
    with Path(path).open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return 0


def cores():
    return int(os.environ["RLRUN_CORES"])


def save_slowly(path):
    """Behave as a run: wait for a signal to stop, then save for half a second."""
    with stop_on_signals() as stop:
        Path(path).touch()
        while not stop():
            time.sleep(0.01)
        Path(path).write_text("begins")
        time.sleep(0.5)
        Path(path).write_text("begins, done")
    print(stop.code)
    return int(stop.code or 0)


def save_locked(path):
    """``save_slowly`` in a locked directory, as a run is."""
    with lock_run_dir(Path(path).parent):
        return save_slowly(path)


def ignore_stops(path):
    """Never end by itself, whatever asks it to save."""
    with stop_on_signals():
        Path(path).touch()
        time.sleep(60)
    return 0


def _child(connection):
    connection.send(os.getppid())


def workers():
    """Start a process by multiprocessing's fork server, and a thread that uses torch's."""
    import torch

    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(there,))
    process.start()
    parent = here.recv()
    process.join()
    torch.set_num_threads(2)
    thread = threading.Thread(target=lambda: torch.ones(600, 600) @ torch.ones(600, 600))
    thread.start()
    thread.join()
    return 0 if parent != os.getpid() and process.exitcode == 0 else 1
