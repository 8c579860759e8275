"""A peer's replay, filled and then timed on request. Runs in the peer's own environment.

usage: python replay_peers.py BACKEND KIND ROWS

BACKEND: cpprb, torchrl, tianshou, di-engine, list, namedtuple. KIND: vectors (rows of 4 float32),
images (84 x 84 uint8), sequences (45 rows of 4 float32, episodes of 200). Prints one JSON line of
facts once ROWS rows are stored with random priorities, then one line with the seconds a call took
for every line "OP BATCH CALLS" on its standard input; ends with the input. OP: sample, update
(sample, then new priorities for what was drawn) or add (256 rows).

Every peer returns what it returns (arrays, tensors, a list of dicts): nothing is converted.
Priorities lie ready in the type the peer likes best.
"""

import gc
import random
import sys
from collections import namedtuple
from functools import partial
from importlib.metadata import version

import numpy as np
from common import quiet, resident, serve, timed

ALPHA, BETA = 0.6, 0.4
ADD = 256  # rows of a batched add
SEQUENCE, EPISODE = 45, 200
BLOCKS = 16  # prepared batches that the timed add takes in turn
SHAPES = {"vectors": ((4,), np.float32), "images": ((84, 84), np.uint8)}
SHAPES["sequences"] = SHAPES["vectors"]
RNG = np.random.default_rng(0)


def block(kind: str, *lead: int) -> dict:
    """Random rows [*lead, ...] as arrays; every EPISODE-th is done."""
    shape, dtype = SHAPES[kind]
    size = (*lead, *shape)
    if dtype is np.uint8:
        obs = [np.frombuffer(RNG.bytes(int(np.prod(size))), np.uint8).reshape(size) for _ in "ab"]
    else:
        obs = [RNG.standard_normal(size, dtype) for _ in "ab"]
    done = (np.arange(np.prod(lead)) % EPISODE == EPISODE - 1).reshape(lead)
    action, reward = RNG.integers(0, 2, lead), RNG.random(lead, np.float32)
    return {"obs": obs[0], "next_obs": obs[1], "action": action, "reward": reward, "done": done}


class Peer:
    """One filled replay; ``rows`` and ``items`` (sequences, or rows) it can hold."""

    package = ""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, rows
        self.priorities: dict = {}
        self.blocks: list = []
        self.turn = 0

    def native(self, data: dict):
        """Rows in the form the peer's add takes."""
        return data

    def prepare(self) -> None:
        """Make the batches of the timed add, before memory is measured."""
        self.blocks = [self.native(block(self.kind, ADD)) for _ in range(BLOCKS)]

    def fill(self) -> None:
        for _ in range(-(-self.rows // ADD)):
            self.put(self.native(block(self.kind, ADD)))

    def add(self, batch: int) -> None:
        self.turn = (self.turn + 1) % BLOCKS
        self.put(self.blocks[self.turn])

    def update(self, batch: int) -> None:
        drawn = self.sample(batch)
        if batch not in self.priorities:
            self.priorities[batch] = self.fresh(self.count(batch))
        self.prioritize(drawn, self.priorities[batch])

    def count(self, batch: int) -> int:
        """Priorities that go with ``batch`` items."""
        return batch

    def fresh(self, count: int):
        """Random priorities."""
        return RNG.random(count) + 1e-3


class Cpprb(Peer):
    """Sequences are stored whole, as items of 45 rows."""

    package = "cpprb"

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        import cpprb

        self.lead = (SEQUENCE,) if kind == "sequences" else ()
        self.items = rows // SEQUENCE if self.lead else rows
        shape, dtype = SHAPES[kind]
        fields = {"obs": {"shape": (*self.lead, *shape), "dtype": dtype}}
        if not self.lead:
            fields["next_obs"] = fields["obs"]
        for name, kind_of in (("action", np.int64), ("reward", np.float32), ("done", bool)):
            fields[name] = {"shape": self.lead or 1, "dtype": kind_of}
        self.buffer = cpprb.PrioritizedReplayBuffer(self.items, fields, alpha=ALPHA)

    def put(self, data: dict) -> None:
        self.buffer.add(**data)

    def fill(self) -> None:
        for _ in range(-(-self.items // ADD)):
            data = block(self.kind, ADD, *self.lead)
            if self.lead:
                del data["next_obs"]
            self.put(data)
        for start in range(0, self.items, 1024):
            index = np.arange(start, min(start + 1024, self.items))
            self.buffer.update_priorities(index, self.fresh(len(index)))

    def sample(self, batch: int):
        return self.buffer.sample(batch, beta=BETA)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_priorities(drawn["indexes"], priority)


class Tianshou(Peer):
    """A vector buffer of 256 environments: one add is one step of each."""

    package = "tianshou"
    envs, options = ADD, {}

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        self.batch = Batch
        self.buffer = PrioritizedVectorReplayBuffer(
            rows, self.envs, alpha=ALPHA, beta=BETA, **self.options
        )

    def native(self, data: dict):
        done, cut = data["done"], np.zeros_like(data["done"])
        return self.batch(
            obs=data["obs"], act=data["action"], rew=data["reward"], terminated=done,
            truncated=cut, done=done, obs_next=data["next_obs"], info=self.batch(),
        )  # fmt: skip

    def put(self, data) -> None:
        self.buffer.add(data)

    def fill(self) -> None:
        for step in range(self.buffer.maxsize // self.envs):
            data = block(self.kind, self.envs)
            data["done"][:] = step % EPISODE == EPISODE - 1
            self.put(self.native(data))
        for start in range(0, self.buffer.maxsize, 4096):
            index = np.arange(start, min(start + 4096, self.buffer.maxsize))
            self.buffer.update_weight(index, self.fresh(len(index)))

    def sample(self, batch: int):
        return self.buffer.sample(batch)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_weight(drawn[1], priority)


class TianshouStacks(Tianshou):
    """stack_num = 45: the observations of the 45 rows that end in each drawn one."""

    envs, options = 250, {"stack_num": SEQUENCE, "ignore_obs_next": True}

    def prepare(self) -> None:
        """Nothing is added later."""


class Tuples(Peer):
    """A Python list of (s, a, r, s', done), drawn by random.sample and stacked to arrays."""

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        self.stored: list = []

    def put(self, data: dict) -> None:
        columns = [data["obs"], data["action"].tolist(), data["reward"].tolist()]
        states = [x.copy() for x in data["obs"]]
        columns = [states, *columns[1:], [*states[1:], states[0]], data["done"].tolist()]
        self.stored += [self.make(row) for row in zip(*columns, strict=True)]

    def make(self, row: tuple):
        return row

    def sample(self, batch: int):
        drawn = random.sample(self.stored, batch)
        return tuple(np.array([row[i] for row in drawn]) for i in range(5))


Transition = namedtuple("Transition", ("state", "action", "reward", "next_state", "done"))


class NamedTuples(Tuples):
    """The same of namedtuples, as in PyTorch's DQN tutorial."""

    def make(self, row: tuple):
        return Transition(*row)

    def sample(self, batch: int):
        drawn = Transition(*zip(*random.sample(self.stored, batch), strict=True))
        return Transition(*(np.array(column) for column in drawn))


class Torchrl(Peer):
    package = "torchrl"

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer

        torch.set_num_threads(1)
        self.torch, self.dict = torch, TensorDict
        storage = LazyTensorStorage(rows)
        self.buffer = PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage)

    def native(self, data: dict):
        tensors = {k: self.torch.from_numpy(np.array(v)) for k, v in data.items()}
        return self.dict(tensors, [len(data["done"])])

    def put(self, data) -> None:
        self.buffer.extend(data)

    def fill(self) -> None:
        super().fill()
        for start in range(0, self.rows, 4096):
            index = self.torch.arange(start, min(start + 4096, self.rows))
            self.buffer.update_priority(index, self.fresh(len(index)))

    def fresh(self, count: int):
        return self.torch.rand(count) + 1e-3

    def sample(self, batch: int):
        return self.buffer.sample(batch, return_info=True)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_priority(drawn[1]["index"], priority)


class TorchrlSlices(Torchrl):
    """PrioritizedSliceSampler over rows: a priority for every row, slices of 45."""

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSliceSampler

        sampler = PrioritizedSliceSampler(
            rows, ALPHA, BETA, slice_len=SEQUENCE, traj_key="trajectory", cache_values=True
        )
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(rows), sampler=sampler, batch_size=64 * SEQUENCE
        )

    def prepare(self) -> None:
        """Nothing is added later."""

    def fill(self) -> None:
        data = block(self.kind, self.rows)
        done = data["done"][:, None]
        flags = {"done": done, "terminated": done, "truncated": np.zeros_like(done)}
        after = {"obs": data["next_obs"], "reward": data["reward"][:, None], **flags}
        now = {"obs": data["obs"], "action": data["action"]}
        now["trajectory"] = np.arange(self.rows) // EPISODE
        tensors = {k: self.torch.from_numpy(v) for k, v in now.items()}
        nested = {k: self.torch.from_numpy(v) for k, v in after.items()}
        tensors["next"] = self.dict(nested, [self.rows])
        self.buffer.extend(self.dict(tensors, [self.rows]))
        index = self.torch.arange(self.rows)
        self.buffer.update_priority(index, self.fresh(self.rows))

    def count(self, batch: int) -> int:
        return batch * SEQUENCE

    def sample(self, batch: int):
        return self.buffer.sample(batch * SEQUENCE)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_priority(drawn["index"], priority)


class DiEngine(Peer):
    """AdvancedReplayBuffer: a list of dicts of tensors; sequences are dicts of lists."""

    package = "di-engine"

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        import torch
        from ding.utils.data import timestep_collate
        from ding.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer

        torch.set_num_threads(1)
        self.torch, self.collate = torch, timestep_collate
        self.items = rows // SEQUENCE if kind == "sequences" else rows
        config = AdvancedReplayBuffer.default_config()
        config.replay_buffer_size, config.alpha, config.beta = self.items, ALPHA, BETA
        self.buffer = AdvancedReplayBuffer(config, tb_logger=None, exp_name="replay")

    def native(self, data: dict) -> list:
        columns = {k: self.torch.from_numpy(np.array(v)) for k, v in data.items()}
        columns = {k: [x.clone() for x in v.unbind(0)] for k, v in columns.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def put(self, data: list) -> None:
        self.buffer.push([dict(x) for x in data], 0)  # the buffer writes into its items

    def fill(self) -> None:
        for _ in range(-(-self.items // ADD)):
            if self.kind == "sequences":
                data = [self.sequence() for _ in range(ADD)]
            else:
                data = self.native(block(self.kind, ADD))
            for item, priority in zip(data, self.fresh(ADD), strict=True):
                item["priority"] = priority
            self.put(data)

    def sequence(self) -> dict:
        """45 rows as DI-engine's collector hands a sequence on."""
        rows = self.native(block(self.kind, SEQUENCE))
        out = {name: [row[name] for row in rows] for name in ("obs", "action", "reward")}
        state = {"h": self.torch.zeros(1, 1, 1), "c": self.torch.zeros(1, 1, 1)}
        return out | {"done": [False] * SEQUENCE, "prev_state": [state] * SEQUENCE}

    def prepare(self) -> None:
        if self.kind != "sequences":
            super().prepare()

    def fresh(self, count: int) -> list:
        return super().fresh(count).tolist()

    def sample(self, batch: int):
        drawn = self.buffer.sample(batch, 0)
        if self.kind == "sequences":
            self.collate(drawn)
        return drawn

    def prioritize(self, drawn, priority) -> None:
        ids = [x["replay_unique_id"] for x in drawn]
        index = [x["replay_buffer_idx"] for x in drawn]
        new = {"replay_unique_id": ids, "replay_buffer_idx": index, "priority": priority}
        self.buffer.update(new)


BACKENDS = {
    "cpprb": Cpprb, "torchrl": Torchrl, "tianshou": Tianshou, "di-engine": DiEngine,
    "list": Tuples, "namedtuple": NamedTuples,
}  # fmt: skip
OF_ROWS = {"torchrl": TorchrlSlices, "tianshou": TianshouStacks}  # sequences cut from stored rows


def main() -> None:
    backend, kind, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    make = OF_ROWS.get(backend, BACKENDS[backend]) if kind == "sequences" else BACKENDS[backend]
    warm = make(kind, 512 * (SEQUENCE if kind == "sequences" else 1))
    warm.fill()  # imports and compilation are no part of the memory of a row,
    warm.sample(64)
    warm.prepare()  # nor are the batches of the timed add
    blocks = warm.blocks
    del warm
    gc.collect()
    before = resident()
    peer = make(kind, rows)
    peer.blocks = blocks
    peer.fill()

    def answer(line: str) -> dict:
        op, batch, calls = line.split()
        return timed(partial(getattr(peer, op), int(batch)), int(calls))

    number = version(peer.package) if peer.package else sys.version.split()[0]
    serve({"version": number, "bytes_per_row": (resident() - before) / rows}, answer)


if __name__ == "__main__":
    quiet()
    main()
