"""Blind Cliffwalk: how many updates Q-learning needs when replay is uniform, or prioritized.

n states in a row, two actions in each, one of them right (which, alternates); the wrong one ends
the episode with reward 0, the right one in the last state ends it with reward 1. Memory holds every
one of the 2^n action sequences until it ends, in random order: 2^(n+1) - 2 transitions, of which
one is rewarded. Tabular Q-learning draws one transition at a time, with step 1/4, gamma 1 - 1/n, Q
from N(0, 0.1), until the mean squared error of Q over all states and actions is below 1e-3.

Everything goes through ``Replay``: ``add`` once, then ``sample(1)`` and ``prioritize`` in turn, all
transitions new (highest priority) at first. With one transition in a batch the importance weight is
1 whatever beta is. Uniform draws do not depend on what was learned, so they are taken 4096 at a
time and learned from one after the other: the same algorithm. An update is an env step for what
the rank sampler does periodically.

Source: Schaul et al. 2016, section 3.1 and appendix B.1; alpha 0.6 and 0.7 from its table 3.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.benchmarks.product import Replay, Sample, Segment, Window, jit
from tests.benchmarks.rows import Row, make_row
from tests.buffer.make import constant, make_replay

STEP, TOLERANCE, SPREAD = 0.25, 1e-3, 0.1
TARGET = 0.5  # of the updates that uniform replay needs
ALPHA = {"prioritized": 0.6, "rank": 0.7}
RESORT = 10_000  # updates from full sort to full sort, rank: as in conf/buffer/rank.yaml
SAMPLERS = {"uniform": "Uniform", "prioritized": "Proportional", "rank": "Rank"}
BLOCK = 4096  # uniform draws taken at a time
LIMIT = 200  # updates a transition before a run is given up


@dataclass(frozen=True)
class Walk:
    """The memory of one seed, and what its Q should become."""

    segment: Segment  # one column: every action sequence, each with its end row
    truth: np.ndarray  # [n, 2]
    start: np.ndarray  # [n, 2] Q at first
    gamma: float

    @property
    def transitions(self) -> int:
        return int(self.segment.valid.sum())


def make_walk(states: int, seed: int) -> Walk:
    """Every action sequence until its first wrong action, shuffled."""
    g = np.random.default_rng(seed)
    taken = g.permutation(2**states)[:, None] >> np.arange(states) & 1  # [2^n, n] actions
    correct = taken == np.arange(states) % 2
    right = np.cumprod(correct, axis=1)  # 1 while nothing was wrong
    length = np.minimum(right.sum(1) + 1, states)
    position = np.arange(states + 1)
    there = position <= length[:, None]  # [2^n, n + 1] the steps and the end row
    wide = np.concatenate([taken, taken[:, :1]], axis=1)  # an end row's action means nothing
    obs, valid = np.broadcast_to(position, there.shape)[there], (position < length[:, None])[there]
    success = right[:, -1:] & (position == states - 1)
    terminated = (position == length[:, None] - 1)[there]

    def column(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)[:, None])

    gamma = 1 - 1 / states
    truth = np.zeros((states, 2))
    truth[np.arange(states), np.arange(states) % 2] = gamma ** np.arange(states - 1, -1, -1)
    ahead = [0]  # the observation behind the last row opens an episode nobody plays
    segment = Segment(
        obs=column(np.concatenate([obs, ahead])),
        first=column(np.concatenate([obs == 0, [True]])),
        action=column(wide[there]),
        reward=column(success[there].astype(np.float32)),
        terminated=column(terminated),
        truncated=column(np.zeros_like(terminated)),
        valid=column(valid),
    )
    return Walk(segment, truth, g.normal(0, SPREAD, (states, 2)), gamma)


@jit
def learn(
    q: np.ndarray, truth: np.ndarray, state: np.ndarray, action: np.ndarray, reward: np.ndarray,
    following: np.ndarray, terminated: np.ndarray, gamma: float, delta: np.ndarray,
) -> int:  # fmt: skip
    """Updates done, one transition after the other, until Q is right; -1: it is not yet.

    ``delta`` [B] becomes the TD errors; ``q`` changes in place.
    """
    wanted = TOLERANCE * q.size
    error = np.square(q - truth).sum()
    for i in range(len(state)):
        s, a, after = state[i], action[i], 0.0
        if not terminated[i]:
            after = max(q[following[i], 0], q[following[i], 1])
        old = q[s, a]
        delta[i] = reward[i] + gamma * after - old
        q[s, a] = old + STEP * delta[i]
        error += (q[s, a] - truth[s, a]) ** 2 - (old - truth[s, a]) ** 2
        if error < wanted:
            error = np.square(q - truth).sum()  # without what rounding has added up to
            if error < wanted:
                return i + 1
    return -1


def make_memory(walk: Walk, kind: str, seed: int) -> Replay:
    """A replay that holds the whole walk."""
    rows = len(walk.segment.reward)
    changes: dict[str, Any] = {"alpha": constant(ALPHA[kind])} if kind in ALPHA else {}
    if kind == "rank":
        changes["resort_every"] = RESORT
    replay = make_replay(
        walk.segment, rows=rows + 4, window=Window(burnin=0, learned=1, nstep=1), kind=kind,
        capacity=None, seed=seed, **changes,
    )  # fmt: skip
    if type(replay.sampler).__name__ != SAMPLERS[kind]:
        raise RuntimeError(f"make_replay has no sampler {kind}")
    replay.add(walk.segment)
    return replay


def updates(walk: Walk, kind: str, seed: int) -> int:
    """How many updates the sampler ``kind`` needs.

    Raises: RuntimeError after ``LIMIT`` updates a transition.
    """
    replay, q, done = make_memory(walk, kind, 1000 + seed), walk.start.copy(), 0
    batch = BLOCK if kind == "uniform" else 1
    delta, most = np.empty(batch), LIMIT * walk.transitions
    while done < most:
        sample = replay.sample(batch, done)
        stop = learn(q, walk.truth, *transitions(sample), walk.gamma, delta)
        if stop >= 0:
            return done + stop
        done += batch
        if kind != "uniform":
            replay.prioritize(sample.key, np.abs(delta))
    raise RuntimeError(f"{kind}: no solution after {done} updates")


def transitions(sample: Sample) -> tuple[np.ndarray, ...]:
    """state, action, reward, following state, terminated: [B] each."""
    s = sample.segment
    obs = s.obs.numpy()
    flag, reward = s.terminated.numpy()[0], s.reward.numpy()[0]
    return obs[0], s.action.numpy()[0], reward, obs[1], flag


def main(o: Namespace) -> list[Row]:
    """Of 16 states and 10 seeds."""
    return measure(7, 3) if o.quick else measure(o.states, o.seeds or 10)


def measure(states: int, seeds: int) -> list[Row]:
    """A row for proportional and one for rank-based replay: medians of the same seeds."""
    counts: dict[str, list[float]] = {kind: [] for kind in ("uniform", *ALPHA)}
    missing: dict[str, str] = {}
    stored = 0
    for seed in range(seeds):
        walk = make_walk(states, seed)
        stored = walk.transitions
        for kind in counts:
            if kind in missing:
                continue
            try:
                counts[kind].append(float(updates(walk, kind, seed)))
            except RuntimeError as e:
                missing[kind] = str(e)
    return [_row(kind, counts, states, stored, missing) for kind in ALPHA]


def _row(
    kind: str, counts: dict[str, list[float]], states: int, stored: int,
    missing: dict[str, str],
) -> Row:  # fmt: skip
    setting = {"states": states, "transitions": stored, "alpha": ALPHA[kind]}
    setting["seeds"] = len(counts["uniform"])
    bad = missing.get(kind, missing.get("uniform", ""))
    name = {"prioritized": "proportional"}.get(kind, kind)
    row = make_row(
        f"cliffwalk, {name}", setting, "uniform", "updates", counts[kind] or [float("nan")],
        [] if bad else counts["uniform"], kind="cost", target=TARGET, missing=bad,
        note="updates of one transition until the mean squared error of Q is below 1e-3",
    )  # fmt: skip
    if row.other is not None:
        row.ratio = row.ours / row.other  # of the medians
    return row
