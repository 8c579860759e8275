"""The picture of the README is the one that its command draws from the committed runs."""

import csv
import re

import numpy as np
import pytest

from tests.benchmarks import curve
from tests.benchmarks.__main__ import main


def test_the_committed_plot_matches_the_committed_runs(tmp_path, monkeypatch):
    committed = curve.PICTURE.read_text("utf-8")
    monkeypatch.setattr(curve, "PICTURE", tmp_path / "picture.svg")
    assert main(["curve"]) == 0
    assert (tmp_path / "picture.svg").read_text("utf-8") == committed
    for panel in curve.PANELS[:2]:
        assert panel.title in committed


def test_both_sides_have_the_same_seeds_and_clock():
    results = curve.read()
    for panel in curve.PANELS:
        for theirs, ours in curve.pairs(panel, results):
            for points in (theirs, ours):
                assert points[-1, 0] >= panel.env_steps
                assert (np.diff(points[:, 0]) > 0).all()
            assert abs(len(theirs) - len(ours)) <= 2


def test_missing_runs_are_those_the_file_lacks():
    panel = curve.PANELS[0]
    every = curve.missing([])
    assert len(every) == len(curve.PANELS) * len(curve.SEEDS) * 2
    done = {"command": curve.command(panel, theirs=True), "seed": 1, "curve": []}
    assert {*every} - {*curve.missing([done])} == {(panel, 1, True)}


def test_our_curve_is_read_from_a_run(tmp_path):
    line = "rlrun policy=random env=bandit debug=smoke run.eval_every=100 run.stop_value=null"
    steps = [point[0] for point in curve.own_curve(line, seed=0)]
    assert len(steps) == 4
    assert steps[-1] >= 400


def test_the_table_of_memories_has_the_figures_of_the_committed_runs():
    folder = curve.RESULTS.parents[1]
    with (folder / "results/memories.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    section = (folder / "TABLES.md").read_text("utf-8").partition("## R2D2 with every memory")[2]
    shown = dict(re.findall(r"^\| (\w+) \| (-?\d\.\d{3})", section.partition("\n## ")[0], re.M))
    assert len(shown) == 8
    picture = (folder / "memories.svg").read_text("utf-8")
    for memory, score in shown.items():
        own = [row for row in rows if row["setting"] == f"memory={memory}"]
        final = {row["seed"]: float(row["return"]) for row in own}  # of its last evaluation
        assert len(final) == 5
        assert np.mean([*final.values()]) == pytest.approx(float(score), abs=6e-4)
        assert f"memory={memory}" in picture
