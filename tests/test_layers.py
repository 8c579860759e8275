"""Imports go down only; heavy packages stay where they belong; no transposes."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "rlrun").rglob("*.py"))

LAYERS = [  # lowest first; a room imports only from layers below its own, or from itself
    "tree jit blas joint spaces errors secrets schema",
    "types schedule",
    "functional codec log video",
    "trust rundir",
    "reports",
    "nets buffer env transport",
    "optim dataset",
    "acting",
    "policy",
    "kernels",
    "pipeline config",
    "build",
    "run",
    "sweeps",
    "cli",
    "_plugins __main__ api",
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
TORCH_FREE = [
    "rlrun.api.agents, rlrun.api.reporting, rlrun.api.run, rlrun.api.runs, rlrun.api.sweeps",
    "rlrun.cli.main",
    "rlrun.cli.search",
    "rlrun.cli.seeds",
    "rlrun.cli.doctor",
    "rlrun.config",
    "rlrun.env",
    "rlrun.env.examine",
    "rlrun.env.framestack",
    "rlrun.reports.contents",
    "rlrun.reports.compare_two",
    "rlrun.rundir.branch",
    "rlrun.rundir.verify",
    "rlrun.schedule",
    "rlrun.sweeps.pool",
    "rlrun.trust",
]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, *, top_only: bool = False) -> Iterator[str]:
    """Absolute names of imported modules; ``from rlrun import x`` is ``rlrun.x``."""
    for node in ast.iter_child_nodes(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "rlrun":
                yield from (f"rlrun.{alias.name}" for alias in node.names)
            else:
                yield node.module


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_imports_go_down() -> None:
    for path in FILES:
        _, _, inside = module_of(path).partition(".")
        if not inside:  # what the package offers is imported when it is used: tests/api
            top = {*imports(tree_of(path), top_only=True)}
            assert top == {"importlib", "pathlib", "sys", "typing"}
            continue
        own = inside.split(".")[0]
        assert own in LEVEL, f"say in LAYERS where {own} belongs"
        for name in imports(tree_of(path)):
            if not name.startswith("rlrun.") or name == "rlrun.__version__":
                continue
            other = name.split(".")[1]
            assert other == own or LEVEL[other] < LEVEL[own], f"{path} imports {name}"


def test_policies_do_not_import_each_other() -> None:
    from rlrun.schema import POLICY_CONFIGS

    for name in POLICY_CONFIGS:
        path = ROOT / f"rlrun/policy/{name}.py"
        others = {f"rlrun.policy.{other}" for other in POLICY_CONFIGS if other != name}
        assert others.isdisjoint(imports(tree_of(path)))


def test_packages_stay_in_their_place() -> None:
    light = ("api", "cli", "codec", "config", "env", "errors", "reports", "schema", "schedule")
    for path in FILES:
        inside, tree = module_of(path).partition(".")[2], tree_of(path)
        packages = {name.partition(".")[0] for name in imports(tree)}
        barred = {"pickle", "cloudpickle"}
        if not inside.startswith(("cli", "config", "_plugins")):
            barred |= {"hydra", "omegaconf"}
        if not inside.startswith(("transport.ray", "pipeline.ray", "sweeps.ray")):
            barred |= {"ray"}
        assert packages.isdisjoint(barred), path
        if inside.startswith(light):
            top = {name.partition(".")[0] for name in imports(tree, top_only=True)}
            assert top.isdisjoint({"torch", "tensorboard", "ray", "safetensors"}), path


@pytest.mark.parametrize("module", TORCH_FREE)
def test_torch_free(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_transposes() -> None:
    word = re.compile(r"\b(transpose|permute|swapaxes|swapdims)\b")
    found = {module_of(p): word.findall(p.read_text("utf-8")) for p in FILES}
    assert {m: f for m, f in found.items() if f} == {}, "time stays first (conventions 9)"


def test_no_two_public_classes_of_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module_of(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


ROOMS = sorted(path.parent.name for path in (ROOT / "rlrun").glob("*/README.md"))


@cache
def rooms_of(room: str) -> set[str]:
    """The rooms that files of ``room`` import from."""
    names = (
        name for path in (ROOT / "rlrun" / room).rglob("*.py") for name in imports(tree_of(path))
    )
    return {n.split(".")[1] for n in names if n.startswith("rlrun.")} & {*ROOMS} - {room}


@pytest.mark.parametrize("room", ROOMS)
def test_a_readme_names_what_is_imported_and_who_imports(room: str) -> None:
    text = " ".join((ROOT / "rlrun" / room / "README.md").read_text("utf-8").split())
    may, by = (
        re.search(rf"{label}: (.*?)\.(?= |$)", text)[1] for label in ("May import", "Imported by")
    )
    if "every" not in may:
        assert rooms_of(room) - {"schema"} <= {*re.findall(r"`(\w+)`", may)}
    if "every" not in by:
        assert {r for r in ROOMS if room in rooms_of(r)} == {*re.findall(r"`(\w+)`", by)}
