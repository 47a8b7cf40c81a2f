"""Direct convolution: a register tile of filters by places, which reads the image's frame where elements lie.

A step of the tile takes a product of each of its elements: one element of each filter, which are packed so that they are
neighbours, and vectors of the frame. A table has the distance of a step's elements from a place. Sums have the order of the family.
Integers are computed as float32 within a block of ``KC`` products, which is exact, and blocks are summed as int32.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Arranged, ArrangedTile, Phase, Typed, Ways, up
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, NAMES, ConvolutionPlan
from tvmdml.schedules.cpu._part import load_part, store_part
from tvmdml.schedules.cpu._sums import Sums, zeros
from tvmdml.schedules.cpu._tiles import SIDE

AHEAD = 8
"""How many steps before it is read an element is asked for."""
_LINE = 16
"""Elements of a cache line."""


class Direct(Arranged):  # type: ignore[misc] # mypy knows these modules by another name
    """A direct convolution as a kernel."""

    def __init__(self, desc: Any, plan: ConvolutionPlan, tile: ArrangedTile, tasks: int, ways: Ways) -> None:
        self.given, self.plan, self.tile, self.tasks, self.after = desc, plan, tile, tasks, After(desc)
        self.by_rows, self.packed, self.panelled, self.masked = ways
        zero, own = desc.zero_points()[0], desc.owned()
        self.owned = self.packed and "filter_tensor" in own and (zero is None or zero[0] in own)
        self.arranges = not self.owned
        self.sums = desc.computed
        self.factors = "float32" if self.sums == "int32" else self.sums
        step = plan.output_step2 * plan.backward2
        self.step = step if step <= 2 else 0
        # With a stride, the elements of neighbouring taps are in different phases: too many places for the processor to follow.
        self.ahead = plan.forward2 > 1 and not self.panelled
        self.flat = plan.output0 == plan.output1 == 1
        self.copy_step = plan.image_step2 * plan.forward2 if plan.image_step2 * plan.forward2 <= 2 else 0

    def kernel(self) -> Kernel:
        """The kernel."""
        own, tile = self.plan, self.tile
        result = self.after.head.output_tensor.data_type.tvm
        blocked = own.products > KC or self.sums == "int32"
        temporaries = (
            (self.factors, 1 if own.in_place else own.groups * own.channels * own.frame + tile.columns),
            (self.factors, self._packed_elements() if self.packed and self.arranges else 1),
            ("int64", own.products + 2 * own.taps + AHEAD),
            (self.sums, self.tasks * tile.rows * tile.columns if blocked else 1),
            (result, 1 if self._by_mask and not self.after.changes else self.tasks * tile.rows * tile.lanes),
            (self.factors, own.groups * -(-own.places // tile.columns) * tile.columns * own.channels if self.panelled else 1),
        )
        module, *also = self.given.modules()
        choices = {
            "tile": tuple(tile), "by_rows": self.by_rows, "packed": self.packed, "in_place": own.in_place, "backward": own.backward,
            "step": self.step, "panelled": self.panelled, "masked": self.masked, "flat": self.flat, "ahead": self.ahead,
            "copy_step": self.copy_step, "contiguous": own.rows_contiguous, "blocked": blocked,
            "owned": self.owned, "after": self.after.places,
        }  # fmt: skip
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        self.blocked = blocked
        scalars = (*own.scalars(), *self._steps(), self.tasks)
        owned = (self._packing(module),) if self.owned else ()
        return Kernel(module, "direct", parameters, self.function, scalars, temporaries, also=tuple(also), owned=owned)

    def _packed_elements(self) -> int:
        own = self.plan
        panels, phases = -(-own.filters // self.tile.rows), own.backward0 * own.backward1 * own.backward2
        return int(own.groups * panels * (own.products * self.tile.rows + SIDE * phases) + SIDE)

    def _packing(self, module: str) -> Owned:
        """How filters that never change are packed once."""
        own, zero = self.plan, self.given.zero_points()[0]
        names = ("filter_tensor", *(() if zero is None else (zero[0],)))
        types = " ".join(getattr(self.given, name).data_type.tvm for name in names)
        sizes = [getattr(own, name) for name in ("groups", "filters", "channels")]
        sizes += [getattr(own, f"{name}{i}") for name in ("kernel", "dilation", "backward") for i in range(DIMENSIONS)]
        form = f"{types} {self.factors} {self.tile.rows} of {' '.join(map(str, sizes))} from {own.filters_from()}"
        choices = {
            "types": types, "factors": self.factors, "rows": self.tile.rows, "backward": own.backward,
            "contiguous": own.rows_contiguous,
        }  # fmt: skip
        table = ("int64", own.products + 2 * own.taps + AHEAD)
        packer = Kernel(module, "filters", tuple(choices.items()), self.packer, (*own.scalars(), self.tasks), (table,))
        return Owned(names[0], self.factors, self._packed_elements(), f"filters {form}", names, packer)

    def packer(self) -> T.PrimFunc:
        """The TensorIR of the kernel that packs filters."""
        zero = self.given.zero_points()[0]
        with T.function() as f:
            names = ("filter_tensor", *(() if zero is None else (zero[0],)))
            self.tensors = {name: f.buffer(name, getattr(self.given, name).data_type.tvm) for name in names}
            self.filters, self.table = f.buffer("packed", self.factors), f.buffer("table_scratch", "int64")
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in NAMES})
            self.count, self.arranges = f.scalar("tasks"), True
            self.panels = T.let(up(self.n.filters, self.tile.rows))
            self.phases(self.prepare)
            self.arranges = False
        return f.result()

    @property
    def _by_mask(self) -> bool:
        """Whether parts of vectors are stored by masks."""
        return self.masked and self.step in ((1,) if self.after.apart else (1, 2))

    def _steps(self) -> list[int]:
        """The steps of addends from one of the output's channels to the next."""
        return self.after.steps()

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc, packed={"filter_tensor": self.factors} if self.owned else {})
            names = ("frame", "packed", "table", "totals", "stored", "panels")
            result = self.after.head.output_tensor.data_type.tvm
            types = (self.factors, self.factors, "int64", self.sums, result, self.factors)
            self.frame, self.filters, self.table, self.totals, self.stored, self.places = (
                f.buffer(f"{name}_scratch", dtype) for name, dtype in zip(names, types, strict=True)
            )
            if self.owned:
                self.filters = self.tensors["filter_tensor"]
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in NAMES})
            self.steps = [f.scalar(f"addend{i}") for i in range(len(self._steps()))]
            self.count = f.scalar("tasks")
            self._body()
        return f.result()

    # -- The parts

    def _body(self) -> None:
        n, tile = self.n, self.tile
        self.panels = T.let(up(n.filters, tile.rows))
        self.phases(self.prepare)
        with T.loop(n.batch) as image:
            if not self.plan.in_place:
                per_task(self.count, lambda task: self.copy_image(image, task))
            if self.panelled:
                per_task(self.count, lambda task: self.pack_places(image, task))
            self.phases(lambda phase: per_task(self.count, lambda task: self._compute(image, phase, task)))

    # -- Tiles

    def _compute(self, image: Any, phase: Phase, task: Any) -> None:
        n, tile = self.n, self.tile
        places = T.let((phase.counts[0] - 1) * n.plane_step + (phase.counts[1] - 1) * n.row_step + phase.counts[2])
        some = T.And(T.And(phase.counts[0] > T.i64(0), phase.counts[1] > T.i64(0)), phase.counts[2] > T.i64(0))
        columns = T.hold(T.Select(some, up(places, tile.columns), T.i64(0)))
        each = T.let(self.panels * columns)
        begin, end = share(task, self.count, n.groups * each)
        sizes = [n.groups, self.panels, columns] if self.by_rows else [n.groups, columns, self.panels]
        where = [T.Variable("int64", one) for one in T.unravel(begin, sizes)]
        with T.loop(T.let(end - begin)):
            group, *inner = [T.let(one.value) for one in where]
            panel, column = inner if self.by_rows else inner[::-1]
            T.count_up(where, sizes)
            first, narrow = self.first_place(column, places)
            number = T.let(group * columns + column)
            T.either(
                narrow,
                lambda: self._tile(tile.narrow, image, phase, group, panel, first, number, task),
                lambda: self._tile(tile, image, phase, group, panel, first, number, task),
            )

    def _tile(
        self, tile: ArrangedTile, image: Any, phase: Phase, group: Any, panel: Any, first: Any, number: Any, task: Any
    ) -> None:
        n = self.n
        depth = T.let(n.channels * phase.taps)
        table = T.let(n.channels * phase.first)
        source, origin = self.origin_of(image, group, first)
        if self.panelled:
            source, origin = self.places, T.let(number * (n.channels * self.tile.columns))
        row = T.let(panel * tile.rows)
        if self.packed:
            filters, start = self.filters, self.packed_at(phase, T.let(group * self.panels + panel))
        else:
            filters, start = self.tensors["filter_tensor"], T.let(group * n.filter_group)
            own = [T.hold(start + T.min(row + i, n.filters - 1) * n.filter_row) for i in range(tile.rows)]
        zero = zeros(tile.lanes, self.factors)
        sums = Sums(tile.rows, tile.vectors, lambda r, j: zero, multiply_add)

        def steps(begin: Any, count: Any) -> None:
            with T.loop(count) as i:
                k = T.let(begin + i)
                at = T.let(origin + (k * self.tile.columns if self.panelled else self.table[table + k]))
                if self.ahead:
                    later = T.let(origin + self.table[table + k + AHEAD])
                    for j in range(0, tile.columns + _LINE, _LINE):
                        read_ahead(source, later + j)
                vectors = [T.let(source[T.run(at + j * tile.lanes, tile.lanes)]) for j in range(tile.vectors)]
                sums.add(lambda r: filters[start + k * tile.rows + r] if self.packed else filters[own[r] + k], vectors)

        if not self.blocked:
            steps(T.i64(0), depth)
            self._store(tile, image, phase, group, row, first, task, sums.get)
            return
        scratch = T.let(task * (tile.rows * self.tile.columns))

        def kept(r: int, j: int) -> Any:
            return T.run(scratch + (r * tile.columns + j * tile.lanes), tile.lanes)

        def each(body: Any) -> None:
            for r in range(tile.rows):
                for j in range(tile.vectors):
                    body(r, j)

        def block_sum(r: int, j: int) -> Any:
            value = sums.get(r, j)
            return value if self.sums != "int32" else T.cast(value, "int32")

        blocks = T.let(up(depth, KC))
        with T.when(blocks == T.i64(0)):
            each(lambda r, j: T.store(self.totals, kept(r, j), T.splat(T.const(0, self.sums), tile.lanes)))
        with T.loop(blocks) as block:
            begin = T.let(block * KC)
            steps(begin, T.hold(T.min(depth - begin, T.i64(KC))))
            T.either(
                block == T.i64(0),
                lambda: each(lambda r, j: T.store(self.totals, kept(r, j), block_sum(r, j))),
                lambda: each(lambda r, j: T.store(self.totals, kept(r, j), self.totals[kept(r, j)] + block_sum(r, j))),
            )
            each(lambda r, j: sums.set(r, j, zero))
        self._store(tile, image, phase, group, row, first, task, lambda r, j: T.let(self.totals[kept(r, j)]))

    def _store(self, tile: ArrangedTile, image: Any, phase: Phase, group: Any, row: Any, first: Any, task: Any, total: Any) -> None:
        """Finished sums to the output: vectors whose places are in a row, and others part by part."""
        n, y = self.n, self.tensors["output_tensor"]
        lanes = tile.lanes
        strides, steps, padding = self.each("backward"), self.each("output_step"), self.each("padding")
        base = T.let(image * n.output_batch + (group * n.filters + row) * n.output_channel)
        scratch = T.let(task * (tile.rows * lanes))
        names = self.after.addends()
        addends = [
            [
                T.let(T.splat(T.wide(self.tensors[name][T.let((group * n.filters + T.min(row + r, n.filters - 1)) * step)]), lanes))
                for name, step in zip(names, self.steps, strict=False)
            ]
            for r in range(tile.rows)
        ]

        def later(value: Any, r: Any, read: Any) -> Any:
            """What becomes of the head's elements in a row of the tile; ``read`` takes others of the same places."""

            def of_channel(name: str, i: int) -> Any:
                own = self.tensors[name][T.let((group * n.filters + T.min(row + r, n.filters - 1)) * self.steps[i])]
                return T.repeated(own, T.lanes(value)) if T.lanes(value) > 1 else own

            return self.after.value(value, self.tensors, of_channel, read)

        def place(*numbers: Any) -> Any:
            return T.dot(phase.places(numbers, strides, padding), steps)

        for j in range(tile.vectors):
            at = T.let(first + j * lanes)
            if self.flat:
                a = b = T.i64(0)
                c = at
            else:
                a = T.hold(T.truncdiv(at, n.plane_step))
                rest = T.let(at - a * n.plane_step)
                b = T.hold(T.truncdiv(rest, n.row_step))
                c = T.let(rest - b * n.row_step)
            inside = T.And(T.And(a < phase.counts[0], b < phase.counts[1]), c + lanes <= phase.counts[2])

            def finished(r: int, j: int = j) -> Any:
                return self.after.head.element(total(r, j), addends[r])

            def keep(finished: Any = finished) -> None:
                for r in range(tile.rows):
                    T.store(self.stored, T.run(scratch + r * lanes, lanes), finished(r))

            def each_row(body: Any) -> None:
                """Of what was kept. What follows may be much code, and so is written once for all rows."""
                with T.loop(T.hold(T.min(n.filters - row, T.i64(tile.rows)))) as r:
                    body(r, T.hold(self.stored[T.run(scratch + r * lanes, lanes)]))

            def whole(a: Any = a, b: Any = b, c: Any = c, finished: Any = finished, keep: Any = keep) -> None:
                to = T.let(base + place(a, b, c))

                def put(r: Any, value: Any) -> None:
                    run = T.run(T.let(to + r * n.output_channel), lanes)
                    T.store(y, run, later(value, r, lambda buffer: buffer[run]))

                if self.after.changes:
                    keep()
                    each_row(put)
                    return
                for r in range(tile.rows):
                    with T.when(row + r < n.filters):
                        put(r, finished(r))

            def parts(a: Any = a, b: Any = b, c: Any = c, finished: Any = finished, keep: Any = keep) -> None:
                own = [T.let(finished(r)) for r in range(tile.rows)] if self._by_mask and not self.after.changes else []
                if not own:
                    keep()
                where = [T.Variable("int64", one) for one in (a, b, c)]
                lane = T.Variable("int64", T.i64(0))
                with T.loop_while(T.And(lane.value < T.i64(lanes), where[0].value < phase.counts[0])):
                    here = [T.let(one.value) for one in where]
                    done = T.let(lane.value)
                    run = T.hold(T.min(T.i64(lanes) - done, phase.counts[2] - here[2]))
                    with T.when(T.And(run > T.i64(0), here[1] < phase.counts[1])):
                        to = T.let(base + place(*here))
                        step = T.i64(self.step) if self.step else T.let(strides[2] * steps[2])
                        ends = [T.let(T.cast(one, "int32")) for one in (done, done + run)]

                        def put(r: Any, value: Any, to: Any = to, done: Any = done, ends: Any = ends) -> None:
                            at = T.let(to + r * n.output_channel - done * step)

                            def read(buffer: Any) -> Any:
                                return load_part(buffer, at, *ends, T.splat(T.const(0, str(buffer.dtype)), lanes))

                            found = T.hold(later(value, r, read)) if self.after.changes else value
                            store_part(y, at, *ends, found, by=self.step)

                        for r, value in enumerate(own):
                            with T.when(row + r < n.filters):
                                put(r, value)
                        if self._by_mask and self.after.changes:
                            each_row(put)
                        elif not own:
                            with T.loop(T.hold(T.min(n.filters - row, T.i64(tile.rows)))) as r, T.loop(run) as e:
                                at = T.let(to + r * n.output_channel + e * step)
                                value = self.stored[scratch + r * lanes + done + e]
                                T.store(y, at, later(value, r, lambda buffer, at=at: buffer[at]))
                    lane.set(done + n.row_step - here[2])
                    where[2].set(T.i64(0))
                    last = T.let((here[1] + 1) * n.row_step == n.plane_step)
                    where[1].set(T.Select(last, T.i64(0), here[1] + 1))
                    where[0].set(T.Select(last, here[0] + 1, here[0]))

            if self.step == 1:
                T.either(inside, whole, parts)
            else:
                parts()
