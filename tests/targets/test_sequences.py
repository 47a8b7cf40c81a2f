"""Sequences: many launches by one call do what they do one by one, on every target."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import python
from sequences import PLACE, N, abs_desc, add_desc, arena_of, chain, fibonacci, ones, ready, rows_of, ways
from support import at_once, seeded, top_k_desc

import tvmdml
from tvmdml import TensorDesc, targets
from tvmdml.system import imports
from tvmdml.targets import Launch, SequenceStep, Target
from tvmdml.targets._sequence import InTurn
from tvmdml.targets.cpu import threads
from tvmdml.tensors.arrays.device_array import DeviceArray

Array = np.ndarray[Any, np.dtype[Any]]
LONG = 100_000
"""Enough elements for a kernel of top-k to need temporaries."""
only_native = pytest.mark.skipif(threads.native() is None, reason=threads.state())


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> Target:
    """The CPU, as if the C extension had not been built."""
    monkeypatch.setattr(threads, "connected", lambda: None)
    return targets.resolve("cpu")


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
        steps.append(SequenceStep(launch, tuple((slot, PLACE * row) for slot, row in places)))
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
    run = target.sequence([SequenceStep(ready(add_desc(), target), ((0, 0), (1, 0), (2, 0)))], 4)
    x, y = (seeded("slots", i).standard_normal((5, 8)).astype(np.float32) for i in (0, 1))
    x.flags.writeable = False
    out = target.empty((N // 2,), np.float64)
    run([target.asarray(x), target.asarray(y.view(np.int32).reshape(N)), out, target.empty((0, 7), np.uint8)])
    result = out.numpy() if isinstance(out, DeviceArray) else out
    assert np.array_equal(result.view(np.float32), (x + y).reshape(-1))


@pytest.mark.full
def test_steps_share_memory_for_their_temporaries(target: Target) -> None:
    desc = top_k_desc(TensorDesc("float32", (2, LONG)), 1, 3, "decreasing")
    launch = ready(desc, target)
    values = [seeded("temporaries", i).standard_normal((2, LONG)).astype(np.float32) for i in range(3)]
    steps = [SequenceStep(launch, ((i, 0), (3, PLACE * 2 * i), (3, PLACE * (2 * i + 1)))) for i in range(3)]
    run = target.sequence(steps, 4)
    for way in ways(run):
        out = target.asarray(np.zeros(6 * PLACE, np.uint8))
        way([*map(target.asarray, values), out])
        content = (out.numpy() if isinstance(out, DeviceArray) else out).reshape(6, PLACE)[:, :24].copy()
        for i, each in enumerate(values):
            right = tvmdml.top_k(each, 3)
            assert np.array_equal(content[2 * i].view(np.float32).reshape(2, 3), right.values)
            assert np.array_equal(content[2 * i + 1].view(np.uint32).reshape(2, 3), right.indices)


@only_native
def test_other_launches_and_places() -> None:
    """The sequence that they are taken from stays; what does not fit is refused, and nothing is left behind."""
    target = targets.resolve("cpu")
    plus, magnitude = ready(add_desc(), target), ready(abs_desc(), target)
    longer = ready(top_k_desc(TensorDesc("float32", (2, LONG)), 1, 3, "decreasing"), target)
    times = ready(tvmdml.ElementWiseMultiply(**vars(add_desc())), target)
    run: Any = target.sequence([*chain(plus, 5), SequenceStep(magnitude, ((0, 0), (0, PLACE)))], 1)
    other = run.varied(((plus, times), (magnitude, magnitude)), ((4, SequenceStep(plus, ((0, 0), (0, 0), (0, 7 * PLACE)))),))
    for _ in range(2):
        values = np.full((8, N), 2, np.float32)
        values[0] = -2
        first, second = arena_of(target, values), arena_of(target, values)
        other([first])
        assert rows_of(first)[:, 0].tolist() == [-2, 2, -4, -8, 32, -256, 2, -4]
        run([second])
        assert rows_of(second)[:, 0].tolist() == [-2, 2, 0, 2, 2, 4, 6, 2]
    with pytest.raises(ValueError, match="ends before"):
        other([arena_of(target, ones(7))])
    grown = run.varied(((magnitude, longer),), ())  # it needs temporaries, and other arrays than there are
    del grown
    for launches, steps in (
        (((plus, 1),), ()),
        ((plus,), ()),
        ((), ((6, SequenceStep(plus, ())),)),
        ((), ((-1, SequenceStep(magnitude, ((0, 0), (0, 0)))),)),
        ((), ((1 << 70, SequenceStep(magnitude, ((0, 0), (0, 0)))),)),
        ((), ((0, SequenceStep(plus, ((0, 0), (0, 0)))),)),
        ((), ((0, SequenceStep(plus, ((0, 0), (0, 0), (1, 0)))),)),
        ((), ((0, None),)),
    ):
        with pytest.raises((ValueError, OverflowError)):
            run.varied(launches, steps)
    with pytest.raises(TypeError):
        run.varied([], ())
    again = run.varied(((plus, times),), ()).varied((), ())  # places are those of the first one, which nobody else has any more
    apart = again.varied((), ((0, SequenceStep(plus, ((0, 0), (0, 0), (0, 2 * PLACE)))),))
    del run, other
    for one in (again, apart):
        values[0] = -2
        first = arena_of(target, values)
        one([first])
        assert rows_of(first)[:, 0].tolist() == [-2, 2, -4, -8, 32, -256, -8192, 2]


@pytest.mark.parametrize("native", [True, False])
def test_a_step_is_left_out_where_a_condition_does_not_hold(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions are read in turn when the step comes, and none behind the first that does not hold."""
    target = targets.resolve("cpu")
    if not native:
        monkeypatch.setattr(threads, "connected", lambda: None)
    plus = ready(add_desc(), target)
    places = ((0, 0), (0, PLACE), (0, 2 * PLACE))
    steps = [
        SequenceStep(plus, (*places, (1, 1)), (), (True,)),
        SequenceStep(plus, ((0, PLACE), (0, PLACE), (0, 0), (1, 1), (1, 0)), (), (False, True)),
    ]
    run: Any = target.sequence(steps, 2)
    same = run.varied((), ((0, steps[0]),)) if native and threads.connected() is not None else run
    for one in (run, same):
        for first, second, right in ((0, 7, [1, 1, 2]), (9, 0, [2, 1, 0]), (0, 0, [1, 1, 0])):
            conditions = np.array([first, second], np.uint8)
            for way in ways(one):
                arena = arena_of(target, ones(3))
                way([arena, conditions])
                assert rows_of(arena)[:, 0].tolist() == right
            assert [ns < 0 for ns in one.timed([arena, conditions])] == [not second, bool(second) or not first]
    with pytest.raises((ValueError, tvmdml.InvalidArgument)):
        run([arena_of(target, ones(3)), np.zeros(1, np.uint8)])
    with pytest.raises(tvmdml.InvalidArgument):
        target.sequence([SequenceStep(plus, ((0, 0),), (), (True, True))], 1)
    many = target.sequence([SequenceStep(plus, (*places, *[(1, 0)] * 70), (), (True,) * 70)], 2)  # more than the extension has bits
    many([arena := arena_of(target, ones(3)), np.ones(1, np.uint8)])
    assert rows_of(arena)[2, 0] == 2


def test_devices_have_no_conditions(target: Target) -> None:
    if target.moves:
        step = SequenceStep(ready(add_desc(), target), ((0, 0), (0, PLACE), (0, 2 * PLACE), (0, 0)), (), (True,))
        with pytest.raises(tvmdml.InvalidArgument, match="conditions"):
            target.sequence([step], 1)


def test_three_thousand_steps(target: Target) -> None:
    launch = ready(add_desc(), target)
    steps = [
        SequenceStep(launch, ((0, 0), (0, PLACE), (0, 2 * PLACE))),
        SequenceStep(launch, ((0, 2 * PLACE), (0, PLACE), (0, 0))),
    ] * 1500
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
    run = target.sequence(
        [SequenceStep(small, ((0, 0), (1, 0))), SequenceStep(large, ((0, 0), (1, 0))), SequenceStep(small, ((1, 0), (0, 0)))], 2
    )
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
            target.sequence([SequenceStep(launch, (good,) * 3), SequenceStep(launch, (good, place, good))], 1)
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


# -- The CPU ------------------------------------------------------------------------------------------------------


def failing(*_: object) -> None:
    raise ValueError("as it should be")


def called(function: Callable[..., object]) -> Launch:
    """A launch that calls Python."""
    return targets.resolve("cpu").launch(imports.tvm_ffi().convert(function), (), ())


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
    run = cpu.sequence([*steps[:2], SequenceStep(called(failing), ((0, 0),)), *steps[2:]], 1)
    for way in ways(run):
        arena = arena_of(cpu, ones(6))
        with pytest.raises(ValueError, match="as it should be"):
            way([arena])
        assert np.array_equal(rows_of(arena)[:4], fibonacci(4))
        assert not rows_of(arena)[4:].any()


@pytest.mark.full
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
    steps = [SequenceStep(gone, ((0, 0),)), SequenceStep(launch, ((0, 0), (1, 0), (2, 0)))]
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
        [SequenceStep(launch, one.places) for launch, one in zip([quick, slow] * 10, chain(quick, 20), strict=True)], 1
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
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
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
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # later, so that the others go on however slow the machine is

SHORT, seen = 100_000, []
outer, within = top_of(SHORT), top_of(600_000)
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.05)
while not seen:
    outer[0](outer[1])
signal.setitimer(signal.ITIMER_REAL, 0)
assert outer[1][1].tolist() == [99990.0, 99989.0, 99988.0], outer[1][1]
assert all(one == [99990.0] * 3 for one in seen), seen
print("handled")
"""


@pytest.mark.full
@pytest.mark.parametrize("native", ["0", "1"])
def test_an_interrupt_comes_between_steps(native: str) -> None:
    printed = python(INTERRUPTED, may_complain=True, TVMDML_DISABLE_NATIVE=native)
    assert printed.split() == ["interrupted"] * 3 + ["handled"]


@only_native
def test_other_threads_run_meanwhile() -> None:
    """A long run releases the interpreter: from the first run on, and as long as runs are long."""
    cpu, n = targets.resolve("cpu"), 1 << 20
    run = cpu.sequence([SequenceStep(ready(abs_desc(n), cpu), ((0, 0), (1, 0)))] * 300, 2)
    arrays, counted = [np.ones(n, np.float32), np.empty(n, np.float32)], []
    ended, switch = [False], sys.getswitchinterval()

    def work(number: int) -> None:
        if number == 0:
            end = time.monotonic() + 60
            while len(counted) <= 5 and time.monotonic() < end:
                run(arrays)
            ended[0] = True
        while not ended[0]:
            counted.append(1)
            time.sleep(0.0005)

    sys.setswitchinterval(1000)  # no thread is forced to release the interpreter lock
    try:
        at_once(work, 2)
    finally:
        sys.setswitchinterval(switch)
    assert len(counted) > 5
