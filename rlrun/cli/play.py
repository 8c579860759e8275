"""``rlrun eval`` and ``rlrun play``: greedy episodes with the weights of a run."""

from pathlib import Path

from rlrun.cli import commands
from rlrun.cli.commands import Parser
from rlrun.cli.error_report import report_job_error
from rlrun.errors import ConfigError

MAX_STEPS = 5000  # env steps of an episode that rlrun play shows


def eval_command(argv: list[str]) -> int:
    parser = Parser(prog="rlrun eval", description="Scores the weights of a run, greedily.")
    _add_weights(parser)
    episodes = "default: run.eval_episodes of the run"
    parser.add_argument("--episodes", type=commands.positive, help=episodes)
    video = "the episodes of the first environment as a video, .mp4 or .gif"
    _add_video(parser, video)
    args = parser.parse_args(argv)
    _check(args.run_dir, args.device)
    names = ("episodes", "weights", "seed", "device", "video", "traces", "fps")
    given = {name: getattr(args, name) for name in names}
    if args.video is None and (args.traces or args.fps or args.overwrite):
        flag = next(n for n in ("traces", "fps", "overwrite") if getattr(args, n))
        raise ConfigError(f"--{flag}: is of a video; one is made by --video FILE; add it")
    _check_video(args.video, overwrite=args.overwrite)
    try:
        from rlrun.run.evaluate import evaluate_run

        return evaluate_run(args.run_dir, **given)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def play_command(argv: list[str]) -> int:
    about = "Shows greedy episodes of a run's weights, in a window or, with --video, in a file."
    parser = Parser(prog="rlrun play", description=about)
    _add_weights(parser)
    episodes = "how many; default: %(default)s"
    parser.add_argument("--episodes", type=commands.positive, default=1, help=episodes)
    _add_video(parser, "a video instead of a window, .mp4 or .gif")
    parser.add_argument(
        "--max-steps",
        type=commands.positive,
        default=MAX_STEPS,
        metavar="N",
        help="env steps after which an episode is cut; default: %(default)s",
    )
    args = parser.parse_args(argv)
    _check(args.run_dir, args.device)
    names = ("episodes", "weights", "seed", "device", "video", "traces", "fps", "max_steps")
    given = {name: getattr(args, name) for name in names}
    if args.video is None:
        from rlrun.video.files import require_window

        require_window()
    _check_video(args.video, overwrite=args.overwrite)
    try:
        from rlrun.run.evaluate import play_run

        return play_run(args.run_dir, **given)
    except Exception as e:
        return report_job_error(e, args.run_dir)


def _add_weights(parser: Parser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--weights",
        type=commands.weights,
        metavar="final|best|ENV_STEPS",
        default="final",
        help="ENV_STEPS: a version that checkpoint.history kept; default: %(default)s",
    )
    seed = "default: one no training evaluation used"
    parser.add_argument("--seed", type=commands.seed, help=seed)
    parser.add_argument("--device", help="default: device of the run")
    parser.epilog = "--trust PACKAGE: its code may be run, where the run's config names it"


def _add_video(parser: Parser, about: str) -> None:
    parser.add_argument("--video", type=Path, metavar="FILE", help=about)
    traces = "beside the picture: recurrent state, Q or probabilities, reward"
    parser.add_argument("--traces", action="store_true", help=traces)
    fps = "frames per second; default: that of the environment"
    parser.add_argument("--fps", type=commands.positive_number, metavar="N", help=fps)
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")


def _check(run_dir: Path, device: str | None) -> None:
    from rlrun.config import load

    load(run_dir, [f"device={device}"] if device else [], replay=False)


def _check_video(path: Path | None, *, overwrite: bool) -> None:
    """Raise ConfigError unless ``path`` can be written."""
    if path is not None:
        from rlrun.video.files import require_writable_video

        require_writable_video("--video", path, overwrite=overwrite)
