"""Command lines that name what is not there, or what no file system holds: one line, nothing made.

Names and values of keys are in ``test_bad_values.py`` and ``tests/config/test_bad_input.py``.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.config import directories
from tests.config.test_bad_input import assert_one_error
from tests.in_process import Build, Done, files_under

LONG = "n" * 300
FILE = "/etc/hostname"
NOT_UTF8 = os.fsdecode(b"a\xffb")

LINES: list[tuple[list[str], str]] = [  # command line, what the line on stderr holds
    # names that are too long, hold what Hydra resolves, or are no UTF-8
    ([f"run.dir={LONG}"], "a name in it has 300 bytes"),
    ([f"hydra.run.dir={LONG}"], "a name in it has 300 bytes"),
    (["-m", "seed=1,2", f"hydra.sweep.dir={LONG}"], "hydra.sweep.dir = "),
    ([f"run.dir={'a/' * 3000}b"], "4096 in all"),
    (["run.dir='x${y'"], "run.dir"),
    (["run.dir='x\\${y}'"], "run.dir"),
    (["hydra.run.dir='x\\${y}'"], "holds ${"),
    ([f"run.dir={NOT_UTF8}"], "run.dir=a"),
    ([f"env={NOT_UTF8}"], ""),
    ([f"policy.lr={NOT_UTF8}"], "policy.lr"),
    ([f"env.id={NOT_UTF8}"], "env.id"),
    (["run.dir=~nobody_here/x"], "run.dir"),
    *[([verb, LONG, *more], "RUN_DIR = nnn") for verb, *more in
      (("eval",), ("resume",), ("export", "data"))],
    (["export", ".", LONG], "DATA_DIR = nnn"),
    *[([verb, NOT_UTF8, *more], "RUN_DIR") for verb, *more in
      (("eval",), ("resume",), ("export", "data"))],
    *[([f"buffer.{key}={LONG}", "policy=dqn"], f"buffer.{key} = nnn") for key in
      ("load", "demos", "mmap")],
    # paths that are files, devices, or not there
    *[([verb, path, *more], "RUN_DIR") for verb, *more in
      (("eval",), ("resume",), ("export", "data")) for path in (FILE, "/dev/null", "/dev/zero/x")],
    ([f"run.dir={FILE}"], "this is not a directory"),
    (["run.dir=/"], "run.dir = /"),
    ([f"--config-dir={FILE}"], "no such directory"),
    (["list", "--config-dir", "nowhere"], "no such directory"),
    (["help", "policy", "--config-dir", FILE], "no such directory"),
    (["policy=dqn", f"buffer.load={FILE}"], "buffer.load"),
    (["policy=dqn", "buffer.load=/dev/zero"], "buffer.load"),
    (["policy=dqn", "buffer.demos=/etc"], "buffer.demos"),
    (["codec", "bench", "nowhere"], "FILE = nowhere"),
    (["codec", "bench", FILE], FILE),
    # Hydra's own keys
    (["hydra.output_subdir=../x"], "hydra.output_subdir = ../x: leads out"),
    (["hydra.searchpath=[nowhere]"], "nowhere"),
    (["hydra.searchpath=[pkg://nowhere]"], "nowhere"),
    (["hydra.searchpath=x"], "searchpath"),
    (["hydra=1"], "hydra"),
    (["hydra.job=1"], "hydra.job"),
    (["hydra.mode=x"], "hydra.mode"),
    (["hydra/sweeper=nope"], "hydra/sweeper = nope"),
    (["hydra.run.dir=[]"], "hydra.run.dir"),
    (["-m", "seed=1,2", "hydra.sweeper.max_batch_size=0"], "max_batch_size = 0"),
    (["-m", "seed=1,2", "hydra.sweeper.params=3"], "hydra.sweeper.params"),
    (["-m", "seed=1,2", "policy.lr=interval(0,1)"], "rlrun search"),
    # sweeps that never end
    (["-m", "seed=range(0,1e12)"], "seed = range(0,1e12): too many jobs"),
    (["-m", "seed=range(100)", "policy.nstep=range(1,200)"], "too many jobs"),
    (["-m", "seed=range(0,1,0)"], ""),
    # overrides
    (["policy.lr=" + "9" * 5000], "policy.lr"),
    (["seed=" + "[" * 500], "seed=[["),
    (["policy.lr={kind: piecewise, points: [[]]}"], "policy.lr.points"),
    (["policy.lr={kind: piecewise, points: [[1]]}"], "policy.lr.points"),
    (["policy.lr={kind: piecewise, points: [x]}"], "policy.lr.points"),
    (["policy.name=[]"], "policy.name = []"),
    (["policy=/etc/passwd"], "policy"),
    (["policy=../config"], "policy"),
    (["policy.=1"], ""),
    ([".policy=1"], ""),
    (["="], ""),
    (["~"], ""),
    (["+x"], ""),
    (["policy.lr=1\n2"], ""),
    (["seed=foo(1)"], "seed"),
    # what users of other tools type, and what a word processor makes of it
    (["policy=r2d2 env=cartpole"], "leave the quotes out: policy=r2d2 env=cartpole"),
    (["policy=r2d2\tenv=cartpole"], "leave the quotes out: policy=r2d2 env=cartpole"),
    (["policy=r2d2, env=cartpole"], "leave the quotes out: policy=r2d2 env=cartpole"),
    (["policy==r2d2"], "write policy=r2d2"),
    (["policy=", "r2d2"], "no spaces around its equals sign: policy=r2d2"),
    (["policy", "=r2d2"], "an equals sign and no spaces: policy=r2d2"),
    (["policy=dqn,"], "write policy=dqn"),
    (["-m", "seed=1,", "2,", "3"], "write seed=1,2,3"),
    (["-m", "seed=range(5"], "a bracket is not closed"),
    (["seed=range(5)"], "add -m: rlrun -m 'seed=range(5)'"),
    (["search", "policy.lr=loguniform(1e-4,1e-2)"], "'policy.lr=interval(1e-4,1e-2,log)'"),
    (["search", "policy.nstep=randint(1,5)"], "'policy.nstep=int(interval(1,5))'"),
    (["search", "policy.lr=interval(1e-4)"], "interval(LOW,HIGH,log) is allowed"),
    (["-m", "policy.lr=interval(0,1,log)"], "rlrun search 'policy.lr=interval(0,1,log)'"),
    (["policy.lr=interval(0,1)"], "rlrun search 'policy.lr=interval(0,1)'"),
    (["search", f"policy.nstep={','.join(map(str, (*range(1, 13), 0, *range(13, 25))))}"],
     "policy.nstep = 0: must be >= 1"),
    (["report", "x", "a\0b", "y"], "no such directory"),
    (["torso.hidden=(64,64)"], "'torso.hidden=[64,64]'"),
    (["+policy.lr=1"], "write policy.lr=1"),
    (["++policy=dqn"], "write policy=dqn"),
    (["debug=true"], "debug = true: unknown option"),
    (["env.name=CartPole-v1"], "did you mean env.id?"),
    (["device=gpu"], "set device=cuda"),
    (["--policy", "r2d2"], "write policy=r2d2"),
    (["--total-timesteps=5"], "see rlrun help total_steps"),
    (["-s", "1"], "write seed=1"),
    (["\u2013m", "seed=1,2"], "type -m"),
    (["policy=\u201cr2d2\u201d"], "type policy=r2d2"),
    (["train", "policy=r2d2"], "a run needs no subcommand"),
    (["plot", "outputs"], "rlrun report outputs"),
    (["sweep", "seed=1,2"], "rlrun -m KEY=A,B"),
    (["r2d2"], "did you mean policy=r2d2?"),
    (["my.yaml"], "--config-dir DIR and GROUP=NAME"),
    # absurd counts
    (["run.eval_episodes=1e12"], "run.eval_episodes = 1000000000000: must be <= 1000000"),
    (["collector.num_envs=1e9"], "must be <= 65536"),
    (["torso.hidden=[" + "8," * 100 + "8]"], "has 101 numbers; at most 64"),
    (["env.frame_stack=1e9"], "must be <= 1024"),
    (["learner.batch_size=1e18"], "must be <= 10000000"),
    (["policy=iqn", "policy.taus=1e12"], "must be <= 100000"),
    (["run.total_steps=1e300"], "must be <= 9007199254740992"),
    # subcommands
    (["eval", ".", "--episodes", "9" * 5000], "--episodes"),
    (["eval", ".", "--episodes", "\u00b2"], "--episodes"),
    (["eval", ".", "--seed", "-1"], "--seed"),
    (["eval", ".", "--weights", "\u00b2"], "--weights"),
    (["eval", ".", "."], "unrecognized arguments"),
    (["resume", ".", "=x"], ""),
    (["export", "."], "DATA_DIR"),
    (["export", ".", "d", "--shard-rows", "0"], "--shard-rows"),
    (["export", ".", "d", "--codec", "nope"], "--codec = nope"),
    (["doctor", "x"], "DIR = x: no such directory"),
    (["doctor", "--calibrate", "--seconds", "nan"], "--seconds"),
    (["codec"], ""),
    (["codec", "foo"], "foo"),
    (["help", LONG], ""),
    (["list", "x"], "rlrun list x: unknown group"),
    (["--trust", "a b"], "is no package"),
    (["--trust", "--trust"], "is no package"),
    (["--quiet=1"], "--quiet"),
    (["-x"], "-x"),
    (["-sc", "x"], "install"),
    (["--cfg", "nope"], "--cfg"),
    (["--cfg", "job", "--package", "nope"], "nope"),
    (["--info", "nope"], "--info"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "text"), LINES, ids=[ascii(" ".join(line))[:60] for line, _ in LINES]
)
def test_one_line_exit_2_nothing_made(
    rlrun: Callable[..., Done], tmp_path: Path, line: list[str], text: str
) -> None:
    done = rlrun(*line)
    assert_one_error(done)
    assert text in done.err
    assert len(done.err) < 2100
    assert files_under(tmp_path) == []


def test_a_working_directory_that_hydra_would_resolve(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x${y}"
    place.mkdir()
    monkeypatch.chdir(place)
    assert_one_error(rlrun("env=cartpole"))
    assert files_under(place) == []
    done = rlrun("env=cartpole", f"run.dir={tmp_path}/run")
    assert done.code == 0


@pytest.mark.parametrize("sweep", [(), ("-m", "seed=0,1")])
@pytest.mark.parametrize(
    "override",
    [
        "hydra.job_logging.version=7", "hydra.job_logging.root.level=NOPE",
        "hydra.job_logging.handlers.file.filename=/nowhere/x", "hydra.hydra_logging.version=7",
        "+hydra.job_logging.formatters.simple.style=x",
        "+hydra.job_logging.handlers.file.maxBytes=1",
        "'hydra.job_logging.handlers.file.filename=${nope:1}'",
    ],
)  # fmt: skip
def test_logging_that_python_does_not_take(
    rlrun: Callable[..., Done],
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    sweep: tuple[str, ...],
) -> None:
    """Noticed before a directory is made."""
    monkeypatch.setattr(directories, "claim", None)
    assert_one_error(rlrun("env=cartpole", override.strip("'"), *sweep))
    assert files_under(tmp_path) == []
    assert build.calls == []


def test_logging_that_python_takes(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path
) -> None:
    done = rlrun("env=cartpole", "run.dir=run", "hydra.job_logging.root.level=DEBUG")
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "rlrun.log").exists()


def test_a_callback_that_there_is_not(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path
) -> None:
    """Noticed when the directory is made already; it is removed again."""
    assert_one_error(rlrun("env=cartpole", "run.dir=run", "+hydra.callbacks.x=y"))
    assert files_under(tmp_path) == []
    assert build.calls == []
