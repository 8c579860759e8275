"""Imports go down only and in no circle; heavy packages stay where they belong; no transposes."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "rlrun").rglob("*.py"))

LAYERS = [  # lowest first; a room imports only from layers below its own, or from itself.
    # Files of ``run`` named here are below the rest of the room.
    "jit blas spaces errors version terminal",
    "schema",
    "types trust",
    "functional codec log video",
    "run.files run.manifest run.branch run.tensors run.checkpoint run.history run.diff",
    "reports",
    "nets buffer env",
    "dataset",
    "policy",
    "kernels",
    "pipeline config",
    "run",
    "sweeps",
    "cli",
    "__main__ api",
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place_of(inside):
    """The name in ``LEVEL`` of a module below ``rlrun``: its own, else its room's."""
    file = ".".join(inside.split(".")[:2])
    return file if file in LEVEL else file.split(".")[0]


def imports(tree, *, top_only=False):
    """Absolute names of imported modules; ``from rlrun import x`` is ``rlrun.x``."""
    for node in ast.iter_child_nodes(tree) if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module in ("rlrun", "rlrun.run"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def test_imports_go_down():
    for path in FILES:
        _, _, inside = module_of(path).partition(".")
        if not inside:  # what the package offers is imported when it is used: tests/api
            top = {*imports(tree_of(path), top_only=True)}
            assert top <= {"importlib", "pathlib", "sys", "typing"}
            continue
        own = place_of(inside)
        assert own in LEVEL, f"say in LAYERS where {own} belongs"
        for name in imports(tree_of(path)):
            if not name.startswith("rlrun.") or name == "rlrun.__version__":
                continue
            other = place_of(name.removeprefix("rlrun."))
            beside = other.split(".")[0] == own.split(".")[0] and LEVEL[other] <= LEVEL[own]
            assert beside or LEVEL[other] < LEVEL[own], f"{path} imports {name}"


def test_no_circle_of_imports():
    """Imports within functions count as well."""
    trees = {module_of(path): tree_of(path) for path in FILES[1:]}  # not those that rlrun offers
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                members = (f"{node.module}.{alias.name}" for alias in node.names)
                graph[name] |= {m if m in trees else node.module for m in members} & {*trees}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_packages_stay_in_their_place():
    light = ("api", "cli", "codec", "config", "env", "errors", "reports", "schema")
    for path in FILES:
        inside, tree = module_of(path).partition(".")[2], tree_of(path)
        packages = {name.partition(".")[0] for name in imports(tree)}
        barred = {"pickle", "cloudpickle"}
        if not inside.startswith(("cli", "config")):
            barred |= {"hydra", "omegaconf"}
        if not inside.startswith(("pipeline.ray", "sweeps.ray")):
            barred |= {"ray"}
        assert packages.isdisjoint(barred), path
        if inside.startswith((*light, "functional.schedule")):
            top = {name.partition(".")[0] for name in imports(tree, top_only=True)}
            assert top.isdisjoint({"torch", "tensorboard", "ray", "safetensors"}), path


def test_no_transposes():
    """Time stays first between the collector and the gradient."""
    word = re.compile(r"\b(transpose|permute|swapaxes|swapdims)\b")
    found = {module_of(p): word.findall(p.read_text("utf-8")) for p in FILES}
    assert {m: f for m, f in found.items() if f} == {}


def test_no_code_from_data():
    """No call of eval, exec or compile, no torch.load, no ``_target_`` that is instantiated."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("eval", "exec", "compile", "torch.load"), path
                assert not name.endswith(("instantiate", "get_method", "get_class")), path
