"""Durable and verified files: fsync, atomic replacement, SHA-256, sealed JSON."""

import fcntl
import hashlib
import json
import logging
import os
import platform
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import yaml

from rlrun.errors import CheckpointError, ConfigError, LockedError, StorageError, storage_errors
from rlrun.schema.spelling import nearest

_logger = logging.getLogger(__name__)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and fsync it. Raises: OSError."""
    with open(path, "wb", opener=no_follow) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises: OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old or the new content, even after a crash.

    Raises: OSError.
    """
    temporary = path.with_name(f".tmp_{path.name}")
    try:
        write_file(temporary, content)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk needs the space
        raise
    os.rename(temporary, path)
    fsync_directory(path.parent)


def sha256_file(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 (hex) of a file, or of its first ``size`` bytes. Raises: OSError."""
    with path.open("rb") as file:
        if size is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        while chunk := file.read(min(1 << 20, size)):
            digest.update(chunk)
            size -= len(chunk)
        return digest.hexdigest()


def file_problem(path: Path, expected: Mapping[str, Any], *, grown: bool = False) -> str | None:
    """Return how a file differs from its expected size ``bytes`` and hash ``sha256``, or None.

    ``grown``: the file only needs to begin with these bytes.

    Raises: OSError.
    """
    if path.is_symlink() or not path.is_file():
        return "is missing" if not os.path.lexists(path) else "is not a regular file"
    size, wanted = path.stat().st_size, expected["bytes"]
    if size < wanted or (size > wanted and not grown):
        return f"has {size} bytes, not {wanted}{' or more' if grown else ''}"
    if sha256_file(path, wanted if grown else None) != expected["sha256"]:
        return f"is damaged (the sha256 of its {wanted} bytes is wrong)"
    return None


def seal(fields: dict[str, Any]) -> bytes:
    """Return the fields as JSON with the SHA-256 of the rest as the last key."""
    text = json.dumps(fields, indent=1, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    rest = f"{text[:-2]}," if fields else "{"  # without the last line, its bracket
    return f'{rest}\n "sha256": "{digest}"\n}}\n'.encode()


def unseal(content: bytes) -> dict[str, Any]:
    """Return the fields of sealed JSON. Raises: ValueError unless ``seal`` returns ``content``."""
    try:
        fields: dict[str, Any] = json.loads(content)
        fields.pop("sha256")
        intact = seal(fields) == content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError("its json description is damaged")
    return fields


MAX_ENTRIES = 200_000  # most files of a run directory
MAX_TEXT = 2**26  # most bytes of a json file
MAX_READ = 2**32  # most bytes of a file read into memory
MAX_LINE = 2**20  # most bytes of a record


def require_regular_files(run_dir: Path) -> None:
    """Raise ConfigError unless everything below ``run_dir`` is a regular file or a directory.

    A link could lead a write of ``resume`` to any file of the user, and reading a pipe never ends.
    """
    count, directories = 0, [os.fspath(run_dir)]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                count += 1
                try:
                    mode = entry.stat(follow_symlinks=False).st_mode
                except FileNotFoundError:  # an active run renames and removes files
                    continue
                if stat.S_ISDIR(mode):
                    directories.append(entry.path)
                elif not stat.S_ISREG(mode) or count > MAX_ENTRIES:
                    raise _refused(run_dir, Path(entry.path), mode)


def _refused(run_dir: Path, path: Path, mode: int) -> ConfigError:
    kind = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    wrong = f"{path.relative_to(run_dir)} is {kind.get(stat.S_IFMT(mode), 'a device')}"
    if stat.S_ISREG(mode):
        wrong = f"it holds more than {MAX_ENTRIES} files"
    text = "regular files and directories are allowed; replace it by a copy of its target"
    return ConfigError(f"RUN_DIR = {run_dir}: {wrong}; {text}", key="RUN_DIR")


def no_follow(path: str, flags: int) -> int:
    """Open a file without following a link: an ``opener`` for ``open``. Raises: OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def read_file(path: Path, most: int = MAX_TEXT) -> bytes:
    """Return the content of a regular file. Raises: OSError; ValueError for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if status.st_size > most:
            raise ValueError(f"{path.name} has {status.st_size} bytes, at most {most} are allowed")
        return file.read()


def member(directory: Path, name: object) -> Path:
    """Return the path of the file ``name`` of a manifest, inside ``directory``.

    Raises: ValueError if the name leads elsewhere or through a link.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    long = any(len(os.fsencode(part)) > 255 for part in parts)
    if long or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{str(name)[:80]!r} is not the name of a file in the directory")
    path = directory
    for part in parts:
        path = path / part
        if os.path.islink(path):  # False for an invalid name
            raise ValueError(f"{name} is a link")
    return path


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends.

    Raises: OSError; ValueError for a line that is too long.
    """
    with open(path, "rb", opener=no_follow) as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE:
                raise ValueError(f"line {number} of {path.name} has {MAX_LINE} bytes or more")
            yield line


RECORD = "run.json"
CONFIG = "config.yaml"
TEXTS = (CONFIG, "overrides.yaml")
CARD, CARD_WEIGHTS = "model.json", "model.safetensors"  # of an exported agent


def is_card(directory: Path) -> bool:
    """Return whether a directory is an exported agent (``rlrun export card``)."""
    return os.path.lexists(directory / CARD)


def hashes(run_dir: Path) -> dict[str, list[str]]:
    """Return the SHA-256 (hex) of the existing files of ``TEXTS``, by name."""
    return {name: [_sha256(run_dir / name)] for name in TEXTS if (run_dir / name).exists()}


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def read_record(run_dir: Path) -> dict[str, Any]:
    """Return the fields of run.json.

    Raises: ConfigError if there is none, CheckpointError if it is damaged.
    """
    return _read_sealed(run_dir / RECORD)


def read_card(directory: Path) -> dict[str, Any]:
    """Return the description of an exported agent.

    Raises: ConfigError if there is none, CheckpointError if it is damaged.
    """
    meta = _read_sealed(directory / CARD).get("meta")
    return meta if isinstance(meta, dict) else {}


def typed_texts(run_dir: Path) -> list[str]:
    """Return the overrides that a run was started with, empty if they cannot be read."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        lines = yaml.safe_load(read_file(run_dir / TEXTS[1]))
        return [str(line) for line in lines] if isinstance(lines, list) else []
    return []


def _read_sealed(path: Path) -> dict[str, Any]:
    try:
        return unseal(read_file(path))
    except OSError as e:
        raise ConfigError(
            f"{path}: cannot be read ({e.strerror}); a run directory of rlrun is required; give "
            f"the directory that holds {path.name}"
        ) from e
    except (ValueError, RecursionError) as e:
        raise CheckpointError(
            f"{path}: is damaged ({e}); it must be as rlrun wrote it; restore it from a copy"
        ) from e


def check_texts(run_dir: Path) -> None:
    """Raise CheckpointError unless run.json and the files whose hashes it holds are intact.

    A run that was killed before it wrote run.json has nothing to compare with.
    """
    problems = []
    if is_card(run_dir):
        problems = text_problems(run_dir, read_card(run_dir), CARD)
    elif (run_dir / RECORD).exists():
        problems = text_problems(run_dir, read_record(run_dir))
    if problems:
        raise CheckpointError(
            f"{run_dir}/{problems[0]}; a config is changed with KEY=VALUE on the command line of "
            "resume; restore the file from a copy"
        )


def text_problems(run_dir: Path, record: dict[str, Any], source: str = RECORD) -> list[str]:
    """Return the problems of the files whose hashes run.json holds."""
    problems, files = [], record.get("files")
    if not isinstance(files, dict) or not all(isinstance(x, list) for x in files.values()):
        return [f"{source}: has no hashes of files"]
    for name, allowed in files.items():
        try:
            if name not in TEXTS:
                problems.append(f"{source}: names another file")
            elif _sha256(run_dir / name) not in allowed:
                problems.append(f"{name}: is damaged or was edited (its sha256 is not in {source})")
        except (OSError, ValueError) as e:
            problems.append(f"{name}: cannot be read ({e})")
    return problems


LOCK = ".lock"

_held: dict[Path, tuple[int, int]] = {}  # run directory -> handles of its lock and of itself


def _close_in_child() -> None:
    """Close a forked worker's copies, so that the lock ends with the process that acquired it."""
    for handles in _held.values():
        for handle in handles:
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Lock the run directory for this process within the block.

    The operating system releases the lock when the process ends.

    Raises: LockedError if another process holds the lock, StorageError if the lock file cannot be
    made.
    """
    path = run_dir / LOCK
    need = "the run directory must be writable; fix its permissions, or choose another with "
    with storage_errors(f"{path}:", f"{need}run.dir=PATH", "cannot be made"):
        directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError:
            os.close(directory)
            raise
    earlier, _held[run_dir] = _held.get(run_dir), (handle, directory)
    try:
        _acquire(handle, path)
        yield
    finally:
        if _held.get(run_dir) == (handle, directory):  # a forked child has closed its copies
            _held.pop(run_dir)
            os.close(handle)  # releases the lock
            os.close(directory)
            if earlier is not None:  # another block of this process holds it
                _held[run_dir] = earlier


def is_in_use(run_dir: Path) -> bool:
    """Return whether another process holds the lock of a run directory, as far as can be seen."""
    try:
        handle = os.open(run_dir / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as e:
        return isinstance(e, BlockingIOError)
    finally:
        os.close(handle)


def require_in_place(run_dir: Path) -> None:
    """Raise StorageError if a directory that this process locked was renamed or removed.

    Writing to its path would make another directory or change another run.
    """
    if run_dir not in _held:
        return
    locked = os.fstat(_held[run_dir][1])
    try:
        present = os.stat(run_dir)
        moved = (present.st_dev, present.st_ino) != (locked.st_dev, locked.st_ino)
    except OSError:
        moved = True
    if moved:
        raise StorageError(
            f"{run_dir}: the run directory was renamed or removed while the run was writing it; it "
            "must stay in place; move it back, then rlrun resume it"
        )


def _acquire(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        raise LockedError(
            f"{path.parent}: in use by {holder}; one process at a time may use a run directory; "
            "wait for it to end, or stop it"
        ) from None
    except OSError as e:  # some network file systems have no locks
        text = "%s: cannot be locked (%s); continuing without a lock"
        _logger.warning(text, path.parent, e.strerror)
        return
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {platform.node()}\n".encode(), 0)


def require_run(run_dir: Path, *, card: bool = False) -> None:
    """Raise ConfigError unless ``run_dir`` is a run directory, or with ``card`` an agent."""
    if is_card(run_dir) and not card:
        text = "is an exported agent; the run directory that it came from is allowed; an agent is "
        text += "for rlrun eval, rlrun play, rlrun verify, rlrun export policy and rlrun.load"
        raise ConfigError(f"RUN_DIR = {run_dir}: {text}", key="RUN_DIR")
    if os.path.isfile(run_dir / CONFIG):  # False for names that are too long
        return
    what, fix = "no such directory", "run directories are under outputs/"
    beside = [path.parent.name for path in run_dir.parent.glob(f"*/{CONFIG}")]
    if close := nearest(run_dir.name, beside, 1):
        fix = f"did you mean {shlex.quote(str(run_dir.parent / close[0]))}?"
    if os.path.isdir(run_dir):
        what = "is not a run directory"
        inside = sorted(path.parent for path in run_dir.glob(f"*/{CONFIG}"))
        if any((run_dir / name).is_file() for name in ("sweep.json", "search.json")):
            what = "is the directory of a sweep, not of a run"
            fix = f"its table: rlrun report {shlex.quote(str(run_dir))}"
        if inside:
            more = "" if "sweep" not in what else f"; {fix}"
            fix = f"name one of the {len(inside)} in it, e.g. {shlex.quote(str(inside[0]))}{more}"
    raise ConfigError(
        f"RUN_DIR = {run_dir}: {what}; a directory with a config.yaml is allowed; {fix}",
        key="RUN_DIR",
    )


LOG = "rlrun.log"
_FORMAT = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"  # Hydra's


@contextmanager
def closed_log(run_dir: Path, *, own_process: bool) -> Iterator[None]:
    """Close the run's log after the block, because later records of this process are not the run's.

    ``own_process``: False in a user's process, whose handlers of logging stay.
    """
    try:
        with nullcontext() if own_process else added_log(run_dir):
            yield
    finally:
        for handler in logging.getLogger().handlers[:]:
            if _directory(handler) == run_dir:
                _close(handler)


@contextmanager
def added_log(run_dir: Path) -> Iterator[None]:
    """Also write this process's records to the run's log.

    For a resume, and for a user's process, whose handlers the logging of Hydra would close. If the
    process has no handler, warnings are shown on stderr.
    """
    root, logger = logging.getLogger(), logging.getLogger("rlrun")
    asked = any(_directory(handler) == run_dir for handler in root.handlers)  # hydra/job_logging=…
    added: list[logging.Handler] = [] if asked else [logging.FileHandler(run_dir / LOG)]
    if not root.handlers:
        added.append(logging.StreamHandler())
        added[-1].setLevel(logging.WARNING)
    level = logger.level
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    for handler in added:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in added:
            _close(handler)


def _directory(handler: logging.Handler) -> Path | None:
    """Return the directory of the file that a handler writes."""
    return Path(handler.baseFilename).parent if isinstance(handler, logging.FileHandler) else None


def _close(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    with suppress(OSError):  # a full disk
        handler.close()
