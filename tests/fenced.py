"""Arrays whose first or last byte is next to inaccessible memory: an access outside of them ends the process."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from support import Array, ready

from tvmdml import Operator, TensorDesc, functions
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import finding
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Role, Shared
from tvmdml.targets import Target
from tvmdml.tensors import arrays

_PAGE = mmap.PAGESIZE
_LINE = 64
_PATTERN = 0xA5
_NOTHING, _READ, _WRITE = 0, 1, 3  # PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE


# -- Memory -------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where between two fences an array lies."""

    at_end: bool
    """Its last byte is the last one before the fence behind it; else its first is the first one after the fence before it."""
    slack: int = 0
    """So many elements stay free between it and that fence."""

    def __str__(self) -> str:
        """For people."""
        return f"{self.slack} from the {'end' if self.at_end else 'beginning'}"


class _Region:
    """Some pages between two that may be neither read nor written."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        self.bytes = np.frombuffer(self._map, np.uint8, pages * _PAGE, _PAGE)
        self._begin = self.bytes.ctypes.data
        _protect(self._begin - _PAGE, _PAGE, _NOTHING)
        _protect(self._begin + pages * _PAGE, _PAGE, _NOTHING)

    def renew(self) -> None:
        """Everything is the pattern, and may be changed."""
        _protect(self._begin, self.bytes.size, _WRITE)
        self.bytes[:] = _PATTERN

    def shut(self) -> None:
        """From now on all may be read, and nothing be written."""
        _protect(self._begin, self.bytes.size, _READ)


@functools.cache
def _region(_role: object, pages: int) -> _Region:
    return _Region(pages)


_libc = ctypes.CDLL(None, use_errno=True)


def _protect(begin: int, size: int, access: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")


def _pages(size: int) -> int:
    return -(-size // _PAGE)


class Fenced:
    """An array between fences; every byte there that is not an element's holds a pattern.

    The memory is that of the array which had its role before, if that was as large.
    """

    def __init__(self, role: str, desc: TensorDesc, place: Place, values: Array | None = None, is_input: bool = False) -> None:
        self._desc = desc
        stored = desc.stored
        itemsize = stored.data_type.itemsize
        span, slack = desc.span_in_bytes, place.slack * itemsize
        region = _region(role, _pages(span + slack))
        region.renew()
        self._bytes = region.bytes
        self._start = region.bytes.size - span - slack if place.at_end else slack
        self._steps = tuple(stride * itemsize for stride in stored.layout)
        self.array = np.ndarray(stored.sizes, stored.data_type.numpy, region.bytes, self._start, self._steps)
        if values is not None:
            self.array[...] = values
        if is_input:
            self.array.flags.writeable = False
            region.shut()

    def assert_nothing_else_was_written(self) -> None:
        """Every byte between the fences that is not an element's still holds the pattern."""
        inside = np.zeros(self._bytes.size, bool)
        elements = np.ndarray((*self.array.shape, self.array.itemsize), bool, inside, self._start, (*self._steps, 1))
        elements[...] = self._desc.used_bytes()[:, None] if self._desc.data_type.is_nibble else True
        written = np.flatnonzero((self._bytes != _PATTERN) & ~inside)
        assert not written.size, (
            f"bytes outside of the tensor were written, at offsets {(written - self._start)[:8]} from its first"
        )


class _Scratch:
    """A temporary as launches give them: at the beginning of a cache line, with a fence behind its last line."""

    def __init__(self, number: object, dtype: str, count: int) -> None:
        size = count * np.dtype(dtype).itemsize
        region = _region(("scratch", number), _pages(size))
        region.renew()
        start = region.bytes.size - -(-size // _LINE) * _LINE
        self.array = region.bytes[start : start + size].view(dtype)
        self._rest = (region.bytes[:start], region.bytes[start + size :])

    def assert_nothing_else_was_written(self) -> None:
        """The bytes around it still hold the pattern."""
        assert all((rest == _PATTERN).all() for rest in self._rest), "bytes outside of a temporary were written"


# -- Doors: ways to have an operator work on arrays ---------------------------------------------------------------


class Work(NamedTuple):
    """An operation, ready to run."""

    desc: Operator
    target: Target
    shared: Shared = ()


def _kernel(work: Work, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
    """The kernel itself, and those that pack its inputs, with fences around temporaries and packed inputs too."""
    kernel = kernel_for(work.desc.canonical(), work.target, work.shared)
    taken = dict(work.shared)
    names = [name for name, _ in work.desc.tensors(Role.INPUT)]
    given = {name: arrays.writable_alias(x) for name, x in zip(names, inputs, strict=True) if x is not None and name not in taken}
    held = dict(given)
    for owned in kernel.owned:
        packed = _Scratch(owned.name, owned.dtype, owned.elements)
        _launch(work, owned.packer, [*(given[name] for name in owned.inputs), packed.array])
        packed.assert_nothing_else_was_written()
        held[owned.name] = packed.array
    _launch(work, kernel, [*held.values(), *outputs])


def _launch(work: Work, kernel: Kernel, given: Sequence[Array]) -> None:
    scratch = [_Scratch(number, dtype, count) for number, (dtype, count) in enumerate(kernel.temporaries)]
    launch = work.target.launch(finding.find(kernel, work.target), kernel.scalars, ())  # temporaries are arrays here
    launch(*given, *(temporary.array for temporary in scratch))
    for temporary in scratch:
        temporary.assert_nothing_else_was_written()


def _compiled(work: Work, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
    ready(work.desc, work.target)(*inputs, *_with_absent(work, outputs))


def _bound(work: Work, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
    ready(work.desc, work.target).bind(*inputs, *_with_absent(work, outputs))()


def _with_absent(work: Work, outputs: Sequence[Array]) -> list[Array | None]:
    """The outputs, and ``None`` in the place of those that are absent."""
    waiting = iter(outputs)
    return [None if desc is None else next(waiting) for _, desc in work.desc.tensors(Role.OUTPUT)]


def _function(work: Work, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
    """Planned in Python, and once more by the memory of calls in C; what is done in place is done once."""

    def describe(*_: TensorDesc | None) -> Operator:
        return work.desc

    out: Any = tuple(outputs) if len(outputs) > 1 else outputs[0]
    for _ in range(1 if work.shared else 2):
        functions.call(describe, tuple(inputs), (), out, work.target.name, optional=True)


DOORS: dict[str, Callable[[Work, Sequence[Array | None], Sequence[Array]], None]] = {
    "kernel": _kernel,
    "compiled": _compiled,
    "bound": _bound,
    "function": _function,
}


def run(work: Work, values: Sequence[Array | None], door: str, source: Place, result: Place) -> tuple[Array, ...]:
    """Run an operation with its inputs in one place between fences and its outputs in another; returns the outputs."""
    held = dict(zip((name for name, _ in work.desc.tensors(Role.INPUT)), values, strict=True))
    taken = dict(work.shared)
    contents = {output: held[name] for name, output in work.shared}
    outputs = {
        name: Fenced(name, desc, result, contents.get(name)) for name, desc in work.desc.tensors(Role.OUTPUT) if desc is not None
    }
    inputs: list[Array | None] = []
    for name, desc in work.desc.tensors(Role.INPUT):
        if desc is None or name in taken:
            inputs.append(None if desc is None else outputs[taken[name]].array)
        else:
            inputs.append(Fenced(name, desc, source, held[name], is_input=True).array)
    results = tuple(output.array for output in outputs.values())
    DOORS[door](work, inputs, results)
    for output in outputs.values():
        output.assert_nothing_else_was_written()
    return results
