"""``rlrun codec bench``: checks its arguments without torch; codec_bench measures."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from rlrun.errors import ConfigError, ResourceError, require_new_file

READABLE = "a run directory, a dataset directory, or .npy, .npz and .safetensors files"


def unreadable(path: Path, why: str) -> ConfigError:
    """Return the error of a path in which nothing can be measured."""
    return ConfigError(f"FILE = {path}: {why}; {READABLE}; give one of them")


def bench(args: Namespace) -> int:
    """Print a table for every series of weights or rows found."""
    if missing := [path for path in args.paths if not path.exists()]:
        raise unreadable(missing[0], "no such file or directory")
    if args.plot is not None:
        check_plot(args.plot)
    from rlrun.cli.codec_bench import bench as measured  # torch

    for line in measured(args.paths, args.plot):
        print(line, flush=True)
    return 0


def check_plot(path: Path) -> None:
    """Raise ConfigError for a wrong path before anything is measured."""
    if find_spec("matplotlib") is None:
        wrong = "drawing needs the package matplotlib, which is missing"
        raise ResourceError(
            f"--plot = {path}: {wrong}; the table needs nothing more; pip install 'rlrun[plot]'"
        )
    require_new_file("--plot", path, (".png", ".svg", ".pdf"), overwrite=True)
