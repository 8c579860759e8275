"""The state of an environment as a tree that a checkpoint can hold. Never a pickle.

``capture`` walks the attributes of an environment and its wrappers and returns numbers, strings,
arrays, containers and generators by value. Functions, specs, render windows do not change within a
run and are left out. Any other object (a C++ world, a list of objects) is ``Unsupported``.
"""

import enum
import functools
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
from gymnasium.vector import VectorEnv

from rlrun.env.contract import pass_ctrl_c
from rlrun.env.engines import ENGINES, module_of
from rlrun.tree import Tree

MAX_NODES = 20_000  # values of one environment; more are a world of objects, not a state

CONSTANT = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
    types.ModuleType, functools.partial, np.ufunc, type, EnvSpec, re.Pattern, PurePath, np.dtype,
    slice, range, property, types.MappingProxyType,
)  # fmt: skip
_CONSTANT_MODULES = {"pygame", "gymnasium.envs.mujoco.mujoco_rendering", "logging"}
_HEAP_TYPE = 1 << 9  # of type.__flags__: a class written in Python
CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_SKIPPED = ("spec", "_cached_spec", "metadata")


class Unsupported(Exception):
    """The state of an environment cannot be captured or restored; says which part of it."""


def capture(root: object) -> Tree:
    """Return the state of ``root`` and of everything its attributes reach.

    Raises: Unsupported.
    """
    walk = _Capture()
    try:
        tree = walk.value(root, "env", attribute=True)
    except RecursionError:
        raise Unsupported("its attributes are nested too deeply") from None
    walk.require_no_shared_memory()
    return tree


def capture_attributes(x: object, *, skip: str) -> dict[str, Tree]:
    """Return the states of those attributes of ``x`` that can be captured, except ``skip``."""
    found = {}
    for name, value in vars(x).items():
        if name != skip and name not in _SKIPPED:
            with suppress(Unsupported):
                found[name] = capture(value)
    return found


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
        module = module_of(kind)
        if isinstance(x, CONSTANT) or {module, module.split(".")[0]} & _CONSTANT_MODULES:
            return {"constant": kind.__name__}
        if kind.__name__ == "MjModel":
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
        if kind in CONTAINERS:
            return {CONTAINERS[kind]: [self.value(v, f"{path}[{i}]") for i, v in enumerate(x)]}
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
                try:
                    return {"engine": name, "state": engine.capture(x)}
                except ValueError as e:
                    raise Unsupported(f"{path}: {e}") from e
        if not attribute:
            raise Unsupported(f"{path} is a {module_of(kind)}.{kind.__qualname__}")
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
            try:
                given = own[0]()  # type: ignore[misc]
            except BaseException as e:  # the user's own code
                pass_ctrl_c(e)
                raise Unsupported(f"{path}.state_dict() raised {type(e).__name__}: {e}") from e
            return {"own": self.value(given, f"{path}.state_dict()")}
        native = next((c for c in kind.__mro__ if c is not object and not _is_python(c)), None)
        if native is not None or not hasattr(x, "__dict__") or _slots(kind):
            raise Unsupported(f"{path} is a {module_of(kind)}.{kind.__qualname__}")
        return {
            "class": kind.__qualname__,
            "object": {
                name: self.value(value, f"{path}.{name}", attribute=True)
                for name, value in vars(x).items()
                if not skipped(kind, name)
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


def skipped(kind: type, name: str) -> bool:
    """Return whether an attribute is fixed by the constructor's arguments.

    The spaces of a vector environment have generators seeded by the operating system, unused.
    """
    if issubclass(kind, VectorEnv) and name.endswith("_space"):
        return True
    table = name == "P" and module_of(kind).startswith("gymnasium.envs.toy_text")
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
