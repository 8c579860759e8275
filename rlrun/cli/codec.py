"""``rlrun codec bench``: checks its arguments without torch; codec_bench measures."""

from argparse import Namespace
from importlib.util import find_spec

from rlrun.errors import ResourceError, require_new_file


def bench(args: Namespace) -> int:
    """Print a table for every series of weights or rows found."""
    if args.plot is not None:
        if find_spec("matplotlib") is None:
            wrong = "drawing needs the package matplotlib, which is missing"
            fix = "the table needs nothing more; pip install 'rlrun[plot]'"
            raise ResourceError(f"--plot = {args.plot}: {wrong}; {fix}")
        require_new_file("--plot", args.plot, (".png", ".svg", ".pdf"), overwrite=True)
    from rlrun.cli.codec_bench import report  # imports torch

    for line in report(args.paths, args.plot):
        print(line, flush=True)
    return 0
