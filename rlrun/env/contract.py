"""Validation of what environments return and of the actions they get.

The contract: observations have the structure, shape and dtype of their space and are finite.
Rewards are numbers that float32 holds. Infos are dicts. No exception is raised. Every violation is
an EnvError that names the index of the environment, the step, the value found and the values
allowed. Step s is the s-th ``step()`` of the vector environment since its ``reset`` (step 0),
autoresets included.
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
from rlrun.spaces import Path, leaf_name, leaf_of, leaf_spaces, space_parts, value_range

_logger = logging.getLogger(__name__)

_ARRAYS = np.ndarray, np.generic
_TOLERANCE = 1e-6  # relative: float32 rounding at the bounds of a space
_EVERY = 64  # every this many calls floats are compared, to save time

KEPT = "rlrun/kept"  # the only key of a checked environment's info: requested numbers
FLOAT32_MAX = float(np.finfo(np.float32).max)
_NUMBERS = f"a finite number that float32 holds, within [-{FLOAT32_MAX:.7g}, {FLOAT32_MAX:.7g}]"
_RAISE = dis.opmap["RAISE_VARARGS"]
STORABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
Spaces = tuple[gym.Space[Any], gym.Space[Any]]  # of observations and of actions
ResetResult = tuple[Any, dict[str, Any]]  # observation, info
VectorResult = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]  # of E environments
Fault = tuple[str, int | None]  # description, and the environment's index if known


class ContractViolation(ValueError):
    """A description of a wrong value, raised by code between the environment and its check."""


def contract_error(env_id: str, environments: Sequence[int], step: int, message: str) -> EnvError:
    """Return the error of the environments with these indices at ``step``."""
    when = "in reset" if step == 0 else f"at step {step}"
    return EnvError(f"env.id = {env_id}: {numbered(environments)} {when}: {message}")


def numbered(indices: Sequence[int]) -> str:
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


def _is_ctrl_c(error: BaseException | None) -> bool:
    """Return True if a signal caused the error, False if an environment's code raised it.

    Python raises the KeyboardInterrupt of a signal between two instructions, whereas code raises it
    with the instruction of a ``raise`` statement.
    """
    if isinstance(error, Interrupted):
        return True
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if str(trace.tb_frame.f_globals.get("__name__")).startswith("rlrun."):  # a handler of the run
        return True
    if trace.tb_frame.f_code.co_code[trace.tb_lasti] != _RAISE:
        return True
    return _is_ctrl_c(error.__context__)


def missing_text(error: Exception) -> str:
    """Return what a package that is missing is called, without Gymnasium's advice to install it."""
    text = " ".join(str(error).split())
    return text.partition(", ")[0] if isinstance(error, gym.error.DependencyNotInstalled) else text


def pass_ctrl_c(error: BaseException) -> None:
    """Raise ``error`` if a signal caused it. Return if an environment's code raised it."""
    if _is_ctrl_c(error):
        raise error


@contextmanager
def faults_ignored() -> Iterator[None]:
    """Ignore anything that an environment's code raises within the block."""
    try:
        yield
    except BaseException as e:
        pass_ctrl_c(e)


def space_difference(space: gym.Space[Any], first: gym.Space[Any], name: str) -> str | None:
    """Return how a space differs from that of the first copy, or None.

    ``name``: of the space, e.g. ``observation_space``.
    """
    if space == first:
        return None
    if type(space) is type(first):
        parts = dict(space_parts(first) or ())
        for key, part in space_parts(space) or ():
            if key in parts and (text := space_difference(part, parts[key], f"{name}[{key!r}]")):
                return text
    boxes = isinstance(space, spaces.Box) and isinstance(first, spaces.Box)
    if boxes and (space.shape, space.dtype) == (first.shape, first.dtype):
        for bound in ("low", "high"):
            x, y = getattr(space, bound), getattr(first, bound)
            for index in map(tuple, np.argwhere(x != y)[:1]):
                at = f"[{', '.join(map(str, index))}]" if index else ""
                return f"{name}.{bound}{at} is {x[index]:g}, that of the first {y[index]:g}"
    return f"{name} is {space}, that of the first {first}"


def unequal_copies(env_id: str, copies: Sequence[Spaces | None], first: Spaces) -> EnvError | None:
    """Return the error naming the first copy whose spaces differ from ``first``, or None.

    ``copies``: the spaces of all; None: unknown.
    """
    names = "observation_space", "action_space"
    for number, copy_spaces in enumerate(copies, 1):
        for name, x, y in zip(names, copy_spaces or (), first, strict=False):
            if (wrong := space_difference(x, y, name)) is not None:
                return EnvError(
                    f"env.id = {env_id}: copy {number} of {len(copies)}: {wrong}; all copies must "
                    "have the same spaces; give them the same bounds, whatever is random"
                )
    return None


def unsupported_space(space: gym.Space[Any], path: str = "observation") -> str | None:
    """Describe the first part of ``space`` that cannot be stored as arrays. None if all can."""
    if isinstance(space, STORABLE):
        return None
    if not (parts := space_parts(space)):
        return f"{path} space is {space}{', which has no parts' if parts is not None else ''}"
    inside = (unsupported_space(part, f"{path}[{key!r}]") for key, part in parts)
    return next(filter(None, inside), None)


def reward_violation(reward: Any, name: str = "reward") -> str | None:
    """Describe why a reward is not one number that float32 holds. None if it is."""
    if type(reward) is float and -FLOAT32_MAX <= reward <= FLOAT32_MAX:
        return None
    value = as_number(reward)
    if value is None:
        return f"{name} is {_truncated_repr(reward)}; allowed is one finite number"
    if -FLOAT32_MAX <= value <= FLOAT32_MAX:
        return None
    return f"{name} is {_truncated_repr(reward, str)}; allowed is {_NUMBERS}"


def as_number(value: Any) -> float | None:
    """Return ``value`` as a float, infinite if a float cannot hold it. None: it is not a number."""
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
    except Exception:  # a user's class may raise anything
        return None


def info_violation(info: Any) -> str | None:
    """Describe an info that is not a dict. None if it is one."""
    if type(info) is dict or isinstance(info, Mapping):
        return None
    return f"info is {_truncated_repr(info)}; allowed is a dict"


def info_number_violation(key: str, value: Any) -> str | None:
    """Describe a requested info value that is not one finite number. None if it is."""
    if (message := reward_violation(value, f"info[{key!r}]")) is None:
        return None
    fault, _, allowed = message.partition(";")
    return (
        f"{fault} (named by env.success or collector.keep_info); only numbers can be kept:"
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
    """Describe why ``terminated`` or ``truncated`` is not True or False. None if it is."""
    if isinstance(flag, bool | np.bool_):
        return None
    if isinstance(flag, int | np.integer | np.ndarray) and np.shape(flag) == () and flag in (0, 1):
        return None
    return f"{name} is {_truncated_repr(flag)}; allowed is True or False"


_RETURNED = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def row_violation(
    call: str, result: Any, validator: "ObservationValidator"
) -> tuple[str, str] | None:
    """Return (kind, description) of how the result of reset() or step() violates the contract.

    The kind is observation, reward, flags, or exception (the result could not be used at all).
    None: it does not.
    """
    if not isinstance(result, (tuple, list)) or len(result) != len(_RETURNED[call]):
        return "exception", f"{call}() must return ({', '.join(_RETURNED[call])})"
    if (message := validator.violation(result[0])) is not None:
        return "observation", message
    if call == "step":
        _, reward, terminated, truncated, _ = result
        if (message := reward_violation(reward)) is not None:
            return "reward", message
        if not (type(terminated) is bool and type(truncated) is bool):
            message = flag_violation("terminated", terminated)
            if (message := message or flag_violation("truncated", truncated)) is not None:
                return "flags", message
    return None if (message := info_violation(result[-1])) is None else ("exception", message)


def _truncated_repr(value: object, show: Callable[[object], str] = repr) -> str:
    try:
        text = " ".join(show(value).split())
    except Exception:  # an integer of 5000 digits, or a user's class
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 60 else text[:57] + "..."


class ObservationValidator:
    """Checks observations against their space: those of one environment, [*O], or of E, [E, *O].

    Integers beyond their bounds are a violation. Floats beyond them are logged once.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        env_id: str = "",
        *,
        num_envs: int | None = None,
        integers: bool = True,
        floats: bool = True,
    ) -> None:
        """``num_envs`` None: one. ``integers``, ``floats``: whether bounds are compared."""
        batch = () if num_envs is None else (num_envs,)
        self._space, self._env_id = space, env_id
        self._parts = num_envs is None and space_parts(space) is not None
        self._leaves = [_Leaf(path, leaf, batch, integers) for path, leaf in leaf_spaces(space)]
        self._floats = [leaf for leaf in self._leaves if leaf.floating and leaf.limits is not None]
        self._warns, self._calls = floats and bool(self._floats), 0

    def violation(self, obs: Any) -> str | None:
        """Describe how the observation of one environment violates its space."""
        fault = self.fault(obs)
        return None if fault is None else fault[0]

    def fault(self, obs: Any) -> Fault | None:
        """Return the first violation."""
        if self._parts and (lacks := structure_violation(self._space, obs, "observation")):
            return lacks, None
        for leaf in self._leaves:
            if (fault := leaf.fault(obs)) is not None:
                return fault
        if self._warns:
            self._calls += 1
            if self._calls % _EVERY == 1 and (message := self.floats_violation(obs)) is not None:
                _logger.warning("env.id = %s: %s; it is passed on", self._env_id, message)
                self._warns = False
        return None

    def floats_violation(self, obs: Any) -> str | None:
        """Describe a float outside its bounds."""
        faults = (leaf.beyond(np.asarray(leaf_of(obs, leaf.path))) for leaf in self._floats)
        return next((fault[0] for fault in faults if fault is not None), None)


def structure_violation(space: gym.Space[Any], obs: Any, path: str) -> str | None:
    """Describe where an observation of one environment lacks parts of its space."""
    if (parts := space_parts(space)) is None:
        return None
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
            actual = sorted(map(str, obs)) if isinstance(obs, Mapping) else type(obs).__name__
            return f"{path} is {actual}; allowed is a dict with keys {sorted(space.spaces)}"
    elif not isinstance(obs, tuple | list) or len(obs) != len(parts):
        actual = f"{type(obs).__name__} of {len(obs) if hasattr(obs, '__len__') else 'no'} parts"
        return f"{path} is a {actual}; allowed is a tuple of {len(parts)} parts"
    inside = (structure_violation(part, obs[key], f"{path}[{key!r}]") for key, part in parts)
    return next(filter(None, inside), None)


class _Leaf:
    """A part of an observation that is one array, for one environment or for E."""

    def __init__(
        self, path: Path, space: gym.Space[Any], batch: tuple[int, ...], integers: bool
    ) -> None:
        """``integers``: compare integers with their bounds."""
        self.path, self.space, self.batched = path, space, bool(batch)
        self.shape, self.dtype = (*batch, *(space.shape or ())), space.dtype
        self.number = isinstance(space, spaces.Discrete) and not batch  # a Python int, too
        self.floating = self.dtype is not None and self.dtype.kind == "f"
        self.limits = _limits(space)
        self.compared = integers and self.limits is not None
        self.name = leaf_name(path)

    def fault(self, obs: Any) -> Fault | None:
        """Return the fault of this part of an observation, or None."""
        try:
            x = leaf_of(obs, self.path)
        except (LookupError, TypeError):
            x = obs
        if self.number:
            return self._number_fault(x)
        if not isinstance(x, _ARRAYS):
            text = f"is a {type(x).__name__}"
        elif x.shape != self.shape:
            text = f"has shape {x.shape}"
        elif x.dtype != self.dtype:
            text = f"has dtype {x.dtype}"
        elif self.floating:  # False for NaN
            inside = np.abs(x) <= FLOAT32_MAX if x.itemsize > 4 else np.isfinite(x)
            return None if np.count_nonzero(inside) == x.size else self._first(x, ~inside)
        else:
            return self.beyond(x) if self.compared else None
        return (
            f"{self.name} {text}; allowed is {self.dtype} {self.shape}, finite, as an array",
            None,
        )

    def _number_fault(self, x: Any) -> Fault | None:
        whole = isinstance(x, int | np.integer) and not isinstance(x, bool)
        whole |= isinstance(x, np.ndarray) and x.shape == () and x.dtype.kind in "iu"
        low, high = self.limits or (0, 0)
        if whole and low <= x <= high:
            return None
        allowed = f"allowed is an integer within [{low}, {high}]"
        return f"{self.name} is {_truncated_repr(x)}; {allowed}", None

    def beyond(self, x: Any) -> Fault | None:
        """Return the first number that is out of bounds."""
        assert self.limits is not None
        wrong = (x < self.limits[0]) | (x > self.limits[1])
        return self._first(x, wrong) if wrong.any() else None

    def _first(self, x: Any, wrong: Any) -> Fault:
        """Return the first wrong number, which is not finite or out of bounds."""
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        value = np.asarray(x)[place]
        index, inner = (place[0], place[1:]) if self.batched else (None, place)
        where = f" at position {list(inner)}" if inner else ""
        if self.floating and not abs(value) <= FLOAT32_MAX:
            allowed = f"{self.dtype} {self.space.shape}, finite in float32"
            return f"{self.name} has {value}{where}; allowed is {allowed}", index
        space = self.space
        declared = (space.low, space.high) if isinstance(space, spaces.Box) else self.limits or ()
        bounds = (np.broadcast_to(b, space.shape or ())[inner] for b in declared)
        allowed = ", ".join(f"{bound:g}" for bound in bounds)
        return f"{self.name} is {value:g}{where}; allowed is [{allowed}]", index


def _widened(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds that a few roundings of float32 keep."""
    below, above = (
        _TOLERANCE * np.maximum(1, np.abs(np.nan_to_num(x, posinf=0, neginf=0)))
        for x in (low, high)
    )
    return low - below, high + above


def _limits(space: gym.Space[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of an array, or None if they are those of its dtype."""
    low, high = value_range(space)
    if not isinstance(space, spaces.Box):
        return low, high
    if space.dtype.kind == "f" and (np.isfinite(low).any() or np.isfinite(high).any()):
        low, high = _widened(low, high)
        return low.astype(space.dtype), high.astype(space.dtype)
    if space.dtype.kind in "iu":
        limits = np.iinfo(space.dtype)
        if (low > limits.min).any() or (high < limits.max).any():
            return low, high
    return None


def batch_fault(
    row: tuple[Any, Any, Any, Any], validator: ObservationValidator, num_envs: int
) -> Fault | None:
    """Return how a row of E environments violates the contract, with a few comparisons.

    ``row``: observations, rewards, terminated, truncated.
    """
    obs, reward, *flags = row
    if (fault := validator.fault(obs)) is not None:
        return fault
    names = ("rewards", "numbers"), ("terminated", "bools"), ("truncated", "bools")
    for (name, what), x, kinds in zip(names, (reward, *flags), ("biuf", "biu", "biu"), strict=True):
        array = isinstance(x, np.ndarray)
        if not array or x.shape != (num_envs,) or x.dtype.kind not in kinds:
            text = f"{x.dtype} {x.shape}" if array else _truncated_repr(x)
            allowed = f"an array ({num_envs},) of {what}"
            return f"{name} of all environments is {text}; allowed is {allowed}", None
    if not (inside := np.abs(reward) <= FLOAT32_MAX).all():
        index = int(inside.argmin())
        return str(reward_violation(reward[index])), index
    return None


class ActionValidator:
    """Validates actions [E, *A] and returns them in the dtype of the action space.

    Actions have shape [E, *A]: integers for a discrete space, finite numbers within the bounds of a
    Box (up to a few float32 roundings). Nothing is clipped.
    """

    def __init__(self, space: gym.Space[Any], num_envs: int) -> None:
        self._shape = (num_envs, *(space.shape or ()))
        self._dtype = np.dtype(space.dtype)
        self._box: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(space, spaces.Box):
            self._bounds = np.stack([space.low, space.high]).astype(np.float64)
            self._box = _widened(*self._bounds)

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
