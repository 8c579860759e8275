"""The plan of a run: derived numbers agree with the objects built from it.

Private: threads and seeds that are wrong show in seconds and in scores alone.
"""

from dataclasses import asdict
from pathlib import Path

import pytest

from rlrun.run.build import (
    make_collector,
    make_policy,
    make_rollout,
    zero_chunk,
)
from rlrun.run.plan import make_plan
from rlrun.types import Chunk, Counters, Window, tree_leaves
from tests.buffer.make import row_like
from tests.compose import config

PRESETS = sorted(p.stem for p in (Path(__file__).parents[2] / "conf/policy").glob("*.yaml"))
BOX = ("ddpg", "td3", "sac", "rsac", "rtd3", "cql_sac", "tqc", "crossq")
TEAM = {"qmix": ("agents=joint", "env=twostep"), "vdn": ("agents=joint", "env=twostep")}


def line(preset: str) -> tuple[str, ...]:
    env = ("env=pendulum",) if preset in BOX else ("env=cartpole",)
    return (f"policy={preset}", *TEAM.get(preset, env), "torso.hidden=[8]", "memory.hidden=4")


VARIANTS = (  # of DQN
    "policy.distribution=categorical", "policy.noisy=0.5", "policy.prev_inputs=true",
    "policy.munchausen=0.9 policy.double=false policy.value_rescale_eps=null",
    "torso.hidden=[]", "agents=separate env=relay",
)  # fmt: skip


def has_kernel(policy: object) -> bool:
    """Return whether a kernel of ``rlrun.kernels`` computes the policy's gradients."""
    policies = getattr(policy, "policies", [policy])
    return all(getattr(p, "kernel", None) is not None for p in policies)


def test_the_backend_is_the_policy_s():
    other = "learner.precision=bf16 memory=none"
    cases = [(preset, "") for preset in PRESETS if preset not in ("random", "scripted")]
    cases += [(preset, other) for preset in ("dqn", "r2d2", "sac", "ppo")]
    cases += [("dqn", words) for words in VARIANTS]
    for preset, more in cases:
        plan = make_plan(config(*line(preset), *more.split()))
        assert (plan.backend.name == "numpy") == has_kernel(make_policy(plan)), (preset, more)
        assert plan.displaces_kernel() == (more == other and preset != "r2d2"), (preset, more)


@pytest.mark.parametrize(
    "words",
    [("policy=r2d2", "env=cartpole"), ("policy=r2d2", "env=bitflip", "memory=gru"),
     ("policy=dqn", "env=cartpole", "env.frame_stack=4", "collector.keep_info=[x]"),
     ("policy=qmix", "agents=joint", "env=twostep"), ("policy=sac", "env=pendulum"),
     ("policy=dqn", "agents=separate", "env=twostep"), ("policy=impala", "memory=lstm")],
)  # fmt: skip
def test_rows_are_those_the_collector_returns(words):
    """Sizes, dtypes and the number of columns, known without a collector."""
    plan = make_plan(config(*words))
    collector = make_collector(plan, Counters())
    example, columns = Chunk(**collector.arrays).rows(0, 0), collector.num_envs
    collector.env.close()
    assert plan.columns == columns
    assert plan.window == collector.policy.window
    if plan.window is not None:
        assert plan.row == row_like(example)
        empty = zero_chunk(plan.row, columns)
    else:
        rollout = make_rollout(plan, collector.actor)
        assert rollout.columns == columns
        assert rollout.steps["extras"].keys() == example.extras.keys()
        return
    for x, y in zip(tree_leaves(asdict(empty)), tree_leaves(asdict(example)), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)


def test_the_window_is_derived_from_the_policy_s_keys():
    c = config("policy=r2d2", "env=cartpole", "policy.burnin_step=7", "policy.learn_unroll_len=9",
               "policy.nstep=2", "collector.learned_overlap=3")  # fmt: skip
    plan = make_plan(c)
    assert plan.window == Window(7, 7, 2)
    assert c.collector.stride(plan.window) == 4
    plain = config("policy=r2d2", "env=cartpole", "collector.tiling=plain", "collector.overlap=2",
                   "collector.residual=last")  # fmt: skip
    plan = make_plan(plain)
    assert plain.collector.stride(plan.window) == plan.window.rows - 2


def test_a_job_of_a_sweep_counts_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule gives wide networks several threads, but not those of other jobs."""
    wide = config("policy=r2d2", "env=cartpole", "learner.batch_size=64", "memory.hidden=256")
    for share, threads in (("3", 3), ("1", 1), ("100", 8)):
        monkeypatch.setenv("RLRUN_CORES", share)
        assert make_plan(wide).threads == threads
    monkeypatch.setenv("RLRUN_CORES", "many")
    assert make_plan(wide).threads >= 1


def test_a_resumed_plan_keeps_threads_and_horizon_of_its_beginning(monkeypatch):
    words = ("policy=r2d2", "env=cartpole", "learner.batch_size=256", "memory.hidden=256")
    plans = []
    for cores in (4, 1):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        plans.append(make_plan(config(*words)))
    assert [plan.threads for plan in plans] == [4, 1]
    assert plans[1].resumed(plans[0].settings()).threads == 4
    given = make_plan(config(*words, "learner.threads=2"))
    assert given.resumed(plans[0].settings()).threads == 2, "what is given anew counts"
    begun = make_plan(config("run.total_steps=0"))
    longer = make_plan(config("run.total_steps=4000"))
    assert longer.resumed(begun.settings()).horizon == 4000
    assert begun.resumed(longer.settings()).horizon == 4000


def test_evaluations_use_seeds_that_training_never_used():
    seeds = make_plan(config("seed=3", "env=cartpole")).env_seeds
    assert [s // 2**29 for s in (seeds.collect, seeds.eval, seeds.final)] == [0, 1, 2]
