"""What may be added to a replay: segments of the structure, shapes and dtypes it was made for."""

from typing import Any

import numpy as np
import torch

from rlrun.buffer.layout import REWARD, Block, Layout
from rlrun.types import Segment, Tree, tree_leaves

Kind = tuple[torch.dtype, torch.Size]


class Accept:
    """Refuses a chunk that is not like the layout; a compiled kernel would write anywhere."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kinds: dict[int, list[Kind]] = {}  # by steps

    def __call__(self, chunk: Segment) -> None:
        """Raises: ValueError naming the field."""
        row, steps = self.layout.row, len(chunk.reward)
        kinds = self.kinds.get(steps)
        if kinds is None:
            if len(self.kinds) > 64:
                self.kinds.clear()
            kinds = self.kinds[steps] = self._kinds(steps)
        given = list_like(row.obs, chunk.obs, "obs")
        if self.layout.windows is not None:
            given += list_like(row.state, chunk.states, "states")
        for name in row.extras:
            if name not in chunk.extras:
                raise ValueError(f"extras = {sorted(chunk.extras)}: the buffer stores {name!r} too")
            given.append(chunk.extras[name])
        given += [chunk.action, chunk.reward, chunk.first]
        given += [chunk.terminated, chunk.truncated, chunk.valid]
        for x, (dtype, shape) in zip(given, kinds, strict=True):
            if x.dtype is not dtype or x.shape != shape:
                raise self._unfit(given, kinds)
            if x.requires_grad or not x.is_cpu:
                raise ValueError(
                    "chunk: a tensor of it has a gradient or is not in host memory; collected "
                    "rows have neither; add what x.detach().cpu() gives"
                )

    def _kinds(self, steps: int) -> list[Kind]:
        row, lead = self.layout.row, (self.layout.columns,)
        flag = Block((), np.dtype(bool))

        def kind(block: Block, rows: int = steps) -> Kind:
            dtype = torch.from_numpy(np.empty(0, block.dtype)).dtype
            return dtype, torch.Size((rows, *lead, *block.shape))

        out = [kind(b, steps + 1) for b in tree_leaves(row.obs)]
        if self.layout.windows is not None:
            out += [kind(b) for b in tree_leaves(row.state)]
        out += [kind(b) for b in row.extras.values()]
        out += [kind(row.action), kind(Block((), REWARD)), kind(flag, steps + 1)]
        return out + [kind(flag)] * 3

    def _unfit(self, given: list[Any], kinds: list[Kind]) -> ValueError:
        row = self.layout.row
        names = [f"obs leaf {i}" for i in range(len(tree_leaves(row.obs)))]
        if self.layout.windows is not None:
            names += [f"states leaf {i}" for i in range(len(tree_leaves(row.state)))]
        names += [f"extras[{name!r}]" for name in row.extras]
        names += ["action", "reward", "first", "terminated", "truncated", "valid"]
        for name, x, (dtype, shape) in zip(names, given, kinds, strict=True):
            if x.dtype is not dtype or x.shape != shape:
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
