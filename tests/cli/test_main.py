"""Subcommands, flags, run directories, exit codes, and what never imports torch."""

import errno
import gc
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlrun import __version__
from rlrun.cli import uncollected
from rlrun.cli.error_report import job_error
from rlrun.cli.main import main
from rlrun.config import load, to_yaml
from rlrun.config.directories import claim
from rlrun.errors import EnvError, Interrupted
from rlrun.schema.spelling import RENAMED
from tests.in_process import assert_one_error, files_under


def test_a_run(rlrun, build, tmp_path):
    done = rlrun("policy=r2d2", "env=cartpole", "seed=3", "policy.nstep=2")
    assert (done.code, done.err) == (0, "")
    (run_dir,) = build.run_dirs
    assert run_dir.parent.parent == tmp_path / "outputs"
    assert run_dir.name.endswith("_r2d2_cartpole_s3")
    assert (build.config.seed, build.config.policy.nstep) == (3, 2)
    given = build.calls[-1][2]
    assert given["overrides"] == ["policy=r2d2", "env=cartpole", "seed=3", "policy.nstep=2"]
    assert (run_dir / "config.yaml").read_text() == given["raw_yaml"]
    assert "hydra" not in OmegaConf.load(run_dir / "config.yaml")
    assert "total_steps: ${env.total_steps}" in given["raw_yaml"]
    assert OmegaConf.load(run_dir / "overrides.yaml") == given["overrides"]
    assert files_under(run_dir) == ["config.yaml", "overrides.yaml", "rlrun.log"]


def test_quiet(rlrun, build):
    for line in (["-q"], ["seed=1", "--quiet", "env=bandit"], ["logger=quiet"]):
        assert rlrun(*line).code == 0
        assert build.config.logger.progress == "off"
    assert rlrun("-q", "-m", "seed=1,2") == (0, "", ""), "Hydra's launcher is quiet too"
    for mode in ("MULTIRUN", "2"):  # of Hydra's enum
        assert rlrun("-q", f"hydra.mode={mode}", "seed=1,2") == (0, "", "")
    asked = rlrun("-q", "-m", "seed=1,2", "hydra.hydra_logging.root.level=INFO")
    assert asked.code == 0, "who asks for its logging gets it"


def test_exit_codes(rlrun, build, tmp_path):
    full = OSError(28, "No space left on device", str(tmp_path / "r/metrics.jsonl"))
    build.codes = {1: 5, 2: EnvError("env 3: broken\nbadly"), 3: KeyboardInterrupt(), 4: 130,
                   5: Interrupted("saved; rlrun resume X"), 6: full}  # fmt: skip
    codes = [rlrun(f"seed={seed}").code for seed in (1, 2, 3, 4, 5)]
    assert codes == [5, 3, 130, 130, 130]
    assert_one_error(rlrun("seed=2"), code=3)
    assert "rlrun resume X" in rlrun("seed=5").err
    assert_one_error(rlrun("seed=6", f"run.dir={tmp_path / 'r'}"), code=6)


def test_a_full_disk_of_the_output_and_a_closed_stderr(monkeypatch):
    assert job_error(OSError(errno.ENOSPC, "full"), None).exit_code == 6
    assert job_error(OSError(errno.EMFILE, "too many"), None).exit_code == 7
    memory = job_error(RuntimeError("can't allocate memory: 9 TB"), None)
    assert job_error(memory, None) is memory
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["--version"]) == 0
    with sys.stderr as opened:
        assert not opened.isatty()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_refusal_that_stderr_does_not_take():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "rlrun", "polcy=3"], stderr=full)
    assert done.returncode == 2


def test_a_bug_leaves_its_traceback_in_the_run_directory(rlrun, build):
    build.codes = {0: ZeroDivisionError("division by zero")}
    assert_one_error(rlrun(), "ZeroDivisionError: division by zero", code=9)
    assert "Traceback" in (build.run_dirs[0] / "crash.txt").read_text()


# -- directories -----------------------------------------------------------------------------------


def test_run_dir(rlrun, build, tmp_path):
    assert rlrun("run.dir=new/deep").code == 0
    (tmp_path / "empty").mkdir()
    assert rlrun("run.dir=empty").code == 0
    assert build.run_dirs == [tmp_path / "new/deep", tmp_path / "empty"]
    assert_one_error(rlrun("run.dir=empty"), f"rlrun resume {tmp_path / 'empty'}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert rlrun("run.dir=full").code == 2
    assert rlrun("run.dir=full/file").code == 2
    assert len(build.run_dirs) == 2


@pytest.mark.parametrize(
    ("name", "typed"),
    [("a b", "'a b'"), ("a,b", "'a,b'"), ("it's", '"it\'s"'), ("{x}=[1]", "'{x}=[1]'"),
     ("ü", "'ü'"), ("$HOME", "'$HOME'"), ("1", "1")],
)  # fmt: skip
def test_odd_directory_names(rlrun, build, tmp_path, name, typed):
    assert rlrun(f"run.dir={typed}").code == 0
    assert build.run_dirs == [tmp_path / name]
    assert (tmp_path / name / "config.yaml").is_file()


def test_hydra_run_dir_is_respected_and_never_shared(rlrun, build, tmp_path):
    for expected in ("there", "there_2", "there_3"):
        assert rlrun("hydra.run.dir=there", "buffer.mmap=${hydra:run.dir}/rows").code == 0
        assert build.run_dirs[-1].name == expected
        assert Path(build.config.buffer.mmap).absolute() == tmp_path / expected / "rows"


@pytest.mark.parametrize(
    ("words", "name"),
    [("env=cartpole", "cartpole"), ("env=cartpole env.id=Acrobot-v1", "cartpole"),
     ("env=gym env.id=CartPole-v1", "CartPole-v1"),
     ("env=gym env.id=gymnasium.envs:CartPole-v1", "gymnasium.envs_CartPole-v1")],
)  # fmt: skip
def test_the_directory_of_a_run_names_its_environment(rlrun, build, words, name):
    assert rlrun("policy=dqn", *words.split()).code == 0
    assert build.run_dirs[-1].name.partition("_")[2] == f"dqn_{name}_s0"


def test_directories_claimed_at_once_are_different(tmp_path):
    """Private: two processes that start in the same second are no test."""
    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(lambda _: claim(tmp_path / "d/x", exact=False), range(64)))
    assert len(set(paths)) == 64
    assert all(p.is_dir() for p in paths)


# -- words of a line -------------------------------------------------------------------------------


def test_of_keys_that_exclude_each_other_the_typed_one_counts(rlrun, build):
    """debug=smoke gives one, the policy's presets the other."""
    typed = ["policy=dqn", "debug=smoke", "learner.replay_ratio=16"]
    assert rlrun(*typed).code == 0
    learner = build.config.learner
    assert (learner.replay_ratio, learner.update_per_collect) == (16, None)
    assert build.calls[-1][2]["overrides"] == [*typed, "learner.update_per_collect=null"]
    assert rlrun("policy=dqn", "learner.update_per_collect=4").code == 0
    learner = build.config.learner
    assert (learner.replay_ratio, learner.update_per_collect) == (None, 4)
    assert rlrun("policy=dqn", "policy.target_update_every=100").code == 0
    policy = build.config.policy
    assert (policy.target_update_every, policy.target_tau) == (100, None)
    assert rlrun("-m", "policy=dqn", "debug=smoke", "learner.replay_ratio=8,16").code == 0


def test_environment_arguments(rlrun, build):
    assert rlrun("env=tmaze", "env.length=7").code == 0
    assert build.config.env.kwargs["length"] == 7
    assert build.calls[-1][2]["overrides"] == ["env=tmaze", "env.kwargs.length=7"]
    assert rlrun("env=tmaze", "env.kwargs={length: 5}").code == 0
    assert build.config.env.kwargs["length"] == 5
    assert rlrun("env=gym", "env.id=CartPole-v1", "env.kwargs.sutton_barto_reward=true").code == 0
    assert build.config.env.kwargs == {"sutton_barto_reward": True}


def test_numbers(rlrun, build):
    schedule = "buffer.alpha={kind: piecewise, points: [[0, 0.5], [1e4, 1]]}"
    assert rlrun("run.total_steps=1e5", schedule, "policy.lr=1e-4", "run.max_time=1.5h").code == 0
    run = build.config.run
    assert (run.total_steps, type(run.total_steps), run.max_time) == (100_000, int, 5400.0)
    assert build.config.buffer.alpha.points == ((0.0, 0.5), (1e4, 1.0))
    assert build.config.policy.lr.kind == "constant"


def test_users_own_yaml(rlrun, build, tmp_path):
    files = {
        "env/mine.yaml": "defaults: [cartpole, _self_]\nkwargs: {sutton_barto_reward: true}\n"
        "note: my own pole\n",
        "policy/slow.yaml": "# my slow one\ndefaults: [r2d2, _self_]\nlr: 1e-5\n",
        "experiment/both.yaml": "# @package _global_\n# both at once\ndefaults:\n"
        "  - override /env: mine\n  - override /policy: slow\nseed: 9\n",
    }
    for name, text in files.items():
        (tmp_path / "yaml" / name).parent.mkdir(parents=True)
        (tmp_path / "yaml" / name).write_text(text)
    absolute = f"hydra.searchpath=[file://{tmp_path / 'yaml'}]"
    for flags in (["--config-dir", "yaml"], [absolute]):
        assert rlrun(*flags, "experiment=both").code == 0
        config = build.config
        assert (config.seed, config.policy.lr.start, config.buffer.name) == (9, 1e-5, "prioritized")
        assert config.env.kwargs == {"sutton_barto_reward": True}
        assert "_slow_mine_s9" in build.run_dirs[-1].name
        assert rlrun(*flags, "env=mine", "env.sutton_barto_reward=false").code == 0
        assert build.config.env.kwargs == {"sutton_barto_reward": False}
    out = rlrun("list", "--config-dir", "yaml").out
    assert "float32 [4] -> Discrete 2" in out[out.index("  mine ") :].splitlines()[0]
    assert all(text in out for text in ("my own pole", "my slow one", "both at once"))
    assert rlrun("resume", str(build.run_dirs[-1])).code == 0  # without the directory of yaml files


def test_what_an_env_yaml_leaves_out_has_a_default(rlrun, build, tmp_path):
    """Keys that are newer than the file too; the id has none."""
    assert rlrun("env=gym", "env.id=CartPole-v1", "policy=dqn").code == 0
    expected = replace(build.config.env, note="", total_steps=5000)
    assert build.config.policy.gamma == expected.gamma > 0
    (tmp_path / "my/env").mkdir(parents=True)
    (tmp_path / "my/env/pole.yaml").write_text("# my pole\nid: CartPole-v1\ntotal_steps: 5000\n")
    (tmp_path / "my/env/nothing.yaml").write_text("total_steps: 5000\n")
    assert rlrun("--config-dir", "my", "env=pole", "policy=dqn").code == 0
    assert (build.config.env, build.config.policy.gamma) == (expected, expected.gamma)
    listed = rlrun("list", "env", "pole", "--config-dir", "my").out
    assert "float32 [4] -> Discrete 2" in listed
    assert "my pole" in listed
    assert_one_error(rlrun("--config-dir", "my", "env=nothing"), "env.id")


def test_user_files_that_are_refused(rlrun, tmp_path):
    """One with the name of a shipped file, one with a former name of a key."""
    (tmp_path / "mine/env").mkdir(parents=True)
    (tmp_path / "mine/env/cartpole.yaml").write_text("id: CartPole-v0\n")
    assert_one_error(rlrun("--config-dir", "mine", "env=cartpole"), "env/cartpole.yaml")
    (tmp_path / "my/experiment").mkdir(parents=True)
    text = "# @package _global_\nlearner:\n  start_after: 9\n"
    (tmp_path / "my/experiment/mine.yaml").write_text(text)
    assert_one_error(rlrun("--config-dir", "my", "experiment=mine"), "learner.learning_starts")


def test_what_hydra_prints_itself(rlrun, tmp_path, monkeypatch):
    facts = rlrun("--version").out.strip().split(", ")
    assert facts[0] == f"rlrun {__version__}"
    assert facts[-1].startswith(f"torch {version('torch').partition('+')[0]}")
    done = rlrun("policy=dqn", "--cfg", "job", "env=tmaze", "env.length=9")
    assert done.code == 0
    shown = OmegaConf.create(done.out)
    assert (shown.policy.name, shown.env.kwargs.length) == ("dqn", 9)
    assert rlrun("--cfg", "job", "--package", "policy").out.startswith("# @package policy")
    assert "policy/r2d2" in rlrun("--info", "defaults").out
    assert "Hydra" in rlrun("--hydra-help").out
    assert rlrun("--cfg", "job", "policy.lrr=1").code == 2
    assert rlrun("--cfg", "job", "--package", "nope").code == 2
    monkeypatch.setenv("COLUMNS", "40")
    assert rlrun("--cfg", "job").code == 0
    assert files_under(tmp_path) == []


WHOLE = ("policy=r2d2", "env=tmaze", "env.length=9", "buffer=uniform", "memory=gru", "seed=3")


def test_the_whole_config_says_what_each_key_means_and_is_read_back(rlrun, composer, tmp_path):
    """As an option of the group experiment, with the groups that its head names."""
    done = rlrun(*WHOLE, "--cfg", "job")
    assert done.code == 0
    keys = [line for line in done.out.splitlines() if re.match(r" *\w+:", line)]
    assert len(keys) > 150
    unexplained = {line.split(":")[0].strip() for line in keys if "#" not in line}
    assert unexplained == {"note"}, "on the next line, where it is long"
    longest_head = rlrun("policy=cql_sac", "env=pendulum", "--cfg", "job")
    assert max(map(len, [*done.out.splitlines(), *longest_head.out.splitlines()])) <= 80
    cfg = composer.compose(composer.rewrite(WHOLE))
    assert OmegaConf.to_yaml(OmegaConf.create(done.out)) == to_yaml(cfg)
    path = tmp_path / "my/experiment/mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(done.out)
    head = re.match(r"(?:# .*\n)+", done.out)[0].replace("# ", "")
    groups = [word for word in head.split() if "=" in word and not word.startswith("experiment")]
    assert {*groups} == {"env=tmaze", "buffer=uniform", "memory=gru"}
    assert rlrun("--config-dir", "my", "experiment=mine", *groups, "--cfg", "job").out == done.out


# -- what goes on with a run -----------------------------------------------------------------------


@pytest.fixture
def old(rlrun, tmp_path):
    assert rlrun("run.dir=old", "env=bandit", "debug=smoke", "seed=5").code == 0
    return tmp_path / "old"


def test_the_device_of_an_evaluation(rlrun, build, old):
    """Other flags are used where scores are checked: tests/api and tests/video/test_play.py."""
    assert rlrun("eval", str(old), "--device", "cpu").code == 0
    assert build.calls[-1][2]["device"] == "cpu"
    assert rlrun("eval", str(old), "--device", "tpu").code == 2


def test_eval_in_a_changed_environment(rlrun, build, tmp_path):
    """Arguments of the environment replace those of evaluations too."""
    assert rlrun("run.dir=old", "env=tmaze", "debug=smoke").code == 0
    path, typed = tmp_path / "old", ["env.length=100", "env.balanced=false"]
    assert rlrun("eval", str(path), *typed).code == 0
    assert build.calls[-1][2]["overrides"] == typed
    env = load(path, typed, replay=False, evaluation=True)[0].env
    assert (env.kwargs["length"], env.eval_kwargs) == (100, {"balanced": False})
    done = rlrun("eval", str(path), "env.lenght=100")
    assert_one_error(done)
    assert "env.kwargs.length" in done.err or "env.length" in done.err
    assert_one_error(rlrun("eval", str(path), "env.eval_episodes=7"), "run.eval_episodes")
    assert "--episodes" in rlrun("eval", str(path), "run.eval_episodes=7").err


def test_resume(rlrun, build, old):
    assert rlrun("resume", str(old)).code == 0
    name, (run_dir, config), given = build.calls[-1]
    assert (name, run_dir, config.seed, given["overrides"]) == ("resume", old, 5, [])
    assert rlrun("resume", str(old), "run.total_steps=900", "learner.threads=1", "-q").code == 0
    _, (_, config), given = build.calls[-1]
    assert (config.run.total_steps, config.learner.threads) == (900, 1)
    assert config.logger.progress == "off"
    assert "total_steps: 900" in given["raw_yaml"]
    calls = len(build.calls)
    for bad, named in (("policy.lr=1", "policy.lr"), ("seed=1", "seed"), ("run.dir=x", "run.dir"),
                       ("run.total_stps=9", "run.total_steps"), ("policy=dqn", "policy"),
                       ("foo", "foo")):  # fmt: skip
        assert_one_error(rlrun("resume", str(old), bad), named)
    assert len(build.calls) == calls


def test_resume_with_other_keys(rlrun, build, old):
    """All that are refused are listed; those that are equal, or allowed by name, are not."""
    line = ("policy.lr=0.5", "seed=5", "policy.gamma=0.5", "run.eval_every=7")
    done = rlrun("resume", str(old), *line)
    assert_one_error(done)
    allow = "resume.allow=[policy.lr,policy.gamma]"
    assert allow in done.err
    moved = rlrun("resume", str(old), "run.dir=elsewhere")
    assert f"rlrun fork {old} run.dir=NEW" in moved.err
    assert "resume.allow" not in moved.err, "it does not help"
    assert rlrun("resume", str(old), *line, allow).code == 0
    _, (_, config), given = build.calls[-1]
    assert (config.policy.lr.start, config.run.eval_every, config.seed) == (0.5, 7, 5)
    assert rlrun("resume", str(old), "seed=6", "resume.allow=[policy]").code == 2
    assert rlrun("resume", str(old), "run.total_steps=900", "resume.rescale=true").code == 0
    _, (_, config), given = build.calls[-1]
    assert config.resume.rescale
    assert "rescale: false" in given["raw_yaml"], "it is asked for once"


def test_resume_a_run_of_an_earlier_version(rlrun, build, old):
    """Its config lacks the newest keys, and has the former names of some."""
    text = (old / "config.yaml").read_text()
    cfg = OmegaConf.create(text)
    del cfg["watchdog"]
    del cfg.run["max_time"]
    OmegaConf.save(cfg, old / "config.yaml")
    assert rlrun("resume", str(old)).code == 0
    assert build.calls[-1][1][1] == build.config
    for seconds, code in ((5.0, 0), (9.0, 2)):  # a key that one value is left to
        cfg.logger.progress_seconds = seconds
        OmegaConf.save(cfg, old / "config.yaml")
        assert rlrun("resume", str(old)).code == code
    for former, name in RENAMED.items():
        text = text.replace(f"${{{name}}}", f"${{{former}}}")
        (former, name) = (f"\n  {key.rpartition('.')[2]}:" for key in (former, name))
        assert name in text or former in text or former == "\n  clip:"  # of PPO
        text = text.replace(name, former)
    assert "  stop_value: ${env.stop_value}" in text
    (old / "config.yaml").write_text(text)
    assert rlrun("resume", str(old)).code == 0
    assert build.calls[-1][1][1] == build.config
    assert "learning_starts: " in build.calls[-1][2]["raw_yaml"]


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_key_is_answered_with_the_present_one(rlrun, tmp_path, former):
    policy = {"clip": "ppo", "taus": "iqn", "noisy": "rainbow", "target": "sac"}.get(
        re.split(r"[._]", former)[1], "r2d2"
    )
    path = tmp_path / "my/experiment/mine.yaml"
    path.parent.mkdir(parents=True)
    group, _, name = former.partition(".")
    path.write_text(f"# @package _global_\n{group}: {{{name}: 3}}\n")
    env = "pendulum" if policy == "sac" else "cartpole"
    line = [f"policy={policy}", f"env={env}"]
    for words in ([f"{former}=3"], ["--config-dir", "my", "experiment=mine"]):
        assert_one_error(rlrun(*line, *words), f"{RENAMED[former]}?")


# -- what never imports torch ----------------------------------------------------------------------

LIGHT = [
    ["--help"], ["--version"], ["list"], ["policy.lrr=1"], ["env.id=CartPole-v9"],
    ["device=cuda:99"], ["--cfg", "job"], ["-sc", "install=bash"],
    ["codec", "bench", "no/such/path"], ["codec", "bench", ".", "--plot", "no/such/dir/a.png"],
    ["eval", "no/such/path"], ["resume", "no/such/path"], ["export", "no/such/path", "data"],
    ["export", "full", "full"], ["policy=r2d2", "learner.precision=bf16", "explore.typo=1"],
    ["report", "nowhere"], ["verify", "nowhere"],
]  # fmt: skip
HEAVY = {"torch", "hydra", "omegaconf", "yaml", "numpy", "gymnasium"}
QUICK = [["--help"], ["--version"], ["help", "policy.nstep"], ["help", "policy=r2d2"],
         ["help", "polcy.nstp"], ["list", "policy"], ["resume", "--help"],
         ["-sc", "query=bash"]]  # fmt: skip


@pytest.mark.parametrize(("lines", "heavy"), [(LIGHT, {"torch"}), (QUICK, HEAVY)])
def test_answers_without_heavy_packages(tmp_path, lines, heavy):
    """One after the other in one process: the first that imports one is named.

    Also: numpy's products stay on one thread, which has to be said before numpy is loaded.
    """
    (tmp_path / "full").mkdir()
    (tmp_path / "full/config.yaml").touch()
    code = (
        "import json, os, sys, rlrun; from rlrun.cli.main import main\n"
        "lines, heavy = map(json.loads, sys.argv[1:])\n"
        "if heavy == ['torch']: rlrun.train, rlrun.load, rlrun.sweep, rlrun.report\n"
        "for line in lines:\n"
        "    main(line)\n"
        "    found = [*{*heavy} & {*sys.modules}]\n"
        "    if found: break\n"
        "threads = os.environ['OPENBLAS_NUM_THREADS']\n"
        "print(json.dumps([line, found, threads]), file=sys.stderr)"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    env |= {"COMP_LINE": "rlrun policy=dqn policy.", "COMP_POINT": "24"}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(lines), json.dumps([*heavy])],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stderr.splitlines()[-1]) == [lines[-1], [], "1"]


def test_threads_of_numpy_that_the_user_chose(tmp_path):
    code = "import os; from rlrun.cli.main import main; main(['--version']); \
print(os.environ['OPENBLAS_NUM_THREADS'])"
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "2"


def test_garbage_is_collected_after_the_block_alone():
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
        with pytest.raises(ZeroDivisionError), uncollected():
            _ = 1 / 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_an_early_error_with_a_closed_stdout_is_a_line(tmp_path):
    """torch's library is being loaded then, so the process ends at once."""
    line = f"{shlex.quote(sys.executable)} -m rlrun policy=pqn env=cartpole bogus=1 >&-"
    found = subprocess.run(line, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
