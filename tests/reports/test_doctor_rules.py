"""``rlrun doctor RUN_DIR``: what rules accuse, what they leave alone, and what they advise."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlrun.reports.doctor.diagnose import diagnose
from rlrun.reports.doctor.evidence import Evidence
from rlrun.reports.runs import read_run
from tests.reports.forge import forge
from tests.reports.sick_runs import CASES, Case, Values, flat, noise, returns, sick
from tests.reports.thin_run import HEALTHY


def test_advice_fits_the_policy(tmp_path: Path) -> None:
    """PPO has no replay and no epsilon, whatever is found; no metric is named that is not there."""
    for name, case in CASES.items():
        whole = yaml.safe_load((HEALTHY / "ppo/config.yaml").read_text())
        known = {key: value for key, value in case.keys.items() if key.partition(".")[0] == "run"
                 or key.rpartition(".")[2] in whole.get(key.partition(".")[0], {})}  # fmt: skip
        run = sick(Case("ppo", case.metrics, known), tmp_path / name)
        recorded = (run.path / "metrics.jsonl").read_text()
        for finding in diagnose(run).values():
            words = " ".join(finding.tries)
            assert not any(part in words for part in ("buffer.", "explore.", "learner.replay"))
            groups = ("train/", "buffer/", "collect/", "eval/")
            seen = [metric for metric in finding.metrics if metric.startswith(groups)]
            assert all(f'"{metric}"' in recorded for metric in seen)


def peak(at: float) -> Callable[[float], float]:
    """A score of 10 but for one evaluation in the tenth of the run before ``at``."""
    return lambda x: 300.0 if at - 0.1 < x <= at else 10 + noise(x)


def test_a_peak_is_not_in_what_it_fell_to(tmp_path: Path) -> None:
    """A peak within the last third; one whose own episodes differ that much is noise."""
    names = ("eval/return_mean", "collect/return_mean")
    score = dict.fromkeys(names, peak(0.85)) | {"eval/return_std": 5.0}
    run = sick(Case("dqn", score), tmp_path / "a")
    found = diagnose(run)
    best, since = map(float, re.findall(r"(\d+) env steps", found["forgetting"].symptom))
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["env_steps"] for line in lines]
    assert max(steps) * 0.75 < best < since < max(steps)
    assert ", 10" in found["forgetting"].symptom or ", 9." in found["forgetting"].symptom
    wide = score | {"eval/return_std": lambda x: 900.0 if 0.75 < x <= 0.85 else 5.0}
    noisy = sick(Case("dqn", wide, {"run.total_steps": 22_031}), tmp_path / "b")
    assert [*diagnose(noisy)] == ["no progress"]


@pytest.mark.parametrize(
    ("name", "metrics", "found"),
    [("a policy that has the largest return there is", {"train/grad_norm": 1e-9}, []),
     ("one that has not", {"train/grad_norm": 1e-9, "eval/return_mean": 400.0},
      ["gradients vanish"])],
)  # fmt: skip
def test_no_stop_value(
    name: str, metrics: dict[str, Values], found: list[str], tmp_path: Path
) -> None:
    """Without it a run is at its end where late episodes have the largest return ever seen."""
    least = {"collect/return_min": 9.0, "eval/return_min": 9.0, "collect/return_max": 500.0}
    score: dict[str, Values] = {"eval/return_mean": 500.0, "eval/return_max": 500.0} | least
    case = Case("dqn", score | metrics, {"run.stop_value": None})
    assert [*diagnose(sick(case, tmp_path / "run"))] == found, name
    keys = {"run.stop_value": None, "run.total_steps": 22_031}
    failing = Case("dqn", flat(9.3) | least, keys)
    assert [*diagnose(sick(failing, tmp_path / "failing"))] == ["no progress"]


def test_one_return_in_all_episodes(tmp_path: Path) -> None:
    """A policy learned from data may have the largest return from its first evaluation on."""
    for name, found in (("serial", ["constant score"]), ("offline", [])):
        keys = {"run.stop_value": None, "run.total_steps": 22_031, "pipeline.name": name}
        case = Case("dqn", returns(10.0) | {"train/q_taken": 5.0}, keys)
        assert [*diagnose(sick(case, tmp_path / name))] == found


def test_gamma_of_a_task_that_is_rewarded_at_once(tmp_path: Path) -> None:
    """A short horizon is no fault of a run that learns."""
    keys = {"policy.gamma": 0.1}
    assert diagnose(sick(Case("r2d2", keys=keys), tmp_path / "a")) == {}
    below = Case("r2d2", {"eval/return_mean": lambda x: 9 + x, "collect/return_mean": 20.0,
                          "eval/return_std": 0.5}, keys)  # fmt: skip
    assert [*diagnose(sick(below, tmp_path / "b"))] == ["short horizon"]


def test_action_values_of_sac_hold_its_entropy(tmp_path: Path) -> None:
    values: dict[str, Values] = returns(1.0) | {
        "eval/return_mean": lambda x: x, "collect/length_mean": 100.0, "eval/return_std": 0.1,
        "train/q_taken": lambda x: 1 + 30 * x, "train/entropy": 1.4,
    }  # fmt: skip
    cold = sick(Case("sac", values | {"train/temperature": 0.01}), tmp_path / "a")
    warm = sick(Case("sac", values | {"train/temperature": 0.2}), tmp_path / "b")
    assert ["overestimation" in diagnose(run) for run in (cold, warm)] == [True, False]


def test_the_entropy_of_one_action_is_none(tmp_path: Path) -> None:
    """Records of a few rows say nothing of what a policy does."""
    run = sick(CASES["one action"], tmp_path / "run")
    path = run.path / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [json.dumps(record | {"env_steps": 1 + i}) for i, record in enumerate(records)]
    path.write_text("\n".join(lines) + "\n")
    assert "one action" not in diagnose(read_run(run.path))


def test_a_run_that_was_interrupted_before_it_began(tmp_path: Path) -> None:
    shutil.copytree(HEALTHY / "dqn", tmp_path / "run")
    for name in ("run.json", "metrics.jsonl", "timings.jsonl"):
        (tmp_path / "run" / name).unlink()
    found = diagnose(read_run(tmp_path / "run"))
    assert [*found] == ["interrupted"]
    assert found["interrupted"].tries[0].startswith(f"rlrun resume {tmp_path / 'run'}")


def test_a_run_that_has_not_come_to_learn_is_not_accused(tmp_path: Path) -> None:
    run = sick(CASES["no updates"], tmp_path / "run")
    keys = {"learner.learning_starts": 25_000}
    early = sick(Case("dqn", CASES["no updates"].metrics, keys), tmp_path / "early")
    assert ["no updates" in diagnose(each) for each in (run, early)] == [True, False]


def test_one_low_evaluation_after_the_best_is_no_loss(tmp_path: Path) -> None:
    """Of five evaluations the last third is one, of six it is two."""
    one = Evidence(read_run(forge(tmp_path / "1", returns=(0.0, 99.0, 100.0, 99.0, 0.0))))
    two = Evidence(read_run(forge(tmp_path / "2", returns=(0.0, 99.0, 100.0, 99.0, 0.0, 0.0))))
    assert (one.lost, two.lost) == (0, 1)
