"""Trained policies from Python: load, evaluate, show, export."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlrun.api.calls import StrPath, arguments, call, directory_of, errors_of_cli, running_call
from rlrun.cli import runs
from rlrun.config import load as load_config
from rlrun.errors import ConfigError

if TYPE_CHECKING:
    from rlrun.run.agent import Agent
    from rlrun.run.evaluate import Episode


@errors_of_cli
def load(
    run_dir: StrPath,
    weights: str | int = "final",
    *,
    device: str | None = None,
    trust: Sequence[str] = (),
) -> "Agent":
    """Return the agent of a run: its policy with trained weights.

    ``run_dir``: a run directory, a ``Run`` or an exported agent. ``weights``: ``final``, ``best``
    (of the best evaluation) or the env step of a version that ``checkpoint.history`` kept.
    ``device`` None: that of the run. ``trust``: packages whose code the run's config may name.

    Raises:
        ConfigError: it is not a run directory. CheckpointError: it has no such weights, or they are
            damaged. ResourceError: the device is missing.
    """
    path, name = directory_of(run_dir), str(weights)
    with call(trust):
        if name not in ("final", "best") and not (name.isascii() and name.isdecimal()):
            raise ConfigError(
                f"weights = {name[:60]}: unknown; final, best and a number of env steps are "
                'allowed; e.g. weights="best"'
            )
        overrides = [f"device={device}"] if device else []
        load_config(path, overrides, replay=False)  # before torch is imported
        from rlrun.run.agent import load_agent

        return load_agent(path, weights=name, device=device)


@errors_of_cli
def evaluate(
    run_dir: StrPath,
    weights: str | int = "final",
    *,
    episodes: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    video: StrPath | None = None,
    overrides: Sequence[str] = (),
    trust: Sequence[str] = (),
) -> dict[str, float]:
    """Return the greedy score of a run, as ``rlrun eval RUN_DIR``: return_mean, return_std, ...

    ``episodes`` None: ``run.eval_episodes`` of the run. ``seed`` None: one that training never uses
    for evaluations. ``video``: a new file, .mp4 or .gif. ``overrides``: ``["env.length=100"]``,
    keys of the environment and of ``eval``. Other arguments are those of ``load``.

    Raises: as ``load``; ConfigError for a wrong argument.
    """
    words = [overrides] if isinstance(overrides, str) else overrides
    args = arguments(
        "eval", directory_of(run_dir), *words, weights=weights, episodes=episodes, seed=seed,
        device=device, video=video,
    )  # fmt: skip
    with _acting(trust):
        return runs.score_of(args)


@errors_of_cli
def play(
    run_dir: StrPath,
    weights: str | int = "final",
    *,
    episodes: int = 1,
    seed: int | None = None,
    device: str | None = None,
    video: StrPath | None = None,
    traces: bool = False,
    fps: float | None = None,
    max_steps: int | None = None,
    overwrite: bool = False,
    trust: Sequence[str] = (),
) -> "list[Episode]":
    """Show greedy episodes in a window or in the file ``video``, as ``rlrun play RUN_DIR``.

    ``traces``: draw recurrent state, Q or probabilities and reward next to the picture.
    ``overwrite``: replace the file. Other arguments are those of ``evaluate``.

    Returns:
        total (return), length and cut (it did not end by itself) of every episode shown.

    Raises: as ``evaluate``; ResourceError if no window can be opened.
    """
    args = arguments(
        "play", directory_of(run_dir), weights=weights, episodes=episodes, seed=seed,
        device=device, video=video, traces=traces, fps=fps, max_steps=max_steps,
        overwrite=overwrite,
    )  # fmt: skip
    with _acting(trust):
        return runs.play(args)


@errors_of_cli
def export_policy(
    run_dir: StrPath,
    onnx: StrPath,
    weights: str | int = "final",
    *,
    tolerance: float | None = None,
    overwrite: bool = False,
    trust: Sequence[str] = (),
) -> str:
    """Write the greedy policy of a run as the ONNX file ``onnx``, as ``rlrun export policy``.

    ``tolerance``: largest difference from the actor. Returns a line that describes the file.

    Raises: as ``load``; NumericError if the graph's results differ from the actor's, StorageError
    if the file cannot be written, ResourceError if a package is missing.
    """
    args = arguments(
        "export policy", directory_of(run_dir), onnx=onnx, weights=weights, tolerance=tolerance,
        overwrite=overwrite,
    )  # fmt: skip
    with _acting(trust):
        return runs.export_policy(args)


@errors_of_cli
def export_card(
    run_dir: StrPath,
    out: StrPath,
    weights: str | int = "final",
    *,
    tolerance: float | None = None,
    gif: bool = True,
    trust: Sequence[str] = (),
) -> str:
    """Write the agent of a run as the new directory ``out``, as ``rlrun export card``.

    ``load``, ``evaluate`` and ``play`` take the directory. ``gif``: film an episode if the
    environment can be drawn. Other arguments are those of ``export_policy``.
    """
    args = arguments(
        "export card", directory_of(run_dir), directory_of(out), weights=weights,
        tolerance=tolerance, no_gif=not gif,
    )  # fmt: skip
    with _acting(trust):
        return runs.export_card(args)


@contextmanager
def _acting(trust: Sequence[str]) -> Iterator[None]:
    """Apply ``running_call`` and restore the process's generators and threads after the block."""
    with running_call([], trust):
        from rlrun.pipeline.state import process_restored

        with process_restored():
            yield
