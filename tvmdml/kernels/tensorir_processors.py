"""Words for processors: their instructions, and functions in LLVM IR. ``tensorir`` has all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from tvmdml.kernels.tensorir_base import Variable, builder, is_on_device, type_of

# The processor that a kernel is written for, and the LLVM IR that it has imported.
_processor: ContextVar[tuple[Any, set[str]]] = ContextVar("processor")


@contextmanager
def instructions_of(processor: Any) -> Iterator[None]:
    """Kernels that are written meanwhile are for this processor (``targets.cpu.host.Processor``); ``None`` is any."""
    token = _processor.set((processor, set()))
    try:
        yield
    finally:
        _processor.reset(token)


def has_instructions(feature: str) -> bool:
    """Whether the kernel that is written now is for a processor with a feature, by LLVM's name."""
    processor, _ = _processor.get((None, set()))
    return not is_on_device() and processor is not None and processor.has(feature)


def call_imported(dtype: str, function: str, source: str, *values: Any) -> Any:
    """The result of a function in LLVM IR, which the kernel has from the first such call on."""
    found = Variable(dtype)
    with _imported(source):
        found.set(builder().call_extern(dtype, function, *values))
    return found.value


def do_imported(function: str, source: str, *values: Any) -> None:
    """Call a function in LLVM IR that has no result."""
    with _imported(source):
        builder().evaluate(builder().call_extern("void", function, *values))


_SAME = """
define i32 @tvmdml_same_memory(ptr %one, ptr %other) alwaysinline {
  %a = ptrtoint ptr %one to i64
  %b = ptrtoint ptr %other to i64
  %same = icmp eq i64 %a, %b
  %found = zext i1 %same to i32
  ret i32 %found
}
"""


def same_memory(one: Any, other: Any) -> Any:
    """Whether two buffers begin at one address: 1, or 0. Kernels may ask, although they are compiled for buffers that are apart."""
    return call_imported("int32", "tvmdml_same_memory", _SAME, one.data, other.data)


@contextmanager
def _imported(source: str) -> Iterator[None]:
    """The statement may call functions of LLVM IR, which the kernel has from the first time on."""
    _, imported = _processor.get((None, set()))
    with nullcontext() if source in imported else builder().attr(0, "pragma_import_llvm", source):
        yield
    imported.add(source)


def rounded(product: Any) -> Any:
    """A product (or quotient) as it is after its own rounding: a sum with it is not contracted to a fused multiply-add.

    TVM has LLVM contract ``a * b + c`` wherever the processor has such an instruction, so results would depend on the processor.
    The fence prevents that. It costs no instruction, but a loop of scalars that has one is not vectorised by LLVM: kernels write
    vectors. Devices do not contract: CUDA is compiled with ``--fmad=false``, SPIR-V is decorated with ``NoContraction``.
    """
    if is_on_device():
        return product
    return builder().call_llvm_pure_intrin(type_of(product), "llvm.arithmetic.fence", product)
