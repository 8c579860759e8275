"""Trees of arrays: observations and recurrent states. Does not import torch."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Tree: TypeAlias = Any  # an array, or a dict / tuple of trees of arrays


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Return the tree of ``function(leaf, *leaves of rest)``. Dicts and tuples are inner nodes."""
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, v, *(r[i] for r in rest)) for i, v in enumerate(tree))
    return function(tree, *rest)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves in the order of the tree (dict insertion order)."""
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in tree_leaves(value)]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in tree_leaves(value)]
    return [tree]
