"""``rlrun doctor RUN_DIR``: a sick run for every rule, and healthy ones.

A sick run is a run of ``healthy/`` some of whose metrics and keys were written over.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlrun.reports.doctor.diagnose import RULES, _unchecked, diagnose, report_lines
from rlrun.reports.doctor.evidence import Evidence
from rlrun.reports.runs import read_run
from rlrun.rundir.durable import seal
from rlrun.rundir.texts import read_record
from tests.compose import config
from tests.in_process import Done
from tests.pages import first_cells, section
from tests.reports.forge import forge, forge_sweep
from tests.reports.sick_runs import CASES, Case, flat, sick
from tests.reports.thin_run import HEALTHY

RUNS = ("dqn", "ppo", "r2d2", "tmaze", "sac")


def test_every_rule_has_a_sick_run() -> None:
    assert [*CASES] == [rule.name for rule in RULES]
    names = {rule.name for rule in RULES}
    assert all(set(rule.explains) <= names for rule in RULES)
    listed = re.findall(r"^\| ([a-z ]+) \|", section("rlrun/reports/README.md", "Run health"), re.M)
    assert listed == ["finding", *CASES]


@pytest.mark.parametrize("name", CASES)
def test_a_sick_run_has_its_finding_and_no_other(name: str, tmp_path: Path) -> None:
    run = sick(CASES[name], tmp_path / "run")
    found = diagnose(run)
    assert [*found] == [name]
    finding = found[name]
    assert finding.tries, "something to try"
    for line in report_lines(run):
        assert all(len(part) <= 100 or str(run.path) in part for part in line.split("\n"))
    listed = first_cells(section("rlrun/log/README.md", "Metrics"))
    files = ("rlrun.log", "run.json", "metrics.jsonl", "collect/restarts")
    assert all(metric in listed or metric in files for metric in finding.metrics)


@pytest.mark.parametrize("stop", ["given", "null"])
@pytest.mark.parametrize("name", RUNS)
def test_a_healthy_run_has_none(name: str, stop: str, tmp_path: Path) -> None:
    """Also where no stop_value says that it is solved."""
    null = Case(name, keys={"run.stop_value": None})
    run = read_run(HEALTHY / name) if stop == "given" else sick(null, tmp_path / name)
    assert diagnose(run) == {}
    (line,) = report_lines(run)
    found = re.match(rf"{name}: nothing looks wrong; (\d+) of {len(RULES)} rules had", line)
    assert found
    assert 30 <= int(found[1]) < len(RULES)  # some are on metrics of other policies


def test_what_is_tried_is_accepted(tmp_path: Path) -> None:
    """Every override of every finding composes with the config of its run and passes its checks."""
    bases = {
        "dqn": ("policy=dqn", "env=cartpole"), "ppo": ("policy=ppo", "env=cartpole"),
        "r2d2": ("policy=r2d2", "env=cartpole"), "tmaze": ("policy=r2d2", "env=tmaze"),
        "sac": ("policy=sac", "env=pendulum"),
    }  # fmt: skip
    tried: dict[str, dict[str, str]] = {}
    for name, case in CASES.items():
        for words in diagnose(sick(case, tmp_path / name))[name].tries:
            key, equals, value = words.partition("=")
            if equals:
                tried.setdefault(case.run, {})[key] = value
    assert len({key for keys in tried.values() for key in keys}) > 20
    alone = ("learner.update_per_collect", "collector.residual", "policy.lr.over", "policy.lr.kind",
             "memory", "policy.lr")  # fmt: skip
    for run, keys in tried.items():
        together = [f"{key}={value}" for key, value in keys.items() if key not in alone]
        config(*bases[run], *together)
        for key in set(keys) & {"policy.lr.over", "policy.lr.kind", "policy.lr"}:
            config(*bases[run], f"{key}={keys[key]}")


@pytest.mark.parametrize(
    ("keys", "tries"),
    [({"kind": "exponential", "over": 10**6}, "explore.epsilon.over=6609"),
     ({"kind": "constant", "over": None},
      "'explore.epsilon={kind:linear,start:1,end:0.05,over:6609}'")],
)  # fmt: skip
def test_what_is_tried_against_exploration(
    keys: dict[str, Any], tries: str, tmp_path: Path
) -> None:
    """A constant epsilon has no period."""
    keys = {f"explore.epsilon.{name}": value for name, value in keys.items()}
    case = Case("dqn", {"collect/epsilon_mean": 0.9}, keys | {"run.total_steps": 22_031})
    assert diagnose(sick(case, tmp_path / "run"))["still exploring"].tries == [tries]


def test_a_run_without_records_is_too_early(tmp_path: Path) -> None:
    shutil.copytree(HEALTHY / "dqn", tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").write_text("")
    record = read_record(tmp_path / "run") | {"status": "running", "eval": None}
    (tmp_path / "run/run.json").write_bytes(seal(record))
    assert [*report_lines(read_run(tmp_path / "run"))] == [
        "run: too early to say; 0 records up to 0 env steps"
    ]


def test_the_most_severe_comes_first_and_what_follows_from_another_is_left_out(
    tmp_path: Path,
) -> None:
    keys = {"policy.lr.over": 10**7}
    run = sick(Case("dqn", {"train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3), keys,
                    {"rollbacks": 2}), tmp_path / "run")  # fmt: skip
    assert [*diagnose(run)] == ["rollbacks", "loss grows", "schedule outlasts run"]


def test_command(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    """A directory, several, a sweep; other words are refused as before."""
    sick(CASES["dead units"], tmp_path / "a,policy=dqn")
    shutil.copytree(HEALTHY / "ppo", tmp_path / "b")
    done = rlrun("doctor", str(tmp_path / "a,policy=dqn"))
    assert (done.code, done.err) == (0, "")
    first, symptom, why, tries, look = done.out.splitlines()
    assert first.startswith("a,policy=dqn: 1 finding; ")
    assert symptom == "1. 75% of the hidden units are dead (35% at first)."
    assert tries.startswith("   try:  policy.lr=0.0003, or learner.replay_ratio=32, or ")
    assert look == "   look: train/dead_units, train/grad_norm"
    assert why.startswith("   why:  ")
    forge_sweep(tmp_path, [("a,policy=dqn", "done"), ("b", "done")])
    both = rlrun("doctor", str(tmp_path))
    assert both.out.startswith(done.out)
    assert both.out.splitlines()[-1].startswith("b: nothing looks wrong")
    nowhere = rlrun("doctor", str(tmp_path / "nowhere"))
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "no such directory" in nowhere.err


@pytest.mark.parametrize("text", ["{", "[]", "policy: [", "policy: {name: 3}", "run: \x00"])
def test_a_strangers_config(text: str, tmp_path: Path) -> None:
    """Any values: a line, no traceback."""
    shutil.copytree(HEALTHY / "dqn", tmp_path / "run")
    (tmp_path / "run/config.yaml").write_text(text)
    assert [*report_lines(read_run(tmp_path / "run"))]


def test_hostile_values_of_keys(tmp_path: Path) -> None:
    """Keys that rules compute with may be anything."""
    values: list[Any] = [0, -1, 1e308, "nan", [], True, None, "${policy.lr}"]
    whole = yaml.safe_load((HEALTHY / "tmaze/config.yaml").read_text())
    shutil.copytree(HEALTHY / "tmaze", tmp_path / "run")
    for value in values:
        names = ("policy", "buffer", "run", "learner", "explore", "collector", "eval")
        other = {**whole, **{n: dict.fromkeys(whole[n], value) for n in names}}
        other["policy"] |= {"name": "r2d2"}
        (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(other))
        assert [*report_lines(read_run(tmp_path / "run"))]


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, 1e-308])
@pytest.mark.parametrize("name", ["tmaze", "ppo"])
def test_hostile_values_of_metrics(name: str, value: float, tmp_path: Path) -> None:
    """All metrics, or all but the score; each finding that comes of them can be printed."""
    lines = (HEALTHY / name / "metrics.jsonl").read_text().splitlines()
    names = {key for line in lines for key in json.loads(line)} - {"env_steps"}
    for part in (names, {key for key in names if "return" not in key}):
        path = tmp_path / str(len(part))
        run = sick(Case(name, dict.fromkeys(part, value), {"policy.reward_scale": 1e-300}), path)
        assert all(map(str.isprintable, "".join(report_lines(run)).replace("\n", "")))


def test_ok_is_said_of_rules_with_records_only(tmp_path: Path) -> None:
    """A run without evaluations and updates leaves most of the rules nothing to look at."""
    nothing = re.compile("eval/|train/|buffer/")
    path = shutil.copytree(HEALTHY / "ppo", tmp_path / "ppo")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if not nothing.match(k)} for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))

    def checked(run: Path) -> int:
        return len(RULES) - _unchecked(Evidence(read_run(run)))

    assert checked(path) < 25 < checked(HEALTHY / "ppo")


def test_no_advice_against_what_an_experiment_sets_on_purpose(tmp_path: Path) -> None:
    run = sick(CASES["short horizon"], tmp_path / "run")
    for typed, expected in (
        (["experiment=r2d2_repeat_previous", "seed=1"], False),
        (["experiment=r2d2_repeat_previous", "policy.gamma=0.1"], True),
        (["experiment=r2d2_repeat_previous", "env=cartpole"], True),
        (["policy=r2d2"], True),
    ):
        found = diagnose(replace(run, overrides=tuple(typed)))
        assert ("short horizon" in found) == expected


def test_stored_states_come_before_the_horizon(tmp_path: Path) -> None:
    keys = {"policy.gamma": 0.1, "policy.state_init": "zero", "policy.burnin_step": 0}
    metrics = {"train/delta_q_zero_last": 1.4} | flat(30.0)
    found = diagnose(sick(Case("r2d2", metrics, keys), tmp_path / "run"))
    assert [*found] == ["stale states", "short horizon"]
    assert all(one.tries[0] == "policy.state_init=stored" for one in found.values())


def test_a_run_that_has_evaluations_only(tmp_path: Path) -> None:
    """Without records of collecting there is nothing that rules of behaviour could compare."""
    run = forge(tmp_path / "run", returns=[5.0] * 8)
    assert all(isinstance(line, str) for line in report_lines(read_run(run)))
