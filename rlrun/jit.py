"""Optional numba: ``jit`` compiles a kernel at its first call and caches the result.

Without numba (or with RLRUN_NUMBA=0) ``jit`` returns the function unchanged: a slow loop with the
same numbers.

Compiled loops index without a test. A number that one of them takes from a file or another process
is checked once, where it enters: exit code 5 from a run directory, 2 or 6 from a dataset.

* ``buffer/kernels.py``, rows and flags: head and first rows of a checkpoint by ``saved.integer``
  and ``saved.check_cutter``, shapes of chunks by ``ChunkValidator``.
* ``buffer/kernels.py``, table of windows: tail, slots and lines of a checkpoint by
  ``saved.check_table``, then ``check()``. Leaves: slots by ``saved.check_priorities`` and
  ``check()``; nodes are computed anew at a load.
* ``kernels/``, torch's gather and one_hot: actions and discrete observations of rows by
  ``functional.recorded.RowSpaces``, called where a ring, a collector or a rollout is loaded, in
  ``dataset/reader.py``, ``dataset/minari.py`` and ``pipeline/overlapped.py``. Kernels check the
  previous actions of end rows themselves.
* ``codec/coders.py``, ``codec/context.py``: bit positions by the kernel, against the payload's
  bits; contexts are at most (bits of a word + 1) 256.
* ``codec/planes.py``: lengths and shapes of bitmaps, planes and bases by ``planes.decode_part``
  and ``stream.decode_content``. Encoders use counts of their own and the bases of one table.
"""

import fcntl
import gc
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

LOCK_SECONDS = 120.0  # for another process that compiles the same function
VARIABLE = "NUMBA_CACHE_DIR"  # read when numba is imported; child processes inherit it


def _writable(path: Path) -> bool:
    """Return whether ``path`` is a writable directory or could be made."""
    existing = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


def _has_cache() -> bool:
    """Return whether numba finds a directory for compiled kernels: rlrun's own, or the user's.

    Without HOME and a passwd entry numba would make ``~/.cache`` in the working directory.
    """
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    known = bool(os.environ.get(VARIABLE)) or _writable(Path(__file__).parent / "__pycache__")
    return known or (user.is_absolute() and _writable(user))


def _private_directory() -> str | None:
    """Return a temporary directory that only this user can write, or None.

    It must be private because numba loads code from it.
    """
    try:
        path = os.path.join(tempfile.gettempdir(), f"rlrun-numba-{os.getuid()}")
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return path if stat.S_ISDIR(status.st_mode) and private else None


COMPILED = os.environ.get("RLRUN_NUMBA", "1") != "0"
_CACHED = True
if COMPILED and not _has_cache():
    if (directory := _private_directory()) is None:
        _CACHED = False
        logging.getLogger(__name__).warning(
            "kernels are compiled anew in every process: no directory keeps them; set %s=DIR",
            VARIABLE,
        )
    else:
        os.environ[VARIABLE] = directory
if COMPILED:
    try:
        import numba
        from numba.core import event
        from numba.core.registry import CPUDispatcher

        config: Any = numba.config
        config.reload_config()  # needed if the user's program has imported numba
        COMPILED = not config.DISABLE_JIT  # NUMBA_DISABLE_JIT=1
    except ImportError:
        COMPILED = False


@cache
def build_tables() -> None:
    """Let numba build its tables, for which the first kernel of every process takes 0.15 s.

    numba looks for scipy's BLAS then, by importing scipy's linear algebra, which takes as long
    again and which no kernel needs. scipy is installed with rlrun, so it is told that it is there.
    """
    with suppress(ImportError, AttributeError):  # not installed, or another version
        from numba.core.registry import cpu_target
        from numba.np import linalg

        look, linalg.ensure_blas = linalg.ensure_blas, lambda: None
        try:
            arraymath: Any = import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = look
        arraymath.ensure_blas = look
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


class Compilations:
    """Compilations of kernels, here or waited for, which take seconds after an installation."""

    begun = ended = 0


compilations = Compilations()
if COMPILED:

    class _Listener(event.Listener):
        """Counts compilations, and lets none be interrupted by searches for garbage.

        A compilation makes so many objects that these take an eighth of its time.
        """

        depth, collects = 0, True

        def on_start(self, event: object) -> None:
            compilations.begun += 1
            if not self.depth:
                self.collects = gc.isenabled()
                gc.disable()
            self.depth += 1

        def on_end(self, event: object) -> None:
            compilations.ended += 1
            self.depth -= 1
            if self.collects and not self.depth:
                gc.enable()

    register: Any = event.register
    register("numba:compile", _Listener())

    class _Inner(CPUDispatcher):
        def __call__(self, *args: Any) -> None:
            raise TypeError(f"kernels alone call {self.py_func.__name__}; py_func is its source")


def jit(function: F) -> F:
    """Compile ``function`` with numba if it is installed (no fast math: sums keep their order)."""
    return _compiled(function, "python")


def jit_ieee(function: F) -> F:
    """Compile like ``jit`` with IEEE division: x / 0 is inf or NaN and raises nothing.

    A loop that must raise cannot be vectorised.
    """
    return _compiled(function, "numpy")


def jit_sums(function: F) -> F:
    """Compile like ``jit_ieee``; sums may be reordered and products fused with sums.

    Only then can the sum of an array be vectorised. NaN and inf keep their meaning.
    """
    return _compiled(function, "numpy", {"contract", "reassoc", "nsz"})


def _compiled(
    function: F, error_model: Literal["python", "numpy"], fastmath: set[str] | bool = False
) -> F:
    if not COMPILED:
        return function
    options: Any = {"nogil": True, "error_model": error_model, "fastmath": fastmath}
    options["no_cfunc_wrapper"] = True  # no C code calls them; a twelfth of the time to compile
    try:
        compiled: Any = numba.njit(cache=_CACHED, **options)(function)
    except RuntimeError:  # no cache directory is writable
        compiled = numba.njit(**options)(function)
    _watch_imported(compiled)
    _compile_in_one_process(compiled)
    return cast(F, compiled)


def inner(kernel: F) -> F:
    """Mark a compiled function that kernels alone call: it gets no entry from Python.

    Entries are a tenth of the time to compile. A call from Python raises TypeError.
    """
    if COMPILED:
        compiled: Any = kernel
        compiled.targetoptions["no_cpython_wrapper"] = True
        compiled.__class__ = _Inner
    return kernel


def leaf(kernel: F) -> F:
    """Mark like ``inner`` a function that makes no array and calls none that does.

    It does not count references to its arrays and to views of them: 15 ns each, more than a row's
    arithmetic often takes. numba refuses to compile a function that makes an array.
    """
    if COMPILED:
        compiled: Any = kernel
        compiled.targetoptions["_nrt"] = False
    return inner(kernel)


def is_kept(compiled: Any) -> bool:
    """Return whether some compilation of a function is in the cache, or cannot be."""
    file = getattr(compiled._cache, "_cache_file", None)
    return file is None or os.path.exists(file._index_path)


def _watch_imported(compiled: Any) -> None:
    """Compile anew after edits of files whose compiled functions the function's file imports.

    numba's cache compares the time and size of the function's own file alone. The imported
    functions' stamps include those of their own imports. Constants of other files are not seen.
    """
    cache_file = getattr(compiled._cache, "_cache_file", None)
    if cache_file is not None:
        module, stamps = compiled.py_func.__module__, set()
        for x in compiled.py_func.__globals__.values():
            if hasattr(x, "py_func") and x.py_func.__module__ != module:
                imported = getattr(x._cache, "_cache_file", None)
                stamps.add(str(getattr(imported, "_source_stamp", None)))
        cache_file._source_stamp = (cache_file._source_stamp, *sorted(stamps))


def _compile_in_one_process(compiled: Any) -> None:
    """Let one process compile a function while others, as of a sweep, wait to load what it saves.

    numba's global lock is held in between, so threads of a process do not wait for each other here.
    """
    cache = compiled._cache
    if not hasattr(cache, "_cache_file"):  # nothing is kept
        return
    load, save, lock = cache.load_overload, cache.save_overload, ExitStack()
    name = f"{compiled.py_func.__module__}.{compiled.py_func.__qualname__}"

    def load_or_begin(signature: Any, target: Any) -> Any:
        build_tables()
        loaded = load(signature, target)
        if loaded is None:
            lock.close()  # of a compilation that failed, or that Ctrl-C ended
            lock.enter_context(_lock(Path(cache.cache_path, f"{name}.lock")))
            loaded = load(signature, target)
            if loaded is not None:
                lock.close()
        return loaded

    def save_and_end(signature: Any, result: Any) -> None:
        with lock:
            save(signature, result)

    cache.load_overload, cache.save_overload = load_or_begin, save_and_end


def _lock(path: Path) -> AbstractContextManager[Any]:
    """Return what holds a lock file until it is closed, after LOCK_SECONDS without the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError:
        return nullcontext()
    deadline = time.monotonic() + LOCK_SECONDS
    compilations.begun += 1
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(0.05)
    compilations.ended += 1
    return file
