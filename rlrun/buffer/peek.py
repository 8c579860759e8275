"""Windows drawn as a replay's sampler would draw them, without touching its random numbers."""

from dataclasses import dataclass

import numpy as np
import torch

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.types import Sample


@dataclass(frozen=True, slots=True)
class Peek:
    """Windows and the priorities |delta| that they are stored with, [B]; None: uniform sampling.

    ``stored``: the priorities of all windows.
    """

    sample: Sample
    priority: np.ndarray | None
    stored: np.ndarray | None


def peek(
    replay: Replay | Mixed, count: int, generator: np.random.Generator, env_steps: int
) -> Peek | None:
    """Return ``count`` windows drawn with the sampler's probabilities, weight 1; None: no window.

    Of two replays those of the run's own. Goals are not relabelled. Nothing is changed.
    """
    own = replay.own if isinstance(replay, Mixed) else replay
    slots = own.windows.all()
    if not len(slots):
        return None
    known = own.sampler.priorities(slots)
    mass = np.ones(len(slots)) if known is None else known[1]
    bounds = np.cumsum(mass)
    at = bounds.searchsorted(generator.random(count) * bounds[-1], side="right")
    at = np.minimum(at, len(slots) - 1)  # rounding may carry a number past the total
    segment = own.reader.read_slots(slots[at])
    weight = torch.ones(count, device=segment.reward.device)
    sample = Sample(segment, weight, own.windows.keys(slots[at]), env_steps)
    if known is None:
        return Peek(sample, None, None)
    return Peek(sample, known[0][at], known[0])
