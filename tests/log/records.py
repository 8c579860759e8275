"""Records of metrics.jsonl and timings.jsonl."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, oldest first, without an incomplete last line."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return
