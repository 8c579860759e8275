"""State of an environment as a tree that a checkpoint can hold, and back. Never a pickle.

``capture`` walks the attributes of an environment and its wrappers and returns numbers, strings,
arrays, containers and generators by value. ``restore`` writes them into another instance that was
made with the same arguments and reset. Functions, spaces' bounds, specs and render windows do not
change within a run and stay as they are. Any other object (a C++ world, a list of objects) makes
the environment ``Unsupported``; its episodes are then replayed (``rlrun.env.checked``).

Engines with a state of their own (ALE, MuJoCo) are in ``rlrun.env.engines``.
"""

import enum
import functools
import hashlib
import random
import re
import types
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rlrun.env.engines import ENGINES
from rlrun.tree import Tree, tree_leaves

MAX_NODES = 20_000  # values of one environment; more are a world of objects, not a state

_CONSTANT = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
    types.ModuleType, functools.partial, np.ufunc, type, EnvSpec, re.Pattern, PurePath, np.dtype,
    slice, range, property, types.MappingProxyType,
)  # fmt: skip
_CONSTANT_MODULES = ("pygame", "gymnasium.envs.mujoco.mujoco_rendering", "logging")
_HEAP_TYPE = 1 << 9  # of type.__flags__: a class written in Python
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
_SKIPPED = ("spec", "_cached_spec", "metadata")


class Unsupported(Exception):
    """The state of an environment cannot be captured or restored; says which part of it."""


def capture(root: object) -> Tree:
    """Return the state of ``root`` and of everything its attributes reach.

    Raises: Unsupported.
    """
    walk = _Capture()
    tree = walk.value(root, "env", attribute=True)
    walk.require_no_shared_memory()
    return tree


def restore(root: object, tree: Tree) -> None:
    """Give ``root`` the state ``tree``. Raises: Unsupported when it is of another shape."""
    try:
        _Restore().value(tree, root, "env")
    except _MISFITS as e:
        raise Unsupported(f"its saved state does not fit it ({type(e).__name__}: {e})") from e


def capture_attributes(x: object, *, skip: str) -> dict[str, Tree]:
    """Return the states of those attributes of ``x`` that can be captured, except ``skip``."""
    found = {}
    for name, value in vars(x).items():
        if name != skip and name not in _SKIPPED:
            with suppress(Unsupported):
                found[name] = capture(value)
    return found


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


class _Capture:
    """One walk; ``seen`` numbers mutable values, so that what is shared stays shared."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.kept_alive: list[Any] = []  # an id is unique only while its object lives
        self.nodes = 0
        self.arrays: list[tuple[np.ndarray, str]] = []

    def value(self, x: Any, path: str, *, attribute: bool = False) -> Any:
        """Return the tree of ``x``; ``attribute``: of an object, which restore finds in place."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Unsupported(f"it has more than {MAX_NODES} values")
        kind = type(x)
        if x is None or kind in (bool, int, float, str):
            return x
        if isinstance(x, np.str_):
            return {"numpy_text": str(x)}
        if isinstance(x, np.generic):
            return {"scalar": _storable(np.asarray(x), path)}
        if kind is bytes:
            return {"bytes": np.frombuffer(x, np.uint8).copy()}
        if isinstance(x, _CONSTANT) or kind.__module__.split(".")[0] in _CONSTANT_MODULES:
            return {"constant": kind.__name__}
        if kind.__module__ in _CONSTANT_MODULES or kind.__name__ == "MjModel":
            return {"constant": kind.__name__}
        if isinstance(x, enum.Enum):
            return {"enum": x.name, "class": kind.__name__}
        if id(x) in self.seen:
            return {"same": self.seen[id(x)]}
        self.seen[id(x)] = len(self.seen)
        self.kept_alive.append(x)
        return self._mutable(x, path, attribute)

    def _mutable(self, x: Any, path: str, attribute: bool) -> Any:
        kind = type(x)
        if isinstance(x, np.ndarray):
            self.arrays.append((x, path))
            if x.dtype.kind in "SU":
                return {
                    "text": np.frombuffer(x.tobytes(), np.uint8),
                    "shape": list(x.shape),
                    "dtype": x.dtype.str,
                }
            return {"array": _storable(x, path).copy()}
        if kind in _CONTAINERS:
            return {_CONTAINERS[kind]: [self.value(v, f"{path}[{i}]") for i, v in enumerate(x)]}
        if kind is deque:
            items = [self.value(v, f"{path}[{i}]") for i, v in enumerate(x)]
            return {"deque": items, "maxlen": x.maxlen}
        if kind in (dict, OrderedDict):
            pairs = [[self.value(k, path), self.value(v, f"{path}[{k!r}]")] for k, v in x.items()]
            return {"dict": pairs, "ordered": kind is OrderedDict}
        if (generator := _generator_state(x)) is not None:
            return generator
        if isinstance(x, gym.Space):
            return self._space(x, path)
        for name, engine in ENGINES.items():
            if engine.matches(x):
                return {"engine": name, "state": engine.capture(x)}
        if not attribute:
            raise Unsupported(f"{path} is a {kind.__module__}.{kind.__qualname__}")
        return self._object(x, path)

    def _space(self, x: gym.Space[Any], path: str) -> Any:
        parts = getattr(x, "spaces", ())
        inner = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
        return {
            "space": None if x._np_random is None else self.value(x._np_random, path),
            "parts": [self.value(part, path) for part in inner],
        }

    def _object(self, x: Any, path: str) -> Any:
        kind = type(x)
        own = getattr(x, "state_dict", None), getattr(x, "load_state_dict", None)
        if all(map(callable, own)) and isinstance(x, gym.Env) and not isinstance(x, gym.Wrapper):
            return {"own": self.value(own[0](), f"{path}.state_dict()")}  # type: ignore[misc]
        native = next((c for c in kind.__mro__ if c is not object and not _is_python(c)), None)
        if native is not None or not hasattr(x, "__dict__") or _slots(kind):
            raise Unsupported(f"{path} is a {kind.__module__}.{kind.__qualname__}")
        return {
            "class": kind.__qualname__,
            "object": {
                name: self.value(value, f"{path}.{name}", attribute=True)
                for name, value in vars(x).items()
                if not _skipped(kind, name)
            },
        }

    def require_no_shared_memory(self) -> None:
        """Raise Unsupported where one array is a view into another: copies would not follow."""
        views = [(x, path) for x, path in self.arrays if x.base is not None]
        for x, path in views:
            owner: Any = x
            while isinstance(owner, np.ndarray) and owner.base is not None:
                owner = owner.base
            if not isinstance(owner, np.ndarray | bytes):
                raise Unsupported(f"{path} is a view of memory that is not numpy's")
            for y, other in self.arrays:
                if x is not y and np.may_share_memory(x, y):
                    raise Unsupported(f"{path} and {other} share memory")


def _skipped(kind: type, name: str) -> bool:
    """Return whether an attribute is fixed by the constructor's arguments, and large."""
    table = name == "P" and kind.__module__.startswith("gymnasium.envs.toy_text")
    return table or name in _SKIPPED


def _storable(x: np.ndarray, path: str) -> np.ndarray:
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8 or not x.dtype.isnative:
        raise Unsupported(f"{path} is an array of {x.dtype}")
    return x


def _is_python(kind: type) -> bool:
    return bool(kind.__flags__ & _HEAP_TYPE) and not type(kind).__name__.startswith("pybind11")


def _slots(kind: type) -> bool:
    return any(getattr(c, "__slots__", ()) not in ((), "", "__weakref__") for c in kind.__mro__)


def _generator_state(x: Any) -> dict[str, Any] | None:
    if isinstance(x, np.random.Generator):
        return {"generator": dict(x.bit_generator.state)}
    if isinstance(x, np.random.RandomState):
        return {"generator": x.get_state(legacy=False)}
    if isinstance(x, random.Random):
        version, words, gauss = x.getstate()
        return {"random": [version, np.array(words, np.uint32), gauss]}
    return None


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
        _require(not isinstance(present, _CONSTANT), path)
        if "array" in tree:
            return np.array(tree["array"])
        if "text" in tree:
            text = np.frombuffer(tree["text"].tobytes(), np.dtype(tree["dtype"]))
            return text.reshape(tree["shape"]).copy()
        for kind, name in _CONTAINERS.items():
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
            if not _skipped(type(present), name):
                del attributes[name]
        return present


def _require(holds: bool, path: str) -> None:
    if not holds:
        raise ValueError(f"{path} is another kind of value")
