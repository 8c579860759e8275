"""pipeline=overlapped beside pipeline=serial, where learner and collector cost about the same.

A second row says what the machine's cores give at all: two serial runs at once against one after
the other. No division of a run among two processes can gain more.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.benchmarks.own_run import own_run
from tests.benchmarks.timing import Row, make_row

TARGET = 1.3
SETTING = (  # Acrobot's physics in Python, one environment after the other
    "policy=r2d2", "env=acrobot", "run.eval_episodes=1",
)  # fmt: skip
RATIO = 8  # learned rows an env step: collecting and learning take about as long


def measure(*, repeats: int, env_steps: int) -> list[Row]:
    """Seconds of runs, taken in turns."""
    runs: dict[str, list[dict[str, Any]]] = {"overlapped": [], "serial": []}
    pairs: list[list[dict[str, Any]]] = []
    for _ in range(repeats):
        for name, found in runs.items():
            found.append(_run(name, env_steps))
        with ThreadPoolExecutor(2) as two:
            pairs.append(list(two.map(_run, ["serial"] * 2, [env_steps] * 2)))
    for found in [*runs.values(), *pairs]:
        assert len({r["digest"] for r in found}) == 1, "not deterministic"
    walls = {n: [r["wall"] for r in found] for n, found in runs.items()}
    shares = [r["collect"] / (r["collect"] + r["update"]) for r in runs["serial"]]
    setting = {"env_steps": env_steps, "replay_ratio": RATIO, "cores": os.cpu_count()}
    setting["collect_share"] = f"{sum(shares) / len(shares):.0%}"
    together = [max(r["wall"] for r in pair) / 2 for pair in pairs]
    return [make_row(
        "overlapped run", setting, "serial run", "s", walls["overlapped"], walls["serial"],
        kind="speedup", target=TARGET, note="from the first line of the log to the last, the start "
        "of the collector's process (1 to 2 s) included; both give the same digest every time",
    ), make_row(
        "the machine's ceiling", setting, "serial run", "s", together, walls["serial"],
        kind="speedup", note="two serial runs at once, half of the slower one's time",
    )]  # fmt: skip


def _run(name: str, env_steps: int) -> dict[str, Any]:
    never = 10 * env_steps
    return own_run(
        *SETTING, f"pipeline={name}", f"run.eval_every={never}", f"run.checkpoint_every={never}",
        f"learner.replay_ratio={RATIO}", seed=0, threads=1, env_steps=env_steps,
    )  # fmt: skip
