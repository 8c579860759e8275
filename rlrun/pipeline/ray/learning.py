"""The role of the learner: updates, with batches asked for ahead, and weights for the others."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.buffer.rollouts import Rollouts
from rlrun.pipeline.backends import backends, restore_backends
from rlrun.pipeline.generators import generators_state, load_generators, seed_generators
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.ray.messages import Learned, Payload, RoleFailure, Stored, answered, constructed
from rlrun.pipeline.ray.process import prepare, unpacked
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.weights import Publisher
from rlrun.transport import AutoLearnerSide
from rlrun.types import Counters, Policy, Sample, Segment


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
        self.asked = self.rows = self.windows = 0
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
            except ray.exceptions.RayError:  # the shard is gone; the driver reports it
                self._leave_out(number)
                continue
            if isinstance(found, RoleFailure):
                raise found.error(f"replay {number}")
            if found is None:
                self._leave_out(number)
                continue
            self.mass[number] = found.mass
            self.drawn[id(found.key)] = number, found.shard, asked
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
        """As ``Replay.histories``, of the first shard."""
        windows, history, after = self._first("histories", count, generator)
        generator.bit_generator.state = after.bit_generator.state
        return as_segment(windows), as_segment(history)

    def random_windows(self, count: int, generator: np.random.Generator) -> Segment:
        """As ``Replay.random_windows``, of the first shard."""
        windows, after = self._first("random_windows", count, generator)
        generator.bit_generator.state = after.bit_generator.state
        return as_segment(windows)

    def note(self, masses: Sequence[float], windows: int) -> None:
        """Take over what the driver knows of the shards."""
        self.windows = windows
        self.mass = [new if old == 0.0 or new == 0.0 else old
                     for old, new in zip(self.mass, masses, strict=True)]  # fmt: skip

    def clear(self) -> None:
        """Forget batches that were asked for."""
        self.queue.clear()
        self.drawn.clear()

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

        found = ray.get(getattr(self.shards[0], method).remote(*arguments))
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


@dataclass(slots=True)
class LearnerParts:
    """What the learner is made of: ``learner`` of one kind, ``receiver`` for rollouts."""

    policy: Policy
    publisher: Publisher
    side: AutoLearnerSide  # of the weights
    counters: Counters
    make_learner: Callable[[Any], Learner | RolloutLearner]  # of its buffer
    rollouts: Rollouts | None  # on-policy
    sides: Mapping[int, AutoLearnerSide]  # on-policy: of the rows of every collector


class LearnerRole:
    """Updates the policy as often as the driver says."""

    @constructed
    def __init__(
        self,
        make: bytes,
        shards: Sequence[str],
        *,
        threads: int,
        seed: int,
        prefetch: int,
        throttle: float,
    ) -> None:
        """``make``: packed, () -> LearnerParts.

        ``seed``: of the process's global generators; ``prefetch``: see ``ShardReader``;
        ``throttle``: bytes/s of a slow link, in tests; 0: none.
        """
        self.log = prepare("learner", threads=threads)
        seed_generators(seed)
        self.parts: LearnerParts = unpacked(make)()
        self.throttle = throttle
        self.policy, self.counters = self.parts.policy, self.parts.counters
        self.reader = ShardReader(shards, prefetch=prefetch)
        self.receiver = Receiver(self.parts.sides)
        buffer = self.reader if self.parts.rollouts is None else self.parts.rollouts
        self.learner = self.parts.make_learner(buffer)
        self.published = -1  # updates of the weights published last
        self.running: dict[tuple[int, ...], Any] = {}  # collectors -> returns under way

    @answered
    def learn(
        self, updates: int, env_steps: int, masses: Sequence[float], windows: int, publish: bool
    ) -> Any:
        """Do ``updates`` updates, fewer where no shard has windows; see ``Learned``."""
        assert isinstance(self.learner, Learner)
        self.counters.env_steps = env_steps
        self.reader.note(masses, windows)
        done = 0
        for _ in range(updates):
            try:
                self.learner.update_once()
            except NoWindows:
                break
            done += 1
        return self._learned(done, publish)

    @answered
    def learn_rollouts(
        self,
        numbers: Sequence[int],
        seqs: Sequence[int],
        env_steps: int,
        publish: bool,
        corrupt: bool,
        *payloads: Payload,
    ) -> Any:
        """Learn from the chunks of collectors ``numbers`` together.

        Returns (Stored of every chunk, Learned or None where one was damaged, nothing was done).
        """
        rollouts = self.parts.rollouts
        assert isinstance(self.learner, RolloutLearner)
        assert rollouts is not None
        named = [*zip(numbers, seqs, payloads, strict=True)]
        if all(self.receiver.again(n, seq) for n, seq, _ in named):
            return [Stored(seq + 1, True, again=True) for seq in seqs], self._learned(0, publish)
        chunks = [self.receiver.unpack(n, p, corrupt=corrupt) for n, _, p in named]
        if any(chunk is None for chunk in chunks):
            return [Stored(seq, False, damaged=True) for seq in seqs], None
        for (number, seq, _), chunk in zip(named, chunks, strict=True):
            assert chunk is not None
            rollouts.add(number, chunk)
            self.receiver.accept(number, seq)
        self.counters.env_steps = env_steps
        key = tuple(numbers)
        if hasattr(self.policy, "running") and key in self.running:
            self.policy.running = self.running[key]
        done = self.learner.step(0, np.empty(0, np.int64))
        if hasattr(self.policy, "running"):
            self.running[key] = self.policy.running
        return [Stored(seq + 1, True) for seq in seqs], self._learned(done, publish)

    def _learned(self, done: int, publish: bool) -> Learned:
        frame, version = None, None
        if publish and self.counters.updates != self.published:
            frame, version = self._frame(), self.counters.updates
        lags, self.reader.lags = self.reader.lags, []
        return Learned(
            self.counters.updates, done, version, frame,
            {**self.learner.seconds, **self.policy.seconds, "code": self.parts.side.seconds},
            float(np.mean(lags)) if lags else 0.0, self.log.take(),
        )  # fmt: skip

    def _frame(self) -> Any:
        """The present weights as the next message of the transport."""
        side, self.published = self.parts.side, self.counters.updates
        frame = side.pack(self.parts.publisher.tensors(narrow=side.coded))
        if self.throttle:
            from rlrun.transport.auto import nbytes

            time.sleep(nbytes(frame) / self.throttle)
        if isinstance(frame, dict):  # it shares memory with the weights
            return {name: np.array(x) for name, x in frame.items()}
        return frame

    @answered
    def frame(self) -> Any:
        """(number of updates, the weights as a message)."""
        return self.counters.updates, self._frame()

    @answered
    def answer(self, need: Any) -> Any:
        """The message for a receiver that lacks a base; None: too soon, ask again."""
        return self.parts.side.answer(need)

    @answered
    def weights(self) -> Any:
        """Copies of the weights for evaluation."""
        return {name: np.array(w.numpy(force=True)) for name, w in self.policy.weights().items()}

    @answered
    def metrics(self) -> Any:
        """(train/ metrics since the last call, updates they are means of, log)."""
        updates = self.learner.means.updates
        return self.learner.means.report(), updates, self.log.take()

    @answered
    def sizes(self) -> Any:
        """(bytes of weights since the last call: raw, sent; seconds of coding so far)."""
        raw, sent = self.parts.side.sent
        self.parts.side.sent = [0, 0]
        return raw, sent, self.parts.side.seconds + self.receiver.seconds

    @answered
    def diagnose(self, env_steps: int, windows: int) -> Any:
        """train/ metrics of the present networks, see ``Learner.diagnose``."""
        self.counters.env_steps, self.reader.windows = env_steps, windows
        return self.learner.diagnose()

    @answered
    def state(self) -> Any:
        """Everything that updates depend on, but for the replay."""
        self.reader._read_replies(keep=0)
        rollouts = self.parts.rollouts
        return {
            "policy": self.policy.state_dict(),
            "learner": self.learner.state_dict(),
            "backends": backends(self.policy),
            "generators": generators_state(),
            "rollouts": None if rollouts is None else rollouts.state_dict(),
            "running": [{"of": list(key), "value": x} for key, x in self.running.items()],
            "received": self.receiver.state_dict(),
        }

    @answered
    def load(self, state: dict[str, Any], counters: dict[str, int]) -> Any:
        """The inverse of ``state``."""
        for name, value in counters.items():
            setattr(self.counters, name, value)
        self.policy.load_state_dict(state["policy"])
        restore_backends(self.policy, state["backends"])
        self.learner.load_state_dict(state["learner"])
        load_generators(state["generators"])
        if self.parts.rollouts is not None:
            self.parts.rollouts.load_state_dict(state["rollouts"])
        self.running = {tuple(x["of"]): x["value"] for x in state["running"]}
        self.receiver.load_state_dict(state["received"])
        self.reader.clear()
        self.published = -1
        return None


def as_segment(arrays: Any) -> Segment:
    """The segment of tensors, in memory of its own, of one of arrays."""
    segment: Segment = arrays.map(lambda x: torch.from_numpy(np.array(x)))
    return segment
