"""Columns of rows whose observation spells (column, episode, t), as one segment."""

from dataclasses import dataclass
from typing import Any

import torch

from rlrun.types import Segment, tree_map
from tests.reference.replay_model import TERMINATED, TRUNCATED, World


@dataclass
class Stream:
    """T rows of every column as a collected segment."""

    segment: Segment


def make_stream(lengths: list[list[int]], ends: list[list[bool]], rows: int) -> Stream:
    """``rows`` rows of a ``World``; column c's episode i terminates where ends[c][i].

    The observation behind the last row is there as obs[rows]. End rows have action 9 and reward 0.
    """
    kinds = [[TERMINATED if dies else TRUNCATED for dies in column] for column in ends]
    s = World(lengths, kinds, states=False).chunk(rows)
    state = (s.obs[:-1].double() @ torch.tensor([1000.0, 100.0, 1.0]).double()).float()
    states = (torch.stack([state, state], -1),)
    segment = Segment(
        obs=s.obs,
        first=s.first,
        action=torch.where(s.valid, s.action - 1, 9),
        reward=torch.where(s.valid, s.reward, 0),
        terminated=s.terminated,
        truncated=s.truncated,
        valid=s.valid,
        state=(states[0][0],),
        states=states,
    )
    return Stream(segment)


def part(segment: Segment, start: int, stop: int) -> Segment:
    """Rows [start, stop) of a collected segment."""

    def rows(tree: Any, more: int = 0) -> Any:
        return tree_map(lambda x: x[start : stop + more], tree)

    names = ("action", "reward", "terminated", "truncated", "valid", "extras", "states")
    return Segment(
        obs=rows(segment.obs, 1),
        first=rows(segment.first, 1),
        state=tree_map(lambda x: x[start], segment.states),
        **{n: rows(getattr(segment, n)) for n in names},
    )
