"""The shards, and the learner's rollouts, as the loop's buffer."""

from pathlib import Path
from typing import Any

import numpy as np

from rlrun.buffer.mixed import combined
from rlrun.errors import ResourceError
from rlrun.pipeline.ray.delivery import Delivery
from rlrun.pipeline.ray.roles import Roles
from rlrun.pipeline.ray.sent_rows import SentRows, all_rows, mapped, send
from rlrun.pipeline.ray.source import ChunkHandle
from rlrun.run.tensors import RowFiles, Rows

NO_KEYS = np.empty(0, np.int64)


class RemoteBuffer:
    """The shards as one buffer."""

    def __init__(self, roles: Roles, delivery: Delivery, *, rounds: bool, directory: Path) -> None:
        """``rounds``: chunks are stored here, in order; else they are stored when they come.
        ``directory``: of the rows in checkpoints."""
        self.roles, self.delivery, self.rounds = roles, delivery, rounds
        self.directory = directory
        self.files: dict[tuple[int, int], RowFiles] = {}  # (shard, ring) -> rows saved already
        self.saved: dict[int, int] = {}  # shard -> its incarnation, whose rows they are

    @property
    def steps(self) -> int:
        """Steps stored in all shards, since each began."""
        return sum(shard.steps for shard in self.roles.shards)

    def __len__(self) -> int:
        """Windows that can be sampled."""
        return sum(shard.windows for shard in self.roles.shards)

    def add(self, chunks: list[ChunkHandle]) -> np.ndarray:
        """Store the chunks of a round, one after the other; no key is returned."""
        if self.rounds:
            for chunk in chunks:
                self.delivery.send(chunk, _ignore, _end)
                self.delivery.drain()
        return NO_KEYS

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics of all shards."""
        parts = []
        for shard in self.roles.shards:
            found, windows, self.codec, _, lines = self.roles.ask(shard, "metrics", env_steps)
            self.roles.write_log(shard, lines)
            parts.append((found, windows))
        return combined(parts)

    def codec_metrics(self) -> dict[str, float]:
        """codec/ metrics of the shard asked last: compression is alike in all."""
        return dict(getattr(self, "codec", {}))

    def state_dict(self) -> dict[str, Any]:
        """The state of every shard; of their rows, those that no file has yet."""
        return {"shards": [self._state(i) for i in range(len(self.roles.shards))]}

    def _state(self, number: int) -> Any:
        shard, state = self.roles.shards[number], None
        while state is None:  # it was replaced between the calls
            incarnation, ranges = self.roles.ask(shard, "ranges")
            if self.saved.get(number, incarnation) != incarnation:  # files of rows that are lost
                self.files = {key: x for key, x in self.files.items() if key[0] != number}
            self.saved[number] = incarnation
            starts = []
            for ring, (first, stop) in enumerate(ranges):
                files = self.files.setdefault((number, ring), RowFiles())
                parts = files.usable(self.directory, first, stop)
                starts.append(parts[-1].stop if parts else first)
            state = self.roles.ask(shard, "state_dict", incarnation, starts)
        rings = iter(range(len(starts)))

        def with_files(rows: Rows) -> Rows:
            assert isinstance(rows, SentRows)
            files = self.files[number, next(rings)]
            return SentRows(rows.first, rows.stop, rows.start, rows.held, files)

        return mapped(state, with_files)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Send every shard its state, with all rows."""
        for number, (shard, own) in enumerate(zip(self.roles.shards, state["shards"], strict=True)):
            found = [rows.saved_files() for rows in all_rows(own)]
            self.files |= {(number, ring): files for ring, files in enumerate(found)}
            self.roles.ask(shard, "load_state_dict", send(own, lambda rows: rows.first))
            shard.update(self.roles.ask(shard, "info"))
            self.saved[number] = shard.incarnation


def _ignore(chunk: ChunkHandle, stored: bool) -> None:
    """A chunk of a round was stored, or its shard lost what it was stored with."""


def _end(chunk: ChunkHandle) -> None:
    """End a run in rounds, which does without no row: resumed, it is the uninterrupted one."""
    raise ResourceError(
        f"pipeline.strict = true: chunk {chunk.info.seq} of {chunk.collector.name} is lost, "
        "see rlrun.log; every chunk must be stored in its order; strict=false goes on without it"
    )


class RemoteRollouts:
    """On-policy: the learner takes the chunks."""

    def __init__(self) -> None:
        self.chunks: list[ChunkHandle] = []

    def add(self, chunks: list[ChunkHandle]) -> np.ndarray:
        """Keep the chunks for the learner's next step."""
        self.chunks += chunks
        return NO_KEYS

    def metrics(self, env_steps: int) -> dict[str, float]:
        return {}

    def codec_metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rows are part of the learner's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chunks.clear()
