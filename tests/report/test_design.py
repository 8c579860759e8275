"""The statistic follows the design."""

import pytest

from rlrun.errors import ConfigError
from rlrun.report.design import Design, choose


@pytest.mark.parametrize(
    ("design", "statistic", "comparison", "why"),
    [
        (Design(1, 4, settings=2), "points", None, "4 seeds are fewer than 5"),
        (Design(9, 1, normalized=True), "points", None, "1 seed is fewer than 5"),
        (Design(1, 10), "mean", None, "never the IQM"),
        (Design(1, 10, settings=2), "mean", "unpaired", "fewer than 26% of seeds"),
        (Design(1, 6, settings=2, paired=True), "mean", "paired", "all 6 seeds"),
        (Design(1, 5, settings=2, paired=True), "mean", "unpaired", "all 5 seeds"),
        (Design(1, 20, "success", 3), "success", "unpaired", "binomial"),
        (Design(5, 5, settings=2, normalized=True), "iqm", "aggregate", "5 environments"),
        (Design(5, 5, settings=2), "mean each", "improvement", "scales of their own"),
    ],
)
def test_choice(design, statistic, comparison, why):
    got = choose(design)
    assert (got.statistic, got.comparison) == (statistic, comparison)
    assert why in got.why
    assert got.why.endswith(".")
    assert bool(got.comparison_why) == (comparison is not None)


def test_one_environment_never_gets_the_iqm():
    for seeds in range(1, 40):
        for score in ("return", "success"):
            for normalized in (False, True):
                got = choose(Design(1, seeds, score, 2, True, normalized))
                assert got.statistic in ("points", "mean", "success")
                assert got.comparison in (None, "paired", "unpaired")


def test_why_of_comparisons():
    assert "5 pairs cannot reach" in choose(Design(1, 5, settings=2, paired=True)).comparison_why
    three = choose(Design(1, 8, settings=3)).comparison_why
    assert "corrected for 3 comparisons (Holm)" in three
    assert "Holm" not in choose(Design(1, 8, settings=2)).comparison_why


def test_empty_designs_are_an_error():
    with pytest.raises(ConfigError, match="1 environments, 0 seeds"):
        choose(Design(1, 0))
