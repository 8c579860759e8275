"""Chunks of other processes and of checkpoints, compared with the rows of this run at once."""

from collections.abc import Callable

import numpy as np

from rlrun.buffer.storage.layout import REWARD, ArraySpec, Row
from rlrun.buffer.storage.validator import leaves_like
from rlrun.errors import CheckpointError
from rlrun.types import Chunk, tree_leaves

Check = Callable[[Chunk, str], Chunk]
"""(rows, who sent them) -> the rows"""

_FLAG = ArraySpec((), np.dtype(bool))


class RowCheck:
    """Compares the arrays and values of a received chunk with their spaces, once, as a whole.

    Extras and states are those that an actor gives; their lengths are compared, no more.
    """

    def __init__(self, row: Row, columns: int) -> None:
        self.row, self.columns = row, columns

    def __call__(self, chunk: Chunk, sender: str) -> Chunk:
        """Return ``chunk``. Raises: CheckpointError naming ``sender``, row and value."""
        try:
            wrong = self._misfit(chunk)
            spaces = self.row.spaces
            if wrong is None and spaces is not None:
                wrong = spaces.violation(chunk.obs, chunk.action, chunk.valid)
        except (ValueError, TypeError, AttributeError, LookupError) as e:
            wrong = " ".join(str(e).split())[:200]
        if wrong is None:
            return chunk
        raise CheckpointError(
            f"{sender}: {wrong}; rows of the run's own environments are allowed; look for a "
            "process or a checkpoint of another program, or faulty memory"
        )

    def _misfit(self, chunk: Chunk) -> str | None:
        """Describe the first array of another shape or dtype."""
        row, steps = self.row, len(chunk.reward)
        specs = list(zip(tree_leaves(row.obs), leaves_like(row.obs, chunk.obs, "obs"), strict=True))
        specs += [(row.action, chunk.action), (ArraySpec((), REWARD), chunk.reward)]
        specs += [(_FLAG, x) for x in (chunk.terminated, chunk.truncated, chunk.valid)]
        named = [(spec, x, steps + (i < len(specs) - 5)) for i, (spec, x) in enumerate(specs)]
        for spec, x, rows in [*named, (_FLAG, chunk.first, steps + 1)]:
            wanted = (rows, self.columns, *spec.shape)
            if x.dtype != spec.dtype or x.shape != wanted:
                return f"an array is {x.dtype} {list(x.shape)}, not {spec.dtype} {list(wanted)}"
        for x in tree_leaves((chunk.extras, chunk.states)):
            if x.shape[:2] != (steps, self.columns):
                return "an extra has not as many rows"
        valid = chunk.valid
        if (chunk.terminated & chunk.truncated).any():
            return "a row is terminated and truncated"
        if not np.isfinite(chunk.reward[valid]).all():
            return "a reward is not finite"
        return None
