"""Random spaces, policies, memories and wrappers: no run is a bug of rlrun."""

import pytest

from tests.faults import fuzz


@pytest.mark.parametrize("part", range(2))
def test_combinations_end_as_they_should(part: int) -> None:
    outcomes = {number: fuzz.run(0, number) for number in range(part, 40, 2)}
    faults = {n: (o.code, o.text[-500:]) for n, o in outcomes.items() if o.fault}
    assert faults == {}
