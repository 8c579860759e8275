"""learner.precision=bf16 where torch has no bfloat16 LSTM for the CPU: known before a run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.config import Composer, read_composed
from rlrun.errors import ResourceError
from rlrun.optim import compute
from rlrun.run import calibrate
from rlrun.run.calibrate import lines, settings
from rlrun.run.train import resume
from rlrun.schema import Config
from tests.in_process import Done, files_under

BF16 = "learner.precision=bf16"
LSTMS = ["policy=r2d2", "policy=drqn", "policy=ppo memory=lstm", "policy=rsac env=pendulum"]
OTHERS = ["policy=r2d2 memory=gru", "policy=r2d2 memory=mingru", "policy=dqn", "policy=ppo"]
TINY = ["policy=r2d2", "env=bandit", "debug=smoke", "memory.hidden=4"]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose oneDNN has no bfloat16 LSTM."""
    monkeypatch.setattr(compute, "cpu_has_bf16_lstm", lambda: False)


def config_of(*overrides: str) -> Config:
    return read_composed(Composer().compose(overrides))


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", LSTMS)
def test_a_run_is_refused(rlrun: Callable[..., Done], tmp_path: Path, policy: str) -> None:
    for line in ([BF16], ["-m", "seed=0,1", BF16], ["-m", "learner.precision=float32,bf16"]):
        done = rlrun(*policy.split(), *line)
        assert (done.code, done.out) == (7, "")
        assert done.err.startswith("rlrun: error: learner.precision = bf16: ")
        assert "float32 is allowed" in done.err
        assert done.err.count("\n") == 1
        assert files_under(tmp_path) == []
    assert rlrun(*policy.split()).code == 0


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", OTHERS)
def test_other_networks_run(rlrun: Callable[..., Done], policy: str) -> None:
    assert rlrun(*policy.split(), BF16).code == 0


def test_a_cpu_that_has_it(rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "cpu_has_bf16_lstm", lambda: True)
    assert rlrun("policy=r2d2", BF16).code == 0


@pytest.mark.usefixtures("without")
def test_a_run_from_another_machine(tmp_path: Path) -> None:
    """A bf16 run is not resumed without bfloat16; evaluating its weights does not need it."""
    with pytest.raises(ResourceError, match=r"^learner\.precision = bf16: "):
        resume(tmp_path, config_of(*TINY, BF16), raw_yaml="", overrides=[])
    assert [f for f in files_under(tmp_path) if f != "rlrun.log"] == []


@pytest.mark.parametrize("isa", ["", "AVX2"])
def test_the_probe_is_right(tmp_path: Path, isa: str) -> None:
    """A real run, with oneDNN as it is and held to AVX2: refused, or done."""
    env = os.environ | ({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})
    code = (  # the answer is asked for last: the run has to ask for itself
        "import sys; from rlrun.__main__ import main; code = main(sys.argv[1:])\n"
        "from rlrun.optim.compute import cpu_has_bf16_lstm as has; print(has()); sys.exit(code)"
    )
    line = [sys.executable, "-c", code, *TINY, BF16, "run.dir=here", "-q"]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    if done.stdout.strip() == "True":
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "here/run.json").is_file()
    else:
        assert done.returncode == 7, done.stderr
        assert files_under(tmp_path) == []


def test_torch_is_imported_only_where_it_must_be() -> None:
    code = (
        "import sys; from rlrun.config import Composer, check, check_precision, read_composed\n"
        "for line in sys.argv[1:]:\n"
        "    config = read_composed(Composer().compose(line.split()))\n"
        "    check(config); check_precision(config)\n"
        "assert 'torch' not in sys.modules"
    )
    free = ["policy=r2d2", *(f"{policy} {BF16}" for policy in OTHERS)]
    subprocess.run([sys.executable, "-c", code, *free], check=True)
    code = "import sys; from rlrun.cli.main import main; code = main(sys.argv[1:]); \
assert 'torch' not in sys.modules; sys.exit(code)"
    wrong = ["policy=r2d2", BF16, "learner.learning_starts=1000000000"]
    assert subprocess.run([sys.executable, "-c", code, *wrong]).returncode == 2
    wrong = ["policy=r2d2", BF16, "explore=none", "explore.typo=1"]
    assert subprocess.run([sys.executable, "-c", code, *wrong]).returncode == 2


# -- calibrating -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("without")
def test_calibration_leaves_bf16_out() -> None:
    config = config_of(*TINY)
    assert {s.precision for s in settings(config, 2)} == {"float32"}
    gru = config_of(*TINY, "memory=gru")
    assert {s.precision for s in settings(gru, 2)} == {"float32", "bf16"}

    def measure(config: object, tried: list[object], seconds: float) -> list[list[float]]:
        return [[1.0, 2.0] for _ in tried]

    out = list(lines(config, cores=2, seconds=None, measure=measure))  # type: ignore[arg-type]
    assert [line for line in out if line.startswith("bf16 is left out: ")] != []
    assert out[-1].endswith("learner.precision=float32")
    out = list(lines(gru, cores=2, seconds=None, measure=measure))  # type: ignore[arg-type]
    assert not any("left out" in line for line in out)


@pytest.mark.usefixtures("without")
def test_calibrating_what_cannot_run(
    rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "measure", None)  # nothing gets that far
    done = rlrun("doctor", "--calibrate", *TINY, BF16)
    assert (done.code, done.out) == (7, "")
    assert done.err.startswith("rlrun: error: learner.precision = bf16: ")
