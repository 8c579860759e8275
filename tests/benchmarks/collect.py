"""Acting and collecting on CartPole: beside a bare loop, DI-engine, Tianshou and torchrl."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tests.benchmarks.client import asked
from tests.benchmarks.floor import ACTIONS, Net, Shape
from tests.benchmarks.process import PeerFailed, interpreter
from tests.benchmarks.product import Collector, Counters, make_collector, make_plan
from tests.benchmarks.timing import Row, calls_for, interleaved, make_row, time_calls, timing_row
from tests.compose import config

SHAPE = Shape("lstm64", 4, (128, 128, 64), 64, (64,), 64, 20, 80, 5)
ROWS = 40  # of every environment in a chunk
ENVS = (8, 64)
FLOOR_TARGET, PEER_TARGET = 0.7, 10.0
PEERS = {"di-engine": ("ding", "collect_diengine.py", PEER_TARGET),
         "tianshou": ("tianshou", "collect_tianshou.py", None),
         "torchrl": ("torchrl", "collect_torchrl.py", None)}  # fmt: skip
NOTES = {
    "di-engine": "its own cartpole R2D2 settings, nn.LSTM, and its own windows",
    "tianshou": "linear, LSTM 64, linear; gymnasium environments in a loop, frames stacked by 4",
    "torchrl": "the same layers without the second head; gymnasium environments in a loop",
}


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


def measure(
    peers: Path | None, *, repeats: int, seconds: float, envs: Sequence[int] = ENVS
) -> list[Row]:
    """All rows, one thread a side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for count in envs for row in _rows(peers, count, repeats, seconds)]
    finally:
        torch.set_num_threads(before)


def _rows(peers: Path | None, envs: int, repeats: int, seconds: float) -> list[Row]:
    collector, bare = make(envs), BareLoop(envs)
    setting: dict[str, Any] = {"envs": envs, "lstm": SHAPE.lstm, "threads": 1}
    setting["params"] = sum(p.numel() for p in collector.policy.net.parameters())  # type: ignore[attr-defined]
    obs, state = collector.obs.copy(), collector.actor.initial_state()
    first, reward = np.zeros(envs, bool), np.zeros(envs, np.float32)
    action, epsilon = np.zeros(envs, np.int64), np.full(envs, 0.1)

    def act() -> object:
        return collector.actor.act(obs, first, action, reward, state, explore=epsilon)

    act_row = _pair("act", setting, act, bare.infer, repeats, seconds, note="the bare inference "
                    "is greedy; ours explores and shapes rewards")  # fmt: skip
    collect_row = _pair(
        "collect", setting, collector.collect, bare.chunk, repeats, seconds, target=FLOOR_TARGET,
        note=f"{ROWS} rows of every environment; ours keeps rows, states and episode returns",
    )  # fmt: skip
    rows = [act_row, collect_row]
    return rows + [_peer(who, peers, collector, setting, repeats) for who in PEERS]


def _pair(
    name: str, setting: dict[str, Any], ours: Callable[[], object], bare: Callable[[], object],
    repeats: int, seconds: float, **fields: Any,
) -> Row:  # fmt: skip
    one, two = calls_for(ours, seconds), calls_for(bare, seconds)
    pairs = interleaved(lambda: time_calls(ours, one), lambda: time_calls(bare, two), repeats)
    return timing_row(name, setting, "bare loop", pairs, kind="speedup", **fields)


def _peer(
    who: str, peers: Path | None, collector: Collector, setting: dict[str, Any], repeats: int
) -> Row:
    """Env steps a second beside a peer's collector."""
    folder, script, target = PEERS[who]
    envs = collector.num_envs
    ours: list[float] = []
    theirs: list[float] = []
    fields: dict[str, Any] = {"kind": "speedup", "higher": True, "target": target}
    fields["note"] = f"{who}: {NOTES[who]}"
    try:
        with asked(interpreter(peers, folder), script, envs) as (facts, ask):
            setting = {**setting, "peer_params": facts["parameters"]}
            ask(envs * ROWS)
            for _ in range(repeats):
                ours.append(_rate(collector))
                theirs.append(float(ask(100 * envs)["rate"]))
    except PeerFailed as e:
        fields["missing"] = str(e)
        ours, theirs = [_rate(collector) for _ in range(repeats)], []
    return make_row("collect", setting, who, "env steps/s", ours, theirs, **fields)


def _rate(collector: Collector) -> float:
    chunks = 10

    def collect() -> None:
        collector.collect()

    before = collector.counters.env_steps
    timing = time_calls(collect, chunks)
    return (collector.counters.env_steps - before) / (timing.wall * chunks)
