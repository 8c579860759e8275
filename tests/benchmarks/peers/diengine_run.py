"""DI-engine's own cartpole R2D2 run, bounded. Runs in DI-engine's own environment.

usage: python diengine_run.py SEED THREADS LSTM_TYPE ENV_STEPS [SCORE]

Prints one JSON line. ``serial_pipeline`` on its own config; changed are the LSTM type, the end
(ENV_STEPS instead of a score, or its own rule at SCORE) and nothing else; evaluation is timed from
outside.
"""

import copy
import json
import sys
import time

BEGIN = time.perf_counter()


def main() -> None:
    seed, threads, lstm, env_steps = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    import torch

    torch.set_num_threads(threads)
    from ding.entry import serial_pipeline
    from ding.worker.collector.interaction_serial_evaluator import InteractionSerialEvaluator
    from ding.worker.learner.base_learner import BaseLearner
    from dizoo.classic_control.cartpole.config.cartpole_r2d2_config import (
        create_config,
        main_config,
    )

    seen = {"updates": 0, "env_steps": 0, "evaluations": 0, "eval_seconds": 0.0}
    train, evaluate = BaseLearner.train, InteractionSerialEvaluator.eval

    def counted_train(self, data, envstep=-1, *args, **kwargs):
        seen["updates"] += 1
        seen["env_steps"] = int(envstep)
        return train(self, data, envstep, *args, **kwargs)

    def timed_eval(self, *args, **kwargs):
        start = time.perf_counter()
        try:
            return evaluate(self, *args, **kwargs)
        finally:
            seen["evaluations"] += 1
            seen["eval_seconds"] += time.perf_counter() - start

    BaseLearner.train, InteractionSerialEvaluator.eval = counted_train, timed_eval
    config = copy.deepcopy(main_config)
    config.exp_name = "run"
    config.env.stop_value = float(sys.argv[5]) if len(sys.argv) > 5 else 1e9
    config.policy.model.lstm_type = lstm
    start = time.perf_counter()
    policy = serial_pipeline(
        (config, copy.deepcopy(create_config)), seed=int(seed), max_env_step=env_steps
    )
    wall = time.perf_counter() - start
    model = policy._model
    answer = {
        "wall": wall,
        "startup": start - BEGIN,
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in model.parameters()),
        **seen,
    }
    print(json.dumps(answer), file=OUT, flush=True)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # DI-engine prints; the answer has stdout alone
    main()
