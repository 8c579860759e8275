"""``planes_ctx``: each block of weights predicted along its own slope, residuals read in context.

Payload: narrowed kind u8 (0: none) · parts (see ``planes``) for the slopes of the blocks, for their
levels, for the usual bucket of each context, for the symbols, all bytes · the bits, lowest first,
spare ones 0. ``slopes`` says what these are.

The rows of a weight's gradient go together, so what an optimizer makes of them does: each row has
its own share of the step before that it repeats. What is left is as long as that step, the element
and the row let expect, which both sides know before they code it.
"""

import numpy as np

from rlrun.codec import planes, slopes
from rlrun.codec.cursor import Cursor, damaged
from rlrun.codec.fit import fit
from rlrun.codec.narrow import widened
from rlrun.codec.slopes import Fit
from rlrun.codec.words import CODED, Array, Kind


def encode(words: Array, kind: Kind, sizes: tuple[int, ...], base: Array, second: Array) -> bytes:
    """The payload of n > 0 words, tensors of ``sizes`` elements, after two bases."""
    code, (words, first, before) = planes.narrow_all(words, kind, base, second)
    assert first is not None
    assert before is not None
    form, bounds = slopes.form_of(CODED[code] if code else kind), slopes.bounds_of(sizes)
    found = fit(words, first, before, bounds, form)
    symbols, bits = slopes.pack(words, first, before, bounds, form, found)
    said = (found.slopes.view(np.uint8), found.levels.view(np.uint8), found.usual, symbols)
    return b"".join([bytes((code,)), *(planes.part(one) for one in said), bits.data])


def decode(
    data: memoryview, kind: Kind, sizes: tuple[int, ...], base: Array | None, second: Array | None
) -> Array:
    """The words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor, n = Cursor(data), sum(sizes)
    small, code = planes.read_kind(cursor, kind)
    base, second = (planes.narrow_again(x, kind, small) for x in (base, second))
    if base is None or second is None:
        raise damaged("planes_ctx without two bases")
    base, second = read_only(base), read_only(second)
    form, bounds = slopes.form_of(small), slopes.bounds_of(sizes)
    blocks = len(bounds) - 1
    slope, level = (planes.read_part(cursor, blocks).view(np.int8) for _ in range(2))
    said = Fit(slope, level, planes.read_part(cursor, form.contexts))
    symbols = planes.read_part(cursor, n)
    bits = cursor.take(len(data) - cursor.at)
    words = slopes.unpack(symbols, bits, base, second, bounds, form, said)
    if words is None:
        raise damaged("its bits are not as many as its symbols say")
    return widened(words, small, kind) if code else words


def read_only(words: Array) -> Array:
    """A view nobody writes to: as a stream's bases are, so that kernels compile for one type."""
    view = words.view()
    view.flags.writeable = False
    return view
