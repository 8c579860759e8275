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
from common import probe_main

VERSION = "main at fe8d8a03"
CANNOT = {
    "previous": "previous action and reward are no inputs",
    "mask": "the file has no action masks",
    "weights": "no replay",
    "fresh": "the file has no evaluation",
    "odd": "the number of environments must be a multiple of the minibatches",
}
EDITS = {
    r"from cleanrl_utils[^)]*\)": "",
    r"make_env\(args[^)]*\)": "make_probe",
    r"self.network = nn.Sequential\(.*?\n        \)": "self.network = nn.Sequential("
    "layer_init(nn.Linear(12, 16)), nn.Tanh())",
    r"x / 255.0": "x",
    r"LSTM\(512, 128\)": "LSTM(16, 16)",
    r"Linear\(128": "Linear(16",
}
FOUR, SHORT = ("own", "stored", "burnin"), "--num-envs 64 --num-steps 4"  # sequences of 4 rows


def score(probe: str, make, seed: int) -> float:
    text = (Path(sys.prefix) / "ppo_atari_lstm.py").read_text()
    for pattern, new in EDITS.items():
        text, found = re.subn(pattern, new, text, flags=re.DOTALL)
        assert found, pattern
    sys.argv = f"""ppo_atari_lstm.py --seed {seed} --no-cuda --env-id {probe} --gamma 0.9
        --total-timesteps 10000 --learning-rate 1e-2 --gae-lambda 0.8 --update-epochs 4
        --clip-coef 0.2 {SHORT if probe in FOUR else "--num-envs 8 --num-steps 32"}""".split()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ppo_atari_lstm.py"
        file.write_text(text)
        agent = runpy.run_path(str(file), {"make_probe": make}, run_name="__main__")["agent"]
    env, total = make(evaluation=True), 0.0
    for episode in range(200):
        obs, _ = env.reset(seed=seed + 1000 if episode == 0 else None)
        state, ended = (torch.zeros(1, 1, 16), torch.zeros(1, 1, 16)), False
        while not ended:
            with torch.no_grad():
                h, state = agent.get_states(torch.Tensor(obs[None]), state, torch.zeros(1))
            obs, reward, terminated, truncated, _ = env.step(agent.actor(h).argmax().item())
            total, ended = total + reward, terminated or truncated
    return total / 200


if __name__ == "__main__":
    probe_main(VERSION, CANNOT, score)
