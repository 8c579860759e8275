"""The replay benchmark measures what it says."""

import json

import numpy as np

from tests.benchmarks.replay import KINDS, PERIOD, Stream, compare, filled, open_peers


def test_batches_go_on_where_the_stored_rows_ended():
    stream = Stream(KINDS["vectors"])
    whole, part = stream.chunk(0, 40), stream.chunk(16, 24)
    assert np.array_equal(part.obs, whole.obs[16:])
    assert (whole.first[1:] == ~whole.valid).all()  # behind an end row, nowhere else
    full = filled("vectors", 4096)
    before, batches = len(full.replay), full.batches()
    for _ in range(PERIOD + 3):  # once around and on
        full.replay.add(next(batches))
    full.replay.check()
    assert abs(len(full.replay) - before) < before / 50


def test_peers_are_served_and_compared_or_say_why_not(tmp_path):
    python = tmp_path / "sb3" / "bin" / "python"
    python.parent.mkdir(parents=True)
    facts, timing = {"version": "1.0", "bytes_per_row": 2.0}, {"wall": 9.0, "cpu": 9.0}
    loop = f"echo '{json.dumps(facts)}'; while read line; do echo '{json.dumps(timing)}'; done"
    python.write_text(f"#!/bin/sh\n{loop}\n")
    python.chmod(0o755)
    names = {"fake": "sb3", "cpprb": "torchrl"}
    with open_peers(names, tmp_path, "vectors", 1024) as peers:
        rows = compare("x", {}, lambda: None, peers, "sample", 8, (2, 0.001), target=1e9)
    assert [(r.against, r.missing) for r in rows] == [("fake 1.0", ""), ("cpprb", "not installed")]
    assert (rows[0].other, [r.met for r in rows]) == (9000.0, [False, False])
    assert rows[0].ratio > 1
