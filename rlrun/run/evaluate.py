"""Evaluation of a finished run's weights."""

import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from rlrun.pipeline.evaluate import Evaluator, Watch, WatchedRow
from rlrun.run.agent import load_trained
from rlrun.run.hparams import policy_title
from rlrun.video.files import EpisodeWindow, Panels, VideoFile, enlarged

SIDE = 320  # pixels, about, of the longer side of a small picture


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
) -> int:
    """Show ``episodes`` one after the other, in a window or in the file ``video``.

    They are those of ``rlrun eval --episodes 1`` and what follows in the same environment; after
    an episode that was cut, it is reset with the next seed.
    ``weights``, ``device``: as for ``load_trained``. ``traces``: panels beside the picture.
    ``fps``: frames per second, None: those of the environment. ``max_steps``: of an episode.
    """
    trained = load_trained(run_dir, weights=weights, device=device)
    config = trained.plan.config
    evaluator = Evaluator(
        config.env,
        episodes=episodes,
        seed=trained.plan.env_seeds.final if seed is None else seed,
        max_steps=min(max_steps, config.eval.max_episode_steps),
        agents=config.agents,
        envs=1,
        render=True,
    )
    evaluator.warned = True  # of cut episodes, whose lines say so
    show: VideoShow | WindowShow
    try:
        if video is not None:
            show = VideoShow(video, evaluator, traces=traces, fps=fps)
        else:
            title = f"{policy_title(config, run_dir)} on {config.env.id}"
            show = WindowShow(title, evaluator, traces=traces, fps=fps)
        with show:
            while show.played < episodes and not show.stop():
                evaluator.episodes[:], show.earlier = episodes - show.played, show.played
                evaluator.run_until(
                    show.stop, trained.policy, env_steps=trained.env_steps, watch=show.watch
                )
                evaluator.seed += 1
    finally:
        evaluator.close()
    return 0


class Show(AbstractContextManager["Show"]):
    """Frames of a watched evaluation, with the panels where they are wanted."""

    def __init__(self, evaluator: Evaluator, *, traces: bool, fps: float | None) -> None:
        self.fps = fps or evaluator.env.fps
        self.panels = Panels() if traces else None
        self.watch = Watch(self.row, self.episode)
        self.played, self.earlier = 0, 0  # episodes, all and those before the watched evaluation

    def row(self, shown: WatchedRow) -> None:
        """Show a row."""
        frame = enlarged(shown.picture, side=SIDE)
        if self.panels is not None:
            frame = self.panels.beside(
                shown.picture, episode=self.earlier + shown.episode, t=shown.t, reward=shown.reward,
                total=shown.total, reading=shown.reading,
            )  # fmt: skip
        self.frame(frame)

    def frame(self, frame: np.ndarray) -> None:
        """Show a frame, uint8 [H, W, 3]."""
        raise NotImplementedError

    def episode(self, number: int, total: float, length: int, *, cut: bool) -> None:
        """Print the result of an episode that has ended, or was cut."""
        self.played += 1
        text = f"episode {self.earlier + number + 1}: return {total:g}, {length} steps"
        print(f"{text}, cut" if cut else text, flush=True)

    def stop(self) -> bool:
        """Return whether nothing more is to be shown."""
        return False


class VideoShow(Show):
    """Frames in a file, which is there once the block has ended well."""

    def __init__(
        self, path: Path, evaluator: Evaluator, *, traces: bool, fps: float | None
    ) -> None:
        super().__init__(evaluator, traces=traces, fps=fps)
        self.file, self.stack = VideoFile(path, fps=self.fps), ExitStack()

    def frame(self, frame: np.ndarray) -> None:
        self.file.add(frame)

    def __enter__(self) -> Self:
        self.stack.enter_context(self.file)
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.__exit__(*error)  # type: ignore[arg-type]
        if error[0] is None:
            seconds = self.file.frames / self.fps
            print(f"{self.file.path}: {self.file.frames} frames, {seconds:.1f} s", flush=True)


class WindowShow(Show):
    """Frames in a window; closing it ends the show."""

    def __init__(
        self, title: str, evaluator: Evaluator, *, traces: bool, fps: float | None
    ) -> None:
        super().__init__(evaluator, traces=traces, fps=fps)
        self.window = EpisodeWindow(title, fps=self.fps)

    def frame(self, frame: np.ndarray) -> None:
        self.window.add(frame)

    def stop(self) -> bool:
        return self.window.closed

    def __exit__(self, *error: object) -> None:
        self.window.close()


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
) -> int:
    """Print the greedy score of a run's weights on seeds that training never used.

    ``weights``, ``device``: as for ``load_trained``. ``video``: a file with the episodes of the
    first environment, drawn while they are scored; ``traces``, ``fps``: as for ``play_run``.
    """
    trained = load_trained(run_dir, weights=weights, device=device)
    config = trained.plan.config
    evaluator = Evaluator(
        config.env,
        episodes=episodes or config.run.eval_episodes,
        seed=trained.plan.env_seeds.final if seed is None else seed,
        max_steps=config.eval.max_episode_steps,
        agents=config.agents,
        render=video is not None,
    )
    try:
        if video is None:
            result = evaluator.run(trained.policy, env_steps=trained.env_steps)
        else:
            with VideoShow(video, evaluator, traces=traces, fps=fps) as show:
                watch = show.watch
                result = evaluator.run(trained.policy, env_steps=trained.env_steps, watch=watch)
    finally:
        evaluator.close()
    for key, value in result.summary().items():
        print(f"{key:14s} {value:g}")
    sys.stdout.flush()
    return 0
