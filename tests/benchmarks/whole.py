"""Whole runs of rlrun, beside the same of others: ``startup``, ``overlap``, ``diengine``,
``endtoend``, ``ppo``.

Sides take turns, seeds 0, 1, ...; a peer that gave no figures has rows that say so. Same layers,
settings, updates and env steps where a row has a target, with the same number of threads.
"""

import os
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import runs
from tests.benchmarks.rows import (
    PeerFailed,
    Row,
    Side,
    Timing,
    calls_for,
    make_row,
    rounds,
    time_calls,
    timing_row,
)  # fmt: skip
from tests.benchmarks.runs import Answer, Answers, asked, in_turn, interpreter, own_run, peer_run

# -- startup ---------------------------------------------------------------------------------------

RUN = ("policy=r2d2", "env=cartpole", "logger.progress=off", "logger.every=1")
POLL = 0.005  # seconds between looks at the run's files
PATIENCE = 120.0  # seconds until a run without rows is given up


def startup(o: Namespace) -> list[Row]:
    """Seconds of ``--help``, a config error, the first rows of a run, beside the issue's limits."""
    cases: dict[str, tuple[Callable[[], float], float]] = {
        "rlrun --help": (lambda: ended("--help", code=0), 0.5),
        "a config error": (lambda: ended("policy=r2d2", "policy.gama=1", code=2), 2.0),
        "first rows": (first_rows, 3.0),
    }
    rows, warm = [], not o.quick  # one more first, for the disk and compiled kernels
    for name, (seconds, limit) in cases.items():
        times = [seconds() for _ in range((o.runs if o.quick else o.rounds) + warm)][warm:]
        note = "from the command to the first line of timings.jsonl, one collect later than the "
        rows.append(make_row(
            f"start-up, {name}", {}, "the limit", "s", times, [limit] * len(times), kind="cost",
            target=1.0, note=note + "first step" if name == "first rows" else "",
        ))  # fmt: skip
    return rows


def ended(*words: str, code: int) -> float:
    """Seconds until ``rlrun *words`` has ended, with the exit code that is due."""
    start = time.perf_counter()
    found = started(*words).wait()
    seconds = time.perf_counter() - start
    assert found == code, f"rlrun {' '.join(words)}: exit {found}, not {code}"
    return seconds


def first_rows() -> float:
    """Seconds until a run has collected: its first line of timings.jsonl is there. It is killed."""
    with tempfile.TemporaryDirectory() as directory:
        timings, start = Path(directory) / "run" / "timings.jsonl", time.perf_counter()
        process = started(*RUN, f"run.dir={directory}/run")
        try:
            while not (timings.exists() and timings.stat().st_size):
                seconds = time.perf_counter() - start
                assert process.poll() is None, f"the run ended with exit code {process.returncode}"
                assert seconds < PATIENCE, "the run collects nothing"
                time.sleep(POLL)
            return time.perf_counter() - start
        finally:
            process.kill()
            process.wait()


def started(*words: str) -> subprocess.Popen[bytes]:
    """A command line of this checkout that has begun."""
    silent = subprocess.DEVNULL
    line, env = [*runs.RLRUN, *words], runs.environment()
    return subprocess.Popen(line, cwd=runs.CHECKOUT, env=env, stdout=silent, stderr=silent)


# -- overlap ---------------------------------------------------------------------------------------

RATIO = 8  # learned rows an env step: collecting and learning take about as long
ACROBOT = (  # its physics in Python, one environment after the other
    "policy=r2d2", "env=acrobot", "run.eval_episodes=1", f"learner.replay_ratio={RATIO}",
)  # fmt: skip


def overlap(o: Namespace) -> list[Row]:
    """pipeline=overlapped beside pipeline=serial; learner and collector cost about the same."""
    env_steps = o.env_steps or (2_000 if o.quick else 150_000)
    never = [f"run.eval_every={10 * env_steps}", f"run.checkpoint_every={10 * env_steps}"]

    def run(name: str, seed: int) -> Answer:
        words = [*ACROBOT, *never, f"pipeline={name}"]
        return own_run(*words, seed=0, threads=1, env_steps=env_steps)

    sides = {name: partial(run, name) for name in ("overlapped", "serial")}
    found, _ = in_turn(sides, {}, o.runs)
    same = all(len({r["digest"] for r in side}) == 1 for side in found.values())
    assert same, "not deterministic"
    walls = ([r["wall"] for r in side] for side in found.values())
    shares = [r["collect"] / (r["collect"] + r["update"]) for r in found["serial"]]
    setting = {"env_steps": env_steps, "replay_ratio": RATIO, "cores": os.cpu_count()}
    setting["collect_share"] = f"{sum(shares) / len(shares):.0%}"
    return [make_row(
        "overlapped run", setting, "serial run", "s", *walls, kind="speedup", target=1.3,
        note="from the first line of the log to the last, the start of the collector's process "
        "(1 to 2 s) included; both give the same digest every time",
    )]  # fmt: skip


# -- diengine --------------------------------------------------------------------------------------

PRESET = "experiment=diengine_r2d2_cartpole"
UPDATES = {"lstm64": (20, 80, 64, 4.0), "lstm512": (40, 80, 512, 1.6)}
# shape -> burn-in, rows, hidden, wanted


def diengine(o: Namespace) -> list[Row]:
    """Updates and runs of ``experiment=diengine_r2d2_cartpole`` beside DI-engine's own.

    With ``nn.LSTM`` on both sides: DI-engine's default LSTM has layer norms that it lacks.
    """
    python, rows = interpreter(o.peers, "ding"), list[Row]()
    for threads in o.threads:
        torch.set_num_threads(threads)
        for name in [*UPDATES][: 1 if o.quick else None]:
            repeats = o.rounds if name == "lstm64" else min(o.rounds, 3)  # seconds an update
            rows.append(update_row(python, name, threads, repeats, o.seconds))
    env_steps = o.env_steps or (2_000 if o.quick else 25_000)
    return rows + [_diengine_run(python, threads, env_steps, o.runs) for threads in o.threads]


def update_row(python: Path | None, name: str, threads: int, repeats: int, seconds: float) -> Row:
    """sample + update + prioritize of rlrun against ``_forward_learn`` with its collation."""
    from tests.benchmarks import floor

    burnin, unroll, hidden, target = UPDATES[name]
    shape = floor.Shape(name, 4, (128, 128, hidden), hidden, (hidden,), 64, burnin, unroll, 5)
    policy = floor.make_policy(shape, prev_inputs=False, clip=None, backend="auto")
    replay = floor.make_replay(shape, rows=60_000, kind="uniform")

    def ours() -> None:
        drawn = replay.sample(shape.batch, 0)
        replay.prioritize(drawn.key, policy.update(drawn).priority.numpy())

    calls = calls_for(ours, seconds)
    sides: dict[str, Side] = {"ours": lambda: time_calls(ours, calls)}
    setting: dict[str, Any] = {
        "lstm": "pytorch", "hidden": hidden, "batch": shape.batch, "burnin": burnin,
        "unroll": unroll, "n": shape.nstep, "threads": threads, "params": floor.parameters(policy),
    }  # fmt: skip
    fields: dict[str, Any] = {"kind": "speedup", "target": target}
    given = (threads, burnin, unroll, shape.nstep, shape.batch, hidden)
    try:
        with asked(python, "diengine.py update", *given, threads=threads) as (facts, ask):
            assert facts["dtype"] == ["torch.float32"]
            assert facts["threads"] == threads
            equal = sorted(list(p.shape) for p in policy.net.parameters()) == facts["sizes"]
            assert equal, "the row compares other layers"
            ask(2)  # warm
            sides["theirs"] = lambda: Timing(**ask(max(1, calls // 4)))
            found, failed = rounds(sides, repeats)
            for why in failed.values():
                raise PeerFailed(why)
    except PeerFailed as e:
        found, _ = rounds({"ours": sides["ours"]}, repeats)
        found["theirs"], fields["missing"] = [], str(e)
    return timing_row("learner update", setting, "di-engine", *found.values(), **fields)


def _diengine_run(python: Path | None, threads: int, env_steps: int, count: int) -> Row:
    """Env steps a second."""

    def theirs(seed: int) -> Answer:
        return peer_run(python, "diengine.py run", seed, threads, env_steps, threads=threads)

    def ours(seed: int) -> Answer:
        return own_run(PRESET, seed=seed, threads=threads, env_steps=env_steps)

    found, missing = in_turn({"ours": ours}, {"di-engine": theirs}, count)
    for fact in ("threads", "parameters"):
        assert len({run[fact] for side in found.values() for run in side}) == 1, fact
    setting = {"lstm": "pytorch", "env_steps": env_steps, "threads": threads}
    setting["params"] = found["ours"][0]["parameters"]
    rates = ([run["env_steps"] / run["wall"] for run in side] for side in found.values())
    return make_row(
        "run", setting, "di-engine", "env steps/s", *rates, kind="speedup", higher=True, target=8.0,
        missing=missing.get("di-engine", ""),
        note="evaluation included on both sides, imports on neither",
    )  # fmt: skip


# -- endtoend, ppo ---------------------------------------------------------------------------------

SB3 = "stable-baselines3"


def endtoend(o: Namespace) -> list[Row]:
    """Runs of ``experiment=zoo_dqn_cartpole`` beside Stable-Baselines3's DQN, one thread each."""
    return [contest("dqn", o, o.env_steps or (2_000 if o.quick else 50_000))]


def ppo(o: Namespace) -> list[Row]:
    """As ``endtoend``, of PPO; rollouts end with the row that brings the last step: longer."""
    return [contest("ppo", o, o.env_steps or (2_000 if o.quick else 100_000), apart=0.05)]


def contest(name: str, o: Namespace, env_steps: int, *, apart: float = 0.0) -> Row:
    """The row of an algorithm; ``apart``: share by which env steps and updates may differ."""
    python, preset = interpreter(o.peers, "sb3"), f"experiment=zoo_{name}_cartpole"

    def theirs(seed: int) -> Answer:
        return peer_run(python, f"sb3.py {name}", seed, 1, env_steps, threads=1)

    def ours(seed: int) -> Answer:
        return own_run(preset, seed=seed, threads=1, env_steps=env_steps)

    found, missing = in_turn({"ours": ours}, {SB3: theirs}, o.runs)
    return compare(name, found["ours"], found[SB3], env_steps, apart, missing.get(SB3, ""))


def compare(
    name: str, own: Answers, other: Answers, env_steps: int, apart: float, missing: str
) -> Row:
    """Env steps a second of runs that did the same work, else they compare nothing."""
    for fact in ("parameters", "env_steps", "updates", "threads"):
        most = apart * own[0][fact] if fact in ("env_steps", "updates") else 0
        for answer in other:
            same = abs(answer[fact] - own[0][fact]) <= most
            assert same, f"{SB3}: {fact} {answer[fact]}, ours {own[0][fact]}"
    setting = {"env_steps": env_steps, "threads": 1}
    setting |= {"params": own[0]["parameters"], "updates": own[0]["updates"]}
    rates = ([rate(run) for run in side] for side in (own, other))
    return make_row(
        f"{name} run", setting, SB3, "env steps/s", *rates,
        kind="speedup", higher=True, target=4.0, missing=missing,
        note="no evaluations, no imports",
    )  # fmt: skip


def rate(run: Answer) -> float:
    """Env steps per second, evaluations excluded."""
    return run["env_steps"] / (run["wall"] - run["eval_seconds"])
