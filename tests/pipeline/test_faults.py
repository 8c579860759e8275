"""What a fault costs: its exit code, what is saved before it, and what says so."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.cli.main import main
from rlrun.env.rows import Env
from rlrun.errors import EnvError, NumericError
from rlrun.optim.adam import Adam
from rlrun.pipeline.finite import first_non_finite
from rlrun.pipeline.learner import Learner
from rlrun.pipeline.process import _attempt
from rlrun.pipeline.rollback import MAX_ROLLBACKS, other_streams
from rlrun.policy.base.off_policy_control import OffPolicyControl
from rlrun.policy.dqn import DQN
from rlrun.run import train
from rlrun.rundir.checkpoint import list_checkpoints, load_newest, load_weights
from rlrun.trust import trusting
from tests.compose import config
from tests.exact import QUIET
from tests.log.records import read_records

DIVERGES = (
    "policy=dqn", "env=cartpole", "policy.lr=1e9", "run.total_steps=900",
    "learner.learning_starts=300", *QUIET,
)  # fmt: skip
SHORT = ("debug=smoke", "policy=dqn", "run.stop_value=null", "run.checkpoint_every=100", *QUIET)


def fails(kind: type[Exception], run_dir: Path, *overrides: str) -> tuple[str, dict]:
    """(message, run.json) of a run that ends in ``kind``."""
    run_dir.mkdir(exist_ok=True)
    with pytest.raises(kind) as caught:
        train.run(config(*overrides), run_dir, raw_yaml="", overrides=[])
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("failed", caught.value.exit_code)
    return str(caught.value), record


def finite(run_dir: Path) -> bool:
    """Whether every checkpoint and every file of weights is finite."""
    states = [load_newest(run_dir / "checkpoints")[0]["policy"]]
    files = (run_dir / "checkpoints").glob("*.safetensors")
    return not any(map(first_non_finite, [*states, *(load_weights(f)[0] for f in files)]))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_diverging_weights_are_never_saved(tmp_path, backend):
    message, record = fails(NumericError, tmp_path, *DIVERGES, f"learner.backend={backend}")
    assert message.endswith(f"saved; go on: rlrun resume {tmp_path}")
    assert "policy.lr" in message
    assert record["updates"] > 0
    assert finite(tmp_path)
    state, _ = load_newest(tmp_path / "checkpoints")
    assert state["counters"]["env_steps"] == record["env_steps"] >= 300


def poisoned(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Make the weights NaN in update ``at``, behind the optimiser's back."""
    update = DQN.torch_update

    def spoil(self, sample):
        done = update(self, sample)
        if self.updates == at:
            self.params[0].data[0] = math.nan
        return done

    monkeypatch.setattr(DQN, "torch_update", spoil)


@pytest.mark.parametrize("every", [40, 10**6])
def test_weights_are_checked_before_they_are_saved(tmp_path, monkeypatch, every):
    """At a checkpoint, and at the end; the earlier checkpoint stays the newest."""
    poisoned(monkeypatch, 5)
    words = (*SHORT, "learner.backend=torch", "logger.every=1000000", "learner.learning_starts=0",
             f"run.checkpoint_every={every}", "run.total_steps=80", "run.eval_every=1000",
             "env=bandit", "collector.num_envs=1", "collector.n_sample=16",
             "learner.replay_ratio=null", "learner.update_per_collect=1")  # fmt: skip
    message, record = fails(NumericError, tmp_path, *words)
    assert message.startswith("policy/net/torso.")
    assert "is not finite after 5 updates" in message
    assert record["env_steps"] == 80
    if every == 40:
        assert finite(tmp_path)
        assert "the newest checkpoint is step_000000048; go on: rlrun resume" in message
    else:
        assert not list_checkpoints(tmp_path / "checkpoints")
        assert "go on" not in message


def test_a_rollback_goes_on_with_other_random_numbers(tmp_path, monkeypatch):
    """Back to the checkpoint, logs too; the same samples are not drawn again."""
    keys, update = [], Learner.update_once

    def fails_once(self):
        if self.counters.env_steps >= 250 and not any(k is None for k in keys):
            keys.append(None)
            raise NumericError("train/loss = nan")
        drawn = self.buffer.sample

        def sample(*given):
            keys.append((self.counters.updates, drawn(*given).key.copy()))
            return drawn(*given)

        with monkeypatch.context() as m:
            m.setattr(self.buffer, "sample", sample)
            update(self)

    monkeypatch.setattr(Learner, "update_once", fails_once)
    words = (*SHORT, "env=bandit", "run.on_nan=rollback", "run.total_steps=400", "logger.every=20")
    assert train.run(config(*words), tmp_path, raw_yaml="", overrides=[]) == 0
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["rollbacks"], record["status"]) == (1, "done")
    steps = [r["env_steps"] for r in read_records(tmp_path / "metrics.jsonl")]
    assert steps == sorted(steps)
    cut = keys.index(None)
    before, after = dict(keys[:cut]), dict(keys[cut + 1 :])
    again = before.keys() & after.keys()
    assert again, "some updates are repeated"
    assert all(not np.array_equal(before[n], after[n]) for n in again)


def test_rollbacks_are_counted_and_end(tmp_path, monkeypatch):
    """A fault that comes back ends the run, also over resumes."""
    tries = []

    def always(self):
        if self.counters.env_steps >= 150:
            tries.append(self.counters.env_steps)
            raise NumericError("train/loss = nan")

    monkeypatch.setattr(Learner, "update_once", always)
    words = (*SHORT, "env=bandit", "run.on_nan=rollback", "run.total_steps=400")
    _, record = fails(NumericError, tmp_path, *words)
    assert record["rollbacks"] == MAX_ROLLBACKS == len(tries) - 1
    with pytest.raises(NumericError):
        train.resume(tmp_path, config(*words), raw_yaml="", overrides=[])
    assert len(tries) == MAX_ROLLBACKS + 2, "no further rollback"


def test_a_rollback_needs_a_checkpoint(tmp_path):
    fails(NumericError, tmp_path, *DIVERGES, "run.on_nan=rollback")


def test_other_streams_moves_every_generator_once():
    state = {
        "policy": {"generator": np.random.default_rng(3).bit_generator.state},
        "buffer": {"sampler": {"rng": torch.Generator().get_state()}, "rows": torch.ones(3)},
        "collector": {"env": np.random.default_rng(3).bit_generator.state},
    }
    one, two = other_streams(state, 1), other_streams(state, 2)
    assert one["policy"] != two["policy"] != state["policy"] != one["policy"]
    rng = [s["buffer"]["sampler"]["rng"] for s in (state, one, two)]
    assert not any(torch.equal(rng[i], rng[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert one["collector"] == state["collector"]
    generator = np.random.default_rng()
    generator.bit_generator.state = one["policy"]["generator"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_is_found(value):
    state = {"net": {"w": torch.ones(3, 4)}, "adam": {"mean": (torch.zeros(2), torch.ones(5))}}
    assert first_non_finite(state) is None
    state["adam"]["mean"][1][3] = value
    assert first_non_finite(state) == "adam/mean/1"


def test_large_numbers_and_the_logarithm_of_zero_are_finite():
    assert first_non_finite({"net": torch.full((4,), 3e38)}) is None
    assert first_non_finite({"alpha": {"log": torch.tensor(-math.inf)}}) is None
    assert first_non_finite({"alpha": {"log": torch.tensor(math.inf)}}) == "alpha/log"


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_adam_stops_before_a_step(value, flat):
    w = torch.ones(3, requires_grad=True)
    adam = Adam([w], eps=1e-8, grad_clip=1.0)
    if flat:
        adam.flatten().grads[:] = torch.tensor([1.0, value, 0.0])
    with pytest.raises(NumericError, match=r"policy\.lr"):
        adam.flat_step(0.1) if flat else adam.step([torch.tensor([1.0, value, 0.0])], 0.1)
    assert torch.equal(w, torch.ones(3))
    assert not any(x.any() for x in (*adam.mean, *adam.square))


def test_non_finite_actions_are_the_policys_fault(tmp_path, monkeypatch):
    weights = OffPolicyControl.weights

    def spoil(self):
        for p in self.pi_params:
            p.data.fill_(math.nan)
        self.pi.learned.fill_(1.0)
        return weights(self)

    monkeypatch.setattr(OffPolicyControl, "weights", spoil)
    words = ("debug=smoke", "policy=sac", "env=pendulum", *QUIET)
    message, _ = fails(NumericError, tmp_path, *words)
    assert message.startswith("policy: action is nan")


@pytest.mark.parametrize("at", [57, 58])
def test_the_state_before_a_fault_of_the_environment_is_saved(tmp_path, monkeypatch, at):
    """With the rows of the chunk that the fault interrupted; the broken episode is cut."""
    words = (*SHORT, "env=bandit", "run.total_steps=300")
    step, calls = Env.step, []

    def breaks(self, action):
        calls.append(1)
        if len(calls) == at:
            raise EnvError("env.id = bandit: environment 0 at step 3: raised")
        return step(self, action)

    cut = tmp_path
    with monkeypatch.context() as m:
        m.setattr(Env, "step", breaks)
        message, record = fails(EnvError, cut, *words)
    assert message.endswith(f"; saved; go on: rlrun resume {cut}")
    state, _ = load_newest(cut / "checkpoints")
    columns = len(state["collector"]["first"])
    kept = state["counters"]["env_steps"] + (state["collector"]["rows"] or {"steps": 0})["steps"]
    assert kept + columns > (at - 2) * columns * 0.5, "end rows are not steps"
    assert state["counters"]["env_steps"] == record["env_steps"] <= kept
    assert (kept > record["env_steps"]) == (at == 58), "57: between two chunks"
    assert train.resume(cut, config(*words), raw_yaml="", overrides=[]) == 0
    after, resumed = load_newest(cut / "checkpoints")[0], json.loads((cut / "run.json").read_text())
    assert (resumed["status"], resumed["exact"]) == ("done", False)
    assert after["buffer"]["counts"]["rows"] == resumed["env_steps"], "no row is lost or doubled"


OWN = """
from rlrun.policy.dqn import DQN as Base
from rlrun.schema import DQNConfig

class Broken(Base):
    config_class = DQNConfig

    def loss(self, segment, weight):
        if self.updates == 3:
            raise ValueError("no such thing")
        return super().loss(segment, weight)
"""


def test_an_exception_of_a_users_policy(tmp_path, monkeypatch, capsys):
    """Exit 3 with one line that names its place; the state before it is saved."""
    package = tmp_path / "brokenpkg"
    package.mkdir()
    (package / "__init__.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = tmp_path / "run"
    line = [*SHORT, "env=bandit", "-q", "policy.name=brokenpkg:Broken", "--trust", "brokenpkg"]
    assert main([*line, f"run.dir={run_dir}"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "brokenpkg, line 10: raised ValueError: no such thing" in err
    assert err.endswith(f"; saved; go on: rlrun resume {run_dir}\n")
    assert load_newest(run_dir / "checkpoints")[0]["policy"]["updates"] == 3
    assert json.loads((run_dir / "run.json").read_text())["exit_code"] == 3
    assert not (run_dir / "crash.txt").exists()
    with trusting(["brokenpkg"]):  # in the collector's process
        try:
            importlib.import_module("brokenpkg").Broken.loss(None, None, None)
        except AttributeError as e:
            raised = e
        kind, text = _attempt(lambda: (_ for _ in ()).throw(raised))
    assert kind == "EnvError"
    assert text.startswith("brokenpkg, line 9: raised AttributeError: ")


def test_other_streams_moves_the_generators_of_roles():
    """pipeline=ray: of the learner and all that act; pipeline=overlapped: of its collector."""

    def own():
        return {"generator": np.random.default_rng(3).bit_generator.state}

    def env():
        return {"env": np.random.default_rng(3).bit_generator.state}

    state = {
        "policy": own(),
        "learner": {"role": {"policy": own(), "means": None}, "due": 3},
        "collectors": [{"seq": 4, "state": own() | env()}, {"seq": 0, "state": None}],
        "predictor": {"generators": [own()["generator"]]},
    }
    moved = other_streams(state, 1)
    other = moved["policy"]["generator"]
    assert other != own()["generator"]
    assert moved["learner"] == {"role": {"policy": {"generator": other}, "means": None}, "due": 3}
    assert moved["collectors"] == [{"seq": 4, "state": {"generator": other} | env()},
                                   {"seq": 0, "state": None}]  # fmt: skip
    assert moved["predictor"]["generators"] == [other]
    overlapped = other_streams({"collector": own() | env()}, 1)
    assert overlapped["collector"] == {"generator": other} | env()
