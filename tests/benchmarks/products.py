"""One update of DQN, SAC and TD3 beside its own matrix products and Adam, which no way can avoid.

DQN has rl-zoo3's settings of CartPole, SAC and TD3 their presets on Pendulum. The products are
numpy's, with arrays of the update's sizes, and Adam is torch's, on the parameters in one array.
"""

from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from tests.benchmarks import product
from tests.benchmarks.product import Sample, Segment
from tests.benchmarks.rows import Row, beside
from tests.compose import config

WANTED = {"dqn": 1.4, "sac": 1.3, "td3": 1.3}
LINES = {
    "dqn": ("experiment=zoo_dqn_cartpole",),
    "sac": ("policy=sac", "env=pendulum"),
    "td3": ("policy=td3", "env=pendulum"),
}


def main(o: Namespace) -> list[Row]:
    """A row for every policy, in one thread, with denormal numbers flushed as in a run."""
    with product.flushed():
        return [measure(name, o.rounds, o.seconds) for name in WANTED]


def measure(name: str, repeats: int, seconds: float) -> Row:
    """``policy.update`` of one batch beside the floor."""
    c = config(*LINES[name], "learner.threads=1", "learner.target_thread=false")
    plan = product.make_plan(c)
    policy, batch = product.make_policy(plan), c.learner.batch_size
    sample, hidden = make_sample(plan, batch), list(c.torso.hidden)
    inputs, actions = plan.policy_spec.obs.shape[0], plan.policy_spec.action
    floor = (
        dqn_floor([inputs, *hidden, int(actions.n)], batch)
        if name == "dqn"
        else control_floor(name, inputs, actions.shape[0], hidden, batch)
    )

    setting: dict[str, Any] = {"hidden": "-".join(map(str, hidden)), "batch": batch}
    return beside(
        f"{name} update", setting, "products + Adam", lambda: policy.update(sample), floor,
        (repeats, seconds), kind="cost", target=WANTED[name],
    )  # fmt: skip


def make_sample(plan: Any, batch: int) -> Sample:
    """One-step windows as a replay samples them; every eighth terminates."""
    g, spec = np.random.default_rng(0), plan.policy_spec
    shape, action = spec.obs.shape, spec.action
    taken = g.integers(action.n, size=(1, batch)) if hasattr(action, "n") else None
    if taken is None:
        taken = g.uniform(-1, 1, (1, batch, *action.shape)).astype(np.float32)
    none = torch.zeros(1, batch, dtype=torch.bool)
    segment = Segment(
        obs=torch.from_numpy(g.standard_normal((2, batch, *shape), np.float32)),
        first=torch.zeros(2, batch, dtype=torch.bool),
        action=torch.from_numpy(taken),
        reward=torch.from_numpy(g.random((1, batch), np.float32)),
        terminated=torch.arange(batch).remainder(8).eq(0)[None],
        truncated=none,
        valid=~none,
        extras={"prev_action": torch.from_numpy(taken[0]), "prev_reward": torch.zeros(batch)},
    )
    return Sample(segment, torch.ones(batch), np.arange(batch), 0)


class Floor:
    """Matrix products of ``count`` networks of linear layers, and Adam."""

    def __init__(self, sizes: list[int], count: int = 1) -> None:
        total = count * sum(a * b + b for a, b in pairwise(sizes))
        self.values, self.grads, self.mean, self.square = (
            torch.full((total,), 0.01) for _ in range(4)
        )
        self.sizes, self.count, self.steps = sizes, count, torch.zeros(())
        self.layers, at = [], 0
        for n_in, n_out in pairwise(sizes):
            end = at + count * n_in * n_out
            parts = (x.numpy()[at:end] for x in (self.values, self.grads))
            self.layers.append([x.reshape(count, n_out, n_in) for x in parts])
            at = end + count * n_out
        self.kept: dict[Any, np.ndarray] = {}
        self.outputs: list[np.ndarray] = []

    def array(self, *key: int) -> np.ndarray:
        """An array [count, key[0], key[1]] for this key."""
        if key not in self.kept:
            self.kept[key] = np.full((self.count, *key[:2]), 0.1, np.float32)
        return self.kept[key]

    def forward(self, x: np.ndarray) -> None:
        """The products of a forward pass of ``x`` [1, N, in]."""
        self.outputs = [x]
        for i, (weight, _) in enumerate(self.layers):
            out = self.array(x.shape[1], self.sizes[i + 1], i)
            x = np.matmul(x, weight.mT, out=out)
            self.outputs.append(x)

    def backward(self, rows: int, *, weights: bool = True, inputs: bool = False) -> None:
        """Those of a backward pass of the first ``rows`` rows."""
        grad = self.array(rows, self.sizes[-1], -1)
        for i in reversed(range(len(self.layers))):
            weight, weight_grad = self.layers[i]
            if weights:
                np.matmul(grad.mT, self.outputs[i][:, :rows], out=weight_grad)
            if i or inputs:
                product = np.multiply if grad.shape[-1] == 1 else np.matmul
                grad = product(grad, weight, out=self.array(rows, self.sizes[i], -2 - i))

    def step(self) -> None:
        """Torch's Adam."""
        state = ([x] for x in (self.values, self.grads, self.mean, self.square))
        torch._fused_adam_(
            *state, [], [self.steps], lr=1e-9, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip


def dqn_floor(sizes: list[int], batch: int) -> Callable[[], None]:
    """Two forward passes, one backward pass, Adam."""
    net, target = Floor(sizes), Floor(sizes)
    x = np.full((1, batch, sizes[0]), 0.1, np.float32)

    def update() -> None:
        target.forward(x)
        net.forward(x)
        net.backward(batch)
        net.step()

    return update


def control_floor(
    name: str, inputs: int, actions: int, hidden: list[int], batch: int
) -> Callable[[], None]:
    """The passes of SAC, or of TD3, whose actor learns in every second update."""
    outputs = 2 * actions if name == "sac" else actions
    actor, target_actor = (Floor([inputs, *hidden, outputs]) for _ in range(2))
    critics, target_critics, first = (
        Floor([inputs + actions, *hidden, 1], count) for count in (2, 2, 1)
    )
    obs, both, pairs = (
        np.full((1, *shape), 0.1, np.float32)
        for shape in ((batch, inputs), (2 * batch, inputs), (batch, inputs + actions))
    )
    updates = 0

    def learn_critics() -> None:
        target_critics.forward(pairs)
        critics.forward(pairs)
        critics.backward(batch)
        critics.step()

    def sac() -> None:
        actor.forward(both)
        learn_critics()
        critics.forward(pairs)
        critics.backward(batch, weights=False, inputs=True)
        actor.backward(batch)
        actor.step()

    def td3() -> None:
        nonlocal updates
        updates += 1
        target_actor.forward(obs)
        learn_critics()
        if updates % 2 == 0:
            actor.forward(obs)
            first.forward(pairs)
            first.backward(batch, weights=False, inputs=True)
            actor.backward(batch)
            actor.step()

    return sac if name == "sac" else td3
