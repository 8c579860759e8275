"""Columns of rows whose observation spells (column, episode, t): the counter data of the tests."""

from dataclasses import dataclass, field

import numpy as np
import torch

from rlrun.types import Segment


@dataclass
class Episode:
    """One episode of a column; ``start`` is the row of its first step."""

    column: int
    number: int
    start: int
    length: int
    terminated: bool
    complete: bool = True


@dataclass
class Stream:
    """T rows of every column as a collected segment, and the episodes they were made of."""

    segment: Segment
    episodes: list[Episode] = field(default_factory=list)


def reward_of(column: int, number: int, t: int) -> float:
    return 100.0 * column + 10.0 * number + t + 1.0


def action_of(column: int, number: int, t: int) -> int:
    return (column + 2 * number + 3 * t) % 5


def state_of(column: int, number: int, t: int) -> float:
    return 1000.0 * column + 100.0 * number + t


def make_stream(lengths: list[list[int]], ends: list[list[bool]], rows: int) -> Stream:
    """``rows`` rows; column c plays episodes of lengths[c][i] steps, terminated where ends[c][i].

    Lengths are cycled. The observation behind the last row is there as obs[rows].
    """
    columns = len(lengths)
    shape = (rows + 1, columns)
    obs, first = np.full((*shape, 3), -1.0, np.float32), np.zeros(shape, bool)
    action, reward = np.full(shape, 9, np.int64), np.zeros(shape, np.float32)
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    valid, states = np.zeros(shape, bool), np.zeros((*shape, 2), np.float32)
    episodes = []
    for c in range(columns):
        row = number = 0
        while row <= rows:
            length = lengths[c][number % len(lengths[c])]
            dies = ends[c][number % len(ends[c])]
            for t in range(length + 1):
                r = row + t
                if r > rows:
                    break
                obs[r, c], first[r, c] = (c, number, t), t == 0
                states[r, c] = state_of(c, number, t)
                if t < length:
                    valid[r, c] = True
                    reward[r, c], action[r, c] = reward_of(c, number, t), action_of(c, number, t)
                    terminated[r, c] = t == length - 1 and dies
                    truncated[r, c] = t == length - 1 and not dies
            whole = row + length < rows
            seen = min(length, rows - row)
            if seen > 0:
                episodes.append(Episode(c, number, row, length if whole else seen, dies, whole))
            row, number = row + length + 1, number + 1

    def tensor(x: np.ndarray, count: int = rows) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x[:count]))

    segment = Segment(
        obs=tensor(obs, rows + 1),
        first=tensor(first, rows + 1),
        action=tensor(action),
        reward=tensor(reward),
        terminated=tensor(terminated),
        truncated=tensor(truncated),
        valid=tensor(valid),
        state=(tensor(states)[0],),
        states=(tensor(states),),
    )
    return Stream(segment, episodes)


def part(segment: Segment, start: int, stop: int) -> Segment:
    """Rows [start, stop) of a collected segment."""
    names = ("action", "reward", "terminated", "truncated", "valid")
    return Segment(
        obs=segment.obs[start : stop + 1],
        first=segment.first[start : stop + 1],
        state=(segment.states[0][start],),
        states=(segment.states[0][start:stop],),
        **{n: getattr(segment, n)[start:stop] for n in names},
    )
