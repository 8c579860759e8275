"""The backends of updates, as part of a run's state. Nothing here needs the room ``kernels``."""

from collections.abc import Iterator, Sequence
from typing import Any

from rlrun.types import Policy


def backends(policy: Policy) -> list[str]:
    """Return the backend of every agent's updates: numpy, torch, or unchecked before the first."""
    return [
        "unchecked" if compared is not None else "numpy" if p.kernel is not None else "torch"
        for p, compared in _kernels(policy)
    ]


def restore_backends(policy: Policy, names: Sequence[str]) -> None:
    """Compute updates as the run did when ``backends`` returned ``names``.

    The comparison of the first update is not repeated: another sample might decide otherwise.
    """
    for (p, compared), name in zip(_kernels(policy), names, strict=True):
        if compared is not None and name != "unchecked":
            p.kernel = compared if name == "numpy" else None


class _NoKernel:
    kernel = None


def _kernels(policy: Policy) -> Iterator[tuple[Any, Any]]:
    """Yield (policy, kernel that its first update compares) of every agent."""
    for p in getattr(policy, "policies", [policy]):
        own = p if hasattr(p, "kernel") else _NoKernel()
        yield own, getattr(own.kernel, "kernel", None)
