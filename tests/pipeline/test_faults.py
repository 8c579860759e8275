"""What a fault costs: its exit code, what is saved before it, and what says so."""

import math
import re

import numpy as np
import pytest
import torch

from rlrun.buffer.replay import Replay
from rlrun.cli.main import main
from rlrun.errors import ConfigError, EnvError, NumericError, error_named, known_error
from rlrun.pipeline import parts
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.parts import MAX_ROLLBACKS, first_non_finite, other_streams
from rlrun.policy.control import ControlLearner
from rlrun.policy.dqn import DQN
from rlrun.run.checkpoint import load_weights
from rlrun.trust import NotTrusted
from tests.in_process import assert_one_line
from tests.pipeline.make import (
    SMOKE,
    TINY,
    fails,
    go,
    on_steps,
    record_of,
    resumed,
    saved,
    shown,
    state_of,
)

DIVERGES = ("policy=dqn", "env=cartpole", *TINY, "policy.lr=1e9", "learner.learning_starts=200")
BANDIT = ("policy=dqn", "env=bandit", *TINY, "run.stop_return=null", "run.checkpoint_every=100")


def finite(run_dir) -> bool:
    """Whether the newest checkpoint and every file of weights is finite."""
    files = (run_dir / "checkpoints").glob("*.safetensors")
    states = [state_of(run_dir)["policy"], *(load_weights(f)[0] for f in files)]
    return not any(map(first_non_finite, states))


# -- numbers that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_diverging_weights_are_never_saved(tmp_path, backend):
    words = (*DIVERGES, f"learner.backend={backend}", "run.total_steps=900")
    error, record = fails(NumericError, tmp_path, *words)
    assert str(error).endswith(f"rlrun resume {tmp_path}")
    assert "policy.lr" in str(error)
    assert (record["status"], record["exit_code"]) == ("failed", NumericError.exit_code)
    assert record["updates"] > 0
    assert finite(tmp_path)
    assert state_of(tmp_path)["counters"]["env_steps"] == record["env_steps"] >= 200


@pytest.mark.parametrize("every", [40, 10**6])
def test_weights_are_checked_before_they_are_saved(tmp_path, monkeypatch, every):
    """At a checkpoint, and at the end; the earlier checkpoint stays the newest."""
    update = DQN.update

    def spoil(self, sample):
        done = update(self, sample)
        if self.updates == 5:
            next(self.net.parameters()).data[0] = math.nan  # behind the optimiser's back
        return done

    monkeypatch.setattr(DQN, "update", spoil)
    words = (*BANDIT, "learner.backend=torch", "logger.every=1000000", "learner.learning_starts=0",
             f"run.checkpoint_every={every}", "run.total_steps=80", "run.eval_every=1000",
             "collector.num_envs=1")  # fmt: skip
    error, record = fails(NumericError, tmp_path, *words)
    assert str(error).startswith("policy/net/net/torso.")
    assert "5 updates" in str(error)
    assert record["env_steps"] == 80
    assert saved(tmp_path) == ([48] if every == 40 else [])
    if every == 40:
        assert finite(tmp_path)
        assert "step_000000048" in str(error)
    assert ("rlrun resume" in str(error)) == (every == 40)


@pytest.mark.parametrize(
    ("seconds", "words", "often"),
    [(1e9, (), False), (0.0, (), True), (1e9, ("run.on_nan=rollback",), True)],
)
def test_checkpoints_are_some_time_apart_and_a_divergence_ends_the_run_as_early(
    tmp_path, monkeypatch, seconds, words, often
):
    """Where a run ends does not depend on the machine's speed, nor where a rollback begins."""
    monkeypatch.setattr(parts, "CHECKPOINT_STEPS", 16)
    monkeypatch.setattr(parts, "CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(parts, "MAX_ROLLBACKS", 0)
    report = parts.LoopReport.after_chunk

    def spoil(self, before):
        report(self, before)
        if self.parts.progress.counters.env_steps == 64:
            next(self.parts.policy.net.parameters()).data[0] = math.nan

    monkeypatch.setattr(parts.LoopReport, "after_chunk", spoil)
    words = (*BANDIT, *words, "learner.backend=torch", "logger.every=1000000",
             "learner.learning_starts=0", "run.keep_checkpoints=9", "run.total_steps=160",
             "run.eval_every=1000", "run.checkpoint_every=null", "collector.num_envs=1",
             "collector.n_sample=16")  # fmt: skip
    error, record = fails(NumericError, tmp_path, *words)
    assert str(error).startswith("policy/net/net/torso.")
    assert record["env_steps"] == 64
    assert saved(tmp_path) == ([16, 32, 48] if often else [16])


def test_a_bonus_is_checked_before_it_is_saved(tmp_path, monkeypatch):
    update = RND.update

    def spoil(self, env_steps):
        update(self, env_steps)
        if env_steps >= 60:
            next(self.predictor.parameters()).data[0] = math.nan

    monkeypatch.setattr(RND, "update", spoil)
    words = (*BANDIT, "bonus=rnd", "run.checkpoint_every=20", "run.total_steps=80",
             "run.eval_every=1000", "logger.every=1000000", "collector.num_envs=1")  # fmt: skip
    error, _ = fails(NumericError, tmp_path, *words)
    assert str(error).startswith("bonus/")
    assert max(saved(tmp_path)) < 60


@pytest.mark.parametrize("pipeline", ["serial", "overlapped"])
def test_a_rollback_goes_on_with_other_random_numbers(tmp_path, monkeypatch, pipeline):
    """Back to the checkpoint, logs too; the same samples are not drawn again."""
    drawn, sample = [], Replay.sample

    def failing(self, batch, env_steps):
        if env_steps >= 250 and None not in drawn:
            drawn.append(None)
            raise NumericError("train/loss = nan")
        found = sample(self, batch, env_steps)
        drawn.append((env_steps, found.key.tolist()))
        return found

    monkeypatch.setattr(Replay, "sample", failing)
    words = (*BANDIT, "run.on_nan=rollback", "run.total_steps=400", "logger.every=20",
             f"pipeline={pipeline}")  # fmt: skip
    record = go(tmp_path, *words)
    assert (record["rollbacks"], record["status"]) == (1, "done")
    steps = [step for step, _ in shown(tmp_path, "collect/episodes")]
    assert steps == sorted(set(steps))
    cut = drawn.index(None)
    before, after = dict(drawn[:cut]), dict(drawn[cut + 1 :])
    again = before.keys() & after.keys()
    assert again, "some updates are repeated"
    assert all(before[n] != after[n] for n in again)


def test_rollbacks_are_counted_and_end(tmp_path, monkeypatch):
    """A fault that comes back ends the run, also over resumes."""
    tries, sample = [], Replay.sample

    def always(self, batch, env_steps):
        if env_steps >= 150:
            tries.append(env_steps)
            raise NumericError("train/loss = nan")
        return sample(self, batch, env_steps)

    monkeypatch.setattr(Replay, "sample", always)
    words = (*BANDIT, "run.on_nan=rollback", "run.total_steps=400")
    _, record = fails(NumericError, tmp_path, *words)
    assert record["rollbacks"] == MAX_ROLLBACKS == len(tries) - 1
    _, record = fails(NumericError, tmp_path, *words)
    assert len(tries) == MAX_ROLLBACKS + 2, "no further rollback"
    assert (record["status"], record["exit_code"]) == ("failed", 4), "of the resume"


def test_a_rollback_needs_a_checkpoint(tmp_path):
    words = (*DIVERGES, "run.on_nan=rollback", "run.checkpoint_every=100000")
    _, record = fails(NumericError, tmp_path, *words, "run.total_steps=900")
    assert record["rollbacks"] == 0


def test_other_streams_moves_every_generator_that_acts_or_samples():
    """Private: of what Ray would save; that nothing else moves would show nowhere."""

    def own():
        return {"generator": np.random.default_rng(3).bit_generator.state}

    env = {"env": np.random.default_rng(3).bit_generator.state}
    state = {
        "policy": own(),
        "buffer": {"sampler": {"rng": own()["generator"]}, "rows": torch.ones(3)},
        "learner": {"means": None, "credit": 3},
        "collectors": [own() | env, None],
    }  # fmt: skip
    one, two = other_streams(state, 1), other_streams(state, 2)
    assert one["policy"] != two["policy"] != state["policy"] != one["policy"]
    rng = [s["buffer"]["sampler"]["rng"] for s in (state, one, two)]
    assert rng[0] != rng[1] != rng[2] != rng[0]
    assert torch.equal(one["buffer"]["rows"], torch.ones(3))
    other = one["policy"]["generator"]
    assert one["learner"] == state["learner"]
    assert one["collectors"] == [{"generator": other} | env, None]
    assert other_streams({"collector": own() | env}, 1) == {"collector": {"generator": other} | env}


def test_one_element_is_found_wherever_it_is():
    """Private: which tensors are looked at shows only in a run that has diverged there."""
    state = {
        "net": {"w": torch.full((3, 4), 3e38)},
        "adam": {"mean": (torch.ones(2), torch.ones(5))},
    }
    assert first_non_finite(state | {"alpha": {"log": torch.tensor(-math.inf)}}) is None
    assert first_non_finite({"alpha": {"log": torch.tensor(math.inf)}}) == "alpha/log"
    for value in (math.nan, math.inf, -math.inf):
        state["adam"]["mean"][1][3] = value
        assert first_non_finite(state) == "adam/mean/1"


def test_non_finite_actions_are_the_policys_fault(tmp_path, monkeypatch):
    weights = ControlLearner.weights

    def spoil(self):
        for p in self.pi.parameters():
            p.data.fill_(math.nan)
        self.pi.learned.fill_(1.0)
        return weights(self)

    monkeypatch.setattr(ControlLearner, "weights", spoil)
    error, _ = fails(NumericError, tmp_path, "policy=sac", "env=pendulum", *TINY)
    assert re.match("policy: action .*nan", str(error))


# -- faults of users' code -------------------------------------------------------------------------


@pytest.mark.parametrize("at", [57, 58])
def test_the_state_before_a_fault_of_the_environment_is_saved(tmp_path, monkeypatch, at):
    """With the rows of the chunk that the fault interrupted; the broken episode is cut."""
    words = (*BANDIT, "run.total_steps=300")

    def breaks(n):
        if n == at:
            raise EnvError("env.id = bandit: environment 0 at step 3: raised")

    with monkeypatch.context() as patch:
        on_steps(patch, training=breaks)
        error, record = fails(EnvError, tmp_path, *words)
    assert (error.exit_code, record["exit_code"]) == (3, 3)
    assert str(error).endswith(f"rlrun resume {tmp_path}")
    state = state_of(tmp_path)
    partial = (state["collector"]["interrupted"] or {"steps": 0})["steps"]
    kept = state["counters"]["env_steps"] + partial
    assert (partial > 0) == (at == 58), "57: between two chunks"
    assert kept == 4 * (at // 2), "four environments, of whose rows every second is an end"
    again = resumed(tmp_path, *words)
    assert (again["status"], again["exact"]) == ("done", False)
    rows = state_of(tmp_path)["buffer"]["counts"]["steps"]
    assert rows == again["env_steps"] >= 300, "no row is lost or doubled"


OWN = """
from rlrun.policy.dqn import DQN as Base
from rlrun.schema import DQNConfig

class Broken(Base):
    config_class = DQNConfig
    calls = 0

    def loss(self, *given):
        self.calls += 1
        if self.calls == 4:
            raise ValueError("no such thing")
        return super().loss(*given)
"""


def test_an_exception_of_a_users_policy(tmp_path, monkeypatch, capsys):
    """Exit 3 with one line that names its place; the state before it is saved."""
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = tmp_path / "run"
    line = [*SMOKE, *BANDIT, "-q", f"policy.name={package.name}:Broken", "--trust", package.name]
    assert main([*line, f"run.dir={run_dir}"]) == 3
    err = assert_one_line(capsys, f"{package.name}, line 12: ", "ValueError: no such thing")
    assert err.endswith(f"rlrun resume {run_dir} --trust {package.name}\n")
    assert state_of(run_dir)["policy"]["updates"] == 3
    assert record_of(run_dir)["exit_code"] == 3
    assert not (run_dir / "crash.txt").exists()


def test_an_error_of_a_process_keeps_its_class():
    """A subclass that this process cannot make from a text is the class of rlrun.errors it is."""
    error = NotTrusted("policy.name = a:B: not trusted", "a", key="policy.name")
    there = error_named(known_error(error), str(error))
    assert (type(there), str(there)) == (ConfigError, str(error))
    assert error_named("ValueError", "x") is None
