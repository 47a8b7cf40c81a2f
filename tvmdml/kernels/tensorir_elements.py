"""Words for work on each element of a tensor, on every target: items, coordinates, divisions. ``tensorir`` has all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tvmdml.kernels.open_shapes import OrderedStrides
from tvmdml.kernels.tensorir_base import (
    Variable,
    builder,
    const,
    hold,
    i64,
    index,
    is_on_device,
    let,
    loop,
    reciprocals,
    type_of,
    when,
)

Each = Callable[[Any], AbstractContextManager[Any]]
"""How a target runs independent items: ``with each(n) as i:`` declares that items 0 to n - 1 may run in any order, in parallel. The
number is a Python integer or an integer of the launch."""
_BLOCK = 4096
"""About how many elements are one item on the CPU: short rows are done together, and a long row is divided."""
_MANY = 1 << 16
"""So many elements are worth more than one task, however few items they are."""


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major ``index``; the first coordinate is not wrapped."""
    coordinates = []
    rest = let(index)
    dtype = type_of(index)
    for size in reversed(sizes[1:]):
        divisor = const(size, dtype) if isinstance(size, int) else builder().cast(size, dtype)
        above = hold(divided_out(rest, size))
        coordinates.append(let(rest - above * divisor))
        rest = above
    return [*reversed([*coordinates, rest])] if sizes else []


def unravel_word(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major index, as uint32: a tensor has at most 2^32 - 1 elements, and these divide fastest."""
    if type_of(index) == "int64" and all(isinstance(size, int) or hasattr(size, "value") for size in sizes):
        index = hold(index)  # with constant sizes TVM bounds it, by more than a uint32 holds, and then fails
    return unravel(builder().cast(index, "uint32"), sizes)


def divided_out(number: Any, size: Any) -> Any:
    """The quotient of an integer that is not negative; of one of 32 bits by the divisor's reciprocal, if the kernel has it."""
    found, cast = reciprocals.get().get(_handle(size)), builder().cast
    dtype = type_of(number)
    if found is None or dtype not in ("int32", "uint32"):
        if is_on_device() and dtype == "int32" and not isinstance(size, int):  # a sign takes a third of a division's instructions
            return cast(builder().truncdiv(cast(number, "uint32"), cast(size, "uint32")), dtype)
        return builder().truncdiv(number, const(size, dtype) if isinstance(size, int) else cast(size, dtype))
    reciprocal, shift = found
    twice = let(cast(number, "uint32") * const(2, "uint32"))
    product = cast(twice, "uint64") * cast(reciprocal, "uint64")
    return cast(cast(product >> const(32, "uint64"), "uint32") >> cast(shift, "uint32"), dtype)


def _handle(value: Any) -> int:
    return 0 if isinstance(value, int) else int(value.__chandle__())


def reciprocal_of(divisor: int) -> tuple[int, int]:
    """A word and a number of bits, by which numbers up to 2^30 are divided, with the quotient rounded down.

    The word is ``2^(31 + bits) / divisor``, rounded up; it is less than ``divisor`` parts of it too large, so that the product with
    twice a number has the right quotient in its bits from ``32 + bits`` on.
    """
    bits = (divisor - 1).bit_length()
    return -(-(1 << (31 + bits)) // divisor), bits


def divides_by(size: Any, reciprocal: Any, shift: Any) -> None:
    """Have ``divided_out`` divide by a size, an integer of the launch, by its reciprocal, in the kernel that is written now."""
    reciprocals.get()[_handle(size)] = reciprocal, shift


@contextmanager
def elements(each: Each, sizes: Sequence[Any], layout: Sequence[Any] = (), several: int = 1) -> Iterator[list[Any]]:
    """Run the statements for the coordinates of each element, in any order, in parallel.

    On a device, an item is an element, or ``several`` neighbours, whose number divides the size of the last dimension. On the CPU,
    it is some rows, or a part of one: coordinates are divided out once and then counted up, and the loop over a row can become
    vectors. With a ``layout`` whose order is known (Python integers, or ``OrderedStrides``), rows are along its least step:
    neighbouring threads of a device have neighbours.
    """
    if is_on_device():
        order = _order(sizes, layout)
        count = _product(sizes)
        with each(count if several == 1 else builder().truncdiv(index(count), const(several, type_of(index(count))))) as item:
            dtype = type_of(item)
            at = unravel_word(item if several == 1 else let(item * several), [sizes[i] for i in order])
            found = [let(builder().cast(at[order.index(i)], dtype)) for i in range(len(order))]
            if several == 1:
                yield found
                return
            last = order[-1]
            with loop(const(several, dtype)) as number:
                yield [let(one + number) if i == last else one for i, one in enumerate(found)]
        return
    if not sizes:  # one element
        with _rows(each, [1]):
            yield []
        return
    order = _order(sizes, layout)
    with _rows(each, [sizes[i] for i in order]) as at:
        yield [at[order.index(i)] for i in range(len(order))]


def _order(sizes: Sequence[Any], layout: Sequence[Any]) -> list[int]:
    """The dimensions, from the largest step to the least, if that is known."""
    if isinstance(layout, OrderedStrides):
        return [*layout.order]
    order = [*range(len(sizes))]
    if len(layout) == len(order) and all(isinstance(step, int) for step in layout):
        order.sort(key=lambda i: -layout[i] if sizes[i] != 1 else -(1 << 62))
    return order


@contextmanager
def _rows(each: Each, sizes: Sequence[Any]) -> Iterator[list[Any]]:
    """Each element, on the CPU."""
    t = builder()
    count = _product(sizes)
    known = isinstance(count, int)
    *outer, length = [index(size) for size in sizes]
    if known:
        many, inner = _product(sizes[:-1]), sizes[-1]
        at_once, parts = max(_BLOCK // max(inner, 1), 1), max(-(-inner // _BLOCK), 1)
        all_rows, rows, blocks = i64(many), i64(at_once), i64(parts)
        items = -(-many // at_once) * parts
        count = items if count < _MANY else i64(items)  # one that is not Python's is divided among tasks
    else:
        all_rows = let(_product(outer) * i64(1))
        rows = let(t.max(t.truncdiv(i64(_BLOCK), length), i64(1)))
        blocks = let(t.truncdiv(length + i64(_BLOCK - 1), i64(_BLOCK)))
        count = let(t.truncdiv(all_rows + (rows - 1), rows) * blocks)
    with each(count) as item:
        group, block = unravel(item, [None, blocks])
        begin, first = let(group * rows), let(block * i64(_BLOCK))
        row = [Variable("int64", at) for at in unravel(begin, outer)]
        with loop(let(t.min(all_rows - begin, rows))):
            at = [let(one.value) for one in row]
            with loop(let(t.min(length - first, i64(_BLOCK)))) as i:
                yield [*at, first + i]
            count_up(row, outer)


def count_up(coordinates: Sequence[Variable], sizes: Sequence[Any]) -> None:
    """The coordinates of the next row; the first coordinate is not wrapped."""
    if not coordinates:
        return
    last = coordinates[-1]
    last.set(last.value + 1)
    if len(coordinates) > 1:
        with when(last.value >= sizes[-1]):
            last.set(i64(0))
            count_up(coordinates[:-1], sizes[:-1])


def _product(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total
