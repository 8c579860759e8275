"""learner.backend and learner.precision: what computes the updates, and what is refused."""

import json
import subprocess
import sys
from operator import attrgetter

import pytest
import yaml

from rlrun.blas import sgemm
from rlrun.cli.main import main
from rlrun.config.backend import choose_backend
from rlrun.config.checks import check_spaces
from rlrun.config.compose import to_yaml
from rlrun.config.stored import load
from rlrun.env import known_spaces
from rlrun.errors import ResourceError
from rlrun.policy import compute
from rlrun.run.start import Launch, start
from tests.compose import config
from tests.env import boxes  # noqa: F401  (registers test/Unit-v0)
from tests.in_process import assert_one_error, files_under

CARTPOLE = "env=cartpole"
RSAC = "policy=rsac env=pendulum"
SOFT = "policy.munchausen=0.9 policy.double=false policy.value_rescale_eps=null"
OBSTACLES = {
    "policy=qmix env=twostep": "policy qmix has no kernel",
    "policy=r2d2 memory=lru": "memory=lru", "policy=r2d2 memory=none": "memory=none",
    "policy=r2d2_c51": "policy.distribution=categorical",
    "policy=r2d2 policy.noisy=0.5": "policy.noisy=0.5",
    "policy=r2d2 learner.compile=true": "learner.compile=true",
    "policy=r2d2 learner.precision=bf16": "learner.precision=bf16",
    "policy=dqn policy.prev_inputs=true": "policy.prev_inputs=true",
    "policy=qrdqn": "policy.distribution=quantile",
    "policy=dqn policy.noisy=0.5": "policy.noisy=0.5",
    "policy=dqn policy.trace=retrace": "policy.trace=retrace",
    f"policy=dqn {SOFT}": "policy.munchausen=0.9",
    "policy=dqn learner.precision=bf16": "learner.precision=bf16",
    "policy=ppo policy.prev_inputs=true": "policy.prev_inputs=true",
    "policy=ppo memory=lru": "memory=lru", "policy=rsac env=pendulum": "memory=",
    "policy=sac env=pendulum policy.prev_inputs=true": "policy.prev_inputs=true",
}  # fmt: skip


def line(words):
    return words.split() if "env=" in words else [*words.split(), CARTPOLE]


def backend_of(words, threads=1):
    c = config(*line(words))
    return choose_backend(c, known_spaces(c.env, c.agents)[0], threads)


@pytest.mark.parametrize("words", OBSTACLES)
def test_auto_falls_back_to_torch_and_says_why(words):
    backend = backend_of(words)
    assert backend.name == "torch"
    assert OBSTACLES[words] in backend.reason


@pytest.mark.parametrize(
    ("value", "name"), [("auto", "numpy"), ("torch", "torch"), ("numpy", "numpy")]
)
def test_a_run_records_what_computed_its_updates(value, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["policy=dqn", CARTPOLE, "debug=smoke", "-q", "run.dir=run"]
    assert main([*words, f"learner.backend={value}"]) == 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["backend"] == name
    assert record["backend_reason"]


@pytest.mark.parametrize(
    ("words", "threads", "reason"),
    [("policy=r2d2", 1, None), ("policy=drqn", 2, None), ("policy=r2d2", 3, "3 threads"),
     ("policy=r2d2 memory=gru", 1, None), ("policy=r2d2 memory.hidden=128", 1, None),
     ("policy=r2d2 memory.hidden=129", 1, "memory.hidden=129"),
     ("policy=r2d2 memory.hidden=129 learner.backend=numpy", 3, None),
     ("policy=ppo memory=gru", 2, None), ("policy=ppo memory=gru", 3, "3 threads"),
     ("policy=a2c memory=lstm policy.prev_inputs=true", 1, None),
     ("policy=pqn memory=lstm memory.hidden=256", 1, None),
     ("policy=impala memory=gru memory.hidden=257", 1, "memory.hidden=257"),
     ("policy=dqn torso.hidden=[512]", 8, None), ("policy=ppo torso.hidden=[256]", 1, None),
     ("policy=pqn torso.hidden=[64,512]", 1, "torso.hidden=[64, 512]"),
     ("policy=pqn torso.hidden=[512] learner.backend=numpy", 1, None)],
)  # fmt: skip
def test_auto_leaves_large_networks_to_torch(words, threads, reason):
    backend = backend_of(words, threads)
    assert backend.name == ("numpy" if reason is None else "torch")
    assert reason is None or reason in backend.reason


@pytest.mark.parametrize(
    ("words", "threads", "compiled"),
    [(f"{RSAC} memory=gru", 2, True), (f"{RSAC} memory=lstm", 1, True),
     (f"{RSAC} memory=lru", 1, False), (f"{RSAC} memory=gru", 3, False),
     (f"{RSAC} memory=gru memory.hidden=129", 1, False),
     (f"{RSAC} memory=gru learner.backend=torch", 1, False),
     ("policy=r2d2 memory=gru learner.precision=bf16", 1, False)],
)  # fmt: skip
def test_small_gated_memories_unroll_in_compiled_loops(words, threads, compiled, monkeypatch):
    backend = backend_of(words, threads)
    assert (backend.name, backend.compiled_memory) == ("torch", compiled)
    assert ("compiled loops" in backend.reason) == compiled
    monkeypatch.setattr("rlrun.jit.COMPILED", False)
    assert not backend_of(words, threads).compiled_memory


def test_without_numba_compiled_updates_use_torch(monkeypatch):
    monkeypatch.setattr("rlrun.jit.COMPILED", False)
    names = {backend_of(f"policy={name}").name for name in ("r2d2", "dqn", "sac")}
    assert names == {"torch"}


def test_without_a_product_for_compiled_code_updates_of_windows_use_torch(monkeypatch):
    assert sgemm(), "numpy's BLAS is found"
    monkeypatch.setattr("rlrun.config.backend.sgemm", lambda: None)
    for name in ("dqn", "r2d2"):
        backend = backend_of(f"policy={name}")
        assert backend.name == "torch"
        assert "BLAS" in backend.reason


UNIT = ("env=gym", "env.id=test/Unit-v0")


def test_random_takes_actions_without_a_number_and_ppo_those_without_bounds():
    """What others refuse of both is in rule_lines.txt and test_rules.py."""
    check_spaces(config("policy=random", *UNIT, "env.kwargs={shape: [0]}"), fresh=True)
    wide = "env.kwargs={low: -3.0e38, high: 3.0e38}"  # their difference is infinite in float32
    check_spaces(config("policy=ppo", *UNIT, wide), fresh=True)


PPO = "policy=ppo env=pendulum memory="


@pytest.mark.parametrize(
    ("words", "missing", "key", "values"),
    [(f"{PPO}lru", "policy.rescale_actions", "policy.rescale_actions", [True, False]),
     *((f"{PPO}{name}", "memory.readout", "memory.readout", [True, False])
       for name in ("lru", "mingru")),
     ("policy=pqn", "policy.normalize_reward", "policy.normalize_reward", [True, False])],
)  # fmt: skip
def test_an_earlier_run_learns_as_it_did(composer, tmp_path, words, missing, key, values):
    """Its config lacks a key. ``values``: of ``key``, with and without."""
    stored = yaml.safe_load(to_yaml(composer.compose(composer.rewrite(words.split()))))
    group, name = missing.split(".")
    for expected in values:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
        assert attrgetter(key)(load(tmp_path)[0]) is expected
        stored[group].pop(name, None)


# -- learner.precision=bf16 where torch has no bfloat16 LSTM for the CPU: known before a run ------

BF16 = "learner.precision=bf16"
LSTMS = ["policy=r2d2", "policy=ppo memory=lstm", "policy=rsac env=pendulum"]
OTHERS = ["policy=r2d2 memory=gru", "policy=r2d2 memory=mingru", "policy=dqn", "policy=ppo"]
TINY_R2D2 = ["policy=r2d2", "env=bandit", "debug=smoke", "memory.hidden=4"]


@pytest.fixture
def without(monkeypatch):
    """A CPU whose oneDNN has no bfloat16 LSTM."""
    monkeypatch.setattr(compute, "cpu_has_bf16_lstm", lambda: False)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("policy", LSTMS)
def test_a_run_is_refused(rlrun, tmp_path, policy):
    for line in ([BF16], ["-m", "seed=0,1", BF16], ["-m", "learner.precision=float32,bf16"]):
        assert_one_error(
            rlrun(*policy.split(), *line), "learner.precision = bf16", "float32", code=7
        )
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
        start(Launch(config(*TINY_R2D2, BF16), tmp_path, "", []))
    assert [f for f in files_under(tmp_path) if f != "rlrun.log"] == []


def test_the_probe_is_right(tmp_path, monkeypatch):
    """A real run, with oneDNN as it is: refused, or done."""
    monkeypatch.chdir(tmp_path)
    code = main([*TINY_R2D2, BF16, "run.dir=here", "-q"])
    assert code == (0 if compute.cpu_has_bf16_lstm() else 7)
    assert bool(files_under(tmp_path)) == (code == 0)


def test_torch_is_imported_only_where_it_must_be():
    code = (
        "import sys; from rlrun.config import Composer, check, read_composed\n"
        "from rlrun.config.checks import check_precision\n"
        "for line in sys.argv[1:]:\n"
        "    config = read_composed(Composer().compose(line.split()))\n"
        "    check(config); check_precision(config)\n"
        "assert 'torch' not in sys.modules"
    )
    free = ["policy=r2d2", *(f"{policy} {BF16}" for policy in OTHERS)]
    subprocess.run([sys.executable, "-c", code, *free], check=True)
