"""The subcommands of ``rlrun``: parsing and checking of their arguments."""

import argparse
import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlrun.cli.list import group_lines, list_lines
from rlrun.errors import ConfigError, printable


def is_integer(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15


def positive(text: str) -> int:
    if not is_integer(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not an integer >= 1 of at most 15 digits")
    return int(text)


def weights(text: str) -> str:
    if text not in ("final", "best") and not is_integer(text):
        raise argparse.ArgumentTypeError(f"{text} is not final, best or a number of env steps")
    return text


def seed(text: str) -> int:
    if not is_integer(text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not an integer within [0, 2^32)")
    return int(text)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a number > 0")
    return number


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"unrecognized arguments: --(\w[\w.-]*)", message)
        fix = "correct the command"
        if found and self.prog == "rlrun":
            fix = f"options are written {found[1].replace('-', '_')}=VALUE, without dashes"
        raise ConfigError(f"{self.prog}: {message}; see rlrun --help; {fix}")


def list_command(argv: list[str]) -> int:
    about = "Lists policies, environments, wrappers and experiments, or the options of one group."
    parser = Parser(prog="rlrun list", description=about)
    parser.add_argument("group", nargs="?", metavar="GROUP", help="policy, env, wrappers, torso, …")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only options with it in their name or text"
    )
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    args = parser.parse_intermixed_args(argv)
    given = () if args.group is None else (args.group, args.words)
    for line in list(
        group_lines(*given, args.config_dir) if given else list_lines(args.config_dir)
    ):
        print(line)  # an error comes alone
    return 0


def resume_command(argv: list[str]) -> int:
    quiet, argv = split_quiet(argv)
    about = (
        "Goes on with an interrupted run, or with all unfinished runs of a sweep; "
        "RUN_DIR@ENV_STEP: from an earlier checkpoint."
    )
    parser = Parser(prog="rlrun resume", description=about)
    parser.add_argument("run_dir", metavar="RUN_DIR[@ENV_STEP]", help="or SWEEP_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    discard = "with @ENV_STEP: delete the checkpoints and records after it"
    parser.add_argument("--discard", action="store_true", help=discard)
    args = parser.parse_intermixed_args(argv)
    from rlrun.cli.run import resume_run
    from rlrun.run.branch import split_step
    from rlrun.sweeps.record import is_sweep

    if os.path.isfile(Path(args.run_dir) / "search.json"):
        from rlrun.cli.search import resume_search

        return resume_search(Path(args.run_dir).absolute(), args.overrides, quiet=bool(quiet))
    overrides = [*args.overrides, *quiet]
    run_dir, step = split_step(args.run_dir)
    if args.discard and step is None:
        wrong = "nothing is deleted where no env step is given; RUN_DIR@ENV_STEP is allowed"
        raise ConfigError(f"--discard: {wrong}; leave it out")
    if step is None and is_sweep(run_dir):
        from rlrun.cli.job_runs import table_command
        from rlrun.cli.sweep import print_report_line, resume_sweep
        from rlrun.sweeps.record import SweepRecord

        code = resume_sweep(run_dir, overrides, quiet=bool(quiet))
        if not quiet and (command := table_command(run_dir)) is not None:
            print(f"the table: {command}", flush=True)
        elif not quiet:
            print_report_line(run_dir, SweepRecord.read(run_dir))
        return code
    return resume_run(run_dir, step, overrides, discard=args.discard)


def search_command(argv: list[str]) -> int:
    quiet, argv = split_quiet(argv)
    parser = Parser(prog="rlrun search", description="Searches for the setting of the best score.")
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="those of a run; KEY=interval(LOW,HIGH,log), choice(A,B) and range(START,STOP) are "
        "searched; search.KEY=VALUE: see rlrun help search",
    )
    args = parser.parse_intermixed_args(argv)
    from rlrun.cli.search import search

    return search(args.overrides, config_dir=args.config_dir, quiet=bool(quiet))


def fork_command(argv: list[str]) -> int:
    quiet, argv = split_quiet(argv)
    about = "Starts a new run from a checkpoint of another one, which stays as it is."
    parser = Parser(prog="rlrun fork", description=about)
    parser.add_argument("run_dir", metavar="RUN_DIR[@ENV_STEP]")
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="run.dir=NEW among them")
    args = parser.parse_args(argv)
    from rlrun.cli.run import resume_loaded
    from rlrun.config import directories, load
    from rlrun.run.branch import checkpoint_at, fork, require_steps_left, split_step

    overrides = [*args.overrides, *quiet]
    run_dir, step = split_step(args.run_dir)
    if not any(override.startswith("run.dir=") for override in overrides):
        wrong = "a fork needs a directory; a new or empty one is allowed"
        raise ConfigError(f"run.dir = null: {wrong}; add run.dir=NEW", key="run.dir")
    config, raw_yaml = load(run_dir, overrides, fork=True)
    path = checkpoint_at(run_dir, step)
    new = Path(str(config.run.dir)).expanduser().absolute()
    directories.require_new(new)
    require_steps_left(path, config.run)
    new = directories.claim(new, exact=True)
    try:
        fork(run_dir, path, new, raw_yaml, args.overrides)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    try:
        return resume_loaded(new, config, raw_yaml, overrides, origin=run_dir)
    except ConfigError:  # what was typed does not fit the checkpoint
        shutil.rmtree(new, ignore_errors=True)
        raise


def verify_command(argv: list[str]) -> int:
    about = "Checks the hashes of all files of a run; says what could be resumed."
    parser = Parser(prog="rlrun verify", description=about)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    args = parser.parse_args(argv)
    from rlrun.errors import CheckpointError
    from rlrun.run.manifest import Report

    report = Report(args.run_dir)
    for line in report.lines():
        print(printable(line))
    print(f"{report.files} files and parts of files: {len(report.problems) or 'no'} problems")
    return CheckpointError.exit_code if report.problems else 0


def diff_command(argv: list[str]) -> int:
    about = "Names the first record and tensor in which two runs differ; exit code 1 if they do."
    parser = Parser(prog="rlrun diff", description=about)
    parser.add_argument("a", metavar="RUN_DIR[@ENV_STEP]")
    parser.add_argument("b", metavar="RUN_DIR[@ENV_STEP]")
    args = parser.parse_args(argv)
    from rlrun.run.branch import split_step
    from rlrun.run.files import require_run

    runs = [split_step(text) for text in (args.a, args.b)]
    for run_dir, _ in runs:
        require_run(run_dir)
    from rlrun.run.diff import compare

    equal, lines = compare(*runs)
    for line in lines:
        print(printable(line))
    return 0 if equal else 1


def export_command(argv: list[str]) -> int:
    if argv[:1] == ["policy"]:
        from rlrun.cli.export import export_policy_command

        return export_policy_command(argv[1:])
    about = "Writes the replay of a run as a dataset."
    more = (
        "rlrun export policy RUN_DIR --onnx FILE.onnx writes its greedy policy instead; a run "
        "directory named policy is ./policy."
    )
    parser = Parser(prog="rlrun export", description=about, epilog=more)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="a new or empty directory")
    parser.add_argument(
        "--shard-rows",
        type=positive,
        metavar="N",
        default=65_536,
        help="rows of all environments in one file; default: %(default)s",
    )
    parser.add_argument(
        "--last", type=positive, metavar="N", help="only the newest N rows of all environments"
    )
    parser.add_argument(
        "--codec", metavar="CODER", help="shards as frames of rlrun.codec, e.g. auto; default: not"
    )
    args = parser.parse_args(argv)
    from rlrun.cli.export import export

    given = {"shard_rows": args.shard_rows, "last": args.last, "coder": args.codec}
    return export(args.run_dir, args.data_dir, **given)


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


def doctor_command(argv: list[str]) -> int:
    about = (
        "Says what a bug report needs; of RUN_DIR: what looks wrong with the run, and which key to "
        "try; of env=NAME: what can be checked of an environment from outside."
    )
    parser = Parser(prog="rlrun doctor", description=about)
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN_DIR|KEY=VALUE",
        help="runs, sweeps, directories above them; env=NAME env.KEY=VALUE",
    )
    if "--calibrate" in argv:
        raise ConfigError(
            "rlrun doctor --calibrate: is gone; a sweep measures settings: rlrun -m KEY=VALUE ... "
            "learner.threads=1,2 sweep.workers=1 run.total_steps=5000; compare time/update_seconds "
            "in timings.jsonl of its jobs"
        )
    args = parser.parse_intermixed_args(argv)
    from rlrun.cli.doctor import doctor, env_health, run_health

    if args.words == argv and all(os.path.lexists(w) or "=" not in w for w in argv) and argv:
        return run_health(argv)
    if any(word.startswith("env=") for word in args.words):
        return env_health(args.words, config_dir=args.config_dir)
    if argv:
        raise ConfigError(
            f"rlrun doctor: {argv[0]}: of a command's words env=NAME env.KEY=VALUE are allowed; "
            "add env=NAME"
        )
    return doctor()


def split_quiet(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(overrides that -q stands for, the rest of the line)."""
    rest = [a for a in argv if a not in ("-q", "--quiet")]
    return (["logger.progress=off"] if len(rest) < len(argv) else []), rest
