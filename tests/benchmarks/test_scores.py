"""The score table: its statistics by hand, its bounds, going on after an interruption, skips."""

import contextlib
import io
import itertools
import json
import re
import sys
import threading

import numpy as np
import pytest

from rlrun.cli.main import main
from rlrun.config import Composer, read_composed
from tests.benchmarks import score_row, scores
from tests.benchmarks.iqm import interval, iqm
from tests.benchmarks.process import CHECKOUT
from tests.benchmarks.score_row import EXTRAS, Bound, Row, bound_of, missing
from tests.benchmarks.score_table import BEGIN, END, insert, markdown, read


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], 7),
        ([1, 2], 1.5),
        ([1, 2, 6], 3),
        ([9, 1, 2, -50], 1.5),
        ([3, 1, 100, 2, 4], 3),
        ([1, 2, 3, 4, 5, 6, 7, 80], 4.5),
    ],
)
def test_iqm_by_hand(values, expected):
    assert iqm(np.array(values, float)) == expected


def test_interval_by_hand():
    """Of 0 and 1 a quarter of the resamples has mean 0, a quarter mean 1: the interval is both."""
    assert interval([[0, 1]]) == (0, 1)
    assert interval([[0, 1]], level=0.4) == (0.5, 0.5)
    assert interval([[3, 3, 3, 3, 3]]) == (3, 3)
    assert interval([[5]]) == (5, 5)


def test_interval_against_all_resamples():
    """5 scores: 3125 resamples, their IQMs' quantiles."""
    values = [480.0, 500.0, 430.0, 495.0, 471.0]
    every = [float(iqm(np.array(r))) for r in itertools.product(values, repeat=5)]
    low, high = interval([values], level=0.9)
    assert low == pytest.approx(np.quantile(every, 0.05), abs=1.5)
    assert high == pytest.approx(np.quantile(every, 0.95), abs=1.5)
    assert interval([values]) == interval([values])


def test_strata_are_resampled_by_themselves():
    """Two tasks, each the same for all seeds: nothing can change, pooled scores would."""
    assert interval([[0, 0], [1, 1]]) == (0.5, 0.5)
    pooled = interval([[0, 0, 1, 1]])
    assert pooled[0] < 0.5 < pooled[1]


def test_bounds():
    assert bound_of(">= 475 in 50k") == Bound(">=", 475.0)
    assert bound_of("<= -0.5, 3 s") == Bound("<=", -0.5)
    assert bound_of(">= 0.9 x peer_row") == Bound(">=", other="peer_row", factor=0.9)
    assert bound_of(">= behaviour - 20") == Bound(">=", other="behaviour", offset=-20.0)
    assert bound_of("reported") is bound_of("about -0.49") is None
    assert bound_of("== 7") == Bound("==", 7.0)
    assert Bound("==", 7.0).met(7.0, {}.get)
    assert not Bound("==", 7.0).met(8.0, {}.get)
    assert Bound(">=", 475.0).met(475.0, {}.get)
    assert not Bound("<=", 7.0).met(7.5, {}.get)
    relative = Bound(">=", other="b", factor=0.9, offset=-1)
    assert relative.met(89, {"b": 100.0}.get)
    assert not relative.met(88.9, {"b": 100.0}.get)
    assert relative.met(89, {}.get) is None


def test_rows_of_the_issue_are_all_there():
    """(command, threshold), as fixed before any run."""
    wanted = {
        "dqn qrdqn iqn cartpole 50000": 475, "c51 rainbow cartpole 100000": 475,
        "dqn qrdqn acrobot 100000": -90, "ppo cartpole 100000": 475,
        "ppo lunarlander 1000000": 200, "sac lunarlander_continuous 300000": 220,
        "a2c impala cartpole 500000": 450,
        "ppo cartpole_novel 200000": 450, "sac td3 ddpg pendulum 20000": -200,
    }  # fmt: skip
    for line, least in wanted.items():
        *policies, env, steps = line.split()
        for policy in policies:
            match = [
                r for r in scores.ROWS.values()
                if re.match(rf"policy={policy} .*env={env}$", r.overrides) and not r.prepare
            ]  # fmt: skip
            (row,) = (r for r in match if bound_of(r.threshold) == Bound(">=", float(least)))
            assert row.steps == int(steps), row
    for row in scores.ROWS.values():
        bound = bound_of(row.threshold)
        assert row.seeds == 5
        if bound is not None and bound.other != "behaviour":
            assert bound.value is not None or bound.other in scores.ROWS


def test_known_commands_compose():
    """Those of policies and environments that are in this tree."""
    composer, seen = Composer(), 0
    groups = {g: composer.options(g) for g in composer.groups()}
    for row in scores.ROWS.values():
        if row.peer:
            assert (CHECKOUT / "tests/benchmarks/peers").is_dir()
            continue
        words = row.command.format(work="w", seed=0).split()[1:]
        chosen = [w.split("=") for w in words if w.partition("=")[0] in groups]
        if all(option in groups[group] for group, option in chosen):
            read_composed(composer.compose(composer.rewrite(words)))
            seen += 1
    assert seen >= 15


TINY = Row("policy=random env=bandit debug=smoke", ">= 0.2", steps=150, seeds=2, episodes=4)


@pytest.fixture
def in_process(monkeypatch):
    """Commands that succeed are run in this process: torch is imported once."""
    real = score_row._call

    def call(words):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main(words[1:])
        return out.getvalue() if code == 0 else real(words)

    monkeypatch.setattr(score_row, "_call", call)


@pytest.fixture
def table(monkeypatch, tmp_path, in_process):
    rows = {
        "tiny": TINY,
        "bad": Row("policy=random env=bandit buffer.capacity=x", ">= 1", seeds=1),
        "absent": Row("policy=random env=bandit", ">= 1", needs="atari"),
        "peer": Row("script.py {seed}", "the peer", peer="sb3"),
    }
    monkeypatch.setattr(scores, "ROWS", rows)
    monkeypatch.setitem(EXTRAS, "atari", "no_such_module")
    return tmp_path / "new/scores.jsonl"


def test_a_table_goes_on_where_it_stopped(table, capsys):
    assert scores.main(["--out", str(table)]) == 1
    first = read(table)
    runs = [r for r in first if r["row"] == "tiny"]
    assert sorted(r["seed"] for r in runs) == [0, 1]
    for r in runs:
        assert r["status"] == "done"
        assert r["env_steps"] >= 150
        assert r["wall_seconds"] > 0
        assert r["commit"]
        assert "cores" in r["machine"]
        assert 0 <= r["score"] <= 1
    (bad,) = (r for r in first if r["row"] == "bad")
    assert bad["status"] == "failed"
    assert bad["why"].startswith("exit 2: rlrun: error: buffer.capacity = x: ")
    skipped = {r["row"]: r["why"] for r in first if r["status"] == "skipped"}
    assert "pip install '.[atari]'" in skipped["absent"]
    assert "--peers DIR" in skipped["peer"]
    out = capsys.readouterr().out
    assert "| skipped: needs no_such_module: pip install '.[atari]' |" in out
    assert "| failed: exit 2" in out
    kept = [r for r in first if not (r["row"] == "tiny" and r["seed"] == 1)]
    text = "".join(json.dumps(r) + "\n" for r in kept)
    table.write_text(text + '{"row": "tiny", "se')  # the power went here
    assert scores.main(["--out", str(table), "--rows", "tiny"]) == 0
    again = read(table)
    assert again[: len(kept)] == kept
    (new,) = again[len(kept) :]
    (old,) = (r for r in runs if r["seed"] == 1)
    assert (new["row"], new["seed"], new["score"]) == ("tiny", 1, old["score"])
    assert new["digest"] == old["digest"]
    assert scores.main(["--out", str(table), "--rows", "tiny"]) == 0
    assert read(table) == again, "nothing was left to do"


def result(row, seed, score, **more):
    command = ROWS[row].command
    facts = {"commit": "abc", "machine": "m", "env_steps": 50_048, "wall_seconds": 12.0}
    return {"row": row, "seed": seed, "command": command, "status": "done", "score": score,
            **facts, **more}  # fmt: skip


ROWS = {
    "ours": Row("policy=a", ">= 0.9 x theirs", steps=50_000),
    "theirs": Row("x.py {seed}", "the peer", peer="sb3"),
    "bc": Row("policy=bc", ">= behaviour - 20", seeds=1),
    "none": Row("policy=b", ">= 1"),
}


def test_table():
    lines = [result("ours", s, x) for s, x in enumerate([100, 480, 490, 500, 470])]
    lines += [result("ours", 0, 7.0, command="rlrun policy=a run.total_steps=9")]  # another command
    lines += [result("theirs", s, 500.0, wall_seconds=30) for s in range(5)]
    lines += [result("bc", 0, -150.0, behaviour=-140.0)]
    out = markdown(ROWS, lines).splitlines()
    assert out[2].startswith("| `rlrun policy=a run.total_steps=50000` | >= 0.9 x theirs | 480 (")
    assert out[2].endswith("| yes | 100 480 490 500 470 | 50k | 12 to 12 |")
    assert "| 500 (500 to 500) |  | 500 500 500 500 500 | 50k | 30 to 30 |" in out[3]
    assert "| yes |" in out[4]
    assert out[5] == "| `rlrun policy=b` | >= 1 | not run yet |  |  |  |  |"
    assert out[7] == "Commits: abc. Machine: m, one thread a run."
    alone = [dict(r, alone=r["row"] == "bc") for r in lines]
    end = "one thread a run (as many as their config says: bc seed 0)."
    assert markdown(ROWS, alone).splitlines()[7].endswith(end)
    low = [dict(r, score=r["score"] - 40) if r["row"] == "ours" else r for r in lines]
    assert "| **no** |" in markdown(ROWS, low).splitlines()[2]
    assert "| no theirs yet |" in markdown(ROWS, lines[:5]).splitlines()[2]
    assert "| no theirs yet |" in markdown({"ours": ROWS["ours"]}, lines).splitlines()[2]
    assert "| yes, 3 of 5 seeds |" in markdown(ROWS, lines[2:5] + lines[6:11]).splitlines()[2]


def test_jobs_are_run_side_by_side(table, monkeypatch):
    """Four seeds meet at a barrier of four; every result is a line of its own."""
    barrier = threading.Barrier(4, timeout=20)

    def run_seed(row, seed, work, peers, *, alone):
        assert not alone
        barrier.wait()
        return {"seed": seed, "command": row.command, "status": "failed", "why": "x" * 5000}

    monkeypatch.setattr(scores, "run_seed", run_seed)
    line = ["--out", str(table), "--rows", "tiny", "--seeds", "4", "--jobs", "4"]
    assert scores.main(line) == 1
    assert sorted(r["seed"] for r in read(table)) == [0, 1, 2, 3]


@pytest.mark.parametrize("alone", [True, False])
def test_only_runs_side_by_side_are_kept_to_one_thread(tmp_path, monkeypatch, alone):
    called = []

    def call(words):
        called.append(words)
        raise score_row.Failed("enough")

    monkeypatch.setattr(score_row, "_call", call)
    score_row.run_seed(TINY, 0, tmp_path / "work", None, alone=alone)
    assert (called[0][-1] == "learner.threads=1") != alone


def test_table_goes_between_the_markers():
    text = f"a\n{BEGIN}old\n{END}b\n"
    assert insert(text, "| new |\n") == f"a\n{BEGIN}| new |\n{END}b\n"
    with pytest.raises(AssertionError, match="markers"):
        insert("a\n", "b")
    assert BEGIN in (CHECKOUT / "tests/benchmarks/TABLES.md").read_text("utf-8")


def test_prepare_makes_data_and_scores_the_behaviour(tmp_path, in_process):
    row = Row(
        "policy=random env=bandit debug=smoke", ">= behaviour - 1", episodes=4,
        prepare=(
            "rlrun policy=dqn env=bandit debug=smoke seed={seed} run.dir={work}/behaviour -q",
            "rlrun export {work}/behaviour {work}/data",
        ),
    )  # fmt: skip
    found = score_row.run_seed(row, 3, tmp_path / "work", None)
    assert found["status"] == "done", found
    assert 0 <= found["behaviour"] <= 1
    assert (tmp_path / "work/data/dataset.json").is_file()


def test_a_peer_is_run_in_its_environment(tmp_path, monkeypatch):
    (tmp_path / "peers/sb3/bin").mkdir(parents=True)
    (tmp_path / "peers/sb3/bin/python").symlink_to(sys.executable)
    script = 'import json, sys; print(json.dumps({"score": float(sys.argv[1]), "env_steps": 9}))'
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/x.py").write_text(script)
    monkeypatch.setattr(score_row.process, "SCRIPTS", tmp_path / "scripts")
    row = ROWS["theirs"]
    assert missing(row, tmp_path / "peers") == ""
    found = score_row.run_seed(row, 4, tmp_path / "work", tmp_path / "peers")
    assert (found["status"], found["score"], found["env_steps"]) == ("done", 4.0, 9)
