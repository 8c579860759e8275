"""Sum tree in torch ops that never wait for the device."""

from itertools import pairwise

import torch
from torch import Tensor

from rlrun.buffer.device.layout import FAN, tree_levels


class DeviceSumTree:
    """Tree of sums, or of minima (``minimum``), with FAN children per node.

    The fan is wide because every op of a level is a kernel launch: 1e6 leaves take 3 levels instead
    of 20. Parents are recomputed from children, never adjusted by differences.
    """

    def __init__(self, slots: int, *, minimum: bool = False, device: torch.device) -> None:
        self.minimum, self.empty = minimum, torch.inf if minimum else 0.0
        sizes = tree_levels(slots)
        self.nodes = torch.full((sum(sizes),), self.empty, dtype=torch.float64, device=device)
        self.levels = list(torch.split(self.nodes, sizes))  # views
        child = torch.arange(FAN, dtype=torch.int32, device=device)
        self.score_above, self.score_below = 2 * FAN - child, child

    @property
    def root(self) -> Tensor:
        """The reduction over all leaves, float64 [1]."""
        return self.levels[-1]

    @property
    def leaves(self) -> Tensor:
        """float64 [slots, at minimum]."""
        return self.levels[0]

    def _reduced(self, children: Tensor) -> Tensor:
        """[n, FAN] -> [n]."""
        return children.amin(1) if self.minimum else children.sum(1)

    def set(self, index: Tensor, value: Tensor) -> None:
        """Write leaves (int64 [n], float64 [n]; duplicates must agree) and their parents."""
        self.leaves.index_copy_(0, index, value)
        for level, above in pairwise(self.levels[:-1]):
            index = index // FAN
            children = level.view(-1, FAN).index_select(0, index)
            above.index_copy_(0, index, self._reduced(children))
        self.root.copy_(self._reduced(self.levels[-2].view(1, FAN)))

    def fill(self, values: Tensor) -> None:
        """Write leaves 0..len(values)-1 and clear the rest, in one pass."""
        self.nodes.fill_(self.empty)
        self.leaves[: len(values)] = values
        for level, above in pairwise(self.levels):
            parents = self._reduced(level.view(-1, FAN))
            above[: len(parents)] = parents

    def find(self, mass: Tensor) -> tuple[Tensor, Tensor]:
        """(i, value) of leaves with sum(leaves < i) <= mass < sum(leaves <= i), int64, float64 [n].

        Never a leaf of 0 while the root is positive: where rounding carries ``mass`` past the last
        positive child, that child is selected. One ``argmax`` over a score does this: children
        whose cumulative sum exceeds ``mass`` rank first, the earliest highest, then the others, the
        latest highest, then those of 0.
        """
        node, value = torch.zeros_like(mass, dtype=torch.int64), mass
        for level in reversed(self.levels[:-1]):
            child = level.view(-1, FAN).index_select(0, node)
            upto = child.cumsum(1)
            score = torch.where(upto > mass.unsqueeze(1), self.score_above, self.score_below)
            at = score.masked_fill_(child <= 0, -1).argmax(1, keepdim=True)
            value = child.gather(1, at).squeeze(1)
            mass = mass - (upto.gather(1, at).squeeze(1) - value)
            node = torch.add(at.squeeze(1), node, alpha=FAN)
        return node, value

    def check(self) -> str | None:
        """None, or the broken invariant in words."""
        for level, above in pairwise(self.levels):
            parents = self._reduced(level.view(-1, FAN))
            if not torch.allclose(above[: len(parents)], parents, rtol=1e-14, atol=0):
                return "a parent differs from the reduction of its children"
        return None
