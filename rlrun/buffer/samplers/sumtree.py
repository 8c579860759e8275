"""Binary sum tree: O(log N) update and search, parents recomputed from children.

Parents are never adjusted by differences: difference updates drift (2.7e-4 relative after 2e5
updates, Schaul et al. 2016's reference scheme), recomputed float64 sums do not.
"""

import numpy as np

from rlrun.buffer.storage.layout import ArraySpec, in_memory, num_leaves
from rlrun.jit import COMPILED, jit


class SumTree:
    """Tree of sums, or of minima (``minimum``), over leaves 0..capacity-1."""

    def __init__(self, capacity: int, *, minimum: bool = False) -> None:
        assert capacity >= 1
        self.capacity, self.minimum = capacity, minimum
        self.empty = np.inf if minimum else 0.0
        self.leaves = num_leaves(capacity)
        self.depth = self.leaves.bit_length() - 1  # nodes visited below the root in a search
        # Node i has children 2i and 2i + 1.
        self.nodes = in_memory("tree", ArraySpec((2 * self.leaves,), np.dtype(np.float64)))
        if minimum:
            self.nodes.fill(np.inf)

    @property
    def root(self) -> float:
        """The reduction over all leaves."""
        return float(self.nodes[1])

    def get(self, index: np.ndarray) -> np.ndarray:
        """Leaf values, float64 like ``index``."""
        values: np.ndarray = self.nodes[self.leaves + index]
        return values

    def set(self, index: np.ndarray, value: np.ndarray) -> None:
        """Write leaves (int64 [n], float64 [n]; last duplicate wins) and their ancestors."""
        write = set_compiled if COMPILED else set_vectorised
        write(self.nodes, self.leaves, self.depth, index, value, self.minimum)

    def replace_slots(
        self, dead: np.ndarray, new: np.ndarray, value: float, raw: np.ndarray, p: float
    ) -> None:
        """Clear leaves ``dead`` and set leaves ``new`` to ``value``; ``raw`` gets NaN and ``p``.

        A leaf in both is new.
        """
        replace_leaves(
            self.nodes, self.leaves, self.depth, dead, new, value, self.minimum, raw, p, self.empty
        )

    def fill(self, values: np.ndarray) -> None:
        """Write leaves 0..len(values)-1 and clear the rest, in one vectorised pass."""
        reduce = np.minimum if self.minimum else np.add
        self.nodes[self.leaves :] = self.empty
        self.nodes[self.leaves : self.leaves + len(values)] = values
        size = self.leaves
        while size > 1:
            level = self.nodes[size : 2 * size]
            size >>= 1
            self.nodes[size : 2 * size] = reduce(level[0::2], level[1::2])

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Leaf i with sum(leaves < i) <= mass < sum(leaves <= i), int64 [n]; sums only.

        Never a leaf of priority 0 while the root is positive: where rounding carries ``mass`` past
        the last positive leaf, that leaf is returned. O(n log N).
        """
        search = find_compiled if COMPILED else find_vectorised
        index: np.ndarray = search(self.nodes, self.leaves, self.depth, mass.copy())[0]
        return index

    def draw(self, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Stratified draw: (leaves int64 [n], their values), one from each of n equal ranges.

        ``uniform`` float64 [n] in [0, 1): offsets in the ranges; overwritten.
        """
        drawn: tuple[np.ndarray, np.ndarray] = draw(self.nodes, self.leaves, self.depth, uniform)
        return drawn

    def check(self) -> str | None:
        """None, or the broken invariant."""
        reduce = np.minimum if self.minimum else np.add
        level = self.nodes[2:]
        parents = reduce(level[0::2], level[1::2])
        if not np.array_equal(parents, self.nodes[1 : self.leaves]):
            return "a parent differs from the reduction of its children"
        return None


@jit
def propagate(nodes: np.ndarray, depth: int, node: np.ndarray, minimum: bool) -> None:
    """Recompute all ancestors of ``node`` (overwritten), each once, level by level.

    Level by level memory accesses overlap.
    """
    count, one = np.uint64(len(node)), np.uint64(1)  # unsigned: no test for negative indices
    for _ in range(depth):
        kept, last = np.uint64(0), np.uint64(0)
        for j in range(count):
            parent = np.uint64(node[j]) >> one
            if parent != last:
                a, b = nodes[parent + parent], nodes[parent + parent + one]
                nodes[parent] = min(a, b) if minimum else a + b
                node[kept] = last = parent
                kept += one
        count = kept


@jit
def set_compiled(
    nodes: np.ndarray, leaves: int, depth: int, index: np.ndarray, value: np.ndarray, minimum: bool
) -> None:
    """Write the leaves and recompute their ancestors."""
    node = np.empty(len(index), np.int64)
    for j in range(len(index)):
        node[j] = leaves + index[j]
        nodes[node[j]] = value[j]
    propagate(nodes, depth, node, minimum)


def set_vectorised(
    nodes: np.ndarray, leaves: int, depth: int, index: np.ndarray, value: np.ndarray, minimum: bool
) -> None:
    """Twin in numpy."""
    reduce = np.minimum if minimum else np.add
    node = leaves + index
    nodes[node] = value
    for _ in range(depth):
        node = node >> 1
        left = node << 1
        nodes[node] = reduce(nodes[left], nodes[left + 1])


@jit
def replace_leaves_compiled(
    nodes: np.ndarray, leaves: int, depth: int, dead: np.ndarray, new: np.ndarray, value: float,
    minimum: bool, raw: np.ndarray, p: float, empty: float,
) -> None:  # fmt: skip
    """``SumTree.replace_slots``; sorted ``dead`` and ``new`` are merged so parents are shared."""
    for slot in dead:
        raw[np.uint64(slot)], nodes[np.uint64(leaves + slot)] = np.nan, empty
    for slot in new:
        raw[np.uint64(slot)], nodes[np.uint64(leaves + slot)] = p, value
    node = np.empty(len(dead) + len(new), np.int64)
    i, j, k, last, one = np.uint64(0), np.uint64(0), np.uint64(0), 0, np.uint64(1)
    while i < len(dead) or j < len(new):
        if j == len(new) or (i < len(dead) and dead[i] < new[j]):
            leaf = leaves + dead[i]
            i += one
        else:
            leaf = leaves + new[j]
            j += one
        if leaf >> 1 != last:  # one child of each parent suffices
            node[k], last = leaf, leaf >> 1
            k += one
    propagate(nodes, depth, node[:k], minimum)


def replace_leaves_vectorised(
    nodes: np.ndarray, leaves: int, depth: int, dead: np.ndarray, new: np.ndarray, value: float,
    minimum: bool, raw: np.ndarray, p: float, empty: float,
) -> None:  # fmt: skip
    """Twin in numpy."""
    raw[dead], raw[new] = np.nan, p
    values = np.full(len(dead) + len(new), empty)
    values[len(dead) :] = value
    set_vectorised(nodes, leaves, depth, np.concatenate([dead, new]), values, minimum)


replace_leaves = replace_leaves_compiled if COMPILED else replace_leaves_vectorised


@jit
def find_compiled(
    nodes: np.ndarray, leaves: int, depth: int, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (leaves, their values); searches go level by level so that cache misses overlap.

    ``mass`` is overwritten with the values.
    """
    node, one = np.ones(len(mass), np.int64), np.uint64(1)
    for _ in range(depth):
        for j in range(len(mass)):
            left = np.uint64(node[j]) << one
            weight = nodes[left]
            # A product, no branch: which way one went would be random.
            right = np.int64(mass[j] >= weight) & np.int64(nodes[left + one] > 0.0)
            mass[j] -= weight * right
            node[j] = np.int64(left) + right
    for j in range(len(mass)):
        mass[j] = nodes[np.uint64(node[j])]
        node[j] -= leaves
    return node, mass


def find_vectorised(
    nodes: np.ndarray, leaves: int, depth: int, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Twin in numpy."""
    node = np.ones(len(mass), np.int64)
    for _ in range(depth):
        left = node << 1
        weight = nodes[left]
        right = (mass >= weight) & (nodes[left + 1] > 0)
        mass -= np.where(right, weight, 0.0)
        node = left + right
    return node - leaves, nodes[node]


@jit
def draw_compiled(
    nodes: np.ndarray, leaves: int, depth: int, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``find`` for mass (j + uniform[j]) root / n; ``uniform`` is overwritten with the values."""
    each = nodes[1] / len(uniform)
    for j in range(len(uniform)):
        uniform[j] = (uniform[j] + j) * each
    return find_compiled(nodes, leaves, depth, uniform)


def draw_vectorised(
    nodes: np.ndarray, leaves: int, depth: int, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Twin in numpy."""
    uniform += np.arange(len(uniform))
    uniform *= nodes[1] / len(uniform)
    return find_vectorised(nodes, leaves, depth, uniform)


draw = draw_compiled if COMPILED else draw_vectorised
