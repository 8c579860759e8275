"""rlrun's own run of the DI-engine preset, bounded: the counterpart of peers/diengine_run.py.

usage: python -m tests.benchmarks.own_run SEED THREADS ENV_STEPS RUN_DIR [OVERRIDE...]

Prints one JSON line. It is the command ``rlrun experiment=diengine_r2d2_cartpole`` with the score
that would stop it taken out; evaluation is timed from outside.
"""

import json
import sys
import time
from pathlib import Path

BEGIN = time.perf_counter()
PRESET = "experiment=diengine_r2d2_cartpole"


def main() -> int:
    seed, threads, env_steps, run_dir, *overrides = sys.argv[1:]
    import hydra  # noqa: F401  imports are start-up on both sides
    import torch

    from rlrun import build  # noqa: F401
    from rlrun.cli import main as rlrun
    from rlrun.log import tensorboard  # noqa: F401
    from rlrun.pipeline.serial import Serial
    from rlrun.policy import r2d2  # noqa: F401

    seen = {"evaluations": 0, "eval_seconds": 0.0}
    evaluate = Serial._evaluate

    def timed_evaluate(self: Serial) -> None:
        start = time.perf_counter()
        evaluate(self)
        seen["evaluations"] += 1
        seen["eval_seconds"] += time.perf_counter() - start

    Serial._evaluate = timed_evaluate  # type: ignore[method-assign]
    start = time.perf_counter()
    code = rlrun(
        [
            PRESET, f"seed={seed}", f"learner.threads={threads}", f"run.total_steps={env_steps}",
            "run.stop_value=null", f"run.dir={run_dir}", "logger.progress=off", *overrides,
        ]
    )  # fmt: skip
    wall = time.perf_counter() - start
    record = json.loads((Path(run_dir) / "run.json").read_text())
    answer = {
        "wall": wall,
        "startup": start - BEGIN,
        "threads": torch.get_num_threads(),
        **{k: record[k] for k in ("parameters", "env_steps", "updates")},
        **seen,
    }
    print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
