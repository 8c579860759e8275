"""The statistic follows the design."""

import pytest

from rlrun.errors import ConfigError
from rlrun.reports.design import Design, choose


@pytest.mark.parametrize(
    ("design", "statistic", "why"),
    [
        (Design(1, 4), "points", "4 seeds are fewer than 5"),
        (Design(9, 1, normalized=True), "iqm", "1 seed is fewer than 5"),
        (Design(9, 1), "points", "1 seed is fewer than 5"),
        (Design(1, 10), "mean", "the mean of all 10 seeds, never the IQM"),
        (Design(1, 20, "success"), "success", "binomial"),
        (Design(5, 5, normalized=True), "iqm", "5 environments: the interquartile mean"),
        (Design(5, 5), "mean each", "without a common scale or setting"),
    ],
)
def test_choice(design, statistic, why):
    got = choose(design)
    assert got.statistic == statistic
    assert why in got.why
    assert got.why.endswith(".")


def test_one_environment_never_gets_the_iqm():
    for seeds in range(1, 40):
        for score in ("return", "success"):
            for normalized in (False, True):
                got = choose(Design(1, seeds, score, normalized))
                assert got.statistic in ("points", "mean", "success")


def test_empty_designs_are_an_error():
    with pytest.raises(ConfigError, match="1 environments, 0 seeds"):
        choose(Design(1, 0))
