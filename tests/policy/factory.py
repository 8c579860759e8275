"""Small policies and batches of counter windows for them."""

import gymnasium as gym
import numpy as np
import torch

from rlrun.policy.compute import DEFAULT_COMPUTE
from rlrun.policy.cql_sac import CQLSAC
from rlrun.policy.ddpg import DDPG
from rlrun.policy.dqn import DQN
from rlrun.policy.r2d2 import R2D2
from rlrun.policy.random import Random
from rlrun.policy.sac import SAC
from rlrun.policy.td3 import TD3
from rlrun.schema import (
    CQLSACConfig,
    DDPGConfig,
    DQNConfig,
    MemoryConfig,
    R2D2Config,
    RandomConfig,
    SACConfig,
    TD3Config,
    TorsoConfig,
)
from rlrun.types import Spec
from tests.buffer.make import constant, make_replay
from tests.nets.cells import memory_config
from tests.reference.streams import make_stream

SPEC = Spec(gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(5))
_VALUE = {
    "nstep": 3, "gamma": 0.9, "lr": constant(1e-2), "adam_eps": 1e-3, "grad_clip": 40.0,
    "target_update_every": 10, "target_tau": None, "double": True, "dueling": True,
    "head_hidden": (), "prev_inputs": True, "value_rescale_eps": 1e-3, "reward_scale": 0.01,
    "reward_clip": None, "td_clip": None,
}  # fmt: skip
_SWITCHES = {
    "trace": "nstep", "trace_lambda": 0.8, "trace_epsilon": 0.2,
    "distribution": "none", "atoms": 7, "v_min": -2.0,
    "v_max": 3.0, "kappa": 0.1, "taus": 4, "taus_target": 5, "taus_act": 6, "cosines": 8,
    "noisy": None, "noisy_resample": "step",
    "munchausen": None, "munchausen_tau": 0.03, "munchausen_clip": -1.0,
}  # fmt: skip


def r2d2(
    *, spec=SPEC, seed=0, memory="lstm", torso=(8,), hidden=8, device="cpu",
    compute=DEFAULT_COMPUTE, **changes
) -> R2D2:  # fmt: skip
    own = {"name": "r2d2", "learn_unroll_len": 7, "burnin_step": 3, "eta": 0.9, "memory_lr": None}
    config = R2D2Config(**(_VALUE | _SWITCHES | own | {"state_init": "stored"} | changes))
    return R2D2(
        config, TorsoConfig("mlp", torso, "tanh", False), memory_config(memory, hidden, 1.0),
        spec=spec, seed=seed, total_steps=1000, device=torch.device(device), compute=compute,
    )  # fmt: skip


def dqn(*, spec=SPEC, seed=0, device="cpu", **changes) -> DQN:
    config = DQNConfig(**(_VALUE | _SWITCHES | {"name": "dqn"} | changes))
    return DQN(
        config, TorsoConfig("mlp", (8,), "tanh", False), MemoryConfig("none", 0, 0.0),
        spec=spec, seed=seed, total_steps=1000, device=torch.device(device),
    )  # fmt: skip


def uniform(*, spec, seed=0) -> Random:
    return Random(
        RandomConfig("random"), TorsoConfig("mlp", (), "relu", False), MemoryConfig("none", 0, 0.0),
        spec=spec, seed=seed, total_steps=1, device=torch.device("cpu"),
    )  # fmt: skip


def gradient(policy, out) -> list[torch.Tensor]:
    """The gradient of a loss over every parameter."""
    return [x.clone() for x in torch.autograd.grad(out.loss, policy.params, retain_graph=True)]


def states_like(policy, stream, seed=0):
    """The stream with random recurrent states of the policy's shape."""
    from dataclasses import replace

    from rlrun.types import tree_map

    g = torch.Generator().manual_seed(seed)
    steps, columns = stream.segment.reward.shape

    def make(x):
        return torch.randn(steps, columns, *x.shape[1:], generator=g)

    states = tree_map(make, policy.actor(columns).initial_state())
    return replace(stream.segment, states=states, state=tree_map(lambda x: x[0], states))


def batch_of(policy, lengths=((4, 9, 1), (6, 13)), ends=((True, False), (False, True)), rows=45):
    """Every window of a short counter stream, as one sample: each length and end twice or more."""
    stream = make_stream([list(x) for x in lengths], [list(x) for x in ends], rows)
    segment = states_like(policy, stream)
    replay = make_replay(segment, rows=rows + 40, window=policy.window)
    keys = replay.add(segment)
    return replay.get(keys, 0)


BOX = Spec(
    gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    gym.spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32)),
)
_CONTROL = {
    "nstep": 3, "learn_unroll_len": None, "burnin_step": 0, "state_init": "stored", "gamma": 0.9,
    "lr": constant(1e-2), "actor_lr": constant(1e-2), "memory_lr": None, "adam_eps": 1e-8,
    "grad_clip": None,
    "target_update_every": None, "target_tau": 0.1, "actor_every": 1, "head_hidden": (8,),
    "prev_inputs": False, "reward_scale": 0.01, "reward_clip": None, "td_clip": None, "eta": 0.9,
}  # fmt: skip
_SAC = {"temperature": 0.3, "temperature_auto": True, "target_entropy": None}
_OWN = {
    "sac": _SAC,
    "cql_sac": _SAC
    | {"conservatism": 0.7, "gap_threshold": 0.5, "samples": 3, "entropy_in_target": False},
    "td3": {"noise": constant(0.1), "smoothing": 0.2, "smoothing_clip": 0.5},
    "ddpg": {"noise": constant(0.1)},
}
RECURRENT = {"learn_unroll_len": 7, "burnin_step": 3, "prev_inputs": True, "memory": "lstm"}


def control(name, *, spec=BOX, seed=0, memory="none", torso=(8,), activation="tanh", **changes):
    """A small DDPG, TD3, SAC or CQL on SAC."""
    kinds = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config), "ddpg": (DDPG, DDPGConfig),
             "cql_sac": (CQLSAC, CQLSACConfig)}  # fmt: skip
    cls, kind = kinds[name]
    config = kind(**(_CONTROL | _OWN[name] | {"name": name} | changes))
    return cls(
        config, TorsoConfig("mlp", torso, activation, False),
        memory_config(memory, 0 if memory == "none" else 6, 1.0),
        spec=spec, seed=seed, total_steps=1000, device=torch.device("cpu"),
    )  # fmt: skip


def box_batch(policy, rows=45, **changes):
    """Windows of a short counter stream whose actions are drawn from the asymmetric box."""
    from dataclasses import replace

    stream = make_stream([[4, 9, 1], [6, 13]], [[True, False], [False, True]], rows)
    g = np.random.default_rng(3)
    low, high = policy.bounds.space.low, policy.bounds.space.high
    size = (*stream.segment.reward.shape, *low.shape)
    action = torch.from_numpy(g.uniform(low, high, size).astype(np.float32))
    segment = states_like(policy, replace(stream, segment=replace(stream.segment, action=action)))
    replay = make_replay(segment, rows=rows + 40, window=policy.window, **changes)
    return replay.get(replay.add(segment), 0)
