"""Replay states whose hashes are right and whose numbers are not.

A kernel that read a row by such a number would read or write outside of its array.
"""

import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.buffer.rollout import Rollout
from rlrun.errors import CheckpointError, RlrunError
from rlrun.functional.recorded import RowSpaces
from rlrun.run.checkpoint import MISFITS
from rlrun.run.tensors import RingRows, RowFiles
from rlrun.types import Window, tree_leaves
from tests.buffer.make import make_replay
from tests.buffer.test_hindsight import Goals
from tests.buffer.test_hindsight import rows as goal_rows
from tests.reference.streams import make_stream

WINDOW, ROW = Window(2, 4, 1), Window(0, 1, 2)
STREAM = make_stream([[9, 4, 20], [3, 17]], [[True, False, True], [True, False]], 33).segment


def table(kind: str) -> Any:
    return make_replay(STREAM, rows=24, window=WINDOW, capacity=12, kind=kind)


def single(kind: str) -> Any:
    return make_replay(STREAM, rows=24, window=ROW, capacity=None, kind=kind)


def goals() -> Any:
    return make_replay(
        goal_rows(33), rows=24, window=ROW, capacity=None, goals=Goals(), relabel_ratio=1.0
    )


REPLAYS: dict[str, Callable[[], Any]] = {
    "table": lambda: table("uniform"),
    "table, prioritized": lambda: table("prioritized"),
    "table, rank": lambda: table("rank"),
    "single": lambda: single("uniform"),
    "single, prioritized": lambda: single("prioritized"),
    "single, rank": lambda: single("rank"),
    "hindsight": goals,
}
NUMBERS = (-1, 2**62, -(2**70), 10**30, 0.5, float("nan"), float("inf"), "x", None, True, [1], {})
VALUES = (-1, np.iinfo(np.int64).max, np.iinfo(np.int64).min, np.nan, np.inf, -np.inf)


def rows_of(name: str) -> Any:
    return goal_rows(33) if name == "hindsight" else STREAM


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items: Any = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        yield path, tree
    for key, value in items:
        yield from leaves(value, (*path, key))


def forged(state: Any) -> Iterator[tuple[str, Any]]:
    """(what was changed, the state with one leaf changed) for every leaf and every change."""
    for path, leaf in leaves(state):
        if "rng" in path or path == ("layout",):
            continue
        for name, value in changes(leaf):
            changed = copy.deepcopy(state)
            *above, last = path
            node = changed
            for key in above:
                node = node[key]
            if isinstance(node, tuple):
                continue
            node[last] = value
            yield f"{'/'.join(map(str, path))}: {name}", changed


def changes(leaf: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, RingRows):
        for name, value in changes(leaf.array):
            if isinstance(value, np.ndarray):
                yield name, RingRows(value, leaf.first, leaf.stop, RowFiles())
        for first, stop in ((-1, leaf.stop), (leaf.first, 2**62), (0, 0), (leaf.stop, leaf.first)):
            yield f"rows {first} to {stop}", RingRows(leaf.array, first, stop, RowFiles())
        return
    if not isinstance(leaf, np.ndarray | torch.Tensor):
        yield from (
            (repr(value), value)
            for value in NUMBERS
            if type(value) is not type(leaf) or value != leaf
        )
        return
    yield "a number", 3
    yield "longer", np.concatenate([leaf, leaf], axis=0)
    yield "shorter", leaf[:-1]
    yield "deeper", leaf[None]
    yield "flat", np.zeros(0, leaf.dtype)
    yield "other dtype", leaf.astype(np.float16)
    yield "objects", leaf.astype(str)
    for value in VALUES:
        for where in ("all", "one"):
            new = leaf.copy()
            with np.errstate(invalid="ignore"), pytest.MonkeyPatch.context():
                try:
                    new[... if where == "all" else (-1,) * leaf.ndim] = value
                except (OverflowError, ValueError):
                    continue
            yield f"{where} {value}", new


@pytest.mark.parametrize("name", REPLAYS)
def test_refused_or_harmless(name: str) -> None:
    rows = rows_of(name)
    whole = REPLAYS[name]()
    whole.add(rows)
    whole.sample(4, 0)
    state = whole.state_dict()
    refused = count = 0
    for what, changed in forged(copy.deepcopy(state)):
        count += 1
        replay = REPLAYS[name]()
        try:
            replay.load_state_dict(changed)
        except (CheckpointError, *MISFITS):
            refused += 1
            continue
        try:  # what is accepted behaves like a replay
            replay.check()
            for _ in range(3):
                replay.add(rows)
                sample = replay.sample(8, 10)
                replay.prioritize(sample.key, np.full(8, 0.5, np.float32))
            replay.check()
        except RlrunError:
            continue
        except Exception as e:
            raise AssertionError(f"{what} is accepted, and then {type(e).__name__}: {e}") from e
    assert count > 100
    assert refused > 0.5 * count


@pytest.mark.parametrize("where", [("windows", "lines"), ("ring", "fields", "action")])
def test_rows_of_other_numbers_are_refused(where: tuple[str, ...]) -> None:
    whole = table("uniform")
    whole.add(STREAM)
    for shift in (-1, 1):
        state = whole.state_dict()
        node, name = functools.reduce(operator.getitem, where[:-1], state), where[-1]
        rows = node[name]
        node[name] = RingRows(rows.array, rows.first + shift, rows.stop + shift, RowFiles())
        with pytest.raises(CheckpointError, match=f"rows {rows.first + shift} to"):
            table("uniform").load_state_dict(state)
    node[name] = RingRows(rows.array.astype(np.float16), rows.first, rows.stop, RowFiles())
    with pytest.raises(CheckpointError, match="float16"):
        table("uniform").load_state_dict(state)


SPACES = RowSpaces(spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(10))  # of STREAM


@pytest.mark.parametrize("value", [-1, 10, 2000, 10**15, np.iinfo(np.int64).min])
@pytest.mark.parametrize("name", ["table", "single, prioritized"])
def test_a_stored_action_outside_of_its_space(name: str, value: int) -> None:
    """R2D2's kernel wrote a gradient where it says."""
    whole = REPLAYS[name]()
    whole.add(STREAM)
    for replay in (whole, loaded := REPLAYS[name]()):
        replay.ring.spaces = SPACES
    loaded.load_state_dict(whole.state_dict())
    whole.ring.action.array[1, 5] = value
    with pytest.raises(CheckpointError, match=rf"column 1: .*action .*{value}"):
        loaded.load_state_dict(whole.state_dict())


def test_rollouts() -> None:
    whole = Rollout(STREAM, rows=40)
    whole.add(STREAM)
    state = whole.state_dict()
    for value in (-1, 41, 2**62, "x", None, True, 0.5):
        with pytest.raises(CheckpointError, match="filled"):
            Rollout(STREAM, rows=40).load_state_dict(state | {"filled": value})
    ends = state["ends"]
    for changed in (ends["first"].repeat(3, 1), ends["first"].float(), ends["first"][:, :1]):
        with pytest.raises(CheckpointError):
            Rollout(STREAM, rows=40).load_state_dict(state | {"ends": ends | {"first": changed}})
    assert tree_leaves(ends["obs"])
    state["steps"]["action"][7, 1] = 10
    with pytest.raises(CheckpointError, match=r"row 7 of column 1: .*action .*10"):
        Rollout(STREAM, rows=40, spaces=SPACES).load_state_dict(state)
