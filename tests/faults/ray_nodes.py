"""A run on a cluster of two nodes, of which one is removed in the middle.

    python -m tests.faults.ray_nodes [--steps 150000] [--at 10000] [--seed 0]

Both nodes are on this machine. The second holds collectors only, by a resource of its own, and is
followed by a third with the same resource, on which Ray starts them again. The run ends where it
has solved its task, as a serial one does, or after ``--steps``.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = (
    "policy=r2d2", "env=cartpole_novel", "pipeline=ray", "pipeline.num_actors=2",
    "+pipeline.collector.resources.worker=1", "logger.progress=off", "logger.tensorboard=false",
    "collector.num_envs=8", "collector.n_sample=32",
)  # fmt: skip


def env_steps(run_dir: Path) -> int:
    """Env steps of the newest record."""
    path = run_dir / "timings.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["env_steps"]) if lines else 0


def run(steps: int, at: int, seed: int) -> dict[str, object]:
    """Run to the end, with the removal after ``at`` env steps; return what happened."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8})
    second = cluster.add_node(num_cpus=4, resources={"worker": 4})
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory, "run")
        words = [*WORDS, f"run.total_steps={steps}", f"run.dir={run_dir}", f"seed={seed}"]
        words.append(f"pipeline.address='{cluster.address}'")
        process = subprocess.Popen([sys.executable, "-m", "rlrun", *words])
        while process.poll() is None and env_steps(run_dir) < at:
            time.sleep(0.2)
        removed_at = env_steps(run_dir)
        cluster.add_node(num_cpus=4, resources={"worker": 4})
        cluster.remove_node(second, allow_graceful=False)
        code = process.wait()
        record = json.loads((run_dir / "run.json").read_text())
        lines = [json.loads(x) for x in (run_dir / "timings.jsonl").read_text().splitlines()]
        found = {
            "exit": code, "removed_at": removed_at, "env_steps": record["env_steps"],
            "score": (record["eval"] or {}).get("return_mean"),
            "best": (record["best_eval"] or {}).get("return_mean"),
            "restarts": lines[-1]["ray/restarts"], "lost_chunks": lines[-1]["ray/chunks_lost"],
        }  # fmt: skip
    cluster.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--at", type=int, default=10_000, help="env steps before the removal")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(run(given.steps, given.at, given.seed)))


if __name__ == "__main__":
    main()
