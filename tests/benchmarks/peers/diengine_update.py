"""DI-engine's learner step, measured on request. Runs in DI-engine's own environment.

usage: python diengine_update.py THREADS LSTM_TYPE BURNIN UNROLL NSTEP BATCH HIDDEN

Prints one JSON line with the layer sizes, then one with the seconds of CALLS updates for every
line "CALLS" on its standard input; ends with the input. A step is ``R2D2Policy._forward_learn`` on
a list of sequences as the policy's own collector hands them on, its collation included.
"""

import copy
import json
import sys
import time

import torch


def make(lstm: str, burnin: int, unroll: int, nstep: int, batch: int, hidden: int):
    """(policy, the sequences of a batch) for DI-engine's own cartpole settings, LSTM ``hidden``."""
    from ding.model import DRQN
    from ding.policy import R2D2Policy
    from ding.utils import deep_merge_dicts
    from dizoo.classic_control.cartpole.config.cartpole_r2d2_config import main_config
    from easydict import EasyDict

    torch.manual_seed(0)
    settings = deep_merge_dicts(R2D2Policy.default_config(), copy.deepcopy(main_config.policy))
    config = EasyDict(settings)
    config.model.lstm_type = lstm
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
    return policy, sequences


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


def main() -> None:
    threads, lstm, *window = sys.argv[1:]
    torch.set_num_threads(int(threads))
    policy, sequences = make(lstm, *map(int, window))
    sizes = {n: list(p.shape) for n, p in policy._model.named_parameters()}
    count = sum(p.numel() for p in policy._model.parameters())
    dtypes = sorted({str(p.dtype) for p in policy._model.parameters()})
    _say({"parameters": count, "sizes": sizes, "dtype": dtypes, "threads": torch.get_num_threads()})
    for line in sys.stdin:
        calls = int(line)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(calls):
            policy._forward_learn(sequences)
        wall = time.perf_counter() - wall
        _say({"wall": wall / calls, "cpu": (time.process_time() - cpu) / calls})


def _say(message: dict) -> None:
    print(json.dumps(message), file=OUT, flush=True)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # DI-engine prints; the answers have stdout alone
    main()
