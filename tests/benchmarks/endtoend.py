"""rlrun's ``experiment=zoo_dqn_cartpole`` (and ``zoo_ppo_cartpole``) beside the DQNs (PPOs) of
others, each a whole run of its own.

Issue: at least 4 times the env steps per second of Stable-Baselines3, 3 times Tianshou's, 1.2
times those of a CleanRL-style script, with the same layers, settings, updates and env steps, one
thread each, evaluations excluded; and CartPole-v1 solved after no more env steps than they need.
Solved: two successive evaluations of 50 greedy episodes with a mean of at least 475.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.own_run import own_run
from tests.benchmarks.process import PeerFailed, interpreter, peer_run
from tests.benchmarks.timing import Row, make_row

THREADS = 1
SOLVED, IN_A_ROW = 475.0, 2


@dataclass(frozen=True)
class PeerRun:
    """Peers' scripts and environments of a comparison, and the target of rlrun.

    ``venv`` "": this interpreter, for scripts that need torch and gymnasium alone.
    """

    name: str
    venv: str
    script: str
    target: float


PEERS = (
    PeerRun("stable-baselines3", "sb3", "dqn_sb3.py", 4.0),
    PeerRun("tianshou", "tianshou", "dqn_tianshou.py", 3.0),
    PeerRun("cleanrl-style", "", "dqn_cleanrl.py", 1.2),
)
Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Contest:
    """An algorithm, our preset, who else runs it."""

    name: str
    preset: str
    peers: tuple[PeerRun, ...]
    apart: float = 0.0  # share by which env steps and updates may differ


DQN = Contest("dqn", "zoo_dqn_cartpole", PEERS)
PPO = Contest(  # our rollouts end with the row that brings the last step: a little longer
    "ppo",
    "zoo_ppo_cartpole",
    (
        PeerRun("stable-baselines3", "sb3", "ppo_sb3.py", 4.0),
        PeerRun("cleanrl-style", "", "ppo_cleanrl.py", 1.2),
    ),
    apart=0.05,
)


def measure(peers: Path | None, *, env_steps: int, runs: int, contest: Contest = DQN) -> list[Row]:
    """All rows; runs in turn, seeds 0, 1, ...; a peer that gave no figures has rows that say so."""
    own: Answers = []
    theirs: dict[str, Answers] = {p.name: [] for p in contest.peers}
    missing: dict[str, str] = {}
    for seed in range(runs):
        preset = f"experiment={contest.preset}"
        own.append(own_run(preset, seed=seed, threads=THREADS, env_steps=env_steps))
        for peer in (p for p in contest.peers if p.name not in missing):
            python = interpreter(peers, peer.venv) if peer.venv else Path(sys.executable)
            try:
                answer = peer_run(python, peer.script, seed, THREADS, env_steps, threads=THREADS)
            except PeerFailed as e:
                missing[peer.name] = str(e)
            else:
                theirs[peer.name].append(answer)
    rows: list[Row] = []
    for peer in contest.peers:
        why = missing.get(peer.name, "")
        rows += compare(contest, peer, own, theirs[peer.name], env_steps, why)
    return rows


def compare(
    contest: Contest, peer: PeerRun, own: Answers, other: Answers, env_steps: int, missing: str
) -> list[Row]:
    """The rows of one peer; a peer of which a run failed counts as missing."""
    other = [] if missing else other
    for answer in other:
        _same_run(contest, peer, own[0], answer)
    setting = {
        "env_steps": env_steps, "threads": THREADS, "params": own[0]["parameters"],
        "updates": own[0]["updates"],
    }  # fmt: skip

    name = contest.name

    def row(title: str, unit: str, value: Any, kind: str = "fact", **fields: Any) -> Row:
        ours, others = ([value(run) for run in runs] for runs in (own, other))
        fields = {"higher": True, "missing": missing} | fields
        return make_row(title, setting, peer.name, unit, ours, others, kind=kind, **fields)

    return [
        row(f"{name} run", "env steps/s", rate, kind="speedup", target=peer.target,
            note="no evaluations, no imports"),
        row(f"{name} run, evaluations too", "env steps/s", lambda r: r["env_steps"] / r["wall"],
            kind="speedup"),
        row(f"{name} run, process", "s", lambda r: r["process"], kind="speedup", higher=False,
            cpu_ratio=_cpu_ratio(own, other), note="the whole process, imports and evaluations "
            "included; so is its CPU time"),
        row(f"{name} solved after", "env steps", lambda r: solved(r["curve"]).env_steps,
            note="inf: not within the run"),
        row(f"{name} solved after, time", "s", lambda r: solved(r["curve"]).seconds),
        row(f"{name} solved after, evaluations too", "s", lambda r: solved(r["curve"]).wall),
        row(f"{name} best evaluation", "return", lambda r: max(point[1] for point in r["curve"])),
        row(f"{name} last evaluation", "return", lambda r: r["curve"][-1][1]),
    ]  # fmt: skip


def rate(run: dict[str, Any]) -> float:
    """Env steps per second, evaluations excluded."""
    return run["env_steps"] / (run["wall"] - run["eval_seconds"])


def _cpu_ratio(own: Answers, other: Answers) -> float | None:
    """How many times less CPU time our processes need; None: nothing to compare."""
    ratios = [b["process_cpu"] / a["process_cpu"] for a, b in zip(own, other, strict=False)]
    return statistics.median(ratios) if ratios else None


def _same_run(contest: Contest, peer: PeerRun, own: dict[str, Any], other: dict[str, Any]) -> None:
    """Both did the same work, else the rows compare nothing."""
    for name in ("parameters", "env_steps", "updates", "threads"):
        apart = contest.apart * own[name] if name in ("env_steps", "updates") else 0
        same = abs(other[name] - own[name]) <= apart
        assert same, f"{peer.name}: {name} {other[name]}, ours {own[name]}"


@dataclass(frozen=True)
class Solved:
    """When the second of two successive good evaluations was over; infinite: never."""

    env_steps: float = math.inf
    seconds: float = math.inf  # without evaluations
    wall: float = math.inf


def solved(curve: Sequence[Sequence[float]]) -> Solved:
    """``curve``: (env steps, mean return, seconds since the start, seconds in evaluations)."""
    hits = 0
    for env_steps, score, wall, evaluating in curve:
        hits = hits + 1 if score >= SOLVED else 0
        if hits == IN_A_ROW:
            return Solved(env_steps, wall - evaluating, wall)
    return Solved()
