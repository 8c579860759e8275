"""Sweeps with seeds=auto: their own decision is reported, no test that ignores how they stopped."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.report import figures
from tests.in_process import Done
from tests.report.forge import forge_seeds

Command = Callable[..., Done]
DECISION = {
    "settings": ["policy=dqn", "policy=r2d2"],
    "tasks": ["CartPole-v1"] * 2,
    "scores": [[1.0] * 6, [9.0] * 6],
    "level": 0.05,
    "status": "decided",
    "looks": 2,
    "comparisons": [{"settings": [0, 1], "better": 1}],
}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "available", lambda: False)
    for name, level in (("dqn", 0.0), ("r2d2", 50.0)):
        for path in forge_seeds(tmp_path / "made" / name, [level + i for i in range(6)],
                                policy__name=name):  # fmt: skip
            path.rename(tmp_path / path.name)
    (tmp_path / "seeds.json").write_text(json.dumps(DECISION))
    return tmp_path


def test_its_decision_is_reported(rlrun: Command, sweep: Path) -> None:
    done = rlrun("report", ".")
    line = "policy=r2d2 is better (policy=dqn against policy=r2d2, seeds=auto, family-wise level"
    assert line in done.out
    assert "p = " not in done.out
    page = (sweep / "report/index.html").read_text()
    assert "Sequential seeds" in page
    assert "Comparisons" not in page
    assert "policy=r2d2 is better" in (sweep / "report/sequential.csv").read_text()


def test_compare_refers_to_it(rlrun: Command, sweep: Path) -> None:
    last = rlrun("compare", "dqn_s*", "r2d2_s*").out.splitlines()[-1]
    assert last.startswith("seeds=auto has decided this: see seeds.json")


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{", json.dumps({**DECISION, "comparisons": [{"settings": [0, 7], "better": 1}]}),
        json.dumps({**DECISION, "level": "x"}),
    ],
)  # fmt: skip
def test_damage_is_no_decision(rlrun: Command, sweep: Path, content: str) -> None:
    (sweep / "seeds.json").write_text(content)
    done = rlrun("report", ".")
    assert done.code == 0
    assert "is better" not in done.out
