"""The ``rlrun`` command. Torch-free: only a run that starts imports ``rlrun.run.build``.

``rlrun KEY=VALUE…`` is Hydra; a first word without ``=`` is a subcommand. A single run is composed
and validated before its directory is made; a sweep is expanded and every job validated before the
first starts. Every error of the user is one line on stderr and its own exit code.
"""

import argparse
import io
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial

from rlrun import __version__
from rlrun.cli import completion
from rlrun.cli.commands import (
    Parser,
    codec_command,
    diff_command,
    doctor_command,
    export_command,
    fork_command,
    list_command,
    resume_command,
    search_command,
    split_quiet,
    verify_command,
)
from rlrun.cli.error_report import SweepStopped, report, report_bug
from rlrun.cli.guesses import refuse_flags, refuse_typographic, what_was_meant
from rlrun.cli.list import GROUPS, TOPICS, help_text
from rlrun.cli.play import eval_command, play_command
from rlrun.cli.report import compare_command, report_command
from rlrun.cli.tensorboard import rebuild_command, tensorboard_command
from rlrun.errors import (
    ConfigError,
    Interrupted,
    RlrunError,
    end_if_importing_main,
    require_working_directory,
)
from rlrun.trust import NotTrusted, flags_of, trusting


def _bench(argv: list[str]) -> int:
    from rlrun.cli.bench import bench_command  # needs Hydra

    return bench_command(argv)


def _probe(argv: list[str]) -> int:
    from rlrun.cli.probe import probe_command  # needs Hydra

    return probe_command(argv)


_COMMANDS = {
    "search": search_command,
    "eval": eval_command,
    "play": play_command,
    "resume": resume_command,
    "fork": fork_command,
    "verify": verify_command,
    "diff": diff_command,
    "export": export_command,
    "codec": codec_command,
    "doctor": doctor_command,
    "bench": _bench,
    "probe": _probe,
    "report": report_command,
    "compare": compare_command,
    "list": list_command,
    "tensorboard": tensorboard_command,
    "tensorboard-rebuild": rebuild_command,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line ``argv`` (default: that of the process)."""
    words = sys.argv[1:] if argv is None else argv
    end_if_importing_main()
    if (text := completion.answer(words, _COMMANDS)) is not None:
        print(text, end="")
        return 0
    # Read when numpy is loaded: products as small as those of acting are slower on more threads,
    # which then wait by spinning on cores the learner could use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.raiseExceptions = False  # a log on a full disk prints no traceback for every record
    try:
        require_working_directory()
        packages, rest = flags_of(words)
        with trusting(packages):
            command = _command(rest)
            code = command()
    except NotTrusted as e:
        flags = (word for name in e.packages for word in ("--trust", name))
        code = report(e.typed(shlex.join(["rlrun", *words, *flags])))
    except RlrunError as e:
        code = report(e)
    except KeyboardInterrupt:
        print("rlrun: interrupted", file=sys.stderr)
        code = Interrupted.exit_code
    except SweepStopped as e:
        code = e.code
    except BrokenPipeError:  # rlrun list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as e:
        code = report_bug(e)
    if argv is None:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """All is done and written: a signal would only change the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    connection = sys.modules.get("rlrun.sweeps.ray_pool")
    if connection is not None and connection.is_lost:  # Ray's threads crash at a regular end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _command(argv: list[str]) -> Callable[[], int]:
    """Return what a command line asks for. Raises: ConfigError."""
    for word in argv:
        refuse_typographic(word)
    first = argv[0] if argv else ""
    if first and "=" not in first and first[0] not in "-~":
        return partial(_subcommand, first, argv[1:])
    if "--version" in argv:
        print(f"rlrun {__version__}")
        return lambda: 0
    if "-h" in argv or "--help" in argv:
        return partial(_help, argv)
    return _training(argv)


def _help(argv: list[str]) -> int:
    """Print the short help; with one word beside the flag, the help of that word."""
    config_dir, words = _config_dir([word for word in argv if word not in ("-h", "--help")])
    if len(words) == 1 and "=" not in words[0] and words[0][0:1] not in ("-", "~"):
        return _help_command(argv)
    print(help_text(__version__, config_dir), end="")
    return 0


def _help_command(argv: list[str]) -> int:
    """Print the help; with words, that of the key, group, option, topic or subcommand."""
    config_dir, words = _config_dir([word for word in argv if word not in ("-h", "--help")])
    if not words:
        return _help(argv)
    if words[0] in _COMMANDS and " ".join(words) not in TOPICS:
        return _COMMANDS[words[0]](["--help"])
    from rlrun.cli.help import help_lines

    for line in list(help_lines(" ".join(words), config_dir)):  # an error comes alone
        print(line)
    return 0


def _config_dir(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """(the value of --config-dir, the rest of the line)."""
    parser = Parser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    known, rest = parser.parse_known_args(list(argv))
    return known.config_dir, rest


def _subcommand(name: str, argv: list[str]) -> int:
    if name == "help":
        return _help_command(argv)
    if name in _COMMANDS:
        return _COMMANDS[name](argv)
    if name in GROUPS and {"-h", "--help"} & {*argv}:
        return _help_command([name, *argv])
    allowed = f"subcommands are {', '.join([*_COMMANDS, 'help'])}"
    fix = what_was_meant(name, argv, [*_COMMANDS, "help"])
    raise ConfigError(f"{name}: unknown subcommand; {allowed}; {fix}")


def _training(argv: list[str]) -> Callable[[], int]:
    """Return what overrides ask for: a run, a sweep, or what Hydra prints. Raises: ConfigError."""
    from hydra._internal.utils import get_args_parser

    from rlrun.cli.line import asks_for_sweep, new_run, read_line, sweep_line
    from rlrun.config import Composer

    quiet, argv = split_quiet(argv)
    parser = get_args_parser()
    parser.prog = "rlrun"
    parser.error = Parser(prog="rlrun").error  # type: ignore[method-assign]
    refuse_flags(argv, parser)
    args = parser.parse_intermixed_args(argv)
    if args.help:  # -hh
        return partial(_help, [])
    if args.experimental_rerun is not None or args.config_path is not None:
        flag = "--experimental-rerun" if args.config_path is None else "--config-path"
        fix = "use rlrun resume RUN_DIR, or --config-dir DIR"
        raise ConfigError(f"{flag}: not supported (pickles, foreign roots); see --help; {fix}")
    composer = Composer(config_name=args.config_name, config_dir=args.config_dir)
    query = args.shell_completion and next((o for o in args.overrides if "query=" in o), None)
    if query and "COMP_LINE" not in os.environ:
        fix = 'eval "$(rlrun -sc install=bash)"'
        wrong = "only for shell completion, which sets COMP_LINE to the line"
        raise ConfigError(f"rlrun -sc {query}: {wrong}; install=SHELL is allowed; type {fix}")
    if args.shell_completion or args.hydra_help:
        return partial(_run_hydra_flag, parser, args)
    line = read_line(composer, args.overrides, quiet=bool(quiet))
    args.overrides = line.overrides
    if args.cfg or args.info is not None:
        composer.compose(args.overrides, sweep=args.multirun)
        return partial(_run_hydra_flag, parser, args)
    if args.multirun or asks_for_sweep(line):
        return partial(sweep_line, line)
    return new_run(line).run


def _run_hydra_flag(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Let Hydra print: --cfg, --info, --hydra-help, shell completion."""
    from hydra._internal.utils import _run_hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from rlrun.cli.run import run_job
    from rlrun.config.compose import search_path

    GlobalHydra.instance().clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise; Hydra's own report is a traceback
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            _run_hydra(args, parser, run_job, config_path=search_path(), config_name="config")
    except SystemExit as e:
        if e.code:
            text = " ".join(said.getvalue().split()) or "not possible"
            raise ConfigError(f"{text}; see rlrun --hydra-help; correct the command") from e
        return 0
    except (ValueError, HydraException) as e:
        raise ConfigError(f"{' '.join(str(e).split())}; see rlrun --hydra-help; correct it") from e
    return 0


if __name__ == "__main__":
    sys.exit(main())
