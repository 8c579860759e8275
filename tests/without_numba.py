"""Running compiled loops in Python: only the interpreter sees indices out of bounds."""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest


@contextmanager
def without_numba(package: ModuleType) -> Iterator[None]:
    """Every compiled function of a room is interpreted; unsigned sums wrap without a warning."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore", invalid="ignore"):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            loaded = importlib.import_module(module.name)
            for name, value in list(vars(loaded).items()):
                if (python := getattr(value, "py_func", None)) is not None:
                    patch.setattr(loaded, name, python)
        yield
