"""Run directories and sweeps written by hand: a report needs no training."""

import json
from typing import Any

import numpy as np
import yaml

from rlrun.reports.comparison import p_of_gap
from rlrun.run.files import seal

CONFIG: dict[str, Any] = {
    "seed": 0,
    "run": {"dir": None, "total_steps": 1000, "stop_return": "${env.stop_return}"},
    "env": {"id": "CartPole-v1", "kwargs": {}, "stop_return": None, "note": "balance a pole"},
    "policy": {"name": "dqn", "lr": 0.001},
}
VERSIONS = {"python": "3.11.7", "rlrun": "0.1.0", "torch": "2.9.0", "numpy": "2.3.0"}


def permutation_p(a, b, *, permutations=5000, seed=0):
    """The p of ``difference(a, b)`` without its interval, in a tenth of the time."""
    return p_of_gap(np.asarray(a, float), np.asarray(b, float), False, permutations, seed)[0](0.0)


def merged(config, changes):
    """A config with ``changes``, whose names have dots."""
    out = json.loads(json.dumps(config))
    for name, value in changes.items():
        *parents, last = name.split(".")
        inner = out
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return out


def forge(
    path,
    *,
    seed=0,
    returns=(10.0, 20.0, 30.0),
    steps=None,
    status="done",
    overrides=(),
    record=None,
    success=(),
    **config,
):
    """Write a run; ``returns``: its evaluations, the last one that of the final weights.

    ``config``: keys with ``__`` for dots, over ``CONFIG``.
    """
    path.mkdir(parents=True, exist_ok=True)
    changes = {name.replace("__", "."): value for name, value in config.items()}
    whole = merged(CONFIG, {"seed": seed, **changes})
    (path / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    (path / "overrides.yaml").write_text(yaml.safe_dump([f"seed={seed}", *overrides]))
    total = whole["run"]["total_steps"]
    at = (
        steps
        if steps is not None
        else [total * (i + 1) // len(returns) for i in range(len(returns))]
    )
    lines, times = [], []
    for i, (step, value) in enumerate(zip(at, returns, strict=True)):
        share = {"eval/success": success[i]} if success else {}
        lines.append({"env_steps": step, "eval/return_mean": value, **share})
        times.append({"env_steps": step, "time/wall_seconds": step / 100})
    (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (path / "timings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in times))
    done = status == "done"
    fields = {
        "seed": seed,
        "status": status,
        "exit_code": {"done": 0, "failed": 4, "interrupted": 75}.get(status),
        "device": "cpu",
        "threads": 1,
        "backend": "torch",
        "env_steps": at[-1] if at else 0,
        "wall_seconds": (at[-1] if at else 0) / 100,
        "rollbacks": 0,
        "exact": True,
        "exact_reason": None,
        "resumes": [],
        "eval": {"return_mean": returns[-1], "episodes": 20} if done else None,
        "started": f"2026-01-01T00:00:{seed % 60:02d}+00:00",
        "versions": VERSIONS,
        "git": None,
        "host": {"hostname": "box", "platform": "Linux", "cpu_count": 2},
        **(record or {}),
    }
    (path / "run.json").write_bytes(seal(fields))
    return path


def forge_seeds(top, finals, **given):
    """Runs of seeds 0, 1, …, whose last evaluations are ``finals``."""
    return [
        forge(top / f"{top.name}_s{i}", seed=i, returns=(x / 4, x / 2, x), **given)
        for i, x in enumerate(finals)
    ]


def forge_sweep(top, jobs, exit_code=None, commands=()):
    """Write sweep.json: (directory, status) of each job; the commands that added jobs."""
    shared = {"exit_code": exit_code, "seconds": None, "total_steps": None}
    listed = [
        {"num": i, "name": name, "overrides": [f"seed={i}"], "status": status, **shared}
        for i, (name, status) in enumerate(jobs)
    ]
    top.mkdir(parents=True, exist_ok=True)
    (top / "sweep.json").write_bytes(seal({"jobs": listed, "commands": [*map(list, commands)]}))


HOSTILE = '</td><script>window.fired=1</script><img src=x onerror="fired=2">\'&`|*_$x^{2$'


def hostile_runs(top):
    """Runs in ``top/runs`` whose names are not what a page should take as they are."""
    for i, name in enumerate((HOSTILE, "_legend", "=1+1")):
        record = {"exact_reason": HOSTILE, "backend": HOSTILE, "status": "done"}
        forge_seeds(
            top / f"runs/{i}<b>", [1.0, 2.0, 3.0, 4.0, 5.0 + i], policy__name=name,
            policy__lr=i, env__id=f"rlrun/<i>{HOSTILE[:40]}", record=record,
        )  # fmt: skip
