"""Running compiled loops in Python: only the interpreter sees indices out of bounds."""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest


@contextmanager
def without_numba(package: ModuleType, *, loops: bool) -> Iterator[None]:
    """Every compiled function of a room is interpreted; ``loops`` False: in its numpy form, which
    RLRUN_NUMBA=0 chooses, where it has one. As compiled, unsigned sums wrap without a warning."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore", invalid="ignore"):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            loaded = importlib.import_module(module.name)
            for name, value in list(vars(loaded).items()):
                python = getattr(value, "py_func", None)
                if python is None:
                    continue
                home = vars(importlib.import_module(python.__module__))
                numpy = home.get(python.__name__.removesuffix("_compiled") + "_vectorised")
                patch.setattr(loaded, name, python if loops or numpy is None else numpy)
            if hasattr(loaded, "COMPILED"):
                patch.setattr(loaded, "COMPILED", loops)
        yield
