"""The window family: an element of the output combines those elements of the input that a window reaches.

A window has taps. Tap ``t`` of window ``o`` is at ``o * stride - start_padding + t * dilation`` in each dimension, and it is inside
if the tensor has that element. A tap is counted if it is before the end of the padding behind the tensor: only the windows of an
output that is as large as the ceiling allows reach further. Taps are visited in row-major order.

Sums of floats have a fixed order, which depends on sizes only: chains of ``CHAIN`` elements, chains of ``CHAIN`` such sums, and so
on. A float16 is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple

from tvmdml.errors import counted
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import counted_loop, nested
from tvmdml.operators._contract import Operator
from tvmdml.operators._inference import is_description
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

CHAIN = 32
"""The most elements, or sums of elements, that are added one after the other."""
FEW = 25
"""So many taps are tried one by one on a device."""
_FAR = 1 << 30
"""Numbers from here on are computed with in 64 bits."""

ABSENT: Mapping[str, int] = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}
"""The usual numbers for those that a caller leaves out."""


class WindowAxis(NamedTuple):
    """The windows along one dimension. In a kernel, numbers may be integers of the launch."""

    dimension: int
    """The dimension of the tensors."""
    stride: Any
    size: Any
    dilation: Any
    start: Any
    end: Any

    @property
    def span(self) -> Any:
        """The elements from a window's first tap to its last."""
        return (self.size - 1) * self.dilation + 1


class Reach(NamedTuple):
    """Where a window is along a dimension."""

    position: Any
    """Of its tap 0; it may be outside."""
    first: Any
    """The first tap inside."""
    count: Any
    """How many taps are inside."""
    most: int | None
    """At least as many as ``count``, if that is known."""
    step: Any
    """The distance of taps."""
    size: Any
    """Of the dimension."""
    tried: int | None = None
    """All taps, if each is tried: then the loop can be unrolled, and neighbouring windows have much in common."""
    certain: bool = False
    """Whether all of them are inside, for every window."""

    @contextmanager
    def places(self) -> Iterator[Any]:
        """Run the statements for the place of each tap inside.

        On a device, a loop has as many rounds as it has for any window: drivers may have a limit, which is checked before.
        """
        if self.tried is not None:
            kind = T.type_of(self.position)
            with T.loop(T.const(self.tried, kind)) as i:
                place = T.let(self.position + i * self.step)
                with nullcontext() if self.certain else T.when(T.cast(place, f"u{kind}") < T.cast(self.size, f"u{kind}")):
                    yield place
            return
        begin = T.let(self.position + self.first * self.step)
        with counted_loop(self.count, self.most) as i:
            yield T.let(begin + i * self.step)


def up(value: Any, divisor: Any) -> Any:
    """The quotient of an integer, 0 in place of a negative one, rounded up."""
    zero = T.const(0, T.type_of(value))
    bounded = T.max(value, zero)
    if isinstance(divisor, int) and divisor == 1:
        return bounded
    return T.truncdiv(bounded + (divisor - 1), number(divisor, T.type_of(value)))


def number(value: Any, dtype: str) -> Any:
    """A Python integer or an integer of the launch as one of a type."""
    return T.const(value, dtype) if isinstance(value, int) else value if T.type_of(value) == dtype else T.cast(value, dtype)


class Cascade:
    """A sum of floats in the family's order: chains of ``CHAIN``, and chains of their sums."""

    def __init__(self, dtype: str, levels: int, lanes: int = 1) -> None:
        zero = T.const(0, dtype) if lanes == 1 else T.splat(T.const(0, dtype), lanes)
        self._zero = zero
        self._totals = [T.Variable(T.type_of(zero), zero) for _ in range(levels)]
        self._counts = [T.Variable("int32", T.const(0, "int32")) for _ in range(levels - 1)]

    def add(self, value: Any) -> None:
        """Add a term."""
        self._add(0, value)

    def _add(self, level: int, value: Any) -> None:
        total = self._totals[level]
        total.set(total.value + value)
        if level + 1 == len(self._totals):
            return
        count = self._counts[level]
        count.set(count.value + T.const(1, "int32"))
        with T.when(count.value == T.const(CHAIN, "int32")):
            self._add(level + 1, total.value)
            total.set(self._zero)
            count.set(T.const(0, "int32"))

    def value(self) -> Any:
        """The sum."""
        for level, total in enumerate(self._totals[1:]):
            total.set(total.value + self._totals[level].value)
        return self._totals[-1].value


def levels_of(terms: int) -> int:
    """The levels of a cascade of so many terms, at most."""
    levels = 1
    while CHAIN**levels < terms:
        levels += 1
    return levels


class Window(Operator):
    """Base class of operators with windows.

    Args:
        strides: the steps from one window to the next; 1 by default.
        window_size: the sizes of a window, one for each spatial dimension.
        start_padding: how far windows reach out of each spatial dimension before it; 0 by default.
        end_padding: that behind each.
        dilations: the steps between the elements of a window; 1 by default.
    """

    FAMILY: ClassVar[str] = "window"
    ANY_NAN = True
    WHOLE: ClassVar[str] = "input_tensor"
    """The tensor that windows lie on."""
    POOLED: ClassVar[str] = "output_tensor"
    """The tensor with an element for each window."""
    OF_CHANNELS: ClassVar[tuple[str, ...]] = ()
    """Tensors with one element, or one for each channel."""
    FLAT: ClassVar[bool] = True
    """Whether the function takes tensors of rank 3 too, as those with a dimension of size 1 in front of the last one."""

    # -- The geometry

    def whole(self) -> Any:
        """The tensor that windows lie on."""
        return getattr(self, self.WHOLE)

    def pooled(self) -> Any:
        """The tensor with an element for each window."""
        return getattr(self, self.POOLED)

    def windows(self) -> list[WindowAxis]:
        """The windows along each dimension that they have: by default the spatial ones."""
        own: Any = self
        dilations = getattr(self, "dilations", None) or (1,) * len(own.strides)
        numbers = zip(own.strides, own.window_size, dilations, own.start_padding, own.end_padding, strict=True)
        return [WindowAxis(i, *each) for i, each in enumerate(numbers, 2)]

    def taps(self) -> int:
        """The most taps of a window that are inside. Kernels whose sizes are integers of the launch are given it."""
        known = getattr(self, "known_taps", None)
        if known is not None:
            return int(known)
        sizes: Sequence[Any] = getattr(self.whole(), "known_sizes", None) or self.whole().sizes
        return math.prod(self._most(one, sizes[one.dimension]) or one.size for one in self.windows())

    @staticmethod
    def _most(along: WindowAxis, size: Any) -> int | None:
        if not isinstance(along.size, int):
            return None
        if not isinstance(size, int) or not isinstance(along.dilation, int):
            return along.size
        return min(along.size, -(-size // along.dilation))

    def few(self) -> bool:
        """Whether windows are known, and have few taps."""
        sizes = [one.size for one in self.windows()]
        return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= FEW

    def several(self) -> int:
        """How many neighbours of the result an item has. Kernels may be told."""
        return int(getattr(self, "known_several", 1))

    def wide(self) -> bool:
        """Whether places are computed in 64 bits, whatever sizes are. Kernels with integers of the launch are told."""
        known = getattr(self, "known_wide", None)
        if known is not None:
            return bool(known)
        return any(max(one[1:]) >= _FAR or one.span >= _FAR for one in self.windows())

    def reach(self, along: WindowAxis, o: Any, size: Any) -> Reach:
        """Where window ``o`` is along a dimension of this size."""
        dtype = "int64" if self.wide() else T.type_of(T.index(0))
        o, length = number(o, dtype), number(size, dtype)
        position = T.hold(o * number(along.stride, dtype) - number(along.start, dtype))
        taps, dilation = number(along.size, dtype), along.dilation if along.dilation == 1 else number(along.dilation, dtype)
        tried = along.size if T.is_on_device() and self.few() else None
        if tried is not None and along.dimension in getattr(self, "known_inside", ()):
            return Reach(position, T.const(0, dtype), taps, tried, dilation, length, tried, certain=True)
        first = T.hold(T.min(up(T.const(0, dtype) - position, dilation), taps))
        stop = T.hold(T.min(up(length - position, dilation), taps))
        count = T.hold(T.max(stop - first, T.const(0, dtype)))
        return Reach(position, first, count, self._most(along, size), dilation, length, tried)

    def counted(self, along: WindowAxis, reach: Reach, size: Any) -> Any:
        """How many taps of a window are counted with the padding."""
        dtype = T.type_of(reach.position)
        end = number(size, dtype) + number(along.end, dtype)
        return T.hold(T.min(up(end - reach.position, reach.step), number(along.size, dtype)))

    def reaches(self, at: Sequence[Any]) -> list[Reach]:
        """Where the window of an element of the pooled tensor is."""
        sizes = self.whole().sizes
        return [self.reach(one, at[one.dimension], sizes[one.dimension]) for one in self.windows()]

    @contextmanager
    def inside(self, at: Sequence[Any], reaches: Sequence[Reach]) -> Iterator[list[Any]]:
        """Run the statements for the coordinates of each tap inside, in row-major order."""
        with nested([one.places() for one in reaches]) as places:
            found = list(at)
            for along, place in zip(self.windows(), places, strict=True):
                found[along.dimension] = place
            yield found

    # -- Rules

    def infer(self) -> Mapping[str, TensorDesc]:
        """The pooled tensor has the floor size, unless it is given."""
        whole = self.whole()
        if whole.rank not in (4, 5):  # the support table refuses it
            return {self.POOLED: whole}
        self.check_numbers()
        return {self.POOLED: whole.with_sizes(self.floor_sizes())}

    def floor_sizes(self) -> tuple[int, ...]:
        """The usual sizes of the pooled tensor: windows that fit."""
        sizes = list(self.whole().sizes)
        for one in self.windows():
            sizes[one.dimension] = (sizes[one.dimension] + one.start + one.end - one.span) // one.stride + 1
        return tuple(sizes)

    def check_numbers(self) -> None:
        """Numbers for each spatial dimension, and windows that fit into the padded tensor."""
        k, sizes = self.whole().rank - 2, self.whole().sizes
        names = [name for name in ("strides", "window_size", "dilations", "start_padding", "end_padding") if hasattr(self, name)]
        for name in names:
            given = getattr(self, name)
            self.require(len(given) == k, name, counted(len(given), "number"), f"{k}, one for each spatial dimension")
            if "padding" not in name:
                for i, one in enumerate(given):
                    self.require(one >= 1, f"{name}[{i}]", one, "1 or more")
        for i, along in enumerate(self.windows()):
            size = sizes[along.dimension]
            self.require(size >= 1, f"{self.WHOLE}.sizes[{along.dimension}]", size, "1 or more")
            padded, span = size + along.start + along.end, along.span
            self.require(span <= padded, f"window_size[{i}]", f"{along.size}, over {span}", f"within {padded} elements")

    def check_pooled(self) -> None:
        """The pooled tensor has the whole one's batch and channels, and at most as many windows as the ceiling allows."""
        whole, pooled = self.whole(), self.pooled()
        name, like = self.POOLED, self.WHOLE
        self.require(pooled.rank == whole.rank, f"{name}.rank", pooled.rank, f"{whole.rank}, as in {self.named(like)}")
        self.check_numbers()
        given, sizes = pooled.sizes, whole.sizes
        self.require(given[:2] == sizes[:2], f"{name}.sizes", given, f"{sizes[:2]} first, as in {self.named(like)}")
        for one, usual in zip(self.windows(), self.floor_sizes()[2:], strict=True):
            most = -((one.span - sizes[one.dimension] - one.start - one.end) // one.stride) + 1
            own = given[one.dimension]
            for holds in (own >= 1, own <= most):
                self.require(holds, f"{name}.sizes[{one.dimension}]", own, f"1 to {most}; usually {usual}")

    # -- Functions

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """Numbers that are left out are the usual ones; tensors of rank 3 get a dimension."""
        sizes = given.pop("output_sizes", None) or given.pop("output_gradient_sizes", None)
        flat = cls.FLAT and inputs[0].rank == 3
        tensors = [flattened(one) if flat and one is not None and one.rank == 3 else one for one in inputs]
        k = tensors[0].rank - 2
        for name in given:
            given[name] = cls._numbers(name, given[name], k, flat)
        if is_description(sizes) and not isinstance(sizes, TensorDesc):
            sizes = (*sizes[:2], 1, *sizes[2:]) if flat and len(sizes) == 3 else sizes
            result = cls.WHOLE if cls.WHOLE.startswith("output") else cls.POOLED
            kind = given.get(result)
            given[result] = tensors[0].with_sizes(sizes, cls.result_type(*tensors) if kind is None else kind)
        return cls.of(*tensors, **given)

    @classmethod
    def result_type(cls, *tensors: Any) -> TensorDataType:
        """The output's type, unless another one is asked for."""
        return tensors[0].data_type

    @classmethod
    def _numbers(cls, name: str, value: Any, k: int, flat: bool) -> Any:
        if value is None and name in ABSENT:
            return (ABSENT[name],) * max(k, 0)
        if flat and name in (*ABSENT, "window_size") and isinstance(value, (tuple, list)) and len(value) == 1:
            return (0 if "padding" in name else 1, *value)
        return value

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """Of a tensor of rank 3, one of rank 3."""
        if not cls.FLAT or inputs[0].rank != 3:
            return None
        sizes = cls.of_call(*inputs, **given).outputs()[0].sizes
        return (*sizes[:2], *sizes[3:])

    # -- Speed

    def shape_class(self) -> dict[str, int | str]:
        """The windows' sizes and steps, and how many there are."""
        windows, pooled = self.windows(), self.pooled()
        return {
            "windows": pooled.element_count,
            "width": pooled.sizes[-1],
            "taps": self.taps(),
            "stride": windows[-1].stride,
            "layout": self.layout(),
        }

    @property
    def computed(self) -> str:
        """The type in which floats are combined: a float16 is rounded only when it is stored."""
        data_type = self.whole().data_type
        return "float32" if data_type is TensorDataType.FLOAT16 else data_type.tvm


def flattened(tensor: TensorDesc) -> TensorDesc:
    """A tensor of rank 3 with a dimension of size 1 in front of the last one."""
    (n, c, width), (batch, channel, step) = tensor.sizes, tensor.layout
    return ArrayTensorDesc(tensor.data_type, (n, c, 1, width), (batch, channel, channel, step))
