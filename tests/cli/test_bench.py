"""``rlrun bench memory`` and ``rlrun probe``: what they run, print and refuse."""

import csv
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlrun.cli.probe import _agents
from rlrun.config import check
from rlrun.config.presets import read_presets
from rlrun.config.space import read_settings
from rlrun.env import probe
from rlrun.reports.memory_bench import BenchSetting, bench_table
from rlrun.reports.memory_gap import FULL, MEMORYLESS, RECURRENT, STACKED, MemoryGap
from rlrun.reports.runs import read_run
from rlrun.sweeps.record import JobRecord, SweepRecord
from tests.env.presets import preset
from tests.in_process import files_under
from tests.reports.forge import forge

CONF = Path(__file__).parents[2] / "conf"
TASKS = yaml.safe_load((CONF / "bench_tasks.yaml").read_text())
ONE = ("bench.algorithms=[ppo]", "bench.cells=[gru]", "bench.seeds=1")


def test_mmer_and_steps_to_90_percent_by_hand(tmp_path):
    fast = [
        forge(tmp_path / f"f{i}", seed=i, returns=returns, run__stop_value=None)
        for i, returns in enumerate([(0.0, 1.0, 0.5), (0.0, 0.8, 0.9), (0.2, 0.1, 0.8)])
    ]
    slow = [
        forge(tmp_path / "s0", seed=0, returns=(0.1, 0.2, 0.3)),
        forge(tmp_path / "s1", seed=1, returns=(0.1, 0.9), status="failed"),
    ]
    settings = [
        BenchSetting("walk", name, "gru", -0.5, [read_run(path) for path in paths])
        for name, paths in (("slow", slow), ("fast", fast))
    ]
    table = bench_table(settings, {"walk": {"PPO": 0.7}})
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == ["fast", "slow", "(PPO)"], "best first, published last"
    assert rows["fast"]["MMER"] == pytest.approx((1.0 + 0.9 + 0.8) / 3)
    assert rows["fast"]["score"].value == pytest.approx((0.5 + 0.9 + 0.8) / 3)
    # 90 % of the way from -0.5 to 0.9 is 0.76: reached at 666, 666 and 1000 env steps
    assert rows["fast"]["steps to 90 %"] == 666
    assert rows["fast"]["seconds to 90 %"] == pytest.approx(6.66)
    assert rows["fast"]["runs"] == "3 of 3"
    assert rows["slow"]["MMER"] == pytest.approx(0.3), "a failed run is in no mean"
    assert rows["slow"]["steps to 90 %"] == float("inf"), "but counts as never"
    assert rows["slow"]["runs"] == "1 of 2; failed"
    assert (rows["(PPO)"]["MMER"], rows["(PPO)"]["runs"]) == (0.7, "elsewhere")


def test_a_task_without_a_finished_run_is_shown(tmp_path):
    run = read_run(forge(tmp_path / "r", status="failed"))
    (row,) = bench_table([BenchSetting("walk", "ppo", "gru", 0.0, [run])], {}).rows
    assert row[-1] == "0 of 1; failed"


def test_the_benchmark_runs_every_setting_once_and_writes_its_table(rlrun, build):
    build.codes[0] = 4
    words = ("bench", "memory", *ONE, "bench.tasks=[tmaze_100,repeat_previous_hard]",
             "bench.seeds=2", "bench.steps=600", "bench.evaluations=3", "bench.dir=b")  # fmt: skip
    done = rlrun(*words)
    assert done.code == 1, done.err
    configs = [call[1][0] for call in build.calls]
    assert [(c.env.id, c.seed) for c in configs] == [
        (f"rlrun/{name}-v0", seed) for name in ("TMaze", "RepeatPrevious") for seed in (0, 1)
    ]
    first, last = configs[0], configs[-1]
    assert (first.policy.name, first.memory.name) == ("ppo", "gru")
    assert (first.run.total_steps, first.run.eval_every, first.run.stop_value) == (600, 200, None)
    assert first.env.eval_kwargs == {"balanced": True, "length": 100}
    assert last.env.kwargs == {"k": 64, "decks": 3, "full_state": False}
    assert last.env.reward_scale == 23
    assert "(PPO GRU)" in done.out
    assert "-0.428" in Path("b/bench.md").read_text()
    table = list(csv.DictReader(Path("b/bench.csv").read_text().splitlines()))
    assert {row["task"] for row in table} == {"tmaze_100", "repeat_previous_hard"}
    raw = [json.loads(line) for line in Path("b/bench.jsonl").read_text().splitlines()]
    assert [row["status"] == "done" for row in raw] == [False, True] * 2
    build.calls.clear()
    build.codes.clear()
    assert rlrun(*words, "bench.tasks=[tmaze_100,repeat_previous_hard,tmaze_10]", "-q").code == 1
    again = [call for call in build.calls if call[0] == "run"]
    ids = [(call[1][0].env.eval_kwargs.get("length"), call[1][0].seed) for call in again]
    assert ids.count((None, 0)) >= 1, "what was added"
    assert (100, 1) not in ids, "what is done is not run again"


def test_resume_names_the_command_of_the_table(rlrun, build, monkeypatch):
    words = ("bench", "memory", *ONE, "bench.tasks=[tmaze_10]", "bench.steps=600",
             "bench.evaluations=3")  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["rlrun", *words, "bench.dir=b", "-q"])
    rlrun(*words, "bench.dir=b", "-q")
    done = rlrun("resume", "b")
    assert done.code == 0, done.err
    (line,) = (line for line in done.out.splitlines() if line.startswith("the table: rlrun "))
    assert shlex.split(line)[3:] == [*words, f"bench.dir={Path('b').absolute()}"]
    assert "table:" not in rlrun("resume", "b", "-q").out


def test_overrides_of_all_runs_may_be_keys_of_their_policy_and_memory(rlrun, build):
    words = ("bench.algorithms=[ppo]", "bench.cells=[lru]", "bench.tasks=[tmaze_10]", "seed=7")
    own = ("policy.gae_lambda=0.5", "memory.r_min=0.5", "bench.dir=b", "-q")
    rlrun("bench", "memory", "bench.seeds=2", *words, *own)
    configs = [call[1][0] for call in build.calls]
    assert [c.seed for c in configs] == [7, 8]
    assert {(c.policy.gae_lambda, c.memory.r_min) for c in configs} == {(0.5, 0.5)}


def test_a_bench_that_goes_on_shows_what_earlier_commands_ran(rlrun, build):
    one = ("bench", "memory", "bench.algorithms=[ppo]", "bench.seeds=2", "bench.steps=600",
           "bench.evaluations=3", "bench.dir=b", "-q")  # fmt: skip
    rlrun(*one, "bench.cells=[gru]", "bench.tasks=[tmaze_10]")
    rlrun(*one, "bench.cells=[lru]", "bench.tasks=[tmaze_100]", "policy.gae_lambda=0.5")
    table = list(csv.DictReader(Path("b/bench.csv").read_text().splitlines()))
    found = {(row["task"], row["cell"]) for row in table}
    assert found == {("tmaze_10", "gru"), ("tmaze_100", "lru policy.gae_lambda=0.5")}
    assert len(Path("b/bench.jsonl").read_text().splitlines()) == 4
    rlrun(*one, "bench.cells=[gru]", "bench.tasks=[tmaze_10]", "bench.steps=900")
    table = list(csv.DictReader(Path("b/bench.csv").read_text().splitlines()))
    assert {row["cell"] for row in table if row["task"] == "tmaze_10"} == {
        "gru run.total_steps=600", "gru run.total_steps=900",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("begun", "words", "error"),
    [
        (
            "probe",
            ["bench", "memory", *ONE, "bench.dir=b"],
            "bench.dir = b: holds what rlrun probe",
        ),
        ("probe", ["probe", "env=identity", "probe.dir=b"], "holds a probe of env=tmaze"),
        ("bench", ["probe", "env=tmaze", "probe.dir=b"], "b: holds what rlrun bench"),
    ],
)
def test_a_directory_of_something_else_is_refused(rlrun, begun, words, error):
    Path("b").mkdir()
    job = JobRecord(0, "0", ["env=tmaze", "run.total_steps=9", "policy=ppo", "seed=0"])
    SweepRecord([job], [["rlrun", begun, "env=tmaze"]]).write(Path("b"))
    before = files_under(Path())
    done = rlrun(*words)
    assert done.code == 2
    assert error in done.err
    assert files_under(Path()) == before


def test_quick_is_short(rlrun, build):
    rlrun("bench", "memory", "--quick", "bench.dir=q", "-q")
    assert len(build.calls) == 4
    assert {call[1][0].run.total_steps for call in build.calls} == {2000}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["bench", "memory", "bench.tasks=[tmaze_11]"], "did you mean tmaze_10"),
        (["bench", "memory", "bench.cells=[gruu]"], "memory = gruu"),
        (["bench", "memory", "bench.seeds=0"], "bench.seeds = 0"),
        (["bench", "memory", "bench.tasks=[]"], "bench.tasks"),
        (["bench", "memory", "run.total_steps=9"], "run.total_steps = 9: the benchmark chooses it"),
        (["bench", "speed"], "invalid choice"),
        (["probe", "env=tmaze", "policy=dqn"], "policy = dqn: the probe chooses it"),
        (["probe", "env=tmaze", "probe.seeds=3"], "probe.seeds = 3"),
        (["probe", "env=tmaz"], "env = tmaz"),
        (["probe", "env=tmaze", "--budget", "0"], "--budget"),
    ],
)
def test_refused_before_anything_is_written(rlrun, words, error):
    done = rlrun(*words)
    assert done.code == 2
    assert error in done.err
    assert done.err.count("\n") == 1
    assert files_under(Path()) == []


def test_every_task_of_the_benchmark_can_be_made():
    for name, task in TASKS.items():
        typed = [word.partition("=") for word in task["overrides"]]
        keys = {key.removeprefix("env."): yaml.safe_load(value) for key, _, value in typed}
        config = preset(keys.pop("env"))
        assert keys.pop("reward_scale", config.reward_scale) >= config.reward_scale
        length = keys.pop("eval_kwargs.length", None)
        assert keys.keys() <= config.kwargs.keys(), name
        config = preset(typed[0][2], kwargs=keys)
        config = replace(config, eval_kwargs={"length": length} if length else {})
        probe(config)
        assert task["random"] < max(task["published"].values(), default=1.0), name
        assert task["steps"] > 0


def gap(**scores):
    names = {"memoryless": MEMORYLESS, "stacked": STACKED, "recurrent": RECURRENT, "full": FULL}
    return MemoryGap("maze", 100, {names[name]: own for name, own in scores.items()})


LOW, HIGH, MIXED = [0.0, 0.1, 0.2, 0.1, 0.05], [0.9, 1.0, 0.8, 0.95, 1.0], [0, 1, 0.1, 0.2, 0.1]


def test_the_verdict():
    found = gap(memoryless=LOW, stacked=LOW, recurrent=HIGH)
    assert found.needed
    assert "maze needs memory" in found.sentence
    assert "recurrent alone" in found.sentence
    assert gap(memoryless=LOW, stacked=HIGH, recurrent=LOW).needed
    assert not gap(memoryless=LOW, stacked=LOW, recurrent=MIXED).needed, "undecided"
    worse = gap(memoryless=HIGH, stacked=LOW, recurrent=LOW)
    assert not worse.needed, "worse is no need"
    assert "no need for memory at 100 env steps" in worse.sentence
    hidden = gap(memoryless=LOW, stacked=LOW, recurrent=LOW, full=HIGH)
    assert not hidden.needed
    assert "a larger budget may" in hidden.sentence
    same = [1.0] * 5
    assert not gap(memoryless=same, stacked=same, recurrent=same).needed
    assert gap(memoryless=[0.0] * 5, stacked=same, recurrent=same).needed, "p alone decides"


@pytest.mark.parametrize(
    ("words", "agents"),
    [
        (["env=tmaze"], ["ppo/none/1", "ppo/none/4", "ppo/gru/1", "ppo/none/1 full"]),
        (["env=tmaze", "env.full_state=true"], ["ppo/none/1", "ppo/none/4", "ppo/gru/1"]),
        (["env=identity"], ["ppo/none/1", "ppo/none/4 flat", "ppo/gru/1"]),
        (["env=battleship"], ["ppo/none/1", "ppo/gru/1"]),  # masked
        (["env=tracking"], ["sac/none/1", "sac/none/4", "sac/lstm/1"]),  # policy=rsac
    ],
)
def test_the_agents_of_a_probe(composer, words, agents):
    words = composer.rewrite(words)
    typed = [*words, "policy=random"]
    base = read_presets(composer, composer.compose(typed), typed)
    found = []
    for agent in _agents(base, read_settings(composer, "probe", [])).values():
        config = read_presets(composer, composer.compose([*words, *agent]), [*words, *agent])
        check(config)
        name = f"{config.policy.name}/{config.memory.name}/{config.env.frame_stack}"
        full = config.env.kwargs.get("full_state") and not base.env.kwargs["full_state"]
        found.append(name + " full" * bool(full) + " flat" * bool(config.env.wrappers))
    assert found == agents


def test_a_probe_runs_its_agents_and_says_what_it_found(rlrun, tmp_path, monkeypatch):
    jobs = []

    def run_jobs(composer, common, given, path, command, *, quiet):
        path.mkdir()
        jobs.extend(given)
        better = ["policy.prev_inputs=true" in job or "full_state=true" in str(job) for job in jobs]
        return [
            read_run(forge(tmp_path / str(i), returns=(0.0, won + i % 5 / 100)))
            for i, won in enumerate(better)
        ]

    monkeypatch.setattr("rlrun.cli.probe.run_jobs", run_jobs)
    done = rlrun("probe", "env=tmaze", "env.length=3", "--budget", "300", "probe.dir=p")
    assert done.code == 0, done.err
    assert "tmaze needs memory" in done.out
    assert "recurrent alone" in done.out
    assert "at 1000 env steps" in done.out, "those that were run, not the budget"
    assert "No frame-stacked agent" not in done.out
    assert "tmaze needs memory" in Path("p/probe.md").read_text()
    assert len(jobs) == 20
    for i, job in enumerate(jobs):
        budget = ("run.total_steps=300", "run.eval_every=300", "run.stop_value=null")
        assert {"env=tmaze", "env.kwargs.length=3", f"seed={i % 5}", *budget} <= {*job}


def test_a_probe_of_a_masked_task_says_which_agent_it_leaves_out(rlrun, tmp_path, monkeypatch):
    def run_jobs(composer, common, given, path, command, *, quiet):
        path.mkdir()
        return [read_run(forge(tmp_path / str(i))) for i in range(len(given))]

    monkeypatch.setattr("rlrun.cli.probe.run_jobs", run_jobs)
    done = rlrun("probe", "env=battleship", "probe.dir=p")
    assert done.code == 0, done.err
    assert "No frame-stacked agent" in done.out
    assert "No frame-stacked agent" in Path("p/probe.md").read_text()


def test_a_probe_with_a_failed_run_decides_nothing(rlrun, tmp_path, monkeypatch):
    def run_jobs(composer, common, given, path, command, *, quiet):
        states = ["failed", *["done"] * (len(given) - 1)]
        return [read_run(forge(tmp_path / str(i), status=state)) for i, state in enumerate(states)]

    monkeypatch.setattr("rlrun.cli.probe.run_jobs", run_jobs)
    done = rlrun("probe", "env=bandit", "probe.dir=p", "-q")
    assert done.code == 1
    assert "has no score (failed)" in done.err
    assert done.out == ""
