"""Yaml files of a stranger (--config-dir): exit 2, one line, no code run, no file made."""

import sys

import pytest

from tests.in_process import assert_one_error, files_under

GLOBAL = "# @package _global_\n"
EVIL = "experiment/evil.yaml"
LINE = "--config-dir mine experiment=evil"

# The two known attacks: an environment variable that workers of env.backend=async read at their
# start, and a file of the stranger's choice that Python's logging opens.
ENV_SET = "hydra: {job: {env_set: {PYTHONPATH: mine}}}"
LOGGING = (
    "hydra: {job_logging: {handlers: {file: {class: logging.FileHandler, filename: owned.txt}}}}"
)

FORBIDDEN = [  # (name of a file, its content, command line, what the error names)
    (EVIL, GLOBAL + ENV_SET, LINE, "hydra.job.env_set.PYTHONPATH = mine: a file may not"),
    (EVIL, GLOBAL + LOGGING, LINE, "hydra.job_logging.handlers.file.filename = owned.txt"),
    (EVIL, "# @package hydra.job\nenv_set: {PYTHONPATH: mine}", LINE, "hydra.job.env_set"),
    ("env/evil.yaml", GLOBAL + ENV_SET, "--config-dir mine env=evil", "hydra.job.env_set"),
    ("env/evil.yaml", GLOBAL + ENV_SET, "--config-dir mine -m env=cartpole,evil", "sweep job 1"),
    (EVIL, GLOBAL + "hydra: {callbacks: {a: {_target_: os.system}}}", LINE, "hydra.callbacks.a"),
    (
        EVIL,
        GLOBAL + "hydra: {callbacks: {a: {_target_: hydra.experimental.callbacks."
        "PickleJobInfoCallback}}}",
        LINE,
        "hydra.callbacks.a",
    ),
    (EVIL, GLOBAL + "hydra: {launcher: {_target_: os.system}}", LINE, "hydra.launcher._target_"),
    (EVIL, GLOBAL + "hydra: {sweeper: {_target_: os.system}}", LINE, "hydra.sweeper._target_"),
    (EVIL, GLOBAL + "hydra: {output_subdir: ../../x}", LINE, "hydra.output_subdir = ../../x"),
    (EVIL, GLOBAL + "hydra: {job: {chdir: true}}", LINE, "hydra.job.chdir = true"),
    (EVIL, GLOBAL + "hydra: {searchpath: [pkg://evil]}", LINE, "hydra.searchpath"),
    (EVIL, GLOBAL + "hydra: {overrides: {hydra: [hydra.verbose=true]}}", LINE, "hydra.overrides"),
    (EVIL, GLOBAL + "hydra: {run: {dir: ../x}}", LINE, "hydra.run.dir = ../x: leads out"),
    (EVIL, GLOBAL + "hydra: {run: {dir: /tmp/x}}", LINE, "hydra.run.dir = /tmp/x: leads out"),
    (EVIL, GLOBAL + "hydra: {run: {dir: '${oc.env:HOME}/x'}}", LINE, "hydra.run.dir"),
    (EVIL, GLOBAL + "run: {dir: ../x}", LINE, "run.dir = ../x: leads out"),
    (EVIL, GLOBAL + "run: {dir: /tmp/x}", LINE, "run.dir = /tmp/x: leads out"),
    (EVIL, GLOBAL + "buffer: {mmap: /tmp/x}", LINE, "buffer.mmap = /tmp/x: leads out"),
    (EVIL, GLOBAL + "run: {dir: '${oc.env:HOME}/x'}", LINE, "run.dir"),
    (EVIL, GLOBAL + "hydra: {sweep: {dir: /tmp/x}}", f"-m {LINE} seed=1,2", "hydra.sweep.dir"),
    (EVIL, GLOBAL + "hydra: {sweep: {subdir: ../..}}", f"-m {LINE} seed=1", "hydra.sweep.subdir"),
    (
        EVIL,
        GLOBAL + "hydra: {sweeper: {params: {+hydra.job.env_set.A: b}}}",
        f"-m {LINE}",
        "hydra.sweeper.params.+hydra.job.env_set.A = b",
    ),
    (
        EVIL,
        GLOBAL + "hydra: {sweeper: {params: {buffer.mmap: '/tmp/x,/tmp/y'}}}",
        f"-m {LINE}",
        "buffer.mmap = /tmp/x: leads out",
    ),
    (EVIL, GLOBAL + "hydra: {sweeper: {params: {env.id: 'evil:A,b'}}}", f"-m {LINE}", "evil:A"),
    (
        "main.yaml",
        "defaults: [config, _self_]\nhydra: {searchpath: [pkg://evil]}",
        "--config-dir mine --config-name main",
        "hydra.searchpath = [pkg://evil]: a file may not",
    ),
    (
        "main.yaml",
        "defaults: [config, override hydra/job_logging: evil]\n",
        "--config-dir mine --config-name main",
        "",
    ),
    (
        "main.yaml",
        "defaults: [config, _self_]\n" + ENV_SET,
        "--config-dir mine --config-name main",
        "hydra.job.env_set.PYTHONPATH = mine",
    ),
    (
        "hydra/job_logging/evil.yaml",
        "handlers: {file: {class: logging.FileHandler, filename: owned.txt}}\nversion: 1",
        "--config-dir mine hydra/job_logging=evil",
        "hydra/job_logging = evil: unknown option",
    ),
    ("env/evil.yaml", GLOBAL + ENV_SET, "hydra.searchpath=[mine] env=evil", "hydra.job.env_set"),
    # what Hydra would drop, what would be another value than it reads
    (EVIL, GLOBAL + "defaults: [override /hydra/launcher: basic]", LINE, "hydra/launcher = basic"),
    (EVIL, GLOBAL + "defaults: [override hydra/sweeper: basic]", LINE, "hydra/sweeper = basic"),
    (EVIL, GLOBAL + "env: {kwargs: {limit: None}}", LINE, "env.kwargs.limit = None: is the text"),
    ("env/evil.yaml", "kwargs: {a: [1, inf]}", "--config-dir mine env=evil", "kwargs.a = inf"),
    # code in rlrun's own keys
    (EVIL, GLOBAL + "policy: {_target_: os.system}", LINE, "policy._target_ = os.system: a config"),
    (EVIL, GLOBAL + "run: {_args_: [rm]}", LINE, "run._args_ = [rm]: a config cannot run code"),
    (EVIL, GLOBAL + "env: {kwargs: {a: [{_target_: os.system}]}}", LINE, "env.kwargs.a.0._target_"),
    (EVIL, GLOBAL + "policy: {lr: {_target_: os.system}}", LINE, "policy.lr._target_"),
    (EVIL, GLOBAL + "env: {id: 'evil:Env-v0'}", LINE, "env.id = evil:Env-v0: the package evil"),
    (EVIL, GLOBAL + "env: {id: 'pettingzoo:evil.x'}", LINE, "env.id = pettingzoo:evil.x"),
    (EVIL, GLOBAL + "policy: {name: 'evil:Policy'}", LINE, "policy.name = evil:Policy"),
    (EVIL, GLOBAL + "memory: {name: 'evil:Cell'}", LINE, "memory.name = evil:Cell"),
    # resolvers
    (EVIL, GLOBAL + "seed: ${python:1}", LINE, "seed = ${python:1}: Unsupported interpolation"),
    (EVIL, GLOBAL + "seed: ${oc.env:NOT_THERE}", LINE, "seed = ${oc.env:NOT_THERE}"),
    (EVIL, GLOBAL + "seed: ${oc.create:{a:1}}", LINE, "seed"),
    (EVIL, GLOBAL + "policy: {lr: ${policy.gamma}}\npolicy.gamma: ${policy.lr}", LINE, ""),
]


@pytest.mark.parametrize(("name", "content", "line", "expected"), FORBIDDEN)
def test_refused(rlrun, tmp_path, name, content, line, expected):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    (tmp_path / "evil.py").write_text("open('imported', 'w')\n")
    before, modules = files_under(tmp_path), set(sys.modules)
    done = rlrun(*line.split())
    assert_one_error(done)
    assert expected in done.err
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


@pytest.mark.parametrize("subdir", ["../..", "/tmp/x", "''", "x"])
def test_jobs_stay_in_their_sweep_each_in_a_directory_of_its_own(rlrun, tmp_path, subdir):
    done = rlrun("-m", "seed=1,2", f"hydra.sweep.subdir={subdir}")
    assert_one_error(done)
    assert "hydra.sweep.subdir = " in done.err
    assert files_under(tmp_path) == []
