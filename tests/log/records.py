"""Records of metrics.jsonl and timings.jsonl, and a log that a block opens and closes."""

import json

from rlrun.log import Log


class OpenedLog(Log):
    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *error):
        self.close()


def read_records(path):
    """Yield the records of a file, oldest first, without an incomplete last line."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return
