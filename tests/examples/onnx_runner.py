"""Play an exported policy without torch: python onnx_runner.py POLICY.onnx EPISODES"""

import json
import sys

import gymnasium as gym
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["rlrun"])
outputs = [output.name for output in session.get_outputs()]
inputs = {k: np.zeros((1, *x["shape"]), x["dtype"]) for k, x in about["inputs"].items()}
env = gym.make(about["env"]["id"], **about["env"]["kwargs"])

for episode in range(int(sys.argv[2])):
    obs, _ = env.reset(seed=episode)
    row, total, done = {"obs": [obs], "first": [True]}, 0.0, False
    while not done:
        inputs |= {k: np.array(x, inputs[k].dtype) for k, x in row.items() if k in inputs}
        out = dict(zip(outputs, session.run(None, inputs), strict=True))
        inputs |= {k[5:]: x for k, x in out.items() if k.startswith("next_state.")}
        obs, reward, terminated, truncated, _ = env.step(out["action"][0])
        row = {"obs": [obs], "first": [False], "prev_reward": [reward]}
        row |= {"prev_action": out["action"]}
        total, done = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:g}")
