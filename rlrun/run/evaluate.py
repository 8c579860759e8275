"""Evaluation of a finished run's weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlrun.config import load
from rlrun.errors import ConfigError
from rlrun.pipeline.evaluate import SIDE, Evaluator, Watch, WatchedRow
from rlrun.run.agent import load_trained
from rlrun.run.hparams import policy_title
from rlrun.run.plan import Plan, make_plan
from rlrun.schema import Config
from rlrun.video.files import EpisodeWindow, Panels, VideoFile, enlarged


class Episode(NamedTuple):
    """Return and length of an episode. ``cut``: it did not end by itself."""

    total: float
    length: int
    cut: bool


def play_run(
    run_dir: Path,
    *,
    episodes: int,
    weights: str,
    seed: int | None,
    device: str | None,
    video: Path | None,
    traces: bool,
    fps: float | None,
    max_steps: int,
) -> list[Episode]:
    """Show ``episodes`` one after the other, in a window or in the file ``video``, and return them.

    They are those of ``rlrun eval --episodes 1`` and the following ones in the same environment.
    After a cut episode, the environment is reset with the next seed. ``weights``, ``device``: as
    for ``load_trained``. ``traces``: draw panels next to the picture. ``fps``: frames per second;
    None: those of the environment. ``max_steps``: of an episode.
    """
    trained = load_trained(run_dir, weights=weights, device=device)
    config = trained.plan.config
    evaluator = Evaluator(
        config.env, episodes=episodes, seed=trained.plan.env_seeds.final if seed is None else seed,
        max_steps=min(max_steps, config.eval.max_episode_steps), agents=config.agents, envs=1,
        render=True,
    )  # fmt: skip
    evaluator.warned = True  # the lines of cut episodes say so
    fps = fps or evaluator.env.fps
    with closing(evaluator):
        title = f"{policy_title(config, run_dir)} on {config.env.id}"
        with showing(video, traces=traces, fps=fps, title=title) as show:
            while (shown := len(show.episodes)) < episodes and not show.stop():
                evaluator.episodes[:], show.earlier = episodes - shown, shown
                evaluator.run_until(
                    show.stop, trained.policy, env_steps=trained.env_steps, watch=show.watch
                )
                evaluator.seed += 1
    return show.episodes


class Show:
    """Frames of a watched evaluation, optionally with panels next to them."""

    def __init__(
        self,
        add: Callable[[np.ndarray], None],
        stop: Callable[[], bool] = lambda: False,
        *,
        traces: bool,
    ) -> None:
        """``add``: shows a frame, uint8 [H, W, 3]. ``stop``: returns whether the show is over."""
        self.add, self.stop, self.panels = add, stop, Panels() if traces else None
        self.watch = Watch(self.row, self.episode)
        self.episodes: list[Episode] = []  # that have ended or were cut
        self.earlier = 0  # how many of them before the watched evaluation

    def row(self, shown: WatchedRow) -> None:
        if self.panels is None:
            self.add(enlarged(shown.picture, side=SIDE))
            return
        frame = self.panels.beside(
            shown.picture, episode=self.earlier + shown.episode, t=shown.t, reward=shown.reward,
            total=shown.total, reading=shown.reading,
        )  # fmt: skip
        self.add(frame)

    def episode(self, number: int, total: float, length: int, *, cut: bool) -> None:
        """Print the result of an episode that has ended or was cut."""
        self.episodes.append(Episode(total, length, cut))
        steps = f"{length} step{'s' * (length != 1)}"
        text = f"episode {self.earlier + number + 1}: return {total:g}, {steps}"
        print(f"{text}, cut" if cut else text, flush=True)


@contextmanager
def showing(video: Path | None, *, traces: bool, fps: float, title: str = "") -> Iterator[Show]:
    """Show frames in the file ``video``, or with None in a window, which ends the show if closed.

    The file exists once the block has ended without an error.
    """
    if video is None:
        with closing(EpisodeWindow(title, fps=fps)) as window:
            yield Show(window.add, lambda: window.closed, traces=traces)
        return
    with VideoFile(video, fps=fps) as file:
        yield Show(file.add, traces=traces)
    print(f"{video}: {file.frames} frames, {file.frames / fps:.1f} s", flush=True)


def _evaluated_config(
    plan: Plan, run_dir: Path, overrides: Sequence[str], device: str | None
) -> Config:
    """Return the config of a run with ``overrides``, which leave the spaces of ``plan`` alone."""
    typed = [*overrides, *([f"device={device}"] if device else [])]
    config, _ = load(run_dir, typed, replay=False, evaluation=True)
    new = make_plan(config)
    shapes = [(p.policy_spec, p.columns_per_env) for p in (plan, new)]
    if shapes[0] != shapes[1]:
        spaces, trained = (f"{p.policy_spec.obs} and {p.policy_spec.action}" for p in (new, plan))
        raise ConfigError(
            f"{', '.join(overrides)}: the environment has the spaces {spaces}; {trained}, those of "
            "training, are allowed; leave out what changes them"
        )
    return config


def evaluate_run(
    run_dir: Path,
    *,
    episodes: int | None,
    weights: str,
    seed: int | None,
    device: str | None,
    video: Path | None = None,
    traces: bool = False,
    fps: float | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, float]:
    """Return the greedy score of a run's weights on seeds that training never uses.

    ``weights``, ``device``: as for ``load_trained``. ``video``: a file with the episodes of the
    first environment, drawn while they are scored. ``traces``, ``fps``: as for ``play_run``.
    ``overrides``: of keys of the environment and of ``eval``.

    Raises: as ``load_trained``; ConfigError if the overrides change spaces.
    """
    trained = load_trained(run_dir, weights=weights, device=device)
    config = trained.plan.config
    if overrides:
        config = _evaluated_config(trained.plan, run_dir, overrides, device)
    evaluator = Evaluator(
        config.env, episodes=episodes or config.run.eval_episodes,
        seed=trained.plan.env_seeds.final if seed is None else seed,
        max_steps=config.eval.max_episode_steps, agents=config.agents, render=video is not None,
    )  # fmt: skip
    run = partial(evaluator.run, trained.policy, env_steps=trained.env_steps)
    with closing(evaluator):
        if video is None:
            return run().summary()
        with showing(video, traces=traces, fps=fps or evaluator.env.fps) as show:
            result = run(watch=show.watch)
    return result.summary()
