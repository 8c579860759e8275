"""The version of rlrun, the commit it was made from, and the torch that is installed.

Nothing slow is imported: ``rlrun --version`` answers in 0.1 s. cli/build_commands.py runs it.
"""

import os
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent
COMMIT = "commit.txt"  # beside this file in wheels and sdists
GIT_SECONDS = 2.0
_OF_A_REPOSITORY = "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"
_COMMIT = "# branch.oid "  # begins git's first line
_NO_COMMIT = f"{_COMMIT}(initial)"
_STATUS = "status", "--porcelain=v2", "--branch"
_begun: list["subprocess.Popen[str] | None"] = []
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
    with suppress(subprocess.TimeoutExpired):
        return _answer(_ask(directory, *words))
    return None


def _ask(directory: Path, *words: str) -> "subprocess.Popen[str] | None":
    env = {name: text for name, text in os.environ.items() if name not in _OF_A_REPOSITORY}
    with suppress(OSError):
        return subprocess.Popen(
            ["git", "-C", str(directory), *words], stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, errors="replace",
            env={**env, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    return None


def _answer(asked: "subprocess.Popen[str] | None") -> str | None:
    """Wait for an answer. Raises: TimeoutExpired."""
    if asked is None:
        return None
    with asked:
        try:
            text = asked.communicate(timeout=GIT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            asked.kill()
            raise
    return text if asked.returncode == 0 else None


def begin_git_state() -> None:
    """Ask git about rlrun's repository, so that ``git_state`` has not to wait for the answer."""
    if not (_begun or _package_status.cache_info().currsize):
        _begun.append(_ask(PACKAGE, *_STATUS))


def end_git_state() -> None:
    """End the question that ``begin_git_state`` asked, if nobody needed the answer."""
    while _begun:
        if (asked := _begun.pop()) is not None:
            asked.kill()
            asked.communicate()


@cache
def _package_status() -> str | None:
    """Return git's answer about the code that this process has imported. Raises: TimeoutExpired."""
    return _answer(_begun.pop() if _begun else _ask(PACKAGE, *_STATUS))


def git_state() -> dict[str, str | bool] | None:
    """Return commit and dirty flag of rlrun's repository, else of the working directory's.

    None if neither is in a repository, or git is missing or slow.
    """
    for asks_package in (True, False):
        try:
            text = _package_status() if asks_package else git(Path.cwd(), *_STATUS)
        except subprocess.TimeoutExpired:
            return None
        commit, *lines = text.splitlines() if text else [_NO_COMMIT]
        if commit != _NO_COMMIT:
            dirty = any(not line.startswith("#") for line in lines)
            return {"commit": commit.removeprefix(_COMMIT), "dirty": dirty}
    return None


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
