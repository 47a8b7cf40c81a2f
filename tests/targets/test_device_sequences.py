"""Sequences on devices: what is prepared when, what is copied, what waits for what, CUDA's graphs."""

from __future__ import annotations

import collections
import gc
import signal
import weakref
from collections.abc import Callable
from typing import Any

import cuda_work
import numpy as np
import pytest
from device_work import Interrupts
from programs import python
from sequences import PLACE, N, add_desc, arena_of, chain, fibonacci, ones, ready, rows_of, ways
from support import seeded, top_k_desc

import tvmdml
from tvmdml import TensorDesc, targets
from tvmdml.errors import DeviceError
from tvmdml.targets import SequenceStep, Target, _device_sequence
from tvmdml.targets._hazards import Access, waiting


def test_devices_refuse_other_launches_and_places(device: Target) -> None:
    launch = ready(add_desc(), device)
    with pytest.raises(ValueError, match=r"steps\[0\] of a sequence: given the launch .*; allowed: a launch on"):
        device.sequence(chain(ready(add_desc(), targets.resolve("cpu")), 1), 1)
    with pytest.raises(ValueError, match="given 2 places; allowed: 3, one for each array"):
        device.sequence([SequenceStep(launch, ((0, 0), (0, 256)))], 1)
    with pytest.raises(ValueError, match="given 1 sizes; allowed: none, or 3, one for each place"):
        device.sequence([SequenceStep(launch, ((0, 0), (0, 256), (0, 512)), (160,))], 1)
    run = device.sequence([SequenceStep(launch, ((0, 0), (0, 260), (0, 512)))], 1)
    arena = arena_of(device, ones(3))
    for way in ways(run):
        with pytest.raises(ValueError, match=r"given places .* and no sizes; allowed: offsets that are multiples of \d+"):
            way([arena])
    with pytest.raises(
        ValueError, match=r"arrays\[0\] of a sequence: given an array of 768 bytes; allowed: 804 or more, for steps\[0\]"
    ):
        device.sequence([SequenceStep(launch, ((0, 0), (0, 644), (0, 512)), (160, 160, 160))], 1)([arena])


def test_places_that_are_not_aligned(device: Target) -> None:
    """Every second step reads from one, or writes to one; what is next to it stays as it is."""
    launch, size = ready(add_desc(), device), 4 * N
    steps, expected = [], np.arange(1000, dtype=np.float32) % 17
    for places in [(0, 1, 128), (64, 128, 64), (3, 128, 257), (0, 64, 320), (257, 320, 401)] * 3:
        steps.append(SequenceStep(launch, tuple((0, 4 * place) for place in places), (size,) * 3))
        x, y, z = places
        expected[z : z + N] = expected[x : x + N] + expected[y : y + N]
    run = device.sequence(steps, 1)
    for way in ways(run):
        arena = device.asarray(np.arange(1000, dtype=np.float32) % 17)
        way([arena])
        assert np.array_equal(arena.numpy(), expected)


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
    steps.append(SequenceStep(launch, ((0, 100 * PLACE), (0, 101 * PLACE), (1, 0))))
    run = device.sequence(steps, 2)
    arena, outputs = arena_of(device, ones(102)), []
    for _ in range(3):
        outputs.append(device.empty((N,), np.float32))
        run([arena, outputs[-1]])
    assert prepared == [32, 32, 32, 5, 5, 5]
    assert np.array_equal(outputs[0].numpy(), fibonacci(103)[102])
    assert all(np.array_equal(one.numpy(), outputs[0].numpy()) for one in outputs)


@pytest.mark.full
def test_all_steps_share_one_piece_of_memory_for_their_temporaries(device: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device_sequence, "_PART", 2)
    n = 100_000
    launch = ready(top_k_desc(TensorDesc("float32", (2, n)), 1, 3, "decreasing"), device)
    run = device.sequence([SequenceStep(launch, ((0, 0), (1, 0), (1, PLACE)))] * 5, 2)
    opened: Any = device.device  # type: ignore[attr-defined]
    allocate, allocated = opened.allocate, []

    def note(*of: Any) -> Any:
        allocated.append(of[0])
        return allocate(*of)

    monkeypatch.setattr(opened, "allocate", note)
    for seed in range(3):
        values = seeded("shared", seed).standard_normal((2, n)).astype(np.float32)
        x, out = device.asarray(values), device.empty((2 * PLACE,), np.uint8)
        allocated.clear()
        run([x, out])
        assert len(allocated) == (not seed)
        assert np.array_equal(out.numpy()[:24].view(np.float32).reshape(2, 3), tvmdml.top_k(values, 3).values)


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
    run = device.sequence([SequenceStep(ready(add_desc(), device), ((0, 0), (1, 0), (2, 0)))], 3)
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
    if hasattr(opened := device.device, "cuda"):  # type: ignore[attr-defined]
        cuda_work.restore(opened)  # an interrupt may arrive while Python is about to: harmless, and rare
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
        run = vulkan.sequence([SequenceStep(launch, tuple((0, PLACE * row) for row in each), sizes) for each in rows], 1)
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


@pytest.mark.full
def test_the_validation_layer_finds_no_hazard(vulkan: Target) -> None:
    layers = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"
    printed = python(SYNCHRONIZED, may_complain=True, TVMDML_VULKAN_VALIDATION="1", VK_LAYER_ENABLES=layers)
    if printed.startswith("none"):
        pytest.skip(printed)
    assert printed.split() == ["[]", "hazards"]


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


@pytest.mark.full
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


@pytest.mark.full(first=1)
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
