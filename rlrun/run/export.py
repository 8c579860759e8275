"""Export of a run's replay as a dataset."""

from pathlib import Path
from typing import Any

from rlrun.buffer.replay import Replay
from rlrun.dataset import write_dataset
from rlrun.errors import ConfigError
from rlrun.run import checkpoint
from rlrun.run.build import make_replay
from rlrun.run.manifest import CHECKPOINTS
from rlrun.run.plan import make_plan
from rlrun.schema import Config
from rlrun.types import Spec

WRITTEN_ROWS = 1024  # rows of a column that a replay yields at a time


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

    ``last``: export only so many newest rows of all environments together. ``coder``: of the
    shards.

    Raises: CheckpointError, ConfigError, StorageError.
    """
    state, path = checkpoint.load_newest(run_dir / CHECKPOINTS)
    plan = make_plan(config)
    if plan.window is None or "buffer" not in state:
        raise ConfigError(
            f"policy.name = {config.policy.name}: it keeps no replay; allowed is a run of a "
            "policy with a replay; export another run"
        )
    saved = state["buffer"]
    if "streams" in saved:
        raise ConfigError(
            f"pipeline.num_actors = {len(saved['streams'])}: every collector has rows of its own; "
            "allowed is a run with one collector; export such a run"
        )
    replay = make_replay(plan)
    with checkpoint.fitting(path):
        replay.load_rows(saved.get("own", saved))  # without demonstrations
        source = {"run": run_dir.name, "checkpoint": path.name, **state["counters"]}
    source |= {"policy": config.policy.name, "env": config.env.id, "seed": config.seed}
    export_replay(
        replay, data_dir, config_text=raw_yaml, spec=plan.row_spec, meta=source,
        shard_rows=shard_rows, last=last, coder=coder,
    )  # fmt: skip


def export_replay(
    replay: Replay,
    out: Path,
    *,
    config_text: str,
    spec: Spec,
    meta: dict[str, Any],
    shard_rows: int,
    last: int | None = None,
    coder: str | None = None,
) -> None:
    """Write the rows of a replay and the states of its windows as the dataset ``out``.

    ``last``: number of newest rows over all columns, rounded up to equal columns.

    Raises: ConfigError, StorageError, as ``write_dataset``.
    """
    row, column, leaves = replay.stored_states()
    ring = replay.ring
    skip = 0 if last is None else max(0, ring.head - ring.oldest - -(-last // ring.columns))
    states = row - ring.oldest - skip, column, leaves
    write_dataset(
        out, replay.stored(WRITTEN_ROWS, skip=skip), spec=spec, states=states,
        meta={**meta, "config": config_text}, shard_rows=shard_rows, coder=coder,
    )  # fmt: skip
