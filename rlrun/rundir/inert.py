"""Reading a directory that may be a stranger's: regular files below it, of bounded size."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rlrun.errors import CheckpointError, ConfigError

MAX_ENTRIES = 200_000  # files of a run directory
MAX_TEXT = 2**26  # bytes of a json file
MAX_READ = 2**32  # bytes of a file that is read into memory
MAX_LINE = 2**20  # bytes of a record


def require_regular_files(run_dir: Path) -> None:
    """Raise ConfigError unless everything below ``run_dir`` is a regular file or a directory.

    A link could lead a write of ``resume`` to any file of the user, a pipe never ends.

    Raises: also CheckpointError where a file has the name of the directory of the checkpoints.
    """
    count, directories = 0, [os.fspath(run_dir)]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                count += 1
                try:
                    mode = entry.stat(follow_symlinks=False).st_mode
                except FileNotFoundError:  # a run that goes on renames and removes files
                    continue
                if stat.S_ISDIR(mode):
                    directories.append(entry.path)
                elif entry.path == os.path.join(run_dir, "checkpoints") and stat.S_ISREG(mode):
                    raise CheckpointError(
                        f"{entry.path}: is a file; a run has a directory of checkpoints; restore "
                        "it from a copy, or start the run again"
                    )
                elif not stat.S_ISREG(mode) or count > MAX_ENTRIES:
                    raise _refused(run_dir, Path(entry.path), mode)


def _refused(run_dir: Path, path: Path, mode: int) -> ConfigError:
    kind = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    wrong = f"{path.relative_to(run_dir)} is {kind.get(stat.S_IFMT(mode), 'a device')}"
    if stat.S_ISREG(mode):
        wrong = f"it holds more than {MAX_ENTRIES} files"
    text = "regular files and directories are allowed; replace it by what it stands for"
    return ConfigError(f"RUN_DIR = {run_dir}: {wrong}; {text}", key="RUN_DIR")


def no_follow(path: str, flags: int) -> int:
    """``opener`` of ``open`` that refuses a link. Raises: OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def read_file(path: Path, most: int = MAX_TEXT) -> bytes:
    """Return the content of a regular file. Raises: OSError, ValueError for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is no regular file")
        if status.st_size > most:
            raise ValueError(f"{path.name} has {status.st_size} bytes, at most {most} are allowed")
        return file.read()


def member(directory: Path, name: object) -> Path:
    """Return the path of the file ``name`` of a manifest, which lies in ``directory`` or below.

    Raises: ValueError when the name leads elsewhere, or through a link.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    long = any(len(os.fsencode(part)) > 255 for part in parts)
    if long or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{str(name)[:80]!r} is no name of a file in the directory")
    path = directory
    for part in parts:
        path = path / part
        if os.path.islink(path):  # False for a name that no file can have
            raise ValueError(f"{name} is a link")
    return path


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends. Raises: OSError, ValueError for a long one."""
    with open(path, "rb", opener=no_follow) as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE:
                raise ValueError(f"line {number} of {path.name} has {MAX_LINE} bytes or more")
            yield line
