"""Evaluation of a finished run's weights."""

import sys
from pathlib import Path
from typing import Any

import torch

from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy, prepare_process
from rlrun.config import load
from rlrun.pipeline.evaluate import Evaluator
from rlrun.pipeline.serial import CHECKPOINTS
from rlrun.rundir import checkpoint, history


def evaluate_run(
    run_dir: Path,
    *,
    episodes: int | None,
    weights: str,
    seed: int | None,
    device: str | None,
) -> int:
    """Print the greedy score of a run's weights on seeds that training never used.

    ``weights``: final, best, or the env step of a version that checkpoint.history keeps.
    """
    config, _ = load(run_dir, [f"device={device}"] if device else [], replay=False)
    plan = make_plan(config)
    prepare_process(plan)
    directory = run_dir / CHECKPOINTS
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    if weights.isdecimal():
        tensors, meta = history.load(directory / history.DIRECTORY, int(weights))
    else:
        name = {"final": "last", "best": "best"}[weights]
        tensors, meta = checkpoint.load_weights(directory / f"{name}.safetensors")
    evaluator = Evaluator(
        config.env,
        episodes=episodes or config.run.eval_episodes,
        seed=plan.env_seeds.final if seed is None else seed,
        max_steps=config.eval.max_episode_steps,
        agents=config.agents,
    )
    policy = make_policy(plan)
    with checkpoint.fitting(directory):
        policy.load(tensors)
        env_steps = int(meta["env_steps"])
    try:
        result = evaluator.run(policy, env_steps=env_steps).summary()
    finally:
        evaluator.close()
    for key, value in result.items():
        print(f"{key:14s} {value:g}")
    sys.stdout.flush()
    return 0
