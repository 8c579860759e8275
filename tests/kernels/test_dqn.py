"""DQN's update in numpy is DQN's update."""

import warnings
from dataclasses import replace
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.errors import NumericError
from rlrun.kernels.dqn import DQNKernel
from rlrun.types import Sample, Spec, Tree, tree_leaves, tree_map
from tests.acting.test_step import SPACES
from tests.buffer.factory import linear
from tests.optim.test_graph import samples_of
from tests.policy.factory import batch_of, dqn

PLAIN_INPUTS = {"prev_inputs": False}
SHAPES = [
    {"double": double, "dueling": dueling, "nstep": nstep, "value_rescale_eps": eps}
    for double, dueling, nstep, eps in product((True, False), (True, False), (1, 3), (None, 1e-2))
]
OTHERS = [
    {"td_clip": 0.01},
    {"grad_clip": 1e-3},
    {"grad_clip": None},
    {"reward_clip": 0.02, "reward_scale": 1.0},
    {"target_update_every": None, "target_tau": 0.1},
    {"target_update_every": 2},
    {"head_hidden": (6, 5)},
    {"lr": linear(1e-2, 1e-3)},
]
FIVE = gym.spaces.Discrete(5)


def with_kernel(policy):
    """The policy, its updates computed by the kernel."""
    policy.kernel = DQNKernel(policy)
    return policy


def drawn(space: gym.Space, steps: int, columns: int, seed: int) -> Tree:
    """Observations [steps, columns, ...] of a space, as a replay hands them out."""
    batch = gym.vector.utils.batch_space(space, steps * columns)
    batch.seed(seed)
    return tree_map(
        lambda x: torch.from_numpy(x).reshape(steps, columns, *x.shape[1:]), batch.sample()
    )


def samples(policy, space: gym.Space | None = None) -> list[Sample]:
    """Some with rows that are not valid, NaN in what must not be read, and weights.

    ``space``: what observations are drawn from; None: those of the counter stream.
    """
    found, g = [], torch.Generator().manual_seed(0)
    for i in range(6):
        sample = batch_of(policy)
        segment = sample.segment
        valid = segment.valid.clone()
        if i % 2:
            valid[0, :3] = False
        over = segment.terminated.clone()
        over[0, 5] = True
        obs = segment.obs if space is None else drawn(space, *segment.first.shape, seed=i)
        obs = tree_map(torch.clone, obs)
        for x in tree_leaves(obs):
            x[1:, over[0]] = torch.nan if x.is_floating_point() else 99
        segment = replace(segment, valid=valid, terminated=over, obs=obs)
        weight = torch.rand(len(sample.weight), generator=g)
        found.append(Sample(segment, weight, sample.key, 150 * i))
    return found


@pytest.mark.parametrize("changes", [*SHAPES, *OTHERS], ids=str)
def test_updates_are_the_same(changes):
    same(changes)


@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("space", SPACES)
def test_every_observation_is_read_the_same(space, nstep):
    """One-hot from where a discrete space starts, bytes as they are, parts side by side."""
    spec = Spec(SPACES[space], FIVE)
    same({"spec": spec, "nstep": nstep}, SPACES[space])


def same(changes, space=None):
    ours, theirs = with_kernel(dqn(**PLAIN_INPUTS, **changes)), dqn(**PLAIN_INPUTS, **changes)
    for sample in samples(ours, space):
        one, two = ours.update(sample), theirs.update(sample)
        torch.testing.assert_close(one.priority, two.priority, rtol=1e-4, atol=1e-6)
        assert list(one.metrics) == list(two.metrics)
        for name, value in two.metrics.items():
            torch.testing.assert_close(
                one.metrics[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
    for a, b in zip(
        [*ours.net.parameters(), *ours.target.parameters()],
        [*theirs.net.parameters(), *theirs.target.parameters()],
        strict=True,
    ):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_batches_of_two_sizes_in_turn():
    ours, theirs = with_kernel(dqn(**PLAIN_INPUTS)), dqn(**PLAIN_INPUTS)
    large, small = (samples_of(ours, 3, batch=size) for size in (8, 3))
    for sample in (x for pair in zip(large, small, strict=True) for x in pair):
        one, two = ours.update(sample), theirs.update(sample)
        assert len(one.priority) == len(sample.weight)
        torch.testing.assert_close(one.priority, two.priority, rtol=1e-4, atol=1e-6)
        loss = (x.metrics["train/loss"] for x in (one, two))
        torch.testing.assert_close(*loss, rtol=1e-4, atol=1e-6)


def test_a_torso_without_layers():
    from rlrun.policy.dqn import DQN
    from rlrun.schema import MemoryConfig, TorsoConfig
    from tests.policy.factory import SPEC

    given = {"spec": SPEC, "seed": 0, "total_steps": 10, "device": torch.device("cpu")}
    config = dqn(**PLAIN_INPUTS, head_hidden=(7,)).config
    shape = (TorsoConfig("mlp", (), "tanh", False), MemoryConfig("none", 0, 0.0))
    ours, theirs = (DQN(config, *shape, **given) for _ in range(2))
    with_kernel(ours)
    for sample in samples(ours):
        one, two = ours.update(sample), theirs.update(sample)
        torch.testing.assert_close(one.priority, two.priority, rtol=1e-4, atol=1e-6)


def test_results_belong_to_the_caller():
    policy = with_kernel(dqn(**PLAIN_INPUTS))
    sample = samples(policy)[0]
    kept = policy.update(sample)
    before = kept.priority.clone(), {k: v.clone() for k, v in kept.metrics.items()}
    policy.update(samples(policy)[1])
    assert torch.equal(kept.priority, before[0])
    assert all(torch.equal(kept.metrics[k], v) for k, v in before[1].items())
    assert kept.priority.dtype == torch.float32
    assert np.all(kept.priority.numpy() >= 0)


def test_divergence_is_the_learners_to_tell():
    """Numbers that overflow end the update; numpy's own warnings would stand before it."""
    policy = with_kernel(dqn(**PLAIN_INPUTS))
    sample = samples(policy)[0]
    for p in policy.net.parameters():
        p.data.mul_(1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NumericError, match=r"train/grad_norm = (nan|inf) in update 1: "):
            policy.update(sample)
