"""How the dimensions of moves are arranged for a kernel on the CPU, and what is the same for all elements of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmdml.kernels import movement
from tvmdml.kernels.movement import CoordinateRule, Move, Transfer
from tvmdml.schedules.cpu._tiles import SIDE

_LONG = 256
"""Elements of a row that are worth to be read once, and written wherever they are repeated."""
_LINES = 16
"""The fewest columns that are taken at a time."""
_PIECE = 256
"""Bytes of a row that are worth a larger part of the cache: of less, memory delivers less in the same time."""
_KNOWN = 4
"""Strides up to this are constants in the code, since LLVM vectorises a known stride."""
_PIECES = (movement.INSIDE, movement.WHOLE, movement.EQUAL, movement.TURNED, *movement.BENT)
"""The rules that divide a row into pieces."""


def pieced_by(move: Move) -> CoordinateRule | None:
    """The rule that divides rows into pieces, if there is exactly one rule that depends on the coordinate along a row."""
    along = [rule for rule in move.rules if rule.follows(-1)]
    if len(along) != 1 or along[0].kind not in _PIECES or (along[0].look is not None and along[0].look.place.steps[-1]):
        return None
    most = 1 if along[0].kind in (movement.WHOLE, movement.EQUAL, movement.TURNED) else math.inf
    return along[0] if 1 <= along[0].at.steps[-1] <= most else None


def inner_step(move: Move) -> int:
    """The source's step along a row, inside of the source; -1 if elements of a row are looked up one by one."""
    rule = pieced_by(move)
    if rule is not None:
        own = 0 if rule.kind == movement.EQUAL else rule.step * rule.at.steps[-1]
        return move.read.steps[-1] + own if rule.kind != movement.WHOLE else -1
    return -1 if has_along(move) else move.read.steps[-1]


def in_long_runs(move: Move) -> bool:
    """Whether a row is moved as a whole, or but for its ends."""
    rule = pieced_by(move)
    return not has_along(move) or (rule is not None and rule.kind in (movement.INSIDE, *movement.BENT))


def has_along(move: Move) -> bool:
    """Whether rules depend on the coordinate along a row."""
    return any(rule.follows(-1) for rule in move.rules)


def tuples_of(moves: Sequence[Move]) -> str:
    """The type for indices that are contiguous along a row, in tuples of one for each rule along it; empty if they are not."""
    found = [rule for rule in moves[0].rules if rule.follows(-1)]
    looks = [rule.look for rule in found if rule.look is not None and rule.kind == movement.PICKED]
    if len(moves) != 1 or not looks or len(looks) != len(found):
        return ""
    first = looks[0]
    for i, look in enumerate(looks):
        same = (look.tensor, look.place.steps) == (first.tensor, first.place.steps)
        if not same or look.place.steps[-1] != len(looks) or look.place.base != first.place.base + i:
            return ""
    return "int32" if max(rule.size for rule in found) < 1 << 31 else "int64"


def looked_bytes(transfer: Transfer) -> int:
    """The bytes of indices for an element of a row."""
    looks = (rule.look for rule in transfer.moves[0].rules if rule.follows(-1))
    return sum(transfer.tensors[look.tensor].data_type.itemsize for look in looks if look is not None)


def offsets_in(move: Move) -> str:
    """The type that the offsets of what is looked up along a row fit into."""
    reach = sum(rule.size * abs(rule.step) for rule in move.rules if rule.follows(-1))
    return "int32" if reach < 1 << 31 else "int64"


def columns_of(move: Move, itemsize: int, cache: int) -> int:
    """How many columns of a matrix to look at together, if a move looks up elements of each, row by row; else 0."""
    (rule,) = move.rules if len(move.rules) == 1 else (None,)
    if rule is None or rule.kind != movement.PICKED or not tuples_of((move,)):
        return 0
    *outer, width = move.sizes
    rows_alike = move.read.steps == (*(0 for _ in outer), 1) and move.written.steps[-1] == 1
    return columns_in(cache, rule.size, width, itemsize) if rows_alike and 2 * math.prod(outer) >= rule.size else 0


def columns_in(cache: int, rows: int, width: int, itemsize: int) -> int:
    """How many columns of a matrix fit into a cache, if it is worthwhile to take only those at a time; else 0.

    Elements of a column are far apart: each needs a line of the cache, and with the usual sizes many lines exclude each other.
    """
    most = max(cache, min(4 * cache, _PIECE * rows)) // (rows * itemsize)
    columns = 1 << min(most, width).bit_length() - 1 if most else 0
    return columns if columns >= _LINES and width >= 2 * _LINES and rows * width * itemsize > 2 * cache else 0


def common(steps: Sequence[int]) -> int:
    """The step of all moves, if the code may depend on it; otherwise -1."""
    return steps[0] if 0 <= steps[0] <= _KNOWN and all(step == steps[0] for step in steps[1:]) else -1


def crossing(moves: Sequence[Move]) -> int | None:
    """A dimension in which the source of a single move is contiguous, if it is not in the last one."""
    if len(moves) != 1 or moves[0].written.steps[-1] != 1 or has_along(moves[0]) or moves[0].sizes[-1] < SIDE:
        return None
    (move,) = moves
    if move.read.steps[-1] in (0, 1) or any(one.place.steps[-1] not in (0, 1) for one in move.beside):
        return None
    free = (i for i in range(len(move.sizes) - 1) if not any(rule.follows(i) for rule in move.rules))
    return next((i for i in free if move.sizes[i] >= SIDE and move.read.steps[i] == 1), None)


def repeated_last(move: Move) -> Move:
    """The move with rows that are repeated one after the other, while they are in the cache, if they are long."""
    *outer, length = range(len(move.sizes))
    if move.rules or len(move.sizes) == 1 or move.sizes[length] < _LONG:
        return move
    return move.ordered([*sorted(outer, key=lambda i: move.read.steps[i] == 0), length])


def last_but_one(move: Move, dimension: int) -> Move:
    """The move with a dimension as the last but one."""
    last = len(move.sizes) - 1
    return move.ordered([*(i for i in range(last) if i != dimension), dimension, last])
