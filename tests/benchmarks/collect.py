"""Collecting on CartPole, beside DI-engine."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from tests.benchmarks.floor import PEERS as SHAPE  # its layers
from tests.benchmarks.product import Collector, Counters, make_collector, make_plan
from tests.benchmarks.rows import PeerFailed, Row, make_row, time_calls
from tests.benchmarks.runs import asked, interpreter
from tests.compose import config

ROWS = 40  # of every environment in a chunk
ENVS = (8, 64)
TARGET = 10.0


def main(o: Namespace) -> list[Row]:
    """A row for each number of environments, one thread a side."""
    return [measure(o.peers, envs, o.rounds) for envs in (ENVS[:1] if o.quick else ENVS)]


def make(envs: int) -> Collector:
    """rlrun's collector with the floor's layers."""
    c = config(
        "policy=r2d2", "env=cartpole", f"collector.num_envs={envs}",
        f"collector.n_sample={ROWS * envs}", "torso.hidden=[128,128,64]", "memory.hidden=64",
        "policy.head_hidden=[64]",
    )  # fmt: skip
    return make_collector(make_plan(c), Counters())


def measure(peers: Path | None, envs: int, repeats: int) -> Row:
    """Env steps a second beside DI-engine's collector."""
    collector = make(envs)
    setting: dict[str, Any] = {"envs": envs, "lstm": SHAPE.lstm, "threads": 1}
    setting["params"] = sum(p.numel() for p in collector.policy.net.parameters())
    ours: list[float] = []
    theirs: list[float] = []
    fields: dict[str, Any] = {"kind": "speedup", "higher": True, "target": TARGET}
    fields["note"] = "its own cartpole R2D2 settings, nn.LSTM, and its own windows"
    try:
        with asked(interpreter(peers, "ding"), "diengine.py collect", envs) as (facts, ask):
            setting["peer_params"] = facts["parameters"]
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
