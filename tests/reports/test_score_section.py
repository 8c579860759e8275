"""The section of scores: the statistic follows the design; its assumptions are on the page."""

import csv
import html
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlrun.reports import figures
from rlrun.reports.intervals import mean_interval, success_interval, tolerance_interval
from rlrun.reports.score_section import success_rate
from tests.in_process import Done
from tests.reports.forge import forge, forge_seeds

Command = Callable[..., Done]
SCORES = [1.0, 2.0, 3.0, 4.0, 6.0]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)


def page_of(tmp_path: Path) -> str:
    return html.unescape((tmp_path / "runs/report/index.html").read_text())


def test_the_assumption_of_the_next_seed_is_said(rlrun: Command, tmp_path: Path) -> None:
    """On the page and in Markdown, in the words of the interval."""
    forge_seeds(tmp_path / "runs", SCORES)
    rlrun("report", "runs")
    why = tolerance_interval(SCORES).why
    assert "if scores are normal" in why
    assert f"Next seed: {why}" in page_of(tmp_path)
    assert f"Next seed: {why}" in (tmp_path / "runs/report/report.md").read_text()


def test_other_settings_in_each_environment_have_no_aggregate(
    rlrun: Command, tmp_path: Path
) -> None:
    for env, lr in (("A-v0", 1), ("B-v0", 2)):
        forge_seeds(tmp_path / f"runs/{env}", SCORES, env__id=env, policy__lr=lr)
    rlrun("report", "runs")
    page = page_of(tmp_path)
    assert "2 environments without a common scale or setting: each has its own mean" in page
    assert "interquartile" not in page
    assert not (tmp_path / "runs/report/aggregates.csv").exists()


def test_few_seeds_in_several_environments_have_an_iqm_without_interval(
    rlrun: Command, tmp_path: Path
) -> None:
    for env in ("A-v0", "B-v0"):
        forge_seeds(tmp_path / f"runs/{env}", SCORES[:3], env__id=env)
    rlrun("report", "runs")
    assert "the profile. 3 seeds are fewer than 5" in page_of(tmp_path)
    (row,) = csv.DictReader((tmp_path / "runs/report/aggregates.csv").read_text().splitlines())
    assert (row["IQM low"], row["seeds"]) == ("", "3")


def test_success_is_a_rate_over_seeds(rlrun: Command, tmp_path: Path) -> None:
    """Of 6 seeds, not of 120 episodes."""
    for i, share in enumerate([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]):
        result = {"return_mean": 1.0, "success": share, "episodes": 20}
        forge(tmp_path / f"runs/{i}", seed=i, record={"eval": result})
    rlrun("report", "runs")
    (row,) = csv.DictReader((tmp_path / "runs/report/success.csv").read_text().splitlines())
    expected = success_interval(5, 6)
    got = [float(row[k]) for k in ("success", "success low", "success high")]
    assert got == pytest.approx([expected.value, expected.low, expected.high])
    assert (row["seeds"], row["interval"]) == ("6", "binomial, Clopper-Pearson")
    assert "episodes of a seed are not independent" in page_of(tmp_path)


def test_shares_of_episodes_have_the_interval_of_a_mean() -> None:
    """Within 0 to 1, as a rate."""
    shares = np.array([0.9, 1.0, 1.0, 0.95, 0.6])
    rate, method = success_rate(shares)
    free = mean_interval(shares)
    assert free.high is not None
    assert free.high > 1.0
    assert (rate.value, rate.low, rate.high) == (free.value, free.low, 1.0)
    assert method == "t, corrected for skewness"
    few, method = success_rate(shares[:3])
    assert np.isnan(few.low)
    assert method == "points"
