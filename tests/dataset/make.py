"""Rows to write, and what was read of them, comparable."""

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from rlrun.types import Segment, Spec, tree_leaves, tree_map
from tests.reference.streams import part

SPEC = Spec(spaces.Box(-1, np.inf, (3,), np.float32), spaces.Discrete(10))
SOURCE = {"policy": "r2d2", "env": "counter", "seed": 3}
KINDS = ["plain", "nested", "image"]


def dress(segment: Segment, kind: str) -> Segment:
    """The stream with observations of another structure, and extras."""
    x = segment.obs
    if kind == "nested":
        whole = x.to(torch.int64).sum(-1)
        obs = {"z": (x, {"c": x.double()}), "a/b": whole, "a": {"b": x[..., :1] == 0}}
    elif kind == "image":
        obs = x.to(torch.uint8)[..., None, :].expand(*x.shape[:2], 5, 3).contiguous()
    else:
        return segment
    extras = {"log_prob": segment.reward * 0.5, "a/b": segment.action[..., None].to(torch.int32)}
    return replace(segment, obs=obs, extras=extras)


def cut(segment: Segment, start: int, stop: int) -> Segment:
    """Rows [start, stop) of a collected segment with any observations."""
    x = part(replace(segment, obs=segment.first), start, stop)
    obs = tree_map(lambda leaf: leaf[start : stop + 1], segment.obs)
    return replace(x, obs=obs, extras={k: v[start:stop] for k, v in segment.extras.items()})


def joined(chunks: list[Segment]) -> Segment:
    """The rows of chunks that continue each other, as one segment."""

    def rows(name):
        return torch.cat([getattr(c, name) for c in chunks])

    def ahead(pick):
        return torch.cat([*(pick(c)[:-1] for c in chunks), pick(chunks[-1])[-1:]])

    leaves = range(len(tree_leaves(chunks[0].obs)))
    obs = iter([ahead(lambda c, i=i: tree_leaves(c.obs)[i]) for i in leaves])
    states = iter([torch.cat(list(x)) for x in zip(*(tree_leaves(c.states) for c in chunks))])  # noqa: B905
    return Segment(
        obs=tree_map(lambda _: next(obs), chunks[0].obs),
        first=ahead(lambda c: c.first),
        extras={k: torch.cat([c.extras[k] for c in chunks]) for k in chunks[0].extras},
        states=tree_map(lambda _: next(states), chunks[0].states),
        **{n: rows(n) for n in ("action", "reward", "terminated", "truncated", "valid")},
    )


def spell(segment: Segment, column: int, start: int, stop: int) -> tuple:
    """Every bit of the steps [start, stop) of a column, closed as a trajectory is."""
    steps = [segment.action, segment.reward, segment.terminated, *segment.extras.values()]
    truncated = segment.truncated[start:stop, column].clone()
    truncated[-1] |= ~segment.terminated[stop - 1, column]
    obs = tree_map(lambda x: x[start : stop + 1, column].numpy().tobytes(), segment.obs)
    said = [x[start:stop, column].numpy() for x in steps]
    kinds = tuple((str(x.dtype), x.shape, x.tobytes()) for x in said)
    return repr(obs), kinds, truncated.numpy().tobytes(), tuple(segment.extras)


def spelled(segment: Segment) -> Counter:
    """The multiset of trajectories, found row by row."""
    found = []
    for c in range(segment.reward.shape[1]):
        start = None
        for t in range(len(segment.reward)):
            if segment.valid[t, c] and start is None:
                start = t
            if not segment.valid[t, c] and start is not None:
                found.append(spell(segment, c, start, t))
                start = None
        if start is not None:
            found.append(spell(segment, c, start, len(segment.reward)))
    return Counter(found)
