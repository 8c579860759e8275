"""The ``rlrun`` command. Only a run that starts imports ``rlrun.run.build`` and so torch.

``rlrun KEY=VALUE…`` is Hydra; a first word without ``=`` is a subcommand. A single run is composed
and validated before its directory is made. A sweep is expanded and every job validated before the
first starts. Every user error is one line on stderr and has its own exit code. Slow modules are
imported only by the commands that need them: help and Tab answer in 0.1 s.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING

from rlrun.cli import uncollected
from rlrun.errors import ConfigError, end_if_importing_main, require_working_directory

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

    from rlrun.cli.run import Line

_HELP = ("-h", "--help", "-hh")
_QUIET = ("-q", "--quiet")
_MULTIRUN = {"-m", "--multirun"}
_BESIDE_HELP = (*_HELP, *_QUIET, *_MULTIRUN)
_OTHERS = ("-c", "--cfg", "-i", "--info", "-p", "--hydra", "hydra/launcher=")  # no pool of ours


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the command line ``argv`` (default: that of the process)."""
    words = sys.argv[1:] if argv is None else argv
    end_if_importing_main()
    if sys.stderr is None:  # closed by who starts rlrun, such as a service
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # Read when numpy is loaded: products as small as those of acting are slower on more threads,
    # which then wait by spinning on cores the learner could use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr) if argv is None else ():
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # of a path that its encoding lacks
    try:
        require_working_directory()
        from rlrun.trust import flags_of, forget_typed_envs, trusting

        packages, argv_left = flags_of(words)
        forget_typed_envs()
        with trusting(packages) if packages else nullcontext():
            with uncollected() if argv is None else nullcontext():
                run = _command(argv_left)
            code = run()
    except BaseException as e:
        from rlrun.cli.error_report import exit_code

        code = exit_code(e, words=words)
    finally:
        if (pool := sys.modules.get("rlrun.sweeps.pool")) is not None:
            pool.end_server()
    if argv is None:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """Exit with ``code`` ignoring signals, which would only change the exit code now."""
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    connection, loading = map(sys.modules.get, ("rlrun.sweeps.ray_pool", "rlrun.run.loading"))
    is_lost = connection is not None and connection.is_lost  # Ray's threads crash at a regular end
    if is_lost or (loading is not None and loading.is_loading()):  # which nobody waits for
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by who starts rlrun
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def _command(argv: list[str]) -> Callable[[], int]:
    """Return a function that does what a command line asks for and returns the exit code.

    A run or a sweep is then ready to start: everything is checked.

    Raises: RlrunError.
    """
    if argv[:1] and argv[0] in ("-sc", "--shell-completion", "--shell_completion"):
        from rlrun.cli.completion import answer

        if (text := answer(argv)) is not None:
            return partial(_print, text, end="")
    if not "".join(argv).isascii():
        from rlrun.cli.guesses import refuse_typographic

        refuse_typographic(argv)
    is_word = argv and "=" not in argv[0] and argv[0][:1] not in ("-", "~", "")
    return _subcommand(argv) if is_word or {*_HELP, "--version"} & {*argv} else _train(argv)


def _subcommand(argv: list[str]) -> Callable[[], int]:
    """Return a function for a subcommand, --help or --version. Raises: RlrunError."""
    from rlrun.cli.commands import run_command, split_command

    name, rest = split_command(argv)
    if name is not None:
        return partial(run_command, name, rest)
    if "--version" in argv:
        from rlrun.version import rlrun_version, torch_version

        torch = torch_version() or "not installed"
        return partial(_print, f"rlrun {rlrun_version()}, torch {torch}")
    if {*_HELP} & {*argv}:  # with a word, the help of that word
        words = [w for w in argv if w.startswith("--config-dir") or "=" not in w]
        return partial(run_command, "help", [w for w in words if w not in _BESIDE_HELP])
    from rlrun.cli.guesses import unknown_command

    raise unknown_command(argv)


def _print(text: str, *, end: str = "\n") -> int:
    print(text, end=end)
    return 0


def _train(argv: list[str]) -> Callable[[], int]:
    """Return a function for overrides: a run, a sweep, or output of Hydra. Raises: RlrunError."""
    words = [word for word in argv if word not in _QUIET]
    quiet = len(words) < len(argv)
    if _MULTIRUN & {*words} and not any(word.startswith(_OTHERS) for word in words):
        from rlrun.sweeps.pool import begin_server

        begin_server()
    from rlrun.cli.run import new_run, read_line
    from rlrun.config import Composer

    if any(word.startswith("-") for word in words):
        return _with_flags(words, quiet=quiet)
    line = read_line(Composer(), words, quiet=quiet)
    return _sweep(line) if line.asks_for_sweep else new_run(line)[1]


def _with_flags(words: list[str], *, quiet: bool) -> Callable[[], int]:
    """Return ``_train`` for words among which are flags of Hydra. Raises: RlrunError."""
    from hydra._internal.utils import get_args_parser

    from rlrun.cli.commands import raise_usage_errors
    from rlrun.cli.guesses import refuse_flags
    from rlrun.cli.run import new_run, read_line
    from rlrun.config import Composer

    parser = get_args_parser()
    parser.prog = "rlrun"
    raise_usage_errors(parser)
    refuse_flags(words, parser)
    args = parser.parse_intermixed_args(words)
    if args.experimental_rerun is not None or args.config_path is not None:
        flag = "--experimental-rerun" if args.config_path is None else "--config-path"
        fix = "use rlrun resume RUN_DIR, or --config-dir DIR"
        raise ConfigError(f"{flag}: not supported (pickles, foreign roots); see --help; {fix}")
    query = args.shell_completion and next((o for o in args.overrides if "query=" in o), None)
    if query and "COMP_LINE" not in os.environ:
        fix = 'eval "$(rlrun -sc install=bash)"'
        wrong = "only for shell completion, which sets COMP_LINE to the line"
        raise ConfigError(f"rlrun -sc {query}: {wrong}; install=SHELL is allowed; type {fix}")
    if args.package is not None and not args.cfg:
        wrong, fix = "only --cfg reads it", "add --cfg job, or leave it out"
        raise ConfigError(f"--package {args.package}: {wrong}; {fix}")
    composer = Composer(config_name=args.config_name, config_dir=args.config_dir)
    if args.shell_completion or args.hydra_help:
        return partial(_print_by_hydra, parser, args)
    line = read_line(composer, args.overrides, quiet=quiet)
    if args.cfg or args.info is not None:
        args.overrides = line.overrides
        cfg = composer.compose(line.overrides, sweep=args.multirun)
        if args.cfg == "job" and args.package is None:
            return partial(_print_job, cfg, args)
        return partial(_print_by_hydra, parser, args)
    return _sweep(line) if args.multirun or line.asks_for_sweep else new_run(line)[1]


def _sweep(line: "Line") -> Callable[[], int]:
    """Return a function that runs every job of a line."""
    from rlrun.cli.sweep import run_auto, run_sweep

    return partial(run_auto if line.seeds else run_sweep, line)


def _print_job(cfg: "DictConfig", args: "argparse.Namespace") -> int:
    """Print the config of a run as yaml, with the meaning of each key."""
    from omegaconf import OmegaConf

    from rlrun.cli.help import annotated
    from rlrun.cli.key_table import Table
    from rlrun.config import to_yaml
    from rlrun.config.hydra_keys import resolve_hydra_from

    text = to_yaml(cfg)
    if args.resolve:
        resolve_hydra_from(cfg)
        text = OmegaConf.to_yaml(OmegaConf.create(text), resolve=True)
    choices = dict(cfg.hydra.runtime.choices)
    return _print(annotated(text, Table(args.config_dir), choices), end="")


def _print_by_hydra(parser: "argparse.ArgumentParser", args: "argparse.Namespace") -> int:
    """Let Hydra print: --cfg, --info, --hydra-help, shell completion."""
    from contextlib import redirect_stderr
    from io import StringIO

    from hydra._internal.utils import _run_hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from rlrun.cli.run import run_job
    from rlrun.config.compose import shipped_conf

    GlobalHydra.instance().clear()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise; Hydra's own report is a traceback
    captured = StringIO()
    try:
        with redirect_stderr(captured):
            _run_hydra(args, parser, run_job, str(shipped_conf()), "config")
    except SystemExit as e:
        if e.code:
            text = " ".join(captured.getvalue().split()) or "not possible"
            raise ConfigError(f"{text}; see rlrun --hydra-help; correct the command") from e
    except (ValueError, HydraException) as e:
        raise ConfigError(f"{' '.join(str(e).split())}; see rlrun --hydra-help; correct it") from e
    return 0


if __name__ == "__main__":
    sys.exit(main())
