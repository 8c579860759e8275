"""Exact resume: a run that is killed and resumed must equal the run that was not."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.log import Log
from rlrun.pipeline.parts import LoopProgress
from rlrun.run import start
from rlrun.run.checkpoint import load_newest
from rlrun.run.diff import differences
from rlrun.schema import Config
from tests.compose import config

QUIET = ("logger.progress=off", "logger.tensorboard=false", "learner.threads=1")
ONLY_STOPS = 999_999_937  # run.checkpoint_every: checkpoints at the stops and at the end only


class Killed(BaseException):
    """The end of a run by SIGKILL: nothing catches it, nothing is written after it."""


def assert_exact_resume(
    overrides: Sequence[str], stops: Sequence[int], run_dir: Path, *, chunks: int = 2
) -> dict[str, Any]:
    """Run whole, and killed at each of ``stops`` and resumed; assert that both runs are equal.

    A killed run has saved at the first chunk that reaches the stop (in env steps) and is killed
    ``chunks`` chunks later. Compared are metrics.jsonl, the digest, and every leaf of the last
    checkpoint: weights, optimiser, replay, generators, environments. Returns the uninterrupted
    run's last state.
    """
    c = config(*QUIET, *overrides, f"run.checkpoint_every={ONLY_STOPS}")
    whole, cut = run_dir / "whole", run_dir / "cut"
    for directory in (whole, cut):
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text("{}")
    assert _begin(c, whole) == 0
    kill_and_resume(c, cut, stops, chunks=chunks)
    assert not (found := run_differences(whole, cut)), found
    return load_newest(whole / "checkpoints")[0]


def run_differences(one: Path, other: Path) -> list[str]:
    """Where the records, the digest or the last checkpoint of two finished runs differ."""
    records = [(d / "metrics.jsonl").read_bytes().split(b"\n") for d in (one, other)]
    pairs = zip(*records, strict=False)
    found = [
        f"metrics.jsonl line {i}: {x!r} / {y!r}" for i, (x, y) in enumerate(pairs, 1) if x != y
    ]
    if len(records[0]) != len(records[1]):
        found.append(f"metrics.jsonl: {len(records[0])} / {len(records[1])} lines")
    digests = {json.loads((d / "run.json").read_text())["digest"] for d in (one, other)}
    found += ["run.json: other digests"] * (len(digests) > 1)
    states = [load_newest(d / "checkpoints")[0] for d in (one, other)]
    return [*found[:2], *islice(differences(*states), 8)]


def kill_and_resume(c: Config, cut: Path, stops: Sequence[int], *, chunks: int = 2) -> None:
    """Run in ``cut``, killed at each of ``stops`` and resumed, to the end."""
    begin = _begin
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            _kill_after(patch, stop, chunks)
            with pytest.raises(Killed):
                begin(c, cut)
        torch.manual_seed(stop)  # a new process has other global generators
        np.random.seed(stop)
        begin = _resume
    assert begin(c, cut) == 0


def _begin(c: Config, run_dir: Path) -> int:
    return start.start(start.Launch(c, run_dir, "seed: 0\n"))


def _resume(c: Config, run_dir: Path) -> int:
    return start.start(start.Launch(c, run_dir, "seed: 0\n", []))


def _kill_after(patch: pytest.MonkeyPatch, stop: int, chunks: int) -> None:
    """Save at the first chunk that reaches ``stop``; raise Killed ``chunks`` chunks later."""
    due, progress = LoopProgress.due, Log.progress
    left: list[int] = []

    def save_at_stop(self: LoopProgress, every: int, before: int) -> bool:
        if every != ONLY_STOPS:
            return due(self, every, before)
        if before < stop <= self.counters.env_steps:
            left.append(chunks)
            return True
        return False

    def count(self: Log, env_steps: int, updates: int, **shown: float) -> None:
        if left and not shown:  # once per chunk
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        progress(self, env_steps, updates, **shown)

    patch.setattr(LoopProgress, "due", save_at_stop)
    patch.setattr(Log, "progress", count)
