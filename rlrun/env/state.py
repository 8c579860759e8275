"""State of an environment as a tree that a checkpoint can hold, and back. Never a pickle.

``restore`` writes what ``capture`` returned into another instance that was made with the same
arguments and reset. Environments that are ``Unsupported`` have their open episode replayed
(``rlrun.env.checked``). Engines with a state of their own (ALE, MuJoCo) are in
``rlrun.env.engines``.
"""

import enum
import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env.capture import (
    CONSTANT,
    CONTAINERS,
    Unsupported,
    capture,
    capture_attributes,
    skipped,
)
from rlrun.env.engines import ENGINES
from rlrun.tree import Tree, tree_leaves

__all__ = [
    "Unsupported",
    "capture",
    "capture_attributes",
    "restore",
    "restore_attributes",
    "same_tree",
    "tree_hash",
]

_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


def restore(root: object, tree: Tree) -> None:
    """Give ``root`` the state ``tree``. Raises: Unsupported when it is of another shape."""
    try:
        _Restore().value(tree, root, "env")
    except _MISFITS as e:
        raise Unsupported(f"its saved state does not fit it ({type(e).__name__}: {e})") from e


def restore_attributes(x: object, states: dict[str, Tree]) -> None:
    """Restore what ``capture_attributes`` returned. Raises: Unsupported."""
    try:
        for name, tree in states.items():
            present = vars(x).get(name)
            vars(x)[name] = _Restore().value(tree, present, name)
    except _MISFITS as e:
        raise Unsupported(f"the saved state of {type(x).__name__} does not fit it ({e})") from e


def tree_hash(tree: Tree) -> str:
    """Return the BLAKE2b hash, 16 bytes in hex, of the leaves of an observation."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(tree):
        x = np.ascontiguousarray(leaf)
        digest.update(f"{x.dtype.str}{x.shape}".encode())
        digest.update(x.tobytes())
    return digest.hexdigest()


def same_tree(a: Tree, b: Tree) -> bool:
    """Return whether two captured states are equal, bit for bit."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        return (x.dtype, x.shape) == (y.dtype, y.shape) and x.tobytes() == y.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_tree(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_tree, a, b))
    return bool(a == b) or (a != a and b != b)


class _Restore:
    """One walk over a tree next to the object that gets it; ``made`` follows ``_Capture.seen``."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.count = 0
        self.used: set[int] = set()  # ids of generators that have been set in place

    def value(self, tree: Any, present: Any, path: str) -> Any:
        """Return the value of ``tree``; ``present`` is what the other instance has there."""
        if not isinstance(tree, dict):
            return tree
        if "scalar" in tree:
            return tree["scalar"][()]
        if "numpy_text" in tree:
            return np.str_(tree["numpy_text"])
        if "bytes" in tree:
            return bytes(tree["bytes"])
        if "enum" in tree:
            _require(isinstance(present, enum.Enum), path)
            _require(type(present).__name__ == tree["class"], path)
            return type(present)[tree["enum"]]
        if "constant" in tree:
            _require(type(present).__name__ == tree["constant"], path)
            return present
        if "same" in tree:
            return self.made[tree["same"]]
        number, self.count = self.count, self.count + 1
        made = self._mutable(tree, present, path, number)
        self.made[number] = made
        return made

    def _mutable(self, tree: Any, present: Any, path: str, number: int) -> Any:
        _require(not isinstance(present, CONSTANT), path)
        if "array" in tree:
            return np.array(tree["array"])
        if "text" in tree:
            text = np.frombuffer(tree["text"].tobytes(), np.dtype(tree["dtype"]))
            return text.reshape(tree["shape"]).copy()
        for kind, name in CONTAINERS.items():
            if name in tree:
                made = kind(self._items(tree[name], present))
                return made
        if "deque" in tree:
            return deque(self._items(tree["deque"], present), tree["maxlen"])
        if "dict" in tree:
            return self._dict(tree, present, path)
        if "generator" in tree or "random" in tree:
            return self._generator(tree, present)
        if "space" in tree:
            return self._space(tree, present, path)
        if "engine" in tree:
            engine = ENGINES[tree["engine"]]
            _require(engine.matches(present), path)
            engine.restore(present, tree["state"])
            return present
        if "own" in tree:
            present.load_state_dict(self.value(tree["own"], None, path))
            return present
        return self._object(tree, present, path, number)

    def _items(self, trees: list[Any], present: Any) -> list[Any]:
        old = list(present) if isinstance(present, list | tuple | deque) else []
        old += [None] * (len(trees) - len(old))
        return [self.value(t, p, "item") for t, p in zip(trees, old, strict=False)]

    def _dict(self, tree: Any, present: Any, path: str) -> Any:
        old = present if isinstance(present, dict) else {}
        made: dict[Any, Any] = OrderedDict() if tree["ordered"] else {}
        for key_tree, value in tree["dict"]:
            key = self.value(key_tree, None, path)
            made[key] = self.value(value, old.get(key), f"{path}[{key!r}]")
        return made

    def _generator(self, tree: Any, present: Any) -> Any:
        """Set the present generator, which methods may be bound to, or make another."""
        if "random" in tree:
            version, words, gauss = tree["random"]
            own = present if type(present) is random.Random else random.Random()
            own.setstate((version, tuple(int(w) for w in words), gauss))
            return own
        state = tree["generator"]
        if "has_gauss" in state:
            legacy = present if isinstance(present, np.random.RandomState) else None
            legacy = legacy or np.random.RandomState()
            legacy.set_state(state)
            return legacy
        name = state["bit_generator"]
        _require(name in _BIT_GENERATORS, name)
        reusable = isinstance(present, np.random.Generator) and id(present) not in self.used
        if not reusable or type(present.bit_generator).__name__ != name:
            present = np.random.Generator(getattr(np.random, name)())
        present.bit_generator.state = state
        self.used.add(id(present))
        return present

    def _space(self, tree: Any, present: Any, path: str) -> Any:
        _require(isinstance(present, gym.Space), path)
        if tree["space"] is not None:
            present._np_random = self.value(tree["space"], present._np_random, path)
        parts = getattr(present, "spaces", ())
        inner = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
        _require(len(inner) == len(tree["parts"]), path)
        for part, saved in zip(inner, tree["parts"], strict=True):
            self.value(saved, part, path)
        return present

    def _object(self, tree: Any, present: Any, path: str, number: int) -> Any:
        _require(type(present).__qualname__ == tree["class"], path)
        self.made[number] = present
        attributes = vars(present)
        for name, saved in tree["object"].items():
            _require(not name.startswith("__"), path)
            attributes[name] = self.value(saved, attributes.get(name), f"{path}.{name}")
        for name in [n for n in attributes if n not in tree["object"]]:
            if not skipped(type(present), name):
                del attributes[name]
        return present


def _require(holds: bool, path: str) -> None:
    if not holds:
        raise ValueError(f"{path} is another kind of value")
