"""Named frames of every coder, kind and form, whose digest must not depend on numba."""

import hashlib
from collections.abc import Iterator

import numpy as np

from rlrun import codec
from tests.codec import samples


def frames() -> Iterator[tuple[str, bytes, object, dict]]:
    """(name, frame, tree, bases to decode it with)."""
    for kind in samples.KINDS:
        second, base, now = samples.walk(kind, (7, 11), 4)
        trap = samples.array(kind, (7, 11), 5)
        for coder in samples.CODERS:
            name = f"{kind.name}/{coder}"
            bases = {"base": base, "second": second}
            yield f"{name}/key", codec.encode(trap, coder=coder), trap, {}
            yield f"{name}/delta", codec.encode(now, coder=coder, **bases), now, bases
            yield f"{name}/chunk", codec.encode_chunk(trap, coder=coder), trap, {}
            one = {"base": base}
            yield f"{name}/one", codec.encode(trap, coder=coder, **one), trap, one
    for coder in samples.CODERS:
        tree, base, second = (samples.mixed_tree(k) for k in (2, 1, 0))
        bases = {"base": base, "second": second}
        yield f"tree/{coder}/key", codec.encode(tree, coder=coder), tree, {}
        yield f"tree/{coder}/delta", codec.encode(tree, coder=coder, **bases), tree, bases
    long = [np.cumsum(x) for x in samples.walk(samples.KIND["float64"], (20000,), 8)]
    for name in ("float64", "float32"):
        second, base, now = (x.astype(name) for x in long)
        for coder in ("planes", "planes_ctx"):
            bases = {"base": base, "second": second}
            yield f"long/{name}/{coder}", codec.encode(now, coder=coder, **bases), now, bases
    rng = np.random.default_rng(9)
    for size in (4096, 5003, 20000):  # planes of which most bytes are zero
        was = rng.integers(0, 1 << 16, size).astype(np.uint16)
        new = was + np.where(rng.random(size) < 0.2, rng.integers(1, 99, size), 0).astype(np.uint16)
        yield f"sparse/{size}", codec.encode(new, base=was, coder="planes"), new, {"base": was}
    narrow = long[0].astype(np.float32).astype(np.float64)
    yield "narrow", codec.encode(narrow), narrow, {}


def digest() -> str:
    """Return one hash of all frames after a round trip of each."""
    state = hashlib.sha256()
    for name, frame, tree, bases in frames():
        back = codec.decode(frame, **bases)
        if isinstance(tree, np.ndarray):
            assert samples.same(tree, back), name
        else:
            assert codec.encode(back, coder="raw") == codec.encode(tree, coder="raw"), name
        state.update(name.encode() + frame)
    return state.hexdigest()
