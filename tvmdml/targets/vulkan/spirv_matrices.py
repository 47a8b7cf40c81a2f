"""``Matrices``: small matrices that the threads of a subgroup hold together (VK_KHR_cooperative_matrix), and their products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.targets.vulkan import spirv_tables as tables
from tvmdml.targets.vulkan.spirv_memory import Pointer
from tvmdml.targets.vulkan.spirv_module import Module
from tvmdml.targets.vulkan.spirv_tables import SCALARS, UINT, Scalar


class Matrices:
    """Those of one function, by their names.

    ``pointer_of`` makes a pointer of an argument, which is written to or read; ``index_of`` is the result of an integer expression.
    """

    def __init__(self, module: Module, pointer_of: Callable[[str, Any, bool], Pointer]) -> None:
        self._module, self._pointer_of = module, pointer_of
        self._variables: dict[str, tuple[int, int, Scalar]] = {}

    def call(self, name: str, arguments: list[Any]) -> None:
        """Translate a call: a matrix is given as its name, use, type, rows and columns."""
        module = self._module
        if name == "matrix_fill":
            variable, kind, scalar = self._matrix(arguments)
            module.emit("Store", variable, module.filled(kind, module.constant(scalar, int(arguments[5].value))))
        elif name == "matrix_load":
            variable, kind, _ = self._matrix(arguments)
            pointer, *rest = self._memory(name, arguments[5:8], write=False)
            module.emit("Store", variable, module.result("CooperativeMatrixLoadKHR", kind, pointer, *rest))
        elif name == "matrix_store":
            loaded, _ = self._loaded(arguments)
            pointer, *rest = self._memory(name, arguments[5:8], write=True)
            module.emit("CooperativeMatrixStoreKHR", pointer, loaded, *rest)
        else:
            target, kind, scalar = self._matrix(arguments)
            values = [self._loaded(arguments[first : first + 5])[0] for first in range(5, len(arguments), 5)]
            total, _ = self._loaded(arguments)
            if name == "matrix_multiply":
                signs = (tables.SIGNED,) if scalar.kind == "int" else ()
                found = module.result("CooperativeMatrixMulAddKHR", kind, *values, total, *signs)
            else:
                found = module.result({"matrix_add": "FAdd", "matrix_scale": "FMul"}[name], kind, total, *values)
            module.emit("Store", target, found)

    def _matrix(self, arguments: list[Any]) -> tuple[int, int, Scalar]:
        """Its variable, the type of the whole and that of an element."""
        name, use, dtype = (str(one.value) for one in arguments[:3])
        if name not in self._variables:
            scalar = SCALARS[dtype]
            kind = self._module.matrix(use, scalar, *(int(one.value) for one in arguments[3:5]))
            variable = self._module.variable("Function", kind)
            self._module.describe(variable, name)
            self._variables[name] = variable, kind, scalar
        return self._variables[name]

    def _loaded(self, arguments: list[Any]) -> tuple[int, int]:
        variable, kind, _ = self._matrix(arguments)
        return self._module.result("Load", kind, variable), kind

    def _memory(self, name: str, arguments: list[Any], write: bool) -> tuple[int, ...]:
        """A place in memory, how a matrix lies there, and the operands of the access."""
        module, pointer = self._module, self._pointer_of(name, arguments[0], write)
        turned, pitch = (int(one.value) for one in arguments[1:])
        layout = tables.COLUMNS_FIRST if turned else tables.ROWS_FIRST
        numbers = (module.constant(UINT, layout), module.constant(UINT, pitch))
        return (pointer.number, *numbers, *module.memory_operands(pointer.storage, write))
