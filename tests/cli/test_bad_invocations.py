"""Command lines that name what is not there, or what no file system holds: one line, nothing made.

Names and values of keys are in ``test_bad_values.py`` and ``tests/config/test_bad_input.py``.
"""

import os

import pytest

from rlrun.config import directories
from tests.in_process import assert_one_error, files_under

LONG = "n" * 300
FILE = "/etc/hostname"
NOT_UTF8 = os.fsdecode(b"a\xffb")

VERBS = (["eval"], ["resume"], ["export", "data"])
LINES: list[tuple[list[str], str]] = [  # command line, what the line on stderr holds
    # names that are too long, hold what Hydra resolves, or are no UTF-8
    ([f"run.dir={LONG}"], "a name in it has 300 bytes"),
    (["-m", "seed=1,2", f"hydra.sweep.dir={LONG}"], "hydra.sweep.dir = "),
    ([f"run.dir={'a/' * 3000}b"], "4096 in all"),
    (["run.dir='x${y'"], "run.dir"),
    (["hydra.run.dir='x\\${y}'"], "holds ${"),
    *[([f"{key}={NOT_UTF8}"], key) for key in ("run.dir", "policy.lr", "env.id")],
    (["run.dir=~nobody_here/x"], "run.dir"),
    *[([verb, path, *more], "RUN_DIR") for verb, *more in VERBS for path in
      (LONG, NOT_UTF8, FILE, "/dev/null", "/dev/zero/x")],
    (["export", ".", LONG], "DATA_DIR = nnn"),
    ([f"buffer.load={LONG}", "policy=dqn"], "buffer.load = nnn"),
    # paths that are files, devices, or not there
    ([f"run.dir={FILE}"], "this is not a directory"),
    (["run.dir=/"], "run.dir = /"),
    *[([*words, where], "no such directory") for words in
      (["list", "--config-dir"], ["help", "policy", "--config-dir"]) for where in ("none", FILE)],
    (["policy=dqn", f"buffer.load={FILE}"], "buffer.load"),
    (["policy=dqn", "buffer.load=/dev/zero"], "buffer.load"),
    (["policy=dqn", "buffer.demos=/etc"], "buffer.demos"),
    (["codec", "bench", "nowhere"], "FILE = nowhere"),
    (["codec", "bench", FILE], FILE),
    # Hydra's own keys
    (["hydra.output_subdir=../x"], "hydra.output_subdir = ../x"),
    (["hydra.searchpath=[pkg://nowhere]"], "nowhere"),
    (["hydra.searchpath=x"], "searchpath"),
    (["hydra.job=1"], "hydra.job"),
    (["hydra.mode=x"], "hydra.mode"),
    (["hydra/sweeper=nope"], "hydra/sweeper = nope"),
    (["-m", "seed=1,2", "hydra.sweeper.max_batch_size=0"], "max_batch_size = 0"),
    (["-m", "seed=1,2", "hydra.sweeper.params=3"], "hydra.sweeper.params"),
    # sweeps that never end, and searches
    (["-m", "seed=range(0,1e12)"], "seed = range(0,1e12): too many jobs"),
    (["-m", "seed=range(100)", "policy.nstep=range(1,200)"], "too many jobs"),
    (["-m", "seed=range(0,1,0)"], ""),
    (["-m", "seed=range(5"], "a bracket is not closed"),
    (["-m", "policy.lr=interval(0,1)"], "rlrun search"),
    (["policy.lr=interval(0,1)"], "rlrun search 'policy.lr=interval(0,1)'"),
    (["search", "policy.lr=loguniform(1e-4,1e-2)"], "'policy.lr=interval(1e-4,1e-2,log)'"),
    (["search", "policy.nstep=randint(1,5)"], "'policy.nstep=int(interval(1,5))'"),
    (["search", "policy.lr=interval(1e-4)"], "policy.lr"),
    (["search", f"policy.nstep={','.join(map(str, (*range(1, 13), 0, *range(13, 25))))}"],
     "policy.nstep = 0: must be within [1, 100000]"),
    # overrides
    (["policy.lr=" + "9" * 5000], "policy.lr"),
    (["seed=" + "[" * 500], "seed=[["),
    *[([f"policy.lr={{kind: piecewise, points: {x}}}"], "policy.lr.points") for x in
      ("[[]]", "[[1]]", "[x]")],
    (["policy.name=[]"], "policy.name = []"),
    (["policy=/etc/passwd"], "policy"),
    *[([text], "") for text in ("policy.=1", ".policy=1", "=", "~", "+x", "policy.lr=1\n2")],
    (["seed=foo(1)"], "seed"),
    # what users of other tools type, and what a word processor makes of it
    (["policy=r2d2\tenv=cartpole"], "leave the quotes out: policy=r2d2 env=cartpole"),
    (["policy==r2d2"], "write policy=r2d2"),
    (["policy=", "r2d2"], "policy=r2d2"),
    (["policy", "=r2d2"], "policy=r2d2"),
    (["policy=dqn,"], "write policy=dqn"),
    (["-m", "seed=1,", "2,", "3"], "write seed=1,2,3"),
    (["seed=range(5)"], "rlrun -m 'seed=range(5)'"),
    (["report", "x", "a\0b", "y"], "no such directory"),
    (["torso.hidden=(64,64)"], "'torso.hidden=[64,64]'"),
    (["+policy.lr=1"], "write policy.lr=1"),
    (["debug=true"], "debug = true: unknown option"),
    (["env.name=CartPole-v1"], "did you mean env.id?"),
    (["device=gpu"], "set device=cuda"),
    (["--policy", "r2d2"], "write policy=r2d2"),
    (["--total-timesteps=5"], "see rlrun help total_steps"),
    (["-s", "1"], "write seed=1"),
    (["\u2013m", "seed=1,2"], "type -m"),
    (["policy=\u201cr2d2\u201d"], "type policy=r2d2"),
    (["train", "policy=r2d2"], "subcommand"),
    (["plot", "outputs"], "rlrun report outputs"),
    (["sweep", "seed=1,2"], "rlrun -m KEY=A,B"),
    (["r2d2"], "did you mean policy=r2d2?"),
    (["my.yaml"], "--config-dir DIR and GROUP=NAME"),
    # absurd counts
    (["run.eval_episodes=1e12"], "run.eval_episodes = 1000000000000: must be within [1, 1000000]"),
    (["torso.hidden=[" + "8," * 100 + "8]"], "has 101 numbers; at most 64"),
    (["run.total_steps=1e300"], "must be within [-9007199254740992, 9007199254740992]"),
    # subcommands
    *[(["eval", ".", name, value], name) for name, value in
      (("--episodes", "9" * 5000), ("--episodes", "\u00b2"), ("--seed", "-1"),
       ("--weights", "\u00b2"))],
    (["eval", ".", "."], "unrecognized arguments"),
    (["resume", ".", "=x"], ""),
    (["export", "."], "DATA_DIR"),
    (["export", ".", "d", "--shard-rows", "0"], "--shard-rows"),
    (["export", ".", "d", "--codec", "nope"], "--codec = nope"),
    (["doctor", "x"], "DIR = x: no such directory"),
    (["doctor", "--calibrate", "policy=sac"], "sweep"),
    (["codec"], ""),
    (["codec", "foo"], "foo"),
    (["help", LONG], ""),
    (["list", "x"], "unknown group"),
    (["--trust", "a b"], "is no package"),
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
def test_one_line_exit_2_nothing_made(rlrun, tmp_path, line, text):
    done = rlrun(*line)
    assert_one_error(done)
    assert text in done.err
    assert len(done.err) < 2100
    assert files_under(tmp_path) == []


def test_a_working_directory_that_hydra_would_resolve(rlrun, tmp_path, monkeypatch):
    place = tmp_path / "x${y}"
    place.mkdir()
    monkeypatch.chdir(place)
    assert_one_error(rlrun("env=cartpole"))
    assert files_under(place) == []
    done = rlrun("env=cartpole", f"run.dir={tmp_path}/run")
    assert done.code == 0


@pytest.mark.parametrize(
    ("override", "sweep"),
    [("hydra.job_logging.version=7", ()),
     ("hydra.job_logging.root.level=NOPE", ("-m", "seed=0,1")),
     ("hydra.job_logging.handlers.file.filename=/nowhere/x", ()),
     ("hydra.hydra_logging.version=7", ("-m", "seed=0,1")),
     ("+hydra.job_logging.handlers.file.maxBytes=1", ()),
     ("hydra.job_logging.handlers.file.filename=${nope:1}", ())],
)  # fmt: skip
def test_logging_that_python_does_not_take(rlrun, build, tmp_path, monkeypatch, override, sweep):
    """Noticed before a directory is made."""
    monkeypatch.setattr(directories, "claim", None)
    assert_one_error(rlrun("env=cartpole", override, *sweep))
    assert files_under(tmp_path) == []
    assert build.calls == []


def test_logging_that_python_takes(rlrun, build, tmp_path):
    done = rlrun("env=cartpole", "run.dir=run", "hydra.job_logging.root.level=DEBUG")
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "rlrun.log").exists()


def test_a_callback_that_there_is_not(rlrun, build, tmp_path):
    """Noticed when the directory is made already; it is removed again."""
    assert_one_error(rlrun("env=cartpole", "run.dir=run", "+hydra.callbacks.x=y"))
    assert files_under(tmp_path) == []
    assert build.calls == []
