"""Messages between the roles and the driver."""

import functools
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.errors import RlrunError, error_named, known_error
from rlrun.pipeline.collector import ChunkStats
from rlrun.trust import fault_of_users

MOST_LINES = 1000  # of a role's log between two replies


@dataclass(frozen=True, slots=True)
class RoleFailure:
    """A method of a role raised: an error of rlrun by the name of its class, or a bug."""

    kind: str
    text: str

    def error(self, role: str) -> Exception:
        """The error to raise in the driver."""
        known = error_named(self.kind, self.text)
        return known or RuntimeError(f"in {role}:\n{self.text}")


@dataclass(frozen=True, slots=True)
class Blank:
    """Reply of a role whose process was replaced: it does nothing before its state is loaded."""


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method return ``RoleFailure`` where it raises: Ray's own errors mean a lost process.

    A role that is blank returns ``Blank``, whatever is asked: the driver may not have noticed that
    the process it asked before is gone.
    """

    @functools.wraps(method)
    def call(role: Any, *args: Any, **given: Any) -> Any:
        if role.failed is not None:
            return role.failed
        if role.blank:
            return Blank()
        try:
            return method(role, *args, **given)
        except Exception as e:
            return failure_of(e)

    return call


def fills(method: Callable[..., Any]) -> Callable[..., Any]:
    """``answered``, of the method that loads the state of a role that may be blank."""

    @functools.wraps(method)
    def call(role: Any, *args: Any, **given: Any) -> Any:
        blank, role.blank = role.blank, False
        reply = answered(method)(role, *args, **given)
        role.blank = blank and isinstance(reply, RoleFailure)
        return reply

    return call


def failure_of(e: Exception) -> RoleFailure:
    """Return the reply of a role when ``e`` was raised."""
    if isinstance(e, RlrunError):
        return RoleFailure(known_error(e), str(e))
    fault = fault_of_users(e)
    if fault is not None:
        return RoleFailure(type(fault).__name__, str(fault))
    return RoleFailure(type(e).__name__, traceback.format_exc())


def failure_in_ray(error: Exception) -> RoleFailure | None:
    """Return the failure of a role that raised outside of ``answered``: unpickling its arguments,
    pickling its reply, importing its class.

    None: its process, or an object that the call needs, is lost.
    """
    from ray.exceptions import RayActorError, RayError, RayTaskError

    if isinstance(error, RayActorError) and error.actor_init_failed:
        return RoleFailure(type(error).__name__, str(error))
    if not isinstance(error, RayTaskError):
        return None
    cause = error.cause  # a RayError itself where it cannot be pickled
    if isinstance(cause, RayError) and type(cause) is not RayError:
        return None
    return RoleFailure(type(cause).__name__, str(error))


def constructed(init: Callable[..., None]) -> Callable[..., None]:
    """Let the methods of a role reply why its constructor failed: Ray would only say it is dead."""

    @functools.wraps(init)
    def call(role: Any, *args: Any, **given: Any) -> None:
        role.failed, role.blank = None, False
        try:
            init(role, *args, **given)
        except Exception as e:
            role.failed = failure_of(e)

    return call


@dataclass(frozen=True, slots=True)
class Order:
    """A chunk to collect."""

    seq: int  # of the chunk, counted by the driver
    env_steps: int  # the run's clock
    versions: tuple[int, ...]  # of the frames of weights that come with the order
    incarnation: int = 0  # of the shard that will store the chunk
    since: int = 0  # seq of the first chunk that this incarnation is to store
    keep_env: bool = False  # return the environments' state too (strict)


@dataclass(frozen=True, slots=True)
class Collected:
    """A chunk was collected; its rows are the second result of the call."""

    seq: int
    stats: ChunkStats
    actions: np.ndarray  # counts of the actions taken
    state: dict[str, Any]  # of the collector after the chunk, to go on from elsewhere
    version: int  # of the weights that acted
    env_steps: int  # the clock of the order
    seconds: Mapping[str, float]  # acting, stepping, coding since the role began
    sizes: tuple[int, int]  # bytes of the rows: raw, sent
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NeedFrame:
    """The frames of weights were no use: a delta to another base, or damaged. Nothing was done."""

    stream: int
    have_seq: int
    have_hash: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A chunk on its way to a shard or the learner."""

    message: Any  # of the transport's collector side
    priorities: np.ndarray | None  # [W] |delta| of the windows that it completes
    incarnation: int = 0  # of the shard that it was collected for
    since: int = 0  # seq of the first chunk of this collector for that incarnation


@dataclass(frozen=True, slots=True)
class Stored:
    """Reply to a chunk: stored, or stored before. ``expected``: the next one of this collector."""

    expected: int
    accepted: bool
    again: bool = False  # it was stored already
    damaged: bool = False
    steps: int = 0  # to the shard since it began
    windows: int = 0
    mass: float = 0.0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """Updates were done."""

    updates: int  # of the policy, since the run began
    steps: int  # gradient steps done by this call
    version: int | None = None  # of the weights in ``frame``
    frame: Any = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    lag: float = 0.0  # updates between the draw of a batch and the return of its priorities
    log: tuple[str, ...] = ()


class RoleLog(logging.Handler):
    """Keeps the lines that a role logs until its next reply takes them to the driver."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.lines: list[str] = []
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < MOST_LINES:
            self.lines.append(self.format(record))

    def take(self) -> tuple[str, ...]:
        """Return the lines since the last call."""
        lines, self.lines = tuple(self.lines), []
        return lines
