"""Peers whose replay is made of numpy arrays or of Python tuples; what all peers share."""

import random
from collections import namedtuple

import numpy as np

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
