"""The rule of ``learner.backend``, and checks of a memory or a CPU that decide it. Torch-free."""

from typing import Any, Literal, NamedTuple

import gymnasium as gym

from rlrun import schema
from rlrun.blas import sgemm
from rlrun.spaces import Tree

BackendName = Literal["numpy", "torch"]
KERNELS = {  # policy -> the kernel of exactly its class, without a memory
    "dqn": "rlrun.kernels.dqn:DQNKernel",
    "sac": "rlrun.kernels.sac_td3:SACKernel",
    "td3": "rlrun.kernels.sac_td3:TD3Kernel",
    "ddpg": "rlrun.kernels.sac_td3:TD3Kernel",
    "ppo": "rlrun.kernels.on_policy:PPOKernel",
    "a2c": "rlrun.kernels.on_policy:OnePassKernel",
    "impala": "rlrun.kernels.on_policy:OnePassKernel",
    "pqn": "rlrun.kernels.on_policy:PQNKernel",
}
RECURRENT_KERNELS = {  # with a memory of ``GATED``
    "r2d2": "rlrun.kernels.r2d2:R2D2Kernel",
    "ppo": "rlrun.kernels.recurrent:RecurrentPPOKernel",
    "a2c": "rlrun.kernels.recurrent:RecurrentOnePassKernel",
    "impala": "rlrun.kernels.recurrent:RecurrentOnePassKernel",
    "pqn": "rlrun.kernels.recurrent:RecurrentPQNKernel",
}
GATED = "lstm", "gru"  # memories with compiled loops
_MOST_UNITS = 128  # of one; measured: 0.5 of torch's time at 32 units, 0.8 to 0.9 at 128
_MOST_LSTM = 64  # units beside autograd; of torch's time 0.4 to 0.9 at 64, 1.3 to 1.7 at 128
_WIDEST = 256  # units of a layer of PPO and PQN; measured: 0.5 of torch's time at 256, 0.9 at 512,
# and of a memory of an on-policy policy: 0.2 to 0.7 of torch's time at 32, 0.5 to 0.7 at 256
_MOST_THREADS = 2  # of torch, faster with more than the kernel's one, measured from 64 units on


class Backend(NamedTuple):
    """A way to compute a policy's updates, with the reason for it."""

    name: BackendName
    reason: str
    compiled_memory: bool = False  # torch's, but LSTMs and GRUs unroll in loops (kernels/gated.py)


def choose_backend(config: schema.Config, obs: gym.Space[Any], threads: int) -> Backend:
    """Return the backend of a run. ``obs``: the observation space of the environment.

    The rule depends only on the config and on torch's number of ``threads``. Kernels ("numpy")
    compute linear layers and small LSTMs and GRUs in float32 on the CPU, for which autograd's
    overhead equals the cost of the products.
    """
    if config.learner.backend == "torch":
        return Backend("torch", "learner.backend=torch")
    obstacle = numpy_obstacle(config, obs)
    if obstacle is None and config.learner.backend == "auto":
        obstacle = _slower(config, threads)
    if obstacle is not None:
        compiled = _compiled_memory(config, threads)
        also = f"; {config.memory.name} in compiled loops" if compiled else ""
        return Backend("torch", obstacle + also, compiled)
    memory = f"and {config.memory.name} " if config.memory.name in GATED else ""
    return Backend("numpy", f"linear layers {memory}in float32 on the CPU")


def kernel_name(config: schema.Config) -> str | None:
    """Return ``module:Class`` of the kernel for a policy and its memory, or None."""
    kernels = RECURRENT_KERNELS if config.memory.name in GATED else KERNELS
    return kernels.get(config.policy.name)


def _compiled_memory(config: schema.Config, threads: int) -> bool:
    """Return whether LSTMs and GRUs unroll in compiled loops of one thread."""
    c = config.learner
    plain = config.device == "cpu" and c.precision == "float32" and not c.compile
    wide = config.memory.name == "lstm" and config.memory.hidden > _MOST_LSTM
    slow = _slow_memory(config, threads, _MOST_UNITS)
    if not plain or config.memory.name not in GATED or wide or slow:
        return False
    from rlrun.jit import COMPILED

    return COMPILED and sgemm() is not None


def _slow_memory(config: schema.Config, threads: int, most: int) -> str | None:
    """Return why torch unrolls a memory faster than loops for ``most`` units; None: it does not."""
    if config.memory.hidden > most:
        return f"memory.hidden={config.memory.hidden}: torch is faster above {most}"
    if threads > _MOST_THREADS:
        return f"{threads} threads of torch are faster than the one of a kernel"
    return None


def _slower(config: schema.Config, threads: int) -> str | None:
    """Return why torch updates a policy faster; None: it does not."""
    widest = max(config.torso.hidden, default=0)
    if isinstance(config.policy, schema.PPOConfig | schema.PQNConfig) and widest > _WIDEST:
        return f"torso.hidden={list(config.torso.hidden)}: torch is faster above {_WIDEST}"
    most = _WIDEST if config.policy.on_policy else _MOST_UNITS
    return _slow_memory(config, threads, most) if config.memory.name in GATED else None


def numpy_obstacle(config: schema.Config, obs: gym.Space[Any]) -> str | None:
    """Return the setting that no kernel supports; None: one supports the update."""
    policy, name = config.policy, config.policy.name
    kinds = {schema.POLICY_CONFIGS[name] for name in (*KERNELS, *RECURRENT_KERNELS)}
    if type(policy) not in kinds or ":" in name:  # a user's class, mypkg.mod:Class
        return f"policy {name} has no kernel"
    recurrent = config.memory.name in GATED and name in RECURRENT_KERNELS
    if isinstance(policy, schema.DQNConfig | schema.R2D2Config):
        plain = {"trace": "nstep", "distribution": "none", "noisy": None, "munchausen": None}
        for key, value in plain.items():
            if getattr(policy, key) != value:
                return f"policy.{key}={getattr(policy, key)}"
    several = policy.window is not None and policy.window[:2] != (0, 1)
    with_past = schema.ActionValueConfig | schema.ControlConfig | schema.OnPolicyConfig
    reads_past = isinstance(policy, with_past) and policy.prev_inputs
    c, bare = config.learner, config.memory.name == "none" and name in KERNELS
    for unsupported, setting in (
        (config.torso.name != "mlp", f"torso={config.torso.name}"),
        (not (recurrent or bare), f"memory={config.memory.name}"),
        (not recurrent and several, "windows of several rows"),
        (not recurrent and reads_past, "policy.prev_inputs=true"),
        (c.precision != "float32", f"learner.precision={c.precision}"),
        (recurrent and c.compile, "learner.compile=true"),
        (config.device != "cpu", f"device={config.device}"),
    ):
        if unsupported:
            return setting
    if gym.spaces.flatdim(obs) == 0:  # empty parameters share an address
        return "observations hold no number"
    from rlrun.functional.masks import has_mask

    if config.agents.name == "separate" and isinstance(obs, gym.spaces.Dict):
        obs = obs["observation"]
    if policy.masks and has_mask(obs):
        return "observations have an action mask"
    from rlrun.jit import COMPILED

    if not COMPILED:
        return "numba is not installed or off"
    return None if sgemm() else "compiled code does not find numpy's BLAS"


def bf16_fault(config: schema.Config) -> str | None:
    """Return why ``config`` cannot learn in bf16 on this machine; None: it can."""
    if config.device != "cpu" or config.memory.name != "lstm":
        return None
    from rlrun.policy import compute

    has = compute.cpu_has_bf16_lstm()
    return None if has else "torch cannot compute an LSTM in bfloat16 on this CPU"


def custom_state(memory: schema.MemoryConfig) -> Tree | None:
    """Return the initial state [1, ...] of a memory ``mypkg.mod:Cell``; None: a built-in one."""
    if ":" not in memory.name:
        return None
    import torch  # the user's module has imported it

    from rlrun.nets.memory import make_memory

    with torch.random.fork_rng(devices=[]):
        return make_memory(memory, 1).initial_state(1, torch.device("cpu"))
