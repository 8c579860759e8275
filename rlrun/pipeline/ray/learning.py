"""The role of the learner: updates, with batches asked for ahead, and weights for the others."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.buffer.rollout import Rollouts
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.overlapped import Check
from rlrun.pipeline.ray.messages import Learned, Payload, Stored, answered, constructed, fills
from rlrun.pipeline.ray.process import prepare, replaced, unpacked
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.shard_reader import NoWindows, ShardReader
from rlrun.pipeline.ray.weights import Publisher
from rlrun.pipeline.state import (
    backends,
    generators_state,
    load_generators,
    restore_backends,
    seed_generators,
)
from rlrun.pipeline.transport import AutoLearnerSide
from rlrun.types import Counters, Policy


@dataclass(slots=True)
class LearnerParts:
    """Parts of the learner: ``learner`` of one kind, ``receiver`` for rollouts."""

    policy: Policy
    publisher: Publisher
    side: AutoLearnerSide  # of the weights
    counters: Counters
    make_learner: Callable[[Any], Learner | RolloutLearner]  # of its buffer
    rollouts: Rollouts | None  # on-policy
    sides: Mapping[int, AutoLearnerSide]  # on-policy: of the rows of every collector
    check: Check  # of these rows


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
        self.blank = replaced()
        seed_generators(seed)
        self.parts: LearnerParts = unpacked(make)()
        self.throttle = throttle
        self.policy, self.counters = self.parts.policy, self.parts.counters
        self.reader = ShardReader(shards, prefetch=prefetch)
        self.receiver = Receiver(self.parts.sides, self.parts.check)
        buffer = self.reader if self.parts.rollouts is None else self.parts.rollouts
        self.learner = self.parts.make_learner(buffer)
        self.published = -1  # updates of the weights published last
        self.running: dict[tuple[int, ...], Any] = {}  # collectors -> returns under way

    @answered
    def learn(
        self,
        updates: int,
        env_steps: int,
        masses: Sequence[float],
        windows: int,
        with_weights: bool,
    ) -> Any:
        """Do ``updates`` updates, fewer where no shard has windows; see ``Learned``."""
        assert isinstance(self.learner, Learner)
        self.counters.env_steps = env_steps
        self.reader.set_masses(masses, windows)
        done = 0
        for _ in range(updates):
            try:
                self.learner.update_once()
            except NoWindows:
                break
            done += 1
        self.reader.settle()
        return self._learned(done, with_weights)

    @answered
    def learn_rollouts(
        self,
        numbers: Sequence[int],
        seqs: Sequence[int],
        sinces: Sequence[int],
        env_steps: int,
        with_weights: bool,
        corrupt: bool,
        *payloads: Payload,
    ) -> Any:
        """Learn from the chunks of collectors ``numbers`` together.

        ``sinces``: for each, the first chunk of its collector neither learned nor given up.
        Returns (Stored of every chunk, Learned or None where one was damaged or an earlier one of
        its collector is missing: nothing was done).
        """
        rollouts = self.parts.rollouts
        assert isinstance(self.learner, RolloutLearner)
        assert rollouts is not None
        named = [*zip(numbers, seqs, payloads, strict=True)]
        if all(self.receiver.again(n, seq) for n, seq, _ in named):
            return [Stored(seq + 1, True, again=True) for seq in seqs], self._learned(
                0, with_weights
            )
        early = self.receiver.early
        if any([early(n, seq, since) for (n, seq, _), since in zip(named, sinces, strict=True)]):
            return [Stored(self.receiver.expected[n], False) for n in numbers], None
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
        return [Stored(seq + 1, True) for seq in seqs], self._learned(done, with_weights)

    def _learned(self, done: int, with_weights: bool) -> Learned:
        frame, version = None, None
        if with_weights and self.counters.updates != self.published:
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
            from rlrun.pipeline.transport import nbytes

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
        """train/ metrics of the present networks, see ``Learner.diagnose``; without shard: none."""
        self.counters.env_steps, self.reader.windows = env_steps, windows
        try:
            return self.learner.diagnose()
        except NoWindows:
            return {}

    @answered
    def abandon(self) -> Any:
        """Wait for calls of shards, whose results are of a run that is given up (on_nan)."""
        self.reader.clear()
        return None

    @answered
    def state(self) -> Any:
        """Everything that updates depend on, but for the replay."""
        rollouts = self.parts.rollouts
        return on_host(
            {
                "policy": self.policy.state_dict(),
                "learner": self.learner.state_dict(),
                "backends": backends(self.policy),
                "generators": generators_state(),
                "shards": self.reader.state_dict(),
                "rollouts": None if rollouts is None else rollouts.state_dict(),
                "running": [{"of": list(key), "value": x} for key, x in self.running.items()],
                "received": self.receiver.state_dict(),
            }
        )

    @fills
    def load(self, state: dict[str, Any] | None, counters: dict[str, int]) -> Any:
        """The inverse of ``state``; None: begin, with the weights of the run's beginning."""
        for name, value in counters.items():
            setattr(self.counters, name, value)
        if state is None:
            return None
        self.policy.load_state_dict(state["policy"])
        restore_backends(self.policy, state["backends"])
        self.learner.load_state_dict(state["learner"])
        load_generators(state["generators"])
        if self.parts.rollouts is not None:
            self.parts.rollouts.load_state_dict(state["rollouts"])
        self.running = {tuple(x["of"]): x["value"] for x in state["running"]}
        self.receiver.load_state_dict(state["received"])
        self.reader.clear()
        if "shards" in state:  # runs of earlier versions did not save it
            self.reader.load_state_dict(state["shards"])
        self.published = -1
        return None


def on_host(node: Any) -> Any:
    """A state tree with its tensors in host memory: the driver may have no GPU."""
    if isinstance(node, torch.Tensor):
        return node.detach().cpu()
    if isinstance(node, dict):
        return {name: on_host(child) for name, child in node.items()}
    if isinstance(node, list | tuple):
        children = [on_host(child) for child in node]
        return children if isinstance(node, list) else tuple(children)
    return node
