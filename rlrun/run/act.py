"""Act with a policy.onnx of rlrun, without torch: python act.py POLICY.onnx EPISODES"""

import json
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime as ort


class Agent:
    """The policy in one environment; recurrent state and previous action are inside."""

    def __init__(self, path: str) -> None:
        self.session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        if metadata["rlrun_interface"] != "1":
            sys.exit(f"{path}: its interface has another version; 1 is allowed")
        self.about = json.loads(metadata["rlrun"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        arrays = self.about["inputs"].items()
        self.inputs = {k: np.zeros((1, *x["shape"]), x["dtype"]) for k, x in arrays}

    def act(self, obs: Any, reward: float = 0.0, first: bool = False) -> Any:
        """Return the action; ``first``: ``obs`` opens an episode. ``reward``: of the last step."""
        row = {**parts(obs), "first": first, "prev_reward": reward}
        for name in self.inputs.keys() & row.keys():
            self.inputs[name][0] = row[name]
        out = dict(zip(self.outputs, self.session.run(None, self.inputs), strict=True))
        after = {k.removeprefix("next_"): x for k, x in out.items() if k.startswith("next_")}
        after["prev_action"] = out["action"]
        self.inputs |= {k: np.array(x) for k, x in after.items() if k in self.inputs}
        return out["action"][0]


def parts(obs: Any, name: str = "obs") -> dict[str, Any]:
    """Return the arrays of an observation by the names of the graph's inputs."""
    if not isinstance(obs, dict | tuple):
        return {name: obs}
    items = obs.items() if isinstance(obs, dict) else enumerate(obs)
    return {k: x for key, part in items for k, x in parts(part, f"{name}.{key}").items()}


def play(path: str, episodes: int) -> None:
    """Print the returns of episodes in the environment that the policy was trained for."""
    agent = Agent(path)
    spec = agent.about["env"]
    if spec["wrappers"]:
        sys.exit(f"{path}: its environment has wrappers of rlrun; rlrun play shows it")
    try:
        env = gym.make(spec["id"], **spec["kwargs"])
    except (gym.error.Error, ImportError) as e:
        sys.exit(f"{spec['id']}: {e}; its package must be installed, or be in PYTHONPATH")
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        reward, first, total, done = 0.0, True, 0.0, False
        while not done:
            action = agent.act(obs, reward, first)
            obs, reward, terminated, truncated, _ = env.step(action)  # type: ignore[assignment]
            total, first, done = total + float(reward), False, terminated or truncated
        print(f"episode {episode}: return {total:g}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
        sys.exit(__doc__)
    play(sys.argv[1], int(sys.argv[2]))
