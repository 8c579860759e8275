"""``planes``: residuals in byte planes, each compressed by zstd; ``pco``: the same by pcodec.

Payload: form u8 (0 planes, 1 palette; ``pco`` has none), then

* planes: narrowed kind u8 (0: none) · number of predictors varint (1, or one a run of tensors),
  each u8 · one part for each byte plane, lowest first, or one standalone pcodec file
* palette, at most 32 distinct words: their number u8 · the words, ascending · one part for each
  bit of the index

A part is u8 0 and the one byte it repeats, u8 1 and its bytes, u8 2, a length and a zstd frame, or,
for planes with many zeros, u8 3, the number of nonzero bytes, a part for the bitmap of nonzero
bytes and a part for these: short matches, which cost the most time, are not searched for.
Time chunks are stored series by series (the T values of each scalar are adjacent).

Residuals: NONE word; SUB zigzag(word − base); SUB2 zigzag(word − 2·base + second). Words are
unsigned of one width, and all arithmetic wraps. Compiled code adds, subtracts and multiplies
unsigned words only: LLVM assumes that signed arithmetic does not overflow, so its result would
depend on the CPU and on inlining.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from rlrun.codec import zstd
from rlrun.codec.frame import FieldSpec
from rlrun.codec.words import (
    KIND_BY_CODE,
    Array,
    Cursor,
    Kind,
    MissingCoder,
    damaged_frame,
    encode_varint,
    narrow,
    narrower_kinds,
    widen,
)
from rlrun.jit import jit

NONE, SUB, SUB2 = 0, 1, 2  # part of the format
BLOCK = 2048  # words whose residuals fit into the L1 cache

# -- words -----------------------------------------------------------------------------------------


@jit
def bit_length(word: np.uint64) -> np.uint64:
    """Return the number of significant bits of a word; the loop compiles to one instruction."""
    length = np.uint64(0)
    while word:
        word >>= np.uint64(1)
        length += np.uint64(1)
    return length


@jit
def sign_extend(word: np.uint64, spare: int) -> np.int64:
    """Return the low 64 − ``spare`` bits of ``word``, as two's complement."""
    return np.int64(word << np.uint64(spare)) >> np.int64(spare)


@jit
def zigzag_word(value: np.int64) -> np.uint64:
    """Map 0, −1, 1, −2, … to 0, 1, 2, 3, …"""
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


def zigzag(delta: Array) -> Array:
    """Map wrapped deltas 0, −1, 1, −2, … to 0, 1, 2, 3, …"""
    shift = delta.dtype.type(8 * delta.itemsize - 1)
    one = delta.dtype.type(1)
    result: Array = (delta << one) ^ (np.zeros_like(delta) - (delta >> shift))
    return result


def unzigzag(residual: Array) -> Array:
    """Invert ``zigzag``."""
    one = residual.dtype.type(1)
    result: Array = (residual >> one) ^ (np.zeros_like(residual) - (residual & one))
    return result


# -- residuals -------------------------------------------------------------------------------------


@jit
def fill_residuals(words: Array, base: Array, second: Array, predictor: int, out: Array) -> Array:
    """Fill and return ``out`` [n]; bases that the predictor does not use are not read."""
    uint = words.dtype.type
    top = uint(8 * words.itemsize - 1)
    if predictor == 0:
        out[:] = words
    elif predictor == 1:
        for i in range(len(words)):
            delta = uint(words[i] - base[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    else:
        for i in range(len(words)):
            delta = uint(words[i] - base[i] - base[i] + second[i])
            out[i] = uint(delta << uint(1)) ^ uint(uint(0) - uint(delta >> top))
    return out


@jit
def restore(residual: Array, base: Array, second: Array, predictor: int) -> None:
    """Turn residuals [n] into their words, in place."""
    uint = residual.dtype.type
    if predictor == 1:
        for i in range(len(residual)):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i])
    elif predictor == 2:
        for i in range(len(residual)):
            word = residual[i]
            delta = uint(word >> uint(1)) ^ uint(uint(0) - uint(word & uint(1)))
            residual[i] = uint(delta + base[i] + base[i] - second[i])


def series_residuals(words: Array, predictor: int) -> Array:
    """Return the residuals along time of words [T, D], series by series: [D·T].

    Row 0 is stored as it is; SUB2 uses SUB in row 1.
    """
    x = np.ascontiguousarray(words.T)
    if predictor == NONE:
        return x.reshape(-1)
    residual = x.copy()
    delta = x[:, 1:] - x[:, :-1]
    if predictor == SUB2 and delta.shape[1] > 1:
        delta[:, 1:] -= x[:, 1:-1] - x[:, :-2]
    residual[:, 1:] = zigzag(delta)
    return residual.reshape(-1)


def restore_series(residual: Array, rows: int, predictor: int) -> Array:
    """Invert ``series_residuals``: words [T · D]."""
    x = residual.reshape(-1, rows)
    if predictor != NONE:
        x = x.copy()
        x[:, 1:] = unzigzag(x[:, 1:])
        if predictor == SUB2 and rows > 2:
            np.cumsum(x[:, 1:], axis=1, dtype=x.dtype, out=x[:, 1:])
        np.cumsum(x, axis=1, dtype=x.dtype, out=x)
    return np.ascontiguousarray(x.T).reshape(-1)


# -- byte planes -----------------------------------------------------------------------------------


@jit
def split_planes(residual: Array) -> Array:
    """Return byte planes uint8 [width, n]: plane k is byte k of every word, lowest first.

    Splits block by block.
    """
    planes = np.empty((residual.itemsize, len(residual)), np.uint8)
    for start in range(0, len(residual), BLOCK):
        words = residual[start : start + BLOCK]
        for k in range(len(planes)):
            shift = residual.dtype.type(8 * k)
            row = planes[k, start : start + BLOCK]
            for i in range(len(words)):
                row[i] = np.uint8(words[i] >> shift)
    return planes


@jit
def join_planes(
    planes: tuple[Array, ...], base: Array, second: Array, predictor: int, words: Array
) -> None:
    """Fill ``words`` [n] from the read-only byte planes of their residuals, lowest first.

    Joins and restores block by block, while a block is in the L1 cache. Bases that the predictor
    does not use are not read.
    """
    uint = words.dtype.type
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK]
        block[:] = planes[0][start : start + BLOCK]
        for k in range(1, len(planes)):
            shift = uint(8 * k)
            row = planes[k][start : start + BLOCK]
            for i in range(len(block)):
                block[i] |= uint(uint(row[i]) << shift)
        if predictor != 0:
            before = second[start : start + BLOCK]
            restore(block, base[start : start + BLOCK], before, predictor)


@jit
def byte_counts(words: Array) -> Array:
    """Return the histogram of the bytes of every plane, int64 [width, 256]."""
    out = np.zeros((words.itemsize, 256), np.int64)
    for i in range(len(words)):
        word = np.uint64(words[i])
        for k in range(len(out)):
            out[k, word & np.uint64(255)] += 1
            word >>= np.uint64(8)
    return out


@jit
def split_nonzero(plane: Array, bitmap: Array, values: Array) -> int:
    """Fill both and return the number of nonzero bytes.

    ``bitmap`` uint8 [(m + 7) / 8], zeroed: nonzero bytes, lowest bit first. ``values`` uint8
    [m + 1]: these bytes; the last element is spare.
    """
    count, full = np.uint64(0), len(plane) // 8
    for i in range(full):
        word = np.uint8(0)
        for k in range(8):
            byte = plane[8 * i + k]
            nonzero = np.uint8(byte != 0)
            values[count] = byte
            count += np.uint64(nonzero)
            word |= np.uint8(nonzero << k)
        bitmap[i] = word
    for j in range(8 * full, len(plane)):
        if plane[j]:
            values[count] = plane[j]
            count += np.uint64(1)
            bitmap[full] |= np.uint8(1 << (j - 8 * full))
    return int(count)


@jit
def join_nonzero(bitmap: Array, values: Array, plane: Array) -> int:
    """Fill ``plane`` and return the number of set bits.

    Return −1, with ``plane`` undefined, if more bits are set than ``values`` has bytes, or bits
    beyond the end of ``plane``. No read or write is out of bounds, whatever the bitmap.
    """
    count, full = np.uint64(0), len(plane) // 64
    plane[:] = 0
    for i in range(full):
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(bitmap[8 * i + k]) << np.uint64(8 * k)
        block = plane[64 * i : 64 * i + 64]
        if count + np.uint64(64) > np.uint64(len(values)):
            count = scatter(word, values, count, block)
            continue
        while word:  # at least 64 values are left: no bounds checks
            lowest = word & (np.uint64(0) - word)
            block[bit_length(lowest) - np.uint64(1)] = values[count]
            count += np.uint64(1)
            word ^= lowest
    for i in range(8 * full, len(bitmap)):
        count = scatter(np.uint64(bitmap[i]), values, count, plane[8 * i :])
    return int(count) if count <= np.uint64(len(values)) else -1


@jit
def scatter(word: np.uint64, values: Array, count: np.uint64, block: Array) -> np.uint64:
    """Write the bytes of one bitmap word with bounds checks; return the new count.

    The count exceeds ``len(values)`` after a bit without a byte or beyond the end of ``block``.
    """
    for k in range(64):
        if word >> np.uint64(k) & np.uint64(1):
            if count >= np.uint64(len(values)) or k >= len(block):
                return np.uint64(len(values) + 1)
            block[k] = values[count]
            count += np.uint64(1)
    return count


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
PCO_LEVEL = 8  # of 12; the level of the published tables

# 2^16 · c · log2(c) of counts c, as integers: the choice does not depend on rounding
_LOGS = np.array([0, *np.arange(1, MAX_SAMPLE + 1)])
_LOGS = np.rint(65536 * _LOGS * np.log2(np.maximum(_LOGS, 1))).astype(np.int64)

Bases = tuple[Array | None, Array | None]  # words [n] of the base and of the one before it
Residuals = tuple[Array, tuple[Array, ...]]  # [n], and the byte planes that they are still in


def encode(spec: FieldSpec, words: Array, bases: Bases) -> bytes:
    """Return the payload of n > 0 words."""
    if bases[0] is None:
        values = find_palette(words)
        if values is not None:
            return b"".join(encode_palette(words, values, spec.rows))
    header, residuals = encode_residuals(spec, words, bases)
    return b"".join([b"\0", header, *map(encode_part, split_planes(residuals))])


def decode(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    """Return the words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor = Cursor(data)
    form = cursor.read_byte()
    if form == 1 and bases[0] is None:
        return decode_palette(cursor, spec)
    if form != 0:
        raise damaged_frame(f"planes have an unknown form {form}")

    def read_planes(kind: Kind) -> Residuals:
        planes = tuple(decode_part(cursor, spec.size) for _ in range(kind.width))
        cursor.require_end()
        return np.empty(spec.size, kind.word), planes

    return decode_residuals(cursor, spec, bases, read_planes)


# -- pcodec ----------------------------------------------------------------------------------------


def installed() -> bool:
    """Return whether pcodec is installed, without importing it."""
    return find_spec("pcodec") is not None


@cache
def import_pcodec() -> Any:
    """Import the package. Raises: MissingCoder if it is not installed."""
    try:
        import pcodec
    except ImportError as e:
        raise MissingCoder(
            "codec.coder = pco: the package pcodec is missing; the other coders need none; "
            "install it: pip install 'rlrun[pco]'"
        ) from e
    return pcodec


def encode_pco(spec: FieldSpec, words: Array, bases: Bases) -> bytes:
    """Return the payload of n > 0 words of at least two bytes. Raises: MissingCoder."""
    pcodec = import_pcodec()
    header, residuals = encode_residuals(spec, words, bases, narrowing=spec.kind.floating)
    config = pcodec.ChunkConfig(
        compression_level=PCO_LEVEL,
        mode_spec=pcodec.ModeSpec.classic(),
        delta_spec=pcodec.DeltaSpec.no_op(),
    )
    coded: bytes = pcodec.standalone.simple_compress(residuals, config)
    return header + coded


def decode_pco(spec: FieldSpec, data: memoryview, bases: Bases) -> Array:
    """Return the words [n] of the payload. Raises: DamagedFrame, MissingCoder."""
    pcodec, cursor = import_pcodec(), Cursor(data)

    def read_file(kind: Kind) -> Residuals:
        if kind.width < 2:
            raise damaged_frame(f"pcodec has no words of {kind.name}")
        residuals = np.empty(spec.size, kind.word)
        rest = bytes(cursor.read_bytes(len(data) - cursor.position))
        try:
            done = pcodec.standalone.simple_decompress_into(rest, residuals)
        except BaseException as e:
            # A Rust panic is a BaseException; others, as KeyboardInterrupt, are not pcodec's.
            if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
                raise
            raise damaged_frame(f"a pcodec part cannot be read ({' '.join(str(e).split())})") from e
        if done.n_processed != spec.size or not done.finished:
            raise damaged_frame(f"a pcodec part does not hold {spec.size} words")
        return residuals, ()

    return decode_residuals(cursor, spec, bases, read_file)


# -- residuals -------------------------------------------------------------------------------------


def encode_residuals(
    spec: FieldSpec, words: Array, bases: Bases, *, narrowing: bool = True
) -> tuple[bytes, Array]:
    """Return (narrowed kind and predictors as bytes, residuals [n])."""
    code = 0
    if narrowing:
        code, words, bases = narrow_with_bases(spec.kind, words, bases)
    if spec.rows:
        steps = words.reshape(spec.rows, -1)
        predictors = [chunk_predictor(steps)]
        residuals = series_residuals(steps, predictors[0])
    elif bases[0] is None:
        predictors, residuals = [NONE], words
    else:
        predictors, residuals = tensor_residuals(spec.sizes, words, bases[0], bases[1])
    return bytes((code,)) + encode_varint(len(predictors)) + bytes(predictors), residuals


def decode_residuals(
    cursor: Cursor, spec: FieldSpec, bases: Bases, read: Callable[[Kind], Residuals]
) -> Array:
    """Return the words [n], given what ``read`` returns of the rest. Raises: DamagedFrame."""
    kind, (base, second) = read_kind(cursor, spec.kind, bases)
    runs = [spec.size] if base is None else predictor_runs(spec.sizes)
    count = cursor.read_varint()
    if count not in (1, len(runs)):
        raise damaged_frame(f"{count} predictors instead of {len(runs)}")
    predictors = cursor.read_bytes(count)  # a wrong one restores other words: other hash
    words, planes = read(kind)
    if base is None:
        if planes:
            join_planes(planes, words, words, NONE, words)
        if spec.rows:
            words = restore_series(words, spec.rows, predictors[0])
        return widen(words, kind, spec.kind)
    second_base, start = base if second is None else second, 0
    for size, predictor in zip(runs if count > 1 else [spec.size], predictors, strict=True):
        span = slice(start, start + size)
        if planes:
            span_planes = tuple(plane[span] for plane in planes)
            join_planes(span_planes, base[span], second_base[span], predictor, words[span])
        else:
            restore(words[span], base[span], second_base[span], predictor)
        start += size
    return widen(words, kind, spec.kind)


def narrow_with_bases(kind: Kind, words: Array, bases: Bases) -> tuple[int, Array, Bases]:
    """Return (code of the narrower kind that represents all exactly, or 0; words; bases)."""
    narrower = narrow(words, kind, narrower_kinds(kind))
    narrow_bases = None if narrower is None else narrowed(bases, kind, narrower[0])
    if narrower is None or narrow_bases is None:
        return 0, words, bases
    return narrower[0].code, narrower[1], narrow_bases


def narrowed(bases: Bases, kind: Kind, target: Kind) -> Bases | None:
    """Return the bases in the kind ``target``, or None if it does not represent one exactly."""
    pairs = [None if base is None else narrow(base, kind, [target]) for base in bases]
    if any(pair is None and base is not None for pair, base in zip(pairs, bases, strict=True)):
        return None
    first, second = (None if pair is None else pair[1] for pair in pairs)
    return first, second


def read_kind(cursor: Cursor, kind: Kind, bases: Bases) -> tuple[Kind, Bases]:
    """Return (kind of the residuals, the bases in that kind). Raises: DamagedFrame."""
    code = cursor.read_byte()
    if code == 0:
        return kind, bases
    target = KIND_BY_CODE.get(code)
    if target not in narrower_kinds(kind):
        raise damaged_frame(f"{kind.name} cannot be narrowed to kind {code}")
    assert target is not None
    if (narrow_bases := narrowed(bases, kind, target)) is None:
        raise damaged_frame(f"its base does not fit into {target.name}")
    return target, narrow_bases


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
    sizes: tuple[int, ...], words: Array, base: Array, second: Array | None
) -> tuple[list[int], Array]:
    """Return (predictor of each run of tensors, all residuals [n])."""
    second_base = base if second is None else second  # a placeholder where it is not read
    residuals, predictors, start = np.empty_like(words), list[int](), 0
    for size in predictor_runs(sizes):
        span = slice(start, start + size)
        run = words[span], base[span], second_base[span]
        predictor = tensor_predictor(*run, SUB if second is None else SUB2)
        fill_residuals(*run, predictor, residuals[span])
        predictors.append(predictor)
        start += size
    return (predictors[:1] if len(set(predictors)) == 1 else predictors), residuals


# -- what is chosen by entropy ---------------------------------------------------------------------


def entropy(words: Array) -> int:
    """Return 2^16 × the empirical entropy in bits of the byte planes of a sample."""
    return int(words.itemsize * _LOGS[len(words)] - _LOGS[byte_counts(words)].sum())


def tensor_predictor(words: Array, base: Array, second: Array, highest: int) -> int:
    """Return the predictor up to ``highest`` with the least entropy on a sample."""
    at = sample_indices(len(words))
    sample = words[at], base[at], second[at]
    out = np.empty_like(sample[0])
    costs = [entropy(fill_residuals(*sample, p, out)) for p in range(highest + 1)]
    return costs.index(min(costs))


def chunk_predictor(steps: Array) -> int:
    """Return the predictor with the least entropy on a sample of the series of words [T, D]."""
    rows, columns = steps.shape
    expected = max(1, sample_size(steps.size) // rows)
    sample = steps[:MAX_SAMPLE, :: max(1, columns // expected)][:, :expected]
    costs = [entropy(series_residuals(sample, p)) for p in (NONE, SUB, SUB2)]
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


# -- parts -----------------------------------------------------------------------------------------


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
            bitmap = np.zeros((len(plane) + 7) // 8, np.uint8)
            values = np.empty(len(plane) + 1, np.uint8)
            count = split_nonzero(plane, bitmap, values)
            parts = (encode_part(part, no_bitmap=True) for part in (bitmap, values[:count]))
            return b"".join((b"\x03", encode_varint(count), *parts))
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
        if join_nonzero(bitmap, nonzero, plane) != count:
            raise damaged_frame("its bitmap does not match its nonzero bytes")
    else:
        raise damaged_frame(f"a part has an unknown form {form}")
    plane.flags.writeable = False  # kernels are compiled for one array type
    return plane


# -- palettes --------------------------------------------------------------------------------------


def find_palette(words: Array) -> Array | None:
    """Return the distinct words, ascending, or None if there are more than ``MAX_PALETTE``."""
    for count in (FIRST_SAMPLE, SECOND_SAMPLE):  # rejects most arrays early
        values = np.unique(words[:: max(1, len(words) // count)])
        if len(values) > MAX_PALETTE:
            return None
    while len(values) <= MAX_PALETTE:
        known = values[indices(words, values)] == words
        if known.all():
            return values
        rest = np.unique(words[~known][: 2 * SECOND_SAMPLE])
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


def decode_palette(cursor: Cursor, spec: FieldSpec) -> Array:
    """Return the words of a palette payload after its form. Raises: DamagedFrame."""
    count, n = cursor.read_byte(), spec.size
    if not 1 <= count <= MAX_PALETTE:
        raise damaged_frame(f"a palette of {count} values")
    values = np.frombuffer(cursor.read_bytes(count * spec.kind.width), spec.kind.word)
    at = np.zeros(n, np.uint8)
    for k in range((count - 1).bit_length()):
        packed = decode_part(cursor, (n + 7) // 8)
        at |= np.unpackbits(packed, count=n, bitorder="little") << np.uint8(k)
    cursor.require_end()
    if at.max() >= count:
        raise damaged_frame("an index is outside its palette")
    words: Array = values[at]
    if spec.rows:
        words = np.ascontiguousarray(words.reshape(-1, spec.rows).T).reshape(-1)
    return words
