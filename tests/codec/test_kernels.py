"""Compiled kernels and their numpy versions are equal, and their inverses restore the words."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.codec import kernels, narrow
from rlrun.jit import COMPILED
from tests.codec import samples

DTYPES = [np.uint8, np.uint16, np.uint32, np.uint64]
ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(not COMPILED, reason="numba is not installed")


def words(dtype, n, seed):
    rng = np.random.default_rng(seed)
    wide = rng.integers(0, 1 << 63, n, np.uint64) * np.uint64(2) + np.uint64(1)
    return (wide >> rng.integers(0, 64, n).astype(np.uint64)).astype(dtype)


def read_only(planes):
    planes.flags.writeable = False
    return tuple(planes)


@compiled
@pytest.mark.parametrize("n", [0, 1, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_and_vectorised_are_equal(dtype, n, monkeypatch) -> None:
    now, base, second = (words(dtype, n, seed) for seed in range(3))

    def everything():
        found = [kernels.bit_lengths(now)]
        for predictor in (kernels.NONE, kernels.SUB, kernels.SUB2):
            residuals = kernels.residuals(now, base, second, predictor)
            back = residuals.copy()
            kernels.restore(back, base, second, predictor)
            assert np.array_equal(back, now)
            found += [residuals, kernels.split_planes(residuals)]
            back[:] = 0
            kernels.join_planes(read_only(found[-1]), base, second, predictor, back)
            assert np.array_equal(back, now)
            if n:
                found.append(kernels.byte_counts(residuals))
        return found

    fast = everything()
    monkeypatch.setattr(kernels, "COMPILED", False)
    for a, b in zip(fast, everything(), strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bit_lengths(dtype) -> None:
    top = 8 * np.dtype(dtype).itemsize
    edges = [0, *(v for k in range(top) for v in ((1 << k), (1 << k + 1) - 1))]
    expected = [v.bit_length() for v in edges]
    assert kernels.bit_lengths(np.array(edges, dtype)).tolist() == expected
    assert kernels.bit_lengths_vectorised(np.array(edges, dtype)).tolist() == expected


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
@pytest.mark.parametrize("predictor", [kernels.NONE, kernels.SUB, kernels.SUB2])
def test_restore_series_inverts_series_residuals(rows: int, predictor: int) -> None:
    steps = words(np.uint16, rows * 4, 5).reshape(rows, 4)
    residuals = kernels.series_residuals(steps, predictor)
    assert np.array_equal(kernels.restore_series(residuals, rows, predictor), steps)


def test_second_differences_of_a_line_are_zero() -> None:
    """x = 7 + 3t: 7, the zigzag code 6 of 3, then zeros."""
    line = (7 + 3 * np.arange(6, dtype=np.uint32))[:, None]
    assert kernels.series_residuals(line, kernels.SUB2).tolist() == [7, 6, 0, 0, 0, 0]


@compiled
def test_compiled_and_vectorised_narrowing_are_equal() -> None:
    """Every special float64 word alone, and all those of float32 widened."""
    for word in samples.special_words(samples.KIND["float64"]):
        one = np.array([word])
        a, b = narrow.as_float32(one), narrow.float32_vectorised(one)
        assert (a is None) == (b is None), hex(word)
        assert a is None or np.array_equal(a, b)
    for word in samples.special_words(samples.KIND["float32"]):
        wide = narrow.widen(np.array([word]), samples.KIND["float32"], samples.KIND["float64"])
        quiet = 0x7FC00001 if word == 0x7F800001 else word  # a signalling NaN is made quiet
        thin = narrow.as_float32(wide)
        assert thin is not None
        assert thin[0] == quiet
    assert narrow.as_float32(np.array([0x7FF << 52 | 1 << 29], np.uint64)) is None


@compiled
def test_same_bytes_without_numba() -> None:
    """Frames of all coders, kinds and forms, written in a process without numba."""
    code = (
        "from tests.codec.everything import digest; from rlrun.jit import COMPILED;"
        "assert not COMPILED; print(digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "RLRUN_NUMBA": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from tests.codec.everything import digest

    assert done.stdout.strip() == digest()
