"""Evaluation of a finished run's weights."""

import sys
from pathlib import Path

from rlrun.pipeline.evaluate import Evaluator
from rlrun.run.play import VideoShow
from rlrun.run.trained import load_trained


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
