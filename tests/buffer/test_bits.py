"""A replay is the same bit for bit however its loops are run: compiled or interpreted.

Nothing outside shows an index out of bounds: compiled loops do not look, the interpreter does.
"""

import hashlib

import numpy as np
import pytest

import rlrun.buffer
from rlrun.jit import COMPILED
from rlrun.run.tensors import Rows
from rlrun.types import Window
from tests.buffer.pair import Setup
from tests.reference.replay_model import OBSERVATIONS, Tiling
from tests.without_numba import without_numba

BASE = {"slack": 23, "lengths": ((5, 9, 1, 30), (2, 3))}
SHAPES = [
    {"window": Window(0, 1, 3), "stack": 3},
    {"window": Window(0, 1, 2), "obs": "scalar"},
    {"window": Window(0, 1, 2)},
    {"window": Window(3, 2, 2), "table": 9},
    {"window": Window(1, 12, 1), "table": 99, "tiling": Tiling(True, 2, "last")},
]
SETUPS = [
    Setup(**(BASE | {"obs": OBSERVATIONS[(i + j) % 4]} | shape | {"kind": kind}))
    for i, kind in enumerate(("uniform", "prioritized", "rank", "prioritized"))
    for j, shape in enumerate(SHAPES)
]


def digest(s: Setup) -> str:
    """Of every key, weight and segment byte and of the state that a seeded sequence gives."""
    world, rng, seen = s.world(), np.random.default_rng(s.seed), hashlib.sha256()
    replay = s.replay(world.chunk(0))

    def look(x):
        if isinstance(x, dict):
            for name in sorted(x, key=str):
                look(x[name])
        elif isinstance(x, tuple | list):
            for one in x:
                look(one)
        elif isinstance(x, Rows):
            look(np.asarray(x.arrays(x.first, x.stop)[""]) if x.first < x.stop else None)
        else:
            seen.update(x.tobytes() if isinstance(x, np.ndarray) else str(x).encode())

    for i in range(14):
        look(replay.add(world.chunk(int(rng.integers(1, 12)))))
        replay.check()
        if not len(replay):
            continue
        sample = replay.sample(8, 100 * i)
        look([np.asarray(x) for x in (*sample.segment.tensors(), sample.weight, sample.key)])
        priority = rng.exponential(size=8).astype(np.float32)
        replay.prioritize(sample.key, priority)
        replay.prioritize(sample.key[::-1].copy(), priority)
    look(replay.state_dict())
    look([np.asarray(x) for part in replay.stored(9) for x in part.tensors()])
    return seen.hexdigest()


@pytest.mark.skipif(not COMPILED, reason="numba is not there or switched off")
@pytest.mark.parametrize("number", range(len(SETUPS)))
def test_a_replay_without_numba_is_the_same(number):
    compiled = digest(SETUPS[number])
    with without_numba(rlrun.buffer):
        assert digest(SETUPS[number]) == compiled
