"""Random spaces, policies, memories and wrappers: no run is a bug of rlrun."""

import pytest

from tests.faults import fuzz

CHOSEN = range(0, 40)


@pytest.mark.parametrize("part", range(2))
def test_combinations_end_as_they_should(part: int) -> None:
    faults = {
        f"0:{number}": (outcome.code, outcome.text[-500:])
        for number, outcome in fuzz.run(0, [n for n in CHOSEN if n % 2 == part])
        if outcome.fault
    }
    assert faults == {}
