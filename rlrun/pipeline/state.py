"""Process-wide state of a run: global random generators, and the backends of updates.

rlrun itself uses its own generators. Users' environments, policies and cells may use the global
ones, so these are seeded when a run begins and saved in its checkpoints.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rlrun.types import Policy


def seed_generators(seed: int) -> None:
    """Seed the global generators; ``seed`` within [0, 2^32)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generators_state() -> dict[str, Any]:
    """Return the state of the global generators as a tree that a checkpoint can hold."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def load_generators(state: dict[str, Any]) -> None:
    """Restore a ``generators_state``. Devices that are not present are skipped."""
    python = state["python"]
    words = tuple(int(word) for word in python["words"])
    random.setstate((int(python["version"]), words, python["gauss"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, cuda_state in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda_state, device)


def remember_streams(policy: Policy) -> Callable[[], None]:
    """Return a function that restores the present state of the policy's and global generators."""
    policy_state, global_state = policy.generator.bit_generator.state, generators_state()

    def restore() -> None:
        policy.generator.bit_generator.state = policy_state
        load_generators(global_state)

    return restore


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore the global generators and torch's number of threads after the block.

    For runs inside a user's process.
    """
    state, threads = generators_state(), torch.get_num_threads()
    try:
        yield
    finally:
        load_generators(state)
        torch.set_num_threads(threads)


def backends(policy: Policy) -> list[str]:
    """Return the backend of every agent's updates: numpy, torch, or unchecked before the first."""
    return [
        "unchecked"
        if getattr(p, "check", None) is not None
        else "numpy"
        if getattr(p, "kernel", None) is not None
        else "torch"
        for p in _agents(policy)
    ]


def restore_backends(policy: Policy, names: Sequence[str]) -> None:
    """Set the backends of updates to ``names``, as ``backends`` returned them.

    The comparison at the first update is not repeated, because another sample might decide
    otherwise.
    """
    for p, name in zip(_agents(policy), names, strict=True):
        if getattr(p, "check", None) is not None and name != "unchecked":
            p.check = None
            p.kernel = p.kernel if name == "numpy" else None


def _agents(policy: Policy) -> list[Any]:
    return list(getattr(policy, "policies", [policy]))
