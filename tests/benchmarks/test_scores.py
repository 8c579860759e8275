"""The score table: its statistics by hand, its bounds, going on after an interruption, skips."""

import json

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import runs, scores
from tests.benchmarks.scores import Bound, Row, bound_of, markdown

BOUNDS = {  # text -> bound, a score that keeps it, one that does not
    ">= 475 in 50k": (Bound(">=", 475.0), 475.0, 474.9),
    "<= -0.5, 3 s": (Bound("<=", -0.5), -0.5, -0.4),
    "== 7": (Bound("==", 7.0), 7.0, 8.0),
    ">= 0.9 x peer_row": (Bound(">=", other="peer_row", factor=0.9), 90.0, 89.9),
    ">= behaviour - 20": (Bound(">=", other="behaviour", offset=-20.0), 80.0, 79.9),
}


@pytest.mark.parametrize("text", BOUNDS)
def test_bounds(text):
    bound, kept, broken = BOUNDS[text]
    assert bound_of(text) == bound
    others = {"peer_row": 100.0, "behaviour": 100.0}
    assert (bound.met(kept, others.get), bound.met(broken, others.get)) == (True, False)
    assert bound.met(kept, {}.get) is (None if bound.other else True)


def test_thresholds_name_rows_that_are_there():
    for name, row in scores.ROWS.items():
        bound = bound_of(row.threshold)
        assert bound is None or bound.other in ("", "behaviour", *scores.ROWS), name
        assert row.seeds == 5


TINY = Row("policy=random env=bandit debug=smoke", ">= 0.2", steps=150, seeds=2, episodes=4)


@pytest.fixture
def table(monkeypatch, tmp_path):
    rows = {
        "tiny": TINY,
        "bad": Row("policy=random env=bandit buffer.capacity=x", ">= 1", seeds=1),
        "absent": Row("policy=random env=bandit", ">= 1", needs="atari"),
        "peer": Row("script.py {seed}", "the peer", peer="sb3"),
    }
    monkeypatch.setattr(scores, "ROWS", rows)
    monkeypatch.setitem(scores.EXTRAS, "atari", "no_such_module")
    monkeypatch.setattr(runs, "in_process", True)
    return tmp_path / "new/scores.jsonl"


def main(*words):
    return command.main(["scores", *map(str, words)])


def test_a_table_goes_on_where_it_stopped(table, capsys):
    assert main("--out", table) == 1
    first = scores.read(table)
    done = [r for r in first if r["row"] == "tiny"]
    assert [(r["seed"], r["status"]) for r in done] == [(0, "done"), (1, "done")]
    assert all(r["env_steps"] >= 150 and 0 <= r["score"] <= 1 and r["commit"] for r in done)
    (bad,) = (r for r in first if r["row"] == "bad")
    assert "exit 2" in bad["why"]
    assert "buffer.capacity = x" in bad["why"]
    skipped = {r["row"]: r["why"] for r in first if r["status"] == "skipped"}
    assert "pip install '.[atari]'" in skipped["absent"]
    assert "--peers DIR" in skipped["peer"]
    kept = [r for r in first if not (r["row"] == "tiny" and r["seed"] == 1)]
    text = "".join(json.dumps(r) + "\n" for r in kept)
    table.write_text(text + '{"row": "tiny", "se')  # the power went here
    assert main("--out", table, "--only", "tiny") == 0
    again = scores.read(table)
    assert again[: len(kept)] == kept
    (new,) = again[len(kept) :]
    assert (new["seed"], new["digest"]) == (1, done[1]["digest"])
    assert main("--out", table, "--only", "tiny") == 0
    assert scores.read(table) == again, "nothing was left to do"
    assert "| skipped: needs no_such_module" not in capsys.readouterr().out.splitlines()[-1]


ROWS = {
    "ours": Row("policy=a", ">= 0.9 x theirs", steps=50_000),
    "theirs": Row("x.py {seed}", "the peer", peer="sb3"),
    "bc": Row("policy=bc", ">= behaviour - 20", seeds=1),
    "none": Row("policy=b", ">= 1"),
}


def result(row, seed, score, **more):
    facts = {"commit": "abc", "machine": "m", "env_steps": 50_048, "wall_seconds": 12.0}
    facts |= {"row": row, "seed": seed, "command": ROWS[row].command, "status": "done"}
    return {**facts, "score": score, **more}


def test_table():
    lines = [result("ours", s, x) for s, x in enumerate([100, 480, 490, 500, 470])]
    lines += [result("ours", 0, 7.0, command="rlrun policy=a run.total_steps=9")]  # another command
    lines += [result("theirs", s, 500.0, wall_seconds=30) for s in range(5)]
    lines += [result("bc", 0, -150.0, behaviour=-140.0)]
    out = markdown(ROWS, lines).splitlines()
    assert out[2].startswith("| `policy=a run.total_steps=50000` | >= 0.9 x theirs | 480 (")
    assert out[2].endswith("| yes | 100 480 490 500 470 | 50k | 12 to 12 |")
    assert "| 500 (500 to 500) |  | 500 500 500 500 500 | 50k | 30 to 30 |" in out[3]
    assert "| yes |" in out[4]
    assert out[5] == "| `policy=b` | >= 1 | not run yet |  |  |  |  |"
    low = [dict(r, score=r["score"] - 40) if r["row"] == "ours" else r for r in lines]
    assert "| **no** |" in markdown(ROWS, low).splitlines()[2]
    assert "| no theirs yet |" in markdown(ROWS, lines[:5]).splitlines()[2]
    assert "| yes, 3 of 5 seeds |" in markdown(ROWS, lines[2:5] + lines[6:11]).splitlines()[2]


def test_the_published_table_is_that_of_the_committed_runs():
    made = markdown(scores.ROWS, scores.read(runs.HERE / "results" / "scores.jsonl"))
    assert made in (runs.HERE / "TABLES.md").read_text("utf-8")
    assert "not run yet" not in made
