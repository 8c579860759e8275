"""rlrun's ``experiment=diengine_r2d2_cartpole`` beside DI-engine's own run of it.

Issue: at least 8 times its env steps per second, at least 4 times as fast per learner update, with
the same layer sizes, float32, and the same number of threads. DI-engine's default LSTM type,
``normal``, has layer norms that ``nn.LSTM`` and rlrun lack; its type ``pytorch`` is ``nn.LSTM``.
The rows with targets are against ``pytorch``, which has exactly the layers of rlrun's network;
those against ``normal`` are what DI-engine's own config runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.client import asked
from tests.benchmarks.floor import Shape
from tests.benchmarks.own_run import own_run
from tests.benchmarks.process import PeerFailed, interpreter, peer_run
from tests.benchmarks.shapes import make_policy, make_replay, parameters
from tests.benchmarks.timing import (
    Pair,
    Row,
    Timing,
    calls_for,
    interleaved,
    make_row,
    time_calls,
    timing_row,
)

STEPS_TARGET = 8.0
UPDATE_TARGETS = {"cartpole": 4.0, "lstm64": 4.0, "lstm512": 1.6}
LSTM_TYPES = ("pytorch", "normal")
SHAPES = (
    Shape("cartpole", 4, (128, 128, 64), 64, (64,), 64, 2, 40, 5),  # DI-engine's own setting
    Shape("lstm64", 4, (128, 128, 64), 64, (64,), 64, 20, 80, 5),  # the update of the floor
    Shape("lstm512", 4, (128, 128, 512), 512, (512,), 64, 40, 80, 5),
)
PRESET = "experiment=diengine_r2d2_cartpole"


def measure(
    peers: Path | None,
    *,
    threads: tuple[int, ...],
    repeats: int,
    seconds: float,
    env_steps: int,
    runs: int,
    shapes: Sequence[Shape] = SHAPES,
) -> list[Row]:
    """All rows; a comparison that could not be made is a row that says so."""
    python = interpreter(peers, "ding")
    rows: list[Row] = []
    for count in threads:
        for shape in shapes:
            for lstm in LSTM_TYPES if shape.lstm < 512 else LSTM_TYPES[:1]:  # seconds an update
                few = repeats if shape.lstm < 512 else min(repeats, 3)
                rows.append(_update_row(python, shape, lstm, count, few, seconds))
    for count in threads:
        rows += _run_rows(python, count, env_steps, runs)
    return rows


# -- one update ----------------------------------------------------------------------------------


def _update_row(
    python: Path | None, shape: Shape, lstm: str, threads: int, repeats: int, seconds: float
) -> Row:
    """sample + update + prioritize of rlrun against ``_forward_learn`` with its collation."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    policy = make_policy(shape, prev_inputs=False, clip=None, backend="auto")
    replay = make_replay(shape, rows=60_000, kind="uniform")

    def ours() -> None:
        drawn = replay.sample(shape.batch, 0)
        update = policy.update(drawn)
        assert update.priority is not None
        replay.prioritize(drawn.key, update.priority.numpy())

    calls = calls_for(ours, seconds)
    setting: dict[str, Any] = {
        "lstm": lstm, "hidden": shape.lstm, "batch": shape.batch, "burnin": shape.burnin,
        "unroll": shape.unroll, "n": shape.nstep, "threads": threads, "params": parameters(policy),
    }  # fmt: skip
    target = UPDATE_TARGETS.get(shape.name) if lstm == "pytorch" else None
    try:
        with _learner(python, shape, lstm, threads) as (facts, peer):
            setting["peer_params"] = facts["parameters"]
            assert facts["dtype"] == ["torch.float32"]
            assert facts["threads"] == threads
            own = sorted(list(p.shape) for p in policy.net.parameters())
            equal = own == sorted(facts["sizes"].values())
            assert equal or lstm == "normal", "the equal-size row compares other layers"
            pairs: list[Pair] = interleaved(
                lambda: time_calls(ours, calls), lambda: peer(max(1, calls // 4)), repeats
            )
        return timing_row(
            "learner update", setting, "di-engine", pairs, kind="speedup", target=target
        )
    except PeerFailed as e:
        alone = [time_calls(ours, calls).wall * 1e3 for _ in range(repeats)]
        return make_row(
            "learner update", setting, "di-engine", "ms", alone, [], kind="speedup",
            target=target, missing=str(e),
        )  # fmt: skip
    finally:
        torch.set_num_threads(before)


@contextmanager
def _learner(python: Path | None, shape: Shape, lstm: str, threads: int) -> Iterator[Any]:
    """(facts of the peer's network, measure(calls) -> Timing)."""
    given = (threads, lstm, shape.burnin, shape.unroll, shape.nstep, shape.batch, shape.lstm)
    with asked(python, "diengine_update.py", *given, threads=threads) as (facts, ask):
        ask(2)  # warm
        yield facts, lambda calls: Timing(**ask(calls))


# -- a whole run ---------------------------------------------------------------------------------


def _run_rows(python: Path | None, threads: int, env_steps: int, runs: int) -> list[Row]:
    """Runs in turn, seeds 0, 1, ...: env steps a second in all, and what else the runs say."""
    own: list[dict[str, Any]] = []
    theirs: dict[str, list[dict[str, Any]]] = {lstm: [] for lstm in LSTM_TYPES}
    missing: dict[str, str] = {}
    for seed in range(runs):
        own.append(own_run(PRESET, seed=seed, threads=threads, env_steps=env_steps))
        for lstm in LSTM_TYPES:
            if lstm in missing:
                continue
            try:
                given = (seed, threads, lstm, env_steps)
                theirs[lstm].append(peer_run(python, "diengine_run.py", *given, threads=threads))
            except PeerFailed as e:
                missing[lstm] = str(e)
    setting = {"env_steps": env_steps, "threads": threads}
    assert all(r["threads"] == threads for r in [*own, *theirs["pytorch"], *theirs["normal"]])
    return [
        row
        for lstm in LSTM_TYPES
        for row in _compare(lstm, own, theirs[lstm], setting, missing.get(lstm, ""))
    ]


def _compare(
    lstm: str,
    own: list[dict[str, Any]],
    peer: list[dict[str, Any]],
    setting: dict[str, Any],
    missing: str,
) -> list[Row]:
    """The rows of one LSTM type; a type of which a run failed counts as missing."""
    peer = [] if missing else peer
    setting = {"lstm": lstm, **setting, "params": own[0]["parameters"]}
    if peer:
        setting["peer_params"] = peer[0]["parameters"]
        assert lstm == "normal" or setting["params"] == setting["peer_params"]

    def row(name: str, unit: str, value: Any, kind: str = "speedup", **fields: Any) -> Row:
        ours, others = ([value(run) for run in runs] for runs in (own, peer))
        return make_row(
            name, setting, "di-engine", unit, ours, others, kind=kind, higher=True,
            missing=missing, **fields,
        )  # fmt: skip

    return [
        row("run", "env steps/s", lambda r: r["env_steps"] / r["wall"],
            target=STEPS_TARGET if lstm == "pytorch" else None,
            note="evaluation included on both sides, imports on neither"),
        row("run, no evaluation", "env steps/s",
            lambda r: r["env_steps"] / (r["wall"] - r["eval_seconds"])),
        row("run, updates", "updates/s", lambda r: r["updates"] / r["wall"]),
        row("run, steps an update", "env steps", lambda r: r["env_steps"] / r["updates"], "fact"),
        row("run, evaluations", "times", lambda r: r["evaluations"], "fact"),
        row("run, process", "s", lambda r: r["process"], "fact",
            note="the whole process, imports included"),
    ]  # fmt: skip
