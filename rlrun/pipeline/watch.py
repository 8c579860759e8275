"""Pictures and readings of an evaluation's first environment, row by row."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlrun.acting.reading import Reading, RecordingActor
from rlrun.env.rows import Env, Step
from rlrun.types import Actor


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row of environment 0: its picture before the action, and what was computed of it."""

    picture: np.ndarray  # uint8 [H, W, 3]
    episode: int  # from 0
    t: int  # steps since the episode began
    reward: float  # of the step that led here, 0 at the start
    total: float  # return so far
    reading: Reading | None  # None: the episode is over, nothing more was computed


@dataclass(slots=True)
class Watch:
    """Hands each row of column 0 to ``show``: T + 1 of an episode of T steps.

    ``ended``(number, return, length, cut=...) is called after each episode. ``episodes``: (return,
    length) of them, in order. ``stride``: steps from one picture to the next; the last row of an
    episode has one in any case.
    """

    show: Callable[[WatchedRow], None]
    ended: Callable[..., None] = lambda *result, cut: None
    episodes: list[tuple[float, int]] = field(default_factory=list)
    stride: int = 1
    _pending: tuple[np.ndarray, float] | None = None  # picture and reward of the row to come
    _t: int = 0
    _total: float = 0.0

    def wrap(self, actor: Actor) -> Actor:
        """Return ``actor``, whose outputs are then recorded."""
        return RecordingActor(actor, self._acted)

    def began(self, env: Env) -> None:
        """All environments were reset."""
        self.episodes, self._t, self._total = [], 0, 0.0
        self._pending = env.render(), 0.0

    def stepped(self, env: Env, step: Step, *, over: bool) -> None:
        """``over``: the episode of column 0 has ended, or is cut here."""
        if step.first[0]:
            self._t, self._total, self._pending = 0, 0.0, (env.render(), 0.0)
            return
        reward = float(step.reward[0])
        self._t, self._total = self._t + 1, self._total + reward
        if over or self._t % self.stride == 0:
            self._pending = env.render(), reward
        if over:
            self._emit(None)
            cut = not (step.terminated[0] or step.truncated[0])
            self.ended(len(self.episodes), self._total, self._t, cut=cut)
            self.episodes.append((self._total, self._t))

    def _acted(self, reading: Reading) -> None:
        if self._pending is not None:
            self._emit(reading)

    def _emit(self, reading: Reading | None) -> None:
        assert self._pending is not None
        picture, reward = self._pending
        self._pending = None
        self.show(WatchedRow(picture, len(self.episodes), self._t, reward, self._total, reading))
