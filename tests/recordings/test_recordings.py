"""The code computes what it computed when it was recorded.

On the recorded CPU and versions: bit for bit. Elsewhere parameters, metrics and actions are equal
to 1e-5, and runs only have to be the same when repeated. ``python -m tests.recordings record``
records anew; a change that does so says why its numbers are others.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.recordings import policies, runs, store
from tests.recordings.fingerprint import fingerprint, machine, missing

SAME_MACHINE = {name: store.read(name)["machine"] == machine() for name in store.FILES}


@pytest.mark.parametrize("line", policies.CASES)
def test_updates_and_actions(line):
    recorded, computed = store.read("policies")["cases"][line], policies.compute(line)
    for group, each in recorded.items():
        lost = missing(each, computed[group], exact=False)
        if group == "state":  # moments were one array each
            lost = [x for x in lost if len(x[0]) > 1 or x[0][0] < 300]
        assert not lost, f"{group}: {len(lost)} of {len(each)} arrays differ"


@pytest.mark.parametrize("name", runs.RUNS)
def test_digests(name, tmp_path):
    (tmp_path / "one").mkdir()
    computed = runs.compute(name, tmp_path / "one")
    if list(runs.RUNS).index(name) % 4 == 0:
        (tmp_path / "two").mkdir()
        assert computed == runs.compute(name, tmp_path / "two")


def test_every_case_is_recorded():
    assert [*store.read("policies")["cases"]] == policies.CASES
    assert [*store.read("runs")["cases"]] == [*runs.RUNS]


@pytest.mark.parametrize(
    ("change", "exact", "found"),
    [(0.0, True, True), (0.0, False, True), (1e-7, True, False), (1e-7, False, True),
     (1e-4, False, False)],
)  # fmt: skip
def test_comparison(change, exact, found):
    x = np.linspace(-1, 1, 40).astype(np.float32)
    y = x.copy()
    y[np.linspace(0, 39, 12).astype(int)[5]] += change
    one, other = fingerprint(x, 12), fingerprint(y, 12)
    assert (not missing([one], [fingerprint(x[:5], 12), other], exact=exact)) == found


def test_every_learning_preset_is_a_case():
    presets = {p.stem for p in (Path(__file__).parents[2] / "conf/policy").glob("*.yaml")}
    used = {line.split()[1].removeprefix("policy=") for line in policies.CASES}
    assert presets - used == {"random", "scripted"}
