"""Acting and collecting on CartPole: beside a bare loop and DI-engine."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tests.benchmarks.floor import ACTIONS, Net
from tests.benchmarks.floor import PEERS as FLOOR
from tests.benchmarks.product import Collector, Counters, make_collector, make_plan
from tests.benchmarks.rows import PeerFailed, Row, beside, make_row, time_calls
from tests.benchmarks.runs import asked, interpreter
from tests.compose import config

SHAPE = FLOOR  # its layers
ROWS = 40  # of every environment in a chunk
ENVS = (8, 64)
FLOOR_TARGET, PEER_TARGET = 0.7, 10.0


def make(envs: int) -> Collector:
    """rlrun's collector with the floor's layers."""
    c = config(
        "policy=r2d2", "env=cartpole", f"collector.num_envs={envs}",
        f"collector.n_sample={ROWS * envs}", "torso.hidden=[128,128,64]", "memory.hidden=64",
        "policy.head_hidden=[64]",
    )  # fmt: skip
    return make_collector(make_plan(c), Counters())


class BareLoop:
    """env.step and one batched inference of bare torch modules, epsilon-greedy; nothing is kept."""

    def __init__(self, envs: int) -> None:
        self.envs = envs
        self.vector = gym.make_vec("CartPole-v1", envs, vectorization_mode="vector_entry_point")
        self.obs, _ = self.vector.reset(seed=0)
        self.net, self.rng = Net(SHAPE).requires_grad_(False), np.random.default_rng(0)
        self.cell = torch.nn.LSTMCell(SHAPE.torso[-1] + ACTIONS + 1, SHAPE.lstm)
        self.state = torch.zeros(envs, SHAPE.lstm), torch.zeros(envs, SHAPE.lstm)
        self.previous = torch.zeros(envs, ACTIONS + 1)

    @torch.inference_mode()
    def infer(self) -> np.ndarray:
        """Greedy actions; the state moves on."""
        net = self.net
        x = torch.cat([net.encoder(torch.from_numpy(self.obs)), self.previous], -1)
        self.state = self.cell(x, self.state)
        a = net.advantage(self.state[0])
        q = net.value(self.state[0]) + a - a.mean(-1, keepdim=True)
        greedy: np.ndarray = q.argmax(-1).numpy()
        return greedy

    def step(self) -> None:
        """One row of every environment."""
        action = self.infer()
        coin = self.rng.random(self.envs) < 0.1
        action = np.where(coin, self.rng.integers(ACTIONS, size=self.envs), action)
        self.obs = self.vector.step(action)[0]

    def chunk(self) -> None:
        for _ in range(ROWS):
            self.step()


def main(o: Namespace) -> list[Row]:
    """All rows, one thread a side."""
    envs = ENVS[:1] if o.quick else ENVS
    return [row for count in envs for row in rows_of(o.peers, count, (o.rounds, o.seconds))]


def rows_of(peers: Path | None, envs: int, effort: tuple[int, float]) -> list[Row]:
    """Acting and collecting beside the bare loop, then collecting beside DI-engine."""
    collector, bare = make(envs), BareLoop(envs)
    setting: dict[str, Any] = {"envs": envs, "lstm": SHAPE.lstm, "threads": 1}
    setting["params"] = sum(p.numel() for p in collector.policy.net.parameters())
    obs, state = collector.obs.copy(), collector.actor.initial_state()
    first, reward = np.zeros(envs, bool), np.zeros(envs, np.float32)
    action, epsilon = np.zeros(envs, np.int64), np.full(envs, 0.1)

    def act() -> object:
        return collector.actor.act(obs, first, action, reward, state, explore=epsilon)

    return [
        beside("act", setting, "bare loop", act, bare.infer, effort, kind="speedup",
               note="the bare inference is greedy; ours explores and shapes rewards"),
        beside("collect", setting, "bare loop", collector.collect, bare.chunk, effort,
               kind="speedup", target=FLOOR_TARGET, note=f"{ROWS} rows of every environment; ours "
               "keeps rows, states and episode returns"),
        _peer(peers, collector, setting, effort[0]),
    ]  # fmt: skip


def _peer(peers: Path | None, collector: Collector, setting: dict[str, Any], repeats: int) -> Row:
    """Env steps a second beside DI-engine's collector."""
    envs = collector.num_envs
    ours: list[float] = []
    theirs: list[float] = []
    fields: dict[str, Any] = {"kind": "speedup", "higher": True, "target": PEER_TARGET}
    fields["note"] = "its own cartpole R2D2 settings, nn.LSTM, and its own windows"
    try:
        with asked(interpreter(peers, "ding"), "diengine.py collect", envs) as (facts, ask):
            setting = {**setting, "peer_params": facts["parameters"]}
            ask(envs * ROWS)
            for _ in range(repeats):
                ours.append(_rate(collector))
                theirs.append(float(ask(100 * envs)["rate"]))
    except PeerFailed as e:
        fields["missing"] = str(e)
        ours, theirs = [_rate(collector) for _ in range(repeats)], []
    return make_row("collect", setting, "di-engine", "env steps/s", ours, theirs, **fields)


def _rate(collector: Collector) -> float:
    chunks, before = 10, collector.counters.env_steps
    timing = time_calls(collector.collect, chunks)
    return (collector.counters.env_steps - before) / (timing.wall * chunks)
