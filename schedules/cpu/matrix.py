"""Products of matrices on the CPU: a tile of sums in registers over packed panels, or few rows over the second factor as it lies.

- ``tiles``: both factors are packed, block by block (``_gemm.py``).
- ``rows``: a few rows; the second factor is read once, where it is (``_gemm_rows.py``, ``_gemm_rows_bytes.py``).

Which of both factors has the rows follows from how the result lies. What these do not serve (sums over windows of an image) has
the default kernel, unless the operator has a schedule of its own.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels import tiles
from tvmdml.kernels.contraction import KC, Operand
from tvmdml.kernels.kernel import Kernel, Offers, Owned
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._matrix_bfloat16_fused import Bfloat16Convolution
from tvmdml.schedules.cpu import _convolution_knobs, _default, _gemm_amx, _gemm_image, split
from tvmdml.schedules.cpu._gemm import EVERY, LaunchIntegers, ProductLoops, TileShape, asks_every
from tvmdml.schedules.cpu._gemm_arithmetic import (
    ByteProducts,
    FloatProducts,
    PairProducts,
    ProductArithmetic,
    TileBytes,
    TileHalves,
    TilePairs,
)
from tvmdml.schedules.cpu._gemm_bfloat16 import Bfloat16, Bfloat16Product, TileBfloat16
from tvmdml.schedules.cpu._gemm_bit_panels import BitPacker, BitPairPacker
from tvmdml.schedules.cpu._gemm_bits import Bits
from tvmdml.schedules.cpu._gemm_bits_across import AcrossPacker
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, FactorPacking, Panels
from tvmdml.schedules.cpu._gemm_owned import PackedSource as Place
from tvmdml.schedules.cpu._gemm_panels import ACROSS, ALONG, SINGLE, Factor
from tvmdml.schedules.cpu._gemm_tile_rows import suit
from tvmdml.schedules.cpu._matrix_bits import FewBits, RoundedBits, of_bits, row_steps, serves, stored
from tvmdml.schedules.cpu._matrix_few import FewBytes, FloatRows
from tvmdml.schedules.cpu._matrix_writer import MatrixWriter, PlainContraction, has_tiles_of_pairs, plain
from tvmdml.schedules.cpu._tiles import SIDE
from tvmdml.targets import Target

_NAMES = ("12x2", "8x3", "6x4", "13x2", "10x2", "7x3", "7x2", "6x2", "4x3", "4x2", "2x4")
_BLOCKS = (1, 2, 4, 8)
KNOBS = Knobs(
    "matrix",
    tile=Knob("auto", ("auto", *_NAMES), "rows and vectors of columns of a tile"),
    depth_blocks=Knob(
        1, _BLOCKS, f"places of packed panels of floats, about, in blocks of {KC}", derived=lambda caches: min(caches.l2 >> 20, 2)
    ),
    depth_blocks_of_others=Knob(1, _BLOCKS, "the same of bytes, and in matrix tiles"),
    row_bytes=Knob(1 << 15, tuple(1 << n for n in range(13, 23)), "bytes of packed rows", derived=lambda caches: caches.l2 // 32),
    column_bytes=Knob(
        1 << 18, tuple(1 << n for n in range(14, 24)), "bytes of packed columns", derived=lambda caches: caches.l2 // 4
    ),
    task_products=Knob(1 << 17, tuple(1 << n for n in range(10, 26)), "least products for each task"),
    few_columns=Knob(1 << 16, (0, 4, 32, 1 << 16), "most tiles beside each other for which rows that lie right are not packed"),
    few_rows=Knob(4, (0, 1, 2, 3, 4), "the most rows of floats that are computed without packing"),
    few_rows_of_bits=Knob(8, (0, 1, 2, 4, 8, 16, 32), "the same over matrices of few bits"),
    few_rows_of_bytes=Knob(4, (0, 1, 2, 3, 4), "the same of bytes"),
    **_convolution_knobs.FOR_IMAGES,
)  # fmt: skip

_TILE_OF_PAIRS = "6x2"
"""The tile of pairs of bfloat16 in vectors, which have three sums for each of the result."""
_FEW_OWNED = {True: 1, False: 0}
"""The most rows for which a factor is read where it is as fast as its panels are: if its columns are contiguous, or not."""


def kernel(desc: Matrix, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The factors change places if the result's columns are not contiguous, or are few."""
    contraction = desc.simplified()
    own_bits = of_bits(desc)
    found = plain(contraction) if own_bits is None else PlainContraction(contraction) if serves(own_bits) else None
    if found is None and isinstance(desc, Bfloat16Convolution):
        found = _gemm_image.product_of(desc)
    if found is None or desc.of_rows() is not None or contraction.depth == 0 or 0 in contraction.sizes:
        return _default.kernel(desc, target, shared)
    module, *also = desc.modules()
    writer = _way(desc, found, target, knobs)(desc, found, target, knobs)
    made = Kernel(module, writer.WAY, writer.parameters(), writer.function, writer.scalars, writer.temporaries, also=tuple(also))
    offers = made.offers | Offers.CHANNELS_LAST if isinstance(writer, _Tiles) else made.offers
    return made._replace(owned=writer.owned(), offers=offers)


def _way(desc: Matrix, found: PlainContraction, target: Target, knobs: Any) -> type[MatrixWriter]:
    """Few rows are multiplied with the second factor as it lies, unless its panels, packed once, are read as fast."""
    if of_bits(desc) is not None:
        few, rounds = found.sizes[0] <= knobs.few_rows_of_bits, RoundedBits.serves(desc, target)
        in_registers: type[MatrixWriter] = RoundedBits if rounds else FewBits
        return in_registers if few or (rounds and not has_tiles_of_pairs(target)) else _TilesOfBits
    contraction = found.contraction
    if contraction.computed == "int32":
        given = contraction.b.name not in desc.owned()
        return FewBytes if given and FewBytes.serves(target) and found.few(knobs.few_rows_of_bytes) else _Tiles
    if desc.BFLOAT16:
        return _ImageTiles if found.image else _Tiles
    few = knobs.few_rows
    if _packs_as_it_is(desc, found):
        few = min(few, _FEW_OWNED[found.steps(contraction.b)[2] == 1])
    return FloatRows if contraction.a_zero is None and contraction.b_zero is None and found.few(few) else _Tiles


def _packs_as_it_is(desc: Matrix, plain: PlainContraction) -> bool:
    """Whether the second factor is packed once, and its elements do not become larger."""
    one = plain.contraction.b
    return one.name in desc.owned() and getattr(desc, one.name).data_type.tvm == plain.contraction.computed


class _Tiles(MatrixWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Both factors packed."""

    WAY = "tiles"
    MORE: tuple[str, ...] = ()
    """The names of further integers of the launch."""

    def __init__(self, desc: Matrix, plain: PlainContraction, target: Target, knobs: Any) -> None:
        super().__init__(desc, plain, target, knobs)
        rows, columns, depth = plain.sizes
        total = self.contraction.computed
        self.short = False
        blocks_of_tiles = _gemm_amx.shape(rows, columns) if self._in_tiles(total) and knobs.tile == "auto" else None
        if blocks_of_tiles and total != "int32" and not suit(self._forms(blocks_of_tiles)):
            blocks_of_tiles = None
        lanes = self.bytes_of_vector // (8 if total == "float64" else 4)
        short = self._may_be_short(total)
        wanted = _TILE_OF_PAIRS if desc.BFLOAT16 and knobs.tile == "auto" else knobs.tile
        self.shape = blocks_of_tiles or TileShape(
            *tiles.of_product(rows, columns, lanes, wanted, self.x86, short, self._sides_that_never_change())
        )
        self.arithmetic = self._arithmetic(total, blocks_of_tiles is not None)
        mr, nr = self.shape.rows, self.shape.columns
        self.short = short and SIDE <= columns < nr and blocks_of_tiles is None
        self.forms = self._forms(self.shape)
        packs = self._packed_sides()
        # Rows that lie right are read where they are.
        plain_rows = (
            not packs[0]
            and self.contraction.a_zero is None
            and isinstance(self.arithmetic, FloatProducts)
            and self._type(self.contraction.a) == total
            and self.forms[0] == ALONG
        )
        self.as_it_lies = plain_rows and columns <= knobs.few_columns * nr
        # Columns that need no arranging are packed by the first tile that reads them.
        one_by_one = self.arithmetic.group == self.arithmetic.unit == 1
        plain_columns = not packs[1] and self.contraction.b_zero is None and one_by_one and self.forms[1] == ACROSS
        self.late = plain_columns
        self.asks = depth >= KC * self.arithmetic.group  # else a tile takes no longer than memory
        element = 8 if total == "float64" else 4
        group = self.arithmetic.group
        depth_blocks = knobs.depth_blocks if isinstance(self.arithmetic, FloatProducts) else knobs.depth_blocks_of_others
        if packs[1] and total != "int32" and depth <= 2 * KC:  # then unfinished sums need not be kept in memory
            depth_blocks = max(depth_blocks, 2)
        if isinstance(self.arithmetic, FloatProducts) and depth_blocks > 1:
            depth_blocks = _depth(depth, depth_blocks)
        block = depth_blocks * KC * group
        if isinstance(self.arithmetic, TileBfloat16) and depth > block:
            block = KC  # so that panels of both factors have room in the first cache
        places = min(depth, block)
        packed = -(-places // group) * element
        batch = math.prod(plain.batch)
        wanted = split(batch * rows * columns * depth, target, knobs.task_products)
        small = [
            one and lines * depth * element <= 4 * knobs.column_bytes for one, lines in zip(packs, (rows, columns), strict=True)
        ]
        weights = tiles.READ if small[0] else tiles.PACKED, tiles.READ if small[1] else tiles.PACKED
        row_parts, column_parts = tiles.parts_of_product(
            batch, rows, columns, (self._writer().row_width(mr, packs[0]), nr), wanted, weights
        )
        tasks = min(wanted, batch * row_parts * column_parts)
        row_block = _even(-(-rows // row_parts), knobs.row_bytes // packed, mr)
        column_block = _even(-(-columns // column_parts), knobs.column_bytes // packed, nr)
        every = asks_every(self.shape, columns if self.as_it_lies else 0, 64 // element)
        # The next block of columns is asked for, as it may come from memory: these are packed once, or by the tiles of the first
        # rows, which would wait for them.
        far = packs[1] or (self.late and not self.as_it_lies)
        self.asks_for_columns = far and one_by_one and self.asks
        if self.asks_for_columns and self.late:
            every = max(one for one in EVERY if one == 1 or one * mr <= rows)
        asked = max(64 // element // every, 1)
        blocks = (row_block, column_block, block)
        of_part = (rows // row_parts + 2 * mr, columns // column_parts + 2 * nr)
        room = self._writer().scratch(
            self.shape, self.arithmetic, blocks, (min(rows, of_part[0]), min(columns, of_part[1])), depth, packs
        )
        kinds = (self.arithmetic.packed, self.arithmetic.packed, self.arithmetic.total, "int32")
        self.temporaries = tuple((kind, tasks * one) for kind, one in zip(kinds, room, strict=True))
        self.packings = [self._packing(side, target) for side in (0, 1) if packs[side]]
        self.scalars = (
            tasks,
            batch,
            row_parts,
            column_parts,
            rows,
            columns,
            depth,
            *blocks,
            every,
            asked,
            *room,
            *self._more(),
            *self.numbers,
        )

    def _may_be_short(self, total: str) -> bool:
        """Whether the last vector of the only panel of columns may begin within the one before: these are ``SIDE`` floats."""
        floats = total == "float32" and not self.desc.BFLOAT16
        return floats and self.bytes_of_vector == 4 * SIDE and self.contraction.b.name not in self.desc.owned()

    def _sides_that_never_change(self) -> tuple[bool, bool]:
        """Which factors do, so that the number of their lines belongs to the network."""
        names = self.desc.owned()
        return self.contraction.a.name in names, self.contraction.b.name in names

    def _in_tiles(self, total: str) -> bool:
        """Whether the processor has matrix tiles for these types."""
        if total == "int32":
            return bool(self.tiles)
        a, b, a_zero, b_zero = (getattr(self.contraction, name) for name in ("a", "b", "a_zero", "b_zero"))
        halves = total == "float32" and a_zero is None and b_zero is None and {self._type(a), self._type(b)} == {"float16"}
        return bool((halves or self.desc.BFLOAT16) and self.tiles_of_pairs)

    def _writer(self) -> type[ProductLoops]:
        """What writes the loops."""
        tiles = {
            TileBytes: _gemm_amx.TileProduct,
            TileBfloat16: _gemm_amx.TileProduct,
            TileHalves: _gemm_amx.HalfProduct,
            Bfloat16: Bfloat16Product,
        }
        return tiles.get(type(self.arithmetic), ProductLoops)

    def _arithmetic(self, total: str, in_tiles: bool) -> ProductArithmetic:
        if self.desc.BFLOAT16:
            return TileBfloat16() if in_tiles else Bfloat16()
        if total != "int32":
            return TileHalves() if in_tiles else FloatProducts(total)
        signed = self._type(self.contraction.a).startswith("int"), self._type(self.contraction.b).startswith("int")
        if in_tiles:
            return TileBytes(signed)
        return ByteProducts(signed) if self.vnni and self.shape.lanes == 16 else PairProducts(self.bytes_of_vector // 4)

    def _packed_sides(self) -> tuple[bool, bool]:
        """Which factors are packed already: those that never change, and that are not packed less zero points that may."""
        owned, found = self.desc.owned(), []
        for one, zero in ((self.contraction.a, self.contraction.a_zero), (self.contraction.b, self.contraction.b_zero)):
            free = zero is None or not self.arithmetic.subtracts or zero.name in owned
            found.append(one.name in owned and free)
        return found[0], found[1]

    def _packing(self, side: int, target: Target) -> FactorPacking:
        operand, number = self.operands[side], self.zeros()[side]
        batch, *lines, place = self.plain.steps(operand)
        zero = None
        if number is not None and self.arithmetic.subtracts:
            one = self.operands[number]
            zero = self._type(one), one.place.base, self.plain.steps(one)[1 + side]
        source = Place(
            *(self._type(operand), self.forms[side], side, self.plain.batch, operand.place.base, batch, lines[side], place, zero)
        )
        panels = Panels(
            *((self.shape.rows, self.shape.columns)[side], self.arithmetic.group),
            *(self.plain.sizes[side], self.plain.sizes[2], self.arithmetic.unit),
        )
        self.packed[side] = source.packed_steps(panels.room)
        tasks = split(panels.room * math.prod(size for size, _ in source.different), target, TASK_ELEMENTS)
        return FactorPacking(panels, source, self.arithmetic, self.shape.lanes, self.corrects()[side], tasks)

    def owned(self) -> tuple[Owned, ...]:
        found = []
        for one in self.packings:
            zero = self.zeros()[one.source.side] if one.source.zero else None
            names = tuple(self.operands[i].name for i in (one.source.side, zero) if i is not None)
            found.append(one.owned(names, self.desc.modules()[0]))
        return tuple(found)

    def _type(self, operand: Operand) -> str:
        return str(getattr(self.desc, operand.name).data_type.tvm)

    def _forms(self, shape: TileShape) -> tuple[str, str]:
        return self._form(0, shape.rows), self._form(1, shape.columns)

    def _form(self, side: int, width: int) -> str:
        _, row, column, place = self.plain.steps(self.operands[side])
        lines, line = self.plain.sizes[side], (row, column)[side]
        vectors = width < 16 or width % 16 == 0
        form: str = (
            ACROSS if line == 1 and (lines >= width or (side and self.short)) else ALONG if place == 1 and vectors else SINGLE
        )
        return form

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        choices = (
            ("tile", f"{self.shape.rows} {self.shape.vectors} {self.shape.lanes}"),
            ("arithmetic", self.arithmetic.key()),
            ("forms", " ".join(self.forms)),
            ("late", self.late),
            ("asks", self.asks),
            ("as_it_lies", self.as_it_lies),
            ("short", self.short),
            ("asks_for_columns", self.asks_for_columns),
            ("packed", " ".join(self.operands[side].name for side in self.packed)),
        )
        return (*self.key(), *choices)

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            packed = {self.operands[side].name: self.arithmetic.packed for side in self.packed}
            tensors = f.tensors(self.desc, packed=packed)
            scratch = [f.buffer(f"scratch{i}", kind) for i, (kind, _) in enumerate(self.temporaries)]
            plan = LaunchIntegers(*(f.scalar(name) for name in LaunchIntegers._fields))
            room = [f.scalar(f"room{i}") for i in range(4)]
            more = [f.scalar(name) for name in self.MORE]
            self.declare(f, tensors)
            zeros = self.zeros()
            factors = []
            ends = None, T.hold(plan.columns - SIDE) if self.short else None
            for side, width in enumerate((self.shape.rows, self.shape.columns)):
                steps, zero = self.steps[side], zeros[side]
                buffer = tensors[self.operands[side].name]
                zero_buffer = None if zero is None else tensors[self.operands[zero].name]
                zero_step = 0 if zero is None else self.steps[zero][side]
                factors.append(
                    Factor(side, buffer, self.forms[side], width, steps[side], steps[2], zero_buffer, zero_step, ends[side])
                )
            product = self._writer()(
                self.shape,
                self.arithmetic,
                (factors[0], factors[1]),
                self.corrects(),
                self.desc.is_brief(),
                self.late,
                self.as_it_lies,
                (0 in self.packed, 1 in self.packed),
                self.asks_for_columns,
            )
            self._prepare(product, tensors, more)
            self.lines = [factors[side].buffer if side in self.packed else scratch[3] for side in (0, 1)]
            self.depth = plan.depth

            def start(number: Any) -> tuple[Any, Any, Any, Any]:
                self.begin(number)
                own = [None if zero is None else self.bases[zero] for zero in zeros]
                return self.bases[0], self.bases[1], own[0], own[1]

            product.write(plan, room, scratch, start, self._finish, self.ask if self.asks else None)
        return f.result()

    def _more(self) -> tuple[int, ...]:
        """Those integers."""
        return ()

    def _prepare(self, product: ProductLoops, tensors: dict[str, Any], more: list[Any]) -> None:
        """Change what writes the loops, with the buffers of all tensors and those integers."""

    def _finish(self, row: Any, column: Any, total: Any, sums: tuple[Any, Any]) -> None:
        of_rows, of_columns = self.corrects()
        lanes = T.lanes(total)
        of_row = T.splat(self.lines[0][sums[0]], lanes) if of_rows else None
        of_column = self.lines[1][T.run(sums[1], lanes)] if of_columns else None
        self.put(row, column, self.corrected(row, column, total, (of_row, of_column)))


class _ImageTiles(_Tiles):
    """Both factors packed, where the first one is made of an image."""

    WAY = "image_tiles"
    MORE = _gemm_image.NAMES

    def _more(self) -> tuple[int, ...]:
        return self.plain.image

    @property
    def _is_ragged(self) -> bool:
        numbers = dict(zip(self.MORE, self.plain.image, strict=True))
        return bool(numbers["channels"] != numbers["present"])

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        return (*super().parameters(), ("ragged", self._is_ragged))

    def _prepare(self, product: ProductLoops, tensors: dict[str, Any], more: list[Any]) -> None:
        packer = _gemm_image.ImageRows if isinstance(self.arithmetic, TilePairs) else _gemm_image.ImageColumns
        product.a = packer(product.a.factor, self.arithmetic)
        product.a.is_ragged = self._is_ragged
        product.a.image = SimpleNamespace(**dict(zip(self.MORE, more, strict=True)))


class _TilesOfBits(_Tiles):
    """Both factors packed, where the second one has few bits: panels of it have floats."""

    WAY = "bit_tiles"
    MORE = ("row_bytes", "scale_row", "zero_row")

    def _may_be_short(self, total: str) -> bool:
        return False

    def _in_tiles(self, total: str) -> bool:
        """Two bfloat16 have all bits of float16, and of its product with an element of 4 bits less a zero point of them."""
        own = of_bits(self.desc)
        assert own is not None
        exact = self._type(self.contraction.a) == "float16" and own.bits <= 4 and not own.zeros_are_floats
        return self.tiles_of_pairs and (exact or own.may_round) and not own.is_across

    def _forms(self, shape: TileShape) -> tuple[str, str]:
        return self._form(0, shape.rows), ALONG

    def _sides_that_never_change(self) -> tuple[bool, bool]:
        return False, True

    def _packed_sides(self) -> tuple[bool, bool]:
        return super()._packed_sides()[0], False

    def _bits(self) -> Bits:
        own = of_bits(self.desc)
        assert own is not None
        return stored(own, self.shape.lanes)

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        own = of_bits(self.desc)
        assert own is not None
        return (*super().parameters(), ("bits", f"{self._bits()}{' across' if own.is_across else ''}"))

    def _more(self) -> tuple[int, ...]:
        own = of_bits(self.desc)
        assert own is not None
        return own.b_tensor.sizes[1], *row_steps(own)

    def _prepare(self, product: ProductLoops, tensors: dict[str, Any], more: list[Any]) -> None:
        buffers = [tensors.get(name) for name in ("b_tensor", "scale_tensor", "zero_point_tensor")]
        row_bytes, *steps = more
        own = of_bits(self.desc)
        assert own is not None
        if own.is_across:
            product.b = AcrossPacker(self._bits(), self.shape.columns, buffers, (self.steps[1][2], *steps))
            return
        packer = BitPairPacker if isinstance(self.arithmetic, TileHalves) else BitPacker
        product.b = packer(self._bits(), self.shape.columns, buffers, (self.steps[1][1], *steps), row_bytes)


def _even(size: int, most: int, width: int) -> int:
    """The lines of a block: about ``most``, a multiple of the tile's, and so that no block is much smaller than others."""
    count = max(1, (2 * size + max(most, width)) // (2 * max(most, width)))
    return max(1, -(-size // (count * width))) * width


def _depth(places: int, most: int) -> int:
    """How deep panels are, in blocks of ``KC``: up to half as much again as wanted, rather than a short block at the end."""
    count = max(1, -(-(2 * places - most * KC) // (2 * most * KC)))
    return -(-places // (count * KC))
