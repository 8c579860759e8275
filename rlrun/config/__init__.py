"""From a command line to the frozen dataclasses of ``rlrun.schema``. Does not import torch.

compose      Hydra: yaml files and overrides -> a composed config
reader       composed config -> dataclasses, strictly
rules        settings that do not fit together, a row per error
checks       checks across keys, of this machine, and of typed keys that would change nothing
config_errors  one line for every error, including Hydra's
hydra_keys   which keys of Hydra a file may set; Hydra's state in a user's program
stored       the config of a run directory, for eval, resume and export
directories  run and sweep directories that no two runs share
"""

from rlrun.config.checks import check, read_checked
from rlrun.config.compose import Composer, read_composed, to_yaml
from rlrun.config.stored import load, published

__all__ = ["Composer", "check", "load", "published", "read_checked", "read_composed", "to_yaml"]
