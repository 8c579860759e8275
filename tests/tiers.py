"""Which tests ``pytest`` runs: the quick ones, and everything in tests/whole.

tests/slow.txt lists the tests that took more than SLOW CPU seconds or started a process when
``pytest --all --record`` wrote it: CPU seconds, seconds, name. A test that it does not name yet is
quick. ``--all`` runs every test, ``--slow`` those that ``pytest`` leaves out; a file or a test that
the command line names runs whole.
"""

import os
import sys
from collections import defaultdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic  # tests replace the module's
from typing import Any

import pytest

HERE = Path(__file__).parent
TABLE = HERE / "slow.txt"
SLOW = 0.3  # CPU seconds of a test with its fixtures, its own and those of ended children
ASK = ("git", "uname", "ldconfig")
WAITS = 2.0  # seconds: a test that waits as long is slow too

_started = 0  # processes
_costs: dict[int, tuple[float, int]] = {}  # fixture -> CPU seconds, processes
_inner: list[list[float]] = []  # costs of the fixtures that the open ones asked for
_recorded: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    """Count processes but those that only ask git or the system, as every run does."""
    global _started
    if event == "subprocess.Popen" and Path(str(arguments[0])).name in ASK:
        return
    _started += event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


def _count_starts(start: Any) -> Any:
    def counted(process: BaseProcess) -> None:
        global _started
        _started += 1
        start(process)

    return counted


def _cpu() -> float:
    return sum(os.times()[:4])


def name_of(nodeid: str) -> str:
    """The function of a test, whose cases are slow together, as tests/slow.txt names it."""
    return nodeid.partition("[")[0].removeprefix("tests/")


def slow_tests() -> dict[str, float]:
    """Seconds from begin to end of the slow tests' longest cases."""
    if not TABLE.exists():
        return {}
    lines = (line.split() for line in TABLE.read_text("utf-8").splitlines())
    return {name: float(wall) for _, wall, name, *_ in lines}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--all", action="store_true", help="slow tests too")
    group.addoption("--slow", action="store_true", help="only the slow tests")
    group.addoption("--record", action="store_true", help="write tests/slow.txt anew (with --all)")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.record:
        sys.addaudithook(_count)
        BaseProcess.start = _count_starts(BaseProcess.start)  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other tier. Files that take longest come first: workers then end together."""
    slow = slow_tests()
    if not config.option.all:
        _leave_out(config, items, slow)
    seconds: dict[Path, float] = defaultdict(float)
    for item in items:
        seconds[item.path] += slow.get(name_of(item.nodeid), 0)
    order = 1 if config.option.maxfail == 1 else -1  # -x: whatever fails soon
    items.sort(key=lambda item: (order * seconds[item.path], item.path))


def _leave_out(config: pytest.Config, items: list[pytest.Item], slow: dict[str, float]) -> None:
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    out = []
    for item in items:
        is_slow = name_of(item.nodeid) in slow and item.path.parent.name != "whole"
        if is_slow != config.option.slow and (config.option.slow or item.path not in named):
            out.append(item)
    config.hook.pytest_deselected(items=out)
    gone = {id(item) for item in out}
    items[:] = [item for item in items if id(item) not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    """What a fixture costs, without the fixtures that it asks for."""
    seconds, started = _cpu(), _started
    _inner.append([0.0, 0])
    try:
        return (yield)
    finally:
        seconds, started = _cpu() - seconds, _started - started
        inner = _inner.pop()
        _costs[id(fixturedef)] = seconds - inner[0], int(started - inner[1])
        if _inner:
            _inner[-1][0] += seconds
            _inner[-1][1] += started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    """Notes CPU seconds and processes of the test and of its fixtures, whoever made them."""
    seconds, started, wall = _cpu(), _started, monotonic()
    try:
        return (yield)
    finally:
        definitions = item._fixtureinfo.name2fixturedefs
        made = [_costs.get(id(definitions[n][-1]), (0, 0)) for n in definitions]
        seconds = _cpu() - seconds + sum(cost for cost, _ in made)
        started = _started - started + sum(n for _, n in made)
        item.user_properties.append(("cost", (seconds, started, monotonic() - wall)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and (cost := dict(report.user_properties).get("cost")):
        kept = _recorded[name_of(report.nodeid)]
        kept[:] = map(max, kept, cost)


def pytest_sessionfinish(session: pytest.Session) -> None:
    option = session.config.option
    if not (option.record and option.all) or hasattr(session.config, "workerinput"):
        return
    lines = [
        f"{seconds:.1f} {wall:.1f} {name}" + " starts processes" * bool(started)
        for name, (seconds, started, wall) in sorted(_recorded.items())
        if seconds > SLOW or started or wall > WAITS
    ]
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")
