"""A peer's replay, filled and then timed on request. Runs in the peer's own environment.

usage: python replay_peer.py BACKEND KIND ROWS

BACKEND: cpprb, torchrl, tianshou, di-engine, list, namedtuple. KIND: vectors (rows of 4 float32),
images (84 x 84 uint8), sequences (45 rows of 4 float32, episodes of 200). Prints one JSON line of
facts once ROWS rows are stored with random priorities, then one line with the seconds a call took
for every line "OP BATCH CALLS" on its standard input; ends with the input. OP: sample, update
(sample, then new priorities for what was drawn) or add (256 rows).

Every peer returns what it returns (arrays, tensors, a list of dicts): nothing is converted.
Priorities lie ready in the type the peer likes best.
"""

import gc
import json
import sys
import time
from importlib.metadata import version

from replay_arrays import SEQUENCE, Cpprb, NamedTuples, Tianshou, TianshouStacks, Tuples
from replay_tensors import DiEngine, Torchrl, TorchrlSlices
from resident import resident

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
    before, start = resident(), time.perf_counter()
    peer = make(kind, rows)
    peer.blocks = blocks
    peer.fill()
    facts = {
        "version": version(peer.package) if peer.package else sys.version.split()[0],
        "bytes_per_row": (resident() - before) / rows,
        "fill_seconds": time.perf_counter() - start,
    }
    say(facts)
    for line in sys.stdin:
        op, batch, calls = line.split()
        function, size = getattr(peer, op), int(batch)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(int(calls)):
            function(size)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        say({"wall": wall / int(calls), "cpu": cpu / int(calls)})


def say(message: dict) -> None:
    print(json.dumps(message), file=OUT, flush=True)


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # peers print; the answers have stdout alone
    main()
