"""Rows to write, and what was read of them, comparable."""

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from rlrun.types import Segment, Spec, tree_map

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
