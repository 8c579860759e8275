"""``planes_ctx``: linear prediction of every block of weights, residuals coded in context.

Payload: narrowed kind u8 (0: none) · parts (see ``planes``) for the coefficients and the offsets of
the blocks, for the expected bucket of each context, for the symbols, all bytes · the extra bits,
lowest first, spare ones 0. ``block_prediction`` defines them.

The gradients of a row of weights are correlated, and so are the optimiser's steps: every row
repeats its own fraction of the previous step. The length of the residual depends on that step, the
element and the row, all of which the decoder has before it decodes the residual.
"""

import numpy as np

from rlrun.codec import block_prediction, planes
from rlrun.codec.block_prediction import BlockParameters, fit_blocks
from rlrun.codec.words import KIND_BY_CODE, Array, Cursor, Kind, damaged_frame, widen


def encode(words: Array, kind: Kind, sizes: tuple[int, ...], base: Array, second: Array) -> bytes:
    """Return the payload of n > 0 words, tensors of ``sizes`` elements, given two bases."""
    code, (words, base_words, second_words) = planes.narrow_with_bases(words, kind, base, second)
    assert base_words is not None
    assert second_words is not None
    layout = block_prediction.word_layout(KIND_BY_CODE[code] if code else kind)
    bounds = block_prediction.block_bounds(sizes)
    parameters = fit_blocks(words, base_words, second_words, bounds, layout)
    symbols, bits = block_prediction.pack(
        words, base_words, second_words, bounds, layout, parameters
    )
    fields = (
        parameters.coefficients.view(np.uint8),
        parameters.offsets.view(np.uint8),
        parameters.expected_buckets,
        symbols,
    )
    return b"".join([bytes((code,)), *(planes.encode_part(one) for one in fields), bits.data])


def decode(
    data: memoryview, kind: Kind, sizes: tuple[int, ...], base: Array | None, second: Array | None
) -> Array:
    """Return the words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor, n = Cursor(data), sum(sizes)
    narrow_kind, code = planes.read_kind(cursor, kind)
    base, second = (planes.narrow_base(x, kind, narrow_kind) for x in (base, second))
    if base is None or second is None:
        raise damaged_frame("planes_ctx without two bases")
    base, second = read_only(base), read_only(second)
    layout, bounds = block_prediction.word_layout(narrow_kind), block_prediction.block_bounds(sizes)
    blocks = len(bounds) - 1
    coefficients, offsets = (planes.decode_part(cursor, blocks).view(np.int8) for _ in range(2))
    fields = BlockParameters(coefficients, offsets, planes.decode_part(cursor, layout.contexts))
    symbols = planes.decode_part(cursor, n)
    bits = cursor.read_bytes(len(data) - cursor.position)
    words = block_prediction.unpack(symbols, bits, base, second, bounds, layout, fields)
    if words is None:
        raise damaged_frame("its extra bits do not match its symbols")
    return widen(words, narrow_kind, kind) if code else words


def read_only(words: Array) -> Array:
    """Return a read-only view, as the bases of a stream are: kernels are compiled for one type."""
    view = words.view()
    view.flags.writeable = False
    return view
