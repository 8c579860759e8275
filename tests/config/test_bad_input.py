"""Every mistake in a config: one line, the right exit code, nothing on the disk, no traceback."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.config import checks, directories
from tests.in_process import assert_one_error, files_under

HERE = Path(__file__).parent


def read_lines(path):
    """(class of error, words of a command line, texts of its error)."""
    title = ""
    for row in path.read_text("utf-8").splitlines():
        if row.startswith("["):
            title = row.strip("[]")
        elif not row.startswith("#"):
            line, *texts = row.split(" | ")
            yield title, line.split(), texts


LONG, NOT_UTF8 = "n" * 300, os.fsdecode(b"a\xffb")
UNWRITTEN = [  # words that no text file holds, what the line on stderr holds
    ([f"run.dir={LONG}"], "300 bytes"),
    (["-m", "seed=1,2", f"hydra.sweep.dir={LONG}"], "hydra.sweep.dir = "),
    ([f"run.dir={'a/' * 3000}b"], "4096"),
    (["policy=ppo", "learner.batch_size=64.5"], "learner.batch_size = 64.5"),
    *[([f"{key}={NOT_UTF8}"], key) for key in ("run.dir", "policy.lr", "env.id")],
    *[([verb, path, *more], "RUN_DIR") for path in (LONG, NOT_UTF8)
      for verb, *more in (["eval"], ["resume"], ["export", "data"])],
    *[([*line.split(), LONG], "nnn") for line in
      ("report", "doctor", "verify", "tensorboard", "--config-dir")],
    (["codec", "bench", LONG], "RUN_DIR|FILE"),
    (["resume", f"{LONG}@5"], "RUN_DIR"),
    *[([f"{group}={LONG}"], f"{group} = nnn") for group in ("policy", "env")],
    (["export", ".", LONG], "DATA_DIR = nnn"),
    ([f"buffer.load={LONG}", "policy=dqn"], "buffer.load = nnn"),
    ([f"policy.lr={'9' * 400}"], "policy.lr = 999"),
    ([f"policy.lr={'9' * 5000}"], "policy.lr=999"),
    ([f"policy.gamma={'9' * 400}"], "policy.gamma = 999"),
    ([f"run.max_time={'9' * 400}"], "run.max_time = 999"),
    (["seed=" + "[" * 500], "seed=[["),
    *[([f"policy.lr={{kind: piecewise, points: {x}}}"], "policy.lr.points")
      for x in ("[[]]", "[[1]]", "[x]")],
    (["buffer.beta={kind: linear, start: 1, end: 0.4}"], "buffer.beta"),
    (["policy.lr={kind: liner, start: 1, end: 0}"], "policy.lr"),
    (["policy.lr=1\n2"], ""),
    (["policy=r2d2\tenv=cartpole"], "policy=r2d2 env=cartpole"),
    (["report", "x", "a\0b", "y"], "DIR"),
    (["\u2013m", "seed=1,2"], "-m"),
    (["policy=\u201cr2d2\u201d"], "policy=r2d2"),
    (["torso.hidden=[" + "8," * 100 + "8]"], "64"),
    *[(["eval", ".", "--episodes", text], "--episodes") for text in ("9" * 5000, "\u00b2")],
    (["eval", ".", "--weights", "\u00b2"], "--weights"),
    (["help", LONG], ""),
    (["--trust", "a b"], "--trust"),
]  # fmt: skip
BAD = [*read_lines(HERE / "bad_lines.txt"), *(("", words, [text]) for words, text in UNWRITTEN)]


@pytest.mark.parametrize(
    ("title", "words", "texts"), BAD, ids=[ascii(" ".join(b[1]))[:60] for b in BAD]
)
def test_one_line_exit_2_nothing_made(rlrun, tmp_path, title, words, texts):
    done = rlrun(*words)
    assert_one_error(done, *texts)
    assert len(done.err) < 2100
    assert files_under(tmp_path) == []


@pytest.mark.parametrize(
    "text", ["id: [1\nnote: x: y\n", "id: a\n---\nid: b\n", "id: !!python/name:os.system a\n"]
)
def test_yaml_that_is_none(rlrun, tmp_path, text):
    (tmp_path / "mine/env").mkdir(parents=True)
    (tmp_path / "mine/env/broken.yaml").write_text(text)
    assert_one_error(rlrun("--config-dir", "mine", "env=broken"))


def test_an_experiment_is_blamed_only_for_keys_of_its_own(rlrun, tmp_path):
    (tmp_path / "my/policy").mkdir(parents=True)
    (tmp_path / "my/policy/mine.yaml").write_text("defaults: [ppo, _self_]\nbogus: 1\n")
    done = rlrun("--config-dir", "my", "policy=mine", "experiment=zoo_ppo_cartpole")
    assert_one_error(done, "policy.bogus = 1")
    assert "zoo_ppo_cartpole" not in done.err
    (tmp_path / "my/experiment").mkdir()
    text = "# @package _global_\npolicy: {learn_unrol_len: 9}\n"
    (tmp_path / "my/experiment/typing.yaml").write_text(text)
    done = rlrun("--config-dir", "my", "policy=r2d2", "experiment=typing")
    assert "policy.learn_unroll_len?" in done.err


@pytest.mark.parametrize(
    "line",
    ["collector.num_envs=1 explore.epsilon=0.1", "policy=dqn explore.base_epsilon=null",
     "policy=c51 policy.v_min=-5", "transport=coded transport.keep=3",
     "policy=mdqn policy.munchausen_tau=0.1", "policy=rainbow policy.noisy_resample=chunk"],
)  # fmt: skip
def test_what_is_not_typed_for_nothing(rlrun, line):
    """One environment goes by epsilon under the ladder too; null asks for nothing."""
    assert rlrun(*line.split()).code == 0


@pytest.mark.parametrize(
    "line",
    [
        "policy.learn_unroll_len=6",
        "collector.learned_overlap=14",
        "collector.tiling=plain collector.residual=last collector.overlap=23",
        "learner.learning_starts=60000 run.total_steps=60001",
        "learner.learning_starts=400 run.total_steps=401",
        "buffer.window_capacity=32",
        "policy=dqn policy.nstep=3 env=twostep buffer.capacity=80 collector.num_envs=8 "
        "learner.batch_size=1 learner.learning_starts=0",
        "memory=ffm memory.horizon=2",
    ],
)
def test_what_just_fits(rlrun, line):
    """The next value of each is in bad_lines.txt."""
    done = rlrun(*line.split())
    assert done.code == 0, done.err


# -- the machine -----------------------------------------------------------------------------------


def test_a_rollout_larger_than_allowed(rlrun, build, tmp_path):
    need = 16384 * (16 + 8 + 4 + 4)  # obs, action, reward, four flags
    assert_one_error(
        rlrun("policy=ppo", f"buffer.max_bytes={need - 1}"), "buffer.capacity = 16384", code=7
    )
    assert files_under(tmp_path) == []
    assert rlrun("policy=ppo", f"buffer.max_bytes={need}").code == 0


def test_cuda_without_cuda(rlrun, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "cuda_devices", lambda: (0, "no driver"))
    assert_one_error(rlrun("device=cuda"), "device = cuda: no driver", code=7)
    monkeypatch.setattr(checks, "cuda_devices", lambda: (2, ""))
    assert_one_error(rlrun("device=cuda:2"), code=7)
    assert files_under(tmp_path) == []
    assert rlrun("device=cuda:1").code == 0


def test_cuda_devices_are_counted_as_torch_does_without_importing_it():
    code = "import sys; from rlrun.config.checks import cuda_devices; c = cuda_devices()[0]; \
assert 'torch' not in sys.modules; import torch; assert c == torch.cuda.device_count(), c"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cuda_probe_without_driver(monkeypatch, tmp_path):
    """Private: no machine of the tests has a torch built for CUDA and no driver."""

    class Spec:
        origin = str(tmp_path / "__init__.py")

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(checks, "find_spec", lambda name: Spec)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    reasons = set()
    for version in ("'12.8'", "None"):
        (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {version}\n")
        checks.cuda_devices.cache_clear()
        count, reason = checks.cuda_devices()
        assert count == 0
        reasons.add(reason)
    checks.cuda_devices.cache_clear()
    assert len(reasons) == 2


# -- directories -----------------------------------------------------------------------------------


def test_unwritable_output(rlrun, tmp_path):
    (tmp_path / "outputs").write_text("a file")
    for line in (["seed=1"], ["-m", "seed=1,2"], ["run.dir=outputs/x"]):
        assert_one_error(rlrun(*line), code=6)
    assert files_under(tmp_path) == ["outputs"]


@pytest.mark.parametrize(
    ("line", "key"),
    [("run.dir=d/x", "run.dir"), ("-m seed=0,1 sweep.dir=d/x", "sweep.dir"),
     ("search policy.lr=interval(1e-4,1e-3) search.dir=d/x", "search.dir"),
     ("probe env=bandit probe.dir=d/x", "probe.dir"),
     ("bench memory --quick bench.dir=d/x", "bench.dir")],
)  # fmt: skip
def test_a_directory_that_cannot_be_written_is_named_by_its_key(
    rlrun, tmp_path, monkeypatch, line, key
):
    (tmp_path / "d").mkdir()
    access, locked = os.access, tmp_path / "d"  # root could write it
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != locked and access(p, mode))
    assert_one_error(rlrun(*line.split()), f"{key} = {tmp_path}/d/x", code=6)


@pytest.mark.parametrize("line", ["seed=1", "-m seed=0,1", "list", "eval r", "verify r", "--help"])
def test_a_working_directory_that_is_gone(rlrun, tmp_path, monkeypatch, line):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = rlrun(*line.split())
    monkeypatch.chdir(tmp_path)
    assert_one_error(done, code=6)


# -- what is Hydra's -------------------------------------------------------------------------------


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


def test_a_callback_that_there_is_not(rlrun, build, tmp_path):
    """Noticed when the directory is made already; it is removed again."""
    assert_one_error(rlrun("env=cartpole", "run.dir=run", "+hydra.callbacks.x=y"))
    assert files_under(tmp_path) == []
    assert build.calls == []
