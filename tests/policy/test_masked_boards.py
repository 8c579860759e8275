"""Recurrent policies in boards that raise on a forbidden action; a small benchmarks/masks.py."""

from tests.benchmarks.masks import lines

RECURRENT = (
    "policy=r2d2 ",
    "policy=drqn env=battleship",
    "memory=lstm",
    "policy=impala",
    "policy=qmix",
)


def test_no_run_takes_a_forbidden_action() -> None:
    said = list(lines(8 * 400, RECURRENT))
    assert len(said) == 8
    assert all(good for good, _ in said), "\n".join(text for _, text in said)
