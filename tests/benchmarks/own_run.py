"""rlrun's own run of a preset, bounded: the counterpart of peers/diengine_run.py and dqn_*.py.

usage: python -m tests.benchmarks.own_run PRESET SEED THREADS ENV_STEPS RUN_DIR [OVERRIDE...]

Prints one JSON line. It is the command ``rlrun experiment=PRESET`` (PRESET -: no experiment) with
the score that would stop it taken out; evaluation is timed from outside. ``cpu``: CPU seconds
without evaluations. ``curve``: for each evaluation env steps, mean return, seconds since the start,
seconds spent in evaluations.
"""

import json
import sys
import time
from pathlib import Path

BEGIN = time.perf_counter()


def main() -> int:
    preset, seed, threads, env_steps, run_dir, *overrides = sys.argv[1:]
    import hydra  # noqa: F401  imports are start-up on both sides
    import torch

    from rlrun.build import pipeline as build  # noqa: F401
    from rlrun.cli.main import main as rlrun
    from rlrun.log import tensorboard  # noqa: F401
    from rlrun.pipeline.serial import Serial
    from rlrun.policy import dqn, ppo, r2d2  # noqa: F401

    seen = {"evaluations": 0, "eval_seconds": 0.0}
    eval_cpu = 0.0
    curve: list[tuple[float, ...]] = []
    evaluate = Serial._evaluate

    def timed_evaluate(self: Serial) -> None:
        nonlocal eval_cpu
        began, cpu = time.perf_counter(), time.process_time()
        evaluate(self)
        end = time.perf_counter()
        eval_cpu += time.process_time() - cpu
        seen["evaluations"] += 1
        seen["eval_seconds"] += end - began
        assert self.last is not None
        point = (self.counters.env_steps, self.last["return_mean"], end - start)
        curve.append((*point, seen["eval_seconds"]))

    Serial._evaluate = timed_evaluate  # type: ignore[method-assign]
    start, start_cpu = time.perf_counter(), time.process_time()
    code = rlrun(
        [
            *([] if preset == "-" else [f"experiment={preset}"]), f"seed={seed}",
            f"learner.threads={threads}", f"run.total_steps={env_steps}",
            "run.stop_value=null", f"run.dir={run_dir}",
            "logger.progress=off", *overrides,
        ]
    )  # fmt: skip
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    record = json.loads((Path(run_dir) / "run.json").read_text())
    answer = {
        "wall": wall,
        "cpu": cpu - eval_cpu,
        "startup": start - BEGIN,
        "threads": torch.get_num_threads(),
        **{k: record[k] for k in ("parameters", "env_steps", "updates")},
        **seen,
        "curve": curve,
    }
    print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
