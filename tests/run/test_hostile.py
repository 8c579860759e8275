"""Run directories of a stranger: every command refuses them in one line and at once."""

import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.cli.main import main
from rlrun.run import files
from tests.run import forge
from tests.run.forge import Change, config, put

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
ALL = "resume eval export"
EVERY = "verify diff at fork events resume eval export"
STATE = "verify diff at fork resume export"  # they read checkpoints
LEARNED = "resume export"
HUGE, NAN = 10**12, float("nan")
DEEP = "[" * 100_000


def layers(count: int) -> Change:
    return config("- 8\n", "- 8\n" * count)


# What, change, commands (one of them by turns), exit code
CASES: list[tuple[str, Change, str, int]] = [
    # config.yaml: what yaml makes of it
    ("alias bomb", forge.added(forge.bomb()), ALL, 2),
    ("alias of itself", forge.added("a: &a [*a]"), ALL, 2),
    ("deep yaml", forge.added(f"a: {DEEP}"), ALL, 2),
    ("300 KiB", forge.added("# " + "x" * 300_000), ALL, 2),
    ("no UTF-8", forge.text("config.yaml", b"seed: \xff\xfe"), ALL, 2),
    ("NUL", forge.text("config.yaml", b"seed: 0\0"), ALL, 2),
    ("empty", forge.text("config.yaml", ""), ALL, 2),
    ("a list", forge.text("config.yaml", "[1, 2]"), ALL, 2),
    ("tabs", forge.text("config.yaml", "a:\n\t- b"), ALL, 2),
    ("python object", forge.added("a: !!python/object/apply:os.system [id]"), ALL, 2),
    ("binary", config("seed: 0", "seed: !!binary aGVsbG8="), ALL, 2),
    ("a date", config("seed: 0", "seed: 2001-01-01"), ALL, 2),
    ("key of a list", forge.added("? [a, b]\n: 1"), ALL, 2),
    ("twice", forge.added("seed: 1"), ALL, 2),
    # its keys and values
    ("20 000 layers", layers(20_000), ALL, 2),
    ("a layer of 1e12", config("- 8\n", f"- {HUGE}\n"), ALL, 2),
    ("hydra", forge.added("hydra: {job: {env_set: {A: b}}}"), ALL, 2),
    ("unknown key", forge.added("evil: 1"), ALL, 2),
    ("target", config("env:\n", "env:\n  _target_: os.system\n"), ALL, 2),
    ("args", config("policy:\n", "policy:\n  _args_: [id]\n"), ALL, 2),
    ("module of env.id", config("id: CartPole-v1", "id: evil:Env-v0"), ALL, 2),
    ("module of pettingzoo", config("id: CartPole-v1", "id: pettingzoo:evil"), ALL, 2),
    ("policy class", config("  name: dqn", "  name: evil:Policy"), ALL, 2),
    ("memory class", config("  name: none\n  hidden", "  name: evil:Cell\n  hidden"), ALL, 2),
    ("another env", config("id: CartPole-v1", "id: Acrobot-v1"), "resume eval", 5),
    ("no such env", config("id: CartPole-v1", "id: Nope-v3"), ALL, 2),
    ("1e6 environments", config("num_envs: 2", "num_envs: 1000000"), ALL, 2),
    ("1e15 rows", config("capacity: 200", "capacity: 1000000000000000"), "resume", 7),
    ("5000 digits", config("seed: 0", "seed: " + "9" * 5000), ALL, 2),
    ("nan", config("gamma: 0.99", "gamma: .nan"), ALL, 2),
    ("interpolation of itself", config("seed: 0", "seed: ${seed}"), ALL, 2),
    ("unknown resolver", config("seed: 0", "seed: '${eval:1}'"), ALL, 2),
    ("nested resolvers", config("seed: 0", "seed: '" + "${oc.decode:" * 300 + "'"), ALL, 2),
    # places to write to
    ("absolute mmap", config("mmap: null", "mmap: /tmp/x"), "resume", 2),
    ("mmap above", config("mmap: null", "mmap: ../x"), "resume", 2),
    ("mmap behind a link", config("mmap: null", "mmap: link/x"), "resume", 2),
    ("mlflow elsewhere", config("mlflow: null", "mlflow: sqlite:////tmp/x.db"), "resume", 2),
    ("mlflow of a stranger", config("mlflow: null", "mlflow: http://evil"), "resume", 2),
    # links, pipes, terabytes
    *[(f"link {name}", forge.link(name, "../victim"), EVERY, 2) for name in (
        "metrics.jsonl", ".lock", "config.yaml", "rlrun.log", "run.json", ".tmp_config.yaml",
        "crash.txt", "checkpoints/last.json", "checkpoints/.tmp_last.json")],
    *[(f"pipe {name}", forge.pipe(name), EVERY, 2) for name in (
        "metrics.jsonl", ".lock", "config.yaml", "rlrun.log", "run.json", "checkpoints/last.json")],
    ("link to a device", forge.link("config.yaml", "/dev/zero"), "diff", 2),
    ("a name of two lines", forge.link("evil\n\x1b[2J", "../victim"), EVERY, 2),
    ("huge metrics", forge.sparse("metrics.jsonl"), "verify diff", 5),
    ("huge weights", forge.sparse("checkpoints/last.safetensors"), "verify eval", 5),
    ("huge segments", forge.sparse("checkpoints/rows/*"), STATE, 5),
    ("huge tensors", forge.sparse("checkpoints/step_*/tensors.safetensors"), STATE, 5),
    ("huge state", forge.sparse("checkpoints/step_*/state.json"), STATE, 5),
    ("huge manifest", forge.sparse("checkpoints/step_*/manifest.json"), "at fork resume export", 5),
    ("huge run.json", forge.sparse("run.json"), "at fork events resume eval export", 5),
    # records
    ("no metrics", lambda run: (run / "metrics.jsonl").unlink(), "diff", 5),
    ("deep metrics", forge.append("metrics.jsonl", DEEP), "diff verify", 5),
    ("5000 digits of metrics", forge.append("metrics.jsonl", "9" * 5000), "verify diff", 5),
    ("1e30 steps", forge.append("metrics.jsonl", '{"env_steps": 1%s}' % ("0" * 30)), "events", 5),
    ("no date", forge.record(started="x\x1b[2J"), "events", 5),
    ("scores of a list", forge.record(eval=[1]), "events", 5),
    ("run.json of a list", forge.text("run.json", "[]"), ALL, 5),
    ("deep run.json", forge.text("run.json", DEEP), ALL, 5),
    ("run.json of other fields", forge.record(evil=1), "resume", 5),
    ("run.json of other types", forge.record(resumes=7), "resume", 5),
    ("run.json with hashes of a number", forge.record(files={"config.yaml": 0}), ALL, 5),
    ("run.json with the hash of another file", forge.record(files={"../x": []}), ALL, 5),
    ("no run.json", lambda run: (run / "run.json").unlink(), "resume", 2),
    # manifests
    *[(f"member {name[:9]!r}", forge.member(name), LEARNED, 5) for name in (
        "../../../victim", "/etc/hostname", "/dev/zero", "", "a\0b", "x" * 5000)],
    ("size of a text", forge.member("state.json", bytes="x"), LEARNED, 5),
    ("files of a list", forge.manifest(lambda m: m.update(files=[1])), LEARNED, 5),
    ("files of nothing", forge.manifest(lambda m: m.update(files=None)), LEARNED, 5),
    ("other format", forge.manifest(lambda m: m.update(format=10**9)), LEARNED, 5),
    ("no format", forge.manifest(lambda m: m.pop("format")), LEARNED, 5),
    ("metrics of -1 bytes", forge.committed(-1), "fork at", 5),
    ("metrics of 1e30 bytes", forge.committed(10**30), "at fork", 5),
    ("metrics of a text", forge.committed("x"), STATE, 5),
    ("no bytes of metrics", forge.committed(None), STATE, 5),
    ("steps of a manifest", forge.manifest(lambda m: m.update(env_steps="x")), "at fork", 5),
    ("checkpoints of a file", forge.no_checkpoints, "resume export fork verify eval", 5),
    # states
    ("no counters", forge.drop("counters"), LEARNED, 5),
    *[(f"env steps {x!r}", put("counters", "env_steps", x), "resume", 5) for x in
      ("x", -1, 10**30, None)],
    ("unknown counter", put("counters", "evil", 1), "resume", 5),
    *[(f"no {name}", forge.drop(name), "resume", 5) for name in
      ("policy", "buffer", "collector", "learner")],
    ("policy of a list", put("policy", [1]), "resume", 5),
    ("moments of nan", forge.fill("policy", "net", "adam", "mean", 0, NAN), "resume", 5),
    ("no weights", forge.drop("policy", "net"), "resume", 5),
    ("buffer of a text", put("buffer", "x"), LEARNED, 5),
    ("no ring", forge.drop("buffer", "ring"), LEARNED, 5),
    ("ring head", put("buffer", "ring", "head", 2**62), LEARNED, 5),
    ("windows head", put("buffer", "windows", "head", 2**62), LEARNED, 5),
    ("collector of a number", put("collector", 3), "resume", 5),
    ("a reason of inf", put("collector", "inexact", float("inf")), "resume", 5),
    ("learner of a list", put("learner", []), "resume", 5),
    ("generators of a text", put("generators", "x"), "resume", 5),
    ("settings of a list", put("settings", [1]), "resume", 5),
    ("horizon of a list", put("settings", "horizon", [1]), "resume", 5),
    ("1e30 threads", put("settings", "threads", 10**30), "resume", 5),
    ("no state of the actor", put("collector", "state", None), "resume", 5),
    ("best of a text", put("best", "x"), "resume", 5),
    *[(f"no {key} of a score", forge.drop("last", key), "resume", 5) for key in
      ("return_mean", "return_std", "episodes", "env_steps")],
    ("a score of nan", put("best", "return_mean", float("nan")), "resume", 5),
    ("updates of a fraction", put("policy", "updates", float("inf")), "resume", 5),
    ("goals reached of a text", put("consecutive_solved", "x"), "resume", 5),
    ("rollbacks of 1e30", put("rollbacks", 10**30), "resume", 5),
    ("nan rows to learn", put("learner", "credit", float("nan")), "resume", 5),
    ("rows of a text", put("learner", "rows_collected", "x"), "resume", 5),
    ("updates of means", put("learner", "means", "updates", 10**30), "resume", 5),
    ("names of means", put("learner", "means", "names", ["x"]), "resume", 5),
    ("moments of a list", put("policy", "net", "adam", "mean", [3]), "resume", 5),
    ("previous action", forge.fill("collector", "prev_action", 10**15), "resume", 5),
    ("five actions", put("collector", "prev_action", np.zeros(5, np.int64)), "resume", 5),
    ("observation of nan", forge.fill("collector", "obs", np.nan), "resume", 5),
    ("episodes of a text", put("collector", "finished_episodes", [["x", 1]]), "resume", 5),
    ("an episode of 1e30 steps",
     put("collector", "finished_episodes", [[1.0, 10**30]]), "resume", 5),
    # weights
    ("nan weights", forge.weights(lambda w: [x.fill_(torch.nan) for x in w.values()]), "eval", 4),
    ("no tensors", forge.weights(lambda w: w.clear()), "eval", 5),
    ("steps of weights", forge.weights(lambda w: None, env_steps="x"), "eval", 5),
    ("shapes", forge.weights(lambda w: w.update({k: torch.zeros(3, 3) for k in w})), "eval", 5),
    ("json of weights", forge.text("checkpoints/last.json", DEEP), "eval", 5),
    ("sealed list", forge.text("checkpoints/last.json", "[]"), "eval", 5),
    ("previous of a text",
     forge.text("checkpoints/last.json", files.seal({"previous": "x"})), "eval", 5),
    ("no safetensors", forge.text("checkpoints/last.safetensors", b"\xff" * 64), "eval", 5),
    ("history of text", forge.text("checkpoints/history/step_000000129.rldf", "x"), "old", 5),
]  # fmt: skip
ROWS = [
    (what, change, words.split()[i % len(words.split())], code)
    for i, (what, change, words, code) in enumerate(CASES)
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
        assert re.search(r"\d problems?\n$", out), out
        assert not err
    else:
        assert len(lines) == 1, err
        assert re.fullmatch(r"rlrun: error: .{1,900}", lines[0]), err
    assert "\x1b" not in out + err
    assert seconds < 20, "of CPU time: a bomb takes hours"
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


def test_a_file_may_have_as_many_bytes_as_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"1234")
    assert files.read_file(path, most=4) == b"1234"
    with pytest.raises(ValueError, match="3"):
        files.read_file(path, most=3)
