"""``planes``: predict, zigzag, split into byte planes, zstd each.

Payload: form u8 (0 planes, 1 palette), then

* planes: narrowed kind u8 (0: none) · number of predictors varint (1, or one a run of tensors),
  each u8 · one part for each byte plane, lowest first
* palette, at most 32 distinct words: their number u8 · the words, ascending · one part for each
  bit of the index

A part is u8 0 and the one byte it repeats, u8 1 and its bytes, u8 2, a length and a zstd frame, or,
where many bytes are zero, u8 3, the number of others, a part for the bits that say where they are
and a part for them: entropy coding without a search for matches, which are short and cost the most.
Time chunks are series by series (each scalar's T steps side by side).
"""

import numpy as np

from rlrun.codec import kernels, sparse, zstd
from rlrun.codec.cursor import Cursor, damaged, varint
from rlrun.codec.kernels import NONE, SUB, SUB2
from rlrun.codec.narrow import narrowed, widened, worth_narrowing
from rlrun.codec.words import CODED, Array, Kind

PALETTE = 32  # distinct words at most
GLANCE, SAMPLE = 64, 1024  # words looked at before a whole array is searched for few values
LEAST_SAMPLED, MOST_SAMPLED = 1024, 8192  # words by which a predictor is chosen
STRIPS = 16  # runs of neighbours in a sample
RUN = 4096  # words: smaller tensors share a predictor with their neighbours; part of the format
NOISE = 7.8  # bits a byte: planes above it are stored, zstd would only cost time
SURE = 1 << 16  # bytes a plane needs for that judgement
MANY = 1 << 12  # bytes a plane needs to be split where
SPARSE = (1 / 2, 15 / 16)  # its share of zeros lies between these; beyond, matches are long

# 2^16 · c · log2(c) of counts c, integers: the choice is the same however it was counted
_LOGS = np.array([0, *np.arange(1, MOST_SAMPLED + 1)])
_LOGS = np.rint(65536 * _LOGS * np.log2(np.maximum(_LOGS, 1))).astype(np.int64)


def encode(
    words: Array,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> bytes:
    """The payload of n > 0 words; tensors of ``sizes`` elements, or a chunk of ``rows`` steps."""
    if base is None:
        few = palette(words)
        if few is not None:
            return b"".join(palette_parts(words, few, rows))
    code, (words, base, second) = narrow_all(words, kind, base, second)
    predictors, folded = predicted(words, sizes, rows, base, second)
    header = bytes((0, code)) + varint(len(predictors)) + bytes(predictors)
    return b"".join([header, *(part(plane) for plane in kernels.split(folded))])


def decode(
    data: memoryview,
    kind: Kind,
    sizes: tuple[int, ...],
    rows: int,
    base: Array | None,
    second: Array | None,
) -> Array:
    """The words [n] of the payload, n > 0. Raises: DamagedFrame."""
    cursor, n = Cursor(data), sum(sizes)
    form = cursor.byte()
    if form == 1 and base is None:
        return from_palette(cursor, kind, n, rows)
    if form != 0:
        raise damaged(f"planes have no form {form}")
    small, code = read_kind(cursor, kind)
    base, second = narrow_again(base, kind, small), narrow_again(second, kind, small)
    predictors = read_predictors(cursor, 1 if rows or base is None else len(runs(sizes)))
    planes = tuple(read_part(cursor, n) for _ in range(small.width))
    cursor.done()
    folded = np.empty(n, small.word)
    words = restored(folded, sizes, rows, predictors, base, second, planes)
    return widened(words, small, kind) if code else words


def predicted(
    words: Array, sizes: tuple[int, ...], rows: int, base: Array | None, second: Array | None
) -> tuple[list[int], Array]:
    """(predictors, residuals [n]) of tensors, or of a chunk of ``rows`` steps."""
    if not rows:
        return tensor_residuals(words, sizes, base, second)
    steps = words.reshape(rows, -1)
    chosen = chunk_predictor(steps)
    return [chosen], kernels.series(steps, chosen)


def narrow_all(
    words: Array, kind: Kind, base: Array | None, second: Array | None
) -> tuple[int, tuple[Array, Array | None, Array | None]]:
    """(code of the narrower kind that holds all three exactly, or 0; the three)."""
    small, thin = narrowed(words, kind, None)
    if small is None or thin is None:
        return 0, (words, base, second)
    others = []
    for other in (base, second):
        kept = None if other is None else narrowed(other, kind, small)[1]
        if other is not None and kept is None:
            return 0, (words, base, second)
        others.append(kept)
    return small.code, (thin, others[0], others[1])


def narrow_again(base: Array | None, kind: Kind, small: Kind) -> Array | None:
    """The base as the encoder narrowed it. Raises: DamagedFrame if it cannot have."""
    if base is None or small is kind:
        return base
    thin = narrowed(base, kind, small)[1]
    if thin is None:
        raise damaged(f"its base does not fit into {small.name}")
    return thin


def read_kind(cursor: Cursor, kind: Kind) -> tuple[Kind, int]:
    """(the kind the words were narrowed to, or theirs; its code, or 0). Raises: DamagedFrame."""
    code = cursor.byte()
    small = CODED.get(code) if code else kind
    if small is None or (code and not worth_narrowing(kind, small)):
        raise damaged(f"{kind.name} is not narrowed to kind {code}")
    return small, code


def read_predictors(cursor: Cursor, wanted: int) -> list[int]:
    """One predictor, or one for each run of tensors."""
    count = cursor.varint()
    if count not in (1, wanted):
        raise damaged(f"{count} predictors in place of {wanted}")
    return list(cursor.take(count))


def runs(sizes: tuple[int, ...]) -> list[int]:
    """Words that share a predictor: whole tensors, together at least ``RUN`` but for the last."""
    lengths, open_run = [], 0
    for size in sizes:
        open_run += size
        if open_run >= RUN:
            lengths.append(open_run)
            open_run = 0
    return [*lengths, open_run] if open_run else lengths


def tensor_residuals(
    words: Array, sizes: tuple[int, ...], base: Array | None, second: Array | None
) -> tuple[list[int], Array]:
    """(the predictor of each run of tensors, all residuals [n])."""
    if base is None:
        return [NONE], words
    other = base if second is None else second  # stands in where nothing reads it
    folded, predictors, start = np.empty_like(words), [], 0
    for size in runs(sizes):
        here = slice(start, start + size)
        chosen = tensor_predictor(words[here], base[here], None if second is None else other[here])
        kernels.residuals(words[here], base[here], other[here], chosen, folded[here])
        predictors.append(chosen)
        start += size
    return (predictors[:1] if len(set(predictors)) == 1 else predictors), folded


def restored(
    folded: Array,
    sizes: tuple[int, ...],
    rows: int,
    predictors: list[int],
    base: Array | None,
    second: Array | None,
    planes: tuple[Array, ...] = (),
) -> Array:
    """The words of all residuals [n], in their place; with ``planes`` these hold the residuals.

    Raises: DamagedFrame for missing bases.
    """
    highest = SUB2 if rows or second is not None else SUB if base is not None else NONE
    if max(predictors) > highest:
        raise damaged(f"predictor {max(predictors)} without its bases")
    if rows or base is None:
        if planes:
            kernels.join(planes, folded, folded, NONE, folded)
        return kernels.unseries(folded, rows, predictors[0]).reshape(-1) if rows else folded
    other = base if second is None else second
    start = 0
    lengths = [len(folded)] if len(predictors) == 1 else runs(sizes)
    for size, predictor in zip(lengths, predictors, strict=True):
        here = slice(start, start + size)
        if planes:
            some = tuple(plane[here] for plane in planes)
            kernels.join(some, base[here], other[here], predictor, folded[here])
        else:
            kernels.restore(folded[here], base[here], other[here], predictor)
        start += size
    return folded


def entropy(words: Array) -> int:
    """2^16 × bits of a sample's byte planes, each coded by its own frequencies."""
    found = kernels.counts(words)
    n = len(words)
    return int(words.itemsize * _LOGS[n] - _LOGS[found].sum())


def tensor_predictor(words: Array, base: Array, second: Array | None) -> int:
    """The predictor whose residuals have the least entropy on a sample."""
    at = strips(len(words))
    now, before = words[at], base[at]
    other = before if second is None else second[at]
    allowed = (NONE, SUB) if second is None else (NONE, SUB, SUB2)
    costs = [entropy(kernels.residuals(now, before, other, p)) for p in allowed]
    return allowed[costs.index(min(costs))]


def chunk_predictor(steps: Array) -> int:
    """The same for words [T, D], on some of the series."""
    rows, columns = steps.shape
    wanted = max(1, sample_size(steps.size) // rows)
    some = steps[:MOST_SAMPLED, :: max(1, columns // wanted)][:, :wanted]
    costs = [entropy(kernels.series(some, p)) for p in (NONE, SUB, SUB2)]
    return costs.index(min(costs))


def sample_size(n: int) -> int:
    """Words looked at: an eighth, within bounds."""
    return min(n, max(LEAST_SAMPLED, min(MOST_SAMPLED, n // 8)))


def strips(n: int) -> Array | slice:
    """Positions of a sample of n words: runs of neighbours, evenly spread."""
    size = sample_size(n)
    if size == n:
        return slice(0, n)
    run = size // STRIPS
    starts = np.arange(STRIPS) * ((n - run) // (STRIPS - 1))
    at: Array = (starts[:, None] + np.arange(run)).reshape(-1)
    return at


def part(plane: Array, *, whole: bool = False) -> bytes:
    """One plane, uint8 [m], m > 0; ``whole``: not split."""
    if plane[0] == plane[-1] and (plane == plane[0]).all():
        return bytes((0, plane[0]))
    if len(plane) >= SURE:
        sample = plane[strips(len(plane))]
        if entropy(sample) > NOISE * 65536 * len(sample):
            return b"\x01" + plane.tobytes()
    if not whole and len(plane) >= MANY:
        zeros = 1 - np.count_nonzero(plane) / len(plane)
        if SPARSE[0] <= zeros <= SPARSE[1]:
            bits, others = sparse.sparse(plane)
            head = b"\x03" + varint(len(others))
            return b"".join((head, part(bits, whole=True), part(others, whole=True)))
    coded = zstd.compress_plane(plane.data)
    if len(coded) >= len(plane):
        return b"\x01" + plane.tobytes()
    return b"\x02" + varint(len(coded)) + coded


def read_part(cursor: Cursor, size: int, *, whole: bool = False) -> Array:
    """The next plane: read-only uint8 [size], where it can a view of the payload."""
    form = cursor.byte()
    if form == 0:
        plane = np.full(size, cursor.byte(), np.uint8)
    elif form == 1:
        plane = np.frombuffer(cursor.take(size), np.uint8)
    elif form == 2:
        data = cursor.take(cursor.varint())
        plane = np.frombuffer(zstd.decompress(data, size), np.uint8)
    elif form == 3 and not whole:
        count = cursor.varint()
        if not 0 < count <= size:
            raise damaged(f"{count} bytes of {size} are not zero")
        bits = read_part(cursor, (size + 7) // 8, whole=True)
        others = read_part(cursor, count, whole=True)
        plane = np.empty(size, np.uint8)
        if sparse.dense(bits, others, plane) != count:
            raise damaged("its bits do not fit its bytes")
    else:
        raise damaged(f"parts have no form {form}")
    plane.flags.writeable = False  # one type for the kernel
    return plane


def palette(words: Array) -> Array | None:
    """The distinct words, ascending, or None where there are more than ``PALETTE``."""
    for look in (GLANCE, SAMPLE):  # most arrays are out at a glance
        values = np.unique(words[:: max(1, len(words) // look)])
        if len(values) > PALETTE:
            return None
    while len(values) <= PALETTE:
        found = values[indices(words, values)] == words
        if found.all():
            return values
        rest = np.unique(words[~found][: 2 * SAMPLE])
        values = np.union1d(values, rest)
    return None


def indices(words: Array, values: Array) -> Array:
    """uint8 [n]: where each word stands, or would stand, among the values."""
    if len(values) == 2:
        second: Array = words == values[1]
        return second.view(np.uint8)
    at: Array = np.searchsorted(values, words)
    return np.minimum(at, len(values) - 1).astype(np.uint8)


def palette_parts(words: Array, values: Array, rows: int) -> list[bytes]:
    """Form, values and the bits of the indices, series by series."""
    at = indices(words, values)
    if rows:
        at = np.ascontiguousarray(at.reshape(rows, -1).T).reshape(-1)
    parts = [bytes((1, len(values))), values.tobytes()]
    for k in range((len(values) - 1).bit_length()):
        parts.append(part(np.packbits(at >> k & 1, bitorder="little")))
    return parts


def from_palette(cursor: Cursor, kind: Kind, n: int, rows: int) -> Array:
    """The words of a palette payload whose form was read. Raises: DamagedFrame."""
    count = cursor.byte()
    if not 1 <= count <= PALETTE:
        raise damaged(f"a palette of {count} values")
    values = np.frombuffer(cursor.take(count * kind.width), kind.word)
    at = np.zeros(n, np.uint8)
    for k in range((count - 1).bit_length()):
        packed = read_part(cursor, (n + 7) // 8)
        at |= np.unpackbits(packed, count=n, bitorder="little") << np.uint8(k)
    cursor.done()
    if at.max() >= count:
        raise damaged("an index is outside its palette")
    words: Array = values[at]
    if rows:
        words = np.ascontiguousarray(words.reshape(-1, rows).T).reshape(-1)
    return words
