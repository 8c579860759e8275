"""Validation of what environments return and of the actions they get.

The contract: observations have the structure, shape and dtype of their space and are finite;
rewards are numbers that float32 holds; infos are dicts; no exception. Every violation is an
EnvError that names the index of the environment, the step, the value found and the values allowed.
Step s is the s-th ``step()`` of the vector environment since its ``reset`` (step 0), autoresets
included.
"""

import dis
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlrun.errors import EnvError, Interrupted

_logger = logging.getLogger(__name__)

_TOLERANCE = 1e-6  # relative: float32 rounding at the bounds of a space
_EVERY = 64  # calls of which one compares floats: a warning may come late, a step must not

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
Path = tuple[Any, ...]
KEPT = "rlrun/kept"  # the only key of a checked environment's info: the numbers asked for
FLOAT32_MAX = float(np.finfo(np.float32).max)
_NUMBERS = f"a finite number that float32 holds, within [-{FLOAT32_MAX:.7g}, {FLOAT32_MAX:.7g}]"
_RAISE = dis.opmap["RAISE_VARARGS"]
_STORABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
Spaces = tuple[gym.Space[Any], gym.Space[Any]]  # of observations and of actions


class ContractViolation(ValueError):
    """Description of a returned value, by a part of rlrun between the environment and its check."""


def contract_error(env_id: str, subject: str, step: int, message: str) -> EnvError:
    """Return the error of ``subject`` ("environment 3") at ``step``."""
    when = "in reset" if step == 0 else f"at step {step}"
    return EnvError(f"env.id = {env_id}: {subject} {when}: {message}")


def numbered(indices: list[int]) -> str:
    """Return "environment 3", "environments 0 to 49" or "environments 1, 4 and 9 more"."""
    if len(indices) == 1:
        return f"environment {indices[0]}"
    if len(indices) == indices[-1] - indices[0] + 1:
        return f"environments {indices[0]} {'and' if len(indices) == 2 else 'to'} {indices[-1]}"
    shown, more = indices[:4], len(indices) - 4
    words = [str(i) for i in shown] + ([f"{more} more"] if more > 0 else [])
    return f"environments {', '.join(words[:-1])} and {words[-1]}"


def close_error(env_id: str, subject: str, error: BaseException) -> EnvError:
    """Return the error of ``subject`` whose close() raised ``error``."""
    return EnvError(f"env.id = {env_id}: {subject}: {exception_text(error, 'close')}")


def exception_text(error: BaseException, call: str) -> str:
    """Return the text of a contract error for an exception raised by ``call``."""
    if isinstance(error, SystemExit):
        return f"{call}() called sys.exit({error.code!r}); it must return; fix the environment"
    text = str(error).strip().splitlines()
    return (
        f"{call}() raised {type(error).__name__}: {text[0] if text else '(no message)'}; "
        "it must not raise; fix the environment"
    )


def is_ctrl_c(error: BaseException | None) -> bool:
    """Return True where a signal interrupts, False where code of an environment raises ``error``.

    Python raises the KeyboardInterrupt of a signal between two instructions, code raises it with
    the instruction of a ``raise`` statement.
    """
    if isinstance(error, Interrupted):
        return True
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if str(trace.tb_frame.f_globals.get("__name__")).startswith("rlrun."):  # a run's handler
        return True
    if trace.tb_frame.f_code.co_code[trace.tb_lasti] != _RAISE:
        return True
    return is_ctrl_c(error.__context__)


def pass_ctrl_c(error: BaseException) -> None:
    """Raise ``error`` where a signal interrupts; return where code of an environment raised it."""
    if is_ctrl_c(error):
        raise error


@contextmanager
def faults_ignored() -> Iterator[None]:
    """Ignore what code of an environment raises, whatever that is."""
    try:
        yield
    except BaseException as e:
        pass_ctrl_c(e)


def space_difference(own: gym.Space[Any], first: gym.Space[Any], name: str) -> str | None:
    """Return in what a space differs from that of the first copy, or None.

    ``name``: of the space, e.g. ``observation_space``.
    """
    if own == first:
        return None
    boxes = isinstance(own, spaces.Box) and isinstance(first, spaces.Box)
    if boxes and (own.shape, own.dtype) == (first.shape, first.dtype):
        for bound in ("low", "high"):
            x, y = getattr(own, bound), getattr(first, bound)
            for index in map(tuple, np.argwhere(x != y)[:1]):
                at = f"[{', '.join(map(str, index))}]" if index else ""
                return f"{name}.{bound}{at} is {x[index]:g}, that of the first {y[index]:g}"
    if isinstance(own, spaces.Dict) and isinstance(first, spaces.Dict):
        both = [(f"{name}[{k!r}]", own[k], first[k]) for k in own if k in first.spaces]
    elif isinstance(own, spaces.Tuple) and isinstance(first, spaces.Tuple):
        pairs = zip(own, first, strict=False)
        both = [(f"{name}[{i}]", x, y) for i, (x, y) in enumerate(pairs)]
    else:
        both = []
    inside = (space_difference(x, y, part) for part, x, y in both)
    return next(filter(None, inside), f"{name} is {own}, that of the first {first}")


def different_copies(
    env_id: str, copies: Sequence[Spaces | None], first: Spaces
) -> EnvError | None:
    """The error that names the first copy whose spaces are not ``first``, or None.

    ``copies``: the spaces of all; None: unknown.
    """
    names = "observation_space", "action_space"
    for number, own in enumerate(copies, 1):
        for name, x, y in zip(names, own or (), first, strict=False):
            if (wrong := space_difference(x, y, name)) is not None:
                return EnvError(
                    f"env.id = {env_id}: copy {number} of {len(copies)}: {wrong}; all copies must "
                    "have the same spaces; give them the same bounds, whatever is random"
                )
    return None


def unsupported_space(space: gym.Space[Any], path: str = "observation") -> str | None:
    """Describe the first part of ``space`` that cannot be stored as arrays; None if all can."""
    if isinstance(space, spaces.Dict):
        parts = [unsupported_space(s, f"{path}[{k!r}]") for k, s in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [unsupported_space(s, f"{path}[{i}]") for i, s in enumerate(space.spaces)]
    else:
        parts = [None if isinstance(space, _STORABLE) else f"{path} space is {space}"]
    if not parts:
        return f"{path} space is {space}, which has no parts"
    return next((part for part in parts if part), None)


def obs_violation(space: gym.Space[Any], obs: Any, path: str = "observation") -> str | None:
    """Describe how the observation of one environment violates ``space``; None if it does not."""
    if isinstance(space, spaces.Box):
        return _array_violation(space, obs, path)
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
            got = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
            return f"{path} is {got}; allowed is a dict with keys {sorted(space.spaces)}"
        parts = [obs_violation(s, obs[k], f"{path}[{k!r}]") for k, s in space.spaces.items()]
        return next((part for part in parts if part), None)
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            got = f"{type(obs).__name__} of {len(obs) if hasattr(obs, '__len__') else 'no'} parts"
            return f"{path} is a {got}; allowed is a tuple of {len(space.spaces)} parts"
        parts = [obs_violation(s, obs[i], f"{path}[{i}]") for i, s in enumerate(space.spaces)]
        return next((part for part in parts if part), None)
    if isinstance(space, spaces.Discrete):
        return _discrete_violation(space, obs, path)
    return _array_violation(space, obs, path)


def _discrete_violation(space: spaces.Discrete, obs: Any, path: str) -> str | None:
    whole = isinstance(obs, int | np.integer) and not isinstance(obs, bool)
    if isinstance(obs, np.ndarray) and obs.shape == () and np.issubdtype(obs.dtype, np.integer):
        whole = True
    low, high = int(space.start), int(space.start + space.n - 1)
    if whole and low <= obs <= high:
        return None
    return f"{path} is {_truncated_repr(obs)}; allowed is an integer within [{low}, {high}]"


def _array_violation(space: gym.Space[Any], obs: Any, path: str) -> str | None:
    allowed = f"allowed is {space.dtype} {space.shape}, finite"
    if not isinstance(obs, np.ndarray | np.generic):
        return f"{path} is a {type(obs).__name__}; {allowed} (a numpy array)"
    if obs.shape != space.shape:
        return f"{path} has shape {obs.shape}; {allowed}"
    if obs.dtype != space.dtype:
        return f"{path} has dtype {obs.dtype}; {allowed}"
    if obs.dtype.kind == "f" and not np.isfinite(obs).all():
        values = np.asarray(obs)
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        return f"{path} has {values[place]} at position {list(place)}; {allowed}"
    return None


def reward_violation(reward: Any, name: str = "reward") -> str | None:
    """Describe why a reward is not one number that float32 holds; None if it is."""
    if type(reward) is float and -FLOAT32_MAX <= reward <= FLOAT32_MAX:
        return None
    value = as_number(reward)
    if value is None:
        return f"{name} is {_truncated_repr(reward)}; allowed is one finite number"
    if -FLOAT32_MAX <= value <= FLOAT32_MAX:
        return None
    return f"{name} is {_truncated_repr(reward, str)}; allowed is {_NUMBERS}"


def as_number(value: Any) -> float | None:
    """Return ``value`` as a float, infinite where a float cannot hold it; None: it is no number."""
    if not hasattr(value, "__float__"):
        return None
    try:
        if not isinstance(value, int | float):
            value = np.asarray(value)
            if value.ndim or value.dtype.kind not in "biuf":
                return None
        return float(value)
    except OverflowError:  # an integer of 400 digits
        return np.inf if value > 0 else -np.inf
    except Exception:  # of a class of users
        return None


def info_violation(info: Any) -> str | None:
    """Describe an info that is no dict; None if it is one."""
    if isinstance(info, Mapping):
        return None
    return f"info is {_truncated_repr(info)}; allowed is a dict"


def info_number_violation(key: str, value: Any) -> str | None:
    """Describe an info value that was asked for and is not one finite number; None if it is."""
    if (message := reward_violation(value, f"info[{key!r}]")) is None:
        return None
    found, _, allowed = message.partition(";")
    return (
        f"{found} (named by env.success or collector.keep_info); only numbers can be kept:"
        f"{allowed}; name another key or fix the environment"
    )


def kept_numbers(info: Mapping[str, Any], keys: Sequence[str]) -> tuple[np.ndarray, str | None]:
    """Return (the values of ``keys`` float32 [K], 0 where absent; a violation or None)."""
    numbers = np.zeros(len(keys), np.float32)
    for i, key in enumerate(keys):
        if key in info:
            if (message := info_number_violation(key, info[key])) is not None:
                return numbers, message
            numbers[i] = as_number(info[key])
    return numbers, None


def flag_violation(name: str, flag: Any) -> str | None:
    """Describe why ``terminated`` or ``truncated`` is not True or False; None if it is."""
    if isinstance(flag, bool | np.bool_):
        return None
    if isinstance(flag, int | np.integer | np.ndarray) and np.shape(flag) == () and flag in (0, 1):
        return None
    return f"{name} is {_truncated_repr(flag)}; allowed is True or False"


def reset_violation(result: Any, space: gym.Space[Any], bounds: "Bounds") -> tuple[str, str] | None:
    """Return how what reset() returned violates the contract, as ``step_violation``."""
    if not isinstance(result, tuple) or len(result) != 2:
        return "exception", "reset() must return (observation, info)"
    obs, info = result
    if (message := obs_violation(space, obs) or bounds.violation(obs)) is not None:
        return "observation", message
    return None if (message := info_violation(info)) is None else ("exception", message)


def step_violation(result: Any, space: gym.Space[Any], bounds: "Bounds") -> tuple[str, str] | None:
    """Return (what, description) where what step() returned violates the contract.

    ``what``: observation, reward, flags or exception (it could not be used at all).
    """
    try:
        obs, reward, terminated, truncated, info = result
    except (TypeError, ValueError):
        text = "step() must return (observation, reward, terminated, truncated, info)"
        return "exception", text
    if (message := obs_violation(space, obs) or bounds.violation(obs)) is not None:
        return "observation", message
    if (message := reward_violation(reward)) is not None:
        return "reward", message
    if not (type(terminated) is bool and type(truncated) is bool):
        message = flag_violation("terminated", terminated)
        if (message := message or flag_violation("truncated", truncated)) is not None:
            return "flags", message
    return None if (message := info_violation(info)) is None else ("exception", message)


def _truncated_repr(value: object, show: Callable[[object], str] = repr) -> str:
    try:
        text = " ".join(show(value).split())
    except Exception:  # an integer of 5000 digits, or what a class of users raises
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 60 else text[:57] + "..."


class BatchValidator:
    """Validator of a native vector environment, with a few comparisons per step.

    The index of the environment is determined only after a violation.
    """

    def __init__(
        self, space: gym.Space[Any], num_envs: int, env_id: str, *, bounds: bool = True
    ) -> None:
        """``bounds``: compare integers with those of their space; False for tested environments."""
        self._space, self._num_envs, self._id = space, num_envs, env_id
        self._bounds = Bounds(space, env_id, batched=True) if bounds else None
        self._leaves = [
            (path, (num_envs, *(leaf.shape or ())), leaf.dtype, leaf.dtype.kind == "f")
            for path, leaf in _leaves(space, ())
            if leaf.dtype is not None
        ]

    def obs(self, obs: Any, step: int) -> None:
        """Raise EnvError unless every leaf has the shape and dtype of its space and is finite."""
        for path, shape, dtype, floating in self._leaves:
            leaf = obs
            try:
                for key in path:
                    leaf = leaf[key]
                right = leaf.shape == shape and leaf.dtype == dtype
            except (AttributeError, LookupError, TypeError):
                right = False
            if not right or (floating and not np.isfinite(leaf).all()):
                raise self._obs_fault(obs, path, leaf, step)
        if self._bounds is None:
            return
        if (message := self._bounds.violation(obs)) is not None:
            subject = f"environments 0 to {self._num_envs - 1}"
            raise contract_error(self._id, subject, step, f"{message}; fix the environment")

    def reward(self, reward: Any, step: int) -> None:
        """Raise EnvError unless the reward is [E], numbers that float32 holds."""
        self._row("rewards", reward, "biuf", step)
        if not (inside := np.abs(reward) <= FLOAT32_MAX).all():
            index = int(np.flatnonzero(~inside)[0])
            text = f"{reward_violation(reward[index])}; fix the environment"
            raise contract_error(self._id, f"environment {index}", step, text)

    def flags(self, terminated: Any, truncated: Any, step: int) -> None:
        """Raise EnvError unless both are [E] and True or False."""
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            self._row(name, flags, "biu", step)

    def _row(self, name: str, x: Any, kinds: str, step: int) -> None:
        """Raise EnvError unless ``x`` is an array [E] of a dtype of these kinds."""
        if isinstance(x, np.ndarray) and x.shape == (self._num_envs,) and x.dtype.kind in kinds:
            return
        got = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else _truncated_repr(x)
        message = f"{name} of all environments is {got}; allowed is an array ({self._num_envs},)"
        raise contract_error(self._id, "the vector environment", step, message)

    def _obs_fault(self, obs: Any, path: tuple[Any, ...], leaf: Any, step: int) -> EnvError:
        name = "observation" + "".join(f"[{key!r}]" for key in path)
        space = self._space
        for key in path:
            space = space[key]  # type: ignore[index]
        batch = (self._num_envs, *(space.shape or ()))
        if isinstance(leaf, np.ndarray) and (leaf.shape, leaf.dtype) == (batch, space.dtype):
            finite = np.isfinite(leaf).reshape(self._num_envs, -1).all(axis=1)
            index = int(np.flatnonzero(~finite)[0])
            message = obs_violation(space, leaf[index], name)
            return contract_error(
                self._id, f"environment {index}", step, f"{message}; fix the environment"
            )
        got = (
            f"{leaf.dtype} {leaf.shape}" if isinstance(leaf, np.ndarray) else _truncated_repr(leaf)
        )
        message = f"{name} of all environments is {got}; allowed is {space.dtype} {batch}"
        subject = f"environments 0 to {self._num_envs - 1}"
        return contract_error(
            self._id, subject, step, f"{message}; fix the environment or set env.backend=sync"
        )


def _leaves(
    space: gym.Space[Any], path: tuple[Any, ...]
) -> list[tuple[tuple[Any, ...], gym.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        return [x for k, s in space.spaces.items() for x in _leaves(s, (*path, k))]
    if isinstance(space, spaces.Tuple):
        return [x for i, s in enumerate(space.spaces) for x in _leaves(s, (*path, i))]
    return [(path, space)]


class ActionValidator:
    """Validator of actions [E, *A], which it returns in the dtype of the action space.

    Actions have shape [E, *A], integers for a discrete space, finite numbers within the bounds of
    a Box (up to a few roundings of float32). Nothing is clipped.
    """

    def __init__(self, space: gym.Space[Any], num_envs: int) -> None:
        self._shape = (num_envs, *(space.shape or ()))
        self._dtype = np.dtype(space.dtype)
        self._box: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(space, spaces.Box):
            bounds = np.stack([space.low, space.high]).astype(np.float64)
            slack = _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(bounds, posinf=0, neginf=0)))
            self._box = bounds[0] - slack[0], bounds[1] + slack[1]
            self._bounds = bounds

    def __call__(self, action: Any) -> tuple[np.ndarray, str | None, int | None]:
        """Return (action, violation or None, index of the environment or None for all)."""
        actions = np.asarray(action)
        kinds = "iu" if self._box is None else "fiu"
        if actions.shape != self._shape or actions.dtype.kind not in kinds:
            message = (
                f"action is {actions.dtype} {actions.shape}; allowed is {self._dtype} {self._shape}"
            )
            return actions, message, None
        if self._box is None:
            return actions.astype(self._dtype, copy=False), None, None
        inside = (actions >= self._box[0]) & (actions <= self._box[1])  # False for NaN
        if not inside.all():
            place = tuple(int(i) for i in np.argwhere(~inside)[0])
            low, high = (float(bound[place[1:]]) for bound in self._bounds)
            message = (
                f"action is {actions[place]} at position {list(place[1:])}; allowed is "
                f"[{low:g}, {high:g}]; the policy must keep the bounds"
            )
            return actions, message, place[0]
        return actions.astype(self._dtype, copy=False), None, None


class Bounds:
    """Compares the leaves of observations, [*O] or of E environments [E, *O], with their bounds."""

    def __init__(
        self, space: gym.Space[Any], env_id: str, *, batched: bool, floats: bool = True
    ) -> None:
        """``batched``: of E environments; else Discrete is left to ``obs_violation``.

        ``floats``: compare floats too.
        """
        self._env_id = env_id
        leaves = list(_bounded(space, ()))
        integers = [leaf for leaf in leaves if leaf[1].dtype.kind != "f"]
        self._integers = [leaf for leaf in integers if batched or leaf[1].ndim]
        self._floats = [leaf for leaf in leaves if floats and leaf[1].dtype.kind == "f"]
        self._calls = 0

    def violation(self, obs: Any) -> str | None:
        """Describe an integer outside of its bounds; warn once of a float."""
        if self._integers:
            for path, low, high in self._integers:
                if (message := _outside(_leaf(obs, path), path, low, high)) is not None:
                    return message
        if self._floats:
            self._calls += 1
            if self._calls % _EVERY == 1:
                self._warn(obs)
        return None

    def floats_violation(self, obs: Any) -> str | None:
        """Describe a float outside of its bounds."""
        each = (_outside(_leaf(obs, path), path, low, high) for path, low, high in self._floats)
        return next((message for message in each if message is not None), None)

    def _warn(self, obs: Any) -> None:
        if (message := self.floats_violation(obs)) is not None:
            _logger.warning("env.id = %s: %s; it is passed on", self._env_id, message)
            self._floats = []


def _leaf(obs: Any, path: Path) -> np.ndarray:
    for key in path:
        obs = obs[key]
    return np.asarray(obs)


def _outside(x: np.ndarray, path: Path, low: np.ndarray, high: np.ndarray) -> str | None:
    if low.ndim == 0 and not low and x.dtype.kind == "i":  # negative numbers are the largest
        if x.view(_UNSIGNED[x.dtype.itemsize]).max() <= high:
            return None
    elif not ((x < low) | (x > high)).any():
        return None
    bounds = np.broadcast_arrays(x, low, high)
    place = tuple(int(i) for i in np.argwhere((x < low) | (x > high))[0])
    value, least, most = (b[place].item() for b in bounds)
    name = "observation" + "".join(f"[{key!r}]" for key in path)
    where = f" at position {list(place)}" if place else ""
    return f"{name} is {value:g}{where}; allowed is [{least:g}, {most:g}]"


def _bounded(space: gym.Space[Any], path: Path) -> Any:
    """Yield (path, low, high) of the leaves with bounds narrower than their dtype."""
    match space:
        case spaces.Dict():
            for key, part in space.spaces.items():
                yield from _bounded(part, (*path, key))
        case spaces.Tuple():
            for i, part in enumerate(space.spaces):
                yield from _bounded(part, (*path, i))
        case spaces.Discrete():
            yield path, np.asarray(space.start), np.asarray(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            yield path, np.asarray(space.start), space.start + space.nvec - 1
        case spaces.MultiBinary():
            yield path, np.zeros((1,), np.int8), np.ones((1,), np.int8)
        case spaces.Box() if space.dtype.kind == "f":
            slack = _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(space.low, neginf=0)))
            top = _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(space.high, posinf=0)))
            if np.isfinite(space.low).any() or np.isfinite(space.high).any():
                dtype = space.dtype
                yield path, (space.low - slack).astype(dtype), (space.high + top).astype(dtype)
        case spaces.Box() if space.dtype.kind in "iu":
            limits = np.iinfo(space.dtype)
            if (space.low > limits.min).any() or (space.high < limits.max).any():
                yield path, space.low, space.high
