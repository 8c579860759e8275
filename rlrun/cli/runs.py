"""The subcommands on a run directory: eval, play, resume, fork, verify, diff, export, codec.

Checks that need no torch come first.
"""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.commands import OTHER_EXPORT
from rlrun.errors import CheckpointError, CodecError, ConfigError, printable, require_new_file
from rlrun.run import branch
from rlrun.run.branch import split_step
from rlrun.run.files import RECORD, read_record, require_run
from rlrun.run.manifest import Report
from rlrun.schema.override import read_overrides
from rlrun.sweeps.record import SweepRecord, is_sweep

if TYPE_CHECKING:
    from rlrun.run.evaluate import Episode
    from rlrun.schema import Config

_ONNX = ("onnx", "onnxscript", "onnxruntime")  # of rlrun export policy and export card
_NO_NETWORK = ("random", "scripted")
_EPISODES = ("episodes", "weights", "seed", "device", "video", "traces", "fps")


def evaluate(args: Namespace) -> int:
    """Score the weights of a run. Standard error says which weights and episodes these are."""
    for key, value in score_of(args).items():
        print(f"{key:14s} {value:g}")
    sys.stdout.flush()
    seeds = "that training never used" if args.seed is None else f"from {args.seed} on"
    is_run = (args.run_dir / RECORD).is_file()
    so_far = is_run and read_record(args.run_dir).get("status") != "done"
    which = args.weights + " so far (the run is not finished)" * so_far
    print(f"rlrun: weights: {which}; episodes: seeds {seeds}", file=sys.stderr)
    return 0


def score_of(args: Namespace) -> dict[str, float]:
    """Return the evaluation of the weights of a run: return_mean, return_std, ..."""
    _check(args)
    if args.video is None and (args.traces or args.fps or args.overwrite):
        flag = next(n for n in ("traces", "fps", "overwrite") if getattr(args, n))
        raise ConfigError(f"--{flag}: needs a video; one is made by --video FILE; add it")
    from rlrun.run.evaluate import evaluate_run

    options = {name: getattr(args, name) for name in (*_EPISODES, "overrides")}
    return evaluate_run(args.run_dir, **options)


def play(args: Namespace) -> list["Episode"]:
    """Show episodes of a run, in a window or a file. Return them."""
    if args.video is None:
        from rlrun.video.files import require_window

        require_window()
    _check(args)
    from rlrun.run.evaluate import play_run

    return play_run(args.run_dir, **{n: getattr(args, n) for n in (*_EPISODES, "max_steps")})


def _check(args: Namespace) -> None:
    """Raise ConfigError unless the run can be loaded and its video written."""
    from rlrun.config import load

    typed = [*vars(args).get("overrides", ()), *([f"device={args.device}"] if args.device else [])]
    load(args.run_dir, typed, replay=False, evaluation=True)
    if args.video is not None:
        from rlrun.video.files import SUFFIXES, require_packages

        require_new_file("--video", args.video, SUFFIXES, overwrite=args.overwrite)
        require_packages(f"--video = {args.video}", args.video.suffix.lower())


def resume(args: Namespace) -> int:
    """Continue a run, a sweep or a search."""
    from rlrun.cli.run import resume_run, silent

    typed = read_overrides(args.overrides)
    if os.path.isfile(Path(args.run_dir) / "search.json"):
        from rlrun.cli.search import resume_search

        return resume_search(Path(args.run_dir).absolute(), typed, quiet=args.quiet)
    overrides = [*typed, *silent(args.quiet)]
    run_dir, step = split_step(args.run_dir)
    if args.discard and step is None:
        wrong = "nothing is deleted where no env step is given; RUN_DIR@ENV_STEP is allowed"
        raise ConfigError(f"--discard: {wrong}; leave it out")
    if step is None and is_sweep(run_dir):
        from rlrun.cli.memory import table_command
        from rlrun.cli.sweep import print_report_line, resume_sweep

        code = resume_sweep(run_dir, overrides, quiet=args.quiet)
        if not args.quiet and (command := table_command(run_dir)) is not None:
            print(f"the table: {command}", flush=True)
        elif not args.quiet:
            print_report_line(run_dir, SweepRecord.read(run_dir))
        return code
    return resume_run(run_dir, step, overrides, discard=args.discard)


def fork(args: Namespace) -> int:
    """Start a new run from a checkpoint of another one."""
    fork_run(args.run_dir, args.overrides, quiet=args.quiet)
    return 0


def fork_run(origin: str, words: Sequence[str], *, quiet: bool, own_process: bool = True) -> Path:
    """Fork RUN_DIR[@ENV_STEP] and return the directory of the new run.

    ``own_process``: as for ``resume_run``.
    """
    from rlrun.cli.run import resume_loaded, silent
    from rlrun.config import directories, load

    typed = read_overrides(words)
    overrides = [*typed, *silent(quiet)]
    run_dir, step = split_step(origin)
    if not any(override.startswith("run.dir=") for override in overrides):
        wrong = "a fork needs a directory; a new or empty one is allowed"
        raise ConfigError(f"run.dir = null: {wrong}; add run.dir=NEW", key="run.dir")
    config, raw_yaml = load(run_dir, overrides, fork=True)
    path = branch.checkpoint_at(run_dir, step)
    new = Path(str(config.run.dir)).expanduser().absolute()
    directories.require_new(new)
    branch.require_steps_left(path, config.run)
    new = directories.claim(new, exact=True)
    try:
        branch.fork(run_dir, path, new, raw_yaml, typed)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    try:
        resume_loaded(new, config, raw_yaml, overrides, origin=run_dir, own_process=own_process)
    except ConfigError:  # typed keys do not fit the checkpoint
        shutil.rmtree(new, ignore_errors=True)
        raise
    return new


def verify(args: Namespace) -> int:
    """Check the hashes of all files of a run. Return 5 if one is damaged."""
    report = Report(args.run_dir)
    for line in report.lines():
        print(printable(line))
    count = len(report.problems)
    problems = f"{count or 'no'} problem{'s' * (count != 1)}"
    print(f"{report.files} files and parts of files: {problems}")
    return CheckpointError.exit_code if report.problems else 0


def diff(args: Namespace) -> int:
    """Print where two runs first differ. Return 1 if they do."""
    equal, lines = difference(args.a, args.b)
    for line in lines:
        print(line)
    return 0 if equal else 1


def difference(a: str, b: str) -> tuple[bool, list[str]]:
    """Return whether two runs, each RUN_DIR[@ENV_STEP], are equal, and lines that say where not."""
    runs = [split_step(text) for text in (a, b)]
    for run_dir, _ in runs:
        require_run(run_dir)
    from rlrun.run.diff import compare

    equal, lines = compare(*runs)
    return equal, [printable(line) for line in lines]


def export(args: Namespace) -> str:
    """Export the replay of a run as a dataset, that of a run on a GPU without one.

    Return the line that describes it.
    """
    from rlrun.codec import check_coder
    from rlrun.config import directories, load

    if args.codec is not None:
        try:
            check_coder(args.codec)
        except CodecError as e:
            raise ConfigError(f"--codec = {args.codec}: {str(e).partition(': ')[2]}") from e
    directories.check_length("DATA_DIR", args.data_dir)
    require_run(args.run_dir)
    config, _ = load(args.run_dir, ["device=cpu"], replay=False)
    directories.require_new(args.data_dir, "DATA_DIR")  # before torch, which takes seconds
    directories.require_writable(args.data_dir, "DATA_DIR")
    from rlrun.dataset import read_dataset
    from rlrun.run.export import export_run

    raw_yaml = (args.run_dir / "config.yaml").read_text(encoding="utf-8")
    export_run(args.run_dir, args.data_dir, config, raw_yaml=raw_yaml,
               shard_rows=args.shard_rows, last=args.last, coder=args.codec)  # fmt: skip
    return read_dataset(args.data_dir).summary()


def export_policy(args: Namespace) -> str:
    """Export the greedy policy of a run as an ONNX file. Return the line that describes it."""
    from rlrun.config import load
    from rlrun.config.config_errors import require_packages

    if args.onnx is None:
        allowed = "a new one is allowed"
        raise ConfigError(f"--onnx = null: a file is needed; {allowed}; add it ({OTHER_EXPORT})")
    require_packages(f"--onnx = {args.onnx}", "onnx", *_ONNX)
    config, _ = load(args.run_dir, ["device=cpu"], replay=False)
    _check_policy(config)
    require_new_file("--onnx", args.onnx, (".onnx",), overwrite=args.overwrite)
    from rlrun.run.onnx import export_policy as write

    return write(args.run_dir, args.onnx, weights=args.weights, tolerance=args.tolerance)


def export_card(args: Namespace) -> str:
    """Export the agent of a run as a directory for others. Return the line that describes it."""
    from rlrun.config import directories, load
    from rlrun.config.config_errors import require_packages
    from rlrun.video import files

    out = directories.absolute("OUT", args.out)
    require_packages(f"OUT = {args.out}", "onnx", *_ONNX)
    if not args.no_gif:
        files.require_packages(f"OUT = {args.out}", ".gif")
    require_run(args.run_dir)
    config, config_yaml = load(args.run_dir, ["device=cpu"], replay=False)
    _check_policy(config)
    directories.require_new(out, "OUT")
    directories.require_writable(out, "OUT")
    from rlrun.run.card import export_card as write

    return write(
        args.run_dir, out, config_yaml, weights=args.weights, tolerance=args.tolerance,
        picture=not args.no_gif,
    )  # fmt: skip


def _check_policy(config: "Config") -> None:
    """Raise ConfigError if the actions are known not to be those of one network."""
    name, agents = config.policy.name, config.agents.name
    allowed = "allowed are policies of one network with actions of one agent; export another run"
    if name in _NO_NETWORK:
        raise ConfigError(f"policy.name = {name}: it has no network to export; {allowed}")
    if name == "qmix":
        raise ConfigError(f"policy.name = {name}: its actions are those of a team; {allowed}")
    if agents == "separate":
        raise ConfigError(f"agents.name = {agents}: every agent has a network; {allowed}")


def codec_bench(args: Namespace) -> int:
    """Print a table for every series of weights or rows found."""
    if args.plot is not None:
        from rlrun.config.config_errors import require_packages

        require_packages(f"--plot = {args.plot}", "plot", "matplotlib")
        require_new_file("--plot", args.plot, (".png", ".svg", ".pdf"), overwrite=True)
    from rlrun.cli.codec_bench import report  # imports torch

    for line in report(args.paths, args.plot):
        print(line, flush=True)
    return 0
