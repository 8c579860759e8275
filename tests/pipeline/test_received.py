"""Rows of other processes are compared once with those of the run, before they are indexed by.

Private: only a process that is not rlrun's sends such rows.
"""

from dataclasses import replace

import numpy as np
import pytest

from rlrun.errors import CheckpointError
from rlrun.pipeline.overlapped import RowCheck
from rlrun.run import build
from rlrun.run.plan import make_plan
from rlrun.spaces import tree_map
from rlrun.types import CHUNK_FIELDS, Chunk, Counters
from tests.compose import config


@pytest.fixture(scope="module")
def received():
    """(check, a chunk that it accepts) of CartPole."""
    plan = make_plan(config("debug=smoke", "policy=dqn", "env=cartpole"))
    collector = build.make_collector(plan, Counters())
    chunk = collector.collect_rows()
    arrays = {name: tree_map(np.array, getattr(chunk, name)) for name in CHUNK_FIELDS}
    collector.env.close()
    return RowCheck(plan.row, plan.columns), Chunk(**arrays)


def put(x, value, at=(1, 0)):
    found = np.array(x)
    found[at] = value
    return found


CHANGES = {  # what differs, the field that is named
    "an action that is none": (lambda c: {"action": put(c.action, 2)}, "action .*2"),
    "a huge action": (lambda c: {"action": put(c.action, 10**15)}, "row 1 of column 0: .*action"),
    "a negative one": (lambda c: {"action": put(c.action, -1)}, "action .*-1"),
    "an extra of one row less": (lambda c: {"extras": {"x": c.reward[:-1]}}, "extra"),
    "an extra of one column": (lambda c: {"extras": {"x": c.reward[:, :1]}}, "extra"),
    "an extra that is no array": (lambda c: {"extras": {"x": 3}}, ""),
    "another dtype": (lambda c: {"action": c.action.astype(np.float32)}, "action = float32"),
    "one row less": (lambda c: {"action": c.action[:-1]}, "action = int64"),
    "one column less": (lambda c: {"valid": c.valid[:, :-1]}, "valid = bool"),
    "flags of bytes": (lambda c: {"first": c.first.astype(np.uint8)}, "first = uint8"),
    "a dict": (lambda c: {"obs": {"x": c.obs}}, ""),
    "no array": (lambda c: {"action": None}, ""),
    "NaN": (lambda c: {"obs": put(c.obs, np.nan)}, "observation .*nan"),
    "an infinite reward": (lambda c: {"reward": put(c.reward, np.inf)}, "reward"),
    "both flags": (
        lambda c: {"terminated": put(c.terminated, True), "truncated": put(c.truncated, True)},
        "terminated .*truncated",
    ),
}


def test_rows_of_the_run_pass(received):
    check, chunk = received
    assert check(chunk, "x") is chunk


@pytest.mark.parametrize("what", CHANGES)
def test_rows_that_are_none_of_the_run_are_refused(received, what):
    check, chunk = received
    change, text = CHANGES[what]
    with pytest.raises(CheckpointError, match=f"collector 3: .*({text})"):
        check(replace(chunk, **change(chunk)), "pipeline = ray: collector 3")
