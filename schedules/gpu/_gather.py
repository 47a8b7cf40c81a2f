"""Computations whose items gather what they need: a thread for each item, with sizes and strides as integers of the launch.

Neighbouring threads have neighbours in the result's memory, whichever dimension is contiguous there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob
from tvmdml.kernels.launched import with_fields
from tvmdml.kernels.open_shapes import OrderedStrides, TensorOfLaunch
from tvmdml.operators._contract import Role
from tvmdml.schedules.gpu import Numbers, each_item, groups_for, one_launch, require_few_rounds, taken_steps
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvmdml.tensors import TensorDesc

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class GatherWriter:
    """Writes a kernel: the operator's ``write``, on a copy of its descriptor with integers of the launch in place of constants.

    Args:
        span: the largest number that is computed, beside offsets and counts of elements.
        fields: the attributes that are passed at launch. All others are constants.
        of_channels: inputs with one element, or one for each channel.
        known: what the copy is told, which identifies the kernel.
        most_rounds: of loops for an item, no fewer than there are; by default they are counted.
    """

    def __init__(
        self, desc: Any, target: DeviceTarget, knobs: Any, span: int, fields: Sequence[str] = (), of_channels: Sequence[str] = (),
        known: Mapping[str, Any] = _NOTHING, most_rounds: int | None = None,
    ) -> None:  # fmt: skip
        self.desc, self.target, self.known, self.fields = desc, target, dict(known), tuple(fields)
        self.most_rounds = most_rounds
        self.tensors: dict[str, TensorDesc] = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
        self.of_channels = [name for name in of_channels if name in self.tensors]
        self.threads = min(knobs.threads, target.max_threads)
        self.most = groups_for(1 << 62, 1, target, knobs.most_groups)
        values: dict[str, Any] = {"most": self.most} | {f"{name}_": tuple(getattr(desc, name)) for name in fields}
        self.like: list[tuple[str, str]] = []
        found: dict[tuple[str, tuple[int, ...]], str] = {}
        for i, (name, tensor) in enumerate(self.tensors.items()):
            steps = taken_steps(tensor.sizes, tensor.layout)
            if name in self.of_channels:
                own = {f"stride{i}_": steps[1:2] if tensor.element_count > 1 else ()}
            else:
                own = {f"size{i}_": tensor.sizes, f"stride{i}_": steps}
            names = [found.setdefault((key.rstrip("0123456789_"), numbers), key) for key, numbers in own.items()]
            values |= {key: numbers for key, numbers in own.items() if key in names}
            self.like.append(("" if len(names) == 1 else names[0], names[-1]))
        spans = (max(tensor.span, tensor.element_count) for tensor in self.tensors.values())
        written = {name for name, _ in desc.tensors(Role.OUTPUT)}
        sizes = dict.fromkeys(size for name, (size, _) in zip(self.tensors, self.like, strict=True) if name in written)
        divisors = [*sizes] if target.has("int64") else []
        self.numbers = Numbers(max(span, *spans) + self.most * self.threads, divisors=divisors, **values)
        own_fields = [field.name for field in desc.fields() if field.name not in (*self.tensors, *self.fields)]
        types = (f"{name}:{tensor.data_type.tvm}{tensor.rank}" for name, tensor in self.tensors.items())
        self.parameters = (
            ("operator", desc.NAME),
            ("types", " ".join(types)),
            ("attributes", " ".join(f"{name}={getattr(desc, name)!r}" for name in own_fields)),
            ("like", " ".join(f"{size}{stride}" for size, stride in self.like)),
            ("orders", " ".join("".join(map(str, self.order(one))) + "1" * self._is_packed(one) for one in self.tensors.values())),
            *self.known.items(),
            ("threads", self.threads),
            *self.numbers.parameters,
        )

    def check_rounds(self) -> None:
        """Refuse more rounds of loops than the device makes."""
        limit, largest = self.target.max_rounds, max(tensor.element_count for tensor in self.tensors.values())
        if limit is None or (self.most_rounds and self.most_rounds * -(-largest // (self.threads * self.most)) <= limit):
            return
        own, most = with_fields(self.desc, **self.known), 1

        @contextmanager
        def each(items: Any) -> Iterator[Any]:
            nonlocal most
            most = max(most, -(-int(getattr(items, "value", items)) // (self.threads * self.most)))
            yield T.index(0)

        with T.on_device(), T.counting(self.numbers.dtype), T.rounds_counted() as rounds, T.function() as f:
            self.counted(own, each, f.tensors(own))
        require_few_rounds(self.desc, self.target, (rounds.total + 1) * most)  # the loop over items makes rounds, too

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.counting(self.numbers.dtype), T.function() as f:
            own, buffers = self.declare(f)
            self.write(own, buffers)
        return f.result()

    def declare(self, f: T.Function) -> tuple[Any, dict[str, Any]]:
        """Add the parameters: the descriptor with integers of the launch, and the tensors' buffers."""
        buffers = {name: f.buffer(name, tensor.data_type.stored.tvm) for name, tensor in self.tensors.items()}
        self.n = n = self.numbers.declare(f)
        tensors = {}
        for (name, tensor), (size, stride) in zip(self.tensors.items(), self.like, strict=True):
            steps = getattr(n, stride, [])
            if not size:
                steps = [0, *(steps or [0]), *[0] * (tensor.rank - 2)][: tensor.rank]
            sizes, order = getattr(n, size) if size else tensor.sizes, self.order(tensor)
            if self._is_packed(tensor):
                steps = [self.numbers.const(1) if i == order[-1] else step for i, step in enumerate(steps)]
            tensors[name] = TensorOfLaunch(tensor, sizes, OrderedStrides.of(steps, order))
        given = {name: tuple(getattr(n, f"{name}_")) for name in self.fields}
        return with_fields(self.desc, **tensors, **given, **self.known), buffers

    def write(self, own: Any, buffers: dict[str, Any]) -> None:
        """The launches."""
        own.write(self.each, buffers)

    def counted(self, desc: Any, each: T.Each, buffers: dict[str, Any]) -> None:
        """The statements of a thread, whose rounds of loops are counted."""
        desc.write(each, buffers)

    @contextmanager
    def each(self, items: Any) -> Iterator[Any]:
        """A launch with so many items."""
        dtype = self.numbers.dtype
        wanted = T.truncdiv(items + (self.threads - 1), self.numbers.const(self.threads))
        groups = T.max(T.min(wanted, self.n.most), self.numbers.const(1))
        with each_item(groups, self.threads, dtype, T.index(items)) as item:
            yield item

    @staticmethod
    def order(tensor: TensorDesc) -> list[int]:
        """The dimensions from the largest step to the least."""
        return sorted(range(tensor.rank), key=lambda i: -tensor.layout[i])

    def _is_packed(self, tensor: TensorDesc) -> bool:
        """Whether the least step is 1, which is a constant: neighbours then have addresses that differ by one."""
        return tensor.layout[self.order(tensor)[-1]] == 1 and all(tensor is not self.tensors[name] for name in self.of_channels)


def kernel(desc: Any, target: DeviceTarget, knobs: Any, known: Mapping[str, Any] = _NOTHING) -> Kernel:
    """The kernel of an operator that is written by ``write``, with its attributes as constants."""
    return finished(GatherWriter(desc, target, knobs, 0, known=known), "gathers")


def finished(writer: GatherWriter, name: str, *types: str) -> Kernel:
    """The kernel of a writer; ``types`` are those in which it computes beside those of the tensors."""
    writer.check_rounds()
    kinds = {tensor.data_type.tvm for tensor in writer.tensors.values()}
    return one_launch(writer.desc, writer.target, name, writer, *sorted({*kinds, *types}))


def channels_for(result: TensorDesc, knobs: Any) -> int:
    """How many channels a thread has, of a result whose second dimension they are: a power of two."""
    count: int = knobs.channels
    while count > 1 and (count > result.sizes[1] or result.element_count < knobs.channel_items * count):
        count //= 2
    return count


CHANNELS = {
    "channels": Knob(8, (1, 2, 4, 8), "channels of a thread, at most, where places are computed once for several"),
    "channel_items": Knob(1 << 16, (1, *(1 << n for n in range(10, 21))), "fewest threads that have several channels"),
}
"""Knobs of schedules whose threads may have several channels."""
