"""``pco``: the residuals of ``planes`` coded by pcodec, an optional package.

Payload: narrowed kind u8 (float32 under float64, or 0) · number of predictors varint, each u8 · one
standalone pcodec file of the residuals. Words of one byte are none of its business.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from rlrun.codec import planes
from rlrun.codec.cursor import Cursor, damaged, varint
from rlrun.codec.errors import MissingCoder
from rlrun.codec.narrow import widened, worth_narrowing
from rlrun.codec.words import CODED, Array, Kind
from rlrun.errors import extra

LEVEL = 8  # of 12: what the tables were measured with
INSTALL = f"pip install {extra('pco')}"


def installed() -> bool:
    """Return whether the package is there; it is not imported."""
    return find_spec("pcodec") is not None


@cache
def library() -> Any:
    """The package. Raises: MissingCoder where it is not installed."""
    try:
        import pcodec
    except ImportError as e:
        raise MissingCoder(
            f"codec.coder = pco: the package pcodec is missing; every other coder works without; "
            f"install it: {INSTALL}"
        ) from e
    return pcodec


def encode(
    words: Array,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> bytes:
    """The payload of n > 0 words of at least two bytes. Raises: MissingCoder."""
    pcodec = library()
    code = 0
    if kind.floating:
        code, (words, base, second) = planes.narrow_all(words, kind, base, second)
    predictors, folded = planes.predicted(words, sizes, rows, base, second)
    config = pcodec.ChunkConfig(
        compression_level=LEVEL,
        mode_spec=pcodec.ModeSpec.classic(),
        delta_spec=pcodec.DeltaSpec.no_op(),
    )
    header = bytes((code,)) + varint(len(predictors)) + bytes(predictors)
    coded: bytes = pcodec.standalone.simple_compress(folded, config)
    return header + coded


def decode(
    data: memoryview,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> Array:
    """The words [n] of the payload. Raises: DamagedFrame, MissingCoder."""
    pcodec, cursor, n = library(), Cursor(data), sum(sizes)
    code = cursor.byte()
    small = CODED.get(code) if code else kind
    if small is None or small.width < 2 or (code and not worth_narrowing(kind, small)):
        raise damaged(f"{kind.name} is not narrowed to kind {code}")
    base, second = planes.narrow_again(base, kind, small), planes.narrow_again(second, kind, small)
    wanted = 1 if rows or base is None else len(planes.runs(sizes))
    predictors = planes.read_predictors(cursor, wanted)
    folded = np.empty(n, small.word)
    rest = bytes(cursor.take(len(data) - cursor.at))
    try:
        done = pcodec.standalone.simple_decompress_into(rest, folded)
    except BaseException as e:
        # A panic of the library is no Exception; anything else that is none is not its doing.
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise damaged(f"a pcodec part cannot be read ({' '.join(str(e).split())})") from e
    if done.n_processed != n or not done.finished:
        raise damaged(f"a pcodec part does not hold {n} words")
    words = planes.restored(folded, sizes, rows, predictors, base, second)
    return widened(words, small, kind) if code else words
