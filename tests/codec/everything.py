"""Named frames of every coder, kind and form.

``python -m tests.codec.everything`` writes those of a new format version to a file, once.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from rlrun import codec
from rlrun.codec.frame import VERSION
from tests.codec import samples


def frames(kinds: Collection[str] = samples.NAMES) -> Iterator[tuple[str, bytes, object, dict]]:
    """(name, frame, tree, bases to decode it with); of all kinds: trees and long arrays too."""
    for kind in (samples.KIND[name] for name in kinds):
        for coder in samples.CODERS:
            for form, (tree, bases) in short_arrays(kind).items():
                encode = codec.encode_chunk if form == "chunk" else codec.encode
                yield f"{kind.name}/{coder}/{form}", encode(tree, coder=coder, **bases), tree, bases
    if len(kinds) == len(samples.NAMES):
        yield from larger_frames()


def short_arrays(kind: samples.Kind) -> dict[str, tuple[np.ndarray, dict]]:
    """Form -> (array, its bases)."""
    second, base, now = samples.walk(kind, (7, 11), 4)
    trap = samples.array(kind, (7, 11), 5)
    return {
        "key": (trap, {}),
        "delta": (now, {"base": base, "second": second}),
        "chunk": (trap, {}),
        "one": (trap, {"base": base}),
    }


def larger_frames() -> Iterator[tuple[str, bytes, object, dict]]:
    """Trees, arrays that are sampled, planes of which most bytes are zero, narrowed words."""
    tree, base, second = (samples.mixed_tree(k) for k in (2, 1, 0))
    bases = {"base": base, "second": second}
    for coder in samples.CODERS:
        yield f"tree/{coder}/key", codec.encode(tree, coder=coder), tree, {}
        yield f"tree/{coder}/delta", codec.encode(tree, coder=coder, **bases), tree, bases
    long = [np.cumsum(x) for x in samples.walk(samples.KIND["float64"], (20000,), 8)]
    for name in ("float64", "float32"):
        second, base, now = (x.astype(name) for x in long)
        for coder in ("planes", "planes_ctx"):
            bases = {"base": base, "second": second}
            yield f"long/{name}/{coder}", codec.encode(now, coder=coder, **bases), now, bases
    rng = np.random.default_rng(9)
    for size in (4096, 5003, 20000):
        was = rng.integers(0, 1 << 16, size).astype(np.uint16)
        new = was + np.where(rng.random(size) < 0.2, rng.integers(1, 99, size), 0).astype(np.uint16)
        yield f"sparse/{size}", codec.encode(new, base=was, coder="planes"), new, {"base": was}
    narrow = long[0].astype(np.float32).astype(np.float64)
    yield "narrow", codec.encode(narrow), narrow, {}


def main() -> None:
    """Frames by name, hex, those below 1 KB."""
    file = Path(__file__).parent / f"golden_v{VERSION}.json"
    assert not file.exists(), f"{file.name} is pinned"
    chosen = {name: frame.hex() for name, frame, _, _ in frames() if len(frame) < 1024}
    file.write_text(json.dumps(chosen, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
