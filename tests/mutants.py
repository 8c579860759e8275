"""Single wrong changes of the code, each of which some test has to notice.

``python -m tests.mutants [--count 130] [--seed 0] [--reach DIR] [TEXT ...]`` makes them one after
the other in copies of the tree, spread by lines over eight rooms (or over the files that hold a
TEXT), and runs with ``-x`` the tests that reach the changed line: quick ones first, then slow ones.
Which tests reach a line is recorded beforehand by ``pytest --all -p tests.mutants`` with
``REACHED=DIR`` in the environment (Python 3.12 and later); without it, the tests of the room run.
``--quick`` makes ten in rlrun/functional, of which the tests of that room notice half, to see that
this file works. Ends with 1 when fewer than 95 % (of the quick ones: none) are noticed.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

from tests.tiers import name_of, slow_tests

ROOT = Path(__file__).parents[1]
ROOMS = {  # room of rlrun -> where its tests lie
    "pipeline": "pipeline", "buffer": "buffer", "policy": "policy",
    "kernels": "kernels", "functional": "functional", "env": "env",
    "run": "run", "config": "config", "schema": "config",
}  # fmt: skip
WORDS = (
    "log.", "logger", "warn", "print", "raise", "Error", "error(", 'f"', "f'", "assert", "TypeVar",
)  # fmt: skip
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
DROPPED = ast.Expr | ast.AugAssign | ast.Assign


class Mutant(NamedTuple):
    """``old``, at ``span`` of ``file`` (characters), becomes ``new``."""

    file: str
    line: int
    span: tuple[int, int]
    old: str
    new: str


def changes(node: ast.AST) -> Iterator[str]:
    """Texts that the node could wrongly be."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.unparse(ast.Compare(node.left, [COMPARED[type(op)]()], node.comparators))
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            yield ast.unparse(ast.BinOp(node.left, COMPUTED[type(op)](), node.right))
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield ast.unparse(node.operand)
        case ast.Constant(value=int() as n) if not isinstance(n, bool):
            yield str(n + 1)
        case ast.Call(args=[a, b, *rest]) if not isinstance(a, ast.Starred):
            if not isinstance(b, ast.Starred) and ast.dump(a) != ast.dump(b):
                yield ast.unparse(ast.Call(node.func, [b, a, *rest], node.keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def _bodies(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements in functions, without their decorators, defaults and annotations."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from function.body


def sites(file: str) -> list[Mutant]:
    """Every change that is made of one file; texts of messages are left alone."""
    source = (ROOT / file).read_text("utf-8")
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found = {}
    for statement in _bodies(ast.parse(source)):
        for node in ast.walk(statement):
            if not hasattr(node, "lineno") or isinstance(node, ast.FunctionDef):
                continue
            a, b = starts[node.lineno - 1], starts[node.end_lineno - 1]
            span = a + node.col_offset, b + node.end_col_offset
            old = source[slice(*span)]
            whole = source[a : starts[node.end_lineno]]
            if len(old) > 200 or any(word in whole for word in WORDS) or not source.isascii():
                continue
            for new in changes(node):
                found[span, new] = Mutant(file, node.lineno, span, old, new)
    return sorted(found.values(), key=lambda m: m.span)


def swapped(mutant: Mutant) -> bool:
    return mutant.new != "pass" and sorted(mutant.old) == sorted(mutant.new)


def drawn(count: int, seed: int, texts: list[str]) -> list[Mutant]:
    """``count`` changes, as many of a room as it has lines."""
    rng = random.Random(seed)
    every = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "rlrun").rglob("*.py"))
    files = [f for f in every if f.split("/")[1] in ROOMS and f.endswith(".py")]
    files = [f for f in every if any(t in f for t in texts)] if texts else files
    lines = [(f, n) for f in files for n in range(len((ROOT / f).read_text("utf-8").split("\n")))]
    out: dict[Mutant, None] = {}
    by_file: dict[str, list[Mutant]] = {}
    while len(out) < count:  # the change nearest to a line drawn at random, one of each stretch
        file, line = lines[int((len(out) + rng.random()) / count * len(lines))]
        near = by_file.setdefault(file, sites(file))
        near = sorted((m for m in near if m not in out), key=lambda m: abs(m.line - line))
        if not near:
            lines = [place for place in lines if place[0] != file]
            continue
        here = [m for m in near if m.line == near[0].line]
        here = [m for m in here if not swapped(m)] or here  # which mostly end at once
        out[rng.choice(here)] = None
    return list(out)


# -- which tests reach a line ----------------------------------------------------------------------

_reached: set[tuple[str, int]] = set()


def _line(code: Any, line: int) -> object:
    if code.co_filename.startswith(f"{ROOT}/rlrun"):
        _reached.add((code.co_filename[len(str(ROOT)) + 1 :], line))
    return sys.monitoring.DISABLE  # once a test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _reached.clear()
    sys.monitoring.restart_events()
    start = time.process_time()
    result = yield
    files: dict[str, list[int]] = {}
    for file, line in sorted(_reached):
        files.setdefault(file, []).append(line)
    path = Path(os.environ["REACHED"]) / f"{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as out:
        seconds = round(time.process_time() - start, 3)
        out.write(json.dumps([item.nodeid, seconds, files]) + "\n")
    return result


def pytest_configure(config: pytest.Config) -> None:
    Path(os.environ["REACHED"]).mkdir(parents=True, exist_ok=True)
    monitoring = sys.monitoring
    monitoring.use_tool_id(4, "rlrun mutants")
    monitoring.register_callback(4, monitoring.events.LINE, _line)
    monitoring.set_events(4, monitoring.events.LINE)


def pytest_unconfigure() -> None:
    sys.monitoring.free_tool_id(4)


def reach(directory: str | None, mutants: list[Mutant]) -> dict[Mutant, list[str]]:
    """For each change the tests to run, the cheapest first; else those of its room."""
    wanted: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        wanted.setdefault(mutant.file, []).append(mutant)
    found: dict[Mutant, dict[str, float]] = {mutant: {} for mutant in mutants}
    for path in Path(directory).glob("*.jsonl") if directory else ():
        for line in path.open(encoding="utf-8"):
            test, seconds, files = json.loads(line)
            for file in wanted.keys() & files.keys():
                for mutant in wanted[file]:
                    if mutant.line in files[file]:
                        found[mutant][test] = seconds
    ordered = {m: sorted(tests, key=tests.__getitem__) for m, tests in found.items()}
    for mutant in mutants:
        if compiled(mutant.file) or not ordered[mutant]:
            ordered[mutant] = [f"tests/{ROOMS.get(mutant.file.split('/')[1], '')}"]
    return ordered


def compiled(file: str) -> bool:
    """Whether the file holds numba kernels, whose lines are not seen to be reached."""
    return "\n@jit" in (ROOT / file).read_text("utf-8")


# -- running them ----------------------------------------------------------------------------------


def _pytest(copy: Path, tests: list[str], *words: str, limit: float = 900.0) -> str | None:
    """The first test that failed; None: all passed."""
    (copy / "chosen.txt").write_text("\n".join(tests), "utf-8")
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--timeout=120", "--tb=no",
            "-p", "no:cacheprovider", *words, "@chosen.txt"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            line, cwd=copy, env=env, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end in {limit:.0f} s"
    if done.returncode in (0, 5):
        return None
    named = [text for text in done.stdout.splitlines() if text.startswith(("FAILED", "ERROR"))]
    return named[0].split()[1] if named else f"exit {done.returncode}"


def tried(mutant: Mutant, tests: list[str], copy: Path) -> tuple[str, str]:
    """Which tier noticed the change, and the test; the copy is as it was afterwards."""
    path = copy / mutant.file
    source = path.read_text("utf-8")
    a, b = mutant.span
    path.write_text(source[:a] + mutant.new + source[b:], "utf-8")
    stamp = time.time() + random.random() * 1e4  # compiled code of another change is not taken
    os.utime(path, (stamp, stamp))
    slow = {name for name in slow_tests() if not name.startswith("whole/")}
    quick = [test for test in tests if name_of(test) not in slow]
    rest = [test for test in tests if name_of(test) in slow]
    rooms = all("::" not in test for test in tests)
    try:
        if quick and (test := _pytest(copy, quick, *([] if rooms else ["--all"]))):
            return "quick", test
        if (rest or rooms) and (test := _pytest(copy, rest or tests, "--all")):
            return "slow", test
        return "", ""
    finally:
        path.write_text(source, "utf-8")
        os.utime(path, (stamp + 1, stamp + 1))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="parts of names of files")
    parser.add_argument("--count", type=int, default=130)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--reach", metavar="DIR", help="what `pytest -p tests.mutants` recorded")
    parser.add_argument("--quick", action="store_true", help="ten changes of rlrun/functional")
    given = parser.parse_args(argv)
    if given.quick:
        given.count, given.texts = 10, ["rlrun/functional/"]
    mutants = drawn(given.count, given.seed, given.texts)
    tests = reach(given.reach, mutants)
    copies: Queue[Path] = Queue()
    tiers = []
    with tempfile.TemporaryDirectory() as work:
        for k in range(given.jobs):
            ignore = shutil.ignore_patterns(".git", "__pycache__", "outputs", ".*_cache")
            copies.put(shutil.copytree(ROOT, Path(work) / str(k), ignore=ignore))

        def run(mutant: Mutant) -> tuple[str, str]:
            copy = copies.get()
            try:
                return tried(mutant, tests[mutant], copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, (tier, test) in zip(mutants, pool.map(run, mutants), strict=True):
                tiers.append(tier)
                change = " -> ".join(" ".join(text.split()) for text in (mutant.old, mutant.new))
                place = f"{mutant.file}:{mutant.line}"
                print(f"{tier or 'SURVIVED':8} {place} {change} | {test}", flush=True)
    noticed, quick = (100 * sum(map(f, tiers)) / len(tiers) for f in (bool, "quick".__eq__))
    print(f"{len(tiers)} changes: {noticed:.0f} % noticed, {quick:.0f} % by quick tests")
    return int(noticed < (1 if given.quick else 95))


if __name__ == "__main__":
    sys.exit(main())
