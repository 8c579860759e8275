"""The replay of the learner: batches of all shards, asked for ahead."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlrun.buffer import saved
from rlrun.pipeline.ray.messages import RoleFailure, failure_in_ray
from rlrun.types import Sample, Segment

MOST_MASS = 1e300  # of a shard; sums of them are finite


class NoWindows(Exception):
    """No shard that answers has a window."""


class ShardReader:
    """The replay of the learner: samples of all shards, some asked for ahead.

    Whole batches are drawn from one shard after the other, each as often as the sum of its
    priorities says. A shard that was lost is left out until it has windows again.
    """

    def __init__(self, shards: Sequence[str], *, prefetch: int) -> None:
        """``shards``: names of their actors; ``prefetch``: batches asked for ahead, 1: none."""
        import ray

        self.shards, self.prefetch = [ray.get_actor(name) for name in shards], prefetch
        self.mass, self.turn = [0.0] * len(shards), [0.0] * len(shards)
        self.queue: deque[tuple[Any, int, int, int]] = deque()  # reply, shard, batch, update
        self.asked = self.windows = 0
        self.drawn: dict[int, tuple[int, int, int]] = {}  # id(key) -> shard, incarnation, update
        self.lags: list[int] = []  # updates from draws to their priorities
        self.written: list[Any] = []  # replies to the priorities written last

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return self.windows

    def sample(self, batch: int, env_steps: int) -> Sample:
        """The next batch. Raises: NoWindows."""
        import ray

        for _ in range(1000):
            while len(self.queue) < self.prefetch:
                self._ask(batch, env_steps)
            entry = self.queue.popleft()
            number, size, asked = entry[1:]
            if size != batch:
                continue
            try:
                found: Any = ray.get(entry[0])
            except ray.exceptions.RayError as e:
                found = failure_in_ray(e)  # None: the shard is gone; the driver reports it
            if isinstance(found, RoleFailure):
                raise found.error(f"replay {number}")
            if found is None:
                self._leave_out(number)
                continue
            self.mass[number] = found.mass
            self.drawn[id(found.key)] = number, found.incarnation, asked
            self.asked += 1
            weight = torch.from_numpy(np.array(found.weight))
            return Sample(as_segment(found.segment), weight, found.key, env_steps)
        raise NoWindows

    def prioritize(self, key: np.ndarray, priority: Any) -> None:
        """Send priorities to the shard that the windows are of; nobody waits for it."""
        number, shard, asked = self.drawn.pop(id(key))
        values = np.array(priority.numpy(force=True) if hasattr(priority, "numpy") else priority)
        self.lags.append(self.asked - 1 - asked)
        self._read_replies(keep=self.prefetch)
        self.written.append(self.shards[number].prioritize.remote(key, values, shard))

    def histories(self, count: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
        """As ``Replay.histories``, of the first shard. Raises: NoWindows, it is away."""
        windows, history, after = self._first("histories", count, generator)
        generator.bit_generator.state = after.bit_generator.state
        return as_segment(windows), as_segment(history)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """As ``Replay.random_windows``, of the first shard. Raises: NoWindows, it is away."""
        windows, after = self._first("random_windows", count, generator)
        generator.bit_generator.state = after.bit_generator.state
        return as_segment(windows)

    def set_masses(self, masses: Sequence[float], windows: int) -> None:
        """Take over what the driver knows of the shards."""
        self.windows = windows
        self.mass = [new if old == 0.0 or new == 0.0 else old
                     for old, new in zip(self.mass, masses, strict=True)]  # fmt: skip

    def clear(self) -> None:
        """Forget batches that were asked for, and replies to priorities, once they are there."""
        import ray

        if self.written:
            ray.wait(self.written, num_returns=len(self.written))
        for own in (self.queue, self.drawn, self.written, self.lags):
            own.clear()

    def settle(self) -> None:
        """Without batches asked for ahead: wait until the shards have all priorities.

        Else a row that another process stores next may come before them, or after.
        """
        self._read_replies(keep=self.prefetch - 1)

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it is."""
        self._read_replies(keep=0)
        return {"mass": list(self.mass), "turn": list(self.turn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        count = len(self.shards)
        for name in ("mass", "turn"):
            saved.require(len(state[name]) == count, f"shards.{name}", f"is not of {count} shards")
        self.mass = [saved.number("shards.mass", x, 0, MOST_MASS) for x in state["mass"]]
        self.turn = [saved.number("shards.turn", x, -count, count) for x in state["turn"]]

    def _ask(self, batch: int, env_steps: int) -> None:
        number = self._choose()
        reply: Any = self.shards[number].sample.remote(batch, env_steps)
        self.queue.append((reply, number, batch, self.asked))

    def _choose(self) -> int:
        """The shard whose turn it is: smooth weighted round robin."""
        total = sum(self.mass)
        if not total > 0:
            raise NoWindows
        self.turn = [t + m / total for t, m in zip(self.turn, self.mass, strict=True)]
        chosen = int(np.argmax(self.turn))
        self.turn[chosen] -= 1.0
        return chosen

    def _leave_out(self, number: int) -> None:
        self.mass[number] = self.turn[number] = 0.0
        self.queue = deque(entry for entry in self.queue if entry[1] != number)

    def _first(self, method: str, *arguments: Any) -> Any:
        import ray

        try:
            found = ray.get(getattr(self.shards[0], method).remote(*arguments))
        except ray.exceptions.RayError as e:
            found = failure_in_ray(e)
            if found is None:
                raise NoWindows from e
        if isinstance(found, RoleFailure):
            raise found.error("replay 0")
        return found

    def _read_replies(self, *, keep: int) -> None:
        """Raise what a shard refused of earlier priorities (NaN)."""
        import ray

        while len(self.written) > keep:
            try:
                found = ray.get(self.written.pop(0))
            except ray.exceptions.RayError:
                continue
            if isinstance(found, RoleFailure):
                raise found.error("replay")


def as_segment(arrays: Any) -> Segment:
    """The segment of tensors, in memory of its own, of one of arrays."""
    segment: Segment = arrays.map(lambda x: torch.from_numpy(np.array(x)))
    return segment
