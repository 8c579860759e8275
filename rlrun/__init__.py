"""rlrun: a config-driven experiment runner for recurrent reinforcement learning.

From Python: ``train``, ``resume``, ``load``, ``sweep``, ``report`` and more: rlrun/api/README.md.
"""

import importlib
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

_HOMES = {  # of the names in __all__ that are not errors
    "rlrun.api.agents": "evaluate export_card export_policy load play",
    "rlrun.api.run": "Run",
    "rlrun.api.runs": "diff fork resume train verify",
    "rlrun.api.sweeps": "compare report search sweep",
    "rlrun.run.agent": "Agent",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` on first use, so that ``import rlrun`` alone imports nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
    home = next((m for m, names in _HOMES.items() if name in names.split()), "rlrun.errors")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
