"""Content of a frame in one canonical form: a table of the tree and flat words by field.

A snapshot (state dict) has one field a dtype, its tensors side by side, so that a net of many
small tensors is coded at once. A chunk (time-major rows) has one field a leaf.

Table, preorder: u8 0 leaf · kind u8 · ndim u8 · dims u64 each; u8 1 dict · count u32 · for each
entry its key (u8 0, length u16, UTF-8; or u8 1, i64) and its node; u8 2 tuple, u8 3 list · count
u32 · nodes.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from rlrun.codec.cursor import Cursor, damaged
from rlrun.codec.errors import LimitExceeded
from rlrun.codec.words import CODED, Array, Kind, as_array, from_words, kind_of, to_words
from rlrun.errors import CodecError

DEPTH = 64  # trees are not deeper
DIMS = 64  # numpy's own limit
NO_LIMIT = 1 << 128  # for what is in memory already
_LEAF, _DICT, _TUPLE, _LIST = 0, 1, 2, 3
_U16, _U32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the tree."""

    path: str
    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Path, kind and sizes of a field, known to both sides before its words."""

    path: str  # of the leaf, or of the first of several
    kind: Kind
    sizes: tuple[int, ...]  # elements of its tensors
    rows: int  # T of a time chunk [T, D]; 0: no time

    @property
    def size(self) -> int:
        """Words."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Content:
    """A tree in canonical form; the words are never written again."""

    table: bytes
    chunk: bool
    plans: tuple[FieldSpec, ...]
    words: tuple[Array, ...]
    hash: int  # xxh3 of the table and all words

    @property
    def nbytes(self) -> int:
        """Bytes of all words."""
        return sum(w.nbytes for w in self.words)


def content_of(tree: Any, *, chunk: bool) -> Content:
    """The content of a tree of arrays. Raises: CodecError, naming the leaf at fault."""
    table, leaves, arrays = bytearray(), list[Leaf](), list[Array]()
    _flatten(tree, "", table, leaves, arrays, DEPTH)
    plans, fields = plan(leaves, chunk=chunk), []
    for members in _members(leaves, chunk):
        parts = [to_words(arrays[i], leaves[i].kind) for i in members]
        fields.append(np.concatenate(parts) if len(parts) > 1 else parts[0].copy())
    done = bytes(table)
    return Content(done, chunk, plans, tuple(fields), content_hash(done, fields))


def content_hash(table: bytes, words: list[Array]) -> int:
    """xxh3 (64 bits) of the table and the words."""
    state = xxhash.xxh3_64(table)
    for field in words:
        state.update(field.data)
    return state.intdigest()


def plan(leaves: list[Leaf], *, chunk: bool) -> tuple[FieldSpec, ...]:
    """The fields of those leaves."""
    plans = []
    for members in _members(leaves, chunk):
        first = leaves[members[0]]
        rows = first.shape[0] if chunk and first.shape and first.size else 0
        plans.append(
            FieldSpec(first.path, first.kind, tuple(leaves[i].size for i in members), rows)
        )
    return tuple(plans)


def _members(leaves: list[Leaf], chunk: bool) -> list[list[int]]:
    """Which leaves make up each field."""
    if chunk:
        return [[i] for i in range(len(leaves))]
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        groups.setdefault(leaf.kind.code, []).append(i)
    return list(groups.values())


def tree_of(content: Content) -> Any:
    """The tree, of read-only views into the words."""
    _, leaves = parse(content.table, NO_LIMIT)
    arrays: dict[int, Array] = {}
    for members, words in zip(_members(leaves, content.chunk), content.words, strict=True):
        words.flags.writeable = False
        start = 0
        for i in members:
            leaf = leaves[i]
            arrays[i] = from_words(words[start : start + leaf.size], leaf.kind, leaf.shape)
            start += leaf.size
    order = iter(range(len(leaves)))
    return _read(Cursor(memoryview(content.table)), "", lambda leaf: arrays[next(order)], DEPTH)


def leaf_table(kind: Kind, shape: tuple[int, ...]) -> bytes:
    """The table of a tree that is one array."""
    return bytes((_LEAF, kind.code, len(shape))) + struct.pack(f"<{len(shape)}Q", *shape)


def parse(table: bytes, limit: int) -> tuple[Any, list[Leaf]]:
    """(the tree of leaf descriptions, all leaves in order), together at most ``limit`` bytes.

    Raises: DamagedFrame, LimitExceeded.
    """
    leaves = list[Leaf]()
    total = 0

    def keep(leaf: Leaf) -> Leaf:
        nonlocal total
        total += extent(leaf.shape, leaf.kind.width)[1]
        check_limit(max(total, extent(leaf.shape, leaf.kind.width)[0]), limit)
        leaves.append(leaf)
        return leaf

    cursor = Cursor(memoryview(table))
    tree = _read(cursor, "", keep, DEPTH)
    cursor.done()
    return tree, leaves


def extent(shape: tuple[int, ...], width: int) -> tuple[int, int]:
    """(bytes with empty dimensions counted as one, bytes): numpy refuses the first as well."""
    return math.prod(max(n, 1) for n in shape) * width, math.prod(shape) * width


def check_limit(size: int, limit: int) -> None:
    """Raises: LimitExceeded for more than ``limit`` bytes."""
    if size > limit:
        raise LimitExceeded(
            f"codec.frame: decodes to {size} bytes; at most {limit} here; raise max_bytes if the "
            "sender is trusted"
        )


def _flatten(
    tree: Any, path: str, table: bytearray, leaves: list[Leaf], arrays: list[Array], depth: int
) -> None:
    """Append the node and what is below it."""
    if depth == 0:
        raise CodecError(f"codec.{path}: deeper than {DEPTH} levels; flatten the tree")
    if isinstance(tree, Mapping):
        table += bytes((_DICT,)) + _U32.pack(len(tree))
        for key, value in tree.items():
            table += _key(key, path)
            _flatten(value, f"{path}.{key}" if path else str(key), table, leaves, arrays, depth - 1)
    elif isinstance(tree, tuple | list):
        table += bytes((_TUPLE if isinstance(tree, tuple) else _LIST,)) + _U32.pack(len(tree))
        for i, value in enumerate(tree):
            _flatten(value, f"{path}.{i}" if path else str(i), table, leaves, arrays, depth - 1)
    else:
        array = as_array(tree, path or "array")
        kind = kind_of(array, path or "array")
        table += leaf_table(kind, array.shape)
        leaves.append(Leaf(path, kind, array.shape))
        arrays.append(array)


def _key(key: Any, path: str) -> bytes:
    """A dict key. Raises: CodecError unless it is a string or a 64-bit integer."""
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        if len(text) < 1 << 16:
            return b"\x00" + _U16.pack(len(text)) + text
    elif type(key) is int and -(1 << 63) <= key < 1 << 63:
        return b"\x01" + _I64.pack(key)
    raise CodecError(
        f"codec.{path}: key {str(key)[:40]!r} ({type(key).__name__}) cannot be coded; strings "
        "below 64 KB and 64-bit integers"
    )


def _read(cursor: Cursor, path: str, leaf: Callable[[Leaf], Any], depth: int) -> Any:
    """The tree of the next node, with ``leaf(description)`` at its leaves."""
    if depth == 0:
        raise damaged(f"its tree is deeper than {DEPTH} levels")
    form = cursor.byte()
    if form == _LEAF:
        kind, ndim = CODED.get(cursor.byte()), cursor.byte()
        if kind is None or ndim > DIMS:
            raise damaged(f"array {path or '()'} has an unknown kind or {ndim} dimensions")
        return leaf(Leaf(path, kind, cursor.unpack(struct.Struct(f"<{ndim}Q"))))
    if form not in (_DICT, _TUPLE, _LIST):
        raise damaged(f"its table has no node {form}")
    (count,) = cursor.unpack(_U32)
    if count > len(cursor.data) - cursor.at:  # a node takes a byte at least
        raise damaged(f"its table has no room for {count} nodes")
    prefix = f"{path}." if path else ""
    if form == _DICT:
        tree: dict[str | int, Any] = {}
        for _ in range(count):
            key = _read_key(cursor)
            if key in tree:
                raise damaged(f"key {prefix}{key} appears twice")
            tree[key] = _read(cursor, f"{prefix}{key}", leaf, depth - 1)
        return tree
    nodes = [_read(cursor, f"{prefix}{i}", leaf, depth - 1) for i in range(count)]
    return tuple(nodes) if form == _TUPLE else nodes


def _read_key(cursor: Cursor) -> str | int:
    """A dict key."""
    form = cursor.byte()
    if form == 1:
        return cursor.unpack(_I64)[0]
    if form != 0:
        raise damaged(f"its table has no key {form}")
    text = bytes(cursor.take(cursor.unpack(_U16)[0]))
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise damaged("a key is not UTF-8") from e
