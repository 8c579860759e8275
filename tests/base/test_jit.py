"""Where compiled kernels are kept, which are compiled anew, and who waits for whom.

Private: tests cannot be a user without a home, or another user who places files in /tmp; a kernel
that is compiled twice costs seconds alone, a stale one shows where rlrun itself is edited.
"""

import gc
import importlib
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from rlrun import jit


def test_without_a_home_the_cache_is_no_directory_of_that_name(tmp_path, monkeypatch):
    """The installation cannot be written, and the user has neither HOME nor an entry in passwd."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    installed = Path(jit.__file__).parent
    monkeypatch.setattr(jit, "_writable", lambda path: not path.is_relative_to(installed))
    for home, found in (("~", False), (".", False), (str(tmp_path), True)):
        monkeypatch.setattr(os.path, "expanduser", lambda text, home=home: text.replace("~", home))
        assert jit._has_cache() == found, home
    monkeypatch.setenv("NUMBA_CACHE_DIR", "anywhere")
    monkeypatch.setattr(os.path, "expanduser", lambda text: text)
    assert jit._has_cache()
    assert [*tmp_path.iterdir()] == []


def test_numba_that_compiles_nothing_is_not_in_use():
    code = "import rlrun.jit as j; f = lambda: 1; print(j.COMPILED, j.jit(f) is f)"
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    found = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert found == "False True\n"


def test_code_is_read_from_a_private_directory_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(str(jit._private_directory()))
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o700
    assert jit._private_directory() == str(path), "the next process has the same"
    path.chmod(0o770)
    assert jit._private_directory() is None
    path.chmod(0o700)
    other = path.rename(tmp_path / "other")
    path.symlink_to(other)
    assert jit._private_directory() is None
    path.unlink()
    path.write_text("")
    assert jit._private_directory() is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert jit._private_directory() is None


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_searched_for_while_a_kernel_compiles(monkeypatch, collects):
    states = []

    @jit.jit
    def inner(x):
        return x + 1

    @jit.jit
    def outer(x):
        return inner(x) + 1

    for kernel in (inner, outer):
        compile = kernel._compiler.compile

        def seen(*given, compile=compile):
            states.append(gc.isenabled())
            result = compile(*given)
            states.append(gc.isenabled())
            return result

        monkeypatch.setattr(kernel._compiler, "compile", seen)
        monkeypatch.setattr(kernel._cache, "load_overload", lambda *given: None)
        monkeypatch.setattr(kernel._cache, "save_overload", lambda *given: None)
    (gc.enable if collects else gc.disable)()
    try:
        assert outer(1) == 3
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert states == [False] * 4


COMPILES = """
import sys, compiled_once
compiler = compiled_once.f._compiler
compile = compiler.compile
def slow(*given):
    print("compiles", flush=True)
    sys.stdin.readline()
    return compile(*given)
compiler.compile = slow
print(compiled_once.f(1))
"""


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
def test_one_of_several_processes_compiles_and_the_others_load(tmp_path):
    text = "from rlrun.jit import jit\n@jit\ndef f(x):\n    return x + 1\n"
    (tmp_path / "compiled_once.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", COMPILES], env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) for _ in range(2)
    )  # fmt: skip
    done, _, _ = select.select([first.stdout, second.stdout], [], [], 120)
    one, other = (first, second) if done[0] is first.stdout else (second, first)
    assert one.stdout.readline() == "compiles\n"
    with pytest.raises(subprocess.TimeoutExpired):
        other.communicate(timeout=0.5)
    assert one.communicate("\n", timeout=120)[0] == "2\n"
    assert other.communicate(timeout=120)[0] == "2\n"


def test_an_edited_file_is_compiled_anew_for_the_files_that_import_it(tmp_path, monkeypatch):
    """numba's cache alone compares only the file of the function that is called."""
    if not jit.COMPILED:
        pytest.skip("nothing is compiled")
    head = "from rlrun.jit import jit\n"
    (tmp_path / "caller.py").write_text(
        head + "from middle import g\n@jit\ndef f(x):\n    return g(x)\n"
    )
    (tmp_path / "middle.py").write_text(
        head + "from called import h\n@jit\ndef g(x):\n    return h(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for term in ("1", "10"):
        (tmp_path / "called.py").write_text(head + f"@jit\ndef h(x):\n    return x + {term}\n")
        importlib.invalidate_caches()
        found.append(importlib.import_module("caller").f(1))
        for name in ("caller", "middle", "called"):
            monkeypatch.delitem(sys.modules, name)
    assert found == [2, 11]


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
def test_a_kernel_for_kernels_alone_has_no_entry_and_raises_where_python_calls_it():
    """numba alone would end the process."""
    import numba

    @jit.inner
    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return 2 * inner(x)

    assert outer(1) == 4
    entries = ["cpython" in text for f in (outer, inner) for text in f.inspect_llvm().values()]
    assert entries == [True, False]
    with pytest.raises(TypeError):
        inner(1)


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
def test_a_leaf_counts_no_references_and_makes_no_array():
    import numba

    @jit.leaf
    @numba.njit
    def add(x, i):
        x[i] += 1.0

    @jit.leaf
    @numba.njit
    def make(n):
        return np.zeros(n)

    @numba.njit
    def outer(x):
        for i in range(len(x)):
            add(x, i)

    x = np.zeros(3)
    outer(x)
    assert x.tolist() == [1, 1, 1]
    assert "NRT_" not in "".join(add.inspect_llvm().values())
    with pytest.raises(numba.core.errors.NumbaError, match="array"):
        make.compile((numba.int64,))


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
def test_numba_takes_scipys_products_for_granted_and_finds_them_where_they_are_used():
    code = (
        "import sys, numba, numpy as np, rlrun.kernels.layers as layers\n"
        "print(layers.tanh(np.float32(0)), 'scipy.linalg' in sys.modules)\n"
        "print(numba.njit(lambda x: np.linalg.inv(x) @ x)(2 * np.eye(2))[0, 0])"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert found.split() == ["0.0", "False", "1.0"]


@jit.jit
def broken(x):
    return x.missing


@pytest.mark.skipif(not jit.COMPILED, reason="nothing is compiled")
def test_a_failed_compilation_gives_its_lock_back(monkeypatch):
    """As after Ctrl-C in a process that lives on."""
    monkeypatch.setattr(jit, "LOCK_SECONDS", 20.0)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(Exception, match="missing"):
            broken(1.0)
    assert time.monotonic() - began < jit.LOCK_SECONDS
