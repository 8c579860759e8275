"""Checks that what a run learned is finite, before it is saved or evaluated."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlrun.errors import NumericError
from rlrun.pipeline.parts import Parts

_MAY_BE_MINUS_INF = ("log",)  # the logarithm of a coefficient of 0


def require_finite(parts: Parts) -> None:
    """Raise NumericError when something that a run learned is NaN or infinite."""
    if parts.learner is not None:
        parts.learner.means.require_finite()
    learned = {"policy": parts.policy.state_dict()}
    if parts.bonus is not None:
        learned["bonus"] = parts.bonus.state_dict()
    found = first_non_finite(learned)
    if found is not None:
        raise NumericError(
            f"{found} is not finite after {parts.progress.counters.updates} updates: the policy "
            "diverged; what is saved must be finite; lower policy.lr or set policy.grad_clip"
        )


@torch.no_grad()
def first_non_finite(state: Any) -> str | None:
    """The path of a tensor in a state tree that holds NaN or infinity; None: all are finite.

    One fused reduction where all is well: norms, which are finite unless an element is not (or a
    sum of squares overflows, so that elements decide).
    """
    named = [(path, x) for path, x in _tensors(state, "") if x.is_floating_point() and x.numel()]
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for _, x in named:
        groups.setdefault((x.dtype, x.device), []).append(x)
    norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in groups.values())
    if all(bool(norm.isfinite().all()) for norm in norms):
        return None
    return next((path for path, x in named if not _is_finite(path, x)), None)


def _is_finite(path: str, x: Tensor) -> bool:
    allowed = x == -torch.inf if path.rpartition("/")[2] in _MAY_BE_MINUS_INF else False
    return bool((x.isfinite() | allowed).all())


def _tensors(node: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every tensor in a tree of dicts, lists and tuples."""
    if isinstance(node, Tensor):
        yield path, node
    elif isinstance(node, Mapping):
        for key, child in node.items():
            yield from _tensors(child, f"{path}/{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from _tensors(child, f"{path}/{i}")
