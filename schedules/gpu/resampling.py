"""The resampling family on a GPU: a thread for neighbours of the result gathers what is around them, or what one has a part in.

Sizes, strides and the numbers of the grids are passed at launch. A place has two neighbours in a dimension, which are in a cache
for the threads beside it: resampling one dimension after the other would write and read the image once more. Antialiased results
have the default schedule, whose kernels are for one shape: a grid with weights has more numbers than can be passed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob
from tvmdml.kernels.launched import patterns
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators._resampling import Grid, Resampled, Resampling
from tvmdml.schedules.gpu import Numbers, _default, each_item, group_knobs, groups_for, one_launch, require_few_rounds, taken_steps
from tvmdml.targets._device import DeviceTarget

KNOBS = group_knobs(
    "resampling",
    gathered=Knob(4, (1, 2, 4), "neighbours of the result that a thread has, which share their coordinates"),
    gathered_items=Knob(1 << 16, (1, *(1 << n for n in range(10, 21))), "fewest threads that have several of them"),
)
_NUMBERS = 7
"""Of a grid, those that every kernel takes; one of the two sizes is the result's, and the other one is passed behind them. The
first and the third are divided by."""

_MOST_EXACT = 1 << 30


def kernel(desc: Resampling, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch."""
    if any(grid is not None and grid.fall for grid in desc.grids()):
        return _default.kernel(desc, target, shared)
    writer = _Writer(desc, target, knobs)
    types = (*desc.stored_types(), *([desc.computed] if desc.is_linear or not writer.forward else []))
    return one_launch(desc, target, "gathers", writer, *sorted(types))


class _Dimension(NamedTuple):
    """A dimension, or several that only copy."""

    size: int
    """Of the result."""
    steps: tuple[int, int]
    """In the tensor that has elements, and in the one that has places."""
    grid: Grid | None


def _dimensions(desc: Resampling, written: int) -> list[_Dimension]:
    """As few as possible. Neighbouring threads write neighbours, if dimensions that copy can be moved so."""
    ends, grids = desc.ends(), desc.grids()
    steps = [taken_steps(one.sizes, one.layout) for one in ends]
    found: list[_Dimension] = []
    for copies, some in itertools.groupby(range(ends[0].rank), key=lambda i: grids[i] is None):
        dims = list(some)
        if copies:
            own = (tuple(own[i] for i in dims) for own in steps)
            sizes, (elements, places) = collapse(tuple(ends[1].sizes[i] for i in dims), *own)
            found += [_Dimension(n, (s, t), None) for n, s, t in zip(sizes, elements, places, strict=True)]
        else:
            found += [_Dimension(ends[written].sizes[i], (steps[0][i], steps[1][i]), grids[i]) for i in dims]
    found = found or [_Dimension(1, (0, 0), None)]
    ordered = sorted(found, key=lambda one: -one.steps[written])
    # Neighbours are weighed one dimension inside of another: that order decides the bits.
    same = [one for one in ordered if one.grid] == [one for one in found if one.grid]
    return ordered if same else found


class _Writer:
    """Writes the kernel."""

    def __init__(self, desc: Resampling, target: DeviceTarget, knobs: Any) -> None:
        self.desc, self.forward = desc, isinstance(desc, Resampled)
        ends = desc.ends()
        written = int(self.forward)
        dims = _dimensions(desc, written)
        self.grids = [one.grid for one in dims]
        items = ends[written].element_count
        self.threads = min(knobs.threads, target.max_threads)
        many = dims[-1].size % knobs.gathered == 0 and items >= knobs.gathered * knobs.gathered_items
        self.several = knobs.gathered if many and self.forward else 1
        groups = groups_for(items // self.several, self.threads, target, knobs.most_groups)
        self._check_rounds(target, -(-items // (groups * self.threads)))
        grids = [grid for grid in self.grids if grid is not None]
        # The places are of the same type as all other numbers.
        span = max(*(one.span for one in ends), *(one.element_count for one in ends), *(grid.span for grid in grids), 1)
        numbers = (
            number for grid in grids for number in (grid[1], *grid[3:_NUMBERS], grid.inputs if self.forward else grid.outputs)
        )
        self.numbers = Numbers(
            span + 2 * max((grid.step for grid in grids), default=0),
            plain=("sizes", "elements", "places", "parts", "grid_steps", "grids", "inverses"),
            divisors=("parts", "sizes", *(() if self.forward else ("grid_steps",))) if target.has("int64") else (),
            groups=groups,
            sizes=tuple(one.size for one in dims),
            elements=tuple(one.steps[0] for one in dims),
            places=tuple(one.steps[1] for one in dims),
            parts=tuple(grid.parts for grid in grids),
            grid_steps=tuple(grid.step for grid in grids),
            grids=tuple(numbers),
            inverses=tuple(patterns([1 / grid.parts])[0] for grid in grids if self._is_exact(grid)),
        )
        self.types = ["" if desc.is_linear or not self.forward else desc.moved] * 2
        self.types = [own or one.data_type.tvm for own, one in zip(self.types, ends, strict=True)]
        self.parameters = (
            ("operator", "forward" if self.forward else "gradient"),
            ("linear", desc.is_linear),
            ("types", " ".join((*self.types, desc.computed))),
            ("resampled", "".join("-" if grid is None else "p" if self._is_exact(grid) else "g" for grid in self.grids)),
            ("threads", self.threads),
            ("several", self.several),
            *self.numbers.parameters,
        )

    def _check_rounds(self, target: DeviceTarget, each: int) -> None:
        """Refuse more rounds of loops than a device makes."""
        uses = [] if self.forward else [grid.most_uses(self.desc.is_linear) for grid in self.grids if grid is not None]
        rounds = (1 + sum(math.prod(uses[: i + 1]) for i in range(len(uses)))) * each
        require_few_rounds(self.desc, target, rounds)

    def _is_exact(self, grid: Grid) -> bool:
        """Whether parts are divided by exactly, if they are multiplied instead."""
        return self.desc.is_linear and grid.parts & (grid.parts - 1) == 0 and grid.parts <= _MOST_EXACT

    def function(self) -> T.PrimFunc:
        dtype = self.numbers.dtype
        with T.on_device(), T.counting(dtype), T.function() as f:
            first, second = self.desc.ends()
            names = ("elements", "places") if self.forward else ("places", "elements")
            declared = dict(zip(names, (f.buffer(name, kind) for name, kind in zip(names, self.types, strict=True)), strict=True))
            n = self.numbers.declare(f)

            @contextmanager
            def each(items: Any) -> Iterator[Any]:
                with each_item(n.groups, self.threads, dtype, T.let(items)) as item:
                    yield item

            ends = tuple(
                SimpleNamespace(sizes=n.sizes, layout=layout, data_type=tensor.data_type)
                for layout, tensor in ((n.elements, first), (n.places, second))
            )
            own: Any = self.desc
            several = {"several": self.several} if self.forward else {}
            own.write(each, (declared["elements"], declared["places"]), ends, self._grids(n), **several)
        return f.result()

    def _grids(self, n: Any) -> Sequence[Grid | None]:
        """The grids as integers of the launch."""
        waiting = iter(n.grids)
        found: list[Grid | None] = []
        divided, inverses = iter(zip(n.grid_steps, n.parts, strict=True)), iter(n.inverses)
        for grid, size in zip(self.grids, n.sizes, strict=True):
            if grid is None:
                found.append(None)
                continue
            (step, parts), start = next(divided), next(waiting)
            own = [step, start, parts, *(next(waiting) for _ in range(_NUMBERS - 3))]
            other = next(waiting)
            numbers = [*own, other, size] if self.forward else [*own, size, other]
            found.append(Grid(*numbers)._replace(inverse=next(inverses) if self._is_exact(grid) else None))
        return found
