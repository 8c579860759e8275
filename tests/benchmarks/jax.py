"""``jax``: whole runs beside rejax, and of PQN with a memory beside Memorax; both are compiled JAX.

PPO, PQN and DQN learn CartPole, SAC Pendulum. DQN and SAC make an update per env step, behind the
first 1000.

Seconds are those of whole processes: import, compilation (rlrun's kernels come from numba's cache),
training, one evaluation of 50 episodes at the end, and ten checkpoints and a hundred records of
rlrun, of which the others have none. Runs have one pinned core each, ten seeds at once have two.
The work is the same.

rejax: step sizes of PPO and PQN and the clip range fall to 0 in rlrun (as in rl-zoo3), and are
constant in rejax, where PQN's step size is half of rlrun's first one, and its lambda is 0.65
(rlrun: 0.95): the values that solve more seeds. It bounds single numbers of a gradient, rlrun
its norm.

Memorax: both sides have a layer of 64 units with layer normalisation, a GRU of 64 units, RAdam, the
same schedules, and minibatches of eight environments' 32 rows behind the states stored with them.
rlrun's rollouts have some 1045 env steps instead of 1024, so it makes 2 % fewer updates. A time
limit is a terminal state in Memorax, and rlrun bootstraps behind it. Memorax keeps the values it
acted on for the targets, rlrun computes them again.
"""

import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.benchmarks import runs
from tests.benchmarks.rows import Row, make_row
from tests.benchmarks.runs import Answer, in_turn, interpreter, own_run, peer_run

REJAX = "rejax"
SOLVED = {"ppo": 475.0, "pqn": 475.0, "pqn_gru": 475.0, "dqn": 475.0, "sac": -250.0}  # returns
PQN = (
    "policy=pqn", "env=cartpole", "collector.num_envs=32", "collector.n_sample=1024",
    "learner.batch_size=256", "policy.q_lambda=0.95", "policy.lr.start=2e-3",
    "policy.normalize_reward=false", "policy.gamma=0.99",
)  # fmt: skip
RUNS = {  # algorithm -> its overrides; (env steps, times as fast as the peer that are wanted)
    "ppo": (("experiment=zoo_ppo_cartpole",), ((100_000, 2.0), (1_000_000, 1.3))),
    "pqn": ((*PQN, "torso.hidden=[64,64]"), ((500_000, 3.0), (5_000_000, 1.7))),
    "pqn_gru": (
        (*PQN, "torso.hidden=[64]", "memory=gru", "memory.hidden=64", "policy.reward_scale=0.1"),
        ((300_000, None), (1_000_000, None)),
    ),
    "dqn": (
        (
            "policy=dqn", "env=cartpole", "torso.hidden=[256,256]", "policy.dueling=false",
            "policy.nstep=1", "policy.target_tau=0.02", "policy.gamma=0.99",
            "collector.num_envs=1", "collector.n_sample=8", "learner.batch_size=64",
            "learner.replay_ratio=64", "learner.learning_starts=1000", "policy.lr=1e-3",
            "explore=schedule", "explore.epsilon.kind=linear", "explore.epsilon.start=1",
        ),
        ((20_000, 2.5),),
    ),
    "sac": (
        (
            "policy=sac", "env=pendulum", "torso.hidden=[256,256]", "collector.num_envs=1",
            "collector.n_sample=8", "learner.batch_size=256", "learner.replay_ratio=256",
            "learner.learning_starts=1000",
        ),
        ((5_000, 1.2),),
    ),
}  # fmt: skip
PEERS = dict.fromkeys(RUNS, REJAX) | {"pqn_gru": "memorax"}
SEEDS, SEED_STEPS, SEED_TARGET = 10, 300_000, 3.0
QUICK_STEPS = 2048


def jax(o: Namespace) -> list[Row]:
    """Seconds of whole runs and what they scored, of one seed on one core and of ten on two."""
    count, rows = o.repeats or o.runs, list[Row]()
    for name in o.only or RUNS:
        lengths = RUNS[name][1]
        for env_steps, target in ((QUICK_STEPS, None),) if o.quick else lengths:
            with pinned(1):
                sides = partial(own, name, env_steps), partial(theirs, o.peers, name, env_steps, 1)
                rows += compared(name, {"env_steps": env_steps}, sides, count, target)
        if not o.quick:
            with pinned(1):
                rows.append(compiling(name, lengths[0][0]))
    if o.only:
        return rows
    seeds, env_steps = (2, QUICK_STEPS) if o.quick else (SEEDS, SEED_STEPS)
    with pinned(2):
        sides = (
            partial(own_sweep, seeds, env_steps),
            partial(theirs, o.peers, "pqn", env_steps, seeds),
        )
        setting = {"env_steps": env_steps, "seeds": seeds, "cores": 2}
        rows += compared("pqn", setting, sides, count, None if o.quick else SEED_TARGET)
    if not o.quick:
        name, worst = f"{rows[-1].name}, the worst turn", rows[-1].ours_range[:1]
        rows.append(make_row(name, setting, "all of them", "share", worst, [1.0], kind="speedup",
                             higher=True, target=1.0))  # fmt: skip
    return rows


def overrides(name: str, env_steps: int) -> list[str]:
    """Return those of a run that is evaluated once, at its end."""
    half = [f"explore.epsilon.over={env_steps // 2}"]  # as rejax
    return [
        *RUNS[name][0],
        *half * name.startswith(("pqn", "dqn")),
        f"run.eval_every={env_steps}",
        f"logger.every={env_steps // 100}",
    ]


def own(name: str, env_steps: int, seed: int) -> Answer:
    """Return a run's seconds and score."""
    run = own_run(*overrides(name, env_steps), seed=seed, threads=1, env_steps=env_steps)
    return run | {"scores": [run["curve"][-1][1]]}


def own_sweep(seeds: int, env_steps: int, turn: int) -> Answer:
    """Return the seconds of a sweep over ``seeds`` seeds with all its jobs, and their scores."""
    first = turn * seeds
    with tempfile.TemporaryDirectory() as directory:
        words = [*overrides("pqn", env_steps), f"run.total_steps={env_steps}"]
        words += ["run.stop_return=null", f"seed=range({first},{first + seeds})", "-q"]
        line = [*runs.RLRUN, "-m", *words, f"sweep.dir={directory}/sweep"]
        _, process = runs.measured(line, None)
        jobs = [*Path(directory, "sweep").glob("*/metrics.jsonl")]
        assert len(jobs) == seeds
        return process | {"scores": [runs.scores_of(job.parent)[-1][1] for job in jobs]}


def theirs(peers: Path | None, name: str, env_steps: int, seeds: int, turn: int) -> Answer:
    """Return the seconds and scores of the peer, of several seeds (rejax) in one vmap."""
    python, script = interpreter(peers, PEERS[name]), f"{PEERS[name]}_runs.py {name}"
    threads = min(seeds, 2)
    return peer_run(python, script, turn * seeds, seeds, env_steps, threads=threads)


def compared(
    name: str, setting: dict[str, Any], sides: tuple[Any, Any], count: int, target: float | None
) -> list[Row]:
    """Return the rows of two sides that take ``count`` turns: seconds, CPU seconds, scores."""
    peer = PEERS[name]
    found, missing = in_turn({"ours": sides[0]}, {peer: sides[1]}, count)
    ours, other = found["ours"], found[peer]
    who = f"{peer} {other[0]['version']}" if other else peer
    row = partial(make_row, setting=setting, against=who, missing=missing.get(peer, ""))
    wall, cpu = ([[run[key] for run in side] for side in (ours, other)]
                 for key in ("process", "process_cpu"))  # fmt: skip
    ratios = [b / a for a, b in zip(*cpu, strict=False)]
    solved = [[good(run, SOLVED[name]) for run in side] for side in (ours, other)]
    return [
        row(f"{name} run", unit="s", ours=wall[0], other=wall[1], kind="speedup", target=target,
            cpu_ratio=statistics.median(ratios) if ratios else None, note="the whole process: "
            "import, compilation, training, one evaluation"),
        row(f"{name} run, CPU", unit="s", ours=cpu[0], other=cpu[1], kind="speedup"),
        row(f"{name} run, seeds at {SOLVED[name]:g}", unit="share", ours=solved[0], other=solved[1],
            kind="fact"),
    ]  # fmt: skip


def good(run: Answer, threshold: float) -> float:
    """Return the share of seeds that solved the task."""
    return sum(score >= threshold for score in run["scores"]) / len(run["scores"])


def compiling(name: str, env_steps: int) -> Row:
    """Return a user's first run, which compiles its kernels, beside the next one."""
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, {"NUMBA_CACHE_DIR": cache}),
    ):
        first, second = (own(name, env_steps, 0) for _ in range(2))
    return make_row(f"{name} run, a user's first", {"env_steps": env_steps}, "the second", "s",
                    [first["process"]], [second["process"]], kind="fact")  # fmt: skip


@contextmanager
def pinned(count: int) -> Iterator[None]:
    """Let processes that start within the block use ``count`` cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, before[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
