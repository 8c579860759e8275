"""Subcommands, flags, run directories, and what never imports torch."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from rlrun import __version__
from rlrun.cli.adaptive import quote
from rlrun.config import compose
from rlrun.config.directories import claim
from rlrun.errors import EnvError, Interrupted, StorageError
from rlrun.schema.spelling import RENAMED
from tests.in_process import Build, Done, files_under
from tests.installed import PRESETS, module_of

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"


def test_a_run(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
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
    assert sorted(p.name for p in run_dir.iterdir()) == [
        "config.yaml",
        "overrides.yaml",
        "rlrun.log",
    ]


def test_secrets_stay_unresolved(
    rlrun: Callable[..., Done], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert rlrun("env.note=${oc.env:TOKEN}").code == 0
    assert build.config.env.note == "s3cret"
    for path in build.run_dirs[0].iterdir():
        assert "s3cret" not in path.read_text()


def test_quiet(rlrun: Callable[..., Done], build: Build) -> None:
    for line in (["-q"], ["seed=1", "--quiet", "env=bandit"]):
        assert rlrun(*line).code == 0
        assert build.config.logger.progress == "off"
    assert rlrun("logger=quiet").code == 0
    assert build.config.logger.progress == "off"
    assert rlrun("-q", "-m", "seed=1,2") == (0, "", ""), "Hydra's launcher is quiet too"
    assert rlrun("-q", "hydra.mode=MULTIRUN", "seed=1,2") == (0, "", "")
    asked = rlrun("-q", "-m", "seed=1,2", "hydra.hydra_logging.root.level=INFO")
    assert asked.code == 0, "who asks for its logging gets it"


def test_exit_codes(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    build.codes = {1: 5, 2: EnvError("env 3: broken\nbadly"), 3: KeyboardInterrupt(), 4: 130}
    assert rlrun("seed=1") == (5, "", "")
    assert rlrun("seed=2") == (3, "", "rlrun: error: env 3: broken badly\n")
    assert rlrun("seed=3") == (130, "", "rlrun: interrupted\n")
    assert rlrun("seed=4").code == 130
    build.codes = {0: Interrupted("saved; rlrun resume X")}
    assert rlrun("seed=0") == (130, "", "rlrun: saved; rlrun resume X\n")


def test_a_bug_leaves_its_traceback_in_the_run_directory(
    rlrun: Callable[..., Done], build: Build
) -> None:
    build.codes = {0: ZeroDivisionError("division by zero")}
    done = rlrun()
    assert done.code == 9
    assert done.err.count("\n") == 1
    assert done.err.startswith(
        "rlrun: error: internal error: ZeroDivisionError: division by zero; this is a bug"
    )
    assert "Traceback" in (build.run_dirs[0] / "crash.txt").read_text()


def test_disk_full(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    path = tmp_path / "r"
    build.codes = {0: OSError(28, "No space left on device", str(path / "metrics.jsonl"))}
    done = rlrun(f"run.dir={path}")
    assert done.code == StorageError.exit_code
    assert "no space left on device" in done.err


def test_run_dir(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    assert rlrun("run.dir=new/deep").code == 0
    (tmp_path / "empty").mkdir()
    assert rlrun("run.dir=empty").code == 0
    assert build.run_dirs == [tmp_path / "new/deep", tmp_path / "empty"]
    done = rlrun("run.dir=empty")
    assert done.code == 2
    assert f"rlrun resume {tmp_path / 'empty'}" in done.err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert rlrun("run.dir=full").code == 2
    assert rlrun("run.dir=full/file").code == 2
    assert len(build.run_dirs) == 2


@pytest.mark.parametrize("name", ["a b", "a,b", "it's", "{x}=[1]", "ü", "a\\", "\\'", "$HOME", "1"])
def test_odd_directory_names(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path, name: str
) -> None:
    assert rlrun(f"run.dir={quote(name)}").code == 0
    assert build.run_dirs == [tmp_path / name]
    assert (tmp_path / name / "config.yaml").is_file()


def test_hydra_run_dir_is_respected(rlrun: Callable[..., Done], build: Build) -> None:
    for expected in ("there", "there_2", "there_3"):
        assert rlrun("hydra.run.dir=there").code == 0
        assert build.run_dirs[-1].name == expected


def test_a_config_may_name_the_directory_of_its_run(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path
) -> None:
    for name in ("there", "there_2"):
        assert rlrun("hydra.run.dir=there", "buffer.mmap=${hydra:run.dir}/rows").code == 0
        assert Path(build.config.buffer.mmap).absolute() == tmp_path / name / "rows"


def test_a_run_is_composed_once_and_read_once(
    rlrun: Callable[..., Done], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    count: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            count[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(ConfigLoaderImpl, "load_configuration")
    counted(compose, "read_config")
    assert rlrun("policy=r2d2", "env=cartpole").code == 0
    assert count == {"load_configuration": 1, "read_config": 1}


def test_directories_claimed_at_once_are_different(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(lambda _: claim(tmp_path / "d/x", exact=False), range(64)))
    assert len(set(paths)) == 64
    assert all(p.is_dir() for p in paths)


def test_of_keys_that_exclude_each_other_the_typed_one_counts(
    rlrun: Callable[..., Done], build: Build
) -> None:
    """debug=smoke gives one, the policy's presets the other."""
    assert rlrun("policy=dqn", "debug=smoke", "learner.replay_ratio=16").code == 0
    learner = build.config.learner
    assert (learner.replay_ratio, learner.update_per_collect) == (16, None)
    typed = ["policy=dqn", "debug=smoke", "learner.replay_ratio=16"]
    assert build.calls[-1][2]["overrides"] == [*typed, "learner.update_per_collect=null"]
    assert rlrun("policy=dqn", "learner.update_per_collect=4").code == 0
    learner = build.config.learner
    assert (learner.replay_ratio, learner.update_per_collect) == (None, 4)
    assert rlrun("policy=dqn", "policy.target_update_every=100").code == 0
    policy = build.config.policy
    assert (policy.target_update_every, policy.target_tau) == (100, None)
    assert rlrun("-m", "policy=dqn", "debug=smoke", "learner.replay_ratio=8,16").code == 0
    learner = build.config.learner
    assert (learner.replay_ratio, learner.update_per_collect) == (16, None)


def test_free_keys_of_the_environment(rlrun: Callable[..., Done], build: Build) -> None:
    assert rlrun("env=tmaze", "env.length=50").code == 0
    assert build.config.env.kwargs["length"] == 50
    assert build.calls[-1][2]["overrides"] == ["env=tmaze", "env.kwargs.length=50"]
    assert rlrun("env=tmaze", "env.eval_kwargs.length=20", "env.kwargs.penalty=0.1").code == 0
    assert build.config.env.eval_kwargs["length"] == 20
    assert build.config.env.kwargs["penalty"] == 0.1
    assert rlrun("env=tmaze", "env.kwargs={length: 5}").code == 0
    assert build.config.env.kwargs["length"] == 5
    assert rlrun("env=gym", "env.id=CartPole-v1", "env.kwargs.sutton_barto_reward=true").code == 0
    assert build.config.env.kwargs == {"sutton_barto_reward": True}


def test_numbers(rlrun: Callable[..., Done], build: Build) -> None:
    schedule = "buffer.alpha={kind: piecewise, points: [[0, 0.5], [1e4, 1]]}"
    assert rlrun("run.total_steps=1e5", schedule, "policy.lr=1e-4").code == 0
    assert build.config.run.total_steps == 100_000
    assert isinstance(build.config.run.total_steps, int)
    assert build.config.buffer.alpha.points == ((0.0, 0.5), (1e4, 1.0))
    assert build.config.policy.lr.kind == "constant"


def a_run(rlrun: Callable[..., Done], tmp_path: Path) -> Path:
    path = tmp_path / "old"
    assert rlrun(f"run.dir={path}", "env=bandit", "debug=smoke", "seed=5").code == 0
    return path


def test_eval(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    path = a_run(rlrun, tmp_path)
    assert rlrun("eval", str(path)).code == 0
    film = {"video": None, "traces": False, "fps": None}
    nothing = {"episodes": None, "weights": "final", "seed": None, "device": None}
    assert build.calls[-1] == ("eval", (path,), nothing | film)
    line = "--episodes 7 --weights best --seed 9 --device cpu"
    assert rlrun("eval", str(path), *line.split()).code == 0
    given = {"episodes": 7, "weights": "best", "seed": 9, "device": "cpu"}
    assert build.calls[-1] == ("eval", (path,), given | film)
    assert rlrun("eval", str(path), "--device", "tpu").code == 2


def test_resume(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    path = a_run(rlrun, tmp_path)
    assert rlrun("resume", str(path)).code == 0
    name, (run_dir, config), given = build.calls[-1]
    assert (name, run_dir, config.seed) == ("resume", path, 5)
    assert given["overrides"] == []
    assert rlrun("resume", str(path), "run.total_steps=900", "learner.threads=1", "-q").code == 0
    _, (_, config), given = build.calls[-1]
    assert (config.run.total_steps, config.learner.threads) == (900, 1)
    assert config.logger.progress == "off"
    assert "total_steps: 900" in given["raw_yaml"]
    for bad in ("policy.lr=1", "seed=1", "run.dir=x", "run.total_stps=9", "policy=dqn", "foo"):
        done = rlrun("resume", str(path), bad)
        assert done.code == 2, bad
        assert done.err.count("\n") == 1
    assert "run.total_steps" in rlrun("resume", str(path), "run.total_stps=9").err


def test_resume_with_other_keys(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    """All that are refused are listed; those that are equal, or allowed by name, are not."""
    path = a_run(rlrun, tmp_path)
    line = ("policy.lr=0.5", "seed=5", "policy.gamma=0.5", "run.eval_every=7")
    done = rlrun("resume", str(path), *line)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "policy.lr, policy.gamma = 0.5, 0.5: a resumed run cannot change these" in done.err
    assert "'resume.allow=[policy.lr,policy.gamma]'" in done.err
    moved = rlrun("resume", str(path), "run.dir=elsewhere")
    assert moved.code == 2
    assert f"rlrun fork {path} run.dir=NEW" in moved.err
    assert "insist" not in moved.err, "resume.allow does not help"
    allow = "resume.allow=[policy.lr,policy.gamma]"
    assert rlrun("resume", str(path), *line, allow).code == 0
    _, (_, config), given = build.calls[-1]
    assert (config.policy.lr.start, config.run.eval_every, config.seed) == (0.5, 7, 5)
    assert rlrun("resume", str(path), "seed=6", "resume.allow=[policy]").code == 2
    assert rlrun("resume", str(path), "run.total_steps=900", "resume.rescale=true").code == 0
    _, (_, config), given = build.calls[-1]
    assert config.resume.rescale
    assert "rescale: false" in given["raw_yaml"], "it is asked for once"


def test_resume_a_run_without_the_newest_keys(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path
) -> None:
    path = a_run(rlrun, tmp_path)
    cfg = OmegaConf.load(path / "config.yaml")
    del cfg["watchdog"]
    del cfg.run["max_time"]
    OmegaConf.save(cfg, path / "config.yaml")
    assert rlrun("resume", str(path)).code == 0
    assert build.calls[-1][1][1] == build.config


def test_resume_a_run_of_an_earlier_version(
    rlrun: Callable[..., Done], build: Build, tmp_path: Path
) -> None:
    """Its config has the former names of some keys."""
    path = a_run(rlrun, tmp_path)
    text = (path / "config.yaml").read_text()
    for old, new in RENAMED.items():
        (old_name, name) = (key.rpartition(".")[2] for key in (old, new))
        assert f"\n  {name}:" in text
        text = text.replace(f"\n  {name}:", f"\n  {old_name}:")
    (path / "config.yaml").write_text(text)
    before = build.config
    assert rlrun("resume", str(path)).code == 0
    assert build.calls[-1][1][1] == before
    assert "learning_starts: " in build.calls[-1][2]["raw_yaml"]


def test_a_file_with_a_former_key(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "my" / "experiment").mkdir(parents=True)
    file = tmp_path / "my" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nlearner:\n  start_after: 9\n")
    done = rlrun("--config-dir", str(tmp_path / "my"), "experiment=mine")
    assert done.code == 2
    assert done.err.endswith("did you mean learner.learning_starts?\n")
    assert done.err.count("\n") == 1


def test_damaged_config(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    path = a_run(rlrun, tmp_path)
    for text in ("seed: [1\n", "[1, 2]\n", "seed: 0\n", ""):
        (path / "config.yaml").write_text(text)
        done = rlrun("resume", str(path))
        assert done.code == 2, text
        assert done.err.count("\n") == 1


def test_help_list_version(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    assert rlrun("--version") == (0, f"rlrun {__version__}\n", "")
    for line in (["--help"], ["-h"], ["help"], ["policy=dqn", "--help"]):
        done = rlrun(*line)
        assert done.code == 0
        assert max(map(len, done.out.splitlines())) <= 160
        for word in ("policy", "env", "experiment", "torso", "memory", "debug", "examples"):
            assert word in done.out
    out = rlrun("list").out
    for name in ("r2d2", "drqn", "dqn", "random", "cartpole_novel", "tmaze", "r2d2_paper"):
        assert f"  {name} " in out
    names = [line for line in out.splitlines() if line.startswith("  ")]
    assert all(len(line.split(None, 1)) == 2 for line in names)
    (line,) = (line for line in out.splitlines() if line.startswith("  acrobot "))
    assert "float32 [6] -> Discrete 3 " in line
    (line,) = (line for line in out.splitlines() if line.startswith("  minigrid_memory_s7 "))
    assert line.endswith("; wrappers: pick_obs, cast_obs")
    for name in PRESETS:
        (line,) = (line for line in out.splitlines() if line.startswith(f"  {name} "))
        module = module_of(name)
        absent = module is not None and find_spec(module) is None
        assert ("  needs: pip install " in line) == absent
        assert (" -> " in line) != absent
    assert "  delay_obs steps " in out
    assert files_under(tmp_path) == []


def test_list_filters_a_group(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are looked for in name and text, in any case; only what is shown is made."""

    def names(*line: str) -> list[str]:
        done = rlrun("list", *line)
        assert (done.code, done.err) == (0, "")
        return [text.split()[0] for text in done.out.splitlines()]

    whole = rlrun("list").out.splitlines()
    made: list[str] = []
    summary = importlib.import_module("rlrun.env.summary")
    probe = summary.probe
    monkeypatch.setattr(summary, "probe", lambda config: made.append(config.id) or probe(config))
    assert names("env", "CartPole_V") == ["cartpole_v0"]
    assert made == ["CartPole-v0"]
    assert names("env", "pole", "velocities")[0] == "cartpole_novel"  # words of its note
    assert names("env", "pick_obs") == ["minigrid_memory_s13", "minigrid_memory_s7"]
    assert (
        names("environments")
        == [x.split()[0] for x in whole if " -> " in x or "needs: " in x][
            -len(list(CONF.glob("env/*.yaml"))) :
        ]
    )
    assert names("policy", "soft actor-critic") == ["sac"]
    assert names("wrappers", "FLICKER") == ["flicker_obs"]
    assert names("torso") == sorted(path.stem for path in CONF.glob("torso/*.yaml"))
    for line, fix in (("envv", "rlrun list env"), ("cart", "rlrun list env cart"), ("env qq", "")):
        done = rlrun("list", *line.split())
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.rstrip().endswith(fix)
    assert files_under(tmp_path) == []


def test_the_examples_of_the_help_are_valid(rlrun: Callable[..., Done], build: Build) -> None:
    lines = [li.strip() for li in rlrun("--help").out.splitlines() if li.startswith("  rlrun ")]
    assert len(lines) == 5
    for line in lines[:-1]:
        fewer = ["seed=0"] if "-m" in line else []  # the last one counts: a job per policy
        assert rlrun(*line.split()[1:], *fewer).code == 0, line
    assert len(build.run_dirs) == 2 + 2


def test_what_hydra_prints_itself(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = rlrun("policy=dqn", "--cfg", "job", "env=tmaze", "env.length=9")
    assert done.code == 0
    shown = OmegaConf.create(done.out)
    assert (shown.policy.name, shown.env.kwargs.length) == ("dqn", 9)
    assert rlrun("--cfg", "job", "--package", "policy").out.startswith("# @package policy")
    assert "policy/r2d2" in rlrun("--info", "defaults").out
    assert "Hydra" in rlrun("--hydra-help").out
    assert "complete" in rlrun("-sc", "install=bash").out
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.delenv("COMP_LINE", raising=False)
        done = rlrun("-sc", f"query={shell}")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith(f"rlrun: error: rlrun -sc query={shell}: ")
        assert "install=" in done.err
    monkeypatch.setenv("COMP_LINE", "rlrun polic")
    assert "policy=" in rlrun("-sc", "query=bash").out
    assert rlrun("--cfg", "job", "policy.lrr=1").code == 2
    assert rlrun("--cfg", "job", "--package", "nope").code == 2
    assert files_under(tmp_path) == []


def test_users_own_yaml(rlrun: Callable[..., Done], build: Build, tmp_path: Path) -> None:
    files = {
        "env/mine.yaml": "defaults: [cartpole, _self_]\nkwargs: {sutton_barto_reward: true}\n"
        "note: my own pole\n",
        "policy/slow.yaml": "# my slow one\ndefaults: [r2d2, _self_]\nlr: 1e-5\n",
        "experiment/both.yaml": "# @package _global_\n# both at once\ndefaults:\n"
        "  - override /env: mine\n  - override /policy: slow\nseed: 9\n",
    }
    for name, text in files.items():
        path = tmp_path / "yaml" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    absolute = f"hydra.searchpath=[file://{tmp_path / 'yaml'}]"
    for flags in (["--config-dir", "yaml"], [absolute]):
        assert rlrun(*flags, "experiment=both").code == 0
        config = build.config
        assert (config.seed, config.policy.lr.start, config.buffer.name) == (9, 1e-5, "prioritized")
        assert config.env.kwargs == {"sutton_barto_reward": True}
        # Two runs within one second: the later one's name gets "_2".
        assert "_slow_mine_s9" in build.run_dirs[-1].name
        assert rlrun(*flags, "env=mine", "env.sutton_barto_reward=false").code == 0
        assert build.config.env.kwargs == {"sutton_barto_reward": False}
    out = rlrun("list", "--config-dir", "yaml").out
    assert "  float32 [4] -> Discrete 2 " in out[out.index("  mine ") :].splitlines()[0]
    assert all(text in out for text in ("my own pole", "my slow one", "both at once"))
    assert "slow" in rlrun("--help", "--config-dir", "yaml").out
    assert rlrun("resume", str(build.run_dirs[-1])).code == 0  # without the directory of yaml files


LIGHT = [
    ["--help"],
    ["--version"],
    ["list"],
    ["policy.lrr=1"],
    ["env.id=CartPole-v9"],
    ["device=cuda:99"],
    ["--cfg", "job"],
    ["-sc", "install=bash"],
    ["codec", "bench", "no/such/path"],
    ["codec", "bench", ".", "--plot", "no/such/directory/a.png"],
    ["eval", "no/such/path"],
    ["resume", "no/such/path"],
    ["export", "no/such/path", "data"],
]


def answer_without_torch(lines: list[list[str]], path: Path) -> None:
    """One after the other in one process: the first that imports torch is named."""
    code = (
        "import json, sys; from rlrun.cli.main import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    main(line)\n"
        "    if 'torch' in sys.modules: break\n"
        "print(line, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(lines)],
        cwd=path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"{lines[-1]} False", done.stderr


def test_answers_without_torch(tmp_path: Path) -> None:
    answer_without_torch(LIGHT, tmp_path)


def test_export_into_a_full_directory_answers_without_torch(
    rlrun: Callable[..., Done], tmp_path: Path
) -> None:
    assert rlrun("run.dir=old", "env=bandit", "debug=smoke").code == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    answer_without_torch([["export", "old", "full"]], tmp_path)
    assert "DATA_DIR = full: the directory is not empty" in rlrun("export", "old", "full").err


def test_a_user_file_with_a_shipped_name_is_refused(rlrun, tmp_path):
    (tmp_path / "mine" / "env").mkdir(parents=True)
    (tmp_path / "mine" / "env" / "cartpole.yaml").write_text("id: CartPole-v0\n")
    done = rlrun("--config-dir", str(tmp_path / "mine"), "env=cartpole")
    assert done.code == 2
    assert "env/cartpole.yaml has the name of a file that rlrun ships" in done.err


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("2", "2")])
def test_numpy_s_products_stay_on_one_thread(given, seen):
    """Unless the user says otherwise; and it is said before numpy is loaded."""
    code = (
        "import os, sys; from rlrun.cli.main import main; assert 'numpy' not in sys.modules;"
        "main(['--version']); print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    env |= {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == seen
