"""``rlrun bench memory`` and ``rlrun probe``: what they run, print and refuse."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlrun.config import read_composed
from rlrun.env import probe
from rlrun.reports.memory_bench import BenchSetting, bench_table
from rlrun.reports.runs import read_run
from rlrun.sweeps.record import JobRecord, SweepRecord
from tests.env.presets import preset
from tests.in_process import assert_one_error, files_under
from tests.reports.forge import forge

CONF = Path(__file__).parents[2] / "conf"
TASKS = yaml.safe_load((CONF / "bench_tasks.yaml").read_text())
ONE = ("bench.algorithms=[ppo]", "bench.cells=[gru]", "bench.seeds=1")


def test_mmer_and_steps_to_90_percent_by_hand(tmp_path):
    fast = [
        forge(tmp_path / f"f{i}", seed=i, returns=returns, run__stop_return=None)
        for i, returns in enumerate([(0.0, 1.0, 0.5), (0.0, 0.8, 0.9), (0.2, 0.1, 0.8)])
    ]
    slow = [
        forge(tmp_path / "s0", seed=0, returns=(0.1, 0.2, 0.3)),
        forge(tmp_path / "s1", seed=1, returns=(0.1, 0.9), status="failed"),
    ]
    for path, shares in zip(fast, [(0.1, 0.4), (0.3,), ()], strict=True):
        records = [{"env_steps": 1000, "collect/return_mean": share} for share in shares]
        with (path / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    settings = [
        BenchSetting("walk", name, "gru", -0.5, [read_run(path) for path in paths])
        for name, paths in (("slow", slow), ("fast", fast))
    ]
    table = bench_table(settings, {"walk": {"PPO": 0.7}})
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == ["fast", "slow", "(PPO)"], "best first, published last"
    assert rows["fast"]["MMER"] == pytest.approx((1.0 + 0.9 + 0.8) / 3)
    assert rows["fast"]["in training"] == pytest.approx((0.4 + 0.3) / 2), "without one: no epoch"
    assert math.isnan(rows["slow"]["in training"])
    assert rows["fast"]["score"].value == pytest.approx((0.5 + 0.9 + 0.8) / 3)
    # 90 % of the way from -0.5 to 0.9 is 0.76: reached at 666, 666 and 1000 env steps
    assert rows["fast"]["steps to 90 %"] == 666
    assert rows["fast"]["seconds to 90 %"] == pytest.approx(6.66)
    assert rows["fast"]["runs"] == "3 of 3"
    assert rows["slow"]["MMER"] == pytest.approx(0.3), "a failed run is in no mean"
    assert rows["slow"]["steps to 90 %"] == float("inf"), "but counts as never"
    assert rows["slow"]["runs"] == "1 of 2; failed"
    assert (rows["(PPO)"]["MMER"], rows["(PPO)"]["runs"]) == (0.7, "elsewhere")


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
    assert (first.run.total_steps, first.run.eval_every, first.run.stop_return) == (600, 200, None)
    assert first.env.eval_kwargs == {"balanced": True, "length": 100}
    assert last.env.kwargs == {"k": 64, "decks": 3, "full_state": False}
    assert last.env.reward_scale == 23
    assert "(PPO" in done.out
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


def test_a_bench_that_goes_on_shows_what_earlier_commands_ran(rlrun, build):
    one = ("bench", "memory", "bench.algorithms=[ppo]", "bench.seeds=2", "bench.steps=600",
           "bench.evaluations=3", "bench.dir=b", "-q")  # fmt: skip
    rlrun(*one, "bench.cells=[gru]", "bench.tasks=[tmaze_10]")
    rlrun(*one, "bench.cells=[lru]", "bench.tasks=[tmaze_100]", "policy.gae_lambda=0.5", "seed=7")
    configs = [call[1][0] for call in build.calls[2:]]
    assert [(c.seed, c.policy.gae_lambda) for c in configs] == [(7, 0.5), (8, 0.5)]
    table = list(csv.DictReader(Path("b/bench.csv").read_text().splitlines()))
    found = {(row["task"], row["cell"]) for row in table}
    assert found == {("tmaze_10", "gru"), ("tmaze_100", "lru policy.gae_lambda=0.5")}
    assert len(Path("b/bench.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("begun", "words"),
    [("probe", ["bench", "memory", *ONE, "bench.dir=b"]),
     ("probe", ["probe", "env=identity", "probe.dir=b"]),
     ("bench", ["probe", "env=tmaze", "probe.dir=b"])],
)  # fmt: skip
def test_a_directory_of_something_else_is_refused(rlrun, begun, words):
    Path("b").mkdir()
    job = JobRecord(0, "0", ["env=tmaze", "run.total_steps=9", "policy=ppo", "seed=0"])
    SweepRecord([job], [["rlrun", begun, "env=tmaze"]]).write(Path("b"))
    before = files_under(Path())
    assert_one_error(rlrun(*words))
    assert files_under(Path()) == before


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


LOW, HIGH, MIXED = [0.0, 0.1, 0.2, 0.1, 0.05], [0.9, 1.0, 0.8, 0.95, 1.0], [0, 1, 0.1, 0.2, 0.1]
SAME = [1.0] * 5


@pytest.fixture
def probe_of(rlrun, tmp_path, monkeypatch):
    """``probe_of(scores, words)``: its end, where its agents have these scores; its jobs."""
    jobs = []

    def probe_of(scores, *words, status="done"):
        def run_jobs(line, given, command):
            Path(line.sweep_dir).mkdir()
            jobs.extend(given)
            flat = [score for agent in scores for score in agent]
            states = [status, *["done"] * len(given)]
            return [
                read_run(forge(tmp_path / str(i), returns=(0.0, flat[i]), status=states[i]))
                for i in range(len(given))
            ]

        monkeypatch.setattr("rlrun.cli.memory.run_jobs", run_jobs)
        return rlrun("probe", *words, "probe.dir=p"), jobs

    return probe_of


@pytest.mark.parametrize(
    ("scores", "needed"),
    [
        ([LOW, LOW, HIGH, HIGH], True),
        ([LOW, HIGH, LOW, HIGH], True),
        ([LOW, LOW, MIXED, HIGH], False),  # undecided
        ([HIGH, LOW, LOW, HIGH], False),  # worse is no need
        ([LOW, LOW, LOW, HIGH], False),
        ([SAME, SAME, SAME, SAME], False),
        ([[0.0] * 5, SAME, SAME, SAME], True),  # p alone decides
    ],
)
def test_the_verdict_of_a_probe(probe_of, scores, needed):
    """Memoryless, stacked, recurrent and with the full state."""
    done, jobs = probe_of(scores, "env=tmaze", "env.length=3", "--budget", "300")
    assert done.code == 0, done.err
    for text in (done.out, Path("p/probe.md").read_text()):
        assert ("needs memory" in text) == needed
    assert "1000 env steps" in done.out, "those that were run, not the budget"
    assert len(jobs) == 20
    for i, job in enumerate(jobs):
        budget = ("run.total_steps=300", "run.eval_every=300", "run.stop_return=null")
        assert {"env=tmaze", "env.kwargs.length=3", f"seed={i % 5}", *budget} <= {*job}


@pytest.mark.parametrize(
    ("words", "agents"),
    [
        ("env=tmaze", ["ppo/none/1", "ppo/none/4", "ppo/gru/1", "ppo/none/1 full"]),
        ("env=tmaze env.full_state=true", ["ppo/none/1", "ppo/none/4", "ppo/gru/1"]),
        ("env=identity", ["ppo/none/1", "ppo/none/4 flat", "ppo/gru/1"]),
        ("env=battleship", ["ppo/none/1", "ppo/gru/1"]),  # masked
        ("env=tracking", ["sac/none/1", "sac/none/4", "sac/lstm/1"]),  # policy=rsac
    ],
)
def test_the_agents_of_a_probe(probe_of, composer, words, agents):
    done, jobs = probe_of([LOW] * 4, *words.split(), "-q")
    assert done.code == 0, done.err
    found = {}
    for job in jobs[:: len(jobs) // len(agents)]:
        c = read_composed(composer.compose(composer.rewrite(job)))
        assert c.run.total_steps == c.run.eval_every == c.env.total_steps > 0
        full = c.env.kwargs.get("full_state") and "full_state=true" not in words
        name = f"{c.policy.name}/{c.memory.name}/{c.env.frame_stack}"
        found[name + " full" * bool(full) + " flat" * bool(c.env.wrappers)] = True
    assert [*found] == agents


def test_a_probe_with_a_failed_run_decides_nothing(probe_of):
    done, _ = probe_of([LOW] * 4, "env=bandit", "-q", status="failed")
    assert (done.code, done.out) == (1, "")
    assert "failed" in done.err
