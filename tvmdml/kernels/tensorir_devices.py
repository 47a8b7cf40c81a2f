"""Words for devices: launches of many groups of threads, their shared memory, and what they do together. ``tensorir`` has all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvmdml.kernels.tensorir_base import builder, type_of


@contextmanager
def launch(groups: Any, threads: int) -> Iterator[tuple[Any, Any]]:
    """One launch: the statements run in every thread of every group, and see what the function's earlier launches wrote.

    Returns the group's and the thread's index as 32-bit integers. ``groups`` may be computed from the function's integers.
    """
    t = builder()
    extent = groups if isinstance(groups, int) or type_of(groups) == "int32" else t.cast(groups, "int32")
    with t.launch_thread("blockIdx.x", extent) as group, t.launch_thread("threadIdx.x", threads) as thread:
        yield group, thread


def shared(dtype: str, size: int) -> Any:
    """An array in the shared memory of a group."""
    return builder().alloc_buffer((size,), dtype, scope="shared")


def barrier() -> None:
    """A barrier for the group: writes before it are visible to all its threads after it. All of them must reach it."""
    t = builder()
    t.evaluate(t.tvm_storage_sync("shared"))


def subgroup_barrier() -> None:
    """A barrier for the threads of a subgroup. All of them must reach it."""
    t = builder()
    t.evaluate(t.tvm_storage_sync("warp"))


def atomic(operation: str, buffer: Any, index: Any, *values: Any) -> Any:
    """An atomic operation; returns the previous value.

    It is ``add``, ``min``, ``max``, ``and``, ``or``, ``xor``, ``exchange``, ``compare_exchange`` or ``load``. The result must be
    used or bound (``let``); use ``atomic_do`` if it is not needed.
    """
    t = builder()
    return t.call_extern(str(buffer.dtype), f"atomic_{operation}", t.address_of(buffer[index]), *values)


def atomic_do(operation: str, buffer: Any, index: Any, *values: Any) -> None:
    """``atomic`` as a statement; also supports ``store``."""
    builder().evaluate(atomic(operation, buffer, index, *values))


def subgroup(operation: str, dtype: str, *values: Any) -> Any:
    """An operation over the threads of a subgroup: ``ballot``, ``exclusive_add``, ``shuffle_xor``, ``size`` …"""
    return builder().call_extern(dtype, f"subgroup_{operation}", *values)


def looked_up(columns: Sequence[Sequence[float]], index: Any) -> list[Any]:
    """The elements of tables of eight float32 that are parts of the kernel's code, for each lane of an index of UINT32 below 8.

    In memory, what an index finds is side by side, so that a few loads bring it all.
    """
    width = 1 << (len(columns) - 1).bit_length()
    rows = np.zeros((len(columns[0]), width), "<f4")
    rows[:, : len(columns)] = np.transpose(columns)
    dtype, digits = type_of(index).replace("uint32", "float32"), rows.tobytes().hex()
    return [builder().call_pure_extern(dtype, "looked_up", digits, width, i, index) for i in range(len(columns))]


def near_exp2(value: Any) -> Any:
    """2 to the power of a float32, within 2**-22 of it; 0 below the normal numbers. Its bits depend on the device."""
    return builder().call_extern("float32", "near_exp2", value)


def multiply_add_pair(sums: Any, at: int, a: Any, b: tuple[Any, Any]) -> None:
    """Add two products of a float32 to neighbouring sums of the thread, each rounded once; for devices with ``packed_floats``."""
    t = builder()
    t.evaluate(t.call_extern("int32", "multiply_add_pair", t.address_of(sums[at]), a, *b))


def copy_async(target: Any, at: Any, source: Any, place: Any, size: int, there: Any) -> None:
    """Begin to copy 4, 8 or 16 bytes, aligned to their number, to shared memory; zeros unless they are ``there``.

    ``await_copies`` says when they are in place. A barrier must follow before other threads read them.
    """
    t = builder()
    t.evaluate(t.call_extern("int32", "copy_async", t.address_of(target[at]), t.address_of(source[place]), size, there))


def end_copies() -> None:
    """The thread's copies since the last call are a batch."""
    t = builder()
    t.evaluate(t.call_extern("int32", "end_copies"))


def await_copies(others: int) -> None:
    """Wait for the thread's batches of copies, but for the last ``others``."""
    t = builder()
    t.evaluate(t.call_extern("int32", "await_copies", others))
