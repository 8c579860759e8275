"""Peers' replays as processes that time themselves on request, and comparisons with them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.client import asked
from tests.benchmarks.process import PeerFailed, interpreter
from tests.benchmarks.timing import (
    Row,
    Side,
    Timing,
    calls_for,
    make_row,
    time_calls,
    timing_row,
)

FOLDERS = {"cpprb": "torchrl", "torchrl": "torchrl", "tianshou": "tianshou", "di-engine": "ding"}
PEERS = tuple(FOLDERS)
PYTHON = ("list", "namedtuple")  # run by this interpreter


@dataclass(frozen=True)
class Effort:
    """How often and how long is measured."""

    repeats: int  # rounds in which every side is measured once
    seconds: float  # of one measurement


@dataclass(frozen=True)
class Peer:
    """A replay that is there: its facts, and ``time(op, batch, calls)``."""

    version: str
    bytes_per_row: float
    time: Callable[[str, int, int], Timing]


Peers = dict[str, Peer | str]  # by name; a text says why there is none


@contextmanager
def open_peers(names: Sequence[str], folder: Path | None, kind: str, rows: int) -> Iterator[Peers]:
    """The named replays, each filled with ``rows`` rows in a process of its own."""
    with ExitStack() as stack:
        peers: Peers = {}
        for name in names:
            own = name in PYTHON
            python = Path(sys.executable) if own else interpreter(folder, FOLDERS[name])
            try:
                peers[name] = stack.enter_context(_serve(python, name, kind, rows))
            except PeerFailed as e:
                peers[name] = str(e)
        yield peers


@contextmanager
def _serve(python: Path | None, name: str, kind: str, rows: int) -> Iterator[Peer]:
    with asked(python, "replay_peer.py", name, kind, rows) as (facts, ask):

        def time(op: str, batch: int, calls: int) -> Timing:
            return Timing(**ask(f"{op} {batch} {calls}"))

        yield Peer(facts["version"], facts["bytes_per_row"], time)


def rounds(sides: dict[str, Side], repeats: int) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """(``repeats`` timings of every side, why a side has none).

    Every round measures every side once, one right after the other, and begins with another one,
    so that a drift cancels.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in sides}
    failed: dict[str, str] = {}
    names = list(sides)
    for i in range(repeats):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            if name in failed:
                continue
            try:
                timings[name].append(sides[name]())
            except PeerFailed as e:
                failed[name] = str(e)
    return timings, failed


def compare(
    name: str,
    setting: dict[str, Any],
    ours: Callable[[], object],
    peers: Peers,
    op: str,
    batch: int,
    effort: Effort,
    *,
    target: float | None = None,
    note: str = "",
) -> list[Row]:
    """A row for each of ``peers``: how many times faster ``ours`` is than its ``op``.

    The target is one for every peer, so it is met where the fastest one's row meets it.
    """
    calls = calls_for(ours, effort.seconds)
    sides: dict[str, Side] = {"rlrun": lambda: time_calls(ours, calls)}
    missing = {who: peer for who, peer in peers.items() if isinstance(peer, str)}
    for who, peer in peers.items():
        if isinstance(peer, Peer):
            try:
                peer.time(op, batch, 3)
                once = peer.time(op, batch, 3).wall
            except PeerFailed as e:
                missing[who] = str(e)
                continue
            count = max(2, round(effort.seconds / max(once, 1e-9)))
            sides[who] = lambda p=peer, n=count: p.time(op, batch, n)
    timings, failed = rounds(sides, effort.repeats)
    missing |= failed
    alone = [t.wall * 1e3 for t in timings["rlrun"]]
    rows = []
    for who, peer in peers.items():
        fields: dict[str, Any] = {"kind": "speedup", "target": target, "note": note}
        if who in missing or isinstance(peer, str):
            fields["missing"] = missing[who]
            rows.append(make_row(name, setting, who, "ms", alone, [], **fields))
        else:
            pairs = list(zip(timings["rlrun"], timings[who], strict=True))
            rows.append(timing_row(name, setting, f"{who} {peer.version}", pairs, **fields))
    return rows
