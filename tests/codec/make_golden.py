"""``python -m tests.codec.make_golden``: write the frames of this format version to a file.

For a new version only: the file of a version is never written again.
"""

import json
from pathlib import Path

from rlrun.codec.frame import VERSION
from tests.codec.everything import frames

FILE = Path(__file__).parent / f"golden_v{VERSION}.json"


def main() -> None:
    """Frames by name, hex, those below 1 KB."""
    assert not FILE.exists(), f"{FILE.name} is pinned"
    chosen = {name: frame.hex() for name, frame, _, _ in frames() if len(frame) < 1024}
    FILE.write_text(json.dumps(chosen, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
