"""Yaml files of a stranger (--config-dir): exit 2, one line, no code run, no file made."""

import sys
from pathlib import Path

import pytest

from tests.config.test_bad_input import read_lines
from tests.in_process import assert_one_error, files_under

GLOBAL = "# @package _global_\n"
EVIL = "experiment/evil.yaml"
LINE = "--config-dir mine experiment=evil"

# The two known attacks are an environment variable that workers of env.backend=async read at their
# start, and a file of the stranger's choice that Python's logging opens.
ENV_SET = "hydra: {job: {env_set: {PYTHONPATH: mine}}}"
LOGGING = "handlers: {file: {class: logging.FileHandler, filename: owned.txt}}\nversion: 1"
MAIN = "--config-dir mine --config-name main"
BASE = "defaults: [config, _self_]\n"

FORBIDDEN = [  # (name of a file, its content, command line, what the error names)
    (EVIL, "# @package hydra.job\nenv_set: {PYTHONPATH: mine}", LINE, "hydra.job.env_set"),
    ("env/evil.yaml", GLOBAL + ENV_SET, "--config-dir mine env=evil", "hydra.job.env_set"),
    ("env/evil.yaml", GLOBAL + ENV_SET, "--config-dir mine -m env=cartpole,evil", "sweep job 1"),
    ("env/evil.yaml", GLOBAL + ENV_SET, "hydra.searchpath=[mine] env=evil", "hydra.job.env_set"),
    (EVIL, f"{GLOBAL}defaults: [override /hydra/launcher: basic]",
     "hydra.searchpath=[mine] experiment=evil", "hydra/launcher = basic: experiment=evil"),
    ("main.yaml", f"{BASE}hydra: {{searchpath: [pkg://evil]}}", MAIN, "hydra.searchpath = [pkg:"),
    ("main.yaml", "defaults: [config, override hydra/job_logging: evil]", MAIN, ""),
    ("main.yaml", BASE + ENV_SET, MAIN, "hydra.job.env_set.PYTHONPATH = mine"),
    ("hydra/job_logging/evil.yaml", LOGGING, "--config-dir mine hydra/job_logging=evil",
     "hydra/job_logging = evil: unknown option"),
    ("env/evil.yaml", "kwargs: {a: [1, inf]}", "--config-dir mine env=evil", "kwargs.a = inf"),
]  # fmt: skip
for words, content, texts in read_lines(Path(__file__).with_name("foreign_lines.txt")):
    content = GLOBAL + " ".join(content).replace("\\n", "\n")
    FORBIDDEN.append((EVIL, content, f"{LINE} {words}", " ".join(texts)))


@pytest.mark.parametrize(("name", "content", "line", "expected"), FORBIDDEN)
def test_refused(rlrun, tmp_path, name, content, line, expected):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    (tmp_path / "evil.py").write_text("open('imported', 'w')\n")
    before, modules = files_under(tmp_path), set(sys.modules)
    assert_one_error(rlrun(*line.split()), expected)
    assert files_under(tmp_path) == before
    assert not {name for name in set(sys.modules) - modules if name.startswith("evil")}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def test_what_files_may_set(rlrun, build, tmp_path):
    keys = "run: {dir: here}, sweep: {dir: there, subdir: 'job${hydra.job.num}'}"
    allowed = f"{GLOBAL}hydra: {{{keys}, sweeper: {{params: {{seed: '1,2'}}}}}}"
    write(tmp_path / "mine" / EVIL, allowed)
    assert rlrun(*LINE.split()).code == 0
    assert rlrun("-m", *LINE.split()).code == 0
    assert build.run_dirs == [tmp_path / "here", *(tmp_path / f"there/job{i}" for i in (0, 1))]


def test_everything_else_is_typed(rlrun, tmp_path):
    write(tmp_path / "mine" / EVIL, GLOBAL + "seed: 3")
    typed = ("hydra.verbose=false", "+hydra.job.env_set.A=b", "hydra.run.dir=../here")
    assert rlrun(*LINE.split(), *typed, "run.dir=out").code == 0
