"""The subcommands of ``rlrun``: parsing and checking of their arguments."""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlrun.cli.list import list_lines
from rlrun.cli.report import report_job_error
from rlrun.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"unrecognized arguments: --(\w[\w.-]*)", message)
        fix = "correct the command"
        if found and self.prog == "rlrun":
            fix = f"options are written {found[1].replace('-', '_')}=VALUE, without dashes"
        raise ConfigError(f"{self.prog}: {message}; see rlrun --help; {fix}")


def list_command(argv: list[str]) -> int:
    parser = Parser(prog="rlrun list", description="Lists policies, environments, experiments.")
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    for line in list(list_lines(parser.parse_args(argv).config_dir)):  # an error comes alone
        print(line)
    return 0


def _is_integer(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15


def _positive(text: str) -> int:
    if not _is_integer(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not an integer >= 1 of at most 15 digits")
    return int(text)


def _weights(text: str) -> str:
    if text not in ("final", "best") and not _is_integer(text):
        raise argparse.ArgumentTypeError(f"{text} is not final, best or a number of env steps")
    return text


def _seed(text: str) -> int:
    if not _is_integer(text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not an integer within [0, 2^32)")
    return int(text)


def eval_command(argv: list[str]) -> int:
    parser = Parser(prog="rlrun eval", description="Scores the weights of a run, greedily.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--episodes", type=_positive, help="default: run.eval_episodes of the run")
    parser.add_argument(
        "--weights",
        type=_weights,
        metavar="final|best|ENV_STEPS",
        default="final",
        help="ENV_STEPS: a version that checkpoint.history kept; default: %(default)s",
    )
    parser.add_argument("--seed", type=_seed, help="default: one no training evaluation used")
    parser.add_argument("--device", help="default: device of the run")
    args = parser.parse_args(argv)
    from rlrun.config import load

    load(args.run_dir, [f"device={args.device}"] if args.device else [])
    given = {name: getattr(args, name) for name in ("episodes", "weights", "seed", "device")}
    try:
        from rlrun.run.evaluate import evaluate_run

        return evaluate_run(args.run_dir, **given)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def resume_command(argv: list[str]) -> int:
    quiet, argv = split_quiet(argv)
    parser = Parser(prog="rlrun resume", description="Goes on with an interrupted run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    from rlrun.config import load

    overrides = [*args.overrides, *quiet]
    config, raw_yaml = load(args.run_dir, overrides)
    try:
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.forkserver import start_forkserver

            start_forkserver()
        from rlrun.run.train import resume

        return resume(args.run_dir, config, raw_yaml=raw_yaml, overrides=overrides)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def export_command(argv: list[str]) -> int:
    parser = Parser(prog="rlrun export", description="Writes the replay of a run as a dataset.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="a new or empty directory")
    parser.add_argument(
        "--shard-rows",
        type=_positive,
        metavar="N",
        default=65_536,
        help="rows of all environments in one file; default: %(default)s",
    )
    parser.add_argument(
        "--last", type=_positive, metavar="N", help="only the newest N rows of all environments"
    )
    parser.add_argument(
        "--codec", metavar="CODER", help="shards as frames of rlrun.codec, e.g. auto; default: not"
    )
    args = parser.parse_args(argv)
    from rlrun.cli.export import export

    given = {"shard_rows": args.shard_rows, "last": args.last, "coder": args.codec}
    return export(args.run_dir, args.data_dir, **given)


def tensorboard_command(argv: list[str]) -> int:
    about = (
        "Writes the TensorBoard event files of a run anew, from metrics.jsonl and timings.jsonl."
    )
    parser = Parser(prog="rlrun tensorboard-rebuild", description=about)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    args = parser.parse_args(argv)
    try:
        from rlrun.run.tensorboard import rebuild

        print(rebuild(args.run_dir))
        return 0
    except Exception as e:
        return report_job_error(e, None)


def codec_command(argv: list[str]) -> int:
    parser = Parser(prog="rlrun codec", description="Measures the codec on your own data.")
    actions = parser.add_subparsers(required=True, metavar="bench", prog="rlrun codec")
    about = "Size and speed of every coder on runs, datasets, .npy, .npz and .safetensors files."
    bench = actions.add_parser("bench", description=about, help=about)
    bench.add_argument("paths", type=Path, nargs="+", metavar="RUN_DIR|FILE")
    bench.add_argument("--plot", type=Path, metavar="FILE.png", help="plot the ratio over training")
    args = parser.parse_args(argv)
    from rlrun.cli.codec import bench as measure

    return measure(args.paths, plot=args.plot)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number > 0")
    return seconds


def doctor_command(argv: list[str]) -> int:
    about = "Says what a bug report needs; --calibrate: what an update costs under each setting."
    parser = Parser(prog="rlrun doctor", description=about)
    parser.add_argument("--calibrate", action="store_true", help="measures; writes nothing")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        help="seconds of one setting; default: about 20 s in all",
    )
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="those of the run")
    args = parser.parse_intermixed_args(argv)
    from rlrun.cli.doctor import calibrate, doctor

    if args.calibrate:
        return calibrate(args.overrides, seconds=args.seconds, config_dir=args.config_dir)
    if argv:
        raise ConfigError(f"rlrun doctor: {argv[0]}: only --calibrate takes more; add --calibrate")
    return doctor()


def split_quiet(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(overrides that -q stands for, the rest of the line)."""
    rest = [a for a in argv if a not in ("-q", "--quiet")]
    return (["logger.progress=off"] if len(rest) < len(argv) else []), rest
