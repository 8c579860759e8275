"""DI-engine's collector on CartPole with its R2D2 policy. Runs in DI-engine's own environment.

usage: python collect_diengine.py ENVS

Prints a line of facts, then one with the env steps a second of collecting at least STEPS env steps
for every line "STEPS" on its standard input.
"""

import copy
import json
import sys
import tempfile
import time
from functools import partial


def make(envs: int):
    """(collector, policy) of DI-engine's cartpole settings with nn.LSTM."""
    from ding.config import compile_config
    from ding.envs import create_env_manager, get_vec_env_setting
    from ding.policy import create_policy
    from ding.worker import create_serial_collector
    from dizoo.classic_control.cartpole.config.cartpole_r2d2_config import (
        create_config,
        main_config,
    )
    from tensorboardX import SummaryWriter

    config = copy.deepcopy(main_config)
    config.exp_name = "collect"
    config.env.collector_env_num = envs
    config.policy.collect.env_num = envs
    config.policy.model.lstm_type = "pytorch"
    config = compile_config(
        config, seed=0, auto=True, create_cfg=copy.deepcopy(create_config), save_cfg=False
    )
    env_fn, settings, _ = get_vec_env_setting(config.env)
    manager = create_env_manager(config.env.manager, [partial(env_fn, cfg=c) for c in settings])
    manager.seed(0)
    policy = create_policy(config.policy, enable_field=["learn", "collect"])
    collector = create_serial_collector(
        config.policy.collect.collector, env=manager, policy=policy.collect_mode,
        tb_logger=SummaryWriter(tempfile.mkdtemp()), exp_name="collect",
    )  # fmt: skip
    return collector, policy


def main() -> None:
    import torch

    torch.set_num_threads(1)
    collector, policy = make(int(sys.argv[1]))
    say({"parameters": sum(p.numel() for p in policy._model.parameters())})
    for line in sys.stdin:
        wanted, before = int(line), collector.envstep
        start = time.perf_counter()
        while collector.envstep - before < wanted:
            collector.collect(n_sample=32, policy_kwargs={"eps": 0.1})
        say({"rate": (collector.envstep - before) / (time.perf_counter() - start)})


def say(message: dict) -> None:
    print(json.dumps(message), file=OUT, flush=True)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # DI-engine prints; the answers have stdout alone
    main()
