"""Evaluation of a finished run's weights."""

import sys
from pathlib import Path

from rlrun.pipeline.evaluate import Evaluator
from rlrun.run.trained import load_trained


def evaluate_run(
    run_dir: Path,
    *,
    episodes: int | None,
    weights: str,
    seed: int | None,
    device: str | None,
) -> int:
    """Print the greedy score of a run's weights on seeds that training never used.

    ``weights``, ``device``: as for ``load_trained``.
    """
    trained = load_trained(run_dir, weights=weights, device=device)
    config = trained.plan.config
    evaluator = Evaluator(
        config.env,
        episodes=episodes or config.run.eval_episodes,
        seed=trained.plan.env_seeds.final if seed is None else seed,
        max_steps=config.eval.max_episode_steps,
        agents=config.agents,
    )
    try:
        result = evaluator.run(trained.policy, env_steps=trained.env_steps).summary()
    finally:
        evaluator.close()
    for key, value in result.items():
        print(f"{key:14s} {value:g}")
    sys.stdout.flush()
    return 0
