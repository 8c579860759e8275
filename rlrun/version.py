"""The version of rlrun, the commit it was made from, and the torch that is installed.

Nothing slow is imported: ``rlrun --version`` answers in 0.1 s. cli/build_commands.py runs it.
"""

import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

COMMIT = "commit.txt"  # beside this file in wheels and sdists
GIT_SECONDS = 2.0
_OF_A_REPOSITORY = "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"
_PACKAGES = {"numpy": "numpy", "gymnasium": "gymnasium", "hydra": "hydra-core"}


def commit(root: Path) -> str | None:
    """Return the commit of the checkout ``root``, or the one that a build of it recorded.

    ``-dirty`` is appended if files were changed. None: unknown.
    """
    if (root / ".git").exists():
        names = ("describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")
        return (git(root, *names) or "").strip() or None
    try:
        return (root / "rlrun" / COMMIT).read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


def git(directory: Path, *words: str) -> str | None:
    """Return git's answer in ``directory``; None: there is none, no git, or it is slow."""
    env = {name: text for name, text in os.environ.items() if name not in _OF_A_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *words], capture_output=True, text=True, errors="replace",
            timeout=GIT_SECONDS, env={**env, "GIT_OPTIONAL_LOCKS": "0"}, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def torch_version() -> str | None:
    """Return the version of the installed torch with its build, without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    except OSError:
        return None
    match = re.search(r"^__version__ = ['\"](.+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def package_versions() -> dict[str, str | None]:
    """Return the versions of Python, rlrun and its numerical packages; None: not installed."""
    from rlrun import __version__

    versions = {"python": platform.python_version(), "rlrun": __version__, "torch": torch_version()}
    for name, package in _PACKAGES.items():
        versions[name] = None
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(package)
    return versions


def rlrun_version() -> str:
    """Return ``0.2.0, commit 10c4700e2e``, or the version alone if the commit is unknown."""
    from rlrun import __version__

    made_from = commit(Path(__file__).parents[1])
    return f"{__version__}, commit {made_from}" if made_from else __version__
