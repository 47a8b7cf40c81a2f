"""Shapes as integers of the launch: what a computation sees of tensors where one kernel serves a class of shapes.

The shapes of a class have the same types and ranks, and what a kernel must know to be fast: which strides are 0, whether the
innermost stride is 1, a short innermost size, and which tensors have equal sizes or strides. The rest is passed at launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmdml.tensors import TensorDataType, TensorDesc

SHORT = 16
"""An innermost size below this is a constant: with so few elements in a row, its length decides how fast the kernel is."""

Known = tuple[int | None, ...]


class OrderedStrides(tuple[Any, ...]):
    """Strides that are integers of the launch, with the order of the dimensions: from the largest step to the least."""

    order: tuple[int, ...]

    @classmethod
    def of(cls, steps: Sequence[Any], order: Sequence[int]) -> OrderedStrides:
        """The strides."""
        found = cls(steps)
        found.order = tuple(order)
        return found


def product(sizes: Sequence[Any]) -> Any:
    """The number of elements of sizes, some of which are integers of the launch."""
    count: Any = 1
    for size in sizes:
        count = size * count
    return count


class TensorOfLaunch:
    """A tensor in place of a ``TensorDesc``, whose sizes or strides are integers of the launch."""

    def __init__(self, tensor: TensorDesc, sizes: Sequence[Any], layout: Sequence[Any]) -> None:
        self.data_type, self.rank, self.sizes, self.layout = tensor.data_type, tensor.rank, sizes, layout

    @property
    def element_count(self) -> Any:
        """Number of elements."""
        return product(self.sizes)


class Launched:
    """The sizes or the strides of tensors: constants, and integers of the launch where ``known`` has none."""

    def __init__(self, name: str, known: Known) -> None:
        self._name, self._known = name, known
        self._values: tuple[Any, ...] | None = None

    def declare(self, scalar: Callable[[str], Any]) -> None:
        """Add the kernel's parameters; ``scalar`` adds one."""
        self._values = tuple(scalar(f"{self._name}_{i}") if one is None else one for i, one in enumerate(self._known))

    @property
    def values(self) -> tuple[Any, ...]:
        """Python integers, and integers of the launch."""
        if self._values is None:
            raise RuntimeError(f"{self._name}: a computation may read sizes and strides only after Function.tensors")
        return self._values


@dataclass(frozen=True)
class OpenTensor:
    """A tensor of a class of shapes, with the properties of a ``TensorDesc`` that a computation may read."""

    data_type: TensorDataType
    known_sizes: Known
    known_strides: Known
    like: tuple[int, int]
    """The first tensor with these sizes, and the first one with these strides."""
    integers: tuple[Launched, Launched] = field(repr=False, compare=False)
    """Its sizes and strides; those of tensors that are alike are the same objects."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.known_sizes)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The sizes, as integers of the launch; a short innermost one is a Python integer."""
        return self.integers[0].values

    @property
    def layout(self) -> tuple[Any, ...]:
        """The strides, as integers of the launch or as Python integers."""
        return self.integers[1].values

    @property
    def element_count(self) -> Any:
        """Number of elements."""
        return product(self.sizes)


class OpenShapes:
    """The class of a descriptor's shapes: ``open`` is called once for each of its tensors, in field order."""

    def __init__(self) -> None:
        self._found: list[tuple[str, tuple[int, ...], int, Launched]] = []
        self._count = 0
        self._scalars: list[int] = []

    @property
    def scalars(self) -> tuple[int, ...]:
        """The integers of the launch, in the order of the kernel's parameters."""
        return tuple(self._scalars)

    def open(self, tensor: TensorDesc) -> OpenTensor:
        """The tensor's class."""
        *_, length = tensor.sizes
        known_sizes = (*(None for _ in tensor.sizes[1:]), length if length < SHORT else None)
        *outer, innermost = tensor.layout
        known_strides = (*(0 if step == 0 else None for step in outer), innermost if innermost in (0, 1) else None)
        size, sizes = self._integers("size", tensor.sizes, known_sizes)
        stride, strides = self._integers("stride", tensor.layout, known_strides)
        self._count += 1
        return OpenTensor(tensor.data_type, known_sizes, known_strides, (size, stride), (sizes, strides))

    def _integers(self, kind: str, values: tuple[int, ...], known: Known) -> tuple[int, Launched]:
        """The first tensor with these integers, and the integers."""
        for other, other_values, number, launched in self._found:
            if other == kind and other_values == values:  # sizes that are open are compared, and are no keys
                return number, launched
        launched = Launched(f"{kind}{self._count}", known)
        self._found.append((kind, values, self._count, launched))
        self._scalars += [value for value, one in zip(values, known, strict=True) if one is None]
        return self._count, launched
