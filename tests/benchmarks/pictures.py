"""Pictures and tables from committed runs: ``ablation`` and ``curve``.

``ablation``: R2D2 with and without its parts, in two tasks. Draws ``ablation.svg`` and prints two
tables from ``results/ablation.jsonl``. ``--runs DIR`` first makes or completes the sweeps in DIR,
two jobs at a time (an hour), and writes their scores there. A score is the mean return of the final
weights (50 greedy episodes). The windows are shorter than what the tasks ask a policy to remember
need them to be: seven learned rows for a memory of four in RepeatPrevious, twelve for a walk of
eleven and the policy's idle moves in the T-maze.

``curve``: the learning curves of the README. Each panel shows the greedy evaluations (50 episodes,
every 2000 env steps) of rlrun and of a peer over env steps, three seeds each: thin lines are seeds,
thick lines their mean. Without ``--peers`` the picture is drawn from ``results/curve.jsonl``; with
``--peers DIR`` the runs that this file lacks are made first (one thread each) and added to it. A
panel shows the seeds that both sides have run.
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tests.benchmarks import runs
from tests.benchmarks.product import mean_interval
from tests.benchmarks.scores import read

Result = dict[str, Any]
BLUE, ORANGE = "#1f6fb4", "#d9722e"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "rlrun", "font.size": 9, "axes.titlesize": 9}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def save(figure: Figure, path: Path) -> None:
    """Write an SVG whose texts stay texts; the same data give the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


# -- ablation --------------------------------------------------------------------------------------

ABLATION = runs.RESULTS / "ablation.jsonl"
ABLATION_SVG = runs.HERE / "ablation.svg"
ABLATION_SEEDS = range(5)


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


def ablation(o: Namespace) -> int:
    """Draw and print; ``--quick``: one short run of two settings, drawn in a temporary folder."""
    if o.quick:
        with tempfile.TemporaryDirectory() as work:
            show(sweep(TASKS[0], Path(work), quick=True), Path(work) / "ablation.svg")
        return 0
    if o.runs_in is not None:
        results = [r for task in TASKS for r in sweep(task, o.runs_in)]
        ABLATION.write_text("".join(json.dumps(r) + "\n" for r in results), "utf-8")
    show(runs.json_lines(ABLATION), ABLATION_SVG)
    return 0


def sweep(task: Task, folder: Path, *, quick: bool = False) -> list[Result]:
    """The scores of a task's sweep in ``folder``, which is made first, or completed."""
    path, seeds = folder / task.name, [0] if quick else ABLATION_SEEDS
    words = [
        "-m", "sweep=r2d2_ablation", *task.overrides.split(), "run.stop_return=null",
        f"run.total_steps={task.total_steps}", f"seed={','.join(map(str, seeds))}",
        f"sweep.dir={path}", "hydra.launcher.workers=2",
    ]  # fmt: skip
    if quick:
        short = "policy.burnin_step=4 policy.value_rescale_eps=1e-3 buffer.alpha=0 "
        short += "run.total_steps=300 learner.learning_starts=100 run.eval_episodes=2"
        words += [*short.split(), "hydra.launcher.workers=1"]
    words = ["resume", str(path)] if (path / "sweep.json").exists() else words
    runs.rlrun(*words)
    jobs = json.loads((path / "sweep.json").read_text("utf-8"))["jobs"]
    return [_result(task, job["overrides"], path / job["name"]) for job in jobs]


def _result(task: Task, overrides: Sequence[str], run_dir: Path) -> Result:
    given = dict(word.split("=", 1) for word in overrides)
    record = json.loads((run_dir / "run.json").read_text("utf-8"))
    setting = {part.key: given[part.key] == str(part.on) for part in PARTS}
    return {
        "task": task.name, "seed": int(given["seed"]), "with": setting,
        "score": round(record["eval"]["return_mean"], 5), "env_steps": record["env_steps"],
        "wall": round(record["wall_seconds"], 1), "commit": runs.commit(),
        "machine": runs.machine(),
    }  # fmt: skip


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


def show(results: Sequence[Result], picture: Path) -> None:
    """Print the tables and draw the picture."""
    print(f"{effect_table(results)}\n\n{score_table(results)}")
    save(draw_ablation(results), picture)


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


def draw_ablation(results: Sequence[Result]) -> Figure:
    """A row for each setting, the paper's first: which parts it has, and a panel for each task."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        parts, *panels = figure.subplots(1, 1 + len(TASKS), sharey=True, width_ratios=(4, 4, 4))
        rows = np.arange(len(settings()))
        for num in range(len(PARTS)):
            with_it = np.array([setting[num] for setting in settings()])
            parts.scatter(np.full(16, num), rows, s=26, edgecolors="k", linewidths=0.8,
                          c=np.where(with_it, "k", "w"))  # fmt: skip
        parts.set_xticks(range(len(PARTS)), [part.name.replace(" ", "\n") for part in PARTS])
        parts.xaxis.tick_top()
        parts.set(yticks=[], ylim=(15.6, -0.6), xlim=(-0.5, len(PARTS) - 0.5))
        parts.spines[:].set_visible(False)
        for axes, task in zip(panels, TASKS, strict=True):
            ablation_panel(axes, scores(results, task), task)
        legend = "filled: with the part, hollow: without. Points: seeds; bar: 95 % interval of mean"
        figure.supxlabel(legend, fontsize=9, color="#555555")
    return figure


def ablation_panel(axes: Any, found: dict[tuple[bool, ...], np.ndarray], task: Task) -> None:
    for row, setting in enumerate(settings()):
        if setting not in found:
            continue
        colour, mean = BLUE if setting[0] else ORANGE, mean_interval(found[setting])
        if mean.low is not None and mean.high is not None:
            axes.plot([mean.low, mean.high], [row, row], colour, linewidth=6, alpha=0.25)
        axes.plot(mean.value, row, "|", color=colour, markersize=10, markeredgewidth=2)
        axes.plot(found[setting], np.full(len(found[setting]), row), ".", color=colour, alpha=0.8)
    axes.set(title=task.title, xlim=(task.low, task.high + 0.03))
    axes.grid(axis="x", color="#dddddd")
    axes.tick_params(left=False)


# -- curve -----------------------------------------------------------------------------------------

CURVE = runs.RESULTS / "curve.jsonl"
CURVE_SVG = runs.HERE / "learning_curve.svg"
SEEDS = range(3)
OPTIONS = "run.stop_return=null run.eval_every=2000 run.eval_episodes=50 learner.threads=1"


@dataclass(frozen=True)
class Panel:
    """Runs and peers of one plot."""

    title: str
    ours: str  # overrides of rlrun
    our_name: str
    script: str  # of the peer
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


def curve(o: Namespace) -> int:
    """Draw; ``--quick``: one short run of rlrun, and the picture drawn but not written."""
    results = read(CURVE)
    if o.quick:
        line = "rlrun policy=random env=bandit debug=smoke run.eval_every=100 run.stop_return=null"
        drawn = draw_curves(results)
        print(f"{len(own_curve(line, 0))} evaluations; {len(drawn.axes)} panels")
        return 0
    if o.peers is not None:
        for panel, seed, theirs in missing(results):
            results.append(run(panel, seed, o.peers if theirs else None))
            with CURVE.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
    save(draw_curves(results), CURVE_SVG)
    return 0


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
    line = command(panel, theirs=peers is not None)
    facts = {"command": line, "seed": seed, "commit": runs.commit(), "machine": runs.machine()}
    if peers is None:
        return {**facts, "curve": own_curve(line, seed)}
    python = runs.interpreter(peers, "sb3")
    answer = runs.peer_run(python, panel.script, seed, 1, panel.env_steps, threads=1)
    return {**facts, "curve": [[point[0], round(point[1], 2)] for point in answer["curve"]]}


def own_curve(line: str, seed: int) -> list[list[float]]:
    """[env steps, mean return] of every evaluation of a command of rlrun."""
    with tempfile.TemporaryDirectory() as work:
        runs.rlrun(*line.split()[1:], f"seed={seed}", f"run.dir={work}/run", "-q")
        return [[step, round(score, 2)] for step, score in runs.scores_of(Path(work) / "run")]


def draw_curves(results: Sequence[Result]) -> Figure:
    """The panels of which both sides have a run, side by side."""
    shown = [(panel, both) for panel in PANELS if (both := pairs(panel, results))]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.4 * len(shown), 3.4), layout="constrained")
        for axes, (panel, both) in zip(
            np.ravel(figure.subplots(1, len(shown))), shown, strict=True
        ):
            curve_panel(axes, panel, both)
    return figure


def curve_panel(axes: Any, panel: Panel, both: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Thin lines are seeds, thick lines their mean."""
    sides = ((0, ORANGE, panel.peer_name), (1, BLUE, panel.our_name))
    for side, colour, name in sides:
        curves = [pair[side] for pair in both]
        for curve in curves:
            axes.plot(*curve.T, colour, linewidth=0.8, alpha=0.3)
        length = min(map(len, curves))
        mean = np.mean([curve[:length] for curve in curves], axis=0)
        axes.plot(*mean.T, colour, linewidth=2, label=f"{name}, seeds: {len(curves)}")
    axes.set(title=panel.title, xlim=(0, panel.env_steps), ylim=(0, 510), xlabel="env steps")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:.0f}k")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))


def pairs(panel: Panel, results: Sequence[Result]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(the peer's curve, ours) [evaluations, 2] of every seed that both have run."""
    theirs, ours = (
        {r["seed"]: np.array(r["curve"]) for r in results if r["command"] == line}
        for line in (command(panel, theirs=True), command(panel, theirs=False))
    )
    return [(theirs[seed], ours[seed]) for seed in sorted(theirs.keys() & ours.keys())]
