"""``rlrun doctor RUN_DIR``: one sick run a rule, each a healthy one with one symptom, and healthy ones.

A sick run is a run of ``healthy/`` some of whose metrics and keys were written over. ``x`` is the
share of its env steps that is done.
"""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlrun.reports.doctor.diagnose import RULES, diagnose, report_lines
from rlrun.reports.runs import RunData, read_run
from rlrun.rundir.durable import seal
from rlrun.rundir.texts import read_record
from tests.compose import config
from tests.in_process import Done
from tests.pages import first_cells, section
from tests.reports.forge import forge_sweep, merged
from tests.reports.thin_run import HEALTHY

RUNS = ("dqn", "ppo", "r2d2", "tmaze", "sac")
Values = float | Callable[[float], float] | None  # None: the metric is left out
UNSOLVED = {"run.stop_value": 1e6}


@dataclass(frozen=True)
class Case:
    """A sick run: what is written over, and of which run."""

    run: str
    metrics: dict[str, Values] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Values] = field(default_factory=dict)


def noise(x: float) -> float:
    """Within the noise of evaluations, the same at every call."""
    return 0.3 * math.sin(1000 * x)


def flat(level: float) -> dict[str, Values]:
    """A score that never changes but by noise, of both policies."""
    same = dict.fromkeys(("eval/return_mean", "collect/return_mean"), lambda x: level + noise(x))
    return same | {"eval/return_std": 1.5}


def returns(value: float) -> dict[str, Values]:
    names = [f"{w}/return_{n}" for w in ("eval", "collect") for n in ("mean", "min", "max")]
    return dict.fromkeys(names, value) | {"eval/return_std": 0.0}


NO_TRAIN = dict.fromkeys(
    ("updates", "loss", "lr", "grad_norm", "td_abs", "q_taken", "target", "valid_fraction",
     "replay_ratio"), None)  # fmt: skip
CASES = {
    "failed": Case("dqn", record={"status": "failed", "exit_code": 4}),
    "damaged": Case("dqn", {"eval/return_mean": math.nan}),
    "interrupted": Case("dqn", record={"status": "interrupted", "exit_code": 75}),
    "restarts": Case("dqn", {"collect/restarts": lambda x: float(x > 0.5)}),
    "slow": Case("r2d2", times={"time/eval_seconds": lambda x: 900 * x}),
    "no updates": Case(
        "dqn",
        {f"train/{name}": x for name, x in NO_TRAIN.items()} | flat(9.3),
        {"learner.learning_starts": 100_000},
    ),
    "late learning": Case("dqn", flat(9.3), {"learner.learning_starts": 50_000}),
    "rollbacks": Case("dqn", record={"rollbacks": 3}),
    "large step size": Case("dqn", {"train/lr": 0.3} | flat(9.3), {"policy.lr": 0.3}),
    "short horizon": Case("r2d2", flat(30.0), {"policy.gamma": 0.1}),
    "overestimation": Case(
        "dqn",
        {"train/q_taken": lambda x: 3 * 300**x, "train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3),
        {"policy.double": False},
    ),
    "no target network": Case("r2d2", {"train/target_lag": 0.0}, {"policy.target_tau": 1.0}),
    "target stands still": Case("r2d2", flat(9.3), {"policy.target_tau": 1e-6}),
    "large errors": Case("ppo", {"train/value_loss": 1e7, "train/explained_variance": 0.0}),
    "gradients clipped": Case("r2d2", {"train/grad_norm": 900.0}),
    "loss grows": Case("dqn", {"train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3)),
    "gradients vanish": Case("dqn", {"train/grad_norm": 1e-9} | flat(9.3)),
    "dead units": Case("dqn", {"train/dead_units": lambda x: 0.3 + 0.5 * x} | flat(9.3)),
    "learning rate gone": Case(
        "dqn", {"train/lr": lambda x: 1e-3 * math.exp(-40 * x)}, {"policy.lr.over": 2000}
    ),
    "tiny rewards": Case("dqn", returns(1e-6) | {"eval/return_max": 2e-6} | {
        "collect/return_mean": lambda x: 1e-6 * x}),
    "small buffer": Case(
        "dqn",
        {"buffer/fill": 1.0, "buffer/windows": 1450.0, "buffer/sample_age": 700.0,
         "buffer/late_priorities": 4e5},
        {"buffer.capacity": 1500},
    ),
    "early evictions": Case(
        "r2d2", {"buffer/early_evictions": 900.0}, {"buffer.window_capacity": 500}
    ),
    "much replay": Case(
        "dqn",
        {"train/replay_ratio": 6000.0, "train/dead_units": 0.7} | flat(9.3),
        {"learner.replay_ratio": 6000},
    ),
    "little replay": Case("dqn", {"train/replay_ratio": 0.1} | flat(9.3),
                          {"learner.replay_ratio": 0.1}),
    "priorities collapsed": Case("tmaze", {"buffer/priority_ess": 0.002, "buffer/windows": 9000.0}),
    "extreme weights": Case("tmaze", {"buffer/weight_spread": 3.5}),
    "stale states": Case(
        "tmaze", {"train/delta_q_stored_last": 1.4} | flat(0.3), {"policy.burnin_step": 0}
    ),
    "padding": Case("tmaze", {"train/valid_fraction": 0.2}, {"policy.learn_unroll_len": 80}),
    "rows lost": Case("tmaze", {"buffer/learned_fraction": 0.55}, {"collector.tiling": "plain"}),
    "late priorities": Case("tmaze", {"buffer/late_priorities": 3e4}),
    "still exploring": Case("dqn", {"collect/epsilon_mean": 0.9} | flat(9.3),
                            {"explore.epsilon.over": 10**6, "run.total_steps": 22_031}),
    "no exploration": Case("dqn", {"collect/epsilon_mean": 0.0, "collect/action_entropy": 0.01},
                           {"explore.epsilon.over": 100, "explore.epsilon.end": 0.0}),
    "schedule outlasts run": Case("dqn", keys={"policy.lr.over": 10**7}),
    "entropy collapsed": Case("ppo", {"train/entropy": lambda x: 0.7 * math.exp(-30 * x),
                                      "collect/action_entropy": 0.01} | flat(9.3)),
    "one action": Case("r2d2", {"collect/action_entropy": 0.004} | flat(9.3)),
    "large steps": Case("ppo", {"train/approx_kl": 0.4, "train/clip_fraction": 0.7}),
    "explained variance": Case("ppo", {"train/explained_variance": -0.2}),
    "greedy is stuck": Case("r2d2", flat(9.3) | {"collect/return_mean": lambda x: 9 + 200 * x}),
    "endless episodes": Case("dqn", {"eval/cut_episodes": 7.0}),
    "forgetting": Case("dqn", dict.fromkeys(
        ("eval/return_mean", "collect/return_mean"), lambda x: 300 * math.sin(3 * x) + noise(x)
    ) | {"eval/return_std": 5.0}),
    "constant score": Case("dqn", returns(-200.0)),
    "no progress": Case("sac", {"eval/return_mean": lambda x: -900 + 9 * noise(x),
                                "collect/return_mean": -900.0}),
}  # fmt: skip


def write_over(path: Path, changes: dict[str, Values], total: float) -> None:
    """Write over metrics; one that a record lacks goes into those with a return of its group."""
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        x = record["env_steps"] / total
        for name, values in changes.items():
            group = name.partition("/")[0]
            evaluated = name == "train/delta_q_stored_last" or group == "eval"
            here = name in record or (group != "time" and name not in line and (
                "eval/return_mean" in record) == evaluated)  # fmt: skip
            if name in ("train/target_lag", "train/dead_units"):
                here = name in record
            if here:
                record[name] = values(x) if callable(values) else values
        kept = {name: value for name, value in record.items() if value is not None}
        lines.append(json.dumps(kept) + "\n")
    path.write_text("".join(lines))


def sick(case: Case, path: Path) -> RunData:
    shutil.copytree(HEALTHY / case.run, path)
    whole = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(merged(whole, UNSOLVED | case.keys)))
    record = read_record(path)
    steps = record["env_steps"]
    (path / "run.json").write_bytes(seal(record | case.record))
    write_over(path / "metrics.jsonl", case.metrics, steps)
    write_over(path / "timings.jsonl", case.times, steps)
    return read_run(path)


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
    assert line.startswith(f"{name}: nothing looks wrong; {len(RULES)} rules on ")


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
