"""Payloads of ``planes`` and ``planes_ctx`` read as they are documented, in Python integers."""

import numpy as np
import zstandard

from rlrun.codec.words import KIND_BY_CODE

MANTISSA = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}


class Payload:
    """Bytes, read from the front."""

    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self):
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def part(self, size):
        """The bytes of one plane."""
        (form,) = self.take(1)
        if form == 0:
            return self.take(1) * size
        if form == 1:
            return self.take(size)
        if form == 2:
            return zstandard.decompress(self.take(self.varint()))
        count = self.varint()
        bitmap, values = self.part((size + 7) // 8), iter(self.part(count))
        return bytes(next(values) if bitmap[i // 8] >> i % 8 & 1 else 0 for i in range(size))


def unzigzag(code):
    return code // 2 if code % 2 == 0 else -(code + 1) // 2


def zigzag(value):
    return 2 * value if value >= 0 else -2 * value - 1


def signed(value, width):
    value %= 1 << width
    return value - (1 << width) if value >> (width - 1) else value


def by_kind(payload, kind, arrays):
    """(kind of the residuals, words of the bases in that kind as lists)."""
    (code,) = payload.take(1)
    narrow = KIND_BY_CODE[code] if code else kind
    return narrow, [
        None if x is None else x.reshape(-1).astype(narrow.dtype).view(narrow.word).tolist()
        for x in arrays
    ]


def as_array(words, narrow, kind):
    array = np.array([w % (1 << narrow.bits) for w in words], narrow.word).view(narrow.dtype)
    return array.astype(kind.dtype)


def planes(data, kind, n, rows, base, second):
    """Words [n] of a payload of residuals in byte planes, all tensors with one predictor."""
    payload = Payload(data)
    (form,) = payload.take(1)
    if form == 1:
        return palette(payload, kind, n, rows)
    narrow, (base, second) = by_kind(payload, kind, (base, second))
    predictors = payload.take(payload.varint())
    (predictor,) = set(predictors)
    parts = [payload.part(n) for _ in range(narrow.width)]
    codes = [sum(part[i] << 8 * k for k, part in enumerate(parts)) for i in range(n)]
    words = []
    for i, code in enumerate(codes):
        t = i % rows if rows else 2
        if predictor == 0 or (rows and t == 0):
            words.append(code)
            continue
        before = words[-1] if rows else base[i]
        word = before + unzigzag(code)
        if predictor == 2 and t > 1:
            word += before - (words[-2] if rows else second[i])
        words.append(word)
    if rows:  # series by series
        words = [words[d * rows + t] for t in range(rows) for d in range(n // rows)]
    return as_array(words, narrow, kind)


def palette(payload, kind, n, rows):
    (count,) = payload.take(1)
    values = np.frombuffer(payload.take(count * kind.width), kind.word).tolist()
    at = [0] * n
    for k in range((count - 1).bit_length()):
        part = payload.part((n + 7) // 8)
        at = [x | (part[i // 8] >> i % 8 & 1) << k for i, x in enumerate(at)]
    if rows:
        at = [at[d * rows + t] for t in range(rows) for d in range(n // rows)]
    return as_array([values[i] for i in at], kind, kind)


def planes_ctx(data, kind, n, base, second):
    """Words [n] of one tensor."""
    payload = Payload(data)
    narrow, (base, second) = by_kind(payload, kind, (base, second))
    width, blocks = narrow.bits, -(-n // 512)
    fraction = 2 if width == 64 else 3
    coefficients = [signed(x, 8) for x in payload.part(blocks)]
    offsets = [signed(x, 8) for x in payload.part(blocks)]
    expected = payload.part(256 * (width + 1))
    symbols = payload.part(n)
    bits = int.from_bytes(payload.data[payload.at :], "little")
    words = []
    for i in range(n):
        step = signed(base[i] - second[i], width)
        exponent = base[i] >> MANTISSA[narrow.name] & 255 if narrow.name in MANTISSA else 0
        context = 256 * zigzag(step).bit_length() + exponent
        bucket = (symbols[i] + max(expected[context] + offsets[i // 512] - 16, 0)) % 256
        extra = max((bucket >> fraction) - 1, 0)
        residual = (bucket - (extra << fraction)) << extra | bits & ((1 << extra) - 1)
        bits >>= extra
        product = signed(coefficients[i // 512] * step + 32, 64)  # wraps
        words.append(base[i] + (product >> 6) + unzigzag(residual))
    assert bits == 0
    return as_array(words, narrow, kind)
