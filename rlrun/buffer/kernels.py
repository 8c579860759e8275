"""Compiled loops of the replay. Without numba the same code runs slower.

Arrays that belong together are passed as one tuple, which costs nothing in numba:

    ring    flags uint8 [cells], rewards float32 [cells], rows, columns; row r of column c is in
            cell c * rows + r % rows
    table   lines int64 [slots, 7], one per window with the numbers named in ``TABLE``,
            alive bool [slots]
    chunk   first bool [T+1, B], terminated, truncated, valid bool [T, B], reward float32 [T, B]
    tree    nodes float64 [2 leaves], leaves, whether it holds minima

Unsigned indices save a test for negative ones. Indices are not checked against the arrays' lengths:
see ``rlrun.jit``.
"""

from typing import Any

import numpy as np

from rlrun.jit import COMPILED, inner, jit

FIRST, TERMINATED, TRUNCATED, VALID = 1, 2, 4, 8  # flags of a row, in one byte
LEARNED = 32  # some window learns this row
FLAGS = FIRST | TERMINATED | TRUNCATED | VALID | LEARNED

LARGEST = float(np.finfo(np.float32).max)  # larger finite priorities are clipped to this
PREFETCHED = 8  # fewest positions for which prefetching pays

Arrays = tuple[Any, ...]

# -- rows ------------------------------------------------------------------------------------------


@jit
def write_flags(ring: Arrays, head: int, chunk: Arrays) -> int:
    """Write flags and rewards of T rows from row ``head`` on, clear the next row's flags.

    Returns the number of valid rows.
    """
    flags, rewards, capacity, columns = ring
    first, terminated, truncated, valid, reward = chunk
    count = 0
    for c in range(columns):
        slot = head % capacity
        for t in range(len(reward)):
            at = np.uint64(c * capacity + slot)
            flags[at] = np.uint8(
                FIRST * first[t, c]
                + TERMINATED * terminated[t, c]
                + TRUNCATED * truncated[t, c]
                + VALID * valid[t, c]
            )
            rewards[at] = reward[t, c]
            count += valid[t, c]
            slot = slot + 1 if slot + 1 < capacity else 0
        flags[np.uint64(c * capacity + slot)] = 0
    return count


@jit
def write_rows(store: np.ndarray, source: np.ndarray, start: int, capacity: int,
               columns: int) -> None:  # fmt: skip
    """Copy ``source`` [T * columns, words], time-major, to slots ``start``... of every column."""
    steps, width = len(source) // columns, source.shape[1]
    to, values, one = store.reshape(-1), source.reshape(-1), np.uint64(1)
    for c in range(columns):  # a column is contiguous
        slot = start
        for t in range(steps):
            if slot == capacity:
                slot = 0
            if width == 1:
                to[np.uint64(c * capacity + slot)] = values[np.uint64(t * columns + c)]
            elif width == 2:
                i, j = np.uint64(2 * (c * capacity + slot)), np.uint64(2 * (t * columns + c))
                to[i], to[i + one] = values[j], values[j + one]
            else:
                entry, row = store[c * capacity + slot], source[t * columns + c]
                for k in range(width):  # entry[:] = row would compile the text of an error: 2 s
                    entry[k] = row[k]
            slot += 1


# -- windows ---------------------------------------------------------------------------------------


@jit
def cut(
    first: np.ndarray, valid: np.ndarray, origin: np.ndarray, row: int, shape: Arrays
) -> np.ndarray:
    """Return the lines int64 [N, 7] of the windows that T rows from ``row`` on complete, in order.

    ``first``, ``valid``: bool [T, B]. ``origin``: int64 [B], the first row of each column's
    trajectory, updated in place. ``shape``: burn-in, learned, nstep and stride of a window, then 0
    for lossless tiling or how a plain trajectory's rest is cut: 1 last, 2 null_padding, 3 drop.
    """
    steps, columns = valid.shape
    burnin, learned, nstep, stride, plain = shape
    size = burnin + learned + nstep
    complete = size - 1 if plain else learned + nstep - 1  # the row that completes a first window
    ends = 0
    for t in range(steps):
        for c in range(columns):
            ends += not valid[t, c]
    out = np.empty((steps * columns + ends * (size // stride + 3), 7), np.int64)
    count = zero = 0 * columns  # with a literal 0 ``_emit`` is compiled three times
    for t in range(steps):
        for c in range(columns):
            if first[t, c]:
                origin[c] = row + t
            ended = not valid[t, c]
            index = row + t - origin[c]  # in its trajectory, from 0
            start = index - complete
            if start >= 0 and start % stride == 0 and not (plain > 0 and ended):
                count = _emit(out, count, start, index, origin[c], c, ended, shape)
            if ended and index > 0:
                start = 0 if start < 0 else (start // stride + 1) * stride
                if not plain:
                    while start == 0 or start - stride + learned < index:
                        count = _emit(out, count, start, index, origin[c], c, ended, shape)
                        start += stride
                elif index < size:
                    count = _emit(out, count, zero, index, origin[c], c, ended, shape)
                elif plain != 3 and (index - size) % stride:
                    rest = (index - size) // stride * stride + stride
                    start = index - size if plain == 1 else rest
                    count = _emit(out, count, start, index, origin[c], c, ended, shape)
    return out[:count]


@inner
@jit
def _emit(out: np.ndarray, count: int, start: int, index: int, origin: int, column: int,
          ended: bool, shape: Arrays) -> int:  # fmt: skip
    """Write the line of the window that begins with step ``start`` and return the new count."""
    burnin, learned, nstep, _, plain = shape
    learn = start + burnin if plain else start
    last = learn + learned + nstep - 1
    if ended:
        last = min(last, index)
    out[count, 0], out[count, 1] = column, origin + learn
    out[count, 2] = burnin if plain else min(burnin, start)
    out[count, 3], out[count, 4] = origin + last, ended and last == index
    out[count, 5], out[count, 6] = origin + index, origin
    return count + 1


@jit
def append_rows(ring: Arrays, alive: np.ndarray, head: int, chunk: Arrays, cutter: Arrays,
                tail: int, until: int) -> Arrays:  # fmt: skip
    """Append a chunk to windows of one row, like ``WindowTable.append`` but in one call.

    ``cutter``: ``origin`` and ``shape`` of ``cut``. The windows of rows tail..until-1 are dropped.
    Returns (slots of dropped windows, slots and keys int64 [2, N] of new ones by column, number of
    valid rows).
    """
    _, _, capacity, columns = ring
    steps = len(chunk[4])
    dead = expire_rows(alive, capacity, columns, tail, until)
    count = write_flags(ring, head, chunk)
    new = cut(chunk[0][:steps], chunk[3], cutter[0], head, cutter[1])
    at, out = np.zeros(columns + 1, np.int64), np.empty((2, len(new)), np.int64)
    for i in range(len(new)):
        at[new[i, 0] + 1] += 1
    for c in range(columns):
        at[c + 1] += at[c]
    for i in range(len(new)):
        column, learn = new[i, 0], new[i, 1]
        slot, j = column * capacity + learn % capacity, at[column]
        at[column] += 1
        out[0, j], out[1, j] = slot, learn * columns + column
        alive[np.uint64(slot)] = True
    return dead, out, count


@inner
@jit
def expire_rows(alive: np.ndarray, capacity: int, columns: int, start: int,
                stop: int) -> np.ndarray:  # fmt: skip
    """Drop the windows of one row in rows start..stop-1 and return their slots, by column."""
    out = np.empty((stop - start) * columns, np.int64)
    count = 0
    for c in range(columns):
        cell = c * capacity + start % capacity
        for _ in range(start, stop):
            if alive[cell]:
                alive[cell] = False
                out[count] = cell
                count += 1
            cell += 1
            if cell == (c + 1) * capacity:
                cell -= capacity
    return out[:count]


@jit
def expire_lines(table: Arrays, tail: int, head: int, oldest: int, size: int) -> np.ndarray:
    """Drop the windows among tail..head-1 that begin before row ``oldest`` and return their slots.

    A window is complete at most ``size`` rows after its first row, so later windows are young
    enough.
    """
    lines, alive = table
    out = np.empty(head - tail, np.int64)
    count = 0
    for key in range(tail, head):
        slot = key % len(lines)
        if alive[slot] and lines[slot, 1] - lines[slot, 2] < oldest:
            alive[slot] = False
            out[count] = slot
            count += 1
        if lines[slot, 5] > oldest + size:
            break
    return out[:count]


@jit
def live_slots(alive: np.ndarray, heads: np.ndarray, tails: np.ndarray, capacity: int,
               share: np.ndarray, out: np.ndarray, found: int) -> int:  # fmt: skip
    """Write the live slots at ``share`` of the candidates to ``out`` from ``found`` on.

    A candidate is a slot that may hold a window: as many in every part of the table as the one
    with most windows has, most of them live.

    Args:
        heads, tails: int64 [J], windows so far in each of J parts, and the oldest that may live.
        share: float64 [n] in [0, 1).

    Returns the number of slots found, those before included.
    """
    parts, rows = len(heads), 0 * capacity  # a literal 0 is another type
    for j in range(parts):
        rows = max(rows, heads[j] - tails[j])
    for i in range(len(share)):
        number = min(int(share[i] * (rows * parts)), rows * parts - 1)
        j = number % parts
        slot = j * capacity + (tails[j] + number // parts) % capacity
        if alive[slot]:
            out[found] = slot
            found += 1
    return found


@jit
def row_spans(ring: Arrays, slots: np.ndarray, heads: np.ndarray, nstep: int) -> np.ndarray:
    """Return the ``Spans.lines`` of windows of one row and the ``nstep`` rows after it.

    ``heads``: int64 [columns], rows so far.
    """
    flags, _, capacity, columns = ring
    out = np.empty((7, len(slots)), np.int64)
    for i in range(len(slots)):
        c = slots[i] // capacity
        at = slots[i] - c * capacity
        r = heads[c] - 1 - (heads[c] - 1 - at) % capacity
        out[0, i], out[1, i], out[6, i] = slots[i], c, r * columns + c
        out[2, i] = out[3, i] = r
        out[4, i] = out[5, i] = r + nstep
        for j in range(1, nstep + 1):
            at += 1
            if at == capacity:
                at = 0
            if not flags[np.uint64(c * capacity + at)] & VALID:
                out[4, i], out[5, i] = r + j - 1, r + j
                break
    return out


@jit
def line_spans(ring: Arrays, lines: np.ndarray, slots: np.ndarray,
               heads: np.ndarray) -> np.ndarray:  # fmt: skip
    """Return the ``Spans.lines`` of the windows in ``slots``.

    ``heads``: int64 [J], windows so far in each of J equal parts of the table, whose lines count
    the columns of one part of the ring.
    """
    _, _, capacity, columns = ring
    parts = len(heads)
    size = len(lines) // parts
    out = np.empty((7, len(slots)), np.int64)
    for b in range(len(slots)):
        line = np.uint64(slots[b])
        part = slots[b] // size
        column = part * (columns // parts) + lines[line, 0]
        learn, last = lines[line, 1], lines[line, 3]
        first = learn - lines[line, 2]
        out[0, b], out[1, b] = column * capacity + first % capacity, column
        out[2, b], out[3, b] = first, learn
        out[4, b], out[5, b] = last - lines[line, 4], last
        newest = heads[part] - 1
        out[6, b] = (newest - (newest - slots[b]) % size) * parts + part
    return out


# -- reading ---------------------------------------------------------------------------------------


@jit
def prefetch(store: np.ndarray, cell: np.ndarray, count: int) -> np.uint64:
    """Load ``count`` entries of ``store`` [cells, words] from each ``cell`` on into the cache.

    Independent loads overlap, so the copies that follow take half the time. Returns the sum of the
    words, which keeps the loads from being optimised away.
    """
    width, last = store.shape[1], len(store) - 1
    source = store.reshape(-1)
    line = max(64 // (width * store.itemsize), 1)  # whole entries per cache line
    total = np.uint64(0)
    for k in range(0, count - 1 + line, line):
        offset = min(k, count - 1)
        for b in range(len(cell)):
            total += np.uint64(source[np.uint64(min(cell[b] + offset, last) * width)])
    return total


@jit
def read_windows(ring: Arrays, spans: np.ndarray, burnin: int, cells: Arrays, out: Arrays) -> None:
    """Compute the cells of windows and decode their flags and rewards.

    ``spans``: ``Spans.lines`` [7, B]; position 0 is row learn - ``burnin``.
    ``cells``: int64 outputs: seen [S, B] of observations, step [S - 1, B] of all other fields,
    before [B] of the row before the window. Positions outside a window's rows get the nearest of
    them.
    ``out``: first bool [S, B]; terminated, truncated, valid bool, reward float32 [S - 1, B], with
    reward 0 outside the window's rows; opens bool [B], whether the window's first row opens an
    episode; prev_reward float32 [B].
    """
    flags, rewards, capacity, _ = ring
    seen, step, before = cells
    first, terminated, truncated, valid, reward, opens, prev_reward = out
    batch = spans.shape[1]
    cell, end = spans[0], (spans[1] + 1) * capacity
    if COMPILED and len(seen) > PREFETCHED:
        prefetch(flags.reshape(-1, 1), cell, len(seen))
        prefetch(rewards.view(np.uint32).reshape(-1, 1), cell, len(seen))
    shift, steps = spans[2] - spans[3] + burnin, spans[4] - spans[2]
    until, flag = np.empty(batch, np.int32), np.empty(batch, np.uint8)
    since = np.empty(batch, np.int32)
    for b in range(batch):
        before[b] = (end[b] if cell[b] == end[b] - capacity else cell[b]) - 1
        opens[b] = flags[np.uint64(cell[b])] & FIRST > 0
        since[b], until[b] = shift[b], shift[b] + steps[b]
    for b in range(batch):
        previous = rewards[np.uint64(before[b])]
        prev_reward[b] = np.float32(0) if opens[b] else previous
    for t in range(len(seen)):
        for b in range(batch):
            to = cell[b] + min(max(t - shift[b], 0), spans[5, b] - spans[2, b])
            seen[t, b] = to - capacity if to >= end[b] else to
            first[t, b] = opens[b] & (t == since[b])
    for t in range(len(step)):
        for b in range(batch):
            to = cell[b] + min(max(t - shift[b], 0), steps[b])
            step[t, b] = to - capacity if to >= end[b] else to
        for b in range(batch):  # bound by memory latency
            at = np.uint64(step[t, b])
            flag[b], reward[t, b] = flags[at], rewards[at]
        now = np.int32(t)
        for b in range(batch):  # vectorised by the compiler
            inside = (now >= since[b]) & (now <= until[b])
            valid[t, b] = inside
            terminated[t, b] = inside & (flag[b] & TERMINATED > 0)
            truncated[t, b] = (not inside) | (flag[b] & TRUNCATED > 0)
            reward[t, b] = reward[t, b] if inside else np.float32(0)


# -- priorities ------------------------------------------------------------------------------------


@jit
def store_priorities(
    priority: np.ndarray, eps: float, slots: np.ndarray, raw: np.ndarray, mass: np.ndarray
) -> float:
    """Write p = priority + eps to ``raw`` (float32, at ``slots``) and to ``mass``.

    Returns the largest p. If a priority is NaN, infinite or negative, writes nothing and returns
    -1.
    """
    for i in range(len(priority)):
        if not 0 <= priority[i] < np.inf:
            return -1.0
    largest = 0.0
    for i in range(len(priority)):
        p = np.float32(min(np.float64(priority[i]) + eps, LARGEST))
        raw[slots[i]] = p
        mass[i] = p
        largest = max(largest, mass[i])
    return largest


@jit
def set_leaves(tree: Arrays, index: np.ndarray, value: np.ndarray) -> None:
    """Write leaves (int64 [n], float64 [n]; the last duplicate wins) and their ancestors."""
    nodes, leaves = tree
    node = np.empty(len(index), np.int64)
    for j in range(len(index)):
        node[j] = leaves + index[j]
        nodes[node[j]] = value[j]
    _propagate(tree, node)


@jit
def replace_leaves(tree: Arrays, dead: np.ndarray, new: np.ndarray, value: float, raw: np.ndarray,
                   p: float) -> None:  # fmt: skip
    """Clear leaves ``dead``, set leaves ``new`` to ``value``; ``raw`` becomes NaN and ``p``.

    A leaf in both is new. If both are sorted, they are merged so that each parent is updated once.
    """
    nodes, leaves = tree
    for slot in dead:
        raw[np.uint64(slot)] = np.nan
        nodes[np.uint64(leaves + slot)] = 0.0
    for slot in new:
        raw[np.uint64(slot)], nodes[np.uint64(leaves + slot)] = p, value
    node = np.empty(len(dead) + len(new), np.int64)
    i, j, k, last, one = np.uint64(0), np.uint64(0), np.uint64(0), 0, np.uint64(1)
    while i < len(dead) or j < len(new):
        if j == len(new) or (i < len(dead) and dead[i] < new[j]):
            leaf = leaves + dead[i]
            i += one
        else:
            leaf = leaves + new[j]
            j += one
        if leaf >> 1 != last:  # one child of each parent suffices
            node[k], last = leaf, leaf >> 1
            k += one
    _propagate(tree, node[:k])


@inner
@jit
def _propagate(tree: Arrays, node: np.ndarray) -> None:
    """Recompute all ancestors of ``node`` (overwritten), each once.

    Going level by level lets memory accesses overlap.
    """
    nodes, leaves = tree
    count, one = np.uint64(len(node)), np.uint64(1)
    while leaves > 1:
        leaves >>= 1
        kept, last = np.uint64(0), np.uint64(0)
        for j in range(count):
            parent = np.uint64(node[j]) >> one
            if parent != last:
                nodes[parent] = nodes[parent + parent] + nodes[parent + parent + one]
                node[kept] = last = parent
                kept += one
        count = kept


@jit
def find_leaves(tree: Arrays, mass: np.ndarray) -> np.ndarray:
    """Return the leaves i with sum(leaves < i) <= mass < sum(leaves <= i), int64 [n].

    ``mass`` is overwritten with the leaves' values. If rounding carries it past the last positive
    leaf, that leaf is returned, so a leaf of priority 0 is never returned while the root is
    positive. The searches go level by level, so that cache misses overlap.
    """
    nodes, leaves = tree
    node, one, size = np.ones(len(mass), np.int64), np.uint64(1), leaves
    while size > 1:
        size >>= 1
        for j in range(len(mass)):
            left = np.uint64(node[j]) << one
            weight = nodes[left]
            # A product instead of a branch, which the CPU could not predict.
            right = np.int64(mass[j] >= weight) & np.int64(nodes[left + one] > 0.0)
            mass[j] -= weight * right
            node[j] = np.int64(left) + right
    for j in range(len(mass)):
        mass[j] = nodes[np.uint64(node[j])]
        node[j] -= leaves
    return node


@jit
def draw_leaves(tree: Arrays, uniform: np.ndarray) -> tuple[np.ndarray, float]:
    """Return ``find_leaves`` of (j + uniform[j]) root / n, and the smallest of the leaves' values.

    ``uniform`` is overwritten with the values.
    """
    each = tree[0][1] / len(uniform)
    for j in range(len(uniform)):
        uniform[j] = (uniform[j] + j) * each
    node = find_leaves(tree, uniform)
    least = uniform[0]
    for value in uniform:
        least = min(least, value)
    return node, least
