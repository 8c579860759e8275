"""The wheel holds every module and every yaml, and works from another directory."""

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


def test_packages_are_those_of_the_tree() -> None:
    tree = {
        str(path.parent.relative_to(ROOT)).replace(os.sep, ".")
        for path in (ROOT / "rlrun").rglob("*.py")
    }
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted({*tree, "rlrun.conf"})


def test_every_package_has_an_init() -> None:
    for name in PROJECT["tool"]["setuptools"]["packages"]:
        if name.endswith(".hydra_plugins"):
            continue  # a namespace package: a file in it would hide the plugins of others
        where = "conf" if name == "rlrun.conf" else name.replace(".", "/")
        assert (ROOT / where / "__init__.py").is_file(), name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = made_once(tmp_path_factory, "wheel", _build).glob("*.whl")
    return path


def _build(work: Path) -> None:
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


def test_wheel_holds_the_tree(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "rlrun").rglob("*.py")}
    expected |= {f"rlrun/{p.relative_to(ROOT).as_posix()}" for p in ROOT.glob("conf/**/*.yaml")}
    assert {*expected, "rlrun/py.typed"} <= names
    assert not any(n.startswith(("tests", "conf/")) for n in names)


def test_wheel_runs_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    code = "import sys; from rlrun.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(target)}

    def run(*argv: str) -> str:
        command = [sys.executable, "-c", code, *argv]
        work = tmp_path / "elsewhere"
        work.mkdir(exist_ok=True)
        done = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version") == f"rlrun {rlrun.__version__}\n"
    assert "name: dqn" in run("--cfg", "job", "policy=dqn", "--package", "policy")
    assert "cartpole" in run("list")
    assert "rows of reward" in run("help", "policy.nstep")
    assert "SIGTERM" in run("help", "exit", "codes")
    find = "import rlrun, hydra_plugins.rlrun_launcher as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", find], cwd=tmp_path, env=env, capture_output=True, check=True
    )
    assert done.stdout.decode().startswith(str(target)), "as Hydra looks for its plugins"


def test_entry_point_and_requirements(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    assert "rlrun = rlrun.cli.main:main" in archive.read(entry).decode()
    assert all("nvidia" not in line for line in PROJECT["project"]["dependencies"])


def test_the_command_that_installs_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clone, from inside and outside of it, and of a wheel."""
    monkeypatch.setattr(errors, "_clone", lambda: str(ROOT))
    monkeypatch.chdir(ROOT)
    assert errors.extra("ray") == "'.[ray]'"
    monkeypatch.chdir(tmp_path)
    assert errors.extra("ray") == f"'{ROOT}[ray]'"
    monkeypatch.setattr(errors, "_clone", lambda: None)
    assert errors.extra("ray") == "'rlrun[ray]'"
