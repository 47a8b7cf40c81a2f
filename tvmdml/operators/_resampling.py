"""The resampling family: elements between the elements of a tensor, and the gradients of that.

An axis of the result is a row of places in the input, equally far from each other. They are fractions: a ``Grid`` has them as
integers over a common divisor. So every target finds the same neighbours, also of a place halfway between two elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.launched import patterns
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Floats, NumpyArray, Operator, Shared
from tvmdml.operators._resampling_reference import AxisMapping, gathered, scattered
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import cached, fraction, is_open
from tvmdml.tensors.sizes.evaluating import own

MOST_AXES = 4
"""The most axes that do more than copy."""
MOST_REACH = 1 << 20
"""The most elements on each side of a place that are antialiased."""
_LIMIT = 1 << 61
"""What is computed of a grid's numbers is smaller."""
_MOST_PARTS = 1 << 36
"""So many parts of an element are as good as exact; more are kept if there is room."""


class Grid(NamedTuple):
    """The places of an axis: ``start + (o - first) * step`` parts of an element for ``o`` from ``first`` to ``last - 1``.

    Those before ``first`` are ``lowest``, and those from ``last`` on ``highest``: at the edge, or beyond the reach of any element.
    An element has ``parts`` parts. The places of nearest elements are shifted: an element is the last one before its places.
    The integers are Python's, or expressions.
    """

    step: Any
    start: Any
    parts: Any
    first: Any
    last: Any
    lowest: Any
    highest: Any
    inputs: Any
    outputs: Any
    fall: Any = 0
    """Antialiased: by how much a weight falls from one element to the next, in ``steep`` parts."""
    steep: Any = 1
    slope: Any = 0
    """Antialiased: the bits of that number as a float32."""
    inverse: Any = None
    """The bits of ``1 / parts`` as a float32, where kernels have it: a power of two, so that products are quotients."""

    # -- In Python

    @property
    def span(self) -> int:
        """The largest number that is computed."""
        weights = 2 * self.parts * self.steep if self.fall else 0
        numbers = (number for number in self if number is not None)
        return int(
            max(weights, self.highest - self.lowest + self.parts, self.start + (self.last - self.first) * self.step, *numbers)
        )

    @property
    def dtype(self) -> str:
        """A type for it."""
        return "int32" if self.span < 1 << 30 else "int64"

    def reached(self, i: int) -> int:
        """The first place after an element."""
        if not 0 < i < self.inputs:
            return 0 if i <= 0 else int(self.outputs)
        return int(self.first + min(max(-((self.start - i * self.parts) // self.step), 0), self.last - self.first))

    def most_uses(self, linear: bool) -> int:
        """The most places that an element has a part in."""
        back = int(linear)
        inside = -((1 + back) * -self.parts // self.step) if self.last > self.first else 0
        n = self.inputs
        ends = (self.reached(i + 1) - self.reached(i - back) for i in {0, 1, n - 2, n - 1} if i >= 0)
        return int(max(min(inside, self.outputs), *ends, 1))

    # -- In kernels

    def at(self, o: Any) -> tuple[Any, Any]:
        """The element before a place, and how many parts the place is after it."""
        like = functools.partial(T.like, o)
        k = T.let(T.max(T.min(o, self.last) - self.first, like(0)))
        inside = T.let(self.start + k * self.step)
        place = T.hold(T.Select(o < self.first, self.lowest, T.Select(o >= self.last, self.highest, inside)) - self.lowest)
        before = T.hold(T.divided_out(place, self.parts))
        return T.let(before + T.truncdiv(self.lowest, self.parts)), T.let(place - before * self.parts)

    def uses(self, i: Any, linear: bool) -> tuple[Any, Any]:
        """The first place that an element has a part in, and the first after those."""
        one = T.like(i, 1)

        def reached(number: Any) -> Any:
            ahead = T.let(T.max(number * self.parts - self.start, T.like(i, 0)) + self.step - one)
            o = T.let(self.first + T.min(T.hold(T.divided_out(ahead, self.step)), self.last - self.first))
            return T.hold(T.Select(number <= T.like(i, 0), T.like(i, 0), T.Select(number >= self.inputs, self.outputs, o)))

        return reached(i - one if linear else i), reached(i + one)


def expressions(grid: Grid) -> Grid:
    """A grid of expressions: of integers of the launch if it has them, or else of constants.

    Large ones are hidden from TVM: it multiplies what it simplifies by each other, and refuses to go on where that overflows.
    """
    if not isinstance(grid.step, int):
        return grid
    numbers = (T.const(number, grid.dtype) for number in grid if number is not None)
    return Grid(*(numbers if grid.dtype == "int32" else map(T.hold, numbers)))


@cached(1 << 12)
def grid_of(rule: AxisMapping, inputs: int, outputs: int) -> Grid:
    """The places of an axis."""
    scale = Fraction(rule.scale)
    is_exact = outputs * scale.denominator == inputs * scale.numerator  # where sizes are open, that is no more than a guard
    step = fraction(inputs, outputs) if not is_exact and rule.is_ratio(inputs, outputs) else 1 / scale
    start = -Fraction(rule.after) * step - Fraction(rule.before)
    if not rule.linear and rule.rounding == "half":
        start += Fraction(1, 2)
    parts = math.lcm(step.denominator, start.denominator)
    if not rule.linear and rule.rounding == "up":
        start += 1 - Fraction(1, parts)
    steps, starts = int(step * parts), int(start * parts)
    reach = math.floor(1 / scale) + 1 if rule.acts else 0
    # Places beyond these are like them: the first and the last element, or beyond the reach of both.
    lowest, highest = (-(reach + 1), inputs + reach) if reach else (0, inputs - 1)
    first = min(max((lowest * parts - starts) // steps + 1, 0), outputs)
    last = min(max(-((starts - highest * parts) // steps), first), outputs)
    starts += first * steps
    most = (_LIMIT - 1) // (highest - lowest + 2)
    if last - first <= 1:
        steps = min(steps, (highest - lowest + 1) * parts)
    if parts > min(most, _MOST_PARTS if reach else most):
        fewer = 1 << (min(most, _MOST_PARTS).bit_length() - 1)
        steps, starts, parts = (round(Fraction(own(n) * fewer, parts)) for n in (steps, starts, parts))
        steps = max(steps, 1)
    fall = scale.limit_denominator(_LIMIT // (4 * parts)) if reach else Fraction(0)
    starts = min(max(starts, lowest * parts), highest * parts)
    numbers = (steps, starts, parts, first, last, lowest * parts, highest * parts, inputs, outputs)
    return Grid(*numbers, fall.numerator, fall.denominator, patterns([rule.scale])[0] if reach else 0)


class Resampling(Operator):
    """Base class of the family."""

    SUMS = True
    FAMILY: ClassVar[str] = "resampling"
    CONSTANT_SHAPES = "the places are fractions of the sizes"

    if TYPE_CHECKING:  # the fields stand in DirectML's order, in each class
        interpolation_mode: InterpolationMode
        scales: Floats

    # -- The contract

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given: its sizes do not follow from the scales."""
        return {}

    def ends(self) -> tuple[TensorDesc, TensorDesc]:
        """The tensor that has elements, and the one that has places."""
        raise NotImplementedError(self.NAME)

    @property
    def is_linear(self) -> bool:
        """Whether neighbours are weighed."""
        return self.interpolation_mode is InterpolationMode.LINEAR

    def check_axes(self, tensor: str, other: str) -> None:
        """Two tensors of one type and rank, and numbers for each dimension."""
        self.require_same("data_type", other, tensor)
        self.require_same("rank", other, tensor)
        elements, _ = self.ends()
        for name in ("scales", "input_pixel_offsets", "output_pixel_offsets"):
            if (values := getattr(self, name, None)) is None:
                continue
            self.require(len(values) == elements.rank, name, f"{len(values)} numbers", f"{elements.rank}, one for each dimension")
            for i, value in enumerate(values):
                positive = name == "scales"
                holds = math.isfinite(value) and (value > 0 or not positive)
                self.require(holds, f"{name}[{i}]", value, f"a finite number{' greater than 0' * positive}")
        for i, rule in enumerate(self.rules()):
            reach = not rule.acts or 1 / rule.scale <= MOST_REACH
            self.require(reach, f"scales[{i}]", self.scales[i], f"1 / {MOST_REACH} or more, if the result is antialiased")
        elements, places = self.ends()
        if any(map(is_open, (*elements.sizes, *places.sizes))):
            return  # places are fractions of sizes; a launch has Python's own
        count = sum(grid is not None for grid in self.grids())
        self.require(count <= MOST_AXES, "scales", f"{count} dimensions that do not copy", f"up to {MOST_AXES}")

    def rules(self) -> tuple[AxisMapping, ...]:
        """How the coordinates of each dimension follow from each other."""
        direction = getattr(self, "rounding_direction", None)
        rounding = "half" if direction is None else "up" if direction is AxisDirection.INCREASING else "down"
        rank = self.ends()[0].rank
        before = getattr(self, "input_pixel_offsets", (0.5,) * rank)
        after = getattr(self, "output_pixel_offsets", (-0.5,) * rank)
        smooth = getattr(self, "antialiased", False)
        return tuple(
            AxisMapping(self.is_linear, rounding if not self.is_linear else "", *numbers, smooth)
            for numbers in zip(self.scales, before, after, strict=True)
        )

    def grids(self) -> tuple[Grid | None, ...]:
        """The places of each dimension; ``None`` of one in which each place is the element of the same number."""
        elements, places = self.ends()
        found = []
        for rule, n, m in zip(self.rules(), elements.sizes, places.sizes, strict=True):
            grid = grid_of(rule, n, m)
            same = n == m and not grid.fall and grid.step == grid.parts and _starts_at_element(grid, self.is_linear)
            found.append(None if same else grid)
        return tuple(found)

    @property
    def computed(self) -> str:
        """The type in which elements are weighed."""
        return "float64" if self.ends()[0].data_type.tvm == "float64" else "float32"

    @property
    def moved(self) -> str:
        """The type in which elements are copied: bits of their width."""
        return f"uint{8 * self.ends()[0].data_type.itemsize}"


def _starts_at_element(grid: Grid, linear: bool) -> bool:
    """Whether the places of a grid in steps of one element are the elements, from the first place on."""
    if grid.inputs == 1:
        return True
    before = grid.start - grid.first * grid.step
    return bool(before == 0 if linear else 0 <= before < grid.parts)


def share(count: Any, grid: Grid, dtype: str) -> Any:
    """A number of parts as a fraction of an element."""
    if grid.inverse is not None:
        return T.cast(count, dtype) * _float_of(grid.inverse, dtype)
    if T.is_on_device():
        return T.cast(count, dtype) / T.cast(grid.parts, dtype)
    return T.cast(T.cast(count, "float64") / T.cast(grid.parts, "float64"), dtype)


def _float_of(bits: Any, dtype: str) -> Any:
    """A float32 of these bits."""
    return T.cast(T.reinterpret(T.cast(bits, "int32"), "float32"), dtype)


def mixed(first: Any, second: Any, weights: tuple[Any, Any]) -> Any:
    """Two neighbours, weighed."""
    return T.rounded(first * weights[0]) + T.rounded(second * weights[1])


def counted(value: Any) -> Any:
    """A number of a grid as one that the computation counts in."""
    return T.cast(value, T.type_of(T.index(0)))


class Resampled(Resampling):
    """Base class of operators whose results are at places between the elements of their input."""

    def ends(self) -> tuple[TensorDesc, TensorDesc]:
        return self.input_tensor, self.output_tensor  # type: ignore[attr-defined]

    def check(self) -> None:
        """Two tensors of one type and rank, and numbers for each dimension."""
        self.check_axes("input_tensor", "output_tensor")
        given, wanted = self.ends()
        holds = given.element_count > 0 or not wanted.element_count
        self.require(holds, "input_tensor.sizes", given.sizes, "sizes with elements: some are taken from it")

    def stored_types(self) -> set[str]:
        """Nearest elements are moved as bits."""
        return super().stored_types() if self.is_linear else {self.moved}

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: its neighbours in all dimensions."""
        with T.function() as f:
            tensors = f.tensors(self, dtype="" if self.is_linear else self.moved)
            self.write(each, tuple(tensors.values()), self.ends(), self.grids())
        return f.result()

    def write(
        self, each: T.Each, buffers: Sequence[Any], ends: tuple[Any, Any], grids: Sequence[Grid | None], several: int = 1
    ) -> None:
        """The computation, for tensors that may have integers of the launch as sizes."""
        resample(each, buffers, ends, grids, self.computed, self.is_linear, several)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision."""
        (x,) = inputs
        assert x is not None
        return (gathered(x, self.rules(), self.ends()[1].sizes),)


def resample(
    each: T.Each, buffers: Sequence[Any], ends: tuple[Any, Any], grids: Sequence[Grid | None], computed: str, linear: bool,
    several: int = 1,
) -> None:  # fmt: skip
    """Write each element of a result: its neighbours in all dimensions, one dimension inside of another.

    Args:
        each: the loop over items.
        buffers: those of the tensor that has elements, and of the one that has places.
        ends: their sizes and strides, which may be integers of the launch.
        grids: the places of each dimension, likewise; ``None`` of one that copies.
        computed: the type in which elements are weighed.
        linear: whether they are; otherwise the nearest ones are copied.
        several: how many neighbours are an item.
    """
    source, result = ends
    with T.elements(each, result.sizes, result.layout, several) as at:
        along = [_Along(grid, here, computed, linear) for grid, here in zip(grids, at, strict=True)]

        def found(place: Sequence[Any]) -> Any:
            if len(place) < len(along):
                return along[len(place)].value(lambda here: found([*place, here]))
            x = buffers[0][T.dot(place, source.layout)]
            return T.let(T.to(T.wide(x), computed) if linear else x)

        value = found([])
        value = T.to(value, result.data_type.tvm) if linear else value
        T.store(buffers[1], T.dot(at, result.layout), value)


class _Along:
    """A coordinate of the result, as one or several coordinates of the input."""

    def __init__(self, grid: Grid | None, here: Any, dtype: str, linear: bool) -> None:
        self._here, self._dtype, self._linear = here, dtype, linear
        self._smooth = grid is not None and bool(grid.fall)
        if grid is None:
            return
        self._grid = expressions(grid)
        self._before, self._past = self._grid.at(T.cast(here, T.type_of(self._grid.step)))
        if linear and not self._smooth:
            self._weights = weights(self._grid, self._past, dtype)
        if self._smooth:
            self._most = min(int(grid.inputs), 2 * int(Fraction(grid.steep, grid.fall)) + 4)
            self._shares = smooth_shares(self._grid, self._before, self._past, dtype)

    def value(self, element: Callable[[Any], Any]) -> Any:
        """What is at the coordinate, of what is at coordinates of the input."""
        if not hasattr(self, "_grid"):
            return element(self._here)
        if self._smooth:
            return self._smoothed(element)
        if not self._linear:
            return element(counted(self._before))
        first = element(counted(self._before))
        second = element(counted(after(self._grid, self._before, self._past)))
        return T.hold(T.Select(self._past > T.like(self._past, 0), mixed(first, second, self._weights), first))

    def _smoothed(self, element: Callable[[Any], Any]) -> Any:
        begin, end, weight, total, below, above = self._shares
        found = T.Variable(self._dtype, T.const(0, self._dtype))
        last = self._grid.inputs - 1

        def add(j: Any, w: Any) -> None:
            with T.when(w > T.like(w, 0)):
                part = T.let(w / total)
                found.set(found.value + T.rounded(element(counted(j)) * part))

        add(T.like(begin, 0), below)
        with T.loop(T.let(T.max(end - begin, T.like(begin, 0))), most=self._most) as k:
            j = T.let(begin + k)
            add(j, T.let(weight(j)))
        add(last, above)
        return T.let(found.value)


def weights(grid: Grid, past: Any, dtype: str) -> tuple[Any, Any]:
    """The weights of the elements before and after a place."""
    return T.let(share(grid.parts - past, grid, dtype)), T.let(share(past, grid, dtype))


def after(grid: Grid, before: Any, past: Any) -> Any:
    """The element after a place, if the place is not an element, which is then alone."""
    beside = T.Select(past > T.like(past, 0), before + T.like(before, 1), before)
    return T.let(T.min(beside, grid.inputs - T.like(before, 1)))


def smooth_shares(grid: Grid, before: Any, past: Any, dtype: str) -> tuple[Any, Any, Callable[[Any], Any], Any, Any, Any]:
    """The weights of the elements around a place, as long as they are not normalised.

    Returns:
        The first element and the one after the last; the function that gives the weight of one of them; the sum of all weights; and
        what the first and the last element have of it for those beyond them, which are like them.
    """
    zero, one = T.like(before, 0), T.like(before, 1)
    height = T.let(grid.parts * grid.steep)
    down = T.let(grid.parts * grid.fall)
    near, far = T.let(past * grid.fall), T.let((grid.parts - past) * grid.fall)
    first = T.hold(before - T.truncdiv(height - near, down))
    end = T.hold(before + T.truncdiv(height - far, down) + one + one)

    slope = T.let(_float_of(grid.slope, dtype))

    def weight(j: Any) -> Any:
        distance = T.Select(j <= before, past + (before - j) * grid.parts, (j - before) * grid.parts - past)
        low = T.rounded(share(T.hold(distance), grid, dtype) * slope)
        return T.hold(T.maximum(T.like(low, 1) - low, T.like(low, 0)))

    def series(a: Any, b: Any) -> Any:
        """The sum of the weights from one element on, before another, all on one side of the place."""
        a, b = T.hold(a), T.hold(b)
        some = T.let(T.cast(b - a, dtype) * (weight(a) + weight(b - one)) * T.const(0.5, dtype))
        return T.hold(T.Select(b > a, some, T.const(0, dtype)))

    def sums(a: Any, b: Any) -> Any:
        return T.hold(series(a, T.min(b, before + one)) + series(T.max(a, before + one), b))

    begin, stop = T.hold(T.max(first, zero)), T.hold(T.min(end, grid.inputs))
    below, above = sums(first, T.min(end, zero)), sums(T.max(first, grid.inputs), end)
    inside = T.hold(sums(T.min(begin, stop), stop))
    return begin, stop, weight, T.hold(below + inside + above), below, above


class ResampledGradient(Resampling):
    """Base class of gradients: what each element contributes to the places, in the order of the places."""

    def ends(self) -> tuple[TensorDesc, TensorDesc]:
        return self.output_gradient_tensor, self.input_gradient_tensor  # type: ignore[attr-defined]

    def check(self) -> None:
        """Two tensors of one type and rank, and numbers for each dimension."""
        self.check_axes("input_gradient_tensor", "output_gradient_tensor")

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: the places that it has a part in, in ascending order."""
        with T.function() as f:
            gradient, elements = f.tensors(self).values()
            self.write(each, (elements, gradient), self.ends(), self.grids())
        return f.result()

    def write(self, each: T.Each, buffers: Sequence[Any], ends: tuple[Any, Any], grids: Sequence[Grid | None]) -> None:
        """The computation, for tensors that may have integers of the launch as sizes."""
        result, source = ends
        dtype, linear = self.computed, self.is_linear
        with T.elements(each, result.sizes, result.layout) as at:
            total = T.Variable(dtype, T.const(0, dtype))
            uses = [self._uses(grid, here) for grid, here in zip(grids, at, strict=True)]

            def add(place: list[Any], weight: Any) -> None:
                if len(place) == len(grids):
                    x = T.let(T.wide(buffers[1][T.dot(place, source.layout)]))
                    total.set(total.value + (x if weight is None else T.rounded(x * weight)))
                    return
                found = uses[len(place)]
                if found is None:
                    add([*place, at[len(place)]], weight)
                    return
                grid, i, begin, count, most = found
                with T.loop(count, most=most) as k:
                    o = T.let(begin + k)
                    if not linear:
                        add([*place, counted(o)], weight)
                        return
                    before, past = grid.at(o)
                    own = T.hold(T.Select(T.expression(before == i), grid.parts - past, past))
                    with T.when(own > T.like(own, 0)):
                        part = share(own, grid, dtype)
                        add([*place, counted(o)], T.hold(part if weight is None else weight * part))

            add([], None)
            T.store(buffers[0], T.dot(at, result.layout), T.to(total.value, result.data_type.tvm))

    def _uses(self, given: Grid | None, here: Any) -> Any:
        """The places that a coordinate has a part in: the grid, the coordinate, the first place, how many, and their limit."""
        if given is None:
            return None
        grid = expressions(given)
        i = T.let(T.cast(here, T.type_of(grid.step)))
        begin, end = grid.uses(i, self.is_linear)
        return grid, i, begin, T.let(end - begin), given.most_uses(self.is_linear) if isinstance(given.step, int) else 1

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision."""
        (gradient,) = inputs
        assert gradient is not None
        return (scattered(gradient, self.rules(), self.ends()[0].sizes),)
