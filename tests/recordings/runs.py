"""Digests of small runs that cover pipelines, buffers, backends, transports, bonus and resume."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from safetensors.numpy import load_file

from tests.recordings import setup

SMALL = (
    "debug=smoke", "torso.hidden=[16]", "learner.threads=1", "run.total_steps=320",
    "run.eval_every=160", "run.checkpoint_every=160", "run.stop_value=null",
    "logger.tensorboard=false",
)  # fmt: skip
OFFLINE = "buffer.load={dir}/data run.total_steps=130 run.eval_every=65 run.checkpoint_every=65"
DATA = ("policy=dqn", "export {dir}/0 {dir}/data --shard-rows 150")
BOX_DATA = (
    "policy=sac env=pendulum env.max_episode_steps=20 learner.learning_starts=200",
    "export {dir}/0 {dir}/data",
)
SCREEN = "env=gym env.id=recordings/Screen-v0 torso=nature_cnn"
# The steps of every case, one after the other in one directory: run N is in {dir}/N. "resume" goes
# on with the last run; "forget" drops its newest checkpoint, as if it was killed before it.
RUNS: dict[str, tuple[str, ...]] = {
    "dqn uniform": ("policy=dqn",),
    "r2d2 prioritized": ("policy=r2d2 env=tmaze memory.hidden=8",),
    "r2d2 rank": ("policy=r2d2 env=cartpole buffer=rank memory=gru memory.hidden=8",),
    "r2d2 td priorities": (
        "policy=r2d2 env=repeat_previous buffer.initial_priority=td memory.hidden=8"
        " buffer.weight_norm=buffer",
    ),
    "r2d2 plain tiling": (
        "policy=r2d2 env=cartpole memory.hidden=8 collector.tiling=plain collector.overlap=2"
        " collector.residual=null_padding collector.unit=window collector.n_sample=4",
    ),
    "overlapped r2d2": ("policy=r2d2 env=cartpole pipeline=overlapped memory.hidden=8",),
    "overlapped coded": ("policy=dqn env=cartpole pipeline=overlapped transport=coded"
                         " explore.epsilon=0.1 policy.lr=1e-2",),
    "coded": (
        "policy=r2d2 env=bandit transport=coded transport.chunks=planes memory.hidden=8"
        " checkpoint.history=2",
    ),
    "impala overlapped": ("policy=impala env=cartpole pipeline=overlapped memory=lstm"
                          " memory.hidden=8",),
    "ppo rollout": ("policy=ppo env=cartpole policy.epochs=2 collector.n_sample=64",),
    "ppo box": ("policy=ppo env=pendulum policy.epochs=2 policy.normalize_obs=true"
                " policy.normalize_reward=true env.frame_stack=2",),
    "sac": ("policy=sac env=pendulum learner.learning_starts=60 env.max_episode_steps=40",),
    "td3 sync backend": ("policy=td3 env=bandit_continuous env.backend=sync"
                         " learner.learning_starts=60 buffer=prioritized policy.nstep=2",),
    "async backend": ("policy=dqn env=acrobot env.backend=async env.max_episode_steps=30"
                      " collector.num_envs=2",),
    "native backend": ("policy=dqn env=cartpole env.backend=vector explore=boltzmann",),
    "frame stack": ("policy=dqn env=cartpole env.frame_stack=3 buffer=prioritized",),
    "wrappers": ("policy=r2d2 env=cartpole memory=none"
                 " env.wrappers=[{name:mask_obs,keep:[0,2]},{name:delay_obs,steps:1}]",),
    "compressed images": (f"policy=dqn {SCREEN} buffer.compress=true env.frame_stack=2",),
    "mapped": ("policy=r2d2 env=counter buffer.mmap={dir}/map memory.hidden=8",),
    "hindsight": ("policy=dqn env=bitflip env.bits=5 buffer.relabel=future",),
    "demonstrations": (*DATA, "policy=dqn buffer.demos={dir}/data"),
    "loaded": (*DATA, "policy=dqn buffer.load={dir}/data buffer=prioritized"),
    "offline cql": (*DATA, f"policy=cql {OFFLINE}"),
    "offline iql": (*BOX_DATA, f"policy=iql env=pendulum env.max_episode_steps=20 {OFFLINE}"),
    "offline bc_recurrent": (*DATA, f"policy=bc_recurrent memory.hidden=8 {OFFLINE}"),
    "bonus": ("policy=dqn env=chain bonus=rnd bonus.hidden=[16] bonus.features=8",),
    "rainbow chunk noise": ("policy=rainbow env=chain policy.noisy_resample=chunk"
                            " policy.atoms=11",),
    "agents separate": ("policy=dqn env=relay agents=separate explore=anneal",),
    "agents shared": ("policy=r2d2 env=relay memory.hidden=8",),
    "qmix": ("policy=qmix env=twostep memory.hidden=8",),
    "resume longer": ("policy=r2d2 env=cartpole memory.hidden=8",
                      "resume {dir}/0 run.total_steps=480"),
    "resume killed": ("policy=ppo env=cartpole policy.epochs=2", "forget {dir}/0",
                      "resume {dir}/0"),
    "resume overlapped": ("policy=dqn env=cartpole pipeline=overlapped buffer=rank"
                          " explore.epsilon=0.1 policy.lr=1e-2",
                          "forget {dir}/0", "resume {dir}/0"),
    "resume signalled": ("policy=dqn env=gym env.id=recordings/Signal-v0 env.backend=sync",
                         "resume {dir}/0"),
}  # fmt: skip
STOPPED = 75  # the exit code of a run that SIGTERM stopped


class Screen(gym.Env[np.ndarray, int]):
    """A still pattern with a moving dot; the reward is 1 where the action is the step's parity."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (36, 36), np.uint8)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.still = 0, self.np_random.integers(0, 4, (36, 36)).astype(np.uint8)
        return self.still.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(action == self.t % 2)
        self.t += 1
        seen = self.still.copy()
        seen[self.t % 36, self.t * 7 % 36] = 255
        return seen, reward, self.t == 9, False, {}


class Signal(gym.Env[np.ndarray, int]):
    """Sends its process SIGTERM at the 200th step that its environments take together."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.at = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.at.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        Signal.steps += 1
        if Signal.steps == 200:
            os.kill(os.getpid(), signal.SIGTERM)
        self.t += 1
        reward = float((self.at[0] > 0) == action)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.at.copy(), reward, self.t == 7, False, {}


gym.register("recordings/Screen-v0", entry_point=Screen)
gym.register("recordings/Signal-v0", entry_point=Signal)


def compute(name: str, directory: Path) -> dict[str, Any]:
    """The run.json of the last run of a case."""
    Signal.steps, run = 0, directory
    for i, step in enumerate(RUNS[name]):
        line = step.replace("{dir}", str(directory)).split()
        if line[0] == "forget":
            shutil.rmtree(setup.checkpoints(run)[-1])
            continue
        allowed = {0}
        if "=" in line[0]:
            run = directory / str(i)
            given = {w.partition("=")[0] for w in line}
            small = [w for w in SMALL if w.partition("=")[0] not in given]
            line = [*line, *small, f"run.dir={run}"]
            allowed = {STOPPED if "Signal" in step else 0}
        quiet = [] if line[0] == "export" else ["-q"]
        code = setup.rlrun([*line, *quiet])
        assert code in allowed, f"{' '.join(line)}: exit code {code}"
    return summary(run)


def summary(run_dir: Path) -> dict[str, Any]:
    """Digest and counters of run.json; hashes of final weights and of logged numbers, no names."""
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "done"
    weights = load_file(run_dir / "checkpoints" / "last.safetensors")
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    numbers = [sorted(map(repr, line.values())) for line in lines]
    each = sorted(hashlib.sha256(x.tobytes()).hexdigest() for x in weights.values())
    return {
        "env_steps": record["env_steps"],
        "updates": record["updates"],
        "weights": hashlib.sha256("".join(each).encode()).hexdigest()[:16],
        "numbers": hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16],
        "digest": record["digest"],
    }
