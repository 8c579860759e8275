"""What may be added to a replay: chunks of the structure, shapes and dtypes it was made for."""

from operator import attrgetter
from typing import Any

import numpy as np

from rlrun.buffer.storage.layout import REWARD, Block, Layout
from rlrun.types import Chunk, Tree, tree_leaves

Kind = tuple[np.dtype[Any], tuple[int, ...]]
_kind = attrgetter("dtype", "shape")


class Accept:
    """Refuses a chunk that is not like the layout; a compiled kernel would write anywhere."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.nested = layout, isinstance(layout.row.obs, dict | tuple)
        self.kinds: dict[int, list[Kind]] = {}  # by steps

    def __call__(self, chunk: Chunk) -> list[np.ndarray]:
        """Leaves of what a ring stores (obs, action, extras), then the other fields.

        Raises: ValueError naming the field.
        """
        row, steps = self.layout.row, len(chunk.reward)
        given = list_like(row.obs, chunk.obs, "obs") if self.nested else [chunk.obs]
        given.append(chunk.action)
        for name in row.extras:
            if name not in chunk.extras:
                raise ValueError(f"extras = {sorted(chunk.extras)}: the buffer stores {name!r} too")
            given.append(chunk.extras[name])
        given += (chunk.reward, chunk.first, chunk.terminated, chunk.truncated, chunk.valid)
        if self.layout.windows is not None:
            given += list_like(row.state, chunk.states, "states")
        try:
            fits = list(map(_kind, given)) == self.kinds[steps]
        except KeyError:
            fits = list(map(_kind, given)) == self._remember(steps)
        if not fits:
            raise self._unfit(given, self.kinds[steps])
        return given

    def _remember(self, steps: int) -> list[Kind]:
        if len(self.kinds) > 64:
            self.kinds.clear()
        self.kinds[steps] = self._kinds(steps)
        return self.kinds[steps]

    def _kinds(self, steps: int) -> list[Kind]:
        row, lead = self.layout.row, (self.layout.columns,)
        flag = Block((), np.dtype(bool))

        def kind(block: Block, rows: int = steps) -> Kind:
            return block.dtype, (rows, *lead, *block.shape)

        out = [kind(b, steps + 1) for b in tree_leaves(row.obs)]
        out += [kind(b) for b in (row.action, *row.extras.values(), Block((), REWARD))]
        out += [kind(flag, steps + 1), *[kind(flag)] * 3]
        if self.layout.windows is not None:
            out += [kind(b) for b in tree_leaves(row.state)]
        return out

    def _unfit(self, given: list[Any], kinds: list[Kind]) -> ValueError:
        row = self.layout.row
        names = [f"obs leaf {i}" for i in range(len(tree_leaves(row.obs)))]
        names += ["action", *(f"extras[{name!r}]" for name in row.extras)]
        names += ["reward", "first", "terminated", "truncated", "valid"]
        if self.layout.windows is not None:
            names += [f"states leaf {i}" for i in range(len(tree_leaves(row.state)))]
        for name, x, (dtype, shape) in zip(names, given, kinds, strict=True):
            if x.dtype != dtype or x.shape != shape:
                return ValueError(
                    f"{name} = {x.dtype} {list(x.shape)}: the buffer was made for {dtype} "
                    f"{list(shape)} (rows as in reward); make a new buffer for other rows"
                )
        raise AssertionError("the chunk fits")


def list_like(own: Tree, other: Tree, what: str) -> list[Any]:
    """The leaves of ``other`` in the order of ``own``. Raises: ValueError: another structure."""
    if isinstance(own, dict):
        if not isinstance(other, dict) or own.keys() != other.keys():
            have = sorted(other) if isinstance(other, dict) else type(other).__name__
            raise ValueError(f"{what} = {have}: the buffer was made for {sorted(own)}")
        return [x for key in own for x in list_like(own[key], other[key], f"{what}[{key!r}]")]
    if isinstance(own, tuple):
        if not isinstance(other, tuple) or len(own) != len(other):
            size = len(other) if isinstance(other, tuple) else type(other).__name__
            raise ValueError(f"{what} = {size} parts: the buffer was made for {len(own)}")
        pairs = enumerate(zip(own, other, strict=True))
        return [x for i, (a, b) in pairs for x in list_like(a, b, f"{what}[{i}]")]
    return [other]
