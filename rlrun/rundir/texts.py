"""run.json, and the hashes in it of the files that say what was run. Torch-free."""

import hashlib
from pathlib import Path
from typing import Any

from rlrun.errors import CheckpointError, ConfigError
from rlrun.rundir.durable import unseal
from rlrun.rundir.inert import read_file

RECORD = "run.json"
CONFIG = "config.yaml"
TEXTS = (CONFIG, "overrides.yaml")


def hashes(run_dir: Path) -> dict[str, list[str]]:
    """Return the SHA-256 (hex) of the files of ``TEXTS`` that there are, by name."""
    return {name: [_sha256(run_dir / name)] for name in TEXTS if (run_dir / name).exists()}


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def read_record(run_dir: Path) -> dict[str, Any]:
    """Return the fields of run.json.

    Raises: ConfigError when there is none, CheckpointError when it is damaged.
    """
    path = run_dir / RECORD
    try:
        return unseal(read_file(path))
    except OSError as e:
        raise ConfigError(
            f"{path}: cannot be read ({e.strerror}); a run directory of rlrun is required; give "
            "the directory that holds run.json"
        ) from e
    except (ValueError, RecursionError) as e:
        raise CheckpointError(
            f"{path}: is damaged ({e}); it must be as rlrun wrote it; restore it from a copy"
        ) from e


def check_texts(run_dir: Path) -> None:
    """Raise CheckpointError unless run.json and the files whose hashes it holds are intact.

    A run that was killed before it wrote run.json has nothing to compare with.
    """
    if not (run_dir / RECORD).exists():
        return
    problem = next(iter(text_problems(run_dir, read_record(run_dir))), None)
    if problem is not None:
        raise CheckpointError(
            f"{run_dir}/{problem}; a config is changed with KEY=VALUE on the command line of "
            "resume; restore the file from a copy"
        )


def text_problems(run_dir: Path, record: dict[str, Any]) -> list[str]:
    """Return what is wrong with the files whose hashes run.json holds."""
    found, files = [], record.get("files")
    if not isinstance(files, dict) or not all(isinstance(x, list) for x in files.values()):
        return [f"{RECORD}: has no hashes of files"]
    for name, allowed in files.items():
        if name not in TEXTS:
            found.append(f"{RECORD}: names another file")
            continue
        try:
            if _sha256(run_dir / name) not in allowed:
                found.append(f"{name}: is damaged or was edited (its sha256 is not in {RECORD})")
        except (OSError, ValueError) as e:
            found.append(f"{name}: cannot be read ({e})")
    return found
