"""Local response normalization over channels: a thread goes along the channels of a place, with a region in registers.

An element is read once for all regions that have it, and of a gradient each power is computed once. Regions are summed anew, in the
order of the channels, as everywhere: no sum is taken apart again, which would lose digits. Elements outside are zeros, which change
no sum. Neighbouring threads have neighbouring places; where channels are neighbours in memory, a thread has one element instead.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._window_response import Response
from tvmdml.operators.local_response import LocalResponseNormalizationGrad
from tvmdml.schedules.gpu._gather import GatherWriter
from tvmdml.targets._device import DeviceTarget

_MOST = 15
"""The largest region in registers."""
_LONGEST, _SHORTEST = 32, 8
"""The channels of a thread."""


def run_of(desc: Any, knobs: Any) -> int:
    """How many channels a thread goes along: a power of two; 0 if that does not suit the operator."""
    if not isinstance(desc, Response) or not desc.cross_channel or not 2 <= desc.local_size <= _MOST or desc.wide():
        return 0
    result, run = desc.pooled(), _LONGEST
    steps = [step for size, step in zip(result.sizes, result.layout, strict=True) if size > 1]
    if result.sizes[1] == 1 or result.layout[1] == min(steps):
        return 0
    while run >= _SHORTEST and (run > max(result.sizes[1], _SHORTEST) or result.element_count < run * knobs.channel_items):
        run //= 2
    return run if run >= _SHORTEST else 0


class _Ring:
    """The last values of a kind, in registers: number 0 is the oldest."""

    def __init__(self, dtype: str, count: int) -> None:
        self._values, self.count = T.local(dtype, count), count

    def push(self, value: Any) -> Any:
        """Add a value, which may be computed from the others, and forget the oldest."""
        value = T.hold(value)
        for i in range(self.count - 1):
            T.store(self._values, i, self._values[i + 1])
        T.store(self._values, self.count - 1, value)
        return value

    def __getitem__(self, i: int) -> Any:
        """One of them."""
        return self._values[i]

    def total(self) -> Any:
        """Their sum, from the oldest on."""
        found = self[0]
        for i in range(1, self.count):
            found = found + self[i]
        return T.hold(found)


class Sliding(GatherWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    def __init__(self, desc: Any, target: DeviceTarget, knobs: Any, run: int) -> None:
        super().__init__(desc, target, knobs, 2 * (desc.pooled().sizes[1] + 4 * run), known={"run": run}, most_rounds=4 * run)

    def write(self, own: Any, buffers: dict[str, Any]) -> None:
        self._write(own, self.each, buffers)

    def counted(self, desc: Any, each: T.Each, buffers: dict[str, Any]) -> None:
        self._write(desc, each, buffers)

    def _write(self, own: Any, each: T.Each, buffers: dict[str, Any]) -> None:
        run, y = own.run, own.pooled()
        batches, channels, *image = y.sizes
        blocks = T.truncdiv(T.index(channels) + (run - 1), T.const(run, T.type_of(T.index(0))))
        with T.elements(each, (batches, blocks, *image), y.layout) as (n, block, *place):
            channel = T.let(block * run)
            some = T.let(T.min(T.index(channels) - channel, T.const(run, T.type_of(T.index(0)))))
            bases = {name: T.let(T.dot([n, *place], [one.layout[0], *one.layout[2:]])) for name, one in own.tensors()}
            at = _Places(own, buffers, bases, channels)
            slide = _slide_gradient if isinstance(own, LocalResponseNormalizationGrad) else _slide
            slide(own, at, channel, some)


class _Places:
    """The channels of a place in all tensors."""

    def __init__(self, desc: Any, buffers: dict[str, Any], bases: dict[str, Any], channels: Any) -> None:
        self._desc, self._buffers, self._bases, self._channels = desc, buffers, bases, T.index(channels)

    def exists(self, channel: Any) -> Any:
        """Whether there is such a channel."""
        return (channel >= T.like(channel, 0)) & (channel < self._channels)

    def read(self, name: str, channel: Any) -> Any:
        """An element; 0 outside."""
        value = T.to(self._buffers[name][self._offset(name, channel)], self._desc.computed)
        return T.if_then_else(self.exists(channel), value, T.const(0, self._desc.computed))

    def write(self, channel: Any, value: Any) -> None:
        """Store an element of the result."""
        name = self._desc.POOLED
        T.store(self._buffers[name], self._offset(name, channel), T.to(value, getattr(self._desc, name).data_type.tvm))

    def _offset(self, name: str, channel: Any) -> Any:
        return self._bases[name] + channel * getattr(self._desc, name).layout[1]


def _slide(desc: Any, at: _Places, channel: Any, some: Any) -> None:
    """The results from a channel on."""
    size, run, (along,) = desc.local_size, desc.run, desc.windows()
    squares, elements = _Ring(desc.computed, size), _Ring(desc.computed, along.end + 1)

    def push(place: Any) -> None:
        x = elements.push(at.read("input_tensor", place))
        squares.push(desc.term(x))

    with T.loop(T.const(size - 1, T.type_of(channel))) as i:
        push(T.let(channel - along.start + i))
    with T.loop(some, most=run) as i:
        here = T.let(channel + i)
        push(T.let(here + along.end))
        at.write(here, elements[0] / desc.power(desc.base(squares.total())))


def _slide_gradient(desc: Any, at: _Places, channel: Any, some: Any) -> None:
    """The gradients from a channel on: each step reads an element, and has the share of the one that its region completes."""
    size, run, (along,) = desc.local_size, desc.run, desc.windows()
    squares, elements, shares = (_Ring(desc.computed, size) for _ in range(3))
    gradients, bases = (_Ring(desc.computed, along.start + 1) for _ in range(2))
    first = T.let(channel - (size - 1))

    def push(place: Any) -> None:
        squares.push(desc.term(elements.push(at.read("input_tensor", place))))

    with T.loop(T.const(size - 1, T.type_of(channel))) as i:
        push(T.let(first + i))
    with T.loop(T.let(some + (size - 1)), most=run + size - 1) as i:
        there = T.let(channel - along.end + i)  # whose region is complete
        push(T.let(channel + i))
        base = bases.push(desc.base(squares.total()))
        gradient = gradients.push(at.read("input_gradient_tensor", there))
        share = T.hold(desc.share(gradient, elements[along.start], base))
        shares.push(T.Select(at.exists(there), share, T.like(share, 0)))
        with T.when(i >= T.like(i, size - 1)):
            at.write(T.let(there - along.start), desc.difference(gradients[0], elements[0], bases[0], shares.total()))
