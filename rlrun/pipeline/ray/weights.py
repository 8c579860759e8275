"""The tensors that are published to collectors, and their way into another policy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlrun.types import Policy


class Publisher:
    """Names and tensors of a policy that others act with, or compute priorities with.

    ``whole``: all networks, for priorities of new windows; else those that acting needs.
    ``half``: rounded to bfloat16, whatever they travel as.
    """

    def __init__(self, policy: Policy, *, whole: bool, half: bool) -> None:
        self.policy, self.whole, self.half = policy, whole, half

    def tensors(self, *, narrow: bool) -> dict[str, Tensor]:
        """The present tensors; ``narrow``: in bfloat16 where that loses nothing more."""
        found = dict(_networks(self.policy)) if self.whole else self.policy.weights()
        if not self.half:
            return found
        rounded = {n: x.bfloat16() if x.is_floating_point() else x for n, x in found.items()}
        return rounded if narrow else {n: _wide(x) for n, x in rounded.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load what another publisher of the same kind returned."""
        if not self.whole:
            self.policy.load(tensors)
            return
        own = dict(_networks(self.policy))
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def _networks(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of all networks of a policy: its state without optimisers."""
    yield from _tensors(policy.state_dict(), "")


def _tensors(node: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(node, Tensor):
        yield path, node
    elif isinstance(node, dict | list | tuple):
        entries = node.items() if isinstance(node, dict) else enumerate(node)
        for name, child in entries:
            if name not in ("adam", "last", "target_lag", "returns", "running"):
                yield from _tensors(child, f"{path}/{name}")
