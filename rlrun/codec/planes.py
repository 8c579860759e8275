"""``planes``: residuals in byte planes, each compressed by zstd.

Payload: form u8 (0 planes, 1 palette), then

* planes: narrowed kind u8 (0: none) · number of predictors varint (1, or one a run of tensors),
  each u8 · one part for each byte plane, lowest first
* palette, at most 32 distinct words: their number u8 · the words, ascending · one part for each
  bit of the index

A part is u8 0 and the one byte it repeats, u8 1 and its bytes, u8 2, a length and a zstd frame, or,
for planes with many zeros, u8 3, the number of nonzero bytes, a part for the bitmap of nonzero
bytes and a part for these: short matches, which cost the most time, are not searched for.
Time chunks are stored series by series (the T values of each scalar are adjacent).
"""

import numpy as np

from rlrun.codec import kernels, zstd
from rlrun.codec.kernels import NONE, SUB, SUB2
from rlrun.codec.words import (
    KIND_BY_CODE,
    Array,
    Cursor,
    Kind,
    can_narrow,
    damaged_frame,
    encode_varint,
    narrow,
    widen,
)

MAX_PALETTE = 32  # distinct words at most
# Words tested before the whole array.
FIRST_SAMPLE = 64
SECOND_SAMPLE = 1024
MIN_SAMPLE, MAX_SAMPLE = 1024, 8192  # words that choose a predictor
SAMPLE_RUNS = 16  # runs of neighbours in a sample
RUN_WORDS = 4096  # smaller tensors share a predictor; part of the format
NOISE_BITS = 7.8  # bits per byte: planes of higher entropy are stored uncompressed
NOISE_BYTES = 1 << 16  # smallest plane whose entropy is estimated
SPARSE_BYTES = 1 << 12  # smallest plane stored as a bitmap
SPARSE_ZEROS = (1 / 2, 15 / 16)  # fraction of zeros of such a plane; above it zstd has long matches

# 2^16 · c · log2(c) of counts c, as integers: the choice does not depend on rounding
_LOGS = np.array([0, *np.arange(1, MAX_SAMPLE + 1)])
_LOGS = np.rint(65536 * _LOGS * np.log2(np.maximum(_LOGS, 1))).astype(np.int64)


def encode(
    words: Array,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> bytes:
    """Return the payload of n > 0 words: tensors of ``sizes``, or a chunk of ``rows`` rows."""
    if base is None:
        values = find_palette(words)
        if values is not None:
            return b"".join(encode_palette(words, values, rows))
    code, (words, base, second) = narrow_with_bases(words, kind, base, second)
    predictors, residuals = encode_residuals(words, sizes, rows, base, second)
    header = bytes((0, code)) + encode_varint(len(predictors)) + bytes(predictors)
    return b"".join([header, *(encode_part(plane) for plane in kernels.split_planes(residuals))])


def decode(
    data: memoryview,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> Array:
    """Return the words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor, n = Cursor(data), sum(sizes)
    form = cursor.read_byte()
    if form == 1 and base is None:
        return decode_palette(cursor, kind, n, rows)
    if form != 0:
        raise damaged_frame(f"planes have an unknown form {form}")
    narrow_kind, code = read_kind(cursor, kind)
    base, second = narrow_base(base, kind, narrow_kind), narrow_base(second, kind, narrow_kind)
    predictors = read_predictors(cursor, 1 if rows or base is None else len(predictor_runs(sizes)))
    planes = tuple(decode_part(cursor, n) for _ in range(narrow_kind.width))
    cursor.require_end()
    residuals = np.empty(n, narrow_kind.word)
    words = restore_words(residuals, sizes, rows, predictors, base, second, planes)
    return widen(words, narrow_kind, kind) if code else words


def encode_residuals(
    words: Array, sizes: tuple[int, ...], rows: int, base: Array | None, second: Array | None
) -> tuple[list[int], Array]:
    """Return (predictors, residuals [n]) of tensors, or of a chunk of ``rows`` rows."""
    if not rows:
        return tensor_residuals(words, sizes, base, second)
    steps = words.reshape(rows, -1)
    predictor = chunk_predictor(steps)
    return [predictor], kernels.series_residuals(steps, predictor)


def narrow_with_bases(
    words: Array, kind: Kind, base: Array | None, second: Array | None
) -> tuple[int, tuple[Array, Array | None, Array | None]]:
    """Return (code of the narrower kind that represents all three exactly, or 0; the three)."""
    narrow_kind, narrowed = narrow(words, kind, None)
    if narrow_kind is None or narrowed is None:
        return 0, (words, base, second)
    others = []
    for other in (base, second):
        narrowed_base = None if other is None else narrow(other, kind, narrow_kind)[1]
        if other is not None and narrowed_base is None:
            return 0, (words, base, second)
        others.append(narrowed_base)
    return narrow_kind.code, (narrowed, others[0], others[1])


def narrow_base(base: Array | None, kind: Kind, narrow_kind: Kind) -> Array | None:
    """Return the base in the narrowed kind. Raises: DamagedFrame if that is not exact."""
    if base is None or narrow_kind is kind:
        return base
    narrowed = narrow(base, kind, narrow_kind)[1]
    if narrowed is None:
        raise damaged_frame(f"its base does not fit into {narrow_kind.name}")
    return narrowed


def read_kind(cursor: Cursor, kind: Kind) -> tuple[Kind, int]:
    """Return (narrowed kind, or ``kind``; its code, or 0). Raises: DamagedFrame."""
    code = cursor.read_byte()
    narrow_kind = KIND_BY_CODE.get(code) if code else kind
    if narrow_kind is None or (code and not can_narrow(kind, narrow_kind)):
        raise damaged_frame(f"{kind.name} cannot be narrowed to kind {code}")
    return narrow_kind, code


def read_predictors(cursor: Cursor, expected: int) -> list[int]:
    """Read one predictor, or one for each run of tensors."""
    count = cursor.read_varint()
    if count not in (1, expected):
        raise damaged_frame(f"{count} predictors instead of {expected}")
    return list(cursor.read_bytes(count))


def predictor_runs(sizes: tuple[int, ...]) -> list[int]:
    """Return the words per predictor: whole tensors, at least ``RUN_WORDS`` except the last."""
    lengths, open_run = [], 0
    for size in sizes:
        open_run += size
        if open_run >= RUN_WORDS:
            lengths.append(open_run)
            open_run = 0
    return [*lengths, open_run] if open_run else lengths


def tensor_residuals(
    words: Array, sizes: tuple[int, ...], base: Array | None, second: Array | None
) -> tuple[list[int], Array]:
    """Return (predictor of each run of tensors, all residuals [n])."""
    if base is None:
        return [NONE], words
    other = base if second is None else second  # a placeholder where it is not read
    residuals, predictors, start = np.empty_like(words), [], 0
    for size in predictor_runs(sizes):
        span = slice(start, start + size)
        predictor = tensor_predictor(
            words[span], base[span], None if second is None else other[span]
        )
        kernels.residuals(words[span], base[span], other[span], predictor, residuals[span])
        predictors.append(predictor)
        start += size
    return (predictors[:1] if len(set(predictors)) == 1 else predictors), residuals


def restore_words(
    residuals: Array,
    sizes: tuple[int, ...],
    rows: int,
    predictors: list[int],
    base: Array | None,
    second: Array | None,
    planes: tuple[Array, ...] = (),
) -> Array:
    """Replace all residuals [n] by their words; with ``planes``, the residuals are read from these.

    Raises: DamagedFrame for missing bases.
    """
    highest = SUB2 if rows or second is not None else SUB if base is not None else NONE
    if max(predictors) > highest:
        raise damaged_frame(f"predictor {max(predictors)} without its bases")
    if rows or base is None:
        if planes:
            kernels.join_planes(planes, residuals, residuals, NONE, residuals)
        return (
            kernels.restore_series(residuals, rows, predictors[0]).reshape(-1)
            if rows
            else residuals
        )
    other = base if second is None else second
    start = 0
    lengths = [len(residuals)] if len(predictors) == 1 else predictor_runs(sizes)
    for size, predictor in zip(lengths, predictors, strict=True):
        span = slice(start, start + size)
        if planes:
            some = tuple(plane[span] for plane in planes)
            kernels.join_planes(some, base[span], other[span], predictor, residuals[span])
        else:
            kernels.restore(residuals[span], base[span], other[span], predictor)
        start += size
    return residuals


def entropy(words: Array) -> int:
    """Return 2^16 × the empirical entropy in bits of the byte planes of a sample."""
    found = kernels.byte_counts(words)
    n = len(words)
    return int(words.itemsize * _LOGS[n] - _LOGS[found].sum())


def tensor_predictor(words: Array, base: Array, second: Array | None) -> int:
    """Return the predictor whose residuals have the least entropy on a sample."""
    at = sample_indices(len(words))
    sample, base_sample = words[at], base[at]
    other = base_sample if second is None else second[at]
    allowed = (NONE, SUB) if second is None else (NONE, SUB, SUB2)
    costs = [entropy(kernels.residuals(sample, base_sample, other, p)) for p in allowed]
    return allowed[costs.index(min(costs))]


def chunk_predictor(steps: Array) -> int:
    """Return the predictor with the least entropy on a sample of the series of words [T, D]."""
    rows, columns = steps.shape
    expected = max(1, sample_size(steps.size) // rows)
    some = steps[:MAX_SAMPLE, :: max(1, columns // expected)][:, :expected]
    costs = [entropy(kernels.series_residuals(some, p)) for p in (NONE, SUB, SUB2)]
    return costs.index(min(costs))


def sample_size(n: int) -> int:
    """Return the number of sampled words: an eighth, within bounds."""
    return min(n, max(MIN_SAMPLE, min(MAX_SAMPLE, n // 8)))


def sample_indices(n: int) -> Array | slice:
    """Return the indices of a sample of n words: evenly spaced runs of neighbours."""
    size = sample_size(n)
    if size == n:
        return slice(0, n)
    run = size // SAMPLE_RUNS
    starts = np.arange(SAMPLE_RUNS) * ((n - run) // (SAMPLE_RUNS - 1))
    at: Array = (starts[:, None] + np.arange(run)).reshape(-1)
    return at


def encode_part(plane: Array, *, no_bitmap: bool = False) -> bytes:
    """Encode one plane, uint8 [m], m > 0; ``no_bitmap``: not as a bitmap and nonzero bytes."""
    if plane[0] == plane[-1] and (plane == plane[0]).all():
        return bytes((0, plane[0]))
    if len(plane) >= NOISE_BYTES:
        sample = plane[sample_indices(len(plane))]
        if entropy(sample) > NOISE_BITS * 65536 * len(sample):
            return b"\x01" + plane.tobytes()
    if not no_bitmap and len(plane) >= SPARSE_BYTES:
        zeros = 1 - np.count_nonzero(plane) / len(plane)
        if SPARSE_ZEROS[0] <= zeros <= SPARSE_ZEROS[1]:
            bitmap, nonzero = kernels.split_nonzero(plane)
            head = b"\x03" + encode_varint(len(nonzero))
            return b"".join(
                (head, encode_part(bitmap, no_bitmap=True), encode_part(nonzero, no_bitmap=True))
            )
    coded = zstd.compress_plane(plane.data)
    if len(coded) >= len(plane):
        return b"\x01" + plane.tobytes()
    return b"\x02" + encode_varint(len(coded)) + coded


def decode_part(cursor: Cursor, size: int, *, no_bitmap: bool = False) -> Array:
    """Return the next plane: read-only uint8 [size], a view of the payload where possible."""
    form = cursor.read_byte()
    if form == 0:
        plane = np.full(size, cursor.read_byte(), np.uint8)
    elif form == 1:
        plane = np.frombuffer(cursor.read_bytes(size), np.uint8)
    elif form == 2:
        data = cursor.read_bytes(cursor.read_varint())
        plane = np.frombuffer(zstd.decompress(data, size), np.uint8)
    elif form == 3 and not no_bitmap:
        count = cursor.read_varint()
        if not 0 < count <= size:
            raise damaged_frame(f"{count} bytes of {size} are not zero")
        bitmap = decode_part(cursor, (size + 7) // 8, no_bitmap=True)
        nonzero = decode_part(cursor, count, no_bitmap=True)
        plane = np.empty(size, np.uint8)
        if kernels.join_nonzero(bitmap, nonzero, plane) != count:
            raise damaged_frame("its bitmap does not match its nonzero bytes")
    else:
        raise damaged_frame(f"a part has an unknown form {form}")
    plane.flags.writeable = False  # kernels are compiled for one array type
    return plane


def find_palette(words: Array) -> Array | None:
    """Return the distinct words, ascending, or None if there are more than ``MAX_PALETTE``."""
    for count in (FIRST_SAMPLE, SECOND_SAMPLE):  # rejects most arrays early
        values = np.unique(words[:: max(1, len(words) // count)])
        if len(values) > MAX_PALETTE:
            return None
    while len(values) <= MAX_PALETTE:
        found = values[indices(words, values)] == words
        if found.all():
            return values
        rest = np.unique(words[~found][: 2 * SECOND_SAMPLE])
        values = np.union1d(values, rest)
    return None


def indices(words: Array, values: Array) -> Array:
    """Return uint8 [n]: the index of every word, or of its insertion point, in ``values``."""
    if len(values) == 2:
        second: Array = words == values[1]
        return second.view(np.uint8)
    at: Array = np.searchsorted(values, words)
    return np.minimum(at, len(values) - 1).astype(np.uint8)


def encode_palette(words: Array, values: Array, rows: int) -> list[bytes]:
    """Return form, values and the bit planes of the indices, series by series."""
    at = indices(words, values)
    if rows:
        at = np.ascontiguousarray(at.reshape(rows, -1).T).reshape(-1)
    parts = [bytes((1, len(values))), values.tobytes()]
    for k in range((len(values) - 1).bit_length()):
        parts.append(encode_part(np.packbits(at >> k & 1, bitorder="little")))
    return parts


def decode_palette(cursor: Cursor, kind: Kind, n: int, rows: int) -> Array:
    """Return the words of a palette payload after its form. Raises: DamagedFrame."""
    count = cursor.read_byte()
    if not 1 <= count <= MAX_PALETTE:
        raise damaged_frame(f"a palette of {count} values")
    values = np.frombuffer(cursor.read_bytes(count * kind.width), kind.word)
    at = np.zeros(n, np.uint8)
    for k in range((count - 1).bit_length()):
        packed = decode_part(cursor, (n + 7) // 8)
        at |= np.unpackbits(packed, count=n, bitorder="little") << np.uint8(k)
    cursor.require_end()
    if at.max() >= count:
        raise damaged_frame("an index is outside its palette")
    words: Array = values[at]
    if rows:
        words = np.ascontiguousarray(words.reshape(-1, rows).T).reshape(-1)
    return words
