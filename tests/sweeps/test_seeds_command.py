"""``rlrun -m … seeds=auto``: what is refused, which jobs are run, how it goes on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlrun.errors import Interrupted
from rlrun.sweeps.record import JobRecord, SweepRecord, is_sweep
from tests.in_process import assert_one_error
from tests.sweeps.fakes import forge_run

MEANS = {"dqn": 0.0, "random": 50.0, "ppo": 0.0}


class Sweeps:
    """A stand-in for ``start_sweep``: ``calls`` are the overrides of the jobs of each call.

    Every job scores what ``MEANS`` says, plus its seed / 10. ``ends``: call -> what it raises;
    ``failing``: calls whose jobs fail.
    """

    def __init__(self):
        self.calls: list[list[list[str]]] = []
        self.ends: dict[int, BaseException] = {}
        self.failing: set[int] = set()
        self.plans: list[dict[str, Any]] = []  # seeds.json before the jobs of each call

    def __call__(self, line, *, jobs, begin):
        path = Path(line.sweep_dir)
        path.mkdir(exist_ok=True)
        begin(path)
        self.plans.append(json.loads((path / "seeds.json").read_text()))
        record = SweepRecord.read(path) if is_sweep(path) else SweepRecord([])
        known = [job.overrides for job in record.jobs]
        new = [list(job) for job in jobs if list(job) not in known]
        self.calls.append(new)
        for job in new:
            given = dict(word.split("=") for word in job)
            num, done = len(record.jobs), len(self.calls) not in self.failing
            mean = MEANS[given["policy"]] + int(given["seed"]) / 10
            forge_run(path / str(num), mean, {}, done=done)
            record.jobs.append(JobRecord(num, str(num), job, "done" if done else "failed", 0))
        record.write(path)
        if end := self.ends.get(len(self.calls)):
            raise end
        return path, record


@pytest.fixture
def sweeps(monkeypatch):
    made = Sweeps()
    monkeypatch.setattr("rlrun.cli.sweep.start_sweep", made)
    return made


AUTO = ("-m", "policy=dqn,random,ppo", "env=bandit", "seed=3", "seeds=auto", "sweep.dir=auto")


def seeds_of(calls, policy):
    jobs = [job for call in calls for job in call if f"policy={policy}" in job]
    return [int(word.partition("=")[2]) for job in jobs for word in job if word.startswith("seed=")]


def test_until_it_is_decided(rlrun, sweeps):
    done = rlrun(*AUTO, "seeds.max=12", "seeds.level=0.1")
    assert done.code == 0, done.err
    assert seeds_of(sweeps.calls, "dqn") == [*range(3, 15)]
    assert len(seeds_of(sweeps.calls, "random")) < 12, "decided earlier"
    assert re.search("policy=random .* policy=dqn", done.out)
    result = json.loads(Path("auto/seeds.json").read_text())
    assert result["settings"] == ["policy=dqn", "policy=random", "policy=ppo"]
    assert result["status"] == "budget spent"
    assert result["level"] == 0.1
    assert result["scores"][1][:2] == [50.3, 50.4]


def test_interrupted_then_typed_again(rlrun, sweeps):
    stopped = Interrupted("interrupted: 9 of 30 jobs are done; go on: rlrun resume auto")
    stopped.exit_code = 75
    sweeps.ends[2] = stopped
    cut = rlrun(*AUTO)
    assert cut.code == 75
    assert "rlrun -m policy=dqn,random,ppo" in cut.err
    assert f"seeds=auto seeds.max=20 seeds.group=5 seeds.level=0.05 seeds.objective=final " \
           f"sweep.dir={Path('auto').absolute()}" in cut.err  # fmt: skip
    assert rlrun(*AUTO).code == 0
    assert seeds_of(sweeps.calls, "dqn") == [*range(3, 23)], "each once"


def test_a_failed_job_decides_nothing(rlrun, sweeps):
    sweeps.failing.add(1)
    done = rlrun(*AUTO)
    assert done.code == 1
    found = json.loads(Path("auto/seeds.json").read_text())
    assert found["status"] == "undecided so far"
    assert {one["better"] for one in found["comparisons"]} == {None}


def test_the_plan_and_each_look_are_recorded_while_it_runs(rlrun, sweeps):
    assert rlrun(*AUTO).code == 0
    first, second = sweeps.plans[:2]
    assert first["status"] == second["status"] == "undecided so far"
    assert (first["looks"], first["scores"], first["seed"]) == (0, [[], [], []], 3)
    assert (first["max"], first["group"], first["level"]) == (20, 5, 0.05)
    assert [one["settings"] for one in first["comparisons"]] == [[0, 1], [0, 2], [1, 2]]
    assert {one["better"] for one in first["comparisons"]} == {None}
    assert (second["looks"], [len(scores) for scores in second["scores"]]) == (1, [5, 5, 5])


def test_another_plan_in_its_directory_is_refused(rlrun, sweeps):
    assert rlrun(*AUTO, "seeds.max=5").code == 0
    before, calls = Path("auto/seeds.json").read_bytes(), len(sweeps.calls)
    assert_one_error(rlrun(*AUTO, "seeds.max=60"), "seeds.max = 60")
    assert Path("auto/seeds.json").read_bytes() == before
    Path("auto/seeds.json").write_text("{")
    assert_one_error(rlrun(*AUTO, "seeds.max=5"))
    assert len(sweeps.calls) == calls
    assert rlrun(*AUTO, "-q", "seeds.max=5", "sweep.dir=other").out == ""
