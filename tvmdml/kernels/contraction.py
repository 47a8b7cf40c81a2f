"""``Contraction``: what a kernel of the matrix family does, as a value: which products are summed to which element of the result.

Its coordinates are those of the batch, of the rows and columns of each result, and the inner ones, over which products are summed.
Each group may have several dimensions, as those of a convolution have. Where a factor is follows from the coordinates: a base and a
step for each, and rules for coordinates that may be outside. What is outside contributes nothing.

A sum of floats has an order, which is a part of the family, so that results do not depend on tiles or threads: within a block of
``KC`` products, in ascending order of the inner coordinates (row-major), each product is added by ``multiply_add``, the first one
to 0; the sums of the blocks are added in ascending order. Factors that are rounded to bfloat16 have an order of their own
(``operators/_matrix_bfloat16_fused.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.layout import collapse
from tvmdml.kernels.movement import INSIDE, WHOLE, CoordinateRule, Linear, SliceSteps, both, coordinate, value

KC = 256
"""The products of a block."""
CHAIN = 16
"""Those of a half of a block, of factors that are rounded to bfloat16."""


class Operand(NamedTuple):
    """A tensor, and where the element for some coordinates is."""

    name: str
    """The operator's field."""
    place: Linear
    rules: tuple[CoordinateRule, ...] = ()
    """Dimensions that may be outside: rules of the kinds ``INSIDE`` and ``WHOLE``."""

    def linears(self) -> tuple[Linear, ...]:
        """Everything linear in it."""
        return (self.place, *(rule.at for rule in self.rules))

    def with_linears(self, each: Iterator[Linear]) -> Operand:
        """The same with others."""
        place = next(each)
        return Operand(self.name, place, tuple(rule._replace(at=next(each)) for rule in self.rules))

    def numbers(self) -> tuple[int, ...]:
        """The integers of its rules."""
        return tuple(number for rule in self.rules for number in (rule.size, rule.step, rule.divisor))

    def with_numbers(self, each: Iterator[Any]) -> Operand:
        """The same with others."""
        return self._replace(
            rules=tuple(rule._replace(size=next(each), step=next(each), divisor=next(each)) for rule in self.rules)
        )

    def form(self) -> str:
        """What the code of a kernel depends on."""
        return f"{self.name} {' '.join(rule.kind for rule in self.rules)}"


class Contraction(NamedTuple):
    """What a kernel computes: each element of the result is the sum of the products of two factors over the inner coordinates."""

    batch: SliceSteps
    """The sizes of the batch's coordinates."""
    rows: SliceSteps
    columns: SliceSteps
    inner: SliceSteps
    """Those of the coordinates that products are summed over, which may be 0."""
    a: Operand
    """The factor that follows from batch, row and inner coordinates. All places are linear in all coordinates, in this order."""
    b: Operand
    """The factor that follows from batch, column and inner coordinates."""
    result: Operand
    """Where a sum goes: linear in the coordinates without the inner ones."""
    addends: tuple[Operand, ...]
    """What a finished sum needs more, in the same coordinates."""
    a_zero: Operand | None
    """What is subtracted from the first factor, of the factor's type."""
    b_zero: Operand | None
    computed: str
    """The type of products and sums: ``float32``, ``float64`` or ``int32``, which wraps."""

    @property
    def groups(self) -> tuple[SliceSteps, SliceSteps, SliceSteps, SliceSteps]:
        """The sizes of all coordinates, by group."""
        return self.batch, self.rows, self.columns, self.inner

    @property
    def outer(self) -> SliceSteps:
        """The sizes of the coordinates of a result's element."""
        return (*self.batch, *self.rows, *self.columns)

    @property
    def sizes(self) -> SliceSteps:
        """The sizes of all coordinates."""
        return (*self.outer, *self.inner)

    @property
    def depth(self) -> Any:
        """How many products a sum has."""
        return math.prod(self.inner)

    def operands(self) -> tuple[Operand, ...]:
        """All operands that are present: both factors, their zero points, the result and what is added."""
        zeros = (one for one in (self.a_zero, self.b_zero) if one is not None)
        return (self.a, self.b, *zeros, self.result, *self.addends)

    def with_operands(self, change: Callable[[Operand], Operand]) -> Contraction:
        """The same with other operands, which are changed in the order of ``operands``."""
        a, b = change(self.a), change(self.b)
        zeros = [None if one is None else change(one) for one in (self.a_zero, self.b_zero)]
        result, addends = change(self.result), tuple(map(change, self.addends))
        return self._replace(a=a, b=b, a_zero=zeros[0], b_zero=zeros[1], result=result, addends=addends)

    def simplified(self) -> Contraction:
        """The same with as few rules and dimensions as possible; at least one dimension in each group."""
        plain = self.with_operands(self._plain)
        linears = [one for operand in plain.operands() for one in operand.linears()]
        found: list[tuple[SliceSteps, tuple[SliceSteps, ...]]] = []
        first = 0
        for number, sizes in enumerate(self.groups):
            own = [one.steps[first : first + len(sizes)] for one in linears]
            within = [number < 3 or len(one.steps) == len(self.sizes) for one in linears]
            merged, steps = collapse(sizes, *(mine for mine, inside in zip(own, within, strict=True) if inside))
            waiting = iter(steps)
            each = tuple((next(waiting) or (0,)) if inside else () for inside in within)
            found.append((merged or (1,), each))
            first += len(sizes)
        every = iter([Linear(one.base, sum((group[i] for _, group in found), ())) for i, one in enumerate(linears)])
        batch, rows, columns, inner = (sizes for sizes, _ in found)
        whole = plain._replace(batch=batch, rows=rows, columns=columns, inner=inner).with_operands(
            lambda operand: operand.with_linears(every)
        )
        if whole.batch[-1] == 1:  # nothing to bring into rows, or columns
            return whole
        return whole._with_batch_in_rows().exchanged()._with_batch_in_rows().exchanged()

    def _with_batch_in_rows(self) -> Contraction:
        """The same with the batch's last dimension in the rows, if all of it multiplies one second factor, and rows follow on."""
        last, own = len(self.batch) - 1, len(self.batch) + len(self.rows)
        linears = [one for operand in self.operands() for one in operand.linears()]
        second = [one for operand in (self.b, self.b_zero) if operand is not None for one in operand.linears()]
        if self.batch[last] == 1 or any(one.steps[last] for one in second) or 0 in self.sizes:
            return self
        merged, steps = collapse((self.batch[last], *self.rows), *(one.steps[last:own] for one in linears))
        if len(merged) != 1:
            return self
        batch = self.batch[:last] or (1,)
        every = iter(
            [
                Linear(one.base, (*(one.steps[:last] or (0,)), *new, *one.steps[own:]))
                for one, new in zip(linears, steps, strict=True)
            ]
        )
        return self._replace(batch=batch, rows=merged).with_operands(lambda operand: operand.with_linears(every))

    def _plain(self, operand: Operand) -> Operand:
        """The operand without rules that always hold."""
        place, rules = operand.place, []
        for rule in operand.rules:
            if rule.kind == WHOLE and rule.divisor == 1:
                rule = rule._replace(kind=INSIDE)
            low, high = rule.at.range(self.sizes) if 0 not in self.sizes else (0, -1)
            if rule.kind == INSIDE and low >= 0 and high < rule.size:
                steps = tuple(one + rule.step * other for one, other in zip(place.steps, rule.at.steps, strict=True))
                place = Linear(place.base + rule.step * rule.at.base, steps)
            else:
                rules.append(rule)
        return Operand(operand.name, place, tuple(rules))

    def exchanged(self) -> Contraction:
        """The same with rows as columns: the factors change places."""
        b, r, c = len(self.batch), len(self.rows), len(self.columns)

        def turned(operand: Operand) -> Operand:
            def linear(one: Linear) -> Linear:
                steps = one.steps
                return Linear(one.base, (*steps[:b], *steps[b + r : b + r + c], *steps[b : b + r], *steps[b + r + c :]))

            return operand.with_linears(iter([linear(one) for one in operand.linears()]))

        found = self.with_operands(turned)
        return found._replace(rows=self.columns, columns=self.rows, a=found.b, b=found.a, a_zero=found.b_zero, b_zero=found.a_zero)

    # -- As integers of a launch

    def numbers(self) -> tuple[int, ...]:
        """Its integers, as ``expressions`` takes them."""
        linear = (n for operand in self.operands() for one in operand.linears() for n in (one.base, *one.steps))
        rules = (number for operand in self.operands() for number in operand.numbers())
        return (*self.sizes, *linear, *rules)

    def expressions(self, numbers: Sequence[Any]) -> Contraction:
        """The contraction with other integers: those of a launch."""
        waiting = iter(numbers)
        groups = [tuple(next(waiting) for _ in sizes) for sizes in self.groups]

        def linears(operand: Operand) -> Operand:
            own = [Linear(next(waiting), tuple(next(waiting) for _ in one.steps)) for one in operand.linears()]
            return operand.with_linears(iter(own))

        found = self.with_operands(linears).with_operands(lambda operand: operand.with_numbers(waiting))
        batch, rows, columns, inner = groups
        return found._replace(batch=batch, rows=rows, columns=columns, inner=inner)

    def form(self) -> str:
        """What the code of a kernel depends on, without the integers."""
        ranks = " ".join(str(len(sizes)) for sizes in self.groups)
        zeros = f"{int(self.a_zero is not None)}{int(self.b_zero is not None)}"
        return f"{ranks}; {'; '.join(operand.form() for operand in self.operands())}; {zeros} {self.computed}"

    @property
    def span(self) -> int:
        """The largest number that is computed."""
        found = [math.prod(self.outer), self.depth, *map(abs, self.numbers())]
        for operand in self.operands():
            for one in operand.linears():
                found += map(abs, one.range(self.sizes[: len(one.steps)]))
            ends = [(rule, rule.at.range(self.sizes[: len(rule.at.steps)])) for rule in operand.rules]
            reach = sum(max(rule.size, *map(abs, end)) * abs(rule.step) for rule, end in ends)
            found.append(reach + max(map(abs, operand.place.range(self.sizes[: len(operand.place.steps)]))))
        return int(max(found))


# -- In TensorIR --------------------------------------------------------------------------------------------------


def place(operand: Operand, at: Sequence[Any]) -> tuple[Any, Any]:
    """The offset of an operand's element for these coordinates, and whether it is there (``None``: always).

    If it is not, the offset is that of another element.
    """
    offset, inside = value(operand.place, at), None
    for rule in operand.rules:
        found, within = coordinate(rule, T.let(value(rule.at, at)))
        found = T.let(found)
        offset = offset + found * (T.const(rule.step, T.type_of(found)) if isinstance(rule.step, int) else rule.step)
        inside = both(inside, None if within is None else T.let(within))
    return offset, inside


def factor(x: Any, zero: Any, computed: str) -> Any:
    """An element as a factor: less its zero point, in the type of products.

    A difference of integers that is computed in floats is exact, and rounded once.
    """
    if T.is_float(x):
        return T.cast(T.wide(x), computed)
    if computed == "int32" or T.bits_of(x) < 32:
        found = T.cast(x, "int32")
        found = found if zero is None else found - T.cast(zero, "int32")
        return T.cast(found, computed)
    if zero is None:
        return T.cast(x, computed)
    # Both halves are exact, and so is the product.
    high, low = (part(x) - part(zero) for part in (_high, _low))
    return T.rounded(T.cast(high, computed) * T.like(T.cast(high, computed), 65536.0)) + T.cast(low, computed)


def bfloat16(x: Any) -> Any:
    """float32 as the nearest bfloat16, the even one of two, in the upper half of an int32; subnormals are 0."""
    bits = T.hold(T.reinterpret(x, "int32"))
    magnitude = T.hold(bits & T.like(bits, 0x7FFFFFFF))
    odd = (bits >> T.like(bits, 16)) & T.like(bits, 1)
    near = T.Select(magnitude > T.like(bits, 0x7F800000), bits | T.like(bits, 0x400000), bits + T.like(bits, 0x7FFF) + odd)
    near = T.Select(magnitude < T.like(bits, 0x800000), bits ^ magnitude, near)
    return T.hold(near & T.like(bits, -0x10000))


def _high(x: Any) -> Any:
    return T.cast(T.shift_right(x, T.like(x, 16)) if T.scalar_type(x).startswith("u") else x >> T.like(x, 16), "int32")


def _low(x: Any) -> Any:
    return T.cast(x & T.like(x, 0xFFFF), "int32")


def multiply_add(a: Any, b: Any, total: Any) -> Any:
    """``a * b + total``: of floats rounded once where the target has an instruction for that, otherwise twice."""
    if not T.is_float(total):
        return total + a * b
    if T.is_on_device():
        return T.call_pure_extern(T.type_of(total), "multiply_add", a, b, total)
    if T.has_instructions("fma") or not T.has_instructions("x86"):
        return T.fused(a, b, total)
    return total + T.rounded(a * b)
