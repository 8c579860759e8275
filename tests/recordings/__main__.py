"""``python -m tests.recordings record`` records the present code's numbers."""

import sys

from tests.recordings.store import record

if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        sys.exit("usage: python -m tests.recordings record")
    record()
