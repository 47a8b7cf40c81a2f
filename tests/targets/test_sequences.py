"""Sequences: many launches by one call do what they do one by one, on every target."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import cuda_work
import numpy as np
import pytest
from device_work import Interrupts
from support import at_once, seeded, top_k_desc

import tvmdml
from tvmdml import TensorDesc, _imports, compiler, targets
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.errors import DeviceError
from tvmdml.targets import Launch, Run, Step, Target
from tvmdml.targets._hazards import Access, waiting
from tvmdml.targets._sequence import InTurn
from tvmdml.targets.cpu import threads

Array = np.ndarray[Any, np.dtype[Any]]
only_native = pytest.mark.skipif(threads.native() is None, reason=threads.state())

N = 40
PLACE = 256
"""The bytes from one place to the next: right for every device."""
LONG = 100_000
"""Enough elements for a kernel of top-k to need temporaries."""


def add_desc(n: int = N) -> tvmdml.Operator:
    like = TensorDesc("float32", (n,))
    return tvmdml.ElementWiseAdd(a_tensor=like, b_tensor=like, output_tensor=like)


def abs_desc(n: int = N) -> tvmdml.Operator:
    like = TensorDesc("float32", (n,))
    return tvmdml.ElementWiseAbs(input_tensor=like, output_tensor=like)


def ready(desc: tvmdml.Operator, target: Target) -> Launch:
    return compiler.ready(desc.canonical(), target)[1]


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> Target:
    """The CPU, as if the C extension had not been built."""
    monkeypatch.setattr(threads, "connected", lambda: None)
    return targets.resolve("cpu")


def arena_of(target: Target, values: Array) -> Any:
    """The rows of these values, each at a place of its own; and a function that reads them."""
    rows = np.zeros((len(values), PLACE), np.uint8)
    rows[:, : 4 * N] = values.view(np.uint8)
    return target.asarray(rows.reshape(-1).copy())


def rows_of(arena: Any) -> Array:
    content: Array = arena.numpy() if isinstance(arena, DeviceArray) else arena
    rows: Array = content.reshape(-1, PLACE)[:, : 4 * N].copy().view(np.float32)
    return rows


def chain(launch: Launch, count: int, slot: int = 0) -> list[Step]:
    """Fibonacci's numbers: each row is the sum of the two before it."""
    return [Step(launch, tuple((slot, PLACE * (i + k)) for k in range(3))) for i in range(count)]


def ones(count: int) -> Array:
    values = np.zeros((count, N), np.float32)
    values[:2] = 1
    return values


def fibonacci(count: int) -> Array:
    values = ones(count)
    with np.errstate(over="ignore"):
        for i in range(2, count):
            values[i] = values[i - 1] + values[i - 2]
    return values


def ways(run: Run) -> list[Callable[[Any], object]]:
    return [run, lambda arrays: run.bind(arrays)(), run.timed, lambda arrays: run(tuple(arrays))]


# -- What is computed ---------------------------------------------------------------------------------------------


def test_each_step_sees_what_those_before_it_wrote(target: Target) -> None:
    run = target.sequence(chain(ready(add_desc(), target), 20), 1)
    for way in ways(run):
        arena = arena_of(target, ones(22))
        way([arena])
        assert np.array_equal(rows_of(arena), fibonacci(22))


@pytest.mark.parametrize("seed", range(3))
def test_drawn_sequences_equal_separate_launches(target: Target, seed: int) -> None:
    rng = seeded("sequences", seed)
    kinds = [(2, ready(add_desc(), target)), (1, ready(abs_desc(), target))]
    rows = 12
    values = [rng.standard_normal((rows, N)).astype(np.float32) for _ in range(3)]
    expected, steps = [v.copy() for v in values], []
    for number in rng.integers(0, len(kinds), 60):
        inputs, launch = kinds[number]
        places = [(int(rng.integers(3)), int(rng.integers(rows))) for _ in range(inputs)]
        free = [place for place in itertools.product(range(3), range(rows)) if place not in places]
        places.append(free[rng.integers(len(free))])
        steps.append(Step(launch, tuple((slot, PLACE * row) for slot, row in places)))
        arrays = [target.asarray(expected[slot][row].copy()) for slot, row in places]
        launch(*arrays)
        (slot, row), result = places[-1], arrays[-1]
        expected[slot][row] = result.numpy() if isinstance(result, DeviceArray) else result
    run = target.sequence(steps, 3)
    for way in ways(run):
        arenas = [arena_of(target, v) for v in values]
        way(arenas)
        for arena, right in zip(arenas, expected, strict=True):
            assert np.array_equal(rows_of(arena), right)


def test_types_and_shapes_of_slots_do_not_matter(target: Target) -> None:
    run = target.sequence([Step(ready(add_desc(), target), ((0, 0), (1, 0), (2, 0)))], 4)
    x, y = (seeded("slots", i).standard_normal((5, 8)).astype(np.float32) for i in (0, 1))
    x.flags.writeable = False
    out = target.empty((N // 2,), np.float64)
    run([target.asarray(x), target.asarray(y.view(np.int32).reshape(N)), out, target.empty((0, 7), np.uint8)])
    result = out.numpy() if isinstance(out, DeviceArray) else out
    assert np.array_equal(result.view(np.float32), (x + y).reshape(-1))


def test_steps_share_memory_for_their_temporaries(target: Target) -> None:
    desc = top_k_desc(TensorDesc("float32", (2, LONG)), 1, 3, "decreasing")
    launch = ready(desc, target)
    values = [seeded("temporaries", i).standard_normal((2, LONG)).astype(np.float32) for i in range(3)]
    steps = [Step(launch, ((i, 0), (3, PLACE * 2 * i), (3, PLACE * (2 * i + 1)))) for i in range(3)]
    run = target.sequence(steps, 4)
    for way in ways(run):
        out = target.asarray(np.zeros(6 * PLACE, np.uint8))
        way([*map(target.asarray, values), out])
        content = (out.numpy() if isinstance(out, DeviceArray) else out).reshape(6, PLACE)[:, :24].copy()
        for i, each in enumerate(values):
            right = tvmdml.top_k(each, 3)
            assert np.array_equal(content[2 * i].view(np.float32).reshape(2, 3), right.values)
            assert np.array_equal(content[2 * i + 1].view(np.uint32).reshape(2, 3), right.indices)


def test_three_thousand_steps(target: Target) -> None:
    launch = ready(add_desc(), target)
    steps = [Step(launch, ((0, 0), (0, PLACE), (0, 2 * PLACE))), Step(launch, ((0, 2 * PLACE), (0, PLACE), (0, 0)))] * 1500
    run = target.sequence(steps, 1)
    arena = arena_of(target, ones(3))
    run([arena])
    assert (rows_of(arena)[0] == 3001).all()
    bound = run.bind([arena])
    bound()
    bound()
    assert (rows_of(arena)[0] == 9001).all()


def test_no_steps_and_no_slots(target: Target) -> None:
    for run, arrays in ((target.sequence([], 0), []), (target.sequence([], 1), [target.empty((3,), np.float32)])):
        run(arrays)
        run.bind(arrays)()
        assert run.timed(arrays) == ()


def test_the_time_of_each_step(target: Target) -> None:
    small, large, n = ready(abs_desc(), target), ready(abs_desc(1 << 22), target), 1 << 22
    run = target.sequence([Step(small, ((0, 0), (1, 0))), Step(large, ((0, 0), (1, 0))), Step(small, ((1, 0), (0, 0)))], 2)
    arrays = [target.asarray(np.full(n, -1, np.float32)), target.empty((n,), np.float32)]
    run(arrays)
    target.wait()
    begin = time.perf_counter_ns()
    found = run.timed(arrays)
    whole = time.perf_counter_ns() - begin
    assert [type(each) for each in found] == [int] * 3
    assert min(found) >= 0
    assert sum(found) <= 1.01 * whole
    assert found[1] > found[0] or found[1] > found[2]


# -- Threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [False, True])
def test_threads_run_one_sequence_with_arenas_of_their_own(target: Target, bound: bool) -> None:
    run = target.sequence(chain(ready(add_desc(), target), 20), 1)
    right = fibonacci(22)

    def work(number: int) -> None:
        arena = arena_of(target, ones(22) * (number + 1))
        once = run.bind([arena]) if bound else lambda: run([arena])
        for _ in range(20):
            once()
        assert np.array_equal(rows_of(arena), right * (number + 1))

    at_once(work, 4)


# -- What is refused ----------------------------------------------------------------------------------------------


def test_places_that_cannot_be(target: Target) -> None:
    launch = ready(add_desc(), target)
    good = (0, 0)
    for place in ((1, 0), (-1, 0), (0, -PLACE), (1 << 70, 0), (0, -(1 << 70))):
        with pytest.raises(ValueError, match=r"steps\[1\] of a sequence: given the place .*; allowed: a slot below 1"):
            target.sequence([Step(launch, (good,) * 3), Step(launch, (good, place, good))], 1)
    with pytest.raises(ValueError, match="slots of a sequence"):
        target.sequence([], -1)


def test_arrays_that_do_not_fit(target: Target) -> None:
    run = target.sequence(chain(ready(add_desc(), target), 2), 1)
    whole, short = arena_of(target, ones(4)), arena_of(target, ones(3))
    for way in ways(run):
        for arrays in ([], [whole, whole]):
            with pytest.raises(ValueError, match=f"arrays of a sequence: given {len(arrays)}; allowed: 1, one for each slot"):
                way(arrays)
        with pytest.raises(ValueError, match=r"arrays\[0\] of a sequence: given an array that ends before byte 768"):
            way([short])
    run([whole])


def test_devices_refuse_other_launches_and_places(device: Target) -> None:
    launch = ready(add_desc(), device)
    with pytest.raises(ValueError, match=r"steps\[0\] of a sequence: given the launch .*; allowed: a launch on"):
        device.sequence(chain(ready(add_desc(), targets.resolve("cpu")), 1), 1)
    with pytest.raises(ValueError, match="given 2 places; allowed: 3, one for each array"):
        device.sequence([Step(launch, ((0, 0), (0, 256)))], 1)
    with pytest.raises(ValueError, match="given 1 sizes; allowed: none, or 3, one for each place"):
        device.sequence([Step(launch, ((0, 0), (0, 256), (0, 512)), (160,))], 1)
    run = device.sequence([Step(launch, ((0, 0), (0, 260), (0, 512)))], 1)
    arena = arena_of(device, ones(3))
    for way in ways(run):
        with pytest.raises(ValueError, match=r"given places .* and no sizes; allowed: offsets that are multiples of \d+"):
            way([arena])
    with pytest.raises(
        ValueError, match=r"arrays\[0\] of a sequence: given an array of 768 bytes; allowed: 804 or more, for steps\[0\]"
    ):
        device.sequence([Step(launch, ((0, 0), (0, 644), (0, 512)), (160, 160, 160))], 1)([arena])


def test_places_that_are_not_aligned(device: Target) -> None:
    """Every second step reads from one, or writes to one; what is next to it stays as it is."""
    launch, size = ready(add_desc(), device), 4 * N
    steps, expected = [], np.arange(1000, dtype=np.float32) % 17
    for places in [(0, 1, 128), (64, 128, 64), (3, 128, 257), (0, 64, 320), (257, 320, 401)] * 3:
        steps.append(Step(launch, tuple((0, 4 * place) for place in places), (size,) * 3))
        x, y, z = places
        expected[z : z + N] = expected[x : x + N] + expected[y : y + N]
    run = device.sequence(steps, 1)
    for way in ways(run):
        arena = device.asarray(np.arange(1000, dtype=np.float32) % 17)
        way([arena])
        assert np.array_equal(arena.numpy(), expected)


# -- The CPU ------------------------------------------------------------------------------------------------------


def failing(*_: object) -> None:
    raise ValueError("as it should be")


def called(function: Callable[..., object]) -> Launch:
    """A launch that calls Python."""
    return targets.resolve("cpu").launch(_imports.tvm_ffi().convert(function), (), ())


def everywhere(test: Callable[..., None]) -> Callable[..., None]:
    """On the CPU: in C, and without the C extension."""
    found: Callable[..., None] = pytest.mark.parametrize("cpu", ["in C", "in Python"], indirect=True)(test)
    return found


@pytest.fixture
def cpu(request: pytest.FixtureRequest) -> Target:
    if request.param == "in C":
        if threads.native() is None:
            pytest.skip(threads.state())
        return targets.resolve("cpu")
    found: Target = request.getfixturevalue("python_alone")
    return found


@everywhere
def test_it_is_what_it_should_be(cpu: Target, request: pytest.FixtureRequest) -> None:
    run = cpu.sequence(chain(ready(add_desc(), cpu), 20), 1)
    assert isinstance(run, InTurn) == ("Python" in request.node.name)
    for way in ways(run):
        arena = arena_of(cpu, ones(22))
        way([arena])
        assert np.array_equal(rows_of(arena), fibonacci(22))


@everywhere
def test_an_error_ends_the_run(cpu: Target) -> None:
    steps = chain(ready(add_desc(), cpu), 4)
    run = cpu.sequence([*steps[:2], Step(called(failing), ((0, 0),)), *steps[2:]], 1)
    for way in ways(run):
        arena = arena_of(cpu, ones(6))
        with pytest.raises(ValueError, match="as it should be"):
            way([arena])
        assert np.array_equal(rows_of(arena)[:4], fibonacci(4))
        assert not rows_of(arena)[4:].any()


@everywhere
def test_what_runs_may_be_dropped(cpu: Target) -> None:
    """By a step, which here is Python: it drops the sequence, and the arrays."""
    held: list[Any] = []
    launch = ready(add_desc(), cpu)

    def drop(*_: object) -> None:
        held.clear()
        gc.collect()

    gone = called(drop)
    result = np.zeros(N, np.float32)
    steps = [Step(gone, ((0, 0),)), Step(launch, ((0, 0), (1, 0), (2, 0)))]
    for bound in (False, True):
        arrays = [np.full(N, 1, np.float32), np.full(N, 2, np.float32), result]
        run = cpu.sequence(steps, 3)
        held[:] = [run.bind(arrays) if bound else run, arrays]
        del run, arrays
        result[:] = 0
        held[0]() if bound else held[0](held[1])
        assert not held
        assert (result == 3).all()


@only_native
def test_launches_of_both_kinds_in_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = targets.resolve("cpu")
    quick = ready(add_desc(), cpu)
    monkeypatch.setattr(threads, "connected", lambda: None)
    slow = ready(add_desc(), cpu)
    monkeypatch.undo()
    assert type(quick) is not type(slow)
    run = cpu.sequence(
        [Step(launch, places) for launch, (_, places, _) in zip([quick, slow] * 10, chain(quick, 20), strict=True)], 1
    )
    assert isinstance(run, InTurn)
    for way in ways(run):
        arena = arena_of(cpu, ones(22))
        way([arena])
        assert np.array_equal(rows_of(arena), fibonacci(22))


@only_native
def test_wrong_calls_of_the_extension() -> None:
    cpu = targets.resolve("cpu")
    run = cpu.sequence(chain(ready(add_desc(), cpu), 2), 1)
    for arrays in ([None], [[0.0] * N], [np.float32(1)], [np.ma.zeros(1000)]):
        with pytest.raises(TypeError, match=r"arrays\[0\] of a sequence: given .*; allowed: NumPy's array"):
            run(arrays)
    unsure: Any = run
    wrongs: list[Callable[[], object]] = [
        unsure,
        lambda: unsure([], []),
        lambda: unsure(1),
        lambda: unsure(arrays=[]),
        lambda: unsure.bind(1),
        lambda: unsure.timed(1),
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="takes no arguments"):
        unsure.bind([arena_of(cpu, ones(4))])(1)


INTERRUPTED = """
import signal, sys, time
import numpy as np
from tvmdml import TensorDesc, ElementWiseAbs, TopK1, compiler, targets
from tvmdml.targets import Step

n = 1 << 20
like = TensorDesc("float32", (n,))
cpu = targets.resolve("cpu")
launch = compiler.ready(ElementWiseAbs(input_tensor=like, output_tensor=like).canonical(), cpu)[1]
last = np.full(n, 7, np.float32)
run = cpu.sequence([Step(launch, ((0, 0), (1, 0)))] * 100_000 + [Step(launch, ((0, 0), (2, 0)))], 3)
arrays = [np.ones(n, np.float32), np.empty(n, np.float32), last]
for once in (lambda: run(arrays), run.bind(arrays), lambda: run.timed(arrays)):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        once()
    except KeyboardInterrupt:
        print("interrupted" if (last == 7).all() else "too late")

# Handlers launch kernels that need temporaries, between steps that need fewer of them.
def top_of(length):
    desc = TopK1(input_tensor=TensorDesc("float32", (length,)), output_value_tensor=TensorDesc("float32", (3,)),
                 output_index_tensor=TensorDesc("uint32", (3,)), axis=0, k=3, axis_direction="decreasing")
    kernel, launch = compiler.ready(desc.canonical(), cpu)
    assert kernel.temporaries
    arrays = [np.arange(length, dtype=np.float32) % 99991, np.empty(3, np.float32), np.empty(3, np.uint32)]
    return cpu.sequence([Step(launch, ((0, 0), (1, 0), (2, 0)))] * (20_000 if length == SHORT else 1), 3), arrays

def handle(*_):
    within[1][1][:] = 0
    within[0](within[1])
    seen.append(within[1][1].tolist())

SHORT, seen = 100_000, []
outer, within = top_of(SHORT), top_of(600_000)
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
while not seen:
    outer[0](outer[1])
signal.setitimer(signal.ITIMER_REAL, 0)
assert outer[1][1].tolist() == [99990.0, 99989.0, 99988.0], outer[1][1]
assert all(one == [99990.0] * 3 for one in seen), seen
print("handled")
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_an_interrupt_comes_between_steps(native: str) -> None:
    environment = {**os.environ, "TVMDML_DISABLE_NATIVE": native}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["interrupted"] * 3 + ["handled"], done.stderr


@only_native
def test_other_threads_run_meanwhile() -> None:
    """A long run releases the interpreter: from the first run on, and as long as runs are long."""
    cpu, n = targets.resolve("cpu"), 1 << 20
    run = cpu.sequence([Step(ready(abs_desc(n), cpu), ((0, 0), (1, 0)))] * 300, 2)
    arrays, counted = [np.ones(n, np.float32), np.empty(n, np.float32)], []
    ended = [False]

    def work(number: int) -> None:
        if number == 0:
            for _ in range(3):
                run(arrays)
            ended[0] = True
        while not ended[0]:
            counted.append(1)
            time.sleep(0.0005)

    at_once(work, 2)
    assert len(counted) > 5


# -- Devices ------------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(device: Target, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were prepared together, each time."""
    opened, found = device.device, []  # type: ignore[attr-defined]
    kind = type(opened)
    prepare = kind.prepare

    def note(self: Any, steps: Any, waits: Any = (), keep: bool = True) -> Any:
        found.append(len(steps))
        return prepare(self, steps, waits, keep)

    monkeypatch.setattr(kind, "prepare", note)
    return found


def test_steps_are_prepared_once_for_the_same_arrays(device: Target, prepared: list[int]) -> None:
    run = device.sequence(chain(ready(add_desc(), device), 5), 1)
    arenas = [arena_of(device, ones(7) * (i + 1)) for i in range(3)]
    for arena in arenas * 3:
        run([arena])
    assert prepared == [5] * 3
    for i, arena in enumerate(arenas):
        assert np.array_equal(rows_of(arena), fibonacci(7) * (i + 1))
    many = [arena_of(device, ones(7) * (i + 1)) for i in range(9)]
    for i, arena in enumerate(many * 2):
        run([arena])
        assert np.array_equal(rows_of(arena), fibonacci(7) * (i % 9 + 1))


def test_new_outputs_cost_only_the_steps_that_write_to_them(device: Target, prepared: list[int]) -> None:
    launch = ready(add_desc(), device)
    steps = chain(launch, 100)
    steps.append(Step(launch, ((0, 100 * PLACE), (0, 101 * PLACE), (1, 0))))
    run = device.sequence(steps, 2)
    arena, outputs = arena_of(device, ones(102)), []
    for _ in range(3):
        outputs.append(device.empty((N,), np.float32))
        run([arena, outputs[-1]])
    assert prepared == [32, 32, 32, 5, 5, 5]
    assert np.array_equal(outputs[0].numpy(), fibonacci(103)[102])
    assert all(np.array_equal(one.numpy(), outputs[0].numpy()) for one in outputs)


def test_a_sequence_keeps_no_arrays_alive(device: Target, prepared: list[int]) -> None:
    run = device.sequence(chain(ready(add_desc(), device), 5), 1)
    arena = arena_of(device, ones(7))
    bound = run.bind([arena])
    run([arena])
    memory = weakref.ref(arena.memory)
    del arena
    gc.collect()
    assert memory() is not None
    bound()
    del bound
    gc.collect()
    assert memory() is None
    for _ in range(20):  # new arrays, in the memory of those before
        arena = arena_of(device, ones(7))
        run([arena])
        assert np.array_equal(rows_of(arena), fibonacci(7))
        del arena
    device.wait()


def test_numpys_arrays_and_misplaced_ones_are_copied(device: Target) -> None:
    run = device.sequence([Step(ready(add_desc(), device), ((0, 0), (1, 0), (2, 0)))], 3)
    x, y = (seeded("copied", i).standard_normal(N).astype(np.float32) for i in (0, 1))
    whole = device.asarray(np.concatenate([[np.float32(0)], x]))
    for one in (x, whole[1:]):
        for way in ways(run):
            there, here = device.empty((N + 1,), np.float32), np.zeros(N, np.float32)
            way([one, y, there[1:]])
            assert np.array_equal(there.numpy()[1:], x + y)
            way([one, device.asarray(y), here])
            device.wait()
            assert np.array_equal(here, x + y)


def test_a_sequence_that_is_dropped_while_it_runs(device: Target) -> None:
    launch = ready(add_desc(), device)
    for bound in (False, True):
        arena = arena_of(device, ones(202))
        run = device.sequence(chain(launch, 200), 1)
        run.bind([arena])() if bound else run([arena])
        del run
        gc.collect()
        others = [arena_of(device, ones(202)) for _ in range(5)]  # they must not get memory that is still in use
        assert np.array_equal(rows_of(arena), fibonacci(202))
        del others


def test_a_device_that_was_lost(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.targets.vulkan import driver

    monkeypatch.setattr(driver, "_open", {})
    run = vulkan.sequence(chain(ready(add_desc(), vulkan), 3), 1)
    arena = arena_of(vulkan, ones(5))
    bound = run.bind([arena])
    run([arena])
    vulkan.wait()
    vulkan.device.connection.lose("it fell off")  # type: ignore[attr-defined]
    for once in (bound, lambda: run([arena])):
        with pytest.raises(DeviceError):
            once()
    arena = arena_of(vulkan, ones(5))
    run([arena])
    assert np.array_equal(rows_of(arena), fibonacci(5))
    for device in list(driver._open.values()):
        assert device.close()


def test_an_interrupted_run_leaves_the_device_in_order(device: Target) -> None:
    launch = ready(add_desc(), device)
    run = device.sequence(chain(launch, 60), 1)
    with Interrupts() as interrupts:
        for _ in range(30):
            arena = arena_of(device, ones(62))
            try:
                interrupts.armed = True
                run([arena])
                interrupts.armed = False
            except KeyboardInterrupt:
                pass
            interrupts.armed = False
    arena = arena_of(device, ones(62))
    run([arena])
    assert np.array_equal(rows_of(arena), fibonacci(62))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# -- What may run at the same time --------------------------------------------------------------------------------


def drawn_accesses(rng: np.random.Generator) -> list[Access]:
    found = []
    for _ in range(rng.integers(1, 4)):
        begin = int(rng.integers(40))
        found.append(Access(int(rng.integers(2)), begin, begin + int(rng.integers(1, 6)), bool(rng.random() < 0.4)))
    return found


def bytes_of(access: Access) -> set[tuple[int, int]]:
    return {(access.memory, at) for at in range(access.begin, access.end)}


def test_steps_wait_for_what_they_depend_on() -> None:
    rng, spared = seeded("waiting"), 0
    for _ in range(300):
        steps = [(drawn_accesses(rng), int(rng.choice([0, 1, 1, 1, 2]))) for _ in range(rng.integers(1, 20))]
        waits = waiting(steps)
        launches = [(accesses, i) for accesses, count in steps for i in range(count)]
        assert len(waits) == len(launches)
        for later, (of_later, i) in enumerate(launches):
            if i:
                assert waits[later]
            for earlier, (of_earlier, _) in enumerate(launches[:later]):
                meet = any(bytes_of(a) & bytes_of(b) and (a.written or b.written) for a in of_later for b in of_earlier)
                assert not meet or any(waits[earlier + 1 : later + 1])
        spared += waits[1:].count(False)
    assert spared > 300


def test_few_comparisons_for_many_steps() -> None:
    steps = [([Access(0, i, i + 1, True), Access(1, i, i + 1, False)], 1) for i in range(3000)]
    assert 0 < sum(waiting(steps)) <= 3000 / 30


def test_independent_steps_have_no_barrier_between_them(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Any = vulkan.device  # type: ignore[attr-defined]
    launch, size = ready(add_desc(), vulkan), (4 * N,) * 3
    rows = [(0, 1, 2), (0, 1, 3), (1, 0, 4), (2, 3, 5), (4, 4, 6), (5, 6, 0)]
    counted: list[int] = []
    barrier = opened.queue.barrier
    for sizes, barriers in ((size, 2), ((), 5)):
        run = vulkan.sequence([Step(launch, tuple((0, PLACE * row) for row in each), sizes) for each in rows], 1)
        arena = arena_of(vulkan, ones(7))
        with monkeypatch.context() as patch:
            patch.setattr(opened.queue, "barrier", lambda commands: (counted.append(commands), barrier(commands)))
            bound = run.bind([arena])
        assert len(counted) == barriers
        counted.clear()
        bound()
        assert rows_of(arena)[:, 0].tolist() == [8, 1, 2, 2, 2, 4, 4]


SYNCHRONIZED = """
import sys
import numpy as np
from tvmdml import ElementWiseAdd, TensorDesc, compiler, targets
from tvmdml.errors import DeviceError
from tvmdml.targets import Step, _device_sequence
from tvmdml.targets.vulkan import driver

try:
    vulkan = targets.resolve("vulkan")
except DeviceError as error:
    print("none", error)
    sys.exit()
like = TensorDesc("float32", (40,))
desc = ElementWiseAdd(a_tensor=like, b_tensor=like, output_tensor=like)
launch, rng = compiler.ready(desc.canonical(), vulkan)[1], np.random.default_rng(7)
waiting = _device_sequence.waiting
for fewer in (False, True):
    if fewer:  # a barrier that is missing is found out
        _device_sequence.waiting = lambda steps: [False] * len(waiting(steps))
    for sizes in ((160,) * 3, ()):
        steps = [Step(launch, tuple((0, 256 * int(row)) for row in rng.permutation(12)[:3]), sizes) for _ in range(80)]
        run, arena = vulkan.sequence(steps, 1), vulkan.asarray(np.zeros(12 * 256, np.uint8))
        run([arena])
        run.bind([arena])()
        vulkan.wait()
    print("hazards" if any("HAZARD" in said for said in driver.validation_messages) else driver.validation_messages)
"""


def test_the_validation_layer_finds_no_hazard(vulkan: Target) -> None:
    environment = {
        **os.environ,
        "TVMDML_VULKAN_VALIDATION": "1",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    done = subprocess.run(
        [sys.executable, "-c", SYNCHRONIZED], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    if done.stdout.startswith("none"):
        pytest.skip(done.stdout)
    assert done.stdout.split() == ["[]", "hazards"], done.stderr


# -- CUDA's graphs ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(cuda: Target, monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How many times each of the driver's functions for graphs was called."""
    opened: Any = cuda.device  # type: ignore[attr-defined]
    gc.collect()
    opened.graphs.of(opened.prepare([]))  # destroys what other tests dropped
    functions, found = opened.cuda, collections.Counter[str]()

    def counting(name: str) -> Callable[..., int]:
        function = getattr(functions, name)

        def count(*arguments: Any) -> int:
            found[name.removeprefix("cu")] += 1
            code: int = function(*arguments)
            return code

        return count

    for name in ("cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy", "cuStreamDestroy_v2"):
        monkeypatch.setattr(functions, name, counting(name))
    return found


def test_a_bound_sequence_is_a_graph(cuda: Target, asked: collections.Counter[str]) -> None:
    run = cuda.sequence(chain(ready(add_desc(), cuda), 20), 1)
    arena = arena_of(cuda, ones(22))
    bound = run.bind([arena])
    made = {"GraphInstantiateWithFlags": 1, "GraphDestroy": 1, "StreamDestroy_v2": 1}
    assert asked == made
    for times in range(1, 4):
        arena.write(arena_of(cuda, ones(22)).numpy())
        bound()
        assert asked == {**made, "GraphLaunch": times}
        assert np.array_equal(rows_of(arena), fibonacci(22))
    del bound
    gc.collect()
    run.bind([arena])
    assert asked["GraphExecDestroy"] == 1


def test_few_launches_are_no_graph(cuda: Target, asked: collections.Counter[str]) -> None:
    arena = arena_of(cuda, ones(5))
    cuda.sequence(chain(ready(add_desc(), cuda), 3), 1).bind([arena])()
    assert not asked
    assert np.array_equal(rows_of(arena), fibonacci(5))


@pytest.mark.parametrize("name", ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
def test_launches_that_no_graph_can_be_made_of(
    cuda: Target, asked: collections.Counter[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = cuda.device.cuda  # type: ignore[attr-defined]
    function = getattr(functions, name)
    monkeypatch.setattr(functions, name, lambda *of: (name == "cuStreamEndCapture" and function(*of)) or 900)
    run = cuda.sequence(chain(ready(add_desc(), cuda), 20), 1)
    arena = arena_of(cuda, ones(22))
    bound = run.bind([arena])
    monkeypatch.setattr(functions, name, function)
    bound()
    assert np.array_equal(rows_of(arena), fibonacci(22))
    assert not asked["GraphLaunch"]
    assert asked["StreamDestroy_v2"] == 1


def test_a_graph_on_other_streams_and_in_a_capture(cuda: Target, asked: collections.Counter[str]) -> None:
    opened: Any = cuda.device  # type: ignore[attr-defined]
    run = cuda.sequence(chain(ready(add_desc(), cuda), 20), 1)
    arena = arena_of(cuda, ones(22))
    bound = run.bind([arena])
    with cuda_work.new_stream(opened) as stream, cuda_work.using_stream(stream):
        bound()
        assert np.array_equal(rows_of(arena), fibonacci(22))
        assert asked["GraphLaunch"] == 1
        arena.write(arena_of(cuda, ones(22)).numpy())
        opened.wait()
        graph = cuda_work.Captured(opened, stream)
        with graph:
            bound()
        assert asked["GraphLaunch"] == 1
        opened.wait()
        assert np.array_equal(rows_of(arena), ones(22))
        graph.replay(stream)
        assert np.array_equal(rows_of(arena), fibonacci(22))
        opened.wait()
        graph.close()
