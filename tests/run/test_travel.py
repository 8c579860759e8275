"""Going back in a run, branches of it, what is damaged in it, and where two runs differ."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from rlrun.cli.main import main
from rlrun.errors import CheckpointError, ConfigError
from rlrun.run import branch, checkpoint, files, manifest, start
from rlrun.run.checkpoint import load_newest
from rlrun.run.diff import differences
from rlrun.run.files import check_texts, hashes
from rlrun.run.manifest import list_checkpoints
from rlrun.run.tensors import RingRows, RowFiles
from tests.exact import run_differences
from tests.pipeline.make import on_steps

WORDS = (
    "policy=dqn", "env=cartpole", "torso.hidden=[8]", "run.total_steps=400", "run.eval_every=200",
    "run.eval_episodes=1", "run.checkpoint_every=100", "run.keep_checkpoints=9", "logger.every=50",
    "learner.learning_starts=50", "learner.threads=1", "logger.tensorboard=false",
    "logger.progress=off", "run.stop_return=null", "buffer.capacity=160", "learner.batch_size=16",
    "learner.update_per_collect=1", "env.backend=sync",  # whose rows ``on_steps`` sees
    "learner.replay_ratio=null",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with checkpoints at about 100, 200, 300, 400; not to be changed."""
    top = tmp_path_factory.mktemp("travel")
    assert main([*WORDS, f"run.dir={top / 'run'}"]) == 0
    return top / "run"


@pytest.fixture
def run_dir(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def steps_of(run_dir):
    return [manifest.parse_name(p)[0] for p in list_checkpoints(run_dir / "checkpoints")]


def line(capsys):
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return (out + err).strip()


def refused(capsys, words, *texts, codes=(2,)):
    """Assert that a command ends with one line, which has all ``texts``; return it."""
    assert main([*words]) in codes
    found = line(capsys)
    assert "\n" not in found
    assert all(text in found for text in texts), (found, texts)
    return found


def content_of(run_dir):
    return {p: files.sha256_file(p) for p in run_dir.rglob("*") if p.is_file()}


def test_going_back_repeats_the_run(finished, run_dir, capsys, monkeypatch):
    steps = steps_of(run_dir)
    assert len(steps) == 4
    with monkeypatch.context() as patch:
        on_steps(patch, training=_killed)
        assert main(["resume", f"{run_dir}@{steps[1]}", "--discard", "-q"]) == 130
    assert steps_of(run_dir) == steps[:2], "what is later is deleted before the run goes on"
    assert main(["resume", str(run_dir), "-q"]) == 0
    assert steps_of(run_dir) == steps
    assert run_differences(finished, run_dir) == []
    assert len(json.loads((run_dir / "run.json").read_text())["resumes"]) == 2
    capsys.readouterr()
    assert main(["diff", str(finished), str(run_dir)]) == 0
    assert ", ".join(map(str, steps)) in line(capsys)
    assert main(["verify", str(run_dir)]) == 0
    assert f"{steps[-1]}, {steps[-2]}" in line(capsys)


def test_killed_while_going_back_the_newest_that_is_left_can_be_resumed(run_dir, monkeypatch):
    path = list_checkpoints(run_dir / "checkpoints")[0]
    gone, delete = [], manifest.delete

    def once(later):
        if gone:
            raise KeyboardInterrupt
        gone.append(later)
        delete(later)

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "delete", once)
        with pytest.raises(KeyboardInterrupt):
            branch.go_back(run_dir, path)
    left = steps_of(run_dir)
    assert len(left) == 3
    assert load_newest(run_dir / "checkpoints")[0]["counters"]["env_steps"] == left[-1]
    with (run_dir / "metrics.jsonl").open("r+b") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        branch.go_back(run_dir, path)
    assert steps_of(run_dir) == left, "nothing is deleted for a checkpoint that cannot be used"


@pytest.mark.parametrize("lead", [-1, 0, 1])
def test_the_best_weights_go_along_unless_they_are_of_a_later_step(run_dir, tmp_path, lead):
    at, best = steps_of(run_dir)[1], "checkpoints/best.safetensors"
    weights = {"w": torch.zeros(1)}
    checkpoint.save_weights(run_dir / best, weights, {"env_steps": at + lead})
    path = list_checkpoints(run_dir / "checkpoints")[1]
    branch.fork(run_dir, path, tmp_path / "new", "seed: 0\n", ["run.dir=new", "policy.gamma=0.5"])
    branch.go_back(run_dir, path)
    for directory in (tmp_path / "new", run_dir):
        for name in (best, "checkpoints/best.json"):
            assert (directory / name).exists() == (lead <= 0)


def test_a_fork_names_its_parent_and_leaves_it_as_it_was(finished, run_dir, tmp_path, capsys):
    steps = steps_of(run_dir)
    before = content_of(run_dir)
    new = tmp_path / "branch"
    assert main(["fork", f"{run_dir}@{steps[1]}", "policy.lr=1e-2", f"run.dir={new}", "-q"]) == 0
    assert content_of(run_dir) == before
    record = json.loads((new / "run.json").read_text())
    assert (record["status"], record["changed"]) == ("done", ["policy.lr"])
    parent = record["parent"]
    assert (parent["directory"], parent["env_steps"]) == (str(run_dir), steps[1])
    digest = files.sha256_file(run_dir / "checkpoints" / parent["checkpoint"] / "manifest.json")
    assert parent["manifest_sha256"] == digest
    assert "lr: 0.01" in (new / "config.yaml").read_text()
    typed = yaml.safe_load((new / "overrides.yaml").read_text())
    assert {"policy.lr=1e-2", f"run.dir={new}"} <= {*typed}
    assert len({text.partition("=")[0] for text in typed}) == len(typed)
    capsys.readouterr()
    assert main(["verify", str(new)]) == 0
    assert main(["diff", str(run_dir), str(new)]) == 1
    first, second = line(capsys).splitlines()[-2:]
    assert first.startswith("metrics.jsonl: record")
    assert re.match(rf"checkpoint of env step {steps[2]}: \w+/", second), "the first that differs"
    assert main(["diff", f"{run_dir}@{steps[2]}", str(new)]) in (1, 2)
    same = tmp_path / "same"
    assert main(["fork", f"{run_dir}@{steps[0]}", f"run.dir={same}", "-q"]) == 0
    assert (same / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    assert json.loads((same / "run.json").read_text())["digest"] == json.loads(
        (finished / "run.json").read_text()
    )["digest"]  # fmt: skip


def test_a_parent_that_loses_records_while_it_is_forked_is_noticed(run_dir, tmp_path, monkeypatch):
    link, metrics = os.link, run_dir / "metrics.jsonl"
    monkeypatch.setattr(os, "link", lambda *a, **k: (os.truncate(metrics, 60), link(*a, **k)))
    path = list_checkpoints(run_dir / "checkpoints")[1]
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        branch.fork(run_dir, path, tmp_path / "new", "seed: 0\n", [])
    assert not (tmp_path / "new" / "run.json").exists()


def test_wrong_commands_are_one_line(run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    kept = ", ".join(map(str, steps_of(run_dir)))
    for words, text in (
        (["resume", f"{run_dir}@77"], kept),
        (["fork", f"{run_dir}@77", f"run.dir={tmp_path / 'new'}"], kept),
        (["fork", str(run_dir), "policy.lr=1e-3"], "run.dir="),
        (["fork", str(run_dir), f"run.dir={run_dir}"], "run.dir"),
        (["fork", str(run_dir), "policy.lr=1,2", f"run.dir={tmp_path / 'new'}"], "policy.lr"),
        (["fork", str(run_dir), "~policy.lr", f"run.dir={tmp_path / 'new'}"], "policy.lr"),
        (["resume", str(run_dir), "policy.lr=choice(1,2)"], "policy.lr"),
        (["diff", str(run_dir), str(tmp_path / "nowhere")], "nowhere"),
        (["verify", str(tmp_path)], "RUN_DIR"),
        (["verify", "."], "RUN_DIR"),
        (["resume", f"{tmp_path / 'nowhere'}@3"], "nowhere"),
    ):
        refused(capsys, words, text)
    assert not (tmp_path / "new").exists()


def test_a_fork_that_would_train_nothing_is_refused(run_dir, tmp_path, capsys):
    new = tmp_path / "new"
    for words, key in (
        ([], "run.total_steps = 400"),
        (["run.total_steps=100"], "run.total_steps = 100"),
    ):
        given = ["fork", str(run_dir), "policy.lr=1e-3", f"run.dir={new}", *words]
        found = refused(capsys, given, f"error: {key}: ")
        assert not new.exists()
        more = found.rpartition(" add ")[2]
    assert main(["fork", str(run_dir), f"run.dir={new}", "-q", more]) == 0
    assert steps_of(new)[-1] > steps_of(run_dir)[-1]


def test_a_fork_of_a_solved_run_is_refused_unless_the_goal_is_another(tmp_path, capsys):
    run, new = tmp_path / "run", tmp_path / "new"
    assert main([*WORDS, "run.stop_return=-1", f"run.dir={run}"]) == 0
    words = ["fork", str(run), "run.total_steps=500", f"run.dir={new}", "-q"]
    refused(capsys, words, "run.stop_return=null")
    assert main([*words, "run.stop_return=null"]) == 0
    assert main(["verify", str(new)]) == 0


def test_a_fork_can_be_scored_before_it_saves(run_dir, tmp_path, monkeypatch):
    """Of a checkpoint whose weights are no longer those in last.safetensors."""
    new = tmp_path / "new"
    with monkeypatch.context() as patch:
        on_steps(patch, training=_killed)
        assert main(["fork", f"{run_dir}@{steps_of(run_dir)[1]}", f"run.dir={new}", "-q"]) == 130
    last = json.loads((new / "checkpoints/last.json").read_text())
    assert last["meta"]["env_steps"] == steps_of(new)[-1]
    assert main(["eval", str(new), "--episodes", "1"]) == 0
    assert main(["verify", str(new)]) == 0


MISFITS = {  # override: what the line says is saved, "": that it needs a new run
    "collector.num_envs=8": "=16", "torso.hidden=[16]": "=[8]", "buffer.capacity=300": "=1",
    "env.id=MountainCar-v0": "=CartPole-v1", "memory=gru": "", "env=pendulum": "",
    "policy=r2d2": "", "buffer=uniform": "",
}  # fmt: skip


def test_a_fork_or_a_resume_that_the_checkpoint_does_not_fit_leaves_nothing(
    run_dir, tmp_path, capsys
):
    text = (run_dir / "config.yaml").read_text()
    for override, saved in MISFITS.items():
        key = override.partition("=")[0]
        words = [override, "policy.lr=1e-3", "run.total_steps=600", "-q"]
        for command in (
            ["fork", str(run_dir), f"run.dir={tmp_path / 'new'}"],
            ["resume", str(run_dir), f"resume.allow=[{key},policy.lr]"],
        ):
            found = refused(capsys, [*command, *words], f"{key}{saved}" if saved else override)
            assert key in found.partition(" = ")[0]
            assert not (tmp_path / "new").exists()
        assert (run_dir / "config.yaml").read_text() == text
    assert main(["resume", str(run_dir), "run.total_steps=600", "-q"]) == 0


def test_going_back_deletes_nothing_that_is_not_to_be_discarded(run_dir, capsys):
    steps, last = steps_of(run_dir), steps_of(run_dir)[-1]
    before = content_of(run_dir)
    words = ["resume", f"{run_dir}@{steps[1]}", "-q"]
    refused(capsys, words, f"{steps[2]}, {steps[3]}", "--discard")
    assert content_of(run_dir) == before
    for where in (f"{run_dir}@{steps[1]}", f"{run_dir}"):
        words = ["torso.hidden=[16]", "resume.allow=[torso.hidden]", "run.total_steps=900", "-q"]
        refused(capsys, ["resume", where, *["--discard"] * ("@" in where), *words], "torso.hidden")
        assert content_of(run_dir) == before, "refused before anything is deleted or written"
    assert main(["resume", f"{run_dir}@{last}", "run.total_steps=500", "-q"]) == 0, "none is later"
    assert main(["resume", str(run_dir), "--discard"]) == 2


@pytest.mark.parametrize(
    ("how", "when"),
    [("cut", "record"), ("emptied", "checkpoint"), ("longer", "record"),
     ("replaced", "checkpoint"), ("removed", "record"), ("removed", "checkpoint")],
)  # fmt: skip
def test_records_that_change_while_the_run_goes_on_are_noticed(
    tmp_path, capsys, monkeypatch, how, when
):
    """Before the next record or checkpoint, without which it could not be resumed."""
    run = tmp_path / "run"
    path = run / "metrics.jsonl"

    def change(n):
        if n != 20:
            return
        if how == "replaced":
            shutil.copy(path, tmp_path / "copy")
            os.replace(tmp_path / "copy", path)
        elif how == "removed":
            path.unlink()
        else:
            os.truncate(path, {"cut": 60, "emptied": 0, "longer": 5000}[how])

    on_steps(monkeypatch, training=change)
    words = {"record": ("run.checkpoint_every=100000", "run.eval_every=100000"),
             "checkpoint": ("run.eval_every=100", "logger.every=100000")}[when]  # fmt: skip
    words = [*WORDS, "collector.num_envs=8", *words, f"run.dir={run}"]
    refused(capsys, words, "metrics.jsonl: ", codes=(6,))


def test_before_the_first_checkpoint_the_line_says_what_to_type(run_dir, tmp_path, capsys):
    shutil.rmtree(run_dir / "checkpoints")
    for words in ("eval RUN", "eval RUN --weights best", "play RUN --video x.gif",
                  "export RUN DATA", "fork RUN run.dir=DATA", "resume RUN@7"):  # fmt: skip
        words = words.replace("RUN", str(run_dir)).replace("DATA", str(tmp_path / "data"))
        assert refused(capsys, words.split(), codes=(2, 5)).endswith(f"rlrun resume {run_dir}")
    assert not (tmp_path / "data").exists()


def test_a_sweep_is_no_run(run_dir, tmp_path, capsys):
    for name in ("search.json", "sweep.json"):
        (tmp_path / name).write_text("{}")
        for words in ("eval TOP", "verify TOP", "play TOP --video x.gif", "export TOP DATA",
                      "diff TOP TOP"):  # fmt: skip
            words = words.replace("TOP", str(tmp_path)).replace("DATA", str(tmp_path / "data"))
            refused(capsys, words.split(), str(run_dir))
        (tmp_path / name).unlink()


def test_a_run_of_trusted_code_names_the_line_to_type(run_dir, tmp_path, capsys):
    """What its own command line trusted is shown, and not used; names alone are."""
    command = ["rlrun", "--trust", "other,mypkg", "--trust=$(rm)"]
    record = files.unseal((run_dir / "run.json").read_bytes())
    config = (run_dir / "config.yaml").read_text().replace("id: CartPole-v1", "id: mypkg:Lane-v0")
    (run_dir / "config.yaml").write_text(config)
    record |= {"command": command, "files": hashes(run_dir)}
    (run_dir / "run.json").write_bytes(files.seal(record))
    for words in (
        ["eval", str(run_dir)],
        ["resume", str(run_dir), "run.total_steps=900"],
        ["play", str(run_dir), "--video", str(tmp_path / "a b.gif")],
        ["export", str(run_dir), str(tmp_path / "data")],
    ):
        typed = shlex.join(["rlrun", *words, "--trust", "other", "--trust", "mypkg"])
        assert refused(capsys, words).endswith(typed)
    found = refused(capsys, ["eval", str(run_dir), "--trust", "other,mypkg"])
    assert "--trust" not in found, "there is no such module"


def test_a_path_with_an_at_sign_is_a_path(tmp_path):
    (tmp_path / "a@3").mkdir()
    assert branch.split_step(f"{tmp_path}/a@3") == (tmp_path / "a@3", None)
    assert branch.split_step(f"{tmp_path}/b@3") == (tmp_path / "b", 3)
    assert branch.split_step("a@b") == (Path("a@b"), None)
    with pytest.raises(ConfigError):
        branch.checkpoint_at(tmp_path, 3)


def damages(content, every):
    """``content`` with one bit flipped, and cut there."""
    for i in range(0, len(content), every):
        yield content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :]
        yield content[:i]


def test_damage_anywhere_is_noticed_by_verify_and_never_loaded(finished, run_dir, monkeypatch):
    """Three places of every file but the lock and the messages; without hashes it would be."""
    saved = {p.name: checkpoint.load(p) for p in list_checkpoints(finished / "checkpoints")}
    files = [p for p in run_dir.rglob("*") if p.is_file() and p.name not in (".lock", "rlrun.log")]
    assert {p.name for p in files} > {"tensors.safetensors", "state.json", "run.json"}

    def bad(path):
        content, found = path.read_bytes(), []
        for wrong in damages(content, max(1, len(content) // 3)):
            path.write_bytes(wrong)
            found.append("unnoticed" if not manifest.Report(run_dir).problems else "")
            if "checkpoints" in path.parts or path.suffix == ".jsonl":
                try:
                    state, used = load_newest(run_dir / "checkpoints")
                except CheckpointError:
                    continue
                found += ["wrong"] * bool(list(differences(state, saved[used.name])))
        path.write_bytes(content)
        return {*found} - {""}

    assert {path: found for path in files if (found := bad(path))} == {}
    monkeypatch.setattr(manifest.files, "file_problem", lambda path, expected, grown=False: None)
    newest = list_checkpoints(run_dir / "checkpoints")[-1]
    assert bad(newest / "tensors.safetensors") == {"unnoticed", "wrong"}


@pytest.mark.parametrize("name", ["config.yaml", "overrides.yaml", "run.json", "metrics.jsonl"])
def test_a_flip_or_a_hole_in_a_small_file_is_noticed_by_resume(run_dir, name):
    path = run_dir / name
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    damaged = [b"".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))]
    oldest = list_checkpoints(run_dir / "checkpoints")[0]
    size = manifest.read_manifest(oldest)["committed"]["metrics.jsonl"]["bytes"]
    for wrong in [*damages(content, 23), *damaged]:
        path.write_bytes(wrong)
        if name != "metrics.jsonl":
            with pytest.raises(CheckpointError, match=name):
                check_texts(run_dir)
        elif wrong[:size] != content[:size]:
            with pytest.raises(CheckpointError, match=name):
                load_newest(run_dir / "checkpoints")
        else:  # what is damaged is not what an earlier checkpoint needs
            _, used = load_newest(run_dir / "checkpoints")
            manifest.verify_committed(run_dir, manifest.read_manifest(used), name)
            assert used != list_checkpoints(run_dir / "checkpoints")[-1]


def test_a_resume_with_other_keys_replaces_the_config_at_no_moment_unnoticed(run_dir, monkeypatch):
    """Killed before or after config.yaml is replaced, it is one that run.json knows."""
    from rlrun.config import load

    config, raw_yaml = load(run_dir, ["run.total_steps=500"])
    monkeypatch.setattr(start, "prepare_process", _killed)
    with pytest.raises(KeyboardInterrupt):
        start.start(start.Launch(config, run_dir, raw_yaml, []))
    check_texts(run_dir)
    monkeypatch.setattr(start, "replace_file", _killed)
    config, raw_yaml = load(run_dir, ["run.total_steps=600"])
    with pytest.raises(KeyboardInterrupt):
        start.start(start.Launch(config, run_dir, raw_yaml, []))
    check_texts(run_dir)
    monkeypatch.undo()
    config, raw_yaml = load(run_dir, ["run.total_steps=450"])
    assert start.start(start.Launch(config, run_dir, raw_yaml, [])) == 0
    check_texts(run_dir)
    assert len(json.loads((run_dir / "run.json").read_text())["files"]["config.yaml"]) == 1
    assert (run_dir / "config.yaml").read_text() == raw_yaml


def _killed(*given):
    raise KeyboardInterrupt


def test_what_was_killed_before_it_saved_begins_anew(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    for anew in (True, False):
        *_, last = manifest.Report(tmp_path).lines()
        assert ("from its start" in last) == anew
        (tmp_path / "checkpoints" / "step_000000100").mkdir(parents=True, exist_ok=True)


# -- differences of two states, on which every test of an exact resume relies ----------------------

RING = np.arange(6.0).reshape(1, 6)


def rows(array: np.ndarray, first: int = 0, stop: int = 4) -> RingRows:
    return RingRows(array, first, stop, RowFiles())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2), (1, 1.0), (1.0, float("nan")), ("a", "b"), (None, 0), (True, 1),
        ({"x": 1}, {}), ({}, {"x": 1}), ([1], [1, 2]), ([1], (1,)), ((1, [2]), (1, [3])),
        (np.float32([0.0]), np.float32([-0.0])), (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(1, np.int32), np.zeros(1, np.int64)), (np.zeros(1), torch.zeros(1)),
        (torch.zeros(2), torch.ones(2)), (torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)),
        (torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()),
        (rows(RING), rows(RING + 1)), (rows(RING), rows(RING, 1, 5)),
    ],
)  # fmt: skip
def test_every_difference_is_found_where_it_lies(one, other) -> None:
    assert not [*differences({"a": {"b": one}}, {"a": {"b": one}})]
    (found,) = differences({"a": {"b": one}}, {"a": {"b": other}})
    assert found.startswith("a/b")


@pytest.mark.parametrize("backends", [("numpy", "torch"), ("torch", "numpy")], ids=str)
def test_a_fork_with_one_environment_has_any_backend(backends, tmp_path):
    """Whatever steps the environment is the same in both."""
    words = [*WORDS[:-2], "collector.num_envs=1", "learner.replay_ratio=null"]
    first, second = (f"learner.backend={x}" for x in backends)
    assert main([*words, first, f"run.dir={tmp_path / 'one'}"]) == 0
    fork = ["fork", str(tmp_path / "one"), second, "run.total_steps=500"]
    assert main([*fork, f"run.dir={tmp_path / 'two'}"]) == 0
