"""Records of metrics.jsonl and timings.jsonl."""

import json


def read_records(path):
    """Yield the records of a file, oldest first, without an incomplete last line."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return
