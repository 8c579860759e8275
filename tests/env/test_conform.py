"""Probes of rlrun.env.conform: rlrun passes each, and fails it with the fault in question."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rlrun.buffer.replay import Replay, WindowTable
from rlrun.env import conform
from rlrun.env.conform import PROBES
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator
from rlrun.policy.actor import NetActor
from rlrun.run import build, checkpoint
from rlrun.run.plan import make_plan
from rlrun.run.start import Launch, start
from rlrun.spaces import tree_map
from tests.compose import config
from tests.installed import FOLDER
from tests.policy.make import constant

EVERY = """
policy=r2d2 env=conform torso.hidden=[16] memory.hidden=16 policy.prev_inputs=false policy.nstep=1
policy.burnin_step=0 policy.learn_unroll_len=5 collector.num_envs=8 collector.n_sample=64
explore=linear learner.batch_size=32 learner.replay_ratio=32 learner.learning_starts=200
policy.lr.start=1e-2 policy.lr.end=1e-3 policy.target_tau=0.05 run.total_steps=1500
run.eval_every=1500 run.eval_episodes=1 buffer.capacity=8000 logger.progress=off
logger.tensorboard=false learner.threads=1
"""
STORED = {"policy.learn_unroll_len": 4, "torso.hidden": (), "memory.hidden": 32,
          "buffer.capacity": 1500, "run.total_steps": 4000, "run.eval_every": 4000}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {  # of a probe, beside those of all
    "own": STORED,
    "stored": {**STORED, "collector.num_envs": 1},
    "odd": {"collector.num_envs": 3, "learner.batch_size": 7},
    "truncation": {"policy.learn_unroll_len": 3},
    "nstep": {"policy.nstep": 3, "policy.learn_unroll_len": 7},
    "previous": {"policy.prev_inputs": True},
    "burnin": {"policy.state_init": "zero", "policy.learn_unroll_len": 3, "policy.burnin_step": 1},
    "mask": {"run.total_steps": 2500, "run.eval_every": 2500},
    "padding": {"policy.learn_unroll_len": 9},
    "weights": {"policy.value_rescale_eps": None, "policy.learn_unroll_len": 2,
                "buffer.beta": constant(1), "buffer.alpha": constant(0.9),
                "explore.epsilon": constant(1), "collector.num_envs": 4},
}  # fmt: skip


def score(run_dir: Path, name: str, settings: dict[str, Any]) -> float:
    """The return of the last of two evaluations of a trained rlrun."""
    c = config(*EVERY.split())
    for key, value in (SETTINGS.get(name, {}) | settings).items():
        node, _, field = key.partition(".")
        c = replace(c, **{node: replace(getattr(c, node), **{field: value})})
    c = replace(c, env=replace(c.env, kwargs={"probe": name, "control": False}))
    run_dir.mkdir()
    assert start(Launch(c, run_dir, "")) == 0
    plan, episodes = make_plan(c), 50 if name == "fresh" else 200  # one per environment, or 4
    policy = build.make_policy(plan)
    policy.load(checkpoint.load_weights(run_dir / "checkpoints" / "last.safetensors")[0])
    evaluator = Evaluator(c.env, episodes=episodes, seed=plan.env_seeds.final, max_steps=100)
    for _ in range(2):
        result = evaluator.run(policy, env_steps=0).summary()
    evaluator.close()
    return result["return_mean"]


# -- arithmetic ------------------------------------------------------------------------------------

ORACLES: dict[str, Callable[[Any], int]] = {  # what is best, told by what the environment hides
    **dict.fromkeys(("reset", "fresh", "burnin"), lambda e: int(e.t == 0)),
    **dict.fromkeys(("late", "own", "stored", "odd"), lambda e: e.cue),
    **dict.fromkeys(("last", "one"), lambda e: conform.ONE_OF_FOUR[e.door]),
    **dict.fromkeys(("nstep", "weights"), lambda e: conform.RIGHT[e.door]),
    "previous": lambda e: (1 - e.arm) * (e.t == 1),
    "truncation": lambda e: conform.RIGHT[e.door] ^ (e.door >= 4),
    "padding": lambda e: int(e.t > 0),
    "mask": lambda e: 1 if e.t == 0 else 2 * e.pair + e.cue,
}


def played(name, policy, *, control=False, episodes=150):
    env = conform.make(name, control=control, evaluation=True)
    returns = np.zeros(episodes)
    for i in range(episodes):
        obs, _ = env.reset(seed=i)
        assert env.observation_space.contains(obs)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(env))
            returns[i] += reward
            ended = terminated or truncated
            assert not (terminated and truncated)
    return returns.mean()


@pytest.mark.parametrize("name", PROBES)
def test_the_best_return_is_1_and_ignorance_is_below_the_bound(name):
    rng = np.random.default_rng(0)
    for control in (False, True):
        assert played(name, ORACLES[name], control=control) == pytest.approx(1, abs=0.2)
    ignorant = [lambda e: 0, lambda e: 1, lambda e: int(rng.integers(e.action_space.n))]
    assert max(played(name, policy) for policy in ignorant) < PROBES[name].pass_mark()


def test_the_largest_of_continuous_actions_is_taken():
    env = conform.make("last", box=True)
    env.reset(seed=0)
    for _ in range(3):
        env.step(env.action_space.sample())
    best = np.full(4, -0.5, np.float32)
    best[conform.ONE_OF_FOUR[env.door]] = 0.5
    assert env.action_space.contains(best)
    assert env.step(best)[1] == 1
    with pytest.raises(ValueError, match="mask"):
        conform.make("mask", box=True)


def test_every_probe_is_an_environment():
    for name in PROBES:
        own = yaml.safe_load((FOLDER / f"conform_{name}.yaml").read_text())
        assert (own["defaults"][0], own["kwargs"]) == ("conform", {"probe": name})


def test_an_unknown_probe_is_refused():
    with pytest.raises(ValueError, match="rset"):
        conform.make("rset")


def test_the_module_needs_numpy_and_gymnasium_only():
    """As part of rlrun without its other dependencies, and as a file alone."""
    code = """
import runpy, sys
for name in ("torch", "hydra", "omegaconf", "numba", "yaml", "ray", "tensorboard", "safetensors"):
    sys.modules[name] = None
from rlrun.env import conform
import gymnasium
gymnasium.make("rlrun/Conform-v0", probe="late").reset(seed=0)
alone = runpy.run_path(conform.__file__)
alone["make"]("late").reset(seed=0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# -- faults ----------------------------------------------------------------------------------------


Patch = pytest.MonkeyPatch


def steps_from(first: Callable[[NetActor, np.ndarray], np.ndarray]) -> Callable[[Patch], None]:
    """The state is reset in the rows ``first(actor, first)`` only."""

    def apply(patch: Patch) -> None:
        step = NetActor.step

        def changed(self, obs, opens, action, reward, state):
            return step(self, obs, first(self, opens), action, reward, state)

        patch.setattr(NetActor, "step", changed)
        kept = property(lambda self: self.state, lambda self, value: None)
        patch.setattr(Collector, "initial_state", kept, raising=False)

    return apply


def row_before(actor: Any, first: np.ndarray) -> np.ndarray:
    late = getattr(actor, "opened", np.zeros_like(first))
    actor.opened = first.copy()
    return late


def changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """What ``owner.name`` returns is changed."""

    def apply(patch: Patch) -> None:
        made = getattr(owner, name)
        patch.setattr(owner, name, lambda *given: change(made(*given)))

    return apply


def chunks(change: Callable[[Any], dict[str, Any]]) -> Callable[[Patch], None]:
    """Collected rows have other fields."""
    return changed(Collector, "collect_rows", lambda chunk: replace(chunk, **change(chunk)))


def leaking(chunk: Any) -> dict[str, Any]:
    """Two-step returns that run over the end row."""
    reward = chunk.reward.copy()
    done = (chunk.terminated | chunk.truncated)[:-2]
    reward[:-2] += 0.9 * np.where(done, chunk.reward[2:], 0)
    return {"reward": reward}


def samples(change: Callable[[Any], dict[str, Any]]) -> Callable[[Patch], None]:
    """Sampled windows have other fields."""
    return changed(Replay, "sample", lambda sample: replace(
        sample, segment=replace(sample.segment, **change(sample.segment))))  # fmt: skip


def padded(segment: Any) -> dict[str, Any]:
    """Rows of padding are learned: no observation, action 0, reward 0, no value."""
    valid = segment.valid
    return {"valid": torch.ones_like(valid), "action": torch.where(valid, segment.action, 0),
            "reward": torch.where(valid, segment.reward, 0.0), "truncated": ~valid & False,
            "terminated": segment.terminated | ~valid}  # fmt: skip


def leftover(patch: Patch) -> None:
    """Evaluations go on from the state with which the one before ended."""
    act = NetActor.act

    def changed(self, obs, first, action, reward, state, *, explore):
        if explore is None:
            if first.all() and hasattr(self, "left"):
                first, state = np.zeros_like(first), self.left
            out = act(self, obs, first, action, reward, state, explore=explore)
            self.left = out.state
            return out
        return act(self, obs, first, action, reward, state, explore=explore)

    patch.setattr(NetActor, "act", changed)


def own_inputs(patch: Patch) -> None:
    """The learner's previous action and reward are those of the row itself."""

    def changed(segment, *, scale, clip):
        none = torch.zeros_like(segment.reward[:1])
        action = torch.cat([segment.action, none.long()])
        return segment.obs, action, torch.cat([segment.reward, none])

    patch.setattr("rlrun.nets.acting.network_inputs", changed)


def unmasked_target(patch: Patch) -> None:
    patch.setattr("rlrun.policy.r2d2.allowed_actions", lambda obs: None)


def ends(segment: Any) -> torch.Tensor:
    return segment.terminated | segment.truncated


TORCH = {"learner.backend": "torch"}
FAULTS: dict[str, tuple[str, Callable[[Patch], None] | None, dict[str, Any]]] = {
    # probe, fault, settings
    "no_reset": ("reset", steps_from(lambda actor, first: np.zeros_like(first)), {}),
    "late_reset": ("late", steps_from(row_before), {}),
    "foreign_state": ("own", changed(
        WindowTable, "states_of", lambda states: tree_map(
            lambda x: np.roll(x, 1, axis=0), states)), {}),
    "done_is_terminated": ("truncation", chunks(lambda c: {
        "terminated": c.terminated | c.truncated, "truncated": np.zeros_like(c.truncated)}), {}),
    "done_is_truncated": ("truncation", chunks(lambda c: {
        "truncated": c.terminated | c.truncated, "terminated": np.zeros_like(c.terminated)}), {}),
    "last_row_lost": ("last", samples(lambda s: {"valid": s.valid & ~ends(s)}), {}),
    "truncated_row_lost": ("last", samples(lambda s: {"valid": s.valid & ~s.truncated}), {}),
    "short_episodes_lost": ("one", samples(lambda s: {
        "valid": s.valid & (s.valid.sum(0) > 1)}), {}),
    "returns_run_on": ("nstep", chunks(leaking), {}),
    "no_reward": ("previous", None, {"policy.prev_inputs": False}),
    "own_reward": ("previous", own_inputs, TORCH),
    "padding_learned": ("padding", samples(padded), {}),
    "burnin_learned": ("burnin", None, {"policy.burnin_step": 0}),
    "zero_state": ("stored", None, {"policy.state_init": "zero"}),
    "evaluation_goes_on": ("fresh", leftover, {}),
    "unmasked_target": ("mask", unmasked_target, TORCH),
    "joined_to_others": ("odd", chunks(lambda c: {"reward": np.roll(c.reward, 1, axis=1)}), {}),
    "no_weights": ("weights", None, {"buffer.beta": constant(0)}),
    "foreign_weights": ("weights", changed(
        Replay, "sample", lambda x: replace(x, weight=x.weight.roll(1))), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_rlrun_has_the_property(tmp_path, name):
    assert score(tmp_path / "run", name, {}) > PROBES[name].pass_mark()


@pytest.mark.parametrize("fault", FAULTS)
def test_an_implementation_without_it_is_below_the_bound(tmp_path, monkeypatch, fault):
    name, apply, settings = FAULTS[fault]
    if apply is not None:
        apply(monkeypatch)
    assert score(tmp_path / "run", name, settings) < PROBES[name].pass_mark()
