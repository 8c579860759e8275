"""Sick runs for the tests of ``rlrun doctor``: healthy ones with one symptom written over.

``x`` is the share of a run's env steps that is done. The runs in ``healthy/``, of seed 0 and
solved: ``policy=dqn env=cartpole``, ``policy=ppo env=cartpole``, ``policy=r2d2 env=cartpole``,
``policy=r2d2 env=tmaze``, ``policy=sac env=pendulum``; their floats have six digits, of their times
every fourth is kept.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlrun.reports.runs import read_run
from rlrun.run.files import read_record, seal
from rlrun.schema.spelling import with_present_names
from tests.reports.forge import merged

HEALTHY = Path(__file__).parent / "healthy"

Values = float | Callable[[float], float] | None  # None: the metric is left out
UNSOLVED = {"run.stop_return": 1e6}


@dataclass(frozen=True)
class Case:
    """A sick run: what is written over, and of which run."""

    run: str
    metrics: dict[str, Values] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Values] = field(default_factory=dict)


def noise(x):
    """Within the noise of evaluations, the same at every call."""
    return 0.3 * math.sin(1000 * x)


def flat(level):
    """A score that never changes but by noise, of both policies."""
    same = dict.fromkeys(("eval/return_mean", "collect/return_mean"), lambda x: level + noise(x))
    return same | {"eval/return_std": 1.5}


def returns(value):
    names = [f"{w}/return_{n}" for w in ("eval", "collect") for n in ("mean", "min", "max")]
    return dict.fromkeys(names, value) | {"eval/return_std": 0.0}


NO_TRAIN = dict.fromkeys(
    ("updates", "loss", "lr", "grad_norm", "td_abs", "q_taken", "target", "valid_fraction",
     "replay_ratio"), None)  # fmt: skip
CASES = {
    "failed": Case("dqn", record={"status": "failed", "exit_code": 4}),
    "damaged": Case("dqn", {"eval/return_mean": math.nan}),
    "interrupted": Case("dqn", record={"status": "interrupted", "exit_code": 75}),
    "restarts": Case("dqn", {"collect/restarts": lambda x: float(x > 0.5)}),
    "slow": Case("r2d2", times={"time/eval_seconds": lambda x: 900 * x}),
    "no updates": Case(
        "dqn",
        {f"train/{name}": x for name, x in NO_TRAIN.items()} | flat(9.3),
        {"learner.learning_starts": 100_000},
        record={"updates": 0},
    ),
    "late learning": Case("dqn", flat(9.3), {"learner.learning_starts": 50_000}),
    "rollbacks": Case("dqn", record={"rollbacks": 3}),
    "large step size": Case("dqn", {"train/lr": 0.3} | flat(9.3), {"policy.lr": 0.3}),
    "overestimation": Case(
        "dqn",
        {"train/q_taken": lambda x: 3 * 300**x, "train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3),
        {"policy.double": False},
    ),
    "no target network": Case("r2d2", {"train/target_lag": 0.0}, {"policy.target_tau": 1.0}),
    "target stands still": Case("r2d2", flat(9.3), {"policy.target_tau": 1e-6}),
    "large errors": Case("ppo", {"train/value_loss": 1e7, "train/explained_variance": 0.0}),
    "gradients clipped": Case("r2d2", {"train/grad_norm": 900.0}),
    "loss grows": Case("dqn", {"train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3)),
    "gradients vanish": Case("dqn", {"train/grad_norm": 1e-9} | flat(9.3)),
    "dead units": Case("dqn", {"train/dead_units": lambda x: 0.3 + 0.5 * x} | flat(9.3)),
    "learning rate gone": Case(
        "dqn", {"train/lr": lambda x: 1e-3 * math.exp(-40 * x)}, {"policy.lr.over": 2000}
    ),
    "tiny rewards": Case("dqn", returns(1e-6) | {"eval/return_max": 2e-6} | {
        "collect/return_mean": lambda x: 1e-6 * x}),
    "small buffer": Case(
        "dqn",
        {"buffer/fill": 1.0, "buffer/windows": 1450.0, "buffer/sample_age": 700.0,
         "buffer/late_priorities": 4e5},
        {"buffer.capacity": 1500},
    ),
    "early evictions": Case(
        "r2d2", {"buffer/early_evictions": 900.0}, {"buffer.window_capacity": 500}
    ),
    "much replay": Case(
        "dqn",
        {"train/replay_ratio": 6000.0, "train/dead_units": 0.7} | flat(9.3),
        {"learner.replay_ratio": 6000},
    ),
    "little replay": Case("dqn", {"train/replay_ratio": 0.1} | flat(9.3),
                          {"learner.replay_ratio": 0.1}),
    "priorities collapsed": Case("tmaze", {"buffer/priority_ess": 0.002, "buffer/windows": 9000.0}),
    "extreme weights": Case("tmaze", {"buffer/weight_spread": 3.5}),
    "stale states": Case(
        "tmaze", {"train/delta_q_stored_last": 1.4} | flat(0.3), {"policy.burnin_step": 0}
    ),
    "padding": Case("tmaze", {"train/valid_fraction": 0.2}, {"policy.learn_unroll_len": 80}),
    "rows lost": Case("tmaze", {"buffer/learned_fraction": 0.55}, {"collector.tiling": "plain"}),
    "late priorities": Case("tmaze", {"buffer/late_priorities": 3e4}),
    "short horizon": Case("r2d2", flat(30.0), {"policy.gamma": 0.1}),
    "long horizon": Case("r2d2", flat(30.0), {"policy.gamma": 0.9999}),
    "long returns": Case("dqn", flat(9.3), {"policy.nstep": 20}),
    "still exploring": Case("dqn", {"collect/epsilon_mean": 0.9} | flat(9.3),
                            {"explore.epsilon.over": 10**6, "run.total_steps": 22_031}),
    "no exploration": Case("dqn", {"collect/epsilon_mean": 0.0, "collect/action_entropy": 0.01},
                           {"explore.epsilon.over": 100, "explore.epsilon.end": 0.0}),
    "schedule outlasts run": Case("dqn", keys={"policy.lr.over": 10**7}),
    "entropy collapsed": Case("ppo", {"train/entropy": lambda x: 0.7 * math.exp(-30 * x),
                                      "collect/action_entropy": 0.01} | flat(9.3)),
    "one action": Case("r2d2", {"collect/action_entropy": 0.004} | flat(9.3)),
    "large steps": Case("ppo", {"train/approx_kl": 0.4, "train/clip_fraction": 0.7}),
    "explained variance": Case("ppo", {"train/explained_variance": -0.2}),
    "greedy is stuck": Case("r2d2", flat(9.3) | {"collect/return_mean": lambda x: 9 + 200 * x}),
    "endless episodes": Case("dqn", {"eval/cut_episodes": 7.0}),
    "forgetting": Case("dqn", dict.fromkeys(
        ("eval/return_mean", "collect/return_mean"), lambda x: 300 * math.sin(3 * x) + noise(x)
    ) | {"eval/return_std": 5.0}),
    "constant score": Case("dqn", returns(-200.0)),
    "no progress": Case("sac", {"eval/return_mean": lambda x: -900 + 9 * noise(x),
                                "collect/return_mean": -900.0}),
}  # fmt: skip


def write_over(path, changes, total):
    """Write over metrics; one that a record lacks goes into those with a return of its group."""
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        x = record["env_steps"] / total
        for name, values in changes.items():
            group = name.partition("/")[0]
            evaluated = name == "train/delta_q_stored_last" or group == "eval"
            here = name in record or (group != "time" and name not in line and (
                "eval/return_mean" in record) == evaluated)  # fmt: skip
            if name in ("train/target_lag", "train/dead_units"):
                here = name in record
            if here:
                record[name] = values(x) if callable(values) else values
        kept = {name: value for name, value in record.items() if value is not None}
        lines.append(json.dumps(kept) + "\n")
    path.write_text("".join(lines))


@cache
def config_of(name):
    config = yaml.safe_load((HEALTHY / name / "config.yaml").read_text())
    present: dict[str, Any] = with_present_names(config)  # the runs are of an earlier version
    return present


def sick(case, path):
    shutil.copytree(HEALTHY / case.run, path)
    keys = merged(config_of(case.run), UNSOLVED | case.keys)
    (path / "config.yaml").write_text(yaml.safe_dump(keys))
    record = read_record(path)
    steps = record["env_steps"]
    (path / "run.json").write_bytes(seal(record | case.record))
    write_over(path / "metrics.jsonl", case.metrics, steps)
    write_over(path / "timings.jsonl", case.times, steps)
    return read_run(path)
