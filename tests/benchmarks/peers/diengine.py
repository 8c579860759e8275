"""DI-engine's R2D2 with its own CartPole settings. Runs in DI-engine's own environment.

usage: python diengine.py collect ENVS
       python diengine.py run SEED THREADS ENV_STEPS
       python diengine.py update THREADS BURNIN UNROLL NSTEP BATCH HIDDEN

The LSTM is its type ``pytorch``, ``nn.LSTM``, everywhere.

collect: a line of facts, then one with the env steps a second of collecting at least STEPS env
steps for every line "STEPS" on standard input.

run: one JSON line of ``serial_pipeline`` on its own config; changed are the LSTM type, the end
(ENV_STEPS instead of a score) and nothing else.

update: a line of facts, then one with the seconds of CALLS updates for every line "CALLS". A step
is ``R2D2Policy._forward_learn`` on a list of sequences as the policy's own collector hands them on,
its collation included.
"""

import copy
import sys
import tempfile
import time
from functools import partial
from importlib import import_module

import torch
from common import parameters, quiet, say, serve, timed


def settings():
    """(main, create) configs of its own, to be changed."""
    own = import_module("dizoo.classic_control.cartpole.config.cartpole_r2d2_config")
    main, create = copy.deepcopy(own.main_config), copy.deepcopy(own.create_config)
    main.policy.model.lstm_type = "pytorch"
    return main, create


def collect(envs: int) -> None:
    from ding.config import compile_config
    from ding.envs import create_env_manager, get_vec_env_setting
    from ding.policy import create_policy
    from ding.worker import create_serial_collector
    from tensorboardX import SummaryWriter

    torch.set_num_threads(1)
    config, create = settings()
    config.exp_name = "collect"
    config.env.collector_env_num = envs
    config.policy.collect.env_num = envs
    config = compile_config(config, seed=0, auto=True, create_cfg=create, save_cfg=False)
    env_fn, each, _ = get_vec_env_setting(config.env)
    manager = create_env_manager(config.env.manager, [partial(env_fn, cfg=c) for c in each])
    manager.seed(0)
    policy = create_policy(config.policy, enable_field=["learn", "collect"])
    collector = create_serial_collector(
        config.policy.collect.collector, env=manager, policy=policy.collect_mode,
        tb_logger=SummaryWriter(tempfile.mkdtemp()), exp_name="collect",
    )  # fmt: skip

    def rate(line: str) -> dict:
        before, start = collector.envstep, time.perf_counter()
        while collector.envstep - before < int(line):
            collector.collect(n_sample=32, policy_kwargs={"eps": 0.1})
        return {"rate": (collector.envstep - before) / (time.perf_counter() - start)}

    serve({"parameters": parameters(policy._model)}, rate)


def run(seed: int, threads: int, env_steps: int) -> None:
    torch.set_num_threads(threads)
    from ding.entry import serial_pipeline
    from ding.worker.learner.base_learner import BaseLearner

    seen, train = {"env_steps": 0}, BaseLearner.train

    def counted_train(self, data, envstep=-1, *args, **kwargs):
        seen["env_steps"] = int(envstep)
        return train(self, data, envstep, *args, **kwargs)

    BaseLearner.train = counted_train
    config, create = settings()
    config.exp_name = "run"
    config.env.stop_value = 1e9
    start = time.perf_counter()
    policy = serial_pipeline((config, create), seed=seed, max_env_step=env_steps)
    wall = time.perf_counter() - start
    facts = {"threads": torch.get_num_threads(), "parameters": parameters(policy._model)}
    say({"wall": wall, **facts, **seen})


def update(threads: int, burnin: int, unroll: int, nstep: int, batch: int, hidden: int) -> None:
    torch.set_num_threads(threads)
    from ding.model import DRQN
    from ding.policy import R2D2Policy
    from ding.utils import deep_merge_dicts
    from easydict import EasyDict

    torch.manual_seed(0)
    config = EasyDict(deep_merge_dicts(R2D2Policy.default_config(), settings()[0].policy))
    config.model.encoder_hidden_size_list = [128, 128, hidden]
    config.burnin_step, config.learn_unroll_len, config.nstep = burnin, unroll, nstep
    config.collect.unroll_len = burnin + unroll
    config.learn.batch_size = batch
    config.multi_gpu = False
    policy = R2D2Policy(config, model=DRQN(**config.model), enable_field=["learn", "collect"])
    sequences = []
    for _ in range(batch):
        rows = [_row(config.model.obs_shape, hidden) for _ in range(burnin + unroll)]
        sequences.extend(policy._get_train_sample(rows))
    assert len(sequences) == batch, "an episode of one window gives one sequence"
    weights = [*policy._model.parameters()]
    facts = {"sizes": sorted(list(p.shape) for p in weights), "threads": torch.get_num_threads()}
    facts["dtype"] = sorted({str(p.dtype) for p in weights})
    serve(facts, lambda line: timed(lambda: policy._forward_learn(sequences), int(line)))


def _row(obs: int, hidden: int) -> dict:
    """One transition as the collector writes it."""
    return {
        "obs": torch.randn(obs),
        "action": torch.randint(0, 2, ()),
        "prev_state": {k: torch.zeros(1, 1, hidden) for k in ("h", "c")},
        "reward": torch.rand(1),
        "done": False,
        "collect_iter": 0,
    }


if __name__ == "__main__":
    quiet()
    words = map(int, sys.argv[2:])
    {"collect": collect, "run": run, "update": update}[sys.argv[1]](*words)
