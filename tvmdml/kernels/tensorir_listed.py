"""Kernels for processors that read their arguments from a list, because there may be very many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels.tensorir_base import Function, begun, i64, let, view
from tvmdml.system import imports

_CONVENTION, _PACKED = "calling_conv", 1
"""The attribute by which TVM knows that a function has the form of a call already."""
# An argument is a TVMFFIAny. A tensor is a DLTensor, which begins with where its elements are, or an object (70) with one inside.
_LISTED = """
define ptr @tvmdml_listed_tensor(ptr %list, i64 %place) alwaysinline {
  %type_at = getelementptr { i32, i32, ptr }, ptr %list, i64 %place
  %type = load i32, ptr %type_at, align 8
  %value_at = getelementptr { i32, i32, ptr }, ptr %list, i64 %place, i32 2
  %value = load ptr, ptr %value_at, align 8
  %inside = getelementptr i8, ptr %value, i64 24
  %is_object = icmp eq i32 %type, 70
  %tensor = select i1 %is_object, ptr %inside, ptr %value
  %data = load ptr, ptr %tensor, align 8
  ret ptr %data
}
define i64 @tvmdml_listed_integer(ptr %list, i64 %place) alwaysinline {
  %at = getelementptr { i32, i32, i64 }, ptr %list, i64 %place, i32 2
  %value = load i64, ptr %at, align 8
  ret i64 %value
}
"""


class Listed(Function):
    """A kernel for processors with very many arguments. It reads them while it runs, from the list that a call passes.

    TVM takes a time for the parameters of other kernels that grows with the square of their number. This one has the form that TVM
    makes of those (``TVMFFISafeCallType``), so that nothing of it depends on how many arguments there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        """How many arguments were added."""
        self._list: Any = None

    @contextmanager
    def body(self) -> Iterator[None]:
        """The parameters of the form, around the statements, and success behind them."""
        t = self._t
        t.func_attr({"tirx.noalias": True, _CONVENTION: _PACKED})
        t.func_ret(imports.tvm().ir.PrimType("int32"))
        t.arg("self", t.handle())
        self._list = t.arg("list", t.handle())
        t.arg("count", t.int32())
        t.arg("result", t.handle())
        with t.attr(0, "pragma_import_llvm", _LISTED):
            yield
        t.Return(t.int32(0))

    def skip(self, count: int) -> int:
        """Add arguments that are read by their places; the first one's place."""
        self.count += count
        return self.count - count

    def buffer(self, name: str, dtype: str) -> Any:
        """Add an argument: a tensor of ``dtype``."""
        return self.tensor(i64(self.skip(1)), dtype)

    def scalar(self, name: str, dtype: str = "int64") -> Any:
        """Add an argument: an integer of 64 bits."""
        return self.integer(i64(self.skip(1)))

    def tensor(self, place: Any, dtype: str) -> Any:
        """The elements of the tensor at a place, which need not be known now."""
        return view(let(self._t.call_extern("handle", "tvmdml_listed_tensor", self._list, place)), dtype)

    def integer(self, place: Any) -> Any:
        """The integer at a place."""
        return let(self._t.call_extern("int64", "tvmdml_listed_integer", self._list, place))


@contextmanager
def listed_function() -> Iterator[Listed]:
    """Start a new kernel for processors that reads its arguments from a list; its buffers never overlap."""
    f = Listed()
    with begun(f), f.body():
        yield f
