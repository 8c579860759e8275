"""Validation of added chunks: structure, shapes and dtypes."""

from operator import attrgetter
from typing import Any

import numpy as np

from rlrun.buffer.storage.layout import REWARD, ArraySpec, Layout
from rlrun.types import Chunk, Tree, tree_leaves

Kind = tuple[np.dtype[Any], tuple[int, ...]]
_kind = attrgetter("dtype", "shape")


class ChunkValidator:
    """Refuses chunks that differ from a layout: compiled kernels do not check bounds."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.nested = layout, isinstance(layout.row.obs, dict | tuple)
        self.expected: dict[int, list[Kind]] = {}  # cached, by number of steps

    def __call__(self, chunk: Chunk) -> list[np.ndarray]:
        """Return the arrays of a chunk: obs leaves, action, extras, reward, flags, states.

        Raises: ValueError naming the field that differs.
        """
        row, steps = self.layout.row, len(chunk.reward)
        given = leaves_like(row.obs, chunk.obs, "obs") if self.nested else [chunk.obs]
        given.append(chunk.action)
        for name in row.extras:
            if name not in chunk.extras:
                raise ValueError(
                    f"extras = {sorted(chunk.extras)}: {name!r} is missing; the buffer stores "
                    f"{sorted(row.extras)}; collect them, or make a new buffer"
                )
            given.append(chunk.extras[name])
        given += (chunk.reward, chunk.first, chunk.terminated, chunk.truncated, chunk.valid)
        if self.layout.windows is not None:
            given += leaves_like(row.state, chunk.states, "states")
        try:
            matches = list(map(_kind, given)) == self.expected[steps]
        except KeyError:
            matches = list(map(_kind, given)) == self._remember(steps)
        if not matches:
            raise self._error(given, self.expected[steps])
        return given

    def _remember(self, steps: int) -> list[Kind]:
        if len(self.expected) > 64:
            self.expected.clear()
        self.expected[steps] = self._expected(steps)
        return self.expected[steps]

    def _expected(self, steps: int) -> list[Kind]:
        row, lead = self.layout.row, (self.layout.columns,)
        flag = ArraySpec((), np.dtype(bool))

        def kind(block: ArraySpec, rows: int = steps) -> Kind:
            return block.dtype, (rows, *lead, *block.shape)

        out = [kind(b, steps + 1) for b in tree_leaves(row.obs)]
        out += [kind(b) for b in (row.action, *row.extras.values(), ArraySpec((), REWARD))]
        out += [kind(flag, steps + 1), *[kind(flag)] * 3]
        if self.layout.windows is not None:
            out += [kind(b) for b in tree_leaves(row.state)]
        return out

    def _error(self, given: list[Any], kinds: list[Kind]) -> ValueError:
        row = self.layout.row
        names = [f"obs leaf {i}" for i in range(len(tree_leaves(row.obs)))]
        names += ["action", *(f"extras[{name!r}]" for name in row.extras)]
        names += ["reward", "first", "terminated", "truncated", "valid"]
        if self.layout.windows is not None:
            names += [f"states leaf {i}" for i in range(len(tree_leaves(row.state)))]
        for name, x, (dtype, shape) in zip(names, given, kinds, strict=True):
            if x.dtype != dtype or x.shape != shape:
                return ValueError(
                    f"{name} = {x.dtype} {list(x.shape)}: the buffer stores other rows; allowed is "
                    f"{dtype} {list(shape)} (rows as in reward); make a new buffer for other rows"
                )
        raise AssertionError("the chunk fits")


def leaves_like(own: Tree, other: Tree, name: str) -> list[Any]:
    """The leaves of ``other`` in the order of ``own``. Raises: ValueError: another structure."""
    if isinstance(own, dict):
        if not isinstance(other, dict) or own.keys() != other.keys():
            have = sorted(other) if isinstance(other, dict) else type(other).__name__
            raise ValueError(
                f"{name} = {have}: another structure; the buffer stores {sorted(own)}; "
                "make a new buffer"
            )
        return [x for key in own for x in leaves_like(own[key], other[key], f"{name}[{key!r}]")]
    if isinstance(own, tuple):
        if not isinstance(other, tuple) or len(own) != len(other):
            size = len(other) if isinstance(other, tuple) else type(other).__name__
            raise ValueError(
                f"{name} = {size} parts: another structure; the buffer stores {len(own)} parts; "
                "make a new buffer"
            )
        pairs = enumerate(zip(own, other, strict=True))
        return [x for i, (a, b) in pairs for x in leaves_like(a, b, f"{name}[{i}]")]
    return [other]
