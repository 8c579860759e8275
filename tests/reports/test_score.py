"""The area under the learning curve: its definition, and how little it depends on eval_every."""

from collections.abc import Callable

import numpy as np
import pytest

from rlrun.reports.score import mean_over_steps

END = 10_000.0
LEARNERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda t: t,
    "falling": lambda t: 1 - t / 2,
    "exponential": lambda t: 1 - np.exp(-t / 0.2),
    "fast": lambda t: 1 - np.exp(-t / 0.05),
    "sigmoid": lambda t: 1 / (1 + np.exp((0.5 - t) / 0.08)),
    "early sigmoid": lambda t: 1 / (1 + np.exp((0.1 - t) / 0.02)),
}


def area(learner: Callable[[np.ndarray], np.ndarray], every: int) -> float:
    steps = np.arange(every, END + 1, every)
    return mean_over_steps(steps, learner(steps / END), END)


@pytest.mark.parametrize(("evaluations", "most"), [(20, 0.013), (10, 0.03), (5, 0.10)])
@pytest.mark.parametrize("name", LEARNERS)
def test_it_is_near_the_true_area(name: str, evaluations: int, most: float) -> None:
    """The numbers of the docstring and of the README."""
    learner = LEARNERS[name]
    true = learner((np.arange(100_000) + 0.5) / 100_000).mean()
    assert area(learner, int(END) // evaluations) == pytest.approx(true, abs=most)


@pytest.mark.parametrize(
    ("steps", "returns", "end", "expected"),
    [
        ([1000], [7.0], 1000, 7.0),
        ([0, 1000], [0.0, 10.0], 1000, 5.0),
        ([500, 1000], [0.0, 500.0], 10_000, (0 * 500 + 250 * 500 + 500 * 9000) / 10_000),
        ([0], [3.0], 0, 3.0),
    ],
)
def test_by_hand(steps: list, returns: list, end: float, expected: float) -> None:
    """Before the first evaluation its value counts, after the last one that of the last."""
    got = mean_over_steps(np.array(steps, float), np.array(returns), end)
    assert got == pytest.approx(expected)
