"""Picture and tables of the ablation are those that its command makes from the committed runs."""

import numpy as np

from tests.benchmarks import ablation
from tests.benchmarks.process import CHECKOUT


def test_the_committed_picture_and_tables_are_of_the_committed_runs(tmp_path, monkeypatch, capsys):
    committed = ablation.PICTURE.read_text("utf-8")
    monkeypatch.setattr(ablation, "PICTURE", tmp_path / "picture.svg")
    assert ablation.main([]) == 0
    assert (tmp_path / "picture.svg").read_text("utf-8") == committed
    tables = (CHECKOUT / "tests/benchmarks/TABLES.md").read_text("utf-8")
    assert capsys.readouterr().out.strip() in tables


def test_every_setting_has_run_with_every_seed():
    results = ablation.read()
    for task in ablation.TASKS:
        by_setting = ablation.scores(results, task)
        assert [*by_setting] == ablation.settings()
        assert {len(values) for values in by_setting.values()} == {len(ablation.SEEDS)}
        steps = {r["env_steps"] for r in results if r["task"] == task.name}
        assert min(steps) >= task.total_steps


def test_an_effect_is_what_a_part_adds_to_every_seed():
    added = np.arange(5.0)
    results = [
        {"task": "tmaze", "seed": seed, "score": 7 * setting[0] + added[seed] * setting[2],
         "with": dict(zip([part.key for part in ablation.PARTS], setting, strict=True))}
        for setting in ablation.settings() for seed in ablation.SEEDS
    ]  # fmt: skip
    by_setting = ablation.scores(results, ablation.TASKS[1])
    np.testing.assert_allclose(ablation.effect(by_setting, 0), 7)
    np.testing.assert_allclose(ablation.effect(by_setting, 1), 0, atol=1e-12)
    np.testing.assert_allclose(ablation.effect(by_setting, 2), added)
