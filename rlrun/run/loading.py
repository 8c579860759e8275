"""Loading torch's library beside imports of Python.

Of the second that ``import torch`` takes, the loader of shared libraries needs a sixth. It does not
hold Python's lock meanwhile, but its own: an import of a compiled module waits until it is done.
"""

import ctypes
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_DEPENDENCIES, _LIBRARY = "libtorch_global_deps.so", "libtorch_cpu.so"
_CUDA = "libtorch_cuda.so"
_begun: list[Thread] = []


def begin_loading_torch() -> Thread | None:
    """Begin to load torch's library as ``import torch`` would, and return the thread that does.

    None: torch is loaded, or it is not a build for the CPU alone on Linux, which finds its
    libraries beside it. ``import torch`` reports what fails.
    """
    spec = None if "torch" in sys.modules or sys.platform != "linux" else find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).parent / "lib"
    paths = directory / _DEPENDENCIES, directory / _LIBRARY
    if (directory / _CUDA).exists() or not all(path.is_file() for path in paths):
        return None
    dlopen = ctypes.CDLL(None).dlopen  # a call of ctypes.CDLL would hold Python's lock
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p

    def load() -> None:
        for path, visible in zip(paths, (os.RTLD_GLOBAL, os.RTLD_LOCAL), strict=True):
            dlopen(os.fsencode(path), os.RTLD_NOW | visible)

    thread = Thread(target=load, name="loading-torch")
    _begun.append(thread)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def is_loading() -> bool:
    """Return whether a library is being loaded: a regular end of the process would wait for it."""
    return any(thread.is_alive() for thread in _begun)
