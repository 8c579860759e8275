"""The subcommands of ``rlrun``: one table of arguments for parsing, help and completion."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rlrun.errors import ConfigError, RlrunError
from rlrun.terminal import width

if TYPE_CHECKING:
    import argparse

MAX_STEPS = 5000  # env steps of an episode that rlrun play shows
MOST_SEED = 2**32


class Argument(NamedTuple):
    """Names and options for argparse's ``add_argument``."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Command(NamedTuple):
    """A subcommand. ``run`` is module:function of rlrun.cli and receives the parsed arguments.

    usage   lines of ``rlrun --help``: (arguments, what they do)
    """

    run: str
    about: str
    usage: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...] = ()
    more: str | None = None


def _checked(what: str, kind: Callable[[str], Any], fits: Callable[[Any], bool]) -> Any:
    """Return a type for argparse: ``kind`` of a text if it ``fits``, else ``is not WHAT``."""

    def convert(text: str) -> Any:
        import argparse

        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"{text[:40]} is not {what}")
        return value

    return convert


def _digits(text: str) -> int:
    """Return the integer of at most 15 ASCII digits. Raises: ValueError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise ValueError(text)
    return int(text)


def _weights(text: str) -> str:
    if text not in ("final", "best"):
        _digits(text)
    return text


POSITIVE = _checked("an integer >= 1 of at most 15 digits", _digits, lambda x: x >= 1)
SEED = _checked("an integer within [0, 2^32)", _digits, lambda x: x < MOST_SEED)
PORT = _checked("an integer within [1, 65535]", _digits, lambda x: 1 <= x <= 65535)
POSITIVE_NUMBER = _checked("a number > 0", float, lambda x: 0 < x < math.inf)
FINITE = _checked("a finite number", float, math.isfinite)
WEIGHTS = _checked("final, best or a number of env steps", _weights, bool)


def arg(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


def flag(name: str, about: str) -> Argument:
    return arg(name, action="store_true", help=about)


RUN_DIR = arg("run_dir", type=Path, metavar="RUN_DIR")
RUN_DIR_AT = arg("run_dir", metavar="RUN_DIR[@ENV_STEP]")
CONFIG_DIR = arg("--config-dir", "-cd", metavar="DIR", help="a directory with your own yaml files")
QUIET = arg("--quiet", "-q", action="store_true", help="print warnings and errors only")
OVERWRITE = flag("--overwrite", "replace FILE")
SCORE = arg("--score", default="final", metavar="final|best_of_last:K|auc",
            help="what a run scores; default: %(default)s, the mean return of its final "
            "weights")  # fmt: skip


def overrides(nargs: str, about: str | None = None) -> Argument:
    return arg("overrides", nargs=nargs, default=[], metavar="KEY=VALUE", help=about)


def weights(about: str) -> Argument:
    return arg(
        "--weights", type=WEIGHTS, metavar="final|best|ENV_STEPS", default="final",
        help=f"{about}; default: %(default)s",
    )  # fmt: skip


EPISODES = (
    RUN_DIR,
    weights("ENV_STEPS: a version that checkpoint.history kept"),
    arg("--seed", type=SEED, help="default: one no training evaluation used"),
    arg("--device", help="default: device of the run"),
    flag("--traces", "beside the picture: recurrent state, Q or probabilities, reward"),
    arg("--fps", type=POSITIVE_NUMBER, metavar="N",
        help="frames per second; default: that of the environment"),
    OVERWRITE,
)  # fmt: skip
READABLE = "a run directory, a dataset directory, or .npy, .npz and .safetensors files"
TOLERANCE = arg("--tolerance", type=POSITIVE_NUMBER, default=1e-5,
                help="largest difference of the ONNX file from the actor, of numbers x in units "
                "of max(1, |x|); default: %(default)s")  # fmt: skip
TRUST = "--trust PACKAGE: its code may be run, where the run's config names it"
OTHER_EXPORT = "./policy is a run directory of this name: rlrun export ./policy DATA_DIR"

COMMANDS: dict[str, Command] = {
    "search": Command(
        "search:search", "Searches for the setting of the best score.",
        (("'KEY=interval(LOW,HIGH)' ...", "the best setting, its score on fresh seeds"),),
        (CONFIG_DIR, QUIET, overrides(
            "+", "those of a run; KEY=interval(LOW,HIGH,log), choice(A,B) and range(START,STOP) "
            "are searched; search.KEY=VALUE: see rlrun help search")),
    ),
    "eval": Command(
        "runs:evaluate", "Scores the weights of a run, greedily.",
        (("RUN_DIR [KEY=VALUE]", "scores the weights of a run"),),
        (*EPISODES,
         overrides("*", "of the environment, such as env.length=100, and of eval"),
         arg("--episodes", type=POSITIVE, help="default: run.eval_episodes of the run"),
         arg("--video", type=Path, metavar="FILE",
             help="the episodes of the first environment as a video, .mp4 or .gif")),
        TRUST,
    ),
    "play": Command(
        "runs:play",
        "Shows greedy episodes of a run's weights, in a window or, with --video, in a file.",
        (("RUN_DIR [--video out.gif]", "shows its episodes, in a window or a file"),),
        (*EPISODES,
         arg("--episodes", type=POSITIVE, default=1, help="how many; default: %(default)s"),
         arg("--video", type=Path, metavar="FILE",
             help="a video instead of a window, .mp4 or .gif"),
         arg("--max-steps", type=POSITIVE, default=MAX_STEPS, metavar="N",
             help="env steps after which an episode is cut; default: %(default)s")),
        TRUST,
    ),
    "resume": Command(
        "runs:resume",
        "Goes on with an interrupted run, or with all unfinished runs of a sweep; "
        "RUN_DIR@ENV_STEP: from an earlier checkpoint.",
        (("RUN_DIR[@STEP] [KEY=VALUE]", "goes on with an interrupted run"),),
        (arg("run_dir", metavar="RUN_DIR[@ENV_STEP]", help="or SWEEP_DIR"), overrides("*"), QUIET,
         flag("--discard", "with @ENV_STEP: delete the checkpoints and records after it")),
    ),
    "fork": Command(
        "runs:fork",
        "Starts a new run from a checkpoint of another one, which stays as it is.",
        (("RUN_DIR[@STEP] run.dir=NEW ...", "starts a run from a checkpoint of another"),),
        (RUN_DIR_AT, overrides("+", "run.dir=NEW among them"), QUIET),
    ),
    "report": Command(
        "report:report",
        "Compares runs, sweeps and globs: a table here, and a page with figures and CSV files.",
        (("DIR ... [--out report/]", "scores, intervals, curves of runs and sweeps"),),
        (arg("dirs", nargs="+", metavar="DIR", help="run, sweep, parent or glob"),
         arg("--out", type=Path, metavar="DIR", help="default: report in DIR; of several or a glob "
             "here, or report-2 beside another report"),
         arg("--x", choices=("env_steps", "wall"),
             help="one axis of learning curves; default: both"),
         SCORE,
         arg("--threshold", type=FINITE, metavar="S", help="mean return; default: run.stop_return"),
         arg("--reference", action="append", default=[], metavar="ENV=LOW:HIGH",
             help="scores that count as 0 and 1 over several environments"),
         arg("--baseline", metavar="SETTING",
             help="what others are compared with; default: the first")),
    ),
    "compare": Command(
        "report:compare",
        "Compares B with A: config diff, scores, and a verdict on the difference.",
        (("A B", "which of two settings is better, if any is"),),
        (arg("a", metavar="A", help="run, sweep, parent or glob of one setting"),
         arg("b", metavar="B", help="the same"), SCORE),
    ),
    "probe": Command(
        "memory:probe",
        "Trains agents with and without memory, and says whether the task needs it.",
        (("env=NAME [--budget STEPS]", "does this task need memory?"),),
        (overrides("+", "env=NAME, other keys of every run, probe.KEY=VALUE (rlrun help probe)"),
         arg("--budget", type=POSITIVE, metavar="STEPS", help="env steps of each run"),
         CONFIG_DIR, QUIET),
    ),
    "bench": Command(
        "memory:bench",
        "Runs algorithms and memory cells on memory tasks and prints a table.",
        (("memory [--quick] [KEY=VALUE]", "algorithms and cells on memory tasks, a table"),),
        (arg("what", choices=("memory",), help="what is measured"),
         overrides("*", "bench.KEY=VALUE: see rlrun help bench; others are those of every run"),
         flag("--quick", "a minute instead of days"), CONFIG_DIR, QUIET),
    ),
    "verify": Command(
        "runs:verify", "Checks the hashes of all files of a run; says what could be resumed.",
        (("RUN_DIR", "checks its files; what could be resumed"),), (RUN_DIR,),
    ),
    "diff": Command(
        "runs:diff",
        "Names the first record and tensor in which two runs differ; exit code 1 if they do.",
        (("RUN_DIR[@STEP] RUN_DIR[@STEP]", "where two runs first differ"),),
        (arg("a", metavar="RUN_DIR[@ENV_STEP]"), arg("b", metavar="RUN_DIR[@ENV_STEP]")),
    ),
    "export": Command(
        "runs:export", "Writes the replay of a run as a dataset.",
        (("RUN_DIR DATA_DIR", "writes its replay as a dataset (buffer.load)"),),
        (RUN_DIR,
         arg("data_dir", type=Path, metavar="DATA_DIR", help="a new or empty directory"),
         arg("--shard-rows", type=POSITIVE, metavar="N", default=65_536,
             help="rows of all environments in one file; default: %(default)s"),
         arg("--last", type=POSITIVE, metavar="N",
             help="only the newest N rows of all environments"),
         arg("--codec", metavar="CODER",
             help="shards as frames of rlrun.codec, e.g. auto; default: not")),
        "rlrun export policy RUN_DIR --onnx FILE.onnx writes its greedy policy instead, rlrun "
        "export card RUN_DIR OUT a directory for others; a run directory named policy is ./policy.",
    ),
    "export policy": Command(
        "runs:export_policy",
        "Writes the greedy policy of a run as an ONNX file, with the recurrent state as input and "
        "output, and normalisation, encoding, masks and bounds inside.",
        (("RUN_DIR --onnx FILE", "writes its greedy policy for use without torch"),),
        (RUN_DIR,
         arg("--onnx", type=Path, metavar="FILE.onnx", help="a new file (required)"),
         weights("as for rlrun eval"),
         TOLERANCE,
         flag("--overwrite", "replace FILE.onnx")),
        OTHER_EXPORT,
    ),
    "export card": Command(
        "runs:export_card",
        "Writes the agent of a run as a directory that others can use: weights, ONNX file, config, "
        "scores, an episode as GIF, a README with the lines that run it. rlrun eval, play and "
        "rlrun.load take it.",
        (("RUN_DIR OUT", "writes its agent as a directory for others"),),
        (RUN_DIR,
         arg("out", type=Path, metavar="OUT", help="a new or empty directory"),
         weights("as for rlrun eval"),
         TOLERANCE,
         flag("--no-gif", "no picture of an episode")),
        "./card is a run directory of this name: rlrun export ./card DATA_DIR",
    ),
    "tensorboard": Command(
        "tensorboard:serve",
        "Starts TensorBoard for runs on this machine, under short names and with the columns in "
        "which they differ, and prints its address. Ctrl-C ends it.",
        (("[DIR ...] [--port N]", "charts of runs in a browser, on this machine"),),
        (arg("dirs", nargs="*", default=["outputs"], metavar="DIR",
             help="runs, sweeps, or directories above them; default: outputs"),
         arg("--port", type=PORT, metavar="N",
             help="default: 6006, or a free one where it is taken")),
    ),
    "tensorboard-rebuild": Command(
        "tensorboard:rebuild",
        "Writes the TensorBoard event files of a run anew, from metrics.jsonl and timings.jsonl.",
        (("RUN_DIR", "writes its event files anew from its records"),), (RUN_DIR,),
    ),
    "codec": Command(
        "runs:codec_bench",
        "Measures size and speed of every coder on runs, datasets, .npy, .npz and .safetensors "
        "files.",
        (("bench RUN_DIR|FILE ...", "what coders make of its weights and rows"),),
        (arg("what", choices=("bench",), help="what is done"),
         arg("paths", type=_checked(READABLE, Path, os.path.exists), nargs="+",
             metavar="RUN_DIR|FILE"),
         arg("--plot", type=Path, metavar="FILE.png", help="plot the ratio over training")),
    ),
    "doctor": Command(
        "doctor:doctor",
        "Says what a bug report needs; of RUN_DIR: what looks wrong with the run, and which key to "
        "try; of env=NAME: what can be checked of an environment from outside.",
        (("RUN_DIR", "what looks wrong with a run; which key to try"),
         ("env=NAME [env.KEY=VALUE]", "what can be checked of an environment"),
         ("", "what a bug report needs")),
        (CONFIG_DIR,
         arg("words", nargs="*", default=[], metavar="RUN_DIR|KEY=VALUE",
             help="runs, sweeps, directories above them; env=NAME env.KEY=VALUE")),
    ),
    "list": Command(
        "help:list_options",
        "Lists policies, environments, wrappers and experiments, or the options of one group.",
        (("[GROUP [WORD ...]]", "what there is"),),
        (arg("group", nargs="?", metavar="GROUP", help="policy, env, wrappers, torso, …"),
         arg("words", nargs="*", metavar="WORD",
             help="only options with it in their name or text"),
         CONFIG_DIR),
    ),
    "help": Command(
        "help:explain", "Explains a key, a group, an option, a topic or a subcommand.",
        (("KEY|GROUP|TOPIC", "default, range, unit and source of a key"),),
        (arg("words", nargs="*", metavar="KEY|GROUP|TOPIC"), CONFIG_DIR),
    ),
}  # fmt: skip


def split_command(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (name of the subcommand, its words): one or two words name it; None: none do."""
    for count in (2, 1):
        if (name := " ".join(argv[:count])) in COMMANDS and len(argv) >= count:
            return name, list(argv[count:])
    return None, list(argv)


def run_command(name: str, argv: Sequence[str]) -> int:
    """Parse the words of a subcommand and run it. Return the exit code.

    Its function returns the code, or a text, which is printed; anything else is for Python.

    Raises: RlrunError.
    """
    module, _, function = COMMANDS[name].run.partition(":")
    args = parser_of(name).parse_intermixed_args(list(argv))
    try:
        result = getattr(import_module(f"rlrun.cli.{module}"), function)(args)
        if isinstance(result, str):
            print(result)
    except (RlrunError, BrokenPipeError):
        raise
    except Exception as e:
        from rlrun.cli.error_report import job_error

        run_dir = getattr(args, "run_dir", None)
        raise job_error(e, run_dir if isinstance(run_dir, Path) else None) from e
    return result if isinstance(result, int) else 0


def parser_of(name: str) -> "argparse.ArgumentParser":
    """Return the parser of a subcommand."""
    import argparse

    command = COMMANDS[name]
    shape = partial(argparse.HelpFormatter, max_help_position=26, width=width())
    parser = argparse.ArgumentParser(
        f"rlrun {name}", description=command.about, epilog=command.more, formatter_class=shape
    )
    raise_usage_errors(parser)
    for names, options in command.arguments:
        parser.add_argument(*names, **options)
    return parser


def raise_usage_errors(parser: "argparse.ArgumentParser") -> None:
    """Let a parser raise ConfigError for words that it does not take."""

    def error(message: str) -> NoReturn:
        fix = "correct the command"
        if message.startswith("unrecognized arguments: ") and parser.prog == "rlrun compare":
            fix = "A and B are one argument each: put a glob in quotes"
        raise ConfigError(f"{parser.prog}: {message}; see rlrun --help; {fix}")

    parser.error = error  # type: ignore[method-assign]
