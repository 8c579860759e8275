"""What is done with a run that was: its weights are scored, its replay becomes a dataset."""

import sys
from pathlib import Path
from typing import Any

import torch

from rlrun.build.pipeline import env_seed, make_collector, spec_of
from rlrun.build.policy import make_policy
from rlrun.build.replay import make_replay, write_rows
from rlrun.config import load
from rlrun.env import Env
from rlrun.errors import ConfigError
from rlrun.pipeline.evaluate import Evaluator
from rlrun.pipeline.serial import CHECKPOINTS
from rlrun.run.life import set_threads
from rlrun.rundir import checkpoint, history
from rlrun.schema import Config
from rlrun.types import Counters


def evaluate_run(
    run_dir: Path,
    *,
    episodes: int | None,
    weights: str,
    seed: int | None,
    device: str | None,
) -> int:
    """Print the greedy score of a run's weights on seeds training never used.

    ``weights``: final, best, or the env step of a version that checkpoint.history kept.
    """
    config, _ = load(run_dir, [f"device={device}"] if device else [], replay=False)
    set_threads(config)
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
        seed=env_seed(config.seed, "final") if seed is None else seed,
        agents=config.agents,
    )
    env: Env = evaluator.env
    policy = make_policy(config, spec_of(config, env))
    policy.load(tensors)
    try:
        result = evaluator.run(policy, env_steps=int(meta["env_steps"])).summary()
    finally:
        evaluator.close()
    for key, value in result.items():
        print(f"{key:14s} {value:g}")
    sys.stdout.flush()
    return 0


def export_run(
    run_dir: Path,
    data_dir: Path,
    config: Config,
    *,
    raw_yaml: str,
    shard_rows: int,
    last: int | None = None,
    coder: str | None = None,
) -> None:
    """Write the replay of a run's newest checkpoint as a dataset directory.

    ``last``: only the newest rows, all environments together; ``coder``: shards are coded with it.

    Raises: CheckpointError, ConfigError, StorageError.
    """
    state, path = checkpoint.load_newest(run_dir / CHECKPOINTS)
    collector = make_collector(config, Counters())
    try:
        window = collector.policy.window
        if window is None or "buffer" not in state:
            raise ConfigError(
                f"policy.name = {config.policy.name}: it keeps no replay; allowed is a run of a "
                "policy with a replay; export another run"
            )
        replay = make_replay(config, collector.example(), window)
        saved = state["buffer"]
        replay.load_rows(saved.get("own", saved))  # demonstrations are somebody else's rows
        source = {"run": run_dir.name, "checkpoint": path.name, **state["counters"]}
        source |= {"policy": config.policy.name, "env": config.env.id, "seed": config.seed}
        write_rows(
            replay, collector.env, data_dir, config_text=raw_yaml, meta=source,
            shard_rows=shard_rows, last=last, coder=coder,
        )  # fmt: skip
    finally:
        collector.env.close()
