"""Policies, memories and environments of a user's own, beside an installed wheel of rlrun."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from rlrun import kernels
from rlrun.nets.memory import Cell, make_memory
from rlrun.schema import MemoryConfig
from rlrun.trust import trusting
from tests.forks import Forks
from tests.in_process import assert_one_line
from tests.once import made_once
from tests.project.test_package import built, wheel  # noqa: F401  fixtures

EXAMPLES = Path(__file__).parent
SHORT = ["debug=smoke", "-q", "run.dir=run", "watchdog.warn_seconds=60"]  # kernels are compiled


def install(file: Path, path: Path) -> None:
    """Unpack a wheel, with the kernels that this checkout has compiled from the same sources."""
    shutil.unpack_archive(file, path, "zip")
    here = Path(kernels.__file__).parents[1]
    for source in (path / "rlrun").rglob("*.py"):
        own = here / source.relative_to(path / "rlrun")
        if own.is_file() and own.read_bytes() == source.read_bytes():
            shutil.copystat(own, source)  # numba compares it
            for kernel in (own.parent / "__pycache__").glob(f"{own.stem}.*.nb?"):
                (source.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(kernel, source.parent / "__pycache__")


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):  # noqa: F811
    """What is installed."""
    return made_once(tmp_path_factory, "site", lambda path: install(wheel, path))


@pytest.fixture(scope="module")
def installed(site, tmp_path_factory):
    """A process that has imported torch and the installed rlrun."""
    env = {k: v for k, v in os.environ.items() if k != "RLRUN_TRUST"}
    forks = Forks(tmp_path_factory.mktemp("server"), {**env, "PYTHONPATH": str(site)})
    yield forks
    forks.close()


@pytest.fixture
def rlrun(installed, tmp_path):
    """Runs the installed command in a working directory that holds the examples."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    script = tmp_path / "bin/rlrun"  # as pip writes it: its own directory is first on the path
    script.parent.mkdir()
    script.touch()
    return lambda *argv: installed.run(argv, tmp_path, str(script))


def test_a_policy_is_evaluated_and_its_keys_are_checked(rlrun):
    """tests/whole trains it."""
    line = ["--config-dir", "conf", "policy=scaled_dqn", "env=cartpole", *SHORT, "--trust", "mypkg"]
    assert rlrun(*line, "policy.loss_scale=2") == (0, "", "")
    assert rlrun("eval", "run", "--episodes", "1")[0] == 2
    assert rlrun("eval", "run", "--episodes", "1", "--trust", "mypkg")[0] == 0
    code, _, err = rlrun(*line, "policy.los_scale=2")
    assert (code, "policy.loss_scale" in err) == (2, True)


def test_a_subclass_has_the_keys_of_its_policy(rlrun):
    line = ["policy=dqn", "policy.name=mypkg.plain:Plain", "policy.nstep=2", "env=cartpole"]
    assert rlrun(*line, *SHORT, "--trust", "mypkg") == (0, "", "")


def test_a_new_algorithm(rlrun, tmp_path):
    """Memory, prioritized replay, checkpoints, resume and evaluation are there."""
    line = ["--config-dir", "conf", "policy=expected_sarsa", "env=repeat_previous", "memory=gru",
            "buffer=prioritized", *SHORT, "--trust", "mypkg"]  # fmt: skip
    assert rlrun(*line) == (0, "", "")
    assert rlrun("resume", "run", "run.total_steps=800", "-q", "--trust", "mypkg") == (0, "", "")
    rows = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    values = [row for row in rows if "train/td_abs" in row]
    assert max(row["env_steps"] for row in values) >= 800
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert (record["backend"], record["status"]) == ("torch", "done")
    assert record["backend_reason"]
    code, out, _ = rlrun("eval", "run", "--episodes", "2", "--trust", "mypkg")
    assert (code, "return" in out) == (0, True)


def test_a_memory(rlrun):
    line = ["--config-dir", "conf", "policy=r2d2", "memory=elman", "env=repeat_previous"]
    assert rlrun(*line, *SHORT)[0] == 2
    assert rlrun(*line, *SHORT, "--trust", "mypkg") == (0, "", "")
    code, out, err = rlrun("resume", "run", "run.total_steps=800", "-q", "--trust", "mypkg")
    assert (code, out, err) == (0, "", "")
    ppo = ["policy=ppo", "memory.name=mypkg.cells:Elman", "memory.hidden=8", "env=cartpole"]
    assert rlrun(*ppo, "debug=smoke", "-q", "--trust", "mypkg") == (0, "", "")


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_in_the_working_directory(rlrun, backend):
    """Typed, it needs no trust; a run's config cannot vouch for itself."""
    line = ["policy=dqn", "env=gym", "env.id=lane:Lane-v0", f"env.backend={backend}", *SHORT]
    assert rlrun(*line) == (0, "", "")
    code, _, err = rlrun("eval", "run", "--episodes", "1")
    assert (code, err.count("\n"), "lane" in err) == (2, 1, True)
    assert rlrun("eval", "run", "--episodes", "1", "--trust", "lane")[0] == 0


@pytest.mark.parametrize(
    "words",
    ["policy=dqn policy.name=mypkg.cells:Elman", "policy=dqn policy.name=mypkg.scaled:Nope",
     "policy=dqn policy.name=mypkg.scaled:", "policy=r2d2 memory.name=mypkg.nope:Elman",
     "policy=r2d2 memory.name=mypkg.scaled:ScaledDQN", "policy=r2d2 memory.name=lstn"],
)  # fmt: skip
def test_wrong_names(words, capsys, monkeypatch):
    """One line that begins with the key and its value."""
    from rlrun.cli.main import main

    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert main([*words.split(), "env=cartpole", "--trust", "mypkg", "run.dir=no"]) == 2
    key, _, value = words.split()[1].partition("=")
    assert_one_line(capsys, f"{key} = {value}")


def test_a_cell_agrees_with_its_steps(monkeypatch):
    """``unroll`` and ``state_after``, which ``Cell`` derives from ``step``."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with trusting(["mypkg"]):
        memory = make_memory(MemoryConfig("mypkg.cells:Elman", 5, 0.0), 3)
    assert isinstance(memory, Cell)
    x, state = torch.randn(4, 2, 3), memory.initial_state(2, torch.device("cpu"))
    states, outputs = [state], []
    for row in x:
        out, state = memory.step(row, state)
        outputs.append(out)
        states.append(state)
    out, last = memory.unroll(x, states[0])
    assert torch.equal(out, torch.stack(outputs))
    assert torch.equal(last[0], states[-1][0])
    (after,) = memory.state_after(x, torch.tensor([0, 3]), states[0])
    assert torch.equal(after, torch.stack([states[0][0][0], states[3][0][1]]))
