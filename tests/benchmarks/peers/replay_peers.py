"""A peer's replay, filled and then timed on request. Runs in the peer's own environment.

usage: python replay_peers.py BACKEND KIND ROWS

BACKEND: cpprb, tianshou. KIND: vectors (rows of 4 float32),
images (84 x 84 uint8), sequences (45 rows of 4 float32, episodes of 200). Prints one JSON line of
facts once ROWS rows are stored with random priorities, then one line with the seconds a call took
for every line "OP BATCH CALLS" on its standard input; ends with the input. OP: sample, update
(sample, then new priorities for what was drawn) or add (256 rows).

Every peer returns what it returns (arrays, tensors, a list of dicts): nothing is converted.
Priorities lie ready in the type the peer likes best.
"""

import gc
import sys
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


def fresh(count: int) -> np.ndarray:
    """Random priorities."""
    return RNG.random(count) + 1e-3


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
            self.priorities[batch] = fresh(batch)
        self.prioritize(drawn, self.priorities[batch])


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
            self.buffer.update_priorities(index, fresh(len(index)))

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
            self.buffer.update_weight(index, fresh(len(index)))

    def sample(self, batch: int):
        return self.buffer.sample(batch)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_weight(drawn[1], priority)


class TianshouStacks(Tianshou):
    """stack_num = 45: the observations of the 45 rows that end in each drawn one."""

    envs, options = 250, {"stack_num": SEQUENCE, "ignore_obs_next": True}

    def prepare(self) -> None:
        """Nothing is added later."""


BACKENDS = {
    "cpprb": Cpprb, "tianshou": Tianshou,
}  # fmt: skip
OF_ROWS = {"tianshou": TianshouStacks}  # sequences cut from stored rows


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

    number = version(peer.package)
    serve({"version": number, "bytes_per_row": (resident() - before) / rows}, answer)


if __name__ == "__main__":
    quiet()
    main()
