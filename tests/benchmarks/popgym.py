"""POPGym's levels beside the published best of 13 memories, from ``results/popgym.jsonl``.

``--runs DIR`` first makes or completes the runs that the file lacks in DIR, one after another,
seeds 11 to 13, and adds each of them when it is done, with its weights if its seed is the level's
best: ``rlrun eval tests/benchmarks/results/popgym/LEVEL``. Levels, their arguments and the
published MMER are those of ``conf/bench_tasks.yaml``. Every setting has one value of each key for
all levels; its reward scale is a multiple of the level's.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.benchmarks import runs
from tests.benchmarks.rows import table as markdown
from tests.benchmarks.runs import json_lines

RESULTS = runs.RESULTS / "popgym.jsonl"
AGENTS = runs.RESULTS / "popgym"
AGENT = "config.yaml", "model.json", "model.safetensors"  # what is kept of a card
TASKS = yaml.safe_load((runs.CHECKOUT / "conf/bench_tasks.yaml").read_text("utf-8"))
LEVELS = [name for name in TASKS if name.endswith(("_easy", "_medium", "_hard"))]
SEEDS = 11, 12, 13
EVALUATIONS = 10
SETTINGS = {  # name -> overrides, multiple of the level's reward scale
    "ppo gru": (
        "policy=ppo policy.normalize_obs=false policy.normalize_reward=false "
        "memory=gru memory.hidden=64 policy.prev_inputs=true policy.gamma=0.99 "
        "policy.gae_lambda=0.95 policy.lr.start=1e-3 policy.epochs=6 policy.segment_len=64 "
        "collector.num_envs=64 collector.n_sample=8192 buffer.capacity=65536 "
        "learner.batch_size=1024",
        1,
    ),
    "ppo lstm": (
        "policy=ppo policy.normalize_obs=false policy.entropy_coef=0 "
        "memory=lstm memory.hidden=64 policy.prev_inputs=true policy.gamma=0.99 "
        "policy.gae_lambda=0.95 policy.lr.start=5e-3 policy.epochs=6 policy.segment_len=64 "
        "collector.num_envs=64 collector.n_sample=8192 buffer.capacity=65536 "
        "learner.batch_size=1024",
        1,
    ),
    "ppo lru": (
        "policy=ppo policy.normalize_obs=false policy.normalize_reward=false "
        "memory=lru memory.hidden=64 memory.readout=false memory.r_min=0.99 "
        "memory.r_max=0.9999 memory.max_phase=0.02 torso.hidden=[] policy.head_hidden=[128] "
        "policy.gamma=0 policy.gae_lambda=0 policy.entropy_coef=0.005 policy.lr.start=2e-3 "
        "policy.epochs=4 policy.segment_len=64 collector.num_envs=64 collector.n_sample=4096 "
        "learner.batch_size=512",
        4,
    ),
    "pqn lru": (
        "policy=pqn policy.normalize_reward=false collector.num_envs=32 collector.n_sample=1024 "
        "learner.batch_size=256 "
        "memory=lru memory.hidden=256 memory.readout=false memory.r_min=0.95 memory.r_max=0.999 "
        "torso.hidden=[] policy.head_hidden=[128] policy.gamma=0 "
        "policy.q_lambda=0",
        4,
    ),
}
PLAN = [  # setting, env steps, start of the levels; cheap ones first
    ("pqn lru", 100_000, ("repeat_previous_easy", "repeat_previous_medium")),
    ("pqn lru", 200_000, ("repeat_previous_hard",)),
    ("ppo gru", 400_000, ("position_only_cartpole",)),
    ("ppo lru", 1_000_000, ("count_recall_easy", "count_recall_medium")),
    ("ppo lru", 2_000_000, ("count_recall_hard",)),
    ("pqn lru", 300_000, ("autoencode_easy", "higher_lower")),
    ("pqn lru", 1_000_000, ("autoencode_medium", "autoencode_hard")),
    ("ppo lru", 1_000_000, ("higher_lower",)),
    ("ppo lstm", 1_966_080, ("multiarmed_bandit",)),
    ("ppo gru", 1_966_080, ("noisy_position_only_cartpole",)),
    ("ppo gru", 100_000, ("velocity_only",)),
    ("ppo gru", 655_360, ("position_only_pendulum", "minesweeper", "battleship")),
    ("ppo gru", 655_360, ("noisy_position_only_pendulum", "concentration")),
    ("ppo gru", 1_310_720, ("repeat_first_easy", "labyrinth")),
    ("ppo gru", 1_966_080, ("repeat_first_medium", "repeat_first_hard")),
]


def popgym(o: Namespace) -> int:
    """Print the table; ``--runs DIR`` makes the runs that are missing."""
    if o.runs_in is not None:
        for level, setting, steps, seed in missing(json_lines(RESULTS)):
            result = run(level, setting, steps, seed, o.runs_in.absolute())
            runs.keep(result, RESULTS)
            own = best(json_lines(RESULTS), level)
            if max(own, key=lambda r: mmer(r, "curve"))["seed"] == seed:
                keep(folder(o.runs_in.absolute(), level, setting, seed), AGENTS / level)
    print(table(json_lines(RESULTS)))
    return 0


def missing(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, int, int]]:
    """Yield level, setting, env steps and seed of the runs of PLAN that are not in ``results``."""
    done = {(r["level"], r["setting"], r["seed"]) for r in results}
    for seed in SEEDS:
        for setting, steps, starts in PLAN:
            for level in (x for x in LEVELS if x.startswith(starts)):
                if (level, setting, seed) not in done:
                    yield level, setting, steps, seed


def words(level: str, setting: str, steps: int) -> list[str]:
    """The overrides of a run, without its seed."""
    text, multiple = SETTINGS[setting]
    task = dict(word.split("=", 1) for word in TASKS[level]["overrides"])
    preset = yaml.safe_load((runs.CHECKOUT / f"conf/env/{task['env']}.yaml").read_text("utf-8"))
    scale = float(task.get("env.reward_scale", preset["reward_scale"]))
    task["env.reward_scale"] = f"{multiple * scale:g}"
    every = steps // EVALUATIONS
    return [
        *(f"{key}={value}" for key, value in task.items()), *text.split(),
        f"run.total_steps={steps}", f"run.eval_every={every}", "run.stop_return=null",
        "learner.threads=1", f"logger.every={min(65536, every)}",
    ]  # fmt: skip


def folder(top: Path, level: str, setting: str, seed: int) -> Path:
    """The directory of a run in ``top``."""
    return top / f"{level}-{setting.replace(' ', '-')}-{seed}"


def keep(run_dir: Path, agent: Path) -> None:
    """Write the final weights of a run to ``agent``, a directory for ``rlrun eval``."""
    with tempfile.TemporaryDirectory() as top:
        runs.rlrun("export", "card", str(run_dir), f"{top}/card", "--no-gif")
        agent.mkdir(parents=True, exist_ok=True)
        for name in AGENT:
            shutil.copy(f"{top}/card/{name}", agent)


def run(level: str, setting: str, steps: int, seed: int, top: Path) -> dict[str, Any]:
    """Make or complete a run in ``top`` and return its result."""
    path = folder(top, level, setting, seed)
    line = words(level, setting, steps)
    if (path / "checkpoints").is_dir():
        runs.rlrun("resume", str(path))
    else:
        runs.rlrun(*line, f"seed={seed}", f"run.dir={path}", "logger.progress=off")
    return {
        "level": level, "setting": setting, "seed": seed, "command": f"rlrun {' '.join(line)}",
        "commit": runs.commit(), "machine": runs.machine(), **figures(path),
    }  # fmt: skip


def figures(path: Path) -> dict[str, Any]:
    """Evaluations [[env steps, mean return]], and mean returns of training episodes per record."""
    records = json_lines(path / "metrics.jsonl")
    shown = {"curve": "eval/return_mean", "training": "collect/return_mean"}
    return {
        name: [[r["env_steps"], round(r[key], 4)] for r in records if key in r]
        for name, key in shown.items()
    }


def mmer(result: dict[str, Any], name: str) -> float:
    """The largest mean return of an epoch: an evaluation, or a log record of training."""
    return max(value for _, value in result[name])


def published(level: str) -> float | None:
    """The published MMER of the best of 13 memories after 15M env steps, None: not transcribed."""
    return max(TASKS[level]["published"].values(), default=None)


def best(results: Sequence[dict[str, Any]], level: str) -> list[dict[str, Any]]:
    """The runs of the level's best setting by MMER, in the order of seeds."""
    own = [[r for r in results if (r["level"], r["setting"]) == (level, s)] for s in SETTINGS]
    chosen = max(own, key=lambda rs: np.mean([mmer(r, "curve") for r in rs]) if rs else -np.inf)
    return sorted(chosen, key=lambda r: int(r["seed"]))


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for every level that was run, bold where the mean is at or above the published one."""
    head = "level", "published", "setting", "MMER per seed", "of training episodes", "env steps"
    lines = []
    wins, known = {"curve": 0, "training": 0}, 0
    for level in LEVELS:
        if not (rows := best(results, level)):
            continue
        goal, cells = published(level), []
        known += goal is not None
        for name in wins:
            values = [mmer(r, name) for r in rows]
            won = goal is not None and round(float(np.mean(values)), 3) >= goal
            wins[name] += won
            text = " ".join(f"{value:.3f}" for value in values)
            cells.append(f"**{text}**" if won else text)
        steps = f"{max(r['curve'][-1][0] for r in rows) / 1000:.0f}k"
        shown = "" if goal is None else f"{goal:g}"
        lines.append([level, shown, rows[0]["setting"], *cells, steps])
    return (
        f"{markdown(head, lines)}\n\n"
        f"At or above the best of 13 in {wins['curve']} of {known} levels by evaluations, in "
        f"{wins['training']} by training episodes."
    )
