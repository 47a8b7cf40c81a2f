"""Gradients of windows: an element of the whole tensor gathers from the windows that reach it, in row-major order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import counted_loop, nested
from tvmdml.operators._contract import Shared, Uints
from tvmdml.operators._window import ABSENT, Cascade, Window, WindowAxis, levels_of, number, up
from tvmdml.tensors import TensorDesc

SIZES = MappingProxyType({"output_gradient_sizes": Uints})
USUAL = dict.fromkeys(ABSENT)


class Gathered(Window):
    """Base class of such operators."""

    WHOLE = "output_gradient_tensor"
    POOLED = "input_gradient_tensor"

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given."""
        return {}

    def term(self, tensors: dict[str, Any], at: Sequence[Any], window: Sequence[Any]) -> Any:
        """What an element gets from a window that reaches it: a condition, or ``None``, and a value."""
        raise NotImplementedError(self.NAME)

    def give(self, tensors: dict[str, Any], window: Sequence[Any], add: Callable[[Sequence[Any], Any], None]) -> None:
        """The same by windows: ``add`` what a window gives to places, in row-major order."""
        raise NotImplementedError(self.NAME)

    def windows_at(self) -> int:
        """The most windows that reach an element. Kernels whose sizes are integers of the launch are given it."""
        known = getattr(self, "known_windows", None)
        if known is not None:
            return int(known)
        return math.prod(self._meeting(one) or 1 for one in self.windows())

    def reads(self) -> int:
        """The most elements that are read for an element."""
        return self.windows_at()

    def _meeting(self, along: WindowAxis) -> int | None:
        if not all(isinstance(n, int) for n in along):
            return None
        most, count = -(-along.span // along.stride), getattr(self.pooled(), "known_sizes", None) or self.pooled().sizes
        return min(most, count[along.dimension]) if isinstance(count[along.dimension], int) else most

    @contextmanager
    def meeting(self, at: Sequence[Any]) -> Iterator[tuple[list[Any], Any]]:
        """Run the statements for each window with a tap at these coordinates, or between two of its taps.

        Returns the window's coordinates, and a condition: whether the element is a tap; ``None`` where it always is.
        """
        dtype = "int64" if self.wide() else T.type_of(T.index(0))
        loops, ends = [], []
        sizes = self.pooled().sizes
        for one in self.windows():
            place = T.hold(number(at[one.dimension], dtype) + number(one.start, dtype))
            stride = number(one.stride, dtype)
            span = T.hold((number(one.size, dtype) - T.const(1, dtype)) * number(one.dilation, dtype))
            first = T.hold(up(place - span, one.stride if one.stride == 1 else stride))
            stop = T.hold(T.min(T.truncdiv(place, stride) + T.const(1, dtype), number(sizes[one.dimension], dtype)))
            loops.append(counted_loop(T.hold(T.max(stop - first, T.const(0, dtype))), self._meeting(one)))
            ends.append((one, first, place, stride))
        with nested(loops) as rounds:
            window, fits = list(at), None
            for (one, first, place, stride), i in zip(ends, rounds, strict=True):
                o = T.let(first + i)
                window[one.dimension] = o
                if not (isinstance(one.dilation, int) and one.dilation == 1):
                    past = T.let(place - o * stride)
                    dilation = number(one.dilation, dtype)
                    own = T.truncdiv(past, dilation) * dilation == past
                    fits = own if fits is None else fits & own
            yield window, fits

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element of the whole tensor."""
        with T.function() as f:
            self.write(each, f.tensors(self, shared))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        result, dtype = self.whole(), self.computed
        levels = levels_of(self.windows_at())
        with T.elements(each, result.sizes, result.layout, self.several()) as at:
            total = Cascade(dtype, levels)
            with self.meeting(at) as (window, fits), T.when(T.const(True, "bool") if fits is None else fits):
                condition, value = self.term(tensors, at, window)
                if condition is None:
                    total.add(value)
                else:
                    with T.when(condition):
                        total.add(value)
            T.store(tensors[self.WHOLE], T.dot(at, result.layout), T.to(total.value(), result.data_type.tvm))
