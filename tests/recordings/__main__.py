"""``python -m tests.recordings record [policies|runs]`` records the present code's numbers."""

import sys

from tests.recordings.store import FILES, record

if __name__ == "__main__":
    if sys.argv[1:2] != ["record"] or not {*sys.argv[2:]} <= {*FILES}:
        sys.exit("usage: python -m tests.recordings record [policies|runs]")
    record(sys.argv[2:])
