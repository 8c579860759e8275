"""What a search maximises, and the rungs at which asynchronous successive halving compares trials.

Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA); trials are
stopped at a rung, as in its stopping variant, rather than paused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.reports.runs import RunData, mean_over_steps, parse_score


@dataclass(frozen=True)
class Rung:
    """A point of a trial whose seeds are counted one after another.

    ``seed``: index of the seed that is being run there, ``env_steps``: how far it has come.
    ``total``: env steps of all seeds up to there, which orders the rungs.
    """

    seed: int
    env_steps: float
    total: int


def make_rungs(
    total_steps: int, eval_every: int, *, seeds: int, reduction: int, count: int
) -> list[Rung]:
    """Return the rungs of a trial, lowest first.

    They lie at ``seeds * total_steps / reduction ** j``, j = 1 … ``count``; those before a first
    evaluation are left out, and all of a run without steps.
    """
    found: list[Rung] = []
    if total_steps == 0:
        return found
    for power in range(count, 0, -1):
        total = seeds * total_steps / reduction**power
        seed = math.ceil(total / total_steps) - 1  # a rung at the end of a seed belongs to it
        steps = total - seed * total_steps
        if total >= eval_every:
            found.append(Rung(seed, steps, round(total)))
    return found


def partial_score(run: RunData, kind: str, env_steps: float) -> float | None:
    """Return the score of ``kind`` at the first evaluation at or after ``env_steps``.

    ``final`` is the mean return of that evaluation. A run that ended before, because it was solved,
    keeps its last evaluation up to ``env_steps``. None: the run has not come that far.
    """
    last = parse_score(kind)
    steps, returns = run.evaluations.env_steps, run.evaluations.return_mean
    end = int(np.searchsorted(steps, env_steps))
    if end == len(steps):
        if run.status != "done" or not end:
            return None
        end -= 1
    at = max(steps[end], env_steps)
    steps, returns = steps[: end + 1], returns[: end + 1]
    if last is not None:
        return float(returns[-last:].max())
    return float(returns[-1]) if kind == "final" else mean_over_steps(steps, returns, at)


def falls_behind(score: float, others: Sequence[float], reduction: int) -> bool:
    """Return whether a trial with ``score`` at a rung is stopped there.

    It goes on when it is among the best 1/``reduction`` of all trials that reached the rung, ties
    included, or when there are fewer than ``reduction`` of them.
    """
    scores = sorted([score, *others], reverse=True)
    kept = len(scores) // reduction
    return kept > 0 and score < scores[kept - 1]


def first_lost(
    scores: Mapping[int, float], earlier: Sequence[Mapping[int, float]], reduction: int
) -> int | None:
    """Return the lowest rung (its ``total``) at which a trial is stopped; None: at none.

    ``scores``: rung -> score of the trial, ``earlier``: those of the trials to compare with.
    """
    for rung in sorted(scores):
        others = [trial[rung] for trial in earlier if rung in trial]
        if falls_behind(scores[rung], others, reduction):
            return rung
    return None
