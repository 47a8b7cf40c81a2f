"""Reductions on the CPU: a slice in vectors, or neighbouring slices in one vector each.

- ``rows``: elements of a slice are contiguous, or nothing is. A vector has elements of one slice. A long slice has parts, and its
  sums are those of the parts, in order; tasks may share a slice, and then go over all slices once for each walk. Where places of
  extremes are sought, the lanes of several slices are combined together.
- ``columns``: neighbouring slices are contiguous. A vector has an element of each of several slices; a task goes over a panel of
  them, row by row.

Sums have levels (``kernels/reduction.py``), so that no element takes part in many additions. The order follows from sizes, strides
and the processor's vectors, never from the number of tasks.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.reduction import CHAIN, LEVELS
from tvmdml.operators._contract import Shared
from tvmdml.operators._reduction import Reduction
from tvmdml.schedules.cpu import STREAMED, split, stream_bytes
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._reduction import ReductionWriter, is_by_bits, own_walks
from tvmdml.schedules.cpu._reduction_columns import SliceColumns
from tvmdml.schedules.cpu._reduction_places import ExtremePlaces
from tvmdml.schedules.cpu._reduction_rows import SliceVectors
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(26))

KNOBS = Knobs(
    "reduction",
    STREAMED,
    algorithm=Knob("auto", ("auto", "rows", "columns"), "the way; auto takes columns where neighbouring slices are contiguous"),
    task_elements=Knob(1 << 16, (1, *_POWERS[10:24]), "least elements for each task", derived=lambda caches: caches.l2 // 2 // 8
    ),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    part_elements=Knob(1 << 15, _POWERS[10:25], "least elements of each part of a long slice; sums depend on it"),
    panel_elements=Knob(1 << 12, _POWERS[4:16], "most totals of neighbouring slices that a task goes over together"),
    kept_elements=Knob(
        1 << 16, _POWERS[10:24], "longest row whose values are kept between walks", derived=lambda caches: caches.l2 // 2 // 8
    ),
    # With the slices that come next and the results beside them, 2048 float32 take 24 KB of the first cache.
    turn_elements=Knob(1 << 11, (1, *_POWERS[10:17]), "most elements of slices that take turns walk by walk"),
    vectors=Knob(4, (1, 2, 4, 8), "vectors with totals of their own; sums depend on it"),
    ahead_bytes=stream_bytes("least bytes of an input that is asked for before it is read, if it is read once", 0.25),
    stream_bytes=stream_bytes("least bytes of a result with all elements to write with non-temporal stores"),
)  # fmt: skip

_PARTS = 64
"""Most parts of a slice."""
_TOGETHER = 8
"""Most slices that take turns."""
_LONGEST_GROUP = 16
"""The most slices whose lanes are combined together."""
_LINES = 16
"""The least lines of a row that is written past the caches."""


def kernel(desc: Reduction, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Slices are divided among tasks, or each slice among several tasks."""
    operands, spaces = desc.operands(), desc.spaces()
    outer, inner, outer_steps, inner_steps = spaces
    length, count = math.prod(inner), math.prod(outer)
    neighbours, contiguous = spaces.neighbours, spaces.contiguous
    way = knobs.algorithm if neighbours and knobs.algorithm != "auto" else "columns" if neighbours and not contiguous else "rows"
    itemsize = operands[0][1].data_type.itemsize
    by_bits = is_by_bits(desc)
    walks = own_walks(desc, by_bits)
    widest = itemsize if by_bits else max(_computed_bytes(tensor) for _, tensor in operands)
    register = 64 if getattr(target, "processor", None) is not None and target.processor.has("avx512f") else 32  # type: ignore[attr-defined]
    run = inner[-1] if way == "rows" else outer[-1]
    lanes = _fitting(register // widest, run if way == "columns" or contiguous else 1)
    sought = way == "rows" and any(walk.extreme for walk in desc.walks())
    states = max((2 if sought else walk.states for walk in desc.walks()), default=1)
    vectors = _fitting(max(1, knobs.vectors // states), run // lanes)
    group = lanes * vectors

    tasks = split(length * count * len(operands), target, knobs.task_elements, knobs.tasks_per_thread)
    parts, chunk, panel, divided = 1, CHAIN * group, 1, False
    if way == "rows":
        chunks = length // inner[-1] * -(-inner[-1] // chunk)
        parts = max(1, min(_PARTS, chunks, length // knobs.part_elements))
        divided = parts > 1 and count < target.tasks() and tasks > 1
        tasks = min(tasks, count * parts if divided else count)
    else:
        wanted = -(-outer[-1] // -(-tasks * outer[-1] // count))  # a panel for every task, if slices are few
        most = knobs.panel_elements // max((walk.states for walk in walks), default=1) // group * group
        panel = max(group, min(most, -(-wanted // group) * group))
        tasks = min(tasks, count // outer[-1] * -(-outer[-1] // panel))
    together, single = 1, len(desc.walks()) + bool(desc.EACH) == 1
    if way == "rows" and parts == 1 and not single:
        together = max(1, min(_TOGETHER, knobs.turn_elements // length, count // tasks))
    once = way == "rows" and contiguous and single
    again = way == "rows" and contiguous and not divided and len(desc.walks()) > 1 and length <= knobs.kept_elements
    stream = _streamed(desc, way, lanes, inner[-1], knobs.stream_bytes)
    keeps = ""
    if way == "rows" and not divided and lanes > 1 and any(walk.kept for walk in desc.walks()):
        in_output = not stream and not shared and _has_room(desc)
        # What is kept of a row elsewhere has to stay in the cache.
        keeps = "output" if in_output else "scratch" if length <= knobs.kept_elements else ""
    grouped = sought and parts == 1 and not desc.EACH and 4 <= lanes <= min(_LONGEST_GROUP, count)
    if grouped:
        tasks = min(tasks, -(-count // lanes))
    writer: ReductionWriter = (SliceColumns if way == "columns" else ExtremePlaces if sought else SliceVectors)(
        desc,
        Leaves(target),
        lanes=lanes,
        vectors=vectors,
        ranks=(len(outer), len(inner)),
        last=tuple(_known(steps[-1]) for steps in (inner_steps if way == "rows" else outer_steps)),
        stream=stream,
        parts=parts > 1,
        short=way == "rows" and parts == 1 and len(inner) == 1 and length <= chunk,
        divided=divided,
        keeps=keeps,
        turns=together > 1,
        ahead=itemsize if (length * count * itemsize >= knobs.ahead_bytes if once else again) else 0,
        position=desc.position_type,
        by_bits=by_bits,
        **({"grouped": grouped} if sought else {}),
    )
    scalars = (
        tasks,
        parts,
        chunk if way == "rows" else panel,
        together,
        *outer,
        *inner,
        *sum(outer_steps, ()),
        *sum(inner_steps, ()),
    )
    states, finds = sum(walk.states for walk in walks), sum(walk.found for walk in walks)
    cells = count * parts * states if divided else tasks * together * ((length if keeps == "scratch" else 0) + finds)
    if grouped:
        cells = tasks * 2 * lanes * lanes
    if way == "columns":
        cells = tasks * (panel + group) * (LEVELS * max((walk.states for walk in walks), default=0) + finds)
    module, *also = desc.modules()
    return Kernel(module, way, writer.parameters, writer.function, scalars, (("int64", max(1, cells)),), also=tuple(also))


def _computed_bytes(tensor: Any) -> int:
    return max(4, int(tensor.data_type.itemsize)) if tensor.data_type.is_float else int(tensor.data_type.itemsize)


def _fitting(most: int, length: int) -> int:
    """The largest power of two up to both."""
    found = 1
    while found * 2 <= min(most, length):
        found *= 2
    return found


def _streamed(desc: Reduction, way: str, lanes: int, run: int, least: int) -> bool:
    """Whether the result with all elements is written past the caches: it is large, and its rows have many lines."""
    results = [tensor for name, tensor in desc.operands() if name in desc.EACH]
    if way != "rows" or len(results) != 1 or lanes == 1:
        return False
    (result,) = results
    itemsize = result.data_type.itemsize
    contiguous = desc.spaces().inner_steps[-1][-1] == 1
    return bool(contiguous and result.element_count * itemsize >= least and run * itemsize >= _LINES * LINE)


def _has_room(desc: Reduction) -> bool:
    """Whether values of rows can be kept where their results will be: in one contiguous output of the type that is computed in."""
    (_, result), *more = [(name, tensor) for name, tensor in desc.operands() if name in desc.EACH]
    return not more and result.data_type.tvm == desc.computed and desc.spaces().inner_steps[-1][-1] == 1


def _known(step: int) -> int:
    """A stride that the code depends on; -1 for any other."""
    return step if step in (0, 1) else -1
