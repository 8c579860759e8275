"""rlrun: a config-driven experiment runner for recurrent reinforcement learning.

From Python: ``train``, ``resume``, ``load``, ``sweep``, ``report`` and more: rlrun/api/README.md.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.api.agents import evaluate, export_card, export_policy, load, play
    from rlrun.api.run import Run
    from rlrun.api.runs import diff, fork, resume, train, verify
    from rlrun.api.sweeps import compare, report, search, sweep
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

__version__ = "0.2.0"

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
    "compare",
    "diff",
    "evaluate",
    "export_card",
    "export_policy",
    "fork",
    "load",
    "play",
    "report",
    "resume",
    "search",
    "sweep",
    "train",
    "verify",
]

_HERE = Path(__file__).parent
if not (_HERE / "conf").is_dir() and (_HERE.parent / "conf" / "config.yaml").is_file():
    __path__.append(str(_HERE.parent))  # in a checkout rlrun.conf is the sibling conf/

# Hydra finds plugins by scanning the packages called hydra_plugins on sys.path.
_PLUGINS = str(_HERE / "_plugins")
if _PLUGINS not in sys.path:
    sys.path.append(_PLUGINS)

_MODULES = {  # of the names in __all__ that are not errors
    "Agent": "rlrun.run.agent",
    "Run": "rlrun.api.run",
    "compare": "rlrun.api.sweeps",
    "diff": "rlrun.api.runs",
    "evaluate": "rlrun.api.agents",
    "export_card": "rlrun.api.agents",
    "export_policy": "rlrun.api.agents",
    "fork": "rlrun.api.runs",
    "load": "rlrun.api.agents",
    "play": "rlrun.api.agents",
    "report": "rlrun.api.sweeps",
    "resume": "rlrun.api.runs",
    "search": "rlrun.api.sweeps",
    "sweep": "rlrun.api.sweeps",
    "train": "rlrun.api.runs",
    "verify": "rlrun.api.runs",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` on first use, so that ``import rlrun`` alone imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES.get(name, "rlrun.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
