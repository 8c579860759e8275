"""Pictures and tables are those that their commands make from the committed runs."""

import csv
import json
import re
from argparse import Namespace

import numpy as np
import pytest

import rlrun
from tests.benchmarks import pictures as p
from tests.benchmarks import popgym
from tests.benchmarks.runs import HERE, json_lines
from tests.compose import config


def texts(path):
    """What the picture says; where its points lie depends on the version of matplotlib."""
    return re.findall(r">([^<>\n]+)</text>", path.read_text("utf-8"))


def test_ablation_is_drawn_and_tabulated_from_the_committed_runs(tmp_path, monkeypatch, capsys):
    committed = texts(p.ABLATION_SVG)
    monkeypatch.setattr(p, "ABLATION_SVG", tmp_path / "picture.svg")
    assert p.ablation(Namespace(quick=False, runs_in=None)) == 0
    assert texts(tmp_path / "picture.svg") == committed
    assert capsys.readouterr().out.strip() in (HERE / "TABLES.md").read_text("utf-8")
    for task in p.TASKS:
        by_setting = p.scores(json_lines(p.ABLATION), task)
        assert [*by_setting] == p.settings()
        assert {len(values) for values in by_setting.values()} == {len(p.ABLATION_SEEDS)}


def test_curves_are_drawn_from_the_committed_runs_of_both_sides(tmp_path, monkeypatch):
    committed = texts(p.CURVE_SVG)
    monkeypatch.setattr(p, "CURVE_SVG", tmp_path / "picture.svg")
    assert p.curve(Namespace(quick=False, peers=None)) == 0
    assert texts(tmp_path / "picture.svg") == committed
    done = {"command": p.command(p.PANELS[0], theirs=True), "seed": 1, "curve": []}
    assert {*p.missing([])} - {*p.missing([done])} == {(p.PANELS[0], 1, True)}


def test_minatar_is_drawn_and_tabulated_from_the_committed_runs(tmp_path, monkeypatch, capsys):
    committed = texts(p.MINATAR_SVG)
    monkeypatch.setattr(p, "MINATAR_SVG", tmp_path / "picture.svg")
    assert p.minatar(Namespace(quick=False, out=None)) == 0
    assert texts(tmp_path / "picture.svg") == committed
    assert capsys.readouterr().out.strip() in (HERE / "TABLES.md").read_text("utf-8")
    for game in p.PUBLISHED:
        assert [r["seed"] for r in p.full_runs(json_lines(p.MINATAR), "pqn", game, 1)] == [
            11,
            12,
            13,
        ]
        assert p.full_runs(json_lines(p.MINATAR), "pqn", game, 5)


def test_popgym_is_tabulated_from_the_committed_runs(capsys):
    assert popgym.popgym(Namespace(runs_in=None)) == 0
    assert capsys.readouterr().out.strip() in (HERE / "TABLES.md").read_text("utf-8")
    results = json_lines(popgym.RESULTS)
    for r in results:
        steps = int(re.search(r"run.total_steps=(\d+)", r["command"])[1])
        assert r["command"].split()[1:] == popgym.words(r["level"], r["setting"], steps)
        assert r["curve"][-1][0] >= steps
    planned = {job[:2] for job in popgym.missing([])}
    assert {level for level, _ in planned} == {*popgym.LEVELS}, "every level has a run"
    jobs, left = [*popgym.missing([])], [*popgym.missing(results)]
    assert len(jobs) - len(left) == len(results), "what is done is not run again"


def test_the_agents_kept_of_popgym_are_those_of_the_best_seeds():
    agents = {agent.name: agent for agent in popgym.AGENTS.iterdir()}
    for level, agent in agents.items():
        assert sorted(path.name for path in agent.iterdir()) == sorted(popgym.AGENT)
        own = popgym.best(json_lines(popgym.RESULTS), level)
        seed = json.loads((agent / "model.json").read_text("utf-8"))["meta"]["seed"]
        assert seed in [r["seed"] for r in own if popgym.mmer(r, "curve") == max(
            popgym.mmer(x, "curve") for x in own)]  # fmt: skip
    played = rlrun.evaluate(agents["repeat_previous_easy"], episodes=5)
    assert played["return_mean"] > 0.9


def test_the_table_of_memories_has_the_figures_of_the_committed_runs():
    with (HERE / "results/memories.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    section = (HERE / "TABLES.md").read_text("utf-8").partition("## R2D2 with every memory")[2]
    shown = dict(re.findall(r"^\| (\w+) \| (-?\d\.\d{3})", section.partition("\n## ")[0], re.M))
    assert len(shown) == 8
    for memory, score in shown.items():
        own = [row for row in rows if row["setting"] == f"memory={memory}"]
        final = {row["seed"]: float(row["return"]) for row in own}  # of its last evaluation
        assert len(final) == 5
        assert np.mean([*final.values()]) == pytest.approx(float(score), abs=6e-4)


def test_the_table_of_horizons_has_the_lengths_of_the_committed_runs():
    held = {}
    for run in json_lines(HERE / "results/horizon.jsonl"):
        right = [int(length) for length, success in run["success"].items() if success == 1]
        held.setdefault(run["setting"], []).append(max(right, default=0))
    section = (HERE / "TABLES.md").read_text("utf-8").partition("## How long a memory")[2]
    section = section.partition("\n## ")[0].replace("10^", "1e")
    lines = re.findall(r"^\| (\w+(?: 0\.\d+)?) \| ([\de ]+) \|$", section, re.M)
    assert held == {setting: [float(n) for n in lengths.split()] for setting, lengths in lines}


@pytest.mark.parametrize(
    ("title", "file", "more", "least"),
    [("Defaults in other tasks", "defaults.jsonl", [], 50),
     ("MuJoCo after 100,000 env steps", "mujoco.jsonl",
      ["run.total_steps=100000", "run.eval_every=20000", "run.eval_episodes=10"], 10)],
)  # fmt: skip
def test_tables_of_defaults_have_the_last_evaluations_and_are_bold_where_a_task_is_solved(
    title, file, more, least
):
    runs = {r["command"]: r["evaluations"] for r in json_lines(HERE / "results" / file)}
    section = (HERE / "TABLES.md").read_text("utf-8").partition(f"## {title}\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line[:1] == "|"]
    compared = 0
    for line in lines:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not name:
            tasks = cells
        for task, cell in zip(tasks, cells, strict=True):
            if not name or name[0] == "-" or not cell:
                continue
            policy, *memory = name.split()
            words = [f"policy={policy}", *(f"memory={m}" for m in memory), f"env={task}", *more]
            score, goal = runs[" ".join([*words, "seed=11"])][-1][1], config(*words).env.stop_return
            shown = float(cell.split()[0].strip("*"))
            assert shown == pytest.approx(score, rel=0.05, abs=0.005), words
            assert (cell[0] == "*") == (goal is not None and score >= goal), words
            compared += 1
    assert compared > least


def test_a_task_names_the_policies_whose_measured_defaults_stay_below_half_the_way_to_its_goal():
    """From the worst evaluation until the best, that of an untrained policy, to ``stop_return``."""
    below: dict[str, list[str]] = {}
    for run in json_lines(HERE / "results/defaults.jsonl"):
        words = dict(word.split("=") for word in run["command"].split())
        goal, scores = (
            config(f"env={words['env']}").env.stop_return,
            [x for _, x in run["evaluations"]],
        )
        if goal is not None and "bonus" not in words:
            untrained = min(scores[: np.argmax(scores) + 1])
            failed = scores[-1] < (untrained + goal) / 2 and scores[-1] < goal
            below.setdefault(words["env"], []).extend([words["policy"]] * failed)
    for task, policies in below.items():
        assert {*config(f"env={task}").env.not_learned_by} == {*policies}, task
