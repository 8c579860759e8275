"""``rlrun codec bench``: checks its arguments without torch; codec_bench measures."""

import os
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
    if missing := [path for path in args.paths if not os.path.exists(path)]:
        raise unreadable(missing[0], "no such file or directory")
    if args.plot is not None:
        if find_spec("matplotlib") is None:
            wrong = "drawing needs the package matplotlib, which is missing"
            fix = "the table needs nothing more; pip install 'rlrun[plot]'"
            raise ResourceError(f"--plot = {args.plot}: {wrong}; {fix}")
        require_new_file("--plot", args.plot, (".png", ".svg", ".pdf"), overwrite=True)
    from rlrun.cli.codec_bench import bench as measured  # torch

    for line in measured(args.paths, args.plot):
        print(line, flush=True)
    return 0
