"""Attention on the CPU, without a matrix of all scores.

- ``blocks``: many query rows. A block of them goes over blocks of keys (``_attention_blocks.py``).
- ``rounded_blocks``: the same of factors that are rounded to bfloat16 (``_attention_bfloat16.py``).
- ``few``: few query rows. Keys and values are read once, in parts (``_attention_rows.py``).
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_steps import AttentionSteps, DescribedAttention, Joined, numbers, with_numbers
from tvmdml.operators._contract import Shared
from tvmdml.schedules.cpu import TASKS_PER_THREAD, _attention_bfloat16, per_task, share, split
from tvmdml.schedules.cpu._attention_bfloat16 import RoundedBlocks
from tvmdml.schedules.cpu._attention_blocks import AttentionBlocks, BlockForm, scratch_sizes
from tvmdml.schedules.cpu._attention_rows import FewRows, Fews, few_scratch, found_size
from tvmdml.schedules.cpu._attention_tiles import registers
from tvmdml.schedules.cpu._matrix_writer import has_tiles_of_pairs
from tvmdml.targets import Target

KNOBS = Knobs(
    "attention",
    keys=Knob(48, (24, 48, 96, 192, 384), "keys of a block"),
    vectors=Knob(4, (1, 2, 3, 4), "vectors of query rows of a block, at most"),
    parts=Knob(8, (1, 2, 4, 8), "parts of a block of query rows, at most, for which keys are read once"),
    most_rows=Knob(8, (0, 1, 2, 4, 8, 16, 32), "query rows, of all heads that share keys, that are done together, at most"),
    part_keys=Knob(1024, tuple(64 << n for n in range(12)), "keys of a part, for few query rows; sums depend on it"),
    task_products=Knob(1 << 16, tuple(1 << n for n in range(10, 24)), "least products for each task"),
    tasks_per_thread=TASKS_PER_THREAD,
)


def kernel(desc: Attention, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Blocks of query rows, or parts of keys for few of them, are divided among tasks."""
    d = desc.described()
    s, own = d.sizes, registers(target)
    if desc.BFLOAT16:
        form = _attention_bfloat16.form_of(s.rows, _units(desc, d))
        room = _attention_bfloat16.scratch_of(form, s.channels, s.value_channels)
        return _in_blocks(desc, target, knobs, form, _Writer(desc, d, form, shared, has_tiles_of_pairs(target)), room)
    group = s.heads // s.joint
    if s.rows * group <= knobs.most_rows:
        few = FewRows(own, int(s.rows == 1), knobs.part_keys, _units(desc, d))
        parts = -(-s.total // few.keys)
        products = s.batch * s.heads * s.rows * s.total * (s.channels + s.value_channels)
        tasks = min(split(products, target, knobs.task_products, knobs.tasks_per_thread), s.batch * s.joint * parts)
        writer = _Writer(desc, d, few, shared)
        size = sum(few_scratch(few, s.rows * group, s.channels, s.value_channels))
        found = found_size(few, s.rows * group, s.value_channels)
        temporaries = ("float32", tasks * size), ("float32", s.batch * s.joint * parts * found)
        module, *also = desc.modules()
        return Kernel(
            module, "few", writer.parameters, writer.function, (tasks, size, parts, *numbers(d)), temporaries, tuple(also)
        )
    vectors = min(knobs.vectors, -(-s.rows // own.lanes), own.sums // 4)
    parts = max(1, min(knobs.parts, -(-s.rows // (own.lanes * vectors))))
    while parts > 1 and s.batch * s.heads * -(-s.rows // (own.lanes * vectors * parts)) < 4 * target.tasks():
        parts //= 2
    form = BlockForm(own, vectors, knobs.keys, parts, _units(desc, d))
    room = (sum(scratch_sizes(form, s.channels, s.value_channels)),)
    return _in_blocks(desc, target, knobs, form, _Writer(desc, d, form, shared), room)


def _in_blocks(desc: Attention, target: Target, knobs: Any, form: BlockForm, writer: _Writer, room: tuple[int, ...]) -> Kernel:
    """The kernel of blocks of query rows, whose tasks have so many floats each, and words."""
    s = writer.d.sizes
    blocks = -(-s.rows // form.block)
    units = s.batch * s.heads * blocks
    products = units * form.block * s.total * (s.channels + s.value_channels)
    tasks = min(split(products, target, knobs.task_products, knobs.tasks_per_thread), units)
    module, *also = desc.modules()
    temporaries = tuple((kind, tasks * size) for kind, size in zip(("float32", "int32"), room, strict=False))
    scalars = (tasks, *room, blocks, *numbers(writer.d))
    way = "rounded_blocks" if desc.BFLOAT16 else "blocks"
    return Kernel(module, way, writer.parameters, writer.function, scalars, temporaries, tuple(also))


def _units(desc: Attention, d: DescribedAttention) -> tuple[str, ...]:
    """The tensors whose channels, or keys, are contiguous; the result only if all that follows is for neighbours at once."""
    whole = [d.result] if all(one.steps[3] in (0, 1) for one in d.beside) else []
    rows = [d.query, *whole, *d.beside, *(one for own in (d.keys, d.values) for one in own[:2] if one is not None)]
    found = {one.tensor for one in rows if one.steps[3] == 1}
    found |= {"bias_tensor"} if d.bias == 1 else set()
    found |= {desc.POSITIONS} if d.added is not None and d.added[3] == 1 else set()
    found |= {"mask_tensor"} if d.mask is not None and d.mask.steps[-1] == 1 else set()
    return tuple(sorted(found))


class _Writer:
    """Writes the kernel."""

    def __init__(
        self, desc: Attention, d: DescribedAttention, form: BlockForm | FewRows, shared: Shared, in_tiles: bool = False
    ) -> None:
        self.desc, self.d, self.form, self.shared, self.in_tiles = desc, d, form, shared, in_tiles
        s, mask = d.sizes, desc.mask()
        self.parameters: tuple[tuple[str, Any], ...] = (
            ("operator", desc.NAME),
            *desc.attributes_exactly(("head_count", "query_head_count", "key_value_head_count")),
            *desc.behind(),
            ("type", desc.computed().tvm),
            ("repeated", " ".join(one.tensor for one in d.beside if one.steps[3] == 0)),
            ("present", "".join(str(int(tensor is not None)) for _, tensor in desc.tensors())),
            ("channels", (s.channels, s.value_channels, s.heads // s.joint)),
            ("by row", mask is not None and mask.by_row),
            ("joins", d.keys.new is not None and (desc.lengths is not None or s.past > 0)),
            ("form", tuple(map(int, (*form.registers, *form[1:-1])))),
            ("contiguous", " ".join(form.units)),
            ("numbers", len(list(numbers(d)))),
            ("shared", shared),
            ("tiles", in_tiles),
        )

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            buffers = f.tensors(self.desc, self.shared)
            scratch = f.buffer("scratch", "float32")
            words = f.buffer("words", "int32") if self.desc.BFLOAT16 else None
            if isinstance(self.form, FewRows):
                parts_of = f.buffer("parts", "float32")
            self.tasks, size = f.scalar("tasks"), f.scalar("size")
            room = None if words is None else f.scalar("room")
            blocks = f.scalar("blocks")
            given = iter(f.scalars("n", len(list(numbers(self.d)))))
            steps = AttentionSteps(self.desc, self._known(with_numbers(self.d, given)), buffers)
            for own in (steps.d.keys, steps.d.values):
                self._keep(steps, own)

            if isinstance(self.form, FewRows):
                self._few(steps, self.form, scratch, parts_of, size, blocks)
            else:
                self._blocks(steps, self.form, scratch, size, blocks, words, room)
        return f.result()

    def _blocks(self, steps: AttentionSteps, form: BlockForm, scratch: Any, size: Any, blocks: Any, words: Any, room: Any) -> None:
        s = steps.d.sizes

        def task(number: Any) -> None:
            place = T.let(number * size)
            if words is None:
                work = AttentionBlocks(steps, form, scratch, place)
            else:
                work = RoundedBlocks(steps, form, scratch, place, words, T.let(number * room), self.in_tiles)
            begin, end = share(number, self.tasks, T.let(s.batch * s.heads * blocks))
            work.enter()
            with T.loop(T.let(end - begin)) as i:
                work.unit(*T.unravel(begin + i, (s.batch, s.heads, blocks)))
            work.leave()

        per_task(self.tasks, task)

    def _few(self, steps: AttentionSteps, few: FewRows, scratch: Any, kept: Any, size: Any, parts: Any) -> None:
        s = steps.d.sizes

        def task(number: Any) -> None:
            found = T.let(found_size(few, s.rows * T.i64(steps.group), int(s.value_channels)))
            work = Fews(steps, few, scratch, T.let(number * size), kept)
            begin, end = share(number, self.tasks, T.let(s.batch * s.joint * parts))
            with T.loop(T.let(end - begin)) as i:
                unit = T.let(begin + i)
                work.unit(*T.unravel(unit, (s.batch, s.joint, parts)), T.let(unit * found))

        def join(number: Any) -> None:
            found = T.let(found_size(few, s.rows * T.i64(steps.group), int(s.value_channels)))
            work = Fews(steps, few, scratch, T.let(number * size), kept)
            begin, end = share(number, self.tasks, T.let(s.batch * s.joint))
            with T.loop(T.let(end - begin)) as i:
                batch, joint = T.unravel(begin + i, (s.batch, s.joint))
                work.join(batch, joint, T.let((begin + i) * parts * found), parts, found)

        per_task(self.tasks, task)
        per_task(self.tasks, join)

    def _known(self, d: DescribedAttention) -> DescribedAttention:
        """The numbers of channels, and steps of 1, are constants."""
        h, v = self.d.sizes.channels, self.d.sizes.value_channels

        def rows(one: Any) -> Any:
            return one and (one._replace(steps=(*one.steps[:3], 1)) if one.tensor in self.form.units else one)

        def joined(one: Joined, channels: int) -> Joined:
            return one._replace(past=rows(one.past), new=rows(one.new), channels=channels)

        return d._replace(
            sizes=d.sizes._replace(channels=h, value_channels=v),
            query=rows(d.query), result=rows(d.result), beside=tuple(map(rows, d.beside)),
            keys=joined(d.keys, h), values=joined(d.values, v),
            bias=1 if self.d.bias == 1 else d.bias,
        )  # fmt: skip

    def _keep(self, steps: AttentionSteps, own: Joined) -> None:
        """Rows that are kept for the next step."""
        s, present, before, after = steps.d.sizes, own.present, own.past, own.new
        if present is None:
            return
        here = before is None or before.tensor == present.tensor or any(one == before.tensor for one, _ in self.shared)

        def each(rows: Any, store: Any) -> None:
            def task(number: Any) -> None:
                begin, end = share(number, self.tasks, T.let(s.batch * s.joint * rows))
                with T.loop(T.let(end - begin)) as i:
                    at = T.unravel(begin + i, (s.batch, s.joint, rows))
                    past = steps.past(at[0])
                    store(at, past)

            per_task(self.tasks, task)

        def copied(at: Any, past: Any) -> None:
            with T.loop(T.i64(int(own.channels))) as c:
                steps.copy(own, (*at, c), past)

        def new(at: Any, past: Any) -> None:
            assert after is not None
            row = T.let(past + at[2])
            with T.loop(T.i64(int(own.channels))) as c:
                value = T.to(steps.element(after, own.bias, (*at, c)), steps.stored)
                T.store(steps.buffers[present.tensor], present.place(*at[:2], row, c), value)

        if (not here and steps.joins) or (not here and after is None):
            assert before is not None
            apart = T.same_memory(steps.buffers[before.tensor], steps.buffers[present.tensor]) < 1
            each(T.let(T.Select(apart, T.i64(1), T.i64(0)) * steps.other_rows), copied)
        if after is not None:
            each(s.new, new)
