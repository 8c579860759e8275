"""The wheel holds every module and every yaml, and works from another directory."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import rlrun
from rlrun.version import commit
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
        where = "conf" if name == "rlrun.conf" else name.replace(".", "/")
        assert (ROOT / where / "__init__.py").is_file(), name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return made_once(tmp_path_factory, "wheel", _build)


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def _build(work):
    """Build an sdist of a copy in git, and a wheel of that sdist."""
    source = work / "source"
    source.mkdir()
    for name in ("rlrun", "conf", "tests/project"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":  # a file in a work tree of git
            shutil.copy(path, source)
    _commit(source)
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(work), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _commit(directory):
    env = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm text"):
        subprocess.run(["git", "-C", str(directory), *words.split()], check=True, env=env)


def test_wheel_holds_the_tree(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "rlrun").rglob("*.py")}
    expected |= {f"rlrun/{p.relative_to(ROOT).as_posix()}" for p in ROOT.glob("conf/**/*.yaml")}
    assert {*expected, "rlrun/py.typed", "rlrun/cli/keys.json", "rlrun/run/act.c"} <= names
    assert not any(n.startswith(("tests", "conf/")) for n in names)


def test_sdist_holds_what_builds_the_wheel(built):
    """And what is said of a release, but neither tests nor figures."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names} - {""}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    metadata = {"PKG-INFO", "setup.cfg", "rlrun.egg-info"}
    sources = {"rlrun", "conf", "pyproject.toml"}
    assert tops == texts | metadata | sources
    assert {Path(n).suffix for n in names if n.startswith("rlrun/") and "." in n} == {
        ".py", ".json", ".txt", ".typed", ".c", ".css"
    }  # fmt: skip


def test_a_release_has_one_version_and_one_date():
    number, date = re.findall(r"^## \[(.+?)\] - (\S+)$", _text("CHANGELOG.md"), re.M)[0]
    assert number == rlrun.__version__
    assert {f"version: {number}", f"date-released: {date}"} <= {*_text("CITATION.cff").split("\n")}


def _text(name):
    return (ROOT / name).read_text("utf-8")


def test_the_commit_of_a_checkout(tmp_path):
    """Changed files are said; where git knows nothing, what a build wrote down holds."""
    (tmp_path / "rlrun").mkdir()
    assert commit(tmp_path) is None
    file = tmp_path / "rlrun/commit.txt"
    file.write_text("0123456789\n")
    assert commit(tmp_path) == "0123456789"
    _commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{10}", found := commit(tmp_path))
    file.write_text("other\n")
    assert commit(tmp_path) == f"{found}-dirty"
    (tmp_path / ".git/HEAD").unlink()
    assert commit(tmp_path) is None


LINES = [["--version"], ["--cfg", "job", "policy=dqn", "--package", "policy"], ["list"],
         ["help", "policy.nstep"], ["help", "exit", "codes"]]  # fmt: skip
CODE = """
import json, sys
from rlrun.cli.main import main
codes = [main(line) for line in json.loads(sys.argv[1])]
import rlrun
print(rlrun.__file__, codes)
"""


def test_wheel_runs_from_another_directory(wheel, tmp_path):
    target, work = tmp_path / "site", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(target)
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(LINES)], cwd=work, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(target)}, check=True,
    )  # fmt: skip
    assert re.match(rf"rlrun {rlrun.__version__}, commit [0-9a-f]{{10}}, torch ", done.stdout)
    for fact in ("name: dqn", "cartpole", "rows of reward", "SIGTERM"):
        assert fact in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith(str(target)) and last.endswith("[0, 0, 0, 0, 0]")  # noqa: PT018


def test_entry_point_and_requirements(wheel):
    archive = zipfile.ZipFile(wheel)
    (entry,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    assert "rlrun = rlrun.cli.main:main" in archive.read(entry).decode()
    assert all("nvidia" not in line for line in PROJECT["project"]["dependencies"])


def test_the_extras_that_are_named_exist():
    """Messages name an extra of the package, whether rlrun came from a wheel or from a clone."""
    named = set()
    for top, kind in itertools.product(("rlrun", "conf"), ("py", "yaml", "md")):
        for path in (ROOT / top).rglob(f"*.{kind}"):
            text = path.read_text("utf-8")
            named |= {*re.findall(r"rlrun\[(\w+)\]", text)}
            assert "'.[" not in text, path
    assert len(named) > 8
    assert named <= {*PROJECT["project"]["optional-dependencies"]}
