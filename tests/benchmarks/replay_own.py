"""Memory of rlrun's replay, measured in a process of its own.

usage: python -m tests.benchmarks.replay_own KIND ROWS MORE

Prints one JSON line: how many bytes of resident memory a row took (ROWS rows of KIND stored, random
priorities written), the bytes of all arrays a row, and how much resident memory grew for every
million rows that were added behind the first fill (MORE rows, in batches of 256; 0: not
measured). Set MALLOC_MMAP_THRESHOLD_ for it: glibc otherwise keeps what was freed.
"""

import gc
import json
import sys
from itertools import islice

from tests.benchmarks.peers.resident import resident
from tests.benchmarks.replay_ours import COLUMNS, PERIOD, STEPS, Filled, filled

MILLION = 1_000_000


def main(arguments: list[str]) -> int:
    kind, rows, more = arguments[0], int(arguments[1]), int(arguments[2])
    warm = filled(kind, 4096)  # imports and compilation are no part of the memory of a row
    warm.sample(64)
    del warm
    gc.collect()
    before = resident()
    full = filled(kind, rows)
    gc.collect()
    facts = {"bytes_per_row": (resident() - before) / rows, "nbytes": full.replay.nbytes / rows}
    if more:
        facts["growth_per_million"] = _growth(full, more) / more * MILLION
    print(json.dumps(facts))
    return 0


def _growth(full: Filled, more: int) -> int:
    """Bytes by which resident memory grew over at least ``more`` rows added."""
    batches = full.batches()
    for chunk in islice(batches, PERIOD):
        full.replay.add(chunk)
    before = resident()
    for chunk in islice(batches, -(-more // (STEPS * COLUMNS))):
        full.replay.add(chunk)
    return resident() - before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
