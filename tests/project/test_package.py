"""The wheel holds every module and every yaml, and works from another directory."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rlrun
from rlrun import errors
from tests.once import made_once

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_packages_are_those_of_the_tree():
    tree = {
        str(path.parent.relative_to(ROOT)).replace(os.sep, ".")
        for path in (ROOT / "rlrun").rglob("*.py")
    }
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted({*tree, "rlrun.conf"})


def test_every_package_has_an_init():
    for name in PROJECT["tool"]["setuptools"]["packages"]:
        if name.endswith(".hydra_plugins"):
            continue  # a namespace package: a file in it would hide the plugins of others
        where = "conf" if name == "rlrun.conf" else name.replace(".", "/")
        assert (ROOT / where / "__init__.py").is_file(), name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    (path,) = made_once(tmp_path_factory, "wheel", _build).glob("*.whl")
    return path


def _build(work):
    """Build a wheel from a copy, so that no build directory is left in the tree."""
    source = work / "source"
    source.mkdir()
    for name in ("rlrun", "conf"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(work)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_the_tree(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "rlrun").rglob("*.py")}
    expected |= {f"rlrun/{p.relative_to(ROOT).as_posix()}" for p in ROOT.glob("conf/**/*.yaml")}
    assert {*expected, "rlrun/py.typed", "rlrun/run/act.c"} <= names
    assert not any(n.startswith(("tests", "conf/")) for n in names)


LINES = [["--version"], ["--cfg", "job", "policy=dqn", "--package", "policy"], ["list"],
         ["help", "policy.nstep"], ["help", "exit", "codes"]]  # fmt: skip
CODE = """
import json, sys
from rlrun.cli.main import main
codes = [main(line) for line in json.loads(sys.argv[1])]
import rlrun, hydra_plugins.rlrun_launcher as found  # as Hydra looks for its plugins
print(found.__file__, codes)
"""


def test_wheel_runs_from_another_directory(wheel, tmp_path):
    target, work = tmp_path / "site", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(target)
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(LINES)], cwd=work, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(target)}, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"rlrun {rlrun.__version__}\n")
    for fact in ("name: dqn", "cartpole", "rows of reward", "SIGTERM"):
        assert fact in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith(str(target)) and last.endswith("[0, 0, 0, 0, 0]")  # noqa: PT018


def test_entry_point_and_requirements(wheel):
    archive = zipfile.ZipFile(wheel)
    (entry,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    assert "rlrun = rlrun.cli.main:main" in archive.read(entry).decode()
    assert all("nvidia" not in line for line in PROJECT["project"]["dependencies"])


def test_the_command_that_installs_an_extra(tmp_path, monkeypatch):
    """Of a clone, from inside and outside of it, and of a wheel."""
    monkeypatch.setattr(errors, "_clone", lambda: str(ROOT))
    monkeypatch.chdir(ROOT)
    assert errors.extra("ray") == "'.[ray]'"
    monkeypatch.chdir(tmp_path)
    assert errors.extra("ray") == f"'{ROOT}[ray]'"
    monkeypatch.setattr(errors, "_clone", lambda: None)
    assert errors.extra("ray") == "'rlrun[ray]'"
