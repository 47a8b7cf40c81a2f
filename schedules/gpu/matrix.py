"""Sums of products on a GPU: each group of threads computes a tile of a result, and each thread a block of it, in registers.

The factors' parts that a tile needs are brought to shared memory, some products of each sum at a time: while a group computes with
them, its threads load what comes next. Edges are predicates of the same kernel: a coordinate past the end reads the last one, and
products past the last one are 0. Factors may be anywhere that a ``Contraction`` says, so that a convolution is a product of its
filter and of an image that is never copied.

Sums have the family's order (``kernels/contraction.py``), whatever the tile. Tensor cores, which compute the products of float16
and of bytes, add the products of a block in an order of their own, which does not depend on the tile either. There are two
variants:

- ``tiles``: a group computes whole sums.
- ``blocks``: results are small and sums long, so a group computes one block of products of each sum. A second launch adds the
  blocks' sums.
- ``each``: results have one or two rows or columns and sums are short, as those of a depthwise convolution. Tiles would be nearly
  empty, so a thread computes some whole sums; what its neighbours read too is in the cache.
"""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels.contraction import KC, Contraction
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.gpu import Numbers, _default, _matrix_few, checked, enough_groups, reduction, require, require_few_rounds
from tvmdml.schedules.gpu._bits import BitMatrix, of_bits, serves
from tvmdml.schedules.gpu._matrix_forms import Leaf, MatrixTile
from tvmdml.schedules.gpu._matrix_held import Held, held_shape
from tvmdml.schedules.gpu._matrix_leaves import Cores, Plain, has_cores
from tvmdml.schedules.gpu._matrix_loads import Moved, are_near, is_inner_first, moved
from tvmdml.schedules.gpu._matrix_tiles import TILES, busy_groups, chosen
from tvmdml.schedules.gpu._matrix_writer import WholeSums, Writer, passed
from tvmdml.targets._device import DeviceTarget

_BUSY = {"sm_75": 64, "sm_86": 64, "sm_87": 16, "sm_110": 16, "sm_121": 32}
"""Of families whose common devices are smaller than data centres' are."""
KNOBS = Knobs(
    "matrix",
    enough_groups(1024),
    algorithm=Knob("auto", ("auto", "tiles", "blocks", "each"), "the variant; auto chooses by the size of results"),
    tile=Knob("auto", ("auto", *TILES), "rows and columns of a group's part of a result; auto chooses by how many parts there are"),
    busy=Knob(128, (16, 32, 64, 128, 256), "groups that keep the device busy, as many as it has multiprocessors", on=_BUSY),
    depth=Knob(16, (8, 16, 32), "products of each sum in shared memory at once; for tensor cores, in words"),
    stages=Knob(3, (1, 2, 3, 4), "how often there is such memory, where copies go on meanwhile; it is less if it has no room"),
    most_groups=Knob(1 << 20, tuple(1 << n for n in range(21)), "maximum groups per launch; each strides over the rest"),
)

_THREADS = 256
"""The threads of a group that adds blocks' sums, or has a sum for each."""
_THIN = 2
"""Rows or columns of results for which tiles would be nearly empty."""
_SEVERAL = 4
"""The sums of a thread that has whole sums, if there are enough for all."""
_SCRATCH = 1 << 24
"""Most elements of the blocks' sums."""


def kernel(desc: Matrix, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch, or two; then those of a fused operator that needs whole rows."""
    contraction, after = desc.in_phases(), None
    own = of_bits(desc)
    if 0 in contraction.sizes or (own is not None and not serves(own)):
        return _default.kernel(desc, target, shared)
    if own is not None and math.prod(contraction.rows) <= _matrix_few.MOST_ROWS:
        return _matrix_few.kernel(desc, own, contraction, target, knobs)
    if (rowwise := desc.of_rows()) is not None:
        require(desc, target, desc.output_tensor.data_type.tvm)  # else the operator of rows is what an error names
        after = reduction.writer_of(rowwise, target, reduction.KNOBS.now(target))
    batch, rows, columns, depth = (math.prod(sizes) for sizes in contraction.groups)
    bits = None if own is None else BitMatrix(own)
    types = [getattr(desc, one.name).data_type.tvm for one in (contraction.a, contraction.b)]
    if bits is not None:  # integers of few bits are exact as float16
        types[1] = "float16" if bits.period else contraction.computed
    # Which products have tensor cores does not depend on knobs, as they make other bits.
    thin = (
        own is None
        and after is None
        and depth <= KC
        and min(rows, columns) <= _THIN
        and are_near(contraction, int(rows <= columns))
    )
    cores = has_cores(contraction, types, target) and not thin
    shape = None if thin else held_shape(contraction, types, target)
    if bits is not None and shape is not None and bits.period % shape[2]:
        shape = None  # sums of several blocks, which have other scales
    if thin and knobs.algorithm in ("auto", "each"):
        return _each(desc, contraction, target, knobs)
    inner_first = [(bits is not None and which == 1) or is_inner_first(contraction, which) for which in (0, 1)]

    def leaf_of(tile: MatrixTile, step: int, stages: int) -> Leaf:
        if cores:
            step = min(step, bits.period // 2) if bits is not None else step
            return Cores(tile, step, stages, contraction.computed, types, inner_first)
        if shape is not None:
            shifted = [contraction.a_zero is not None, contraction.b_zero is not None]
            step = step if bits is None else min(max(step, bits.per_word), bits.period)
            return Held(tile, step, stages, types, shape, target.subgroup_size, inner_first, shifted, bits is not None)
        step = max(step, 0 if bits is None else bits.per_word)
        return Plain(tile, step, stages, contraction.computed, types, target.has("packed_floats"), target.has("unrolled_loops"))

    can_copy, some = knobs.stages > 1 and target.has("async_copies"), leaf_of(next(iter(TILES.values())), 8, 1)
    sizes = [getattr(desc, one.name).data_type.itemsize for one in (contraction.a, contraction.b)]
    ways = [moved(contraction, which, sizes[which], some, can_copy, target.has("predicates")) for which in (0, 1)]
    if bits is not None:
        ways[1] = Moved(inner_first=False, run=1, size=4, copied=False, packed=bits.per_word)
    stages = knobs.stages if any(way.copied for way in ways) else min(knobs.stages, 2) if cores or shape else 1

    def slots(leaf: Leaf) -> int:
        return int(max(way.slots(leaf, which) for which, way in enumerate(ways)))

    leaf = chosen(knobs, target, (batch, rows, columns, depth), leaf_of, slots, stages)
    blocks, count = -(-depth // KC), batch * rows * columns
    few = (
        batch * leaf.tile.groups(rows, columns) < busy_groups(knobs, target)
        if knobs.algorithm == "auto"
        else knobs.algorithm == "blocks"
    )
    split = few and after is None and 1 < blocks <= _SCRATCH // count
    if split:
        leaf = chosen(knobs, target, (batch * blocks, rows, columns, KC), leaf_of, slots, stages)
    tile, step = leaf.tile, leaf.step
    total = batch * tile.groups(rows, columns) * (blocks if split else 1)
    most = min(target.max_groups, knobs.most_groups)
    groups, threads = max(1, min(total, most)), min(_THREADS, target.max_threads)
    steps = KC // step if split else -(-depth // step)
    parts = leaf.slab_rows * tile.columns // leaf.threads
    rounds = -(-total // groups) * (steps * (leaf.loops + 1) + leaf.rounds * (parts + 1) + 1)
    require_few_rounds(desc, target, rounds)
    known, integers = passed(contraction)
    adding = max(1, min(-(-count // threads), most))
    numbers = Numbers(
        max(
            *(contraction.span, total + groups, (rows + tile.rows) * 2, (columns + tile.columns) * 2, depth + 4 * KC),
            *((count * blocks, count + adding * threads) if split else (count,)),
            *(() if bits is None else bits.spans),
        ),
        # A separate number for each launch, as TVM would name one that two launches share.
        groups=(groups, adding) if split else (groups,),
        total=total,
        tiles=(-(-rows // tile.rows), -(-columns // tile.columns)),
        steps=steps,
        blocks=blocks,
        divisors=("inner", "outer") if target.has("int64") else (),
        **integers,
        **({} if bits is None else {"bits": bits.numbers, "words": bits.raising, "plain": ("bits",)}),
    )
    stored = {tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None} if bits is None else bits.types(desc)
    require(desc, target, *sorted(stored), contraction.computed)
    is_scaled = bits is not None and (cores or shape is not None)
    deep = is_scaled or (contraction.computed != "int32" and depth > KC and not split)
    choices = {"leaf": leaf, "moved": ways, "deep": deep, "single": groups == total, "known": known}
    choices |= {"adds": threads if split else 0, **({} if bits is None else {"bits": bits, "is_scaled": is_scaled})}
    writer = Writer(desc, contraction, numbers, after, **choices)
    module, *also = desc.modules()
    scratch = ((contraction.computed, count * blocks if split else count),) if split or after else ()
    scalars = numbers.scalars
    if after is not None:
        scratch, scalars = (*scratch, *after.scratch), (*scalars, *after.numbers.scalars)
    way = "blocks" if split else "tiles"
    built = Kernel(module, way, writer.parameters, writer.function, scalars, scratch, also=tuple(also))
    return checked(desc, target, built)


def _each(desc: Matrix, contraction: Contraction, target: DeviceTarget, knobs: Any) -> Kernel:
    """A thread for each sum."""
    depth, count = math.prod(contraction.inner), math.prod(contraction.outer)
    threads = min(_THREADS, target.max_threads)
    rows, columns = math.prod(contraction.rows), math.prod(contraction.columns)
    several = _SEVERAL if count >= _SEVERAL * threads * busy_groups(knobs, target) else 1
    total = count // max(rows, columns) * -(-max(rows, columns) // several)
    groups = max(1, min(-(-total // threads), target.max_groups, knobs.most_groups))
    rounds = -(-total // (groups * threads)) * (2 * depth + 1)
    require_few_rounds(desc, target, rounds)
    known, integers = passed(contraction)
    span = max(contraction.span, several * (total + groups * threads))
    numbers = Numbers(span, groups=(groups,), total=total, divisors=("outer",) if target.has("int64") else (), **integers)
    types = (tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None)
    require(desc, target, *types, contraction.computed)
    writer = WholeSums(
        desc, contraction, numbers, None, known=known, adds=0, threads=threads, several=several, along=1 if rows > columns else 2
    )
    module, *also = desc.modules()
    built = Kernel(module, "each", writer.parameters, writer.function, numbers.scalars, (), also=tuple(also))
    return checked(desc, target, built)
