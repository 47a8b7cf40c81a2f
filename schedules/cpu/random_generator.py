"""RANDOM_GENERATOR on the CPU: eight blocks at once, in lanes of 64 bits, as which processors multiply words.

Two words of each block are joined in a lane, and lanes of two vectors interleaved: that is the order of memory. An output that is
larger than the caches is written with non-temporal stores, which begin at a block that is a cache line's first.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.random_generator import BLOCK, RandomGenerator, advance, loaded, philox
from tvmdml.schedules.cpu import STREAMED, TASKS_PER_THREAD, per_task, share, split, stream_bytes
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.targets import Target

KNOBS = Knobs(
    "random_generator",
    STREAMED,
    task_elements=Knob(1 << 13, (1, *(1 << n for n in range(10, 24))), "least elements for each task"),
    tasks_per_thread=TASKS_PER_THREAD,
    stream_bytes=stream_bytes("least bytes of an output to write it with non-temporal stores", of_cache=1.0),
)  # fmt: skip

LANES = 8
"""Blocks that are made at once: their words fill two cache lines."""
WORDS = LANES * BLOCK
_LINE = 64


def kernel(desc: RandomGenerator, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Tasks take ranges of blocks."""
    result = desc.output_tensor
    sizes, (steps,) = collapse(result.sizes, result.layout)
    sizes, steps = sizes or (1,), steps or (1,)
    tasks = split(result.element_count, target, knobs.task_elements, knobs.tasks_per_thread)
    packed = steps == (1,)
    writer = _Writer(
        desc,
        Leaves(target),
        rank=0 if packed else len(sizes),
        new=desc.output_state_tensor is not None,
        shared=bool(shared),
        stream=packed and 4 * result.element_count >= knobs.stream_bytes,
    )
    scalars = (tasks, result.element_count, *(() if packed else (*sizes, *steps)))
    steps_of_states = [] if desc.output_state_tensor is None else [desc.output_state_tensor.layout[-1]]
    return Kernel(
        "random_generator",
        "blocks",
        (*writer.parameters, ("states", (desc.input_state_tensor.layout[-1], *steps_of_states))),
        writer.function,
        scalars,
    )


class _Writer:
    """Writes the kernel."""

    rank: int
    """Dimensions of an output that is not packed; 0 of a packed one."""
    new: bool
    shared: bool
    stream: bool

    def __init__(self, desc: RandomGenerator, leaves: Leaves, **choices: Any) -> None:
        self.desc, self.leaves = desc, leaves
        self.__dict__.update(choices)
        self.parameters = tuple(choices.items())

    def function(self) -> T.PrimFunc:
        desc = self.desc
        with T.function() as f:
            old = None if self.shared else f.buffer("state", "uint32")
            self.result = f.buffer("output", "uint32")
            new = f.buffer("new_state", "uint32") if self.new else None
            old = new if old is None else old
            tasks, self.elements = f.scalar("tasks"), f.scalar("elements")
            self.sizes, self.steps = f.scalars("size", self.rank), f.scalars("step", self.rank)
            with self.leaves.available():
                self.words = loaded(old, desc.input_state_tensor)
                self.first = self._first_aligned()
                per_task(tasks, lambda task: self._task(task, tasks))
                if desc.output_state_tensor is not None:
                    blocks = T.cast(T.truncdiv(self.elements + (BLOCK - 1), T.i64(BLOCK)), "uint64")
                    advance(old, desc.input_state_tensor, new, desc.output_state_tensor, blocks)
        return f.result()

    def _first_aligned(self) -> Any:
        """How many blocks are before the first that begins a cache line; 0 if there is none, or no need."""
        if not self.stream:
            return T.i64(0)
        past = self.leaves.misalignment(self.result, T.i64(0))
        bytes_of_block = 4 * BLOCK
        aligned = (past & T.i64(bytes_of_block - 1)) == T.i64(0)
        return T.hold(T.Select(aligned, T.truncdiv((T.i64(_LINE) - past) & T.i64(_LINE - 1), T.i64(bytes_of_block)), T.i64(0)))

    def _task(self, task: Any, tasks: Any) -> None:
        """A task's share of the groups of eight blocks, after the blocks before the first cache line."""
        skipped = T.let(self.first * BLOCK)
        with T.when((task == T.i64(0)) & (skipped > T.i64(0))):
            self._part(T.i64(0), T.let(T.min(skipped, self.elements)))
        rest = T.let(T.max(self.elements - skipped, T.i64(0)))
        groups = T.let(T.truncdiv(rest + (WORDS - 1), T.i64(WORDS)))
        whole = T.let(T.truncdiv(rest, T.i64(WORDS)) if self.rank == 0 else T.i64(0))
        begin, end = share(task, tasks, groups)
        stop = T.hold(T.max(T.min(end, whole), begin))

        def lines(stream: bool) -> None:
            with T.loop(T.let(stop - begin)) as i:
                at = T.let(skipped + (begin + i) * WORDS)
                for half, line in enumerate(self._lines(at)):
                    if stream:
                        self.leaves.stream(self.result, at + half * (WORDS // 2), line)
                    else:
                        T.store(self.result, T.run(at + half * (WORDS // 2), WORDS // 2), line)

        if self.stream:
            is_line = (self.leaves.misalignment(self.result, skipped)) == T.i64(0)
            T.either(is_line, lambda: lines(True), lambda: lines(False))
            self.leaves.fence()
        else:
            lines(False)
        with T.loop(T.let(end - stop)) as i:
            at = T.let(skipped + (stop + i) * WORDS)
            self._part(at, T.let(T.min(T.i64(WORDS), self.elements - at)))

    def _lines(self, at: Any) -> list[Any]:
        """The words from an element on that begins a block: two vectors of a cache line."""
        first = T.splat(T.cast(T.truncdiv(at, T.i64(BLOCK)), "uint64"), LANES)
        number = first + T.cast(T.ramp(T.i64(0), T.i64(1), LANES), f"uint64x{LANES}")
        words = philox(self.words, T.hold(number))
        low, up = (T.splat(T.const(n, "uint64"), LANES) for n in ((1 << 32) - 1, 32))
        pairs = [T.hold((words[i] & low) | (words[i + 1] << up)) for i in (0, 2)]
        order = [lane + LANES * pair for lane in range(LANES) for pair in range(2)]
        lines = (T.Shuffle(pairs, order[i : i + LANES]) for i in (0, LANES))
        return [T.hold(T.reinterpret(f"uint32x{WORDS // 2}", line)) for line in lines]

    def _part(self, at: Any, count: Any) -> None:
        """At most eight blocks, one word after the other."""
        kept = T.local("uint32", WORDS)
        for half, line in enumerate(self._lines(at)):
            T.store(kept, T.run(T.i64(half * (WORDS // 2)), WORDS // 2), line)
        with T.loop(count) as i:
            number = T.let(at + i)
            place = number if self.rank == 0 else T.dot(T.unravel(number, self.sizes), self.steps)
            T.store(self.result, place, kept[i])
