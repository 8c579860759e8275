"""CleanRL's ppo_atari_lstm.py on a probe: python conform_cleanrl.py PROBE CONTROL SEED.

The file lies in the folder of the virtual environment (gymnasium 0.29, torch, tyro, tensorboard).
It is edited as its users do: other environments, and a linear layer for the convolutions.
"""

import re
import runpy
import sys
import tempfile
from pathlib import Path

import torch
from common import NO_PREVIOUS, NO_REPLAY, mean_return, probe_main

VERSION = "main at fe8d8a03"
CANNOT = {
    "previous": NO_PREVIOUS,
    "mask": "the file has no action masks",
    "weights": NO_REPLAY,
    "fresh": "the file has no evaluation",
    "odd": "the number of environments must be a multiple of the minibatches",
}
EVERY, SHORT = {"envs": 8, "rows": 32}, {"envs": 64, "rows": 4}  # SHORT: sequences of 4 rows
SETTINGS = {"own": SHORT, "stored": SHORT, "burnin": SHORT}
EDITS = {
    r"from cleanrl_utils[^)]*\)": "",
    r"make_env\(args[^)]*\)": "make_probe",
    r"self.network = nn.Sequential\(.*?\n        \)": "self.network = nn.Sequential("
    "layer_init(nn.Linear(12, 16)), nn.Tanh())",
    r"x / 255.0": "x",
    r"LSTM\(512, 128\)": "LSTM(16, 16)",
    r"Linear\(128": "Linear(16",
}


def score(probe: str, s: dict, make, seed: int) -> float:
    text = (Path(sys.prefix) / "ppo_atari_lstm.py").read_text()
    for pattern, new in EDITS.items():
        text, found = re.subn(pattern, new, text, flags=re.DOTALL)
        assert found, pattern
    sys.argv = f"""ppo_atari_lstm.py --seed {seed} --no-cuda --env-id {probe} --gamma 0.9
        --total-timesteps 10000 --learning-rate 1e-2 --gae-lambda 0.8 --update-epochs 4
        --clip-coef 0.2 --num-envs {s["envs"]} --num-steps {s["rows"]}""".split()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ppo_atari_lstm.py"
        file.write_text(text)
        agent = runpy.run_path(str(file), {"make_probe": make}, run_name="__main__")["agent"]

    def act(obs, state) -> tuple:
        with torch.no_grad():
            given = torch.Tensor(obs[None]), state or [torch.zeros(1, 1, 16)] * 2, torch.zeros(1)
            h, state = agent.get_states(*given)
        return agent.actor(h).argmax().item(), state

    return mean_return(make, seed, act)


if __name__ == "__main__":
    probe_main(VERSION, CANNOT, score, EVERY, SETTINGS)
