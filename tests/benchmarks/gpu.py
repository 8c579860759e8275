"""R2D2 of the paper's sizes on a GPU: updates per second.

Windows of 40 + 80 + 5 rows, 64 an update, an LSTM of 512 units; vectors of 64 numbers, and images
of 84 x 84 x 4 by the convolutions of Mnih et al. 2015. Without a GPU only ``--quick`` runs: a
smaller network on the CPU, to see that this file works.
"""

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tests.benchmarks import product
from tests.benchmarks.product import R2D2, Replay, Sample, Segment
from tests.benchmarks.rows import Row, make_row
from tests.compose import config

ACTIONS = 18
WANTED = {"vectors": 330, "images": 200}  # updates per second, on an H100 or H200
SPEEDUPS = (False, False), (True, False), (True, True)  # learner.cuda_graph, learner.compile
SPACES: dict[str, gym.Space[Any]] = {
    "vectors": gym.spaces.Box(-np.inf, np.inf, (64,), np.float32),
    "images": gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
}
TESTS = ("tests/policy/test_optim.py", "tests/buffer/test_device.py", "tests/nets")


def main(o: Namespace) -> list[Row]:
    """Rows of every setting, after the tests that need a GPU."""
    quick, found = bool(o.quick), torch.cuda.is_available()
    if not found and not quick:
        print("gpu: not measured: torch sees no GPU here")
        return []
    device = "cuda" if found else "cpu"
    name = torch.cuda.get_device_name() if found else "CPU, a small network"
    if not quick:
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", *TESTS], check=True)
    rows: list[Row] = []
    for obs in SPACES:
        for precision in ("float32",) if quick else ("float32", "tf32", "bf16"):
            with product.tensor_cores(precision):
                for graph, compiled in SPEEDUPS[: 1 if quick else 3 if precision == "bf16" else 2]:
                    policy = make_policy(
                        obs, device, precision, graph=graph, compiled=compiled, small=quick
                    )
                    sample = make_sample(policy, obs, quick)
                    setting = {"obs": obs, "precision": precision, "graph": graph}
                    setting |= {"compile": compiled, "device": name}
                    rates = updates_per_second(lambda: policy.update(sample), o, device)  # noqa: B023
                    best = compiled and precision == "bf16"
                    rows.append(rate_row("update", setting, rates, WANTED[obs] if best else None))
                    if best:
                        rows.append(with_replay(policy, obs, setting, o))
    return rows


def make_policy(
    obs: str,
    device: str,
    precision: str,
    *,
    graph: bool = False,
    compiled: bool = False,
    small: bool = False,
) -> R2D2:
    """R2D2 with the paper's settings; ``small``: narrow layers, a batch of 2."""
    words = ["experiment=r2d2_paper", "env=cartpole", "learner.backend=torch"]
    words += [f"device={device}", f"learner.precision={precision}", f"learner.cuda_graph={graph}"]
    words += [f"learner.compile={compiled}"]
    words += ["torso=nature_cnn"] if obs == "images" else []
    words += ["memory.hidden=8", "torso.hidden=[16]", "learner.batch_size=2"] if small else []
    plan = product.make_plan(config(*words), (SPACES[obs], gym.spaces.Discrete(ACTIONS), 1))
    policy = product.make_policy(plan)
    assert isinstance(policy, R2D2)
    return policy


def make_sample(policy: R2D2, obs: str, quick: bool) -> Sample:
    """A batch of windows in the middle of episodes, on the policy's device."""
    batch, g = 2 if quick else 64, np.random.default_rng(0)
    rows = make_rows(policy, obs, policy.window.rows - 1, batch, g)
    segment = replace(rows, states=(), extras=_previous(batch))
    on = policy.device
    return Sample(segment.to(on), torch.ones(batch, device=on), np.arange(batch), 0)


def _previous(batch: int) -> dict[str, torch.Tensor]:
    return {"prev_action": torch.zeros(batch, dtype=torch.long), "prev_reward": torch.zeros(batch)}


def make_rows(policy: R2D2, obs: str, rows: int, columns: int, g: np.random.Generator) -> Segment:
    """Random rows of one endless episode a column."""
    shape, hidden = SPACES[obs].shape or (), policy.net.memory.size
    lead = (rows + 1, columns)
    values = (
        g.integers(256, size=(*lead, *shape), dtype=np.uint8) if obs == "images"
        else g.standard_normal((*lead, *shape), np.float32)
    )  # fmt: skip
    no = torch.zeros(rows, columns, dtype=torch.bool)
    states = torch.zeros(rows, columns, hidden)
    return Segment(
        obs=torch.from_numpy(values),
        first=torch.zeros(lead, dtype=torch.bool),
        action=torch.from_numpy(g.integers(ACTIONS, size=(rows, columns))),
        reward=torch.from_numpy(g.standard_normal((rows, columns), np.float32)),
        terminated=no,
        truncated=no.clone(),
        valid=~no,
        state=(states[0], states[0].clone()),
        states=(states, states.clone()),
    )


def make_replay(policy: R2D2, obs: str, device: str) -> Replay:
    """A prioritized replay on the GPU, full of ``make_rows``."""
    g, columns = np.random.default_rng(1), 16
    words = ["experiment=r2d2_paper", "env=cartpole", f"device={device}", f"buffer.device={device}"]
    words += ["buffer.capacity=16000", f"collector.num_envs={columns}", "learner.batch_size=64"]
    words += ["buffer.initial_priority=max"]
    plan = product.make_plan(config(*words), (SPACES[obs], gym.spaces.Discrete(ACTIONS), 1))
    replay = product.make_replay(plan)
    for _ in range(5):
        replay.add(make_rows(policy, obs, 200, columns, g))
    return replay


def with_replay(policy: R2D2, obs: str, setting: dict[str, Any], o: Namespace) -> Row:
    """Sampling, updating and returning the priorities."""
    replay = make_replay(policy, obs, policy.device.type)

    def step() -> None:
        sample = replay.sample(64, 0)
        update = policy.update(sample)
        assert update.priority is not None
        replay.prioritize(sample.key, update.priority)

    rates = updates_per_second(step, o, policy.device.type)
    return rate_row("update+replay", setting | {"buffer": "device"}, rates, None)


def updates_per_second(step: Callable[[], object], o: Namespace, device: str) -> list[float]:
    """One figure for each of up to five repeats, after a warm-up that captures the graph."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    calls = 1 if o.quick else 8
    for _ in range(calls):
        step()
    rates = []
    for _ in range(min(o.rounds, 5)):
        wait()
        began = time.perf_counter()
        step()
        wait()
        calls = max(1, round(o.seconds / (time.perf_counter() - began)))
        began = time.perf_counter()
        for _ in range(calls):
            step()
        wait()
        rates.append(calls / (time.perf_counter() - began))
    return rates


def rate_row(name: str, setting: dict[str, Any], rates: list[float], wanted: int | None) -> Row:
    other = [] if wanted is None else [float(wanted)] * len(rates)
    target = None if wanted is None else 1.0
    return make_row(
        name, setting, "wanted", "updates/s", rates, other, kind="speedup", higher=True,
        target=target,
    )  # fmt: skip
