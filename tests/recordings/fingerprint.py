"""Short descriptions of arrays that can be compared exactly, or to 1e-5 on another CPU."""

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

TOLERANCE = 1e-5
Fingerprint = tuple[list[int], str, list[float]]  # shape, hash, numbers
VARIABLES = (  # choose other kernels on the same CPU
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME",
    "NUMBA_DISABLE_JIT", "OPENBLAS_CORETYPE",
)  # fmt: skip
PACKAGES = ("torch", "numpy", "numba", "gymnasium")


def machine() -> dict[str, str]:
    """Versions and hardware that the bits depend on besides the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in lines if ":" in x)}
    except OSError:
        cpu = {}
    name = (cpu.get(k, "") for k in ("vendor_id", "cpu family", "model", "model name"))
    flags = " ".join(sorted(cpu.get("flags", platform.machine()).split()))
    found = {
        "cpu": "/".join(name),
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    found |= {package: metadata.version(package) for package in PACKAGES}
    return found | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def fingerprint(x: np.ndarray, entries: int) -> Fingerprint:
    """Shape, hash of the bytes, then sum, L2 norm and ``entries`` entries at fixed indices.

    Numbers have 7 digits. An array of integers has none, it is compared by its hash alone.
    """
    x = np.ascontiguousarray(x)
    head = f"{x.dtype} {list(x.shape)} ".encode()
    digest = hashlib.sha256(head + x.tobytes()).hexdigest()[:10]
    if not np.issubdtype(x.dtype, np.floating):
        return list(x.shape), digest, []
    wide = x.ravel().astype(np.float64)
    chosen = wide[np.linspace(0, x.size - 1, min(entries, x.size)).astype(int)]
    numbers = [wide.sum(), np.sqrt((wide**2).sum()), *chosen]
    return list(x.shape), digest, [float(f"{v:.7g}") for v in numbers]


def close(one: Fingerprint, two: Fingerprint) -> bool:
    """Return whether two arrays are equal to 1e-5; integers: equal."""
    shape, digest, numbers = one
    if (shape, len(numbers)) != (two[0], len(two[2])):
        return False
    if not numbers:
        return digest == two[1]
    a, b = np.array(numbers), np.array(two[2])
    allowed = TOLERANCE * np.maximum(1, np.abs(a))
    allowed[0] = TOLERANCE * max(1.0, a[1], float(np.prod(shape)) ** 0.5)  # a sum of many errors
    return bool((np.abs(a - b) <= allowed).all())


def missing(
    recorded: list[Fingerprint], computed: list[Fingerprint], *, exact: bool
) -> list[Fingerprint]:
    """The recorded arrays that no computed one equals; names and order do not matter."""
    left, out = list(computed), []
    for x in recorded:
        same = (i for i, y in enumerate(left) if (x[1] == y[1] if exact else close(x, y)))
        found = next(same, None)
        if found is None:
            out.append(x)
        else:
            del left[found]
    return out
