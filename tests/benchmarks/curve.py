"""``python -m tests.benchmarks curve``: draws the learning curves of the README.

Each panel shows the greedy evaluations (50 episodes, every 2000 env steps) of rlrun and of a peer
over env steps, three seeds each: thin lines are seeds, thick lines their mean. Without ``--peers``
the picture is drawn from ``results/curve.jsonl``; with ``--peers DIR`` the runs that this file
lacks are made first (one thread each) and added to it. A panel shows the seeds that both sides
have run.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import drawing
from tests.benchmarks.process import CHECKOUT, environment, interpreter, peer_run
from tests.benchmarks.score_row import commit, machine

RESULTS = Path(__file__).parent / "results/curve.jsonl"
PICTURE = Path(__file__).parent / "learning_curve.svg"
SEEDS = range(3)
OPTIONS = "run.stop_value=null run.eval_every=2000 run.eval_episodes=50 learner.threads=1"


@dataclass(frozen=True)
class Panel:
    """Runs and peers of one plot."""

    title: str
    ours: str  # overrides of rlrun
    our_name: str
    script: str  # of tests/benchmarks/peers, run in the environment sb3
    peer_name: str
    env_steps: int


PANELS = (
    Panel("DQN, CartPole-v1, the same settings", "experiment=zoo_dqn_cartpole", "rlrun DQN",
          "dqn_sb3.py", "Stable-Baselines3 DQN", 50_000),
    Panel("PPO, CartPole-v1, the same settings", "experiment=zoo_ppo_cartpole", "rlrun PPO",
          "ppo_sb3.py", "Stable-Baselines3 PPO", 100_000),
    Panel("CartPole without velocities", "policy=r2d2 env=cartpole_novel", "rlrun R2D2",
          "recurrent_ppo_sb3.py", "sb3-contrib RecurrentPPO", 100_000),
)  # fmt: skip
Result = dict[str, Any]


def main(peers: Path | None) -> int:
    """The exit code."""
    results = read()
    if peers is not None:
        for panel, seed, theirs in missing(results):
            result = run(panel, seed, peers if theirs else None)
            results.append(result)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    PICTURE.write_text(svg(results), "utf-8")
    return 0


def read() -> list[Result]:
    """The runs made so far."""
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def missing(results: Sequence[Result]) -> list[tuple[Panel, int, bool]]:
    """(panel, seed, by the peer) of the runs that ``results`` lack."""
    done = {(r["command"], r["seed"]) for r in results}
    every = [(p, s, theirs) for s in SEEDS for p in PANELS for theirs in (False, True)]
    return [(p, s, t) for p, s, t in every if (command(p, theirs=t), s) not in done]


def command(panel: Panel, *, theirs: bool) -> str:
    """The command without its seed."""
    if theirs:
        return f"sb3: {panel.script} {panel.env_steps}"
    return f"rlrun {panel.ours} run.total_steps={panel.env_steps} {OPTIONS}"


def run(panel: Panel, seed: int, peers: Path | None) -> Result:
    """One run of rlrun, or of the panel's peer where ``peers`` is given."""
    theirs = peers is not None
    facts = {
        "command": command(panel, theirs=theirs), "seed": seed, "commit": commit(),
        "machine": machine(),
    }  # fmt: skip
    if not theirs:
        return {**facts, "curve": own_curve(facts["command"], seed)}
    python = interpreter(peers, "sb3")
    answer = peer_run(python, panel.script, seed, 1, panel.env_steps, threads=1)
    return {**facts, "curve": [[point[0], round(point[1], 2)] for point in answer["curve"]]}


def own_curve(line: str, seed: int) -> list[list[float]]:
    """[env steps, mean return] of every evaluation of a command of rlrun."""
    with tempfile.TemporaryDirectory() as work:
        words = [*line.split()[1:], f"seed={seed}", f"run.dir={work}/run", "-q"]
        subprocess.run(
            [sys.executable, "-m", "rlrun", *words], cwd=CHECKOUT, env=environment(1), check=True
        )
        lines = (Path(work) / "run/metrics.jsonl").read_text("utf-8").splitlines()
    records = (json.loads(line) for line in lines)
    return [
        [r["env_steps"], round(r["eval/return_mean"], 2)]
        for r in records
        if "eval/return_mean" in r
    ]


# -- the picture -----------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, GAP = 270, 170, 44, 34, 34  # px of a panel's axes and around them
TOP_RETURN = 500
OURS, THEIRS = "#1f6fb4", "#d9722e"


def svg(results: Sequence[Result]) -> str:
    """The panels of which both sides have a run, side by side."""
    shown = [(panel, both) for panel in PANELS if (both := pairs(panel, results))]
    width = len(shown) * (LEFT + WIDTH) + GAP
    height = TOP + HEIGHT + 62
    parts: list[str] = []
    for num, (panel, both) in enumerate(shown):
        parts += _panel(panel, both, LEFT + num * (LEFT + WIDTH), TOP)
    return drawing.document(parts, width, height)


def pairs(panel: Panel, results: Sequence[Result]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(the peer's curve, ours) [evaluations, 2] of every seed that both have run."""
    theirs, ours = (
        {r["seed"]: np.array(r["curve"]) for r in results if r["command"] == line}
        for line in (command(panel, theirs=True), command(panel, theirs=False))
    )
    return [(theirs[seed], ours[seed]) for seed in sorted(theirs.keys() & ours.keys())]


def _panel(
    panel: Panel, both: Sequence[tuple[np.ndarray, np.ndarray]], x: int, y: int
) -> list[str]:
    out = [
        drawing.text(x + WIDTH / 2, y - 14, panel.title, 'font-weight="bold" text-anchor="middle"')
    ]
    for value in range(0, TOP_RETURN + 1, 100):
        at = y + HEIGHT * (1 - value / TOP_RETURN)
        out.append(drawing.line([(x, at), (x + WIDTH, at)], "#dddddd", 1))
        out.append(drawing.text(x - 6, at + 4, str(value), 'text-anchor="end" fill="#555555"'))
    for tenth in (0, 5, 10):
        steps = panel.env_steps * tenth // 10
        shown = f"{steps // 1000}k" if steps else "0"
        at = x + WIDTH * tenth / 10
        out.append(drawing.text(at, y + HEIGHT + 15, shown, 'text-anchor="middle" fill="#555555"'))
    for side, colour, name, lower in (
        (0, THEIRS, panel.peer_name, 50), (1, OURS, panel.our_name, 34),
    ):  # fmt: skip
        curves = [pair[side] for pair in both]
        for curve in curves:
            out.append(drawing.line(_places(curve, panel, x, y), colour, 0.8, 'opacity="0.3"'))
        length = min(map(len, curves))
        mean = np.mean([curve[:length] for curve in curves], axis=0)
        out.append(drawing.line(_places(mean, panel, x, y), colour, 2.2))
        at = y + HEIGHT + lower
        out.append(drawing.line([(x, at - 4), (x + 18, at - 4)], colour, 2.2))
        out.append(drawing.text(x + 24, at, f"{name}, seeds: {len(curves)}"))
    return out


def _places(curve: np.ndarray, panel: Panel, x: int, y: int) -> list[tuple[float, float]]:
    steps = np.minimum(curve[:, 0] / panel.env_steps, 1)
    heights = 1 - curve[:, 1] / TOP_RETURN
    return [(x + WIDTH * s, y + HEIGHT * h) for s, h in zip(steps, heights, strict=True)]
