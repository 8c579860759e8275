"""``pco``: the residuals of ``planes`` coded by pcodec, an optional package.

Payload: narrowed kind u8 (float32 under float64, or 0) · number of predictors varint, each u8 · one
standalone pcodec file of the residuals. Words of one byte are not supported.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from rlrun.codec import planes
from rlrun.codec.words import (
    KIND_BY_CODE,
    Array,
    Cursor,
    Kind,
    MissingCoder,
    can_narrow,
    damaged_frame,
    encode_varint,
    widen,
)
from rlrun.errors import extra

LEVEL = 8  # of 12; the level of the published tables


def install() -> str:
    """Return the command that installs the package."""
    return f"pip install {extra('pco')}"


def installed() -> bool:
    """Return whether the package is installed, without importing it."""
    return find_spec("pcodec") is not None


@cache
def import_pcodec() -> Any:
    """Import the package. Raises: MissingCoder if it is not installed."""
    try:
        import pcodec
    except ImportError as e:
        raise MissingCoder(
            f"codec.coder = pco: the package pcodec is missing; the other coders need none; "
            f"install it: {install()}"
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
    """Return the payload of n > 0 words of at least two bytes. Raises: MissingCoder."""
    pcodec = import_pcodec()
    code = 0
    if kind.floating:
        code, (words, base, second) = planes.narrow_with_bases(words, kind, base, second)
    predictors, folded = planes.encode_residuals(words, sizes, rows, base, second)
    config = pcodec.ChunkConfig(
        compression_level=LEVEL,
        mode_spec=pcodec.ModeSpec.classic(),
        delta_spec=pcodec.DeltaSpec.no_op(),
    )
    header = bytes((code,)) + encode_varint(len(predictors)) + bytes(predictors)
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
    """Return the words [n] of the payload. Raises: DamagedFrame, MissingCoder."""
    pcodec, cursor, n = import_pcodec(), Cursor(data), sum(sizes)
    code = cursor.read_byte()
    narrow_kind = KIND_BY_CODE.get(code) if code else kind
    if narrow_kind is None or narrow_kind.width < 2 or (code and not can_narrow(kind, narrow_kind)):
        raise damaged_frame(f"{kind.name} is not narrowed to kind {code}")
    base, second = (
        planes.narrow_base(base, kind, narrow_kind),
        planes.narrow_base(second, kind, narrow_kind),
    )
    wanted = 1 if rows or base is None else len(planes.predictor_runs(sizes))
    predictors = planes.read_predictors(cursor, wanted)
    folded = np.empty(n, narrow_kind.word)
    rest = bytes(cursor.read_bytes(len(data) - cursor.position))
    try:
        done = pcodec.standalone.simple_decompress_into(rest, folded)
    except BaseException as e:
        # A Rust panic is a BaseException; others, as KeyboardInterrupt, are not pcodec's.
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise damaged_frame(f"a pcodec part cannot be read ({' '.join(str(e).split())})") from e
    if done.n_processed != n or not done.finished:
        raise damaged_frame(f"a pcodec part does not hold {n} words")
    words = planes.restore_words(folded, sizes, rows, predictors, base, second)
    return widen(words, narrow_kind, kind) if code else words
