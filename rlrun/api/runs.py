"""Training from Python: start a run, go on with one."""

import os
from collections.abc import Sequence

from rlrun.api.calls import check_words, errors_of_cli, running_call, trust_words
from rlrun.api.run import Run
from rlrun.errors import ConfigError

_OWN_LOGGING = ("hydra/hydra_logging", "hydra/job_logging")  # of the command line's process


@errors_of_cli
def train(
    *overrides: str,
    quiet: bool = False,
    config_dir: str | os.PathLike[str] | None = None,
    trust: Sequence[str] = (),
) -> Run:
    """Train to the end of a run, as ``rlrun KEY=VALUE ...`` does, and return the run.

    ``overrides``: those of the command line: ``rlrun.train("policy=r2d2", "env=cartpole")``.
    ``quiet``: nothing is printed. ``config_dir``: a directory with yaml files of your own.
    ``trust``: packages whose code the config may name.

    The first Ctrl-C (or SIGTERM) saves the run and raises Interrupted, the second raises
    KeyboardInterrupt. Signals arrive in the main thread only.

    Raises:
        RlrunError: one of the classes of ``rlrun.errors``, with the line that the command line
            prints; nothing is printed.
    """
    words = check_words(overrides, "rlrun.train")
    flags = [] if config_dir is None else ["--config-dir", os.fspath(config_dir)]
    with running_call([*words, *flags, *quiet * ["-q"], *trust_words(trust)], trust):
        from rlrun.cli.run import new_run, read_line
        from rlrun.config import Composer

        composer = Composer(config_dir=None if config_dir is None else os.fspath(config_dir))
        words = [*words, *_without_logging(words)]
        line = read_line(composer, words, quiet=quiet, own_process=False)
        if line.asks_for_sweep:
            wrong = "asks for a sweep; rlrun.train runs once"
            raise ConfigError(f"hydra.mode: {wrong}; leave it out, or use rlrun.sweep")
        new = new_run(line)
        new.run()
    return Run(new.run_dir)


@errors_of_cli
def resume(
    run_dir: str | os.PathLike[str],
    *overrides: str,
    quiet: bool = False,
    discard: bool = False,
    trust: Sequence[str] = (),
) -> Run:
    """Go on with a run, as ``rlrun resume RUN_DIR KEY=VALUE ...`` does, and return it.

    ``run_dir``: a run directory or a ``Run``; ``DIR@ENV_STEP``: from the checkpoint of that env
    step. ``discard``: delete the checkpoints and records after it. The other arguments, signals and
    errors are those of ``train``.
    """
    words = check_words(overrides, "rlrun.resume")
    text = os.fspath(run_dir)
    flags = [*quiet * ["-q"], *discard * ["--discard"], *trust_words(trust)]
    with running_call(["resume", text, *words, *flags], trust):
        from rlrun.cli.run import resume_run
        from rlrun.run.branch import split_step
        from rlrun.sweeps.record import is_sweep

        path, step = split_step(text)
        if step is None and is_sweep(path):
            wrong = "is the directory of a sweep; that of a run is allowed"
            raise ConfigError(f"RUN_DIR = {path}: {wrong}; on a command line: rlrun resume {path}")
        silent = ["logger.progress=off"] if quiet else []
        resume_run(path, step, [*words, *silent], discard=discard, own_process=False)
    return Run(path)


def _without_logging(words: Sequence[str]) -> list[str]:
    """Overrides that keep Hydra from configuring the process's logging, where none asks for it."""
    asked = any("_logging" in word or word.startswith("hydra.verbose") for word in words)
    return [] if asked else [f"{name}=none" for name in _OWN_LOGGING]
