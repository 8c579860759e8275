"""rlrun: a config-driven experiment runner for recurrent reinforcement learning.

From Python: ``train``, ``resume``, ``load``, ``sweep``, ``report``, see rlrun/api/README.md.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.api.agents import load
    from rlrun.api.reporting import report
    from rlrun.api.run import Run
    from rlrun.api.runs import resume, train
    from rlrun.api.sweeps import sweep
    from rlrun.errors import (
        CheckpointError,
        CodecError,
        ConfigError,
        EnvError,
        Interrupted,
        LockedError,
        NumericError,
        ResourceError,
        RlrunError,
        StorageError,
    )
    from rlrun.run.agent import Agent

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "CheckpointError",
    "CodecError",
    "ConfigError",
    "EnvError",
    "Interrupted",
    "LockedError",
    "NumericError",
    "ResourceError",
    "RlrunError",
    "Run",
    "StorageError",
    "load",
    "report",
    "resume",
    "sweep",
    "train",
]

_HERE = Path(__file__).parent
if not (_HERE / "conf").is_dir() and (_HERE.parent / "conf" / "config.yaml").is_file():
    __path__.append(str(_HERE.parent))  # a bare checkout: rlrun.conf is the conf/ beside us

# Hydra finds plugins by scanning the packages called hydra_plugins on sys.path.
_PLUGINS = str(_HERE / "_plugins")
if _PLUGINS not in sys.path:
    sys.path.append(_PLUGINS)

_MODULES = {  # of the names in __all__ that are no errors
    "Agent": "rlrun.run.agent",
    "Run": "rlrun.api.run",
    "load": "rlrun.api.agents",
    "report": "rlrun.api.reporting",
    "resume": "rlrun.api.runs",
    "sweep": "rlrun.api.sweeps",
    "train": "rlrun.api.runs",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` when it is used: ``import rlrun`` alone imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES.get(name, "rlrun.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
