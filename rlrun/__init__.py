"""rlrun: a config-driven experiment runner for recurrent reinforcement learning."""

import sys
from pathlib import Path

__version__ = "0.1.0"

_HERE = Path(__file__).parent
if not (_HERE / "conf").is_dir() and (_HERE.parent / "conf" / "config.yaml").is_file():
    __path__.append(str(_HERE.parent))  # a bare checkout: rlrun.conf is the conf/ beside us

# Hydra finds plugins by scanning the packages called hydra_plugins on sys.path.
_PLUGINS = str(_HERE / "_plugins")
if _PLUGINS not in sys.path:
    sys.path.append(_PLUGINS)
