"""The replay benchmark measures what it says, and says what it could not measure."""

import json
import math

import numpy as np
import pytest

from tests.benchmarks import cliffwalk, replay, replay_ours, replay_own
from tests.benchmarks.product import SumTree
from tests.benchmarks.replay_client import Effort, Peer, compare, open_peers, rounds
from tests.benchmarks.replay_ours import EPISODE, KINDS, PERIOD, Bare, Stream, filled
from tests.benchmarks.replay_sections import Sizes
from tests.benchmarks.replay_table import markdown, read_rows
from tests.benchmarks.timing import Row, Timing, make_row, write_rows

QUICK = Effort(repeats=2, seconds=0.001)
ROWS = {"vectors": 4096, "images": 512, "sequences": 8192}


@pytest.mark.parametrize("kind", ROWS)
def test_chunks_of_a_stream_are_parts_of_one_whole(kind):
    stream = Stream(KINDS[kind])
    whole, parts = stream.chunk(0, 40), [stream.chunk(0, 16), stream.chunk(16, 24)]
    for name in ("action", "reward", "terminated", "truncated", "valid"):
        joined = np.concatenate([getattr(p, name) for p in parts])
        assert np.array_equal(joined, getattr(whole, name))
    assert np.array_equal(parts[0].obs[-1], parts[1].obs[0])
    assert np.array_equal(parts[1].obs, whole.obs[16:])
    row, column = stream.locate(whole.obs)
    assert (row == np.arange(41)[:, None]).all()
    assert (column == np.arange(16)).all()


def test_streams_have_episodes_with_end_rows():
    s = Stream(KINDS["vectors"]).chunk(0, 3 * PERIOD)
    assert (s.first[1:] == ~s.valid).all()  # behind an end row, nowhere else
    ends = s.terminated | s.truncated
    assert (ends[:-1] == ~s.valid[1:]).all()
    first = s.first[:, 0].nonzero()[0]
    assert (np.diff(first)[1:] == EPISODE + 1).all()
    assert s.terminated.any()
    assert s.truncated.any()


@pytest.mark.parametrize("kind", ROWS)
def test_a_bare_gather_holds_what_the_sample_holds(kind, monkeypatch):
    full = filled(kind, ROWS[kind])
    monkeypatch.setattr(replay_ours, "COLD", 64)
    bare, wide = Bare(full, 32), Bare(full, 32, apart=True)
    sample = full.sample(32)
    s, out = sample.segment, bare.take(*bare.place(sample))
    assert s.obs.dtype == full.replay.sample(1, 0).segment.obs.dtype
    assert np.array_equal(out["obs"], s.obs)
    valid = s.valid.numpy()
    assert valid.any()
    for name in ("action", "reward"):
        assert np.array_equal(out[name][valid], getattr(s, name).numpy()[valid])
    flags = wide.take(*wide.place(sample))
    for bit, name in enumerate(replay_ours.FLAGS):
        wanted = getattr(s, name)[: len(valid)].numpy()[valid]
        assert np.array_equal(flags[name][valid], wanted)
        assert np.array_equal(out["flags"][valid] >> bit & 1, wanted)
    assert not np.array_equal(bare.gather()["obs"].copy(), bare.gather()["obs"])


def test_batches_that_are_added_go_on_where_the_rows_ended():
    full = filled("vectors", ROWS["vectors"])
    before = len(full.replay)
    batches = full.batches()
    for _ in range(PERIOD + 3):  # once around and on
        full.replay.add(next(batches))
    full.replay.check()
    assert abs(len(full.replay) - before) < before / 50


def test_every_round_begins_with_another_side():
    order = []

    def side(name):
        return lambda: order.append(name) or Timing(1.0, 1.0)

    rounds({n: side(n) for n in "abc"}, 3)
    assert "".join(order) == "abcbcacab"


def test_lists_are_served_and_compared():
    with open_peers(("list", "namedtuple"), None, "vectors", 1024) as peers:
        assert all(isinstance(p, Peer) for p in peers.values())
        rows = compare("x", {}, lambda: None, peers, "sample", 8, QUICK, target=1e9)
    assert [r.against.split()[0] for r in rows] == ["list", "namedtuple"]
    assert all(r.ratio > 1 and r.met is False and len(r.spread) == 2 for r in rows)


def test_a_failing_peer_gives_its_reason(tmp_path):
    python = tmp_path / "torchrl" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    with open_peers(("cpprb", "tianshou"), tmp_path, "vectors", 1024) as peers:
        assert peers == {"cpprb": "failed (exit 3): no such module", "tianshou": "not installed"}


def test_a_peer_that_is_missing_fails_the_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replay, "Sizes", lambda: Sizes(sequences=ROWS["sequences"]))
    out = tmp_path / "rows.json"
    assert replay.main(["sequences", "--repeats", "1", "--out", str(out)]) == 1
    rows = [r for r in read_rows(out) if r.name == "sequences, sample"]
    assert {r.against: r.missing for r in rows} == dict.fromkeys(
        ("cpprb", "torchrl", "tianshou", "di-engine"), "not installed"
    )
    capsys.readouterr()
    assert replay.main(["--table", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.count("not installed") == 2 * 5  # four cells and the verdict
    assert "|  | not installed" not in text.replace("not installed |  |", "")


def test_without_a_target_a_missing_peer_fails_too(monkeypatch):
    row = make_row("x", {}, "list", "ms", [1.0], [], kind="speedup", missing="not installed")
    monkeypatch.setattr(replay, "measure", lambda *_: [row])
    assert replay.main([]) == 1
    row.missing, row.other, row.ratio = "", 2.0, 2.0
    assert replay.main([]) == 0


def test_an_unknown_section_is_refused(capsys):
    with pytest.raises(SystemExit) as e:
        replay.main(["vector"])
    assert e.value.code == 2
    assert "unknown section vector" in capsys.readouterr().err


def test_the_fastest_peer_decides(tmp_path):
    def against(who: str, other: float) -> Row:
        fields = {"kind": "speedup", "target": 1.5, "note": "a note"}
        return make_row("sample", {"batch": 32}, who, "ms", [0.02], [other], **fields)

    fact = make_row("nodes", {}, "10 rows", "nodes", [20.0], [20.0], kind="cost", target=1.0)
    rows = [against("cpprb 11.0.0", 0.05), against("tianshou 2.0.1", 0.026), fact]
    write_rows(rows, tmp_path / "rows.json")
    lines = markdown(read_rows(tmp_path / "rows.json")).splitlines()
    assert "cpprb 11.0.0 | tianshou 2.0.1" in lines[0]
    assert lines[2] == "| sample (batch 32), µs | 20 | 50 | 26 | 1.30 (1.30-1.30) | ≥ 1.5, missed |"
    assert "| nodes, nodes | 20 | 20 (10 rows) | 1.00 (1.00-1.00) | ≤ 1, met |" in lines
    assert lines[-1] == "Sample: a note."


def test_memory_of_a_row_is_measured(capsys):
    assert replay_own.main(["vectors", "65536", "4096"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert 20 < facts["nbytes"] < 400
    assert abs(facts["growth_per_million"]) < 1e9


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 100, 1000, 4097])
def test_a_search_visits_as_many_nodes_as_the_logarithm(count):
    tree, g = SumTree(count), np.random.default_rng(count)
    tree.set(np.arange(count), g.integers(1, 9, count).astype(np.float64))  # sums are exact
    mass = g.integers(0, int(tree.root), 20) + 0.5
    visits, found = zip(*(naive_descent(tree, m) for m in mass), strict=True)
    assert np.array_equal(found, tree.find(mass))
    assert set(visits) == {tree.depth} == {math.ceil(math.log2(count))}


def naive_descent(tree: SumTree, mass: float) -> tuple[int, int]:
    """(nodes visited below the root, leaf): halves of the leaves, summed anew at every node."""
    low, high, visits = 0, tree.leaves, 0
    while high - low > 1:
        middle = (low + high) // 2
        left = float(tree.get(np.arange(low, middle)).sum())
        visits += 1
        if mass >= left:
            mass, low = mass - left, middle
        else:
            high = middle
    return visits, low


def test_the_walk_holds_every_sequence_of_actions():
    walk = cliffwalk.make_walk(3, 0)
    s = walk.segment
    assert walk.transitions == 2**4 - 2
    assert int(s.reward.sum()) == 1
    assert int((~s.valid).sum()) == int(s.terminated.sum()) == 2**3
    right = s.action == s.obs[:-1] % 2
    assert (right | s.terminated)[s.valid].all()  # a wrong action ends it
    assert np.bincount(s.obs[:-1][s.valid].numpy()).tolist() == [8, 4, 2]
    assert np.allclose(walk.truth, [[4 / 9, 0], [0, 2 / 3], [1, 0]])


def test_learning_is_q_learning():
    walk, delta = cliffwalk.make_walk(4, 1), np.empty(2000)
    sample = cliffwalk.make_memory(walk, "uniform", 0).sample(2000, 0)
    fields = cliffwalk.transitions(sample)
    q, wanted = walk.start.copy(), walk.start.copy()
    done = cliffwalk.learn(q, walk.truth, *fields, walk.gamma, delta)
    assert 0 < done < 2000
    for i, (s, a, r, after, end) in enumerate(zip(*fields, strict=True), start=1):
        assert np.mean((wanted - walk.truth) ** 2) >= 1e-3
        error = r + (0 if end else 0.75 * wanted[after].max()) - wanted[s, a]
        wanted[s, a] += error / 4
        assert delta[i - 1] == pytest.approx(error)
        if i == done:
            break
    assert np.allclose(q, wanted)
    assert np.mean((wanted - walk.truth) ** 2) < 1e-3


def test_prioritized_replay_needs_fewer_updates():
    rows = cliffwalk.measure(states=7, seeds=3)
    assert [r.name for r in rows] == ["cliffwalk, proportional", "cliffwalk, rank"]
    assert all(r.met and r.ratio == r.ours / r.other for r in rows)
