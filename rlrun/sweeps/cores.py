"""The cores that this process may use. Torch-free."""

import os
import re
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Whole cores by affinity and cgroup quota, at least 1."""
    share = cgroup_quota(_CGROUP)
    return affinity() if share is None else max(1, min(affinity(), int(share)))


def affinity() -> int:
    """Cores on which the scheduler may run this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path | None = None) -> float | None:
    """Cores' worth of time that the cgroup at ``root`` (version 2 or 1) gets, None: no limit."""
    root = _CGROUP if root is None else root
    text = _read(root / "cpu.max") or " ".join(
        _read(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    )
    found = re.fullmatch(r"\s*(\d+)\s+(\d+)\s*", text)  # "max" and -1: no limit
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
