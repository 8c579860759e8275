"""learner.precision=bf16 where torch has no bfloat16 LSTM for the CPU: known before a run."""

import subprocess
import sys

import pytest

from rlrun.cli.main import main
from rlrun.errors import ResourceError
from rlrun.policy import compute
from rlrun.run.start import Launch, start
from tests.compose import config
from tests.in_process import assert_one_error, files_under

BF16 = "learner.precision=bf16"
LSTMS = ["policy=r2d2", "policy=ppo memory=lstm", "policy=rsac env=pendulum"]
OTHERS = ["policy=r2d2 memory=gru", "policy=r2d2 memory=mingru", "policy=dqn", "policy=ppo"]
TINY = ["policy=r2d2", "env=bandit", "debug=smoke", "memory.hidden=4"]


@pytest.fixture
def without(monkeypatch):
    """A CPU whose oneDNN has no bfloat16 LSTM."""
    monkeypatch.setattr(compute, "cpu_has_bf16_lstm", lambda: False)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", LSTMS)
def test_a_run_is_refused(rlrun, tmp_path, policy):
    for line in ([BF16], ["-m", "seed=0,1", BF16], ["-m", "learner.precision=float32,bf16"]):
        done = rlrun(*policy.split(), *line)
        assert_one_error(done, 7)
        assert "learner.precision = bf16" in done.err
        assert "float32" in done.err
        assert files_under(tmp_path) == []
    assert rlrun(*policy.split()).code == 0


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", OTHERS)
def test_other_networks_run(rlrun, policy):
    assert rlrun(*policy.split(), BF16).code == 0


@pytest.mark.usefixtures("without")
def test_a_run_from_another_machine(tmp_path):
    """A bf16 run is not resumed without bfloat16; evaluating its weights does not need it."""
    with pytest.raises(ResourceError, match=r"^learner\.precision = bf16: "):
        start(Launch(config(*TINY, BF16), tmp_path, "", []))
    assert [f for f in files_under(tmp_path) if f != "rlrun.log"] == []


def test_the_probe_is_right(tmp_path, monkeypatch):
    """A real run, with oneDNN as it is: refused, or done."""
    monkeypatch.chdir(tmp_path)
    code = main([*TINY, BF16, "run.dir=here", "-q"])
    assert code == (0 if compute.cpu_has_bf16_lstm() else 7)
    assert bool(files_under(tmp_path)) == (code == 0)


def test_torch_is_imported_only_where_it_must_be():
    code = (
        "import sys; from rlrun.config import Composer, check, check_precision, read_composed\n"
        "for line in sys.argv[1:]:\n"
        "    config = read_composed(Composer().compose(line.split()))\n"
        "    check(config); check_precision(config)\n"
        "assert 'torch' not in sys.modules"
    )
    free = ["policy=r2d2", *(f"{policy} {BF16}" for policy in OTHERS)]
    subprocess.run([sys.executable, "-c", code, *free], check=True)
