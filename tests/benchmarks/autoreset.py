"""Certificate of rows: no pair joined across episodes, every final observation exactly once.

An environment that spells (environment, episode, t) in its observation goes through every way to
rows: native vector environments of Gymnasium's three autoreset modes (of SAME_STEP and DISABLED
ones a run takes the single environments), ``sync``, ``async``, envpool's protocol (a stand-in) and
all wrappers. ``--rows N``: of each way (of each wrapper a tenth), default 1 000 000; ``--only WORD
...``: some ways. Those named ``fault`` are broken on purpose and must be found.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from tests.benchmarks.product import make_env
from tests.env.presets import config_of, preset, wrapper
from tests.env.spelled import VIEWS, WRAPPED, Ledger, Wrapped, certify, fake_envpool, stand_ins

NUM_ENVS = 8
NEXT = "tests/Spelled-next-v0"


def _rows(
    config: Any, rows: int, view: str = "vector", envs: int = NUM_ENVS, **given: int
) -> Ledger:
    env = make_env(config, num_envs=envs)
    try:
        return certify(env, VIEWS[view], rows, **given)
    finally:
        env.close()


def pooled(rows: int, fault: str | None = None) -> Ledger:
    """The ledger of envpool's protocol."""
    with mock.patch.dict(sys.modules, {"envpool": fake_envpool(fault)}):
        return _rows(config_of("Spelled-v0", backend="envpool"), rows)


def wrapped(case: Wrapped, rows: int) -> Ledger:
    """The ledger behind a wrapper."""
    kwargs = {"form": case.form, "continuous": case.continuous}
    around = (wrapper(case.name, **case.arguments),)
    config = config_of(NEXT, kwargs=kwargs, wrappers=around)
    with mock.patch.dict(sys.modules, stand_ins()):
        return _rows(config, rows, case.view, stride=case.stride, delay=case.delay)


def paths(envs: int = NUM_ENVS) -> dict[str, Callable[[int], Ledger]]:
    """Name -> function of the number of rows that returns the ledger."""
    of = config_of
    ways: dict[str, Callable[[int], Ledger]] = {
        "counter, native": lambda n: _rows(preset("counter"), n, "counter"),
        "NEXT_STEP, native": lambda n: _rows(of(NEXT, backend="vector"), n),
        "SAME_STEP": lambda n: _rows(of("tests/Spelled-same-v0"), n),
        "DISABLED": lambda n: _rows(of("tests/Spelled-disabled-v0"), n),
        "sync": lambda n: _rows(of(NEXT, backend="sync"), n),
        "async": lambda n: _rows(of(NEXT, backend="async"), n, envs=envs),
        "envpool": pooled,
        "fault: SAME_STEP declared NEXT_STEP": lambda n: _rows(of("tests/Spelled-lying-v0"), n),
        "fault: envpool, reset in the last step": lambda n: pooled(n, "same_step"),
        "fault: envpool, end one step late": lambda n: pooled(n, "late"),
    }
    for case in WRAPPED:
        ways[f"wrapper {case.name}"] = lambda n, case=case: wrapped(case, max(n // 10, 1))
    return ways


def lines(rows: int, only: Sequence[str] = (), envs: int = NUM_ENVS) -> Iterator[tuple[bool, str]]:
    """Yield (as it must be, text) of every way."""
    for name, way in paths(envs).items():
        if only and not any(word in name for word in only):
            continue
        begin = time.perf_counter()
        ledger = way(rows if not name.startswith("fault") else min(rows, 10_000))
        faults, seconds = ledger.faults(), time.perf_counter() - begin
        good = bool(faults) == name.startswith("fault") and ledger.episodes > 0
        text = ", ".join(f"{n} {what}" for what, n in faults.items()) or "0 faults"
        unread = f", {ledger.unreadable} rows hidden" if ledger.unreadable else ""
        counts = f"{ledger.rows} rows, {ledger.episodes} final observations{unread}"
        yield good, f"{'ok' if good else 'NOT OK':<8}{name:<42}{counts}: {text} ({seconds:.0f} s)"


def main(o: Namespace) -> int:
    """``--quick``: a few hundred rows, two environments."""
    good = True
    for ok, text in lines(640, o.only, 2) if o.quick else lines(o.rows or 1_000_000, o.only):
        print(text, flush=True)
        good &= ok
    return 0 if good else 1
