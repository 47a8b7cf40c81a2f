"""What nvcc and NVRTC make of every kernel: registers, stack and launches on every architecture."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cubin
import machine_code
import pytest
from cuda_compilers import ARCHITECTURES, need_disassembler
from drawn import Drawn, budget, forced, of, plain, spread

from tvmdml import Operator, TensorDesc, operators
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.kernels import kernel as made
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Role
from tvmdml.proof.conformance.cases.multihead_attention import attention
from tvmdml.targets._lower import lower
from tvmdml.targets.cuda import CudaTarget, architectures, compilers, prelude, source, translate
from tvmdml.tensors import MAX_ELEMENTS

# -- Every kernel -----------------------------------------------------------------------------------------------------------

DRAWN = 2
"""Kernels of a schedule that a default run compiles for each architecture."""
CASES, FORCED = 700, 100
"""The most candidates of a schedule, among all its operators: conformance cases, and small ones with any knobs and layouts."""
SPILLED = 512
"""Bytes that a kernel may spill to memory if it counts in 64 bits, or with constants, although it need not."""
OF_BYTES = 16
"""Those that any may have there: for sm_120, NVRTC 13 keeps a vector of eight bytes in memory where it takes the least of them."""
LARGEST = (MAX_ELEMENTS, 1 << 28)
"""Elements, about, of the largest tensors that launches are made for."""
_PIECE = 40_000
"""Characters of text that are compiled together."""
_TARGET = CudaTarget.parse("sm_90")


class Kernel(NamedTuple):
    """A device function that some operator's kernel has."""

    name: str
    text: str
    uses: frozenset[str]
    threads: tuple[int, int, int]
    parameters: tuple[tuple[int, int], ...]
    """Where the launcher writes each, and its size."""
    stack: int
    """The most bytes of a thread that may lie in memory instead of registers."""


def _schedules() -> dict[str, list[str]]:
    """The operators of each schedule."""
    found: dict[str, list[str]] = {}
    for name, cls in operators.all_operators().items():
        found.setdefault(operators.tuned_as(cls), []).append(name)
    return found


def _candidates(names: list[str], seed: int, every: bool) -> list[Drawn]:
    """Cases of a schedule's operators as they are, and small ones with any knobs, layouts and integers: an equal share of each."""
    found = []
    for name in names:
        rng, cases = of(seed, "cuda", name), plain(name, _TARGET)
        found += cases if every else rng.sample(cases, min(len(cases), CASES // len(names)))
        found += forced(name, _TARGET, rng, 20 * FORCED if every else max(1, FORCED // len(names)))
    # CUDA's launches have room for all integers: constants are tested alone, not with 64 bits as well.
    return [drawn for drawn in found if len(drawn.widths) < 2]


def _kernels(drawn: Drawn) -> Iterator[Kernel]:
    """The device functions of a drawn kernel; none if the architecture refuses it."""
    kernel = drawn.kernel()
    if kernel is None:
        assert drawn.target != _TARGET, drawn
        return
    with drawn.in_force():
        functions = lower(kernel.build()).functions
    for function in functions.values():
        emitted = source.emit(function)
        stack = SPILLED if drawn.widths else OF_BYTES
        addresses = [(8 * place, 8) for place in range(len(emitted.buffers))]
        numbers = [(8 * len(addresses) + offset, 8 if form in "qQd" else 4) for offset, form in emitted.block]
        yield Kernel(f"{drawn}: {emitted.name}", emitted.text, emitted.uses, emitted.threads, (*addresses, *numbers), stack)


def _different(found: Iterable[Drawn], architecture: str) -> list[Kernel]:
    """Every device function for an architecture once, however many arrays it is for."""
    target = CudaTarget.parse(architecture)
    return list({kernel.text: kernel for drawn in found for kernel in _kernels(drawn._replace(target=target))}.values())


@functools.cache
def _drawn(seed: int, every: bool) -> list[list[Drawn]]:
    """What a run compiles for each architecture: a few kernels of each schedule, dealt out in turn; or all kernels for each.

    Each operator has one kernel at least, of a family's one in so many.
    """
    dealt: list[list[Drawn]] = [[] for _ in ARCHITECTURES]
    for schedule, names in _schedules().items():
        rng = of(seed, "cuda kernels", schedule)
        chosen = spread(_candidates(names, seed, every), 10**6 if every else DRAWN * len(ARCHITECTURES), rng)
        for name in {*_some_of_each_family(seed, every)} & {*names} - {served[0].case.desc.NAME for served in chosen}:
            candidates = _candidates([name], seed, False)
            chosen.append([next(one for one in rng.sample(candidates, len(candidates)) if one.kernel())])
        for place, served in enumerate(chosen):
            for one in range(len(dealt)) if every else ((seed + place) % len(dealt),):
                dealt[one].append(served[0])
    return dealt


def _pieces(found: list[Kernel]) -> Iterator[list[Kernel]]:
    """Some at a time."""
    size, piece = 0, []
    for kernel in found:
        piece.append(kernel)
        size += len(kernel.text)
        if size > _PIECE:
            yield piece
            size, piece = 0, []
    if piece:
        yield piece


def _check(piece: list[Kernel], architecture: str) -> None:
    """They compile, and fit the architecture's devices."""
    texts = [re.sub(r"\) \w+\(", f") kernel_{place}(", kernel.text, count=1) for place, kernel in enumerate(piece)]
    used = {use for kernel in piece for use in kernel.uses}
    content, _ = compilers.machine_code(compilers._compiler()[1], "\n".join([prelude.text(used), *texts]), architecture)
    found, made = cubin.read(content)
    assert found == architecture
    assert len(made) == len(piece)
    for place, kernel in enumerate(piece):
        one, name = made[f"kernel_{place}"], f"{kernel.name} on {architecture}"
        assert one.threads == kernel.threads, name
        assert one.parameters == kernel.parameters, name
        x, y, z = one.threads
        warps = -(-x * y * z // 32)
        assert -(-one.registers // 8) * 8 * 32 * warps <= 1 << 16, f"{name}: {one}"
        assert one.shared <= 48 << 10, f"{name}: {one}"
        assert one.stack <= kernel.stack, f"{name}: {one}"


def _compile(found: list[Kernel], architecture: str) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda piece: _check(piece, architecture), _pieces(found)))


@pytest.mark.full
@pytest.mark.drawn("number", range(len(ARCHITECTURES)), 2)
@pytest.mark.usefixtures("any_compiler")
def test_kernels_fit_an_architecture(number: int, pytestconfig: pytest.Config) -> None:
    """Each drawn kernel one of them, in turn; with ``--every-case``, every kernel each of them."""
    seed, every = pytestconfig.getoption("--case-seed"), pytestconfig.getoption("--every-case")
    _compile(_different(_drawn(seed, every)[number], ARCHITECTURES[number]), ARCHITECTURES[number])


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [f"sm_{number}" for number in architectures._KNOWN])
@pytest.mark.usefixtures("any_compiler")
def test_every_kernel_fits_every_architecture(architecture: str, pytestconfig: pytest.Config) -> None:
    _compile(_different(_drawn(pytestconfig.getoption("--case-seed"), True)[0], architecture), architecture)


@pytest.mark.full
def test_the_drawn_kernels_are_of_every_operator_and_way(pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("--case-seed")
    drawn = [one for dealt in _drawn(seed, False) for one in dealt]
    assert {one.case.desc.NAME for one in drawn} >= {*_some_of_each_family(seed, False)}
    every = [one for names in _schedules().values() for one in _candidates(names, seed, False)]
    assert _named(drawn) == _named(every)


def _named(found: Iterable[Drawn]) -> set[str]:
    return {kernel.name for one in found if (kernel := one.kernel())}


def _grown(desc: Operator, elements: int) -> Iterator[Operator]:
    """The operator on large packed tensors: all inputs grow in the first axis that may; the outputs, if it has no inputs."""
    tensors = [t for t in desc.tensors(Role.INPUT) if t[1]] or [t for t in desc.tensors(Role.OUTPUT) if t[1]]
    attributes = {f.name: getattr(desc, f.name) for f in desc.fields() if f.role not in (Role.INPUT, Role.OUTPUT)}
    least = min(len(tensor.sizes) for _, tensor in tensors)
    for grows, axis in ((some, axis) for some in (tensors, tensors[:1]) for axis in range(least)):
        given = dict(tensors)
        for name, tensor in grows:
            sizes = [*tensor.sizes]
            sizes[axis] *= max(1, elements // tensor.element_count)
            given[name] = TensorDesc(tensor.data_type, sizes)
        inputs = [
            tuple(given.pop(f"{field.name}[{i}]") for i in range(len(getattr(desc, field.name))))
            if field.many
            else given.pop(field.name, None)
            for field in desc.fields()
            if field.role is Role.INPUT
        ]
        try:
            grown = type(desc).of(*inputs, **given, **attributes)
            grown.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        except (InvalidArgument, Unsupported):  # not this axis, or an output is too large
            continue
        yield grown
        return


def _some_of_each_family(seed: int, every: bool) -> list[str]:
    """The launches of a family's operators come from the same schedule."""
    found: dict[str, list[str]] = {}
    for name, cls in operators.all_operators().items():
        found.setdefault(cls.FAMILY or name, []).append(name)
    return [name for some in found.values() for name in (some if every else of(seed, "limits").sample(some, -(-len(some) // 6)))]


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_launches_are_within_limits_however_large_the_tensors(part: int, pytestconfig: pytest.Config) -> None:
    """With nothing allocated, and nothing compiled: small tensors of every rank, and very large ones."""
    seed = pytestconfig.getoption("--case-seed")
    for name in _some_of_each_family(seed, pytestconfig.getoption("--every-case"))[part::4]:
        _launch_within_limits(name, seed)


def _launch_within_limits(name: str, seed: int) -> None:
    largest, grew = 0, False
    rng = of(seed, "limits", name)
    candidates = _candidates([name], seed, False)
    for served in spread(rng.sample(candidates, min(len(candidates), 150)), budget(name, 6, 3), rng):
        drawn = served[0]._replace(widths={})  # large tensors have what they need
        with drawn.in_force():
            grown = [desc for elements in LARGEST for desc in _grown(drawn.case.desc, elements)]
            grew |= bool(grown)
            for desc in (drawn.case.desc.canonical(), *(one.canonical() for one in grown)):
                try:
                    kernel = kernel_for(desc, _TARGET)
                except Unsupported:  # past the algorithm's limit
                    continue
                _check_launches(kernel, f"{desc} of {drawn}")
                largest = max(largest, *(tensor.element_count for _, tensor in desc.tensors() if tensor is not None))
    assert largest >= 1 << 27 or not grew, name  # in some operators every size follows from another tensor's, or from an attribute


def _check_launches(kernel: made.Kernel, name: str) -> None:
    """What is passed to the driver is within its limits."""
    _, program = translate(kernel.build())
    for launch in program.launches(kernel.scalars):
        function = program.functions[launch.function]
        x, y, z = launch.groups
        assert 0 < x < 1 << 31, name
        assert 0 < y < 1 << 16, name
        assert 0 < z < 1 << 16, name
        assert math.prod(function.threads) <= 1024, name
        assert 8 * function.buffers + function.scalar_bytes <= 4096, name
        assert len(launch.scalars) == function.scalar_bytes


# -- The loop of attention ----------------------------------------------------------------------------------------------

LIMITS = {
    ("sm_75", 64): (128, 5.2), ("sm_75", 128): (128, 4.4), ("sm_80", 64): (64, 8.2), ("sm_80", 128): (128, 5.8),
    ("sm_120", 64): (64, 8.4), ("sm_120", 128): (128, 6.0),
}  # fmt: skip
"""Instructions of tensor cores in the loop over keys, and how many instructions there are for each at most."""


@pytest.mark.full
@pytest.mark.some(1)
@pytest.mark.parametrize(("architecture", "channels"), LIMITS)
@pytest.mark.usefixtures("any_compiler")
def test_attention_has_few_other_instructions_than_those_of_tensor_cores(architecture: str, channels: int) -> None:
    desc = attention(operators.all_operators()["MULTIHEAD_ATTENTION"], "float16", (1, 512, 512, 0), (12, 12), (channels, channels))
    (function,) = lower(kernel_for(desc.canonical(), CudaTarget.parse(architecture)).build()).functions.values()
    emitted = source.emit(function)
    content = compilers._compiler()[1](prelude.text(emitted.uses) + emitted.text, architecture)
    (one,) = cubin.read(content)[1].values()
    assert one.stack == 0
    need_disassembler()
    inner = machine_code.loop(machine_code.listed(compilers.sass(content)))
    cores, instructions = machine_code.products(inner), len(inner)
    wanted, most = LIMITS[architecture, channels]
    assert cores == wanted
    assert instructions / cores <= most, instructions


# -- What multiplies ----------------------------------------------------------------------------------------------------

SHARES = {
    "product float32": (0.65, 1.0),
    "product float32, large": (0.8, 1.3),
    "product float16": (0.08, 0.08),
    "product of bytes": (0.05, 0.04),
    "product of bytes, odd sizes": (0.014, 0.014),
    "convolution 3x3 float32": (0.52, 0.66),
    "convolution 1x1 float32": (0.66, 1.1),
    "convolution 3x3 float16": (0.021, 0.021),
    "convolution 3x3 of bytes": (0.012, 0.012),
}
"""Products for each instruction of the loop that multiplies, at least: without packed float32, and with them."""


@pytest.mark.full
@pytest.mark.drawn("architecture", range(16), 1)
@pytest.mark.usefixtures("any_compiler")
def test_the_most_used_kernels_spill_nothing_and_multiply_most_of_the_time(architecture: int) -> None:
    need_disassembler()
    supported = compilers.supported()
    name = supported[architecture % len(supported)]
    packed = architectures.has(name, "packed_floats")
    for kernel, make in machine_code.KERNELS.items():
        code = machine_code.read(make(), name)
        assert code.spilled == 0, (kernel, name, code)
        assert code.share >= SHARES.get(kernel, (0, 0))[packed], (kernel, name, code)
