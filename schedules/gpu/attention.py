"""Attention on a GPU: a group of threads for a block of query rows of a head, which goes over blocks of keys.

Queries, keys and weights of a block are in shared memory, and values in the place of the keys. Each thread has some query rows and,
of them, some keys and some channels; sums are in its registers. There is never a matrix of all scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._attention import Attention
from tvmdml.operators._attention_steps import Joined, Steps
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import Numbers, _default, checked, enough_groups, refuse, require, strided
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "attention",
    enough_groups(1024),
    threads=Knob(128, (64, 128, 256), "threads per group"),
    rows=Knob(32, (4, 8, 16, 32, 64), "query rows of a block, at most"),
    keys=Knob(32, (8, 16, 32, 64), "keys of a block, at most"),
    rows_per_thread=Knob(2, (1, 2, 4), "query rows of a thread, at most"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)

_MOST_SUMS = 128
"""The most sums in a thread's registers."""


def kernel(desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """A kernel for these sizes and strides; the default one where a head's channels do not fit into shared memory."""
    writer = _Writer(desc, target, shared, knobs)
    if not writer.fits:
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    require(desc, target, writer.numbers, *sorted(desc.stored_types()))
    s = desc.sizes()
    rounds = -(-s.total // writer.keys) * (max(s.channels, writer.keys) + writer.loads + 1)
    if target.max_rounds is not None and rounds > target.max_rounds:
        given = f"{rounds} rounds of loops in a thread on {target.name}"
        refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")
    module, *also = desc.modules()
    built = Kernel(module, "blocks", writer.parameters, writer.function, also=tuple(also))
    found: Kernel = checked(desc, target, built)
    return found


class _Writer:
    """Writes the kernel."""

    def __init__(self, desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> None:
        self.desc, self.shared = desc, shared
        s = desc.sizes()
        tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
        self.numbers = Numbers(max(max(tensor.span, tensor.element_count, *tensor.layout) for tensor in tensors))
        self.dtype = self.numbers.dtype
        self.threads = min(knobs.threads, target.max_threads)
        self.keys, self.rows = knobs.keys, knobs.rows
        while self.rows > 1 and self.rows // 2 >= s.rows:
            self.rows //= 2
        wide = max(s.channels, s.value_channels) + 1
        while self._bytes(s.channels, wide) > target.max_shared_bytes and self.keys > 4:
            if self.rows > self.keys:
                self.rows //= 2
            else:
                self.keys //= 2
        self.of_thread = min(knobs.rows_per_thread, self.rows)
        self.lanes = self.threads * self.of_thread // self.rows
        while self.lanes < 1:
            self.of_thread *= 2
            self.lanes = self.threads * self.of_thread // self.rows
        self.own_keys = -(-self.keys // self.lanes)
        self.own_channels = -(-s.value_channels // self.lanes)
        self.wide = wide
        self.loads = -(-self.keys * wide // self.threads)
        self.blocks = -(-s.rows // self.rows)
        self.groups = max(1, min(target.max_groups, knobs.most_groups, s.batch * s.heads * self.blocks))
        self.fits = (
            self._bytes(s.channels, wide) <= target.max_shared_bytes
            and self.of_thread * (self.own_channels + self.own_keys) <= _MOST_SUMS
        )
        self.parameters = (
            ("desc", desc.exactly()),
            ("block", (self.rows, self.keys, self.of_thread, self.threads, self.groups)),
            ("shared", shared),
            *self.numbers.parameters,
        )

    def _bytes(self, channels: int, wide: int) -> int:
        """Shared memory: queries, keys or values, weights, and the largest scores of each thread."""
        return int(4 * (self.rows * channels + self.keys * wide + self.rows * (self.keys + 1) + self.threads * 4) + 64)

    def function(self) -> PrimFunc:
        desc = self.desc
        with T.on_device(), T.counting(self.dtype), T.function() as f:
            steps = Steps(desc, desc.described(), f.tensors(desc, self.shared))
            for own in (steps.d.keys, steps.d.values):
                for count, keep in steps.kept(own, self.shared):
                    groups = max(1, min(self.groups * 4, -(-count // self.threads)))
                    with T.launch(groups, self.threads) as (group, thread):
                        first = T.let(self._cast(group) * self.threads + self._cast(thread))
                        with strided(first, T.index(count), T.index(groups * self.threads)) as item:
                            keep(item)
            s = desc.sizes()
            with T.launch(self.groups, self.threads) as (group, thread):
                self._begin(steps, thread)
                units = s.batch * s.heads * self.blocks
                with strided(T.let(self._cast(group)), T.index(units), T.index(self.groups)) as unit:
                    at = unravel(unit, [T.index(n) for n in (s.batch, s.heads, self.blocks)])
                    self._unit(*(T.hold(self._cast(one)) for one in at))
        return f.result()

    def _cast(self, value: Any) -> Any:
        return T.cast(value, self.dtype)

    def _begin(self, steps: Steps, thread: Any) -> None:
        self.steps = steps
        s = steps.d.sizes
        self.thread = T.hold(self._cast(thread))
        self.query = T.shared("float32", self.rows * s.channels)
        self.held = T.shared("float32", self.keys * self.wide)
        self.weights = T.shared("float32", self.rows * (self.keys + 1))
        self.largest = T.shared("float32", self.threads * self.of_thread)
        self.lane = T.hold(self.thread % T.index(self.lanes))
        self.row = T.hold(T.truncdiv(self.thread, T.index(self.lanes)) * T.index(self.of_thread))

    def _unit(self, batch: Any, head: Any, block: Any) -> None:
        """A block of query rows of a head."""
        steps, d = self.steps, self.steps.d
        s = d.sizes
        joint = head if steps.group == 1 else T.hold(T.truncdiv(head, T.index(steps.group)))
        past = T.hold(steps.past(batch))
        first = T.hold(block * T.index(self.rows))
        last = T.index(s.rows - 1)
        T.barrier()  # the block before is done with what is shared
        with self._each(self.rows * s.channels) as (i, element):
            row, channel = self._split(element, s.channels)
            with T.when(i):
                value = steps.element(d.query, 0, (batch, head, T.hold(T.min(first + row, last)), channel))
                T.store(self.query, element, value)
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        self.most = [T.Variable("float32", least) for _ in range(self.of_thread)]
        self.total = [T.Variable("float32", zero) for _ in range(self.of_thread)]
        self.sums = [[T.Variable("float32", zero) for _ in range(self.own_channels)] for _ in range(self.of_thread)]
        limit = T.index(s.total)
        if d.lengths is not None:
            limit = T.hold(past + T.min(first + T.index(self.rows), T.index(s.rows)))
        self.at = (batch, head, first, past, limit)
        rounds = T.hold(T.truncdiv(limit + T.index(self.keys - 1), T.index(self.keys)))
        with T.loop(rounds) as number:
            key = T.hold(number * T.index(self.keys))
            self._load(d.keys, s.channels, joint, key)
            T.barrier()
            scores = self._scores(key)
            self._weigh(scores)
            self._load(d.values, s.value_channels, joint, key)
            T.barrier()
            self._add(T.hold(T.min(T.index(self.keys), limit - key)))
            T.barrier()
        self._results()

    def _each(self, count: int) -> Any:
        """A thread's elements of so many, and whether each is one."""
        return _each(self.thread, count, self.threads)

    def _split(self, element: Any, by: int) -> tuple[Any, Any]:
        row = T.hold(T.truncdiv(element, T.index(by)))
        return row, T.hold(element - row * T.index(by))

    def _load(self, own: Joined, channels: int, joint: Any, key: Any) -> None:
        """A block of keys or values into shared memory; 0 after the last one."""
        batch, _, _, past, limit = self.at
        with self._each(self.keys * channels) as (i, element):
            row, channel = self._split(element, channels)
            value = T.Variable("float32", T.const(0.0, "float32"))
            with T.when(i & (key + row < limit)):
                value.set(self.steps.joined(own, past, (batch, joint, T.hold(key + row), channel)))
            with T.when(i):
                T.store(self.held, row * T.index(self.wide) + channel, value.value)

    def _scores(self, key: Any) -> list[list[Any]]:
        """The scores of a thread's rows and keys; -inf of a key that a row does not see."""
        s = self.steps.d.sizes
        zero = T.const(0.0, "float32")
        sums = [[T.Variable("float32", zero) for _ in range(self.own_keys)] for _ in range(self.of_thread)]
        own = [T.hold(T.min(self.lane + T.index(i * self.lanes), T.index(self.keys - 1))) for i in range(self.own_keys)]
        with T.loop(T.index(s.channels)) as c:
            queries = [T.hold(self.query[(self.row + T.index(r)) * T.index(s.channels) + c]) for r in range(self.of_thread)]
            for k, place in enumerate(own):
                value = T.hold(self.held[place * T.index(self.wide) + c])
                for r, query in enumerate(queries):
                    sums[r][k].set(sums[r][k].value + query * value)
        batch, head, first, past, limit = self.at
        found: list[list[Any]] = []
        for r, of_row in enumerate(sums):
            row = T.hold(first + self.row + T.index(r))
            here = T.hold(T.min(row, T.index(s.rows - 1)))
            found.append([])
            for k, one in enumerate(of_row):
                number = T.hold(key + self.lane + T.index(k * self.lanes))
                seen = (number < limit) & (self.lane + T.index(k * self.lanes) < T.index(self.keys))
                if self.steps.d.lengths is not None:
                    seen = seen & (number <= past + here)
                score = T.Variable("float32", T.like(zero, float("-inf")))
                with T.when(seen):
                    scaled = T.hold(T.rounded(one.value * T.like(zero, self.desc.scale)))
                    score.set(self.steps.filtered(scaled, (batch, head, here, number)))
                found[-1].append(score)
        return found

    def _weigh(self, scores: list[list[Any]]) -> None:
        """Weights of the largest score so far, in shared memory; sums of other weights are adjusted."""
        zero = T.const(0.0, "float32")
        least = T.like(zero, float("-inf"))
        for r, of_row in enumerate(scores):
            largest = self.most[r].value
            for one in of_row:
                largest = T.hold(T.Select(one.value > largest, one.value, largest))
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.lanes) + self.lane, largest)
        T.barrier()
        for r, of_row in enumerate(scores):
            most = T.Variable("float32", least)
            with T.loop(T.index(self.lanes)) as i:
                one = T.hold(self.largest[(self.row + T.index(r)) * T.index(self.lanes) + i])
                most.set(T.Select(one > most.value, one, most.value))
            base = T.hold(T.select(T.expression(most.value == least), 0.0, most.value))
            old = T.hold(mathematics.exp(T.hold(self.most[r].value - base)))
            self.most[r].set(most.value)
            self.total[r].set(self.total[r].value * old)
            for own in self.sums[r]:
                own.set(own.value * old)
            for k, score in enumerate(of_row):
                place = T.hold(self.lane + T.index(k * self.lanes))
                with T.when(place < T.index(self.keys)):
                    weight = T.hold(mathematics.exp(T.hold(score.value - base)))
                    self.total[r].set(self.total[r].value + weight)
                    T.store(self.weights, (self.row + T.index(r)) * T.index(self.keys + 1) + place, weight)

    def _add(self, count: Any) -> None:
        """Weighed sums of the values in shared memory."""
        s = self.steps.d.sizes
        own = [T.hold(T.min(self.lane + T.index(i * self.lanes), T.index(s.value_channels - 1))) for i in range(self.own_channels)]
        with T.loop(count, most=self.keys) as k:
            weights = [T.hold(self.weights[(self.row + T.index(r)) * T.index(self.keys + 1) + k]) for r in range(self.of_thread)]
            for c, place in enumerate(own):
                value = T.hold(self.held[k * T.index(self.wide) + place])
                for r, weight in enumerate(weights):
                    self.sums[r][c].set(self.sums[r][c].value + weight * value)

    def _results(self) -> None:
        batch, head, first, _, _ = self.at
        steps, s = self.steps, self.steps.d.sizes
        zero = T.const(0.0, "float32")
        for r in range(self.of_thread):
            T.store(self.largest, (self.row + T.index(r)) * T.index(self.lanes) + self.lane, self.total[r].value)
        T.barrier()
        for r in range(self.of_thread):
            total = T.Variable("float32", zero)
            with T.loop(T.index(self.lanes)) as i:
                total.set(total.value + self.largest[(self.row + T.index(r)) * T.index(self.lanes) + i])
            row = T.hold(first + self.row + T.index(r))
            for c, own in enumerate(self.sums[r]):
                channel = T.hold(self.lane + T.index(c * self.lanes))
                found = T.hold(T.select(T.expression(total.value == zero), 0.0, own.value / total.value))
                with T.when((row < T.index(s.rows)) & (channel < T.index(s.value_channels))):
                    steps.put((batch, head, row, channel), found)


class _each:  # noqa: N801 - used as a function
    """A thread's elements of so many: whether each is one, and its number."""

    def __init__(self, thread: Any, count: int, threads: int) -> None:
        self._thread, self._count, self._threads = thread, count, threads
        self._loop = T.loop(T.index(-(-count // threads)))

    def __enter__(self) -> tuple[Any, Any]:
        i = self._loop.__enter__()
        element = T.hold(i * T.index(self._threads) + self._thread)
        return element < T.index(self._count), element

    def __exit__(self, *error: object) -> None:
        self._loop.__exit__(*error)
