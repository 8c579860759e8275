"""``python -m tests.benchmarks.ablation``: R2D2 with and without its parts, in two tasks.

Draws ``ablation.svg`` and prints two tables from ``results/ablation.jsonl``. ``--sweeps DIR`` first
makes or completes the sweeps in DIR, two jobs at a time (an hour), and writes their scores there.
``--quick`` shows that it works: one short run of two settings in the first task, drawn in a
temporary folder.

A score is the mean return of the final weights (50 greedy episodes). The windows are shorter than
what the tasks ask a policy to remember need them to be: seven learned rows for a memory of four in
RepeatPrevious, twelve for a walk of eleven and the policy's idle moves in the T-maze.
"""

import argparse
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
from tests.benchmarks.process import CHECKOUT, environment
from tests.benchmarks.product import mean_interval
from tests.benchmarks.score_row import commit, machine

RESULTS = Path(__file__).parent / "results/ablation.jsonl"
PICTURE = Path(__file__).parent / "ablation.svg"
SEEDS = range(5)


@dataclass(frozen=True)
class Task:
    """An environment of the ablation; ``overrides`` are those of its sweep."""

    name: str
    title: str
    overrides: str
    total_steps: int
    low: float  # left end of the axis of scores
    high: float


@dataclass(frozen=True)
class Part:
    """A part of R2D2: its key, the value of the paper, the value without it."""

    key: str
    name: str
    on: Any
    off: Any


TASKS = (
    Task("repeat_previous", "RepeatPrevious, 30k env steps",
         "experiment=r2d2_repeat_previous policy.learn_unroll_len=8 learner.replay_ratio=15",
         30_000, -0.5, 1.0),
    Task("tmaze", "T-maze of length 10, 40k env steps",
         "experiment=r2d2_tmaze50 env.length=10 policy.learn_unroll_len=13 "
         "learner.replay_ratio=60",
         40_000, -1.0, 1.0),
)  # fmt: skip
PARTS = (
    Part("policy.state_init", "stored state", "stored", "zero"),
    Part("policy.burnin_step", "burn-in", 4, 0),
    Part("policy.value_rescale_eps", "value rescaling", 1e-3, None),
    Part("buffer.alpha", "priorities", 0.6, 0),
)
Result = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """The exit code."""
    given = _parser().parse_args(argv)
    if given.quick:
        with tempfile.TemporaryDirectory() as work:
            results = sweep(TASKS[0], Path(work), quick=True)
            show(results, Path(work) / "ablation.svg")
        return 0
    if given.sweeps is not None:
        results = [r for task in TASKS for r in sweep(task, given.sweeps)]
        RESULTS.write_text("".join(json.dumps(r) + "\n" for r in results), "utf-8")
    show(read(), PICTURE)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sweeps", type=Path, metavar="DIR", help="make or complete the sweeps")
    parser.add_argument("--quick", action="store_true", help="one short run of two settings")
    return parser


def read() -> list[Result]:
    """The committed runs."""
    return [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]


def command(task: Task, seeds: Sequence[int]) -> list[str]:
    """The line of a task's sweep, but for where it is written."""
    return [
        "rlrun", "-m", "sweep=r2d2_ablation", *task.overrides.split(),
        f"run.total_steps={task.total_steps}", "run.stop_value=null",
        f"seed={','.join(map(str, seeds))}",
    ]  # fmt: skip


def sweep(task: Task, folder: Path, *, quick: bool = False) -> list[Result]:
    """The scores of a task's sweep in ``folder``, which is made first, or completed."""
    path = folder / task.name
    words = command(task, SEEDS)[1:]
    if quick:
        short = "policy.burnin_step=4 policy.value_rescale_eps=1e-3 buffer.alpha=0 "
        short += "seed=0 run.total_steps=300 learner.learning_starts=100 run.eval_episodes=2"
        words = [*command(task, [0])[1:], *short.split()]
    if (path / "sweep.json").exists():
        words = ["resume", str(path)]
    else:
        words += [f"sweep.dir={path}", "hydra.launcher.workers=2"]
    out = subprocess.DEVNULL if quick else None
    line = [sys.executable, "-m", "rlrun", *words]
    subprocess.run(line, cwd=CHECKOUT, env=environment(1), stdout=out, check=True)
    jobs = json.loads((path / "sweep.json").read_text("utf-8"))["jobs"]
    return [_result(task, job["overrides"], path / job["name"]) for job in jobs]


def _result(task: Task, overrides: Sequence[str], run_dir: Path) -> Result:
    given = dict(word.split("=", 1) for word in overrides)
    record = json.loads((run_dir / "run.json").read_text("utf-8"))
    setting = {part.key: given[part.key] == _text(part.on) for part in PARTS}
    return {
        "task": task.name, "seed": int(given["seed"]), "with": setting,
        "score": round(record["eval"]["return_mean"], 5), "env_steps": record["env_steps"],
        "wall": round(record["wall_seconds"], 1), "commit": commit(), "machine": machine(),
    }  # fmt: skip


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def settings() -> list[tuple[bool, ...]]:
    """Which parts each of the 16 settings has, in the order of ``PARTS``; the paper's first."""
    return [tuple(not i >> bit & 1 for bit in (3, 2, 1, 0)) for i in range(16)]


def scores(results: Sequence[Result], task: Task) -> dict[tuple[bool, ...], np.ndarray]:
    """The scores of each setting that has run, by seed."""
    found: dict[tuple[bool, ...], dict[int, float]] = {}
    for r in results:
        if r["task"] == task.name:
            setting = tuple(r["with"][part.key] for part in PARTS)
            found.setdefault(setting, {})[r["seed"]] = r["score"]
    return {s: np.array([v for _, v in sorted(found[s].items())]) for s in settings() if s in found}


def run_in(results: Sequence[Result]) -> list[Task]:
    """The tasks that have results."""
    return [task for task in TASKS if any(r["task"] == task.name for r in results)]


def effect(by_setting: dict[tuple[bool, ...], np.ndarray], num: int) -> np.ndarray:
    """What part ``num`` adds to the score of each seed, averaged over the other parts."""
    sides = [[v for s, v in by_setting.items() if s[num] == on] for on in (True, False)]
    on, off = (np.mean(side, axis=0) for side in sides)
    return np.asarray(on - off)


# -- tables and picture ----------------------------------------------------------------------------

ON, OFF, INK, PALE = "#1f6fb4", "#d9722e", "#333333", "#dddddd"
COLUMN, WIDTH, GAP, ROW, TOP = 66, 230, 30, 16, 40  # px


def show(results: Sequence[Result], picture: Path) -> None:
    """Print the tables and draw the picture."""
    print(f"{effect_table(results)}\n\n{score_table(results)}")
    picture.write_text(svg(results), "utf-8")


def effect_table(results: Sequence[Result]) -> str:
    """What each part adds, averaged over the others: the mean over seeds with its interval."""
    tasks = run_in(results)
    lines = [_row("part", *(task.title for task in tasks)), _row(*["---"] * (1 + len(tasks)))]
    for num, part in enumerate(PARTS):
        every = [scores(results, task) for task in tasks]
        if {setting[num] for setting in every[0]} == {True, False}:
            cells = [_estimate(effect(by_setting, num), sign="+") for by_setting in every]
            lines.append(_row(part.name, *cells))
    return "\n".join(lines)


def score_table(results: Sequence[Result]) -> str:
    """The scores of each setting: the mean over seeds with its interval."""
    titles = [*(part.name for part in PARTS), *(task.title for task in run_in(results))]
    lines = [_row(*titles), _row(*["---"] * len(titles))]
    by_task = [scores(results, task) for task in run_in(results)]
    for setting in settings():
        if setting in by_task[0]:
            cells = [_estimate(found[setting]) for found in by_task]
            lines.append(_row(*("with" if on else "without" for on in setting), *cells))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _estimate(values: np.ndarray, sign: str = "-") -> str:
    found = mean_interval(values)
    shown = f"{found.value:{sign}.2f}"
    return f"{shown} ({found.low:{sign}.2f} to {found.high:{sign}.2f})" if found.claimed else shown


def svg(results: Sequence[Result]) -> str:
    """A row for each setting, the paper's first, and a panel for each task."""
    left = COLUMN * len(PARTS) + 20
    bottom = TOP + ROW * len(settings())
    parts = []
    for num, part in enumerate(PARTS):
        x = 10 + COLUMN * (num + 0.5)
        head, _, tail = part.name.rpartition(" ")
        for words, y in ((head, TOP - 22), (tail, TOP - 10)):
            parts.append(drawing.text(x, y, words, 'text-anchor="middle" font-weight="bold"'))
        for row, setting in enumerate(settings()):
            y = TOP + ROW * (row + 0.5)
            fill = INK if setting[num] else "white"
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{INK}"/>')
    for num, task in enumerate(TASKS):
        parts += _panel(scores(results, task), task, left + num * (WIDTH + GAP), bottom)
    note = "filled: with the part, hollow: without. Points: seeds; bar: 95 % interval of the mean"
    parts.append(drawing.text(10, bottom + 38, note, 'fill="#555555"'))
    return drawing.document(parts, left + len(TASKS) * (WIDTH + GAP), bottom + 48)


def _panel(
    found: dict[tuple[bool, ...], np.ndarray], task: Task, left: int, bottom: int
) -> list[str]:
    title = 'text-anchor="middle" font-weight="bold"'
    out = [drawing.text(left + WIDTH / 2, TOP - 16, task.title, title)]

    def place(score: float) -> float:
        share = (score - task.low) / (task.high - task.low)
        return left + WIDTH * min(max(share, 0.0), 1.0)

    for tick in np.arange(task.low, task.high + 0.01, 0.5):
        x = place(tick)
        out.append(drawing.line([(x, TOP), (x, bottom)], PALE, 1))
        out.append(drawing.text(x, bottom + 14, f"{tick:g}", 'text-anchor="middle" fill="#555555"'))
    for row, setting in enumerate(settings()):
        if setting not in found:
            continue
        y, colour = TOP + ROW * (row + 0.5), ON if setting[0] else OFF
        mean = mean_interval(found[setting])
        if mean.low is not None and mean.high is not None:
            ends = [(place(mean.low), y), (place(mean.high), y)]
            out.append(drawing.line(ends, colour, 7, 'opacity="0.25"'))
        x = place(mean.value)
        out.append(drawing.line([(x, y - 5), (x, y + 5)], colour, 2))
        out += [
            f'<circle cx="{place(score):.1f}" cy="{y}" r="2.2" fill="{colour}" opacity="0.8"/>'
            for score in found[setting]
        ]
    return out


if __name__ == "__main__":
    sys.exit(main())
