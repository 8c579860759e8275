"""The ``rlrun`` command. Torch-free: only a run that starts imports ``rlrun.build``.

``rlrun KEY=VALUE…`` is Hydra; a first word without ``=`` is a subcommand. A single run is composed
and validated before its directory is made; a sweep is expanded and every job validated before the
first starts. Every error of the user is one line on stderr and its own exit code.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlrun import __version__
from rlrun.cli_list import GROUPS, SUBCOMMANDS, help_text, list_lines
from rlrun.cli_report import Stopped, report, report_bug, report_job_error
from rlrun.errors import ConfigError, Interrupted, RlrunError, end_if_importing_main
from rlrun.trust import trusting

if TYPE_CHECKING:
    from rlrun.config import Composer


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"unrecognized arguments: --(\w[\w.-]*)", message)
        fix = "correct the command"
        if found and self.prog == "rlrun":
            fix = f"options are written {found[1].replace('-', '_')}=VALUE, without dashes"
        raise ConfigError(f"{self.prog}: {message}; see rlrun --help; {fix}")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line ``argv`` (default: that of the process)."""
    end_if_importing_main()
    # Read when numpy is loaded: products as small as those of acting are slower on more threads,
    # which then wait by spinning on cores the learner could use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        packages, rest = _take_trust(sys.argv[1:] if argv is None else argv)
        with trusting(packages):
            return _dispatch(rest)
    except RlrunError as e:
        return report(e)
    except KeyboardInterrupt:
        print("rlrun: interrupted", file=sys.stderr)
        return Interrupted.exit_code
    except Stopped as e:
        return e.code
    except BrokenPipeError:  # rlrun list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as e:
        return report_bug(e, None)


def _dispatch(argv: list[str]) -> int:
    first = argv[0] if argv else ""
    if first and "=" not in first and first[0] not in "-~":
        return _subcommand(first, argv[1:])
    if "--version" in argv:
        print(f"rlrun {__version__}")
        return 0
    if "-h" in argv or "--help" in argv:
        return _help(argv)
    return _hydra(argv)


def _help(argv: list[str]) -> int:
    print(help_text(__version__, _config_dir(argv)), end="")
    return 0


def _config_dir(argv: Sequence[str]) -> str | None:
    parser = _Parser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    path: str | None = parser.parse_known_args(list(argv))[0].config_dir
    return path


def _subcommand(name: str, argv: list[str]) -> int:
    table = {
        "eval": _eval, "resume": _resume, "export": _export, "codec": _codec, "doctor": _doctor,
        "list": _list, "help": _help,
    }  # fmt: skip
    if name in table:
        return table[name](argv)
    from rlrun.config.reader import nearest

    close = nearest(name, SUBCOMMANDS, 1)
    fix = f"did you mean rlrun {close[0]}?" if close else "options are KEY=VALUE, e.g. env=cartpole"
    key, _, value = name.partition(":")
    if key in GROUPS or argv[:1] == ["="]:  # policy = r2d2, policy r2d2, policy: r2d2
        value = value or next((word for word in argv if word not in (":", "=")), "VALUE")
        fix = f"an option has an equals sign and no spaces: {key}={value}"
    allowed = f"subcommands are {', '.join(SUBCOMMANDS)}"
    raise ConfigError(f"{name}: unknown subcommand; {allowed}; {fix}")


def _list(argv: list[str]) -> int:
    parser = _Parser(prog="rlrun list", description="Lists policies, environments, experiments.")
    parser.add_argument("--config-dir", "-cd", help="a directory with your own yaml files")
    for line in list_lines(parser.parse_args(argv).config_dir):
        print(line)
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer >= 1")
    return int(text)


def _weights(text: str) -> str:
    if text not in ("final", "best") and not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is not final, best or a number of env steps")
    return text


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not an integer within [0, 2^32)")
    return int(text)


def _eval(argv: list[str]) -> int:
    parser = _Parser(prog="rlrun eval", description="Scores the weights of a run, greedily.")
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
        from rlrun.finished import evaluate_run

        return evaluate_run(args.run_dir, **given)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def _resume(argv: list[str]) -> int:
    quiet, argv = _take_quiet(argv)
    parser = _Parser(prog="rlrun resume", description="Goes on with an interrupted run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    from rlrun.config import load

    overrides = [*args.overrides, *quiet]
    config, raw_yaml = load(args.run_dir, overrides)
    try:
        if config.pipeline.name == "overlapped":
            from rlrun.pipeline.warm import warm

            warm()
        from rlrun.build import resume

        return resume(args.run_dir, config, raw_yaml=raw_yaml, overrides=overrides)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def _export(argv: list[str]) -> int:
    parser = _Parser(prog="rlrun export", description="Writes the replay of a run as a dataset.")
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
    from rlrun.cli_export import export

    given = {"shard_rows": args.shard_rows, "last": args.last, "coder": args.codec}
    return export(args.run_dir, args.data_dir, **given)


def _codec(argv: list[str]) -> int:
    parser = _Parser(prog="rlrun codec", description="Measures the codec on your own data.")
    actions = parser.add_subparsers(required=True, metavar="bench", prog="rlrun codec")
    about = "Size and speed of every coder on runs, datasets, .npy, .npz and .safetensors files."
    bench = actions.add_parser("bench", description=about, help=about)
    bench.add_argument("paths", type=Path, nargs="+", metavar="RUN_DIR|FILE")
    bench.add_argument("--plot", type=Path, metavar="FILE.png", help="draws ratio over training")
    args = parser.parse_args(argv)
    from rlrun.cli_codec import bench as measure

    return measure(args.paths, plot=args.plot)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number > 0")
    return seconds


def _doctor(argv: list[str]) -> int:
    about = "Says what a bug report needs; --calibrate: what an update costs under each setting."
    parser = _Parser(prog="rlrun doctor", description=about)
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
    from rlrun.cli_doctor import calibrate, doctor

    if args.calibrate:
        return calibrate(args.overrides, seconds=args.seconds, config_dir=args.config_dir)
    if argv:
        raise ConfigError(f"rlrun doctor: {argv[0]}: only --calibrate takes more; add --calibrate")
    return doctor()


def _take_trust(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what --trust names, the rest of the line); it may stand anywhere, more than once."""
    packages, rest, words = [], [], iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--trust":
            rest.append(word)
        else:
            packages.append(value if equals else next(words, ""))
    return packages, rest


def _take_quiet(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(overrides that -q stands for, the rest of the line)."""
    rest = [a for a in argv if a not in ("-q", "--quiet")]
    return (["logger.progress=off"] if len(rest) < len(argv) else []), rest


def _hydra(argv: list[str]) -> int:
    from hydra._internal.utils import get_args_parser

    from rlrun.cli_run import single, sweep
    from rlrun.config import Composer

    quiet, argv = _take_quiet(argv)
    parser = get_args_parser()
    parser.prog = "rlrun"
    parser.error = _Parser(prog="rlrun").error  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(argv)
    if args.experimental_rerun is not None or args.config_path is not None:
        flag = "--experimental-rerun" if args.config_path is None else "--config-path"
        fix = "use rlrun resume RUN_DIR, or --config-dir DIR"
        raise ConfigError(f"{flag}: not supported (pickles, foreign roots); see --help; {fix}")
    composer = Composer(config_name=args.config_name, config_dir=args.config_dir)
    query = args.shell_completion and next((o for o in args.overrides if "query=" in o), None)
    if query and "COMP_LINE" not in os.environ:
        fix = 'eval "$(rlrun -sc install=bash)"'
        wrong = "the shell asks that while it completes a line, with the line in COMP_LINE"
        raise ConfigError(f"rlrun -sc {query}: {wrong}; install=SHELL is allowed; type {fix}")
    if args.shell_completion or args.hydra_help:
        return _pass_on(parser, args)
    args.overrides = [*composer.rewrite(args.overrides), *quiet]
    if args.cfg or args.info is not None:
        composer.compose(args.overrides, sweep=args.multirun)
        return _pass_on(parser, args)
    if args.multirun or _asks_for_sweep(composer, args.overrides):
        return sweep(composer, [*args.overrides, *_hush(args.overrides, quiet)])
    return single(composer, args.overrides)


def _hush(overrides: Sequence[str], quiet: Sequence[str]) -> list[str]:
    """What keeps Hydra's launcher from telling of every job, unless its logging was asked for."""
    asked = any("hydra_logging" in o for o in overrides)
    return ["hydra/hydra_logging=none"] if quiet and not asked else []


def _asks_for_sweep(composer: "Composer", overrides: Sequence[str]) -> bool:
    if not any("hydra.mode" in o for o in overrides):
        return False
    return str(composer.compose(overrides, sweep=True).hydra.mode) == "RunMode.MULTIRUN"


def _pass_on(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """What Hydra itself prints: --cfg, --info, --hydra-help, shell completion."""
    from hydra._internal.utils import _run_hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from rlrun.cli_run import job
    from rlrun.config.compose import search_path

    GlobalHydra.instance().clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise; Hydra's own report is a traceback
    try:
        _run_hydra(args, parser, job, config_path=search_path(), config_name="config")
    except SystemExit as e:
        return 2 if e.code else 0
    except (ValueError, HydraException) as e:
        raise ConfigError(f"{' '.join(str(e).split())}; see rlrun --hydra-help; correct it") from e
    return 0


if __name__ == "__main__":
    sys.exit(main())
