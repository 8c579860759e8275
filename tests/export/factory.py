"""Policies to export: built from a command line's words, with weights that make actions vary."""

from typing import Any

import numpy as np
import torch

from rlrun.acting.greedy import GreedyStep
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.run.onnx_check import GraphFunction, Numbers
from rlrun.run.trained import TrainedPolicy
from tests.compose import config


def untrained(*words: str, spaces: Any = None) -> TrainedPolicy:
    """The policy of ``rlrun *words`` with perturbed weights; ``spaces``: as for ``make_plan``."""
    plan = make_plan(config(*words), spaces)
    policy, rng = make_policy(plan), torch.Generator().manual_seed(0)
    weights = {}
    for name, x in policy.weights().items():
        noise = torch.randn(x.shape, generator=rng)
        match name.rpartition(".")[2]:
            case "count":
                weights[name] = torch.full_like(x, 100)
            case "mean":  # of observations
                weights[name] = noise.to(x.dtype)
            case "square":
                weights[name] = noise.square().to(x.dtype) * 100
            case _ if x.is_floating_point() and x.ndim > 1:
                weights[name] = x * (1 + 0.3 * noise) + 0.05 * noise
            case _:
                weights[name] = x
    policy.load(weights)
    return TrainedPolicy(plan, policy, env_steps=7)


def eager(step: GreedyStep) -> GraphFunction:
    """What the exported graph computes, without the export."""

    @torch.no_grad()
    def run(inputs: Numbers) -> Numbers:
        tensors = {k: torch.from_numpy(np.ascontiguousarray(x)) for k, x in inputs.items()}
        return {k: x.numpy() for k, x in step.step(tensors).items()}

    return run
