"""Run directories of a stranger: every command refuses them in one line and at once."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.cli.main import main
from tests.faults import forge
from tests.faults.forge import Change

MORE = ["run.total_steps=300", "-q"]
COMMANDS = {
    "resume": ["resume", "run", *MORE],
    "eval": ["eval", "run", "--episodes", "1"],
    "best": ["eval", "run", "--episodes", "1", "--weights", "best"],
    "old": ["eval", "run", "--episodes", "1", "--weights", "129"],
    "export": ["export", "run", "data"],
    "verify": ["verify", "run"],
    "diff": ["diff", "run", "run"],
    "at": ["resume", "run@257", "--discard", "-q"],
    "fork": ["fork", "run@257", "run.dir=new", *MORE],
    "events": ["tensorboard-rebuild", "run"],
}
ALL = ("resume", "eval", "export")
EVERY = ("verify", "diff", "at", "fork", "events", *ALL)
STATE = ("verify", "diff", "at", "fork", "resume", "export")  # they read checkpoints
R, E, X = ("resume",), ("eval",), ("export",)
HUGE = 10**12

CASES: list[tuple[str, Change, tuple[str, ...], int]] = [  # what, change, commands, exit code
    # config.yaml
    ("alias bomb", forge.added(forge.bomb()), ALL, 2),
    ("alias of itself", forge.added("a: &a [*a]"), ALL, 2),
    ("deep yaml", forge.added("a: " + "[" * 500 + "]" * 500), ALL, 2),
    ("deeper yaml", forge.added("a: " + "[" * 100_000), ALL, 2),
    ("20 000 layers", forge.config("- 8\n", "- 8\n" * 20_000), ALL, 2),
    ("2 000 layers", forge.config("- 8\n", "- 8\n" * 2_000), ALL, 2),
    ("a layer of 1e12", forge.config("- 8\n", "- 1000000000000\n"), ALL, 2),
    ("300 KiB", forge.added("# " + "x" * 300_000), ALL, 2),
    ("no UTF-8", forge.text("config.yaml", b"seed: \xff\xfe"), ALL, 2),
    ("NUL", forge.text("config.yaml", b"seed: 0\0"), ALL, 2),
    ("empty", forge.text("config.yaml", ""), ALL, 2),
    ("a list", forge.text("config.yaml", "[1, 2]"), ALL, 2),
    ("a number", forge.text("config.yaml", "7"), ALL, 2),
    ("tabs", forge.text("config.yaml", "a:\n\t- b"), ALL, 2),
    ("python object", forge.added("a: !!python/object/apply:os.system [id]"), ALL, 2),
    ("python name", forge.added("a: !!python/name:os.system"), ALL, 2),
    ("binary", forge.config("seed: 0", "seed: !!binary aGVsbG8="), ALL, 2),
    ("a date", forge.config("seed: 0", "seed: 2001-01-01"), ALL, 2),
    ("a set", forge.config("seed: 0", "seed: !!set {a, b}"), ALL, 2),
    ("key of a list", forge.added("? [a, b]\n: 1"), ALL, 2),
    ("key of a mapping", forge.added("? {a: b}\n: 1"), ALL, 2),
    ("twice", forge.added("seed: 1"), ALL, 2),
    ("hydra", forge.added("hydra: {job: {env_set: {A: b}}}"), ALL, 2),
    ("hydra of nothing", forge.added("hydra: null"), ALL, 2),
    ("unknown key", forge.added("evil: 1"), ALL, 2),
    ("target", forge.config("env:\n", "env:\n  _target_: os.system\n"), ALL, 2),
    ("args", forge.config("policy:\n", "policy:\n  _args_: [id]\n"), ALL, 2),
    ("module of env.id", forge.config("id: CartPole-v1", "id: evil:Env-v0"), ALL, 2),
    ("module of pettingzoo", forge.config("id: CartPole-v1", "id: pettingzoo:evil"), ALL, 2),
    ("policy class", forge.config("  name: dqn", "  name: evil:Policy"), ALL, 2),
    ("memory class", forge.config("  name: none\n  hidden", "  name: evil:Cell\n  hidden"), ALL, 2),
    ("another env", forge.config("id: CartPole-v1", "id: Acrobot-v1"), ("resume", "eval"), 5),
    ("no such env", forge.config("id: CartPole-v1", "id: Nope-v3"), ALL, 2),
    ("1e12 episodes", forge.config("eval_episodes: 1", f"eval_episodes: {HUGE}"), ALL, 2),
    ("1e12 environments", forge.config("num_envs: 2", f"num_envs: {HUGE}"), ALL, 2),
    ("1e6 environments", forge.config("num_envs: 2", "num_envs: 1000000"), ALL, 2),
    ("a batch of 1e12", forge.config("batch_size: 4", f"batch_size: {HUGE}"), ALL, 2),
    ("1e12 frames", forge.config("frame_stack: 1", f"frame_stack: {HUGE}"), ALL, 2),
    ("1e15 rows", forge.config("capacity: 200", "capacity: 1000000000000000"), R, 7),
    ("1e12 steps a row", forge.config("n_sample: ", "n_sample: 1000000000000 #"), ALL, 2),
    ("1e12 versions", forge.config("history: 2", f"history: {HUGE}"), ALL, 2),
    ("4000 digits", forge.config("seed: 0", "seed: " + "9" * 4000), ALL, 2),
    ("5000 digits", forge.config("seed: 0", "seed: " + "9" * 5000), ALL, 2),
    ("nan", forge.config("gamma: 0.99", "gamma: .nan"), ALL, 2),
    ("interpolation of itself", forge.config("seed: 0", "seed: ${seed}"), ALL, 2),
    ("circle", forge.config("seed: 0", "seed: ${device}\nx: 1"), ALL, 2),
    ("unknown resolver", forge.config("seed: 0", "seed: '${eval:1}'"), ALL, 2),
    ("nested resolvers", forge.config("seed: 0", "seed: '" + "${oc.decode:" * 300 + "'"), ALL, 2),
    ("link", forge.link("config.yaml", "/etc/hostname"), EVERY, 2),
    ("link to a device", forge.link("config.yaml", "/dev/zero"), ("diff", *ALL), 2),
    ("pipe", forge.pipe("config.yaml"), EVERY, 2),
    # other files of the directory
    *[
        (f"link {name}", forge.link(name, "../victim"), commands, 2)
        for commands in (EVERY[:4], EVERY[4:])
        for name in (
            "metrics.jsonl",
            ".lock",
            "rlrun.log",
            "run.json",
            ".tmp_config.yaml",
            "crash.txt",
            "checkpoints/last.json",
            "checkpoints/.tmp_last.json",
        )
    ],
    *[
        (f"pipe {name}", forge.pipe(name), commands, 2)
        for commands in (EVERY[:5], EVERY[5:])
        for name in ("metrics.jsonl", ".lock", "rlrun.log", "run.json", "checkpoints/last.json")
    ],
    ("a name of two lines", forge.link("evil\n\x1b[2J", "../victim"), EVERY, 2),
    # a terabyte
    ("huge metrics", forge.sparse("metrics.jsonl"), ("verify", "diff"), 5),
    ("huge weights", forge.sparse("checkpoints/last.safetensors"), ("verify", "eval"), 5),
    ("huge segments", forge.sparse("checkpoints/rows/*"), STATE, 5),
    ("huge tensors", forge.sparse("checkpoints/step_*/tensors.safetensors"), STATE, 5),
    ("huge state", forge.sparse("checkpoints/step_*/state.json"), STATE[::-1], 5),
    ("huge manifest", forge.sparse("checkpoints/step_*/manifest.json"), STATE[2:], 5),
    ("huge run.json", forge.sparse("run.json"), EVERY[2:], 5),
    # records
    ("no metrics", lambda run: (run / "metrics.jsonl").unlink(), ("diff",), 5),
    ("deep metrics", forge.append("metrics.jsonl", "[" * 100_000), ("diff", "verify"), 5),
    ("5000 digits of metrics", forge.append("metrics.jsonl", "9" * 5000), ("verify", "diff"), 5),
    ("no date", forge.record(started="x\x1b[2J"), ("events",), 5),
    ("scores of a list", forge.record(eval=[1]), ("events",), 5),
    (
        "1e30 steps of a metric",
        forge.append("metrics.jsonl", '{"env_steps": 1' + "0" * 30 + "}"),
        ("events",),
        5,
    ),
    ("run.json of a list", forge.text("run.json", "[]"), ALL, 5),
    ("deep run.json", forge.text("run.json", forge.deep_json(100_000)), ALL, 5),
    ("run.json of other fields", forge.record(evil=1), R, 5),
    ("run.json of other types", forge.record(resumes=7), R, 5),
    ("run.json with hashes of a number", forge.record(files={"config.yaml": 0}), ALL, 5),
    ("run.json with the hash of another file", forge.record(files={"../x": []}), ALL, 5),
    ("no run.json", lambda run: (run / "run.json").unlink(), R, 2),
    # manifests
    ("name leads up", forge.member("../../../victim"), ("resume", "export"), 5),
    ("absolute name", forge.member("/etc/hostname"), ("resume", "export"), 5),
    ("device", forge.member("/dev/zero"), ("resume", "export"), 5),
    ("empty name", forge.member(""), ("resume", "export"), 5),
    ("NUL in a name", forge.member("a\0b"), ("resume", "export"), 5),
    ("long name", forge.member("x" * 5000), ("resume", "export"), 5),
    ("size of a text", forge.member("state.json", bytes="x"), ("resume", "export"), 5),
    ("files of a list", forge.manifest(lambda m: m.update(files=[1])), ("resume", "export"), 5),
    ("files of nothing", forge.manifest(lambda m: m.update(files=None)), ("resume", "export"), 5),
    ("other format", forge.manifest(lambda m: m.update(format=10**9)), ("resume", "export"), 5),
    ("no format", forge.manifest(lambda m: m.pop("format")), ("resume", "export"), 5),
    ("metrics of -1 bytes", forge.committed(-1), ("fork", "at"), 5),
    ("metrics of 1e30 bytes", forge.committed(10**30), ("at", "fork"), 5),
    ("metrics of a text", forge.committed("x"), STATE, 5),
    ("no bytes of metrics", forge.committed(None), STATE[::-1], 5),
    ("steps of a manifest", forge.manifest(lambda m: m.update(env_steps="x")), ("at", "fork"), 5),
    # states
    ("no counters", forge.drop("counters"), ("resume", "export"), 5),
    ("steps of a text", forge.put("counters", "env_steps", "x"), R, 5),
    ("steps of -1", forge.put("counters", "env_steps", -1), R, 5),
    ("steps of 1e30", forge.put("counters", "env_steps", 10**30), R, 5),
    ("unknown counter", forge.put("counters", "evil", 1), R, 5),
    ("updates of nothing", forge.put("counters", "updates", None), R, 5),
    ("no policy", forge.drop("policy"), R, 5),
    ("policy of a list", forge.put("policy", [1]), R, 5),
    ("no weights", forge.drop("policy", "net"), R, 5),
    ("no buffer", forge.drop("buffer"), R, 5),
    ("buffer of a text", forge.put("buffer", "x"), ("resume", "export"), 5),
    ("no ring", forge.drop("buffer", "ring"), ("resume", "export"), 5),
    ("ring head", forge.put("buffer", "ring", "head", 2**62), ("resume", "export"), 5),
    ("pending", forge.fill("buffer", "windows", "pending", -1), ("resume", "export"), 5),
    ("no collector", forge.drop("collector"), R, 5),
    ("collector of a number", forge.put("collector", 3), R, 5),
    ("no learner", forge.drop("learner"), R, 5),
    ("learner of a list", forge.put("learner", []), R, 5),
    ("generators of a text", forge.put("generators", "x"), R, 5),
    ("settings of a list", forge.put("settings", [1]), R, 5),
    ("best of a text", forge.put("best", "x"), R, 5),
    ("last of a text", forge.put("last", "x"), R, 5),
    ("a score of nan", forge.put("best", "return_mean", float("nan")), R, 5),
    ("updates of 1e30", forge.put("policy", "updates", 10**30), R, 5),
    ("updates of a fraction", forge.put("policy", "updates", float("inf")), R, 5),
    ("goals reached of a text", forge.put("hits", "x"), R, 5),
    ("goals reached of 1e30", forge.put("hits", 10**30), R, 5),
    ("rollbacks of 1e30", forge.put("rollbacks", 10**30), R, 5),
    ("nan rows to learn", forge.put("learner", "credit", float("nan")), R, 5),
    ("1e300 rows to learn", forge.put("learner", "credit", 1e300), R, 5),
    ("rows of a text", forge.put("learner", "rows", "x"), R, 5),
    ("updates of means", forge.put("learner", "means", "updates", 10**30), R, 5),
    ("names of means", forge.put("learner", "means", "names", ["x"]), R, 5),
    ("moments of a list", forge.put("policy", "adam", "mean", [3]), R, 5),
    ("previous action", forge.fill("collector", "prev_action", 10**15), R, 5),
    ("previous actions of 5", forge.put("collector", "prev_action", np.zeros(5, np.int64)), R, 5),
    ("observation of nan", forge.fill("collector", "obs", np.nan), R, 5),
    ("episodes of a text", forge.put("collector", "finished", [["x", 1]]), R, 5),
    ("an episode of 1e30 steps", forge.put("collector", "finished", [[1.0, 10**30]]), R, 5),
    ("checkpoints of a file", forge.no_checkpoints, ("resume", "export", "fork", "verify"), 5),
    # places to write to
    ("absolute mmap", forge.config("mmap: null", "mmap: /tmp/x"), R, 2),
    ("mmap above", forge.config("mmap: null", "mmap: ../x"), R, 2),
    ("mmap behind a link", forge.config("mmap: null", "mmap: link/x"), R, 2),
    ("mlflow elsewhere", forge.config("mlflow: null", "mlflow: sqlite:////tmp/x.db"), R, 2),
    ("mlflow of a stranger", forge.config("mlflow: null", "mlflow: http://evil"), R, 2),
    # weights
    ("weights of nan", forge.weights(lambda w: w.update({k: w[k] * torch.nan for k in w})), E, 4),
    ("no tensors", forge.weights(lambda w: w.clear()), E, 5),
    ("steps of weights", forge.weights(lambda w: None, env_steps="x"), E, 5),
    (
        "other shapes",
        forge.weights(lambda w: w.update({k: torch.zeros(3, 3, 3) for k in w})),
        E,
        5,
    ),
    ("json of weights", forge.text("checkpoints/last.json", forge.deep_json(100_000)), E, 5),
    ("sealed list", forge.text("checkpoints/last.json", "[]"), E, 5),
    (
        "previous of a text",
        forge.text("checkpoints/last.json", forge.seal({"previous": "x"})),
        E,
        5,
    ),
    ("no safetensors", forge.text("checkpoints/last.safetensors", b"\xff" * 64), E, 5),
    ("history of text", forge.text("checkpoints/history/step_000000129.rldf", "x"), ("old",), 5),
]


# All commands of a row with RLRUN_FAULTS=long, else one of them by turns.
LONG = os.environ.get("RLRUN_FAULTS") == "long"
ROWS = [
    (what, change, name, code)
    for i, (what, change, names, code) in enumerate(CASES)
    for name in (names if LONG else [names[i % len(names)]])
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 200 steps."""
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(list(forge.RUN)) == 0
    return path / "run"


@pytest.mark.parametrize(
    ("change", "command", "code"),
    [(change, name, code) for _, change, name, code in ROWS],
    ids=[f"{what} {name}" for what, _, name, _ in ROWS],
)
def test_refused(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Change,
    command: str,
    code: int,
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "evil.py").write_text("open('imported', 'w')")
    (tmp_path / "link").symlink_to(whole)
    change(tmp_path / "run")
    forge.reseal(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    before = {p.name for p in tmp_path.iterdir()}
    start = time.process_time()
    found = main(COMMANDS[command])
    seconds = time.process_time() - start
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("checkpoint skipped")]
    assert found == code, err
    if (command, code) == ("verify", 5):  # what is wrong is its answer
        assert out.endswith("problems\n"), out
        assert not err
    else:
        assert len(lines) == 1, err
        assert re.fullmatch(r"rlrun: error: .{1,900}", lines[0]), err
    assert "internal error" not in err
    assert "\x1b" not in out + err
    assert seconds < 2, "of CPU time"
    assert (tmp_path / "victim").read_text() == "untouched"
    assert {p.name for p in tmp_path.iterdir()} == before
    assert "evil" not in sys.modules


@pytest.mark.parametrize("command", COMMANDS)
def test_the_run_itself(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What is refused above is not refused without the change."""
    shutil.copytree(whole, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS[command]) == 0
