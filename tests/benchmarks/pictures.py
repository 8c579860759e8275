"""Pictures and tables from committed runs: ``ablation``, ``curve`` and ``minatar``.

``ablation``: R2D2 with and without its parts, in three tasks. Draws ``ablation.svg`` and prints a
table from ``results/ablation.jsonl``. ``--runs DIR`` first makes or completes the sweeps in DIR,
two jobs at a time (an hour), and writes their scores there. A score is the mean return of the final
weights (50 greedy episodes). The windows are shorter than what the tasks ask a policy to remember
need them to be: seven learned rows for a memory of four in RepeatPrevious, twelve for a walk of
eleven and the policy's idle moves in the T-maze.

``curve``: the learning curves of the README. Each panel shows the greedy evaluations (50 episodes,
every 2000 env steps) of rlrun and of a peer over env steps, three seeds each: thin lines are seeds,
thick lines their mean. Without ``--peers`` the picture is drawn from ``results/curve.jsonl``; with
``--peers DIR`` the runs that this file lacks are made first (one thread each) and added to it. A
panel shows the seeds that both sides have run.

``minatar``: learning curves of PQN and DQN on MinAtar from ``results/minatar.jsonl``, beside the
published returns. ``--out FILE`` first makes the runs that FILE lacks.
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
from tests.benchmarks.rows import table
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
ABLATION_SEEDS = 11, 12, 13


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
    Task("repeat_previous_medium", "RepeatPrevious Medium",
         "env=repeat_previous env.k=32 env.decks=2 memory=lru policy.learn_unroll_len=40",
         100_000, -0.5, 1.0),
    Task("tmaze20", "T-maze of length 20", "env=tmaze env.length=20", 100_000, -1.0, 1.0),
    Task("cartpole_novel", "CartPole without velocities", "env=cartpole_novel", 100_000, 0, 500),
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
        "run.eval_every=10000", "learner.threads=1", f"run.total_steps={task.total_steps}",
        f"seed={','.join(map(str, seeds))}", f"sweep.dir={path}", "hydra.launcher.workers=2",
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
    """What part ``num`` adds to the score, [settings of the other parts, seeds]."""
    without = {s: (*s[:num], False, *s[num + 1 :]) for s in by_setting if s[num]}
    return np.array([by_setting[s] - by_setting[other] for s, other in without.items()])


def show(results: Sequence[Result], picture: Path) -> None:
    """Print the table and draw the picture."""
    print(effect_table(results))
    save(draw_ablation(results), picture)


def effect_table(results: Sequence[Result]) -> str:
    """What each part adds: mean and standard error over pairs of runs, and the mean per seed."""
    tasks = run_in(results)
    lines = []
    for num, part in enumerate(PARTS):
        every = [scores(results, task) for task in tasks]
        if {setting[num] for setting in every[0]} == {True, False}:
            cells = [_estimate(effect(by_setting, num)) for by_setting in every]
            lines.append([part.name, *cells])
    return table(["part", *(task.title for task in tasks)], lines)


def _estimate(pairs: np.ndarray) -> str:
    error = f" ± {pairs.std(ddof=1) / pairs.size**0.5:.2g}" if pairs.size > 1 else ""
    return f"{pairs.mean():+.3g}{error} ({' '.join(f'{x:+.3g}' for x in pairs.mean(0))})"


def draw_ablation(results: Sequence[Result]) -> Figure:
    """A row for each setting, the paper's first: which parts it has, and a panel for each task."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        parts, *panels = figure.subplots(
            1, 1 + len(TASKS), sharey=True, width_ratios=(4, *[4] * len(TASKS))
        )
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
        legend = "filled: with the part, hollow: without. Points: seeds"
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
    axes.set(title=task.title, xlim=(task.low, task.high + 0.02 * (task.high - task.low)))
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
        print(f"{len(own_run(line, 0)['curve'])} evaluations; {len(drawn.axes)} panels")
        return 0
    if o.peers is not None:
        for panel, seed, theirs in missing(results):
            results.append(run(panel, seed, o.peers if theirs else None))
            runs.keep(results[-1], CURVE)
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
        return {**facts, "curve": own_run(line, seed)["curve"]}
    python = runs.interpreter(peers, "sb3")
    answer = runs.peer_run(python, panel.script, seed, 1, panel.env_steps, threads=1)
    return {**facts, "curve": [[point[0], round(point[1], 2)] for point in answer["curve"]]}


def own_run(line: str, seed: int) -> Result:
    """A run of rlrun: ``curve``, [env steps, mean return] of every evaluation, and ``training``.

    The latter is the mean return of the training episodes that ended in the last tenth of the run.
    """
    with tempfile.TemporaryDirectory() as work:
        runs.rlrun(*line.split()[1:], f"seed={seed}", f"run.dir={work}/run", "-q")
        lines = runs.json_lines(Path(work) / "run/metrics.jsonl")
        curve = [[step, round(score, 2)] for step, score in runs.scores_of(Path(work) / "run")]
    ended = [x for x in lines if "collect/return_mean" in x]
    count = np.diff([x["collect/episodes"] for x in ended], prepend=0)
    late = np.array([x["env_steps"] > 0.9 * lines[-1]["env_steps"] for x in ended])
    returns = np.array([x["collect/return_mean"] for x in ended])
    training = float(np.average(returns[late], weights=count[late])) if late.any() else None
    return {"curve": curve, "training": None if training is None else round(training, 2)}


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
        seed_lines(axes, [pair[side] for pair in both], colour, name)
    axes.set(title=panel.title, xlim=(0, panel.env_steps), ylim=(0, 510), xlabel="env steps")
    axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:.0f}k")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))


def seed_lines(axes: Any, curves: Sequence[np.ndarray], colour: str, name: str) -> None:
    """Draw the curves [evaluations, 2] of seeds and their mean."""
    for curve in curves:
        axes.plot(*curve.T, colour, linewidth=0.8, alpha=0.3)
    length = min(map(len, curves))
    mean = np.mean([curve[:length] for curve in curves], axis=0)
    axes.plot(*mean.T, colour, linewidth=2, label=f"{name}, seeds: {len(curves)}")


def pairs(panel: Panel, results: Sequence[Result]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(the peer's curve, ours) [evaluations, 2] of every seed that both have run."""
    theirs, ours = (
        {r["seed"]: np.array(r["curve"]) for r in results if r["command"] == line}
        for line in (command(panel, theirs=True), command(panel, theirs=False))
    )
    return [(theirs[seed], ours[seed]) for seed in sorted(theirs.keys() & ours.keys())]


# -- MinAtar ---------------------------------------------------------------------------------------

MINATAR, MINATAR_SVG = runs.RESULTS / "minatar.jsonl", runs.HERE / "minatar.svg"
PUBLISHED = {  # game -> returns of DQN and AC(0.8) while they train, after 1 and 5 million frames
    "asterix": ((7.0, 16.9), (0.8, 18.6)), "breakout": ((9.2, 10.1), (9.9, 17.6)),
    "freeway": ((47.8, 50.2), (0.2, 47.5)), "seaquest": ((1.0, 20.1), (0.6, 15.2)),
    "space_invaders": ((32.9, 43.7), (51.5, 184.4)),
}  # fmt: skip
# Read off img/learning_curves.gif of github.com/kenjyoung/MinAtar (Young and Tian 2019).
MINATAR_LINES = [
    *(f"experiment=minatar_pqn env=minatar_{game} run.eval_every=100000" for game in PUBLISHED),
    *(f"experiment=minatar_pqn env=minatar_{game} run.total_steps=5000000 run.eval_every=500000"
      for game in PUBLISHED),
    *(f"experiment=minatar_dqn env=minatar_{game} learner.threads=1 run.total_steps=1000000 "
      "run.eval_every=100000 run.checkpoint_every=1000000" for game in PUBLISHED),
    *(f"experiment=minatar_pqn env=minatar_freeway env.blank=2 {memory}run.total_steps=2000000 "
      "run.eval_every=500000" for memory in ("", "memory=gru ")),
    "experiment=minatar_pqn env=minatar_breakout env.trail=false run.total_steps=500000 "
    "run.eval_every=100000",
    "experiment=minatar_pqn env=minatar_breakout env.trail=false memory=gru "
    "run.total_steps=500000 run.eval_every=100000",
    *(f"policy=r2d2 env=minatar_{game} torso=small_cnn learner.replay_ratio=16 learner.threads=1 "
      "run.total_steps=100000 run.eval_every=25000 run.checkpoint_every=100000"
      for game in ("breakout env.trail=false", *PUBLISHED)),
]  # fmt: skip


def minatar(o: Namespace) -> int:
    """Draw and print; ``--out FILE`` makes the runs that it lacks (seeds 11 to 13)."""
    results = read(o.out or MINATAR)
    done = {(r["command"], r["seed"]) for r in results}
    for seed, line in (
        (s, f"rlrun {x}") for s in (11, 12, 13) for x in MINATAR_LINES if o.out and not o.quick
    ):
        if (line, seed) not in done:
            facts = {"command": line, "seed": seed, "commit": runs.commit()}
            results.append(facts | {"machine": runs.machine()} | own_run(line, seed))
            runs.keep(results[-1], o.out)
    print(minatar_table(results))
    figure = draw_minatar(results)
    if not o.quick:
        save(figure, MINATAR_SVG)
    return 0


def full_runs(results: Sequence[Result], policy: str, game: str, millions: float) -> list[Result]:
    """The runs of a policy in a game with all planes, over so many million env steps, by seed."""

    def fits(r: Result) -> bool:
        words = r["command"].split()
        learner = {f"experiment=minatar_{policy}", f"policy={policy}"} & {*words}
        whole = f"env=minatar_{game}" in words and " env." not in r["command"]
        return bool(learner) and whole and round(r["curve"][-1][0] / 1e6, 1) == millions

    return sorted(filter(fits, results), key=lambda r: int(r["seed"]))


def minatar_table(results: Sequence[Result]) -> str:
    """The last evaluations of the seeds, training returns, and the published ones."""
    titles = (
        "game", "PQN, 1M", "PQN, 5M", "DQN, 1M", "R2D2, 0.1M", "in training: PQN, 1M, 5M",
        "DQN, 1M", "published: DQN, 1M, 5M", "AC(0.8), 1M, 5M",
    )  # fmt: skip
    lines = []
    for game, published in PUBLISHED.items():
        ours = [full_runs(results, *of) for of in (
            ("pqn", game, 1), ("pqn", game, 5), ("dqn", game, 1), ("r2d2", game, 0.1)
        )]  # fmt: skip
        greedy = (" ".join(f"{r['curve'][-1][1]:.1f}" for r in seeds) for seeds in ours)
        once, longer, dqn = (f"{np.mean([r['training'] for r in seeds]):.1f}" for seeds in ours[:3])
        theirs = (f"{early}, {late}" for early, late in published)
        lines.append([game.replace("_", " "), *greedy, f"{once}, {longer}", dqn, *theirs])
    return table(titles, lines)


def draw_minatar(results: Sequence[Result]) -> Figure:
    """A panel for each game: the seeds of PQN and DQN, and the published returns."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, 2.9), layout="constrained")
        for axes, (game, published) in zip(
            figure.subplots(1, len(PUBLISHED)), PUBLISHED.items(), strict=True
        ):
            for policy, millions, colour in (("pqn", 5, BLUE), ("dqn", 1, ORANGE)):
                own = [np.array(r["curve"]) for r in full_runs(results, policy, game, millions)]
                if own:
                    seed_lines(axes, own, colour, f"rlrun {policy.upper()}")
            for (_, late), dash, name in zip(
                published, ("--", ":"), ("DQN", "AC(0.8)"), strict=True
            ):
                axes.axhline(late, color="#555555", linestyle=dash, label=f"{name}, 5M frames")
            axes.set(title=game.replace("_", " "), xlabel="env steps", xlim=0, ylim=0)
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1e6:.0f}M")
        handles, labels = figure.axes[1].get_legend_handles_labels()
        labels = [label.partition(", seeds")[0] for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
