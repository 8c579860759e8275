"""``python -m tests.benchmarks.scores [ROW ...]``: the README's score table, one process per run.

Every run is the command a user would type; its wall time includes start-up. Scores are those of
``rlrun eval`` on the final weights, on seeds that training never used.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

RLRUN = [sys.executable, "-m", "rlrun"]


@dataclass(frozen=True)
class Row:
    """One line of the table: ``overrides`` for 5 seeds, ``metric`` of ``episodes`` episodes."""

    overrides: str
    threshold: str
    metric: str = "return_mean"
    episodes: int = 50
    seeds: int = 5


TMAZE = {"metric": "success", "episodes": 1000}
SHORT = "policy.burnin_step=4 policy.learn_unroll_len=12"
CHEETAH = "env=halfcheetah run.total_steps=100000 run.stop_value=null"
ROWS = {
    "cartpole": Row("policy=r2d2 env=cartpole", ">= 475, 60 s, 60k steps"),
    "cartpole_uniform": Row("policy=r2d2 env=cartpole buffer=uniform", "for comparison"),
    "novel": Row("policy=r2d2 env=cartpole_novel", ">= 450, 150 s, 150k steps"),
    "novel_dqn": Row("policy=dqn env=cartpole_novel policy.prev_inputs=true", "<= 180"),
    "repeat": Row("experiment=r2d2_repeat_previous", ">= 0.9, 120 s, 200k steps"),
    "repeat_dqn": Row("policy=dqn env=repeat_previous policy.prev_inputs=true", "about -0.49"),
    "tmaze10": Row("policy=r2d2 env=tmaze env.length=10", ">= 0.95", **TMAZE),
    "tmaze10_dqn": Row(
        "policy=dqn env=tmaze env.length=10 policy.prev_inputs=true", "<= 0.55", **TMAZE
    ),
    "tmaze50": Row("experiment=r2d2_tmaze50", ">= 0.95", **TMAZE),
    "tmaze20_stored": Row(f"policy=r2d2 env=tmaze env.length=20 {SHORT}", "reported", **TMAZE),
    "tmaze20_zero": Row(
        f"policy=r2d2 env=tmaze env.length=20 {SHORT} policy.state_init=zero", "reported", **TMAZE
    ),
    "twostep_qmix": Row("policy=qmix env=twostep", "8"),
    "twostep_vdn": Row("policy=vdn env=twostep", "7"),
    "twostep_dqn": Row("policy=dqn env=twostep explore=anneal", "<= 7"),
    "twostep_dqn_separate": Row("policy=dqn env=twostep explore=anneal agents=separate", "<= 7"),
    "sac_pendulum": Row("policy=sac env=pendulum", ">= -200, 20k steps"),
    "td3_pendulum": Row("policy=td3 env=pendulum", ">= -200, 20k steps"),
    "ddpg_pendulum": Row("policy=ddpg env=pendulum", ">= -200, 20k steps"),
    "sac_lunarlander": Row("policy=sac env=lunarlander_continuous", ">= 220, 300k steps"),
    "sac_halfcheetah": Row(f"policy=sac {CHEETAH}", ">= 0.9 x peers/control_sb3.py sac"),
    "td3_halfcheetah": Row(f"policy=td3 {CHEETAH}", ">= 0.9 x peers/control_sb3.py td3"),
}


def run(row: Row, seed: int, folder: Path) -> dict:
    """Train and evaluate one seed; what the table needs."""
    run_dir = folder / f"s{seed}"
    command = [*RLRUN, *row.overrides.split(), f"seed={seed}", f"run.dir={run_dir}", "-q"]
    start = time.perf_counter()
    subprocess.run([*command, "learner.threads=1"], check=True)
    wall = time.perf_counter() - start
    evaluate = [*RLRUN, "eval", str(run_dir), "--episodes", str(row.episodes)]
    lines = subprocess.run(evaluate, check=True, capture_output=True, text=True).stdout
    scores = dict(line.split() for line in lines.splitlines())
    record = json.loads((run_dir / "run.json").read_text())
    last = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        last |= {k: v for k, v in json.loads(line).items() if "delta_q" in k}
    return {
        "seed": seed,
        "score": float(scores[row.metric]),
        "env_steps": record["env_steps"],
        "wall_seconds": round(wall, 1),
        **{k.removeprefix("train/"): round(v, 4) for k, v in last.items()},
    }


def table(name: str, row: Row, results: list[dict]) -> str:
    """One markdown line: scores, env steps and wall seconds of every seed."""

    def column(key: str, digits: str) -> str:
        return " ".join(format(r[key], digits) for r in results)

    digits = ".3f" if row.metric == "success" or "repeat" in name else ".0f"
    median = statistics.median(r["score"] for r in results)
    cells = (
        f"`{row.overrides}`", row.threshold, column("score", digits), format(median, digits),
        " ".join(f"{r['env_steps'] / 1000:.0f}k" for r in results), column("wall_seconds", ".0f"),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scores")
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], default=[])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON lines, one per run")
    args = parser.parse_args()
    print("| command | wanted | score per seed | median | env steps | wall s |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in args.rows or ROWS:
        row, folder = ROWS[name], Path(tempfile.mkdtemp(prefix=f"rlrun_{name}_"))
        seeds = range(args.first_seed, args.first_seed + row.seeds)
        with ThreadPoolExecutor(args.jobs) as pool:
            results = list(pool.map(lambda s, row=row, f=folder: run(row, s, f), seeds))
        print(table(name, row, results), flush=True)
        if args.out is not None:
            with args.out.open("a") as file:
                file.writelines(json.dumps({"row": name, **r}) + "\n" for r in results)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
