"""The configs under test: every conf/env preset, and small configs written down here."""

from dataclasses import replace
from typing import Any

import yaml

from rlrun.config.reader import read_dataclass
from rlrun.schema import WRAPPER_CONFIGS, EnvConfig
from tests.installed import FOLDER, PRESETS, needs

__all__ = ["FOLDER", "NAMES", "OWN", "config_of", "needs_envpool", "preset", "wrapper"]

NAMES = PRESETS
needs_envpool = needs("envpool")
OWN = ["counter", "cartpole_novel", "repeat_previous", "tmaze", "bandit", "identity", "bitflip"]
OWN += ["battleship", "minesweeper", "chain", "bandit_continuous", "tracking"]
OWN += ["count_recall", "position_only_cartpole", "multiarmed_bandit"]
