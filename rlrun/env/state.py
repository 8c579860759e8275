"""State of an environment as a tree that a checkpoint can hold, without pickle.

``restore`` writes the result of ``capture`` into another instance, made with the same arguments and
reset. Environments that are ``Unsupported`` have their open episode replayed instead
(``rlrun.env.checked``). A replay cannot do for all: a vector environment takes no seed for a single
column, and an episode may depend on earlier ones, be too long, or must not be repeated (a robot).
``Probe`` checks that a second environment continues like the first.
"""

import enum
import functools
import hashlib
import json
import math
import random
import re
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rlrun.env.contract import faults_ignored, pass_ctrl_c
from rlrun.spaces import Tree, tree_leaves

MAX_NODES = 20_000  # most values of one environment

CONSTANT = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
    types.ModuleType, functools.partial, np.ufunc, type, EnvSpec, re.Pattern, PurePath, np.dtype,
    slice, range, property, types.MappingProxyType,
)  # fmt: skip
_CONSTANT_MODULES = {"pygame", "gymnasium.envs.mujoco.mujoco_rendering", "logging"}
_HEAP_TYPE = 1 << 9  # of type.__flags__
CONTAINERS: dict[str, Any] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, dict, OrderedDict)
}
_SKIPPED = ("spec", "_cached_spec", "metadata")


class Unsupported(Exception):
    """The state of an environment cannot be captured or restored. The text names the part."""


def capture(root: object) -> Tree:
    """Return the state of ``root`` and of everything that its attributes reach.

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
    states = {}
    for name, value in vars(x).items():
        if name != skip and name not in _SKIPPED:
            with suppress(Unsupported):
                states[name] = capture(value)
    return states


class _Capture:
    """One capture. ``seen`` numbers mutable values, so that shared values stay shared."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.kept_alive: list[Any] = []  # an id is unique only while its object lives
        self.nodes = 0
        self.arrays: list[tuple[np.ndarray, str]] = []

    def value(self, x: Any, path: str, *, attribute: bool = False) -> Any:
        """Return the tree of ``x``. ``attribute``: of an object that restore finds in place."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise Unsupported(f"it has more than {MAX_NODES} values")
        kind = type(x)
        if x is None or kind in (bool, int, float, str):
            return x
        module, name = module_of(kind), _engine_name(x)
        fixed = {module, module.partition(".")[0]} & _CONSTANT_MODULES or name == "mujoco.MjModel"
        if isinstance(x, CONSTANT) or fixed:
            return {"constant": kind.__name__}
        if isinstance(x, enum.Enum):
            return {"enum": x.name, "class": kind.__name__}
        if id(x) in self.seen:
            return {"same": self.seen[id(x)]}
        self.seen[id(x)] = len(self.seen)
        self.kept_alive.append(x)
        return self._mutable(x, path, attribute)

    def _mutable(self, x: Any, path: str, attribute: bool) -> Any:
        kind, name = type(x), _engine_name(x)
        if isinstance(x, np.ndarray | np.generic) or kind is bytes:
            if isinstance(x, np.ndarray):
                self.arrays.append((x, path))
            return _encoded(x, path)
        if CONTAINERS.get(kind.__name__) is kind:
            tree: dict[str, Any] = {"container": kind.__name__}
            if isinstance(x, dict):
                tree["keys"] = [self.value(key, path) for key in x]
            elif isinstance(x, deque):
                tree["maxlen"] = x.maxlen
            named = x.items() if isinstance(x, dict) else enumerate(x)
            return tree | {"items": [self.value(v, f"{path}[{k!r}]") for k, v in named]}
        if (generator := _generator_state(x)) is not None:
            return generator
        if isinstance(x, gym.Space):
            generator = None if x._np_random is None else self.value(x._np_random, path)
            return {"space": generator, "parts": [self.value(part, path) for part in _inner(x)]}
        if name in ENGINES:
            try:
                return {"engine": name, "state": ENGINES[name][0](x)}
            except ValueError as e:
                raise Unsupported(f"{path}: {e}") from e
        if not attribute:
            raise Unsupported(f"{path} is a {module_of(kind)}.{kind.__qualname__}")
        return self._object(x, path)

    def _object(self, x: Any, path: str) -> Any:
        kind = type(x)
        unwrapped = isinstance(x, gym.Env) and not isinstance(x, gym.Wrapper)
        if unwrapped and hasattr(x, "state_dict") and hasattr(x, "load_state_dict"):
            try:
                state = x.state_dict()
            except BaseException as e:  # user code may raise anything
                pass_ctrl_c(e)
                raise Unsupported(f"{path}.state_dict() raised {type(e).__name__}: {e}") from e
            return {"own": self.value(state, f"{path}.state_dict()")}
        python = all(  # classes written in Python
            c.__flags__ & _HEAP_TYPE and not type(c).__name__.startswith("pybind11")
            for c in kind.__mro__[:-1]
        )
        if not python or not hasattr(x, "__dict__") or _slots(kind):
            raise Unsupported(f"{path} is a {module_of(kind)}.{kind.__qualname__}")
        attributes = {}
        for name, value in vars(x).items():
            if not skipped(kind, name):
                attributes[name] = self.value(value, f"{path}.{name}", attribute=True)
        return {"class": kind.__qualname__, "object": attributes}

    def require_no_shared_memory(self) -> None:
        """Raise Unsupported if one array is a view of another: copies would not follow it."""
        for x, path in self.arrays:
            owner: Any = x
            while isinstance(owner, np.ndarray) and owner.base is not None:
                owner = owner.base
            if owner is x:
                continue
            if not isinstance(owner, np.ndarray | bytes):
                raise Unsupported(f"{path} is a view of memory that is not numpy's")
            for y, other_path in self.arrays:
                if x is not y and np.may_share_memory(x, y):
                    raise Unsupported(f"{path} and {other_path} share memory")


def skipped(kind: type, name: str) -> bool:
    """Return whether an attribute is fixed by the constructor's arguments.

    The spaces of a vector environment hold unused generators, seeded by the operating system.
    """
    if issubclass(kind, VectorEnv) and name.endswith("_space"):
        return True
    table = name == "P" and module_of(kind).startswith("gymnasium.envs.toy_text")
    return table or name in _SKIPPED


def _encoded(x: Any, path: str) -> dict[str, Any]:
    """Return an array, a numpy scalar or bytes as its bytes with their dtype and shape."""
    array = np.frombuffer(x, np.uint8) if isinstance(x, bytes) else np.asarray(x)
    if array.dtype.kind in "OV":
        raise Unsupported(f"{path} is an array of {array.dtype}")
    form = "bytes" if isinstance(x, bytes) else "array" if isinstance(x, np.ndarray) else "scalar"
    data = np.frombuffer(array.tobytes(), np.uint8)
    return {"array": data, "dtype": array.dtype.str, "shape": list(array.shape), "form": form}


def _inner(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    parts = getattr(space, "spaces", ())
    return list(parts.values()) if isinstance(parts, Mapping) else list(parts)


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


_ARENA = ("efc_", "iefc_", "efm_", "island_", "map_", "ifrc_", "iacc", "bvh_", "wrap_", "moment_",
          "iLD", "iM")  # fmt: skip
"""MjData's arrays of varying length or of collision search, which every forward step rewrites."""


def module_of(kind: type) -> str:
    """Return the module of a class, "" for extension types without one."""
    return str(getattr(kind, "__module__", ""))


def _engine_name(x: object) -> str:
    """Return an object's package and class, the key of ``ENGINES``."""
    return f"{module_of(type(x)).partition('.')[0]}.{type(x).__name__}"


def _ale_state(ale: Any) -> dict[str, Any]:
    """Return the machine with its random numbers (14 kB) and the action a sticky frame repeats.

    ale-py's clone lacks that action and no method returns it. It is found by trial: the action
    that, held before the cloned state, leads to the same machine. ``ale`` is unchanged afterwards.

    Raises: ValueError if no action does.
    """
    machine, frames = _ale_after(ale, 0), _sticky_frames(ale)
    if not frames:
        return {"machine": machine, "held": None}
    expected = _ale_after(ale, frames)
    for action in ale.getLegalActionSet():
        state = {"machine": machine, "held": int(action.value)}
        _set_ale_state(ale, state)
        if np.array_equal(_ale_after(ale, frames), expected):
            _set_ale_state(ale, state)
            return state
    raise ValueError("no held action explains the next frames of the game")


def _sticky_frames(ale: Any) -> int:
    """Return the frames after which an action is taken with probability 1 - 10^-9; 0: at once."""
    probability = ale.getFloat("repeat_action_probability")
    if not 0 < probability < 1:
        return 0
    return max(1, math.ceil(math.log(1e-9) / math.log(probability)))


def _ale_after(ale: Any, frames: int) -> np.ndarray:
    """Return the machine's state after frames without action."""
    for _ in range(frames):
        ale.act(0)
    return np.frombuffer(ale.cloneState(include_rng=True).serialize(), np.uint8).copy()


def _set_ale_state(ale: Any, state: dict[str, Any]) -> None:
    from ale_py import ALEState

    if state["held"] is not None:
        for _ in range(_sticky_frames(ale)):
            ale.act(int(state["held"]))
            if ale.game_over():
                ale.reset_game()
    ale.restoreState(ALEState(state["machine"].tobytes()))


def _mujoco_state(data: Any) -> dict[str, Any]:
    """Return the integration state (time and warm start included) and the results of the last step.

    Environments read positions and forces that belong to the start of the last step (mj_step
    integrates after its forward pass). Another forward pass would give those of its end.
    """
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, spec), np.float64)
    mujoco.mj_getState(data.model, data, state, spec)
    return {"integration": state, "computed": {k: v.copy() for k, v in _computed(data).items()}}


def _set_mujoco_state(data: Any, state: dict[str, Any]) -> None:
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    _require(state["integration"].shape == (mujoco.mj_stateSize(data.model, spec),), "MjData")
    mujoco.mj_resetData(data.model, data)
    mujoco.mj_setState(data.model, data, state["integration"], spec)
    mujoco.mj_forward(data.model, data)
    computed = _computed(data)
    for name, values in state["computed"].items():
        np.copyto(computed[name], values, casting="no")
    mujoco.mj_setState(data.model, data, state["integration"], spec)


def _computed(data: Any) -> dict[str, np.ndarray]:
    """Return MjData's arrays of fixed length, which share its memory."""
    names = (n for n in dir(data) if not n.startswith("_") and not n.startswith(_ARENA))
    arrays = {n: x for n in names if isinstance(x := getattr(data, n), np.ndarray) and x.size}
    return {n: x for n, x in arrays.items() if x.dtype == np.float64 and x.flags.writeable}


ENGINES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "ale_py.ALEInterface": (_ale_state, _set_ale_state),
    "mujoco.MjData": (_mujoco_state, _set_mujoco_state),
}
"""Objects of engines: functions that return the state as a tree and that write it."""


BEGIN, STEPS = 8, 32  # steps before the second check begins, and all that are recorded

HIDDEN = (
    "a second environment with the same state and actions gives other rows; its state is not all "
    "in its attributes, or it draws from a clock or a global generator"
)


class Probe:
    """Records the first ``STEPS`` steps of an environment and compares them with two others.

    The first one starts from the state of the reset, the second from the state of the first after
    ``BEGIN`` steps, when hidden state differs.
    """

    def __init__(self, state: Tree, make: Callable[[], Any]) -> None:
        """``state``: of the environment after its reset. ``make``: makes another one like it."""
        self._state, self._make, self.recording = state, make, True
        self._rows: list[tuple[np.ndarray | None, str]] = []

    def record(self, action: np.ndarray | None, *row: Any) -> None:
        """Record one step (``action`` None: a reset) unless ``STEPS`` are recorded."""
        if self.recording and len(self._rows) < STEPS:
            self._rows.append((action, row_hash(*row)))

    def violation(self) -> str | None:
        """Return how one of two other environments differs, or None."""
        twins: list[Any] = []
        with global_generators_kept():
            try:
                for number, (action, expected) in enumerate(self._rows):
                    if number in (0, BEGIN):
                        twins.append(self._make())
                        twins[-1].reset(seed=0)
                        restore(twins[-1], capture(twins[0]) if number else self._state)
                    for twin in twins:
                        row = (
                            twin.reset()[:1] if action is None else twin.step(action.copy()[()])[:4]
                        )
                        if row_hash(*row) != expected:
                            return HIDDEN
            except Unsupported as e:
                return str(e)
            except BaseException as e:
                pass_ctrl_c(e)
                return f"a second environment raised {type(e).__name__}: {e}"
            finally:
                for twin in twins:
                    with faults_ignored():
                        twin.close()
        return None


def mixed_seed(words: tuple[int, ...] | None = None) -> int:
    """Return a seed derived from ``words``, 0 <= seed < 2^31 as int32 holds; None: a random one."""
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


def row_hash(*row: Any) -> str:
    """Return the hash of an observation, or of an observation with reward and flags."""
    obs, *rest = row
    return tree_hash((obs, *(np.asarray(x, np.float64) for x in rest)))


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restore Python's and numpy's global generators, so that a checkpoint changes no number."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_MISFITS = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


def restore(root: object, tree: Tree) -> None:
    """Give ``root`` the state ``tree``. Raises: Unsupported if it has another shape."""
    try:
        _Restore().value(tree, root, "env")
    except _MISFITS as e:
        raise Unsupported(f"its saved state does not fit it ({type(e).__name__}: {e})") from e


def restore_exactly(env: Any, tree: Tree, seed: int) -> None:
    """Reset ``env`` and give it the state ``tree``, or raise Unsupported."""
    env.reset(seed=seed)
    restore(env, tree)
    if _as_json(capture(env)) != _as_json(tree):
        raise Unsupported("its restored state is not the one that was saved")


def restore_attributes(x: object, states: dict[str, Tree]) -> None:
    """Restore the result of ``capture_attributes``. Raises: Unsupported."""
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


def _as_json(tree: Tree) -> str:
    """Return a captured state as text, equal for states that are equal bit for bit."""
    return json.dumps(tree, sort_keys=True, default=lambda x: [x.dtype.str, x.tobytes().hex()])


class _Restore:
    """One walk of a tree and its target. ``made`` corresponds to ``_Capture.seen``."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.count = 0
        self.used: set[int] = set()  # ids of generators that have been set in place

    def value(self, tree: Any, present: Any, path: str) -> Any:
        """Return the value of ``tree``. ``present`` is the value in the target."""
        if not isinstance(tree, dict):
            return tree
        if "enum" in tree:
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
            return _decoded(tree)
        if "container" in tree:
            return self._container(tree, present, path)
        if "generator" in tree or "random" in tree:
            return self._generator(tree, present)
        if "space" in tree:
            return self._space(tree, present, path)
        if "engine" in tree:
            _require(_engine_name(present) == tree["engine"], path)
            ENGINES[tree["engine"]][1](present, tree["state"])
            return present
        if "own" in tree:
            present.load_state_dict(self.value(tree["own"], None, path))
            return present
        return self._object(tree, present, path, number)

    def _container(self, tree: Any, present: Any, path: str) -> Any:
        trees = tree["items"]
        sequence = isinstance(present, list | tuple | deque)
        old = dict(enumerate(present)) if sequence else present if isinstance(present, dict) else {}
        keys = [self.value(key, None, path) for key in tree.get("keys", range(len(trees)))]
        named = zip(keys, trees, strict=True)
        items = [self.value(value, old.get(k), f"{path}[{k!r}]") for k, value in named]
        maxlen = [tree["maxlen"]] if "maxlen" in tree else []
        values = zip(keys, items, strict=True) if "keys" in tree else items
        return CONTAINERS[tree["container"]](values, *maxlen)

    def _generator(self, tree: Any, present: Any) -> Any:
        """Set the present generator, to which methods may be bound, or make another."""
        if "random" in tree:
            version, words, gauss = tree["random"]
            generator = present if type(present) is random.Random else random.Random()
            generator.setstate((version, tuple(int(w) for w in words), gauss))
            return generator
        state = tree["generator"]
        if "has_gauss" in state:
            reusable = isinstance(present, np.random.RandomState)
            legacy = present if reusable else np.random.RandomState()
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
        for part, saved in zip(_inner(present), tree["parts"], strict=True):
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


def _decoded(tree: dict[str, Any]) -> Any:
    """Return what ``_encoded`` was given."""
    data = tree["array"].tobytes()
    if tree["form"] == "bytes":
        return data
    array = np.frombuffer(data, tree["dtype"]).reshape(tree["shape"])
    return array[()] if tree["form"] == "scalar" else array.copy()


def _require(holds: bool, path: str) -> None:
    if not holds:
        raise ValueError(f"{path} is another kind of value")
