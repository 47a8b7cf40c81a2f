"""``ShaderMemory``: TensorIR's buffers as SPIR-V's variables, and access to their elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvmdml.errors import message
from tvmdml.targets.vulkan.spirv_arithmetic import Arithmetic
from tvmdml.targets.vulkan.spirv_tables import BOOL, SCALARS, UINT, Scalar

_HALF = Scalar("float", 16)
_LANES = 4
_SCOPES = {"shared": "Workgroup", "shared.dyn": "Workgroup", "local": "Function", "global": "Function", "": "Function"}


class View(NamedTuple):
    """A buffer as the function sees it: memory, with an element type."""

    memory: StorageBuffer | Allocation
    scalar: Scalar


@dataclass(eq=False)
class StorageBuffer:
    """A storage buffer that the caller binds, with one variable for each type and number of lanes used to access it."""

    name: str
    binding: int
    variables: dict[tuple[Scalar, int], int] = field(default_factory=dict)
    read: bool = False
    written: bool = False


@dataclass(eq=False)
class Allocation:
    """Shared memory of the group, or memory of the thread."""

    name: str
    storage: str
    scalar: Scalar
    count: int
    is_dynamic: bool
    in_vectors: bool = False
    """Whether it is an array of vectors of ``_LANES`` elements, because some are loaded or stored at once."""
    variables: dict[Scalar, int] = field(default_factory=dict)


class Pointer(NamedTuple):
    """A pointer to an element, and the type that is stored there."""

    number: int
    scalar: Scalar
    stored: Scalar
    storage: str


class ShaderMemory:
    """Declares a variable when an element is first accessed."""

    def __init__(self, arithmetic: Arithmetic, restrict: bool) -> None:
        self.module = arithmetic.module
        self.arithmetic = arithmetic
        self.shared_bytes = 0
        self.is_exchanged = False
        """Whether threads see what others write to storage buffers while the kernel still runs."""
        self._restrict = restrict
        self._parameters: list[StorageBuffer] = []
        self._views: dict[int, View] = {}
        self._loaded: dict[int, int] = {}

    # -- Declarations. Keys are the handles of TVM's nodes, which the function keeps alive.

    def parameter(self, node: Any, name: str, scalar: Scalar) -> None:
        """Add the next storage buffer."""
        parameter = StorageBuffer(name, len(self._parameters))
        self._parameters.append(parameter)
        self._views[node.__chandle__()] = View(parameter, scalar)

    def allocate(self, node: Any, runs: int = 1) -> None:
        """Allocate a buffer of the group or of the thread; ``runs``: the most elements that are loaded or stored at once."""
        scope = str(node.scope())
        if scope not in _SCOPES:
            self.module.refuse(f"cannot translate memory of scope {scope!r} to SPIR-V")
        sizes = list(node.shape)
        if any(type(size).__name__ != "IntImm" for size in sizes):
            self.module.refuse(f"{node.name}: the size of its memory is not constant")
        scalar = self._scalar(node)
        count = math.prod(int(size.value) for size in sizes)
        # A matrix of a subgroup is loaded from an array of its elements.
        whole = scalar.bits == 32 and runs % _LANES == 0 and count % _LANES == 0
        in_vectors = whole and scope == "shared" and not self.module.has_matrices
        allocation = Allocation(str(node.name), _SCOPES[scope], scalar, count, scope == "shared.dyn", in_vectors)
        self._views[node.__chandle__()] = View(allocation, scalar)

    def declare(self, node: Any, data: Any) -> None:
        """Declare another name for memory, with the name's element type."""
        if type(data).__name__ == "Call":  # buffer_data(buffer)
            data = data.args[0]
        found = self._views.get(data.__chandle__())
        if found is None:
            self.module.refuse(f"{node.name}: its memory is neither a parameter nor allocated")
        offset = node.elem_offset
        if type(offset).__name__ != "IntImm" or offset.value:
            self.module.refuse(f"{node.name}: a buffer must begin at the start of its memory")
        scalar = self._scalar(node)
        memory = found.memory
        memory.name = memory.name or str(node.name)
        if isinstance(memory, Allocation) and scalar != memory.scalar and not memory.is_dynamic:
            self.module.refuse(
                f"{node.name}: {memory.scalar.name} memory seen as {scalar.name}, which SPIR-V supports only for parameters"
            )
        self._views[node.__chandle__()] = View(memory, scalar)

    def _scalar(self, node: Any) -> Scalar:
        scalar = SCALARS.get(str(node.dtype))
        if scalar is None:
            self.module.refuse(f"{node.name}: a buffer of {node.dtype}, a type that SPIR-V does not have")
        return scalar

    # -- Elements

    def scalar(self, node: Any) -> Scalar:
        """The type of a buffer's elements."""
        return self._view(node).scalar

    def pointer(self, node: Any, index: int, write: bool, read: bool = False) -> Pointer:
        """A pointer to the element at an index."""
        memory, scalar = self._view(node)
        if isinstance(memory, StorageBuffer):
            memory.written |= write
            memory.read |= read or not write
            stored = Scalar("uint", 8) if scalar == BOOL else _unsigned(scalar)
            return Pointer(self._element(memory, stored, 1, index), scalar, stored, "StorageBuffer")
        stored = self._kept(memory, scalar)
        number = self._variable(memory, scalar, stored)
        if memory.count > 1:
            places = self._in_vector(index) if memory.in_vectors else (index,)
            number = self.module.pure("AccessChain", self.module.pointer(memory.storage, self.module.type(stored)), number, *places)
        return Pointer(number, scalar, stored, memory.storage)

    def load(self, node: Any, index: int) -> int:
        """Load the element at an index."""
        pointer = self.pointer(node, index, write=False)
        operands = self.module.memory_operands(pointer.storage, write=False)
        number = self.module.result("Load", self.module.type(pointer.stored), pointer.number, *operands)
        value = self.arithmetic.from_memory(pointer.scalar, pointer.stored, number)
        if pointer.scalar == _HALF and value != number:
            self._loaded[value] = number
        return value

    def store(self, node: Any, index: int, value: int) -> None:
        """Write the element at an index."""
        pointer = self.pointer(node, index, write=True)
        stored = value
        if pointer.scalar != _HALF:
            stored = self.arithmetic.to_memory(pointer.scalar, pointer.stored, value)
        elif pointer.storage == "StorageBuffer":
            stored = self._half(pointer, value)
        self.module.emit("Store", pointer.number, stored, *self.module.memory_operands(pointer.storage, write=True))

    def words(self, node: Any, base: int, lanes: int) -> int:
        """How many 32-bit words of these contiguous elements can be loaded or stored at once; 0 if this is not possible."""
        memory, scalar = self._view(node)
        device = self.module.device
        if isinstance(memory, Allocation):
            whole = memory.in_vectors and lanes % _LANES == 0 and self.arithmetic.zeros(base) >= _LANES.bit_length() - 1
            return _LANES if whole else 0
        if lanes == 1:
            return 0
        if scalar == _HALF and not (device.float16 and 16 in device.nearest_even):
            return 0
        size = scalar.bits // 8
        found = min(16, size * (lanes & -lanes), size << min(self.arithmetic.zeros(base), 4))
        return found // 4 if found > max(size, 3) else 0

    def load_words(self, node: Any, base: int, index: Scalar, lanes: int, words: int) -> tuple[int, ...]:
        """Load contiguous elements, ``words`` words at once."""
        memory, scalar = self._view(node)
        module, stored = self.module, UINT
        if isinstance(memory, StorageBuffer):
            memory.read = True
        else:
            stored = self._kept(memory, scalar)
        found = []
        for pointer in self._blocks(memory, scalar, base, index, lanes, words):
            if words == 1:
                found.append(module.result("Load", module.type(stored), pointer))
                continue
            block = module.result("Load", module.vector(stored, words), pointer)
            found += [module.pure("CompositeExtract", module.type(stored), block, word) for word in range(words)]
        return tuple(self.arithmetic.unpack(scalar, found) if isinstance(memory, StorageBuffer) else found)

    def store_words(self, node: Any, base: int, index: Scalar, values: tuple[int, ...], words: int) -> None:
        """Store contiguous elements, ``words`` words at once."""
        memory, scalar = self._view(node)
        module, stored, packed = self.module, UINT, list(values)
        if isinstance(memory, StorageBuffer):
            memory.written = True
            packed = self.arithmetic.pack(scalar, values)
        else:
            stored = self._kept(memory, scalar)
        for place, pointer in enumerate(self._blocks(memory, scalar, base, index, len(values), words)):
            part = packed[place * words : (place + 1) * words]
            whole = part[0] if words == 1 else module.pure("CompositeConstruct", module.vector(stored, words), *part)
            module.emit("Store", pointer, whole)

    def _blocks(
        self, memory: StorageBuffer | Allocation, scalar: Scalar, base: int, index: Scalar, lanes: int, words: int
    ) -> Iterator[int]:
        """Pointers to the blocks of words that contain contiguous elements."""
        arithmetic = self.arithmetic
        elements = words * 32 // scalar.bits
        unsigned = Scalar("uint", index.bits)
        first = arithmetic.binary("RShift", unsigned, base, arithmetic.constant(unsigned, elements.bit_length() - 1))
        for block in range(lanes // elements):
            place = arithmetic.binary("Add", unsigned, first, arithmetic.constant(unsigned, block)) if block else first
            if isinstance(memory, StorageBuffer):
                yield self._element(memory, UINT, words, place)
            else:
                stored = self._kept(memory, scalar)
                kind = self.module.pointer(memory.storage, self.module.vector(stored, words))
                yield self.module.pure("AccessChain", kind, self._variable(memory, scalar, stored), place)

    def _in_vector(self, index: int) -> tuple[int, int]:
        """Which vector an element is in, and where."""
        binary, word = self.arithmetic.binary, self.module.constant
        return binary("RShift", UINT, index, word(UINT, 2)), self.module.pure(
            "BitwiseAnd", self.module.type(UINT), index, word(UINT, _LANES - 1)
        )

    def _words_type(self, words: int) -> int:
        return self.module.type(UINT) if words == 1 else self.module.vector(UINT, words)

    def _element(self, memory: StorageBuffer, stored: Scalar, lanes: int, index: int) -> int:
        """A pointer to an element of a storage buffer, which is accessed as an array of scalars or vectors."""
        kind = self._words_type(lanes) if lanes > 1 else self.module.type(stored)
        number = memory.variables.get((stored, lanes))
        if number is None:
            number = memory.variables[stored, lanes] = self._bind(memory, stored, kind, lanes)
        element = self.module.pointer("StorageBuffer", kind)
        return self.module.pure("AccessChain", element, number, self.module.constant(UINT, 0), index)

    def _half(self, pointer: Pointer, value: int) -> int:
        """A float16 in its stored form."""
        if (loaded := self._loaded.get(value)) is not None:  # a value that is only copied keeps its bits, even if NaN
            return loaded
        wide = self.arithmetic.converted.get(value, value)
        if 16 in self.module.device.nearest_even or (wide == value and self.arithmetic.held(_HALF) == _HALF):
            return self.arithmetic.to_memory(_HALF, pointer.stored, value)
        # This device does not always round to nearest even. That can be requested only for a value that is stored at once.
        stored = self.module.result("FConvert", self.module.type(_HALF), wide)
        self.module.decorate(stored, "FPRoundingMode", 0)
        return stored

    def _view(self, node: Any) -> View:
        view = self._views.get(node.__chandle__())
        if view is None:
            self.module.refuse(f"{node.name}: the buffer is not declared")
        return view

    # -- Variables

    def _bind(self, memory: StorageBuffer, stored: Scalar, kind: int, lanes: int) -> int:
        if stored.bits < 32:
            self.module.require(f"StorageBuffer{stored.bits}BitAccess")
        number = self.module.variable("StorageBuffer", self.module.block(kind, lanes * stored.bits // 8))
        self.module.describe(number, memory.name)
        self.module.decorate(number, "DescriptorSet", 0)
        self.module.decorate(number, "Binding", memory.binding)
        return number

    def _kept(self, memory: Allocation, scalar: Scalar) -> Scalar:
        """The type stored for an element; in a thread's own memory, the type of its register."""
        if memory.storage == "Function":
            return self.arithmetic.held(scalar)
        device = self.module.device
        if scalar.bits == 8:
            return Scalar("uint", 8) if device.int8 else UINT
        if scalar.bits == 16 and scalar.kind != "float":
            return Scalar("uint", 16) if device.int16 else UINT
        return _unsigned(self.arithmetic.held(scalar))

    def _variable(self, memory: Allocation, scalar: Scalar, stored: Scalar) -> int:
        number = memory.variables.get(stored)
        if number is None:
            number = memory.variables[stored] = self._reserve(memory, scalar, stored)
        return number

    def _reserve(self, memory: Allocation, scalar: Scalar, stored: Scalar) -> int:
        narrow = {("uint", 8): "Int8", ("uint", 16): "Int16", ("float", 16): "Float16"}.get(stored)
        if narrow is not None and stored.kind != "bool":
            self.module.require(narrow)
        count = -(-memory.count * memory.scalar.bits // scalar.bits)
        if memory.storage == "Workgroup":
            self.shared_bytes += count * stored.bits // 8
        element = self.module.type(stored)
        if memory.in_vectors:
            element, count = self.module.vector(stored, _LANES), count // _LANES
        number = self.module.variable(memory.storage, self.module.array(element, count) if memory.count > 1 else element)
        self.module.describe(number, memory.name)
        return number

    def uses(self) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Whether each parameter is read, and whether it is written."""
        parameters = self._parameters
        return tuple(memory.read for memory in parameters), tuple(memory.written for memory in parameters)

    def finish(self) -> None:
        """Record how the storage buffers are used, and check the size of the shared memory.

        Raises:
            CompileError: the shared memory is too large.
        """
        for memory in self._parameters:
            several = len(memory.variables) > 1
            for number in memory.variables.values():
                self.module.decorate(number, "Restrict" if self._restrict and not several else "Aliased")
                if not memory.written:
                    self.module.decorate(number, "NonWritable")
                elif self.is_exchanged:
                    self.module.decorate(number, "Coherent")
                if not memory.read:
                    self.module.decorate(number, "NonReadable")
        given, allowed = self.shared_bytes, self.module.device.max_shared_bytes
        if given > allowed:
            self.module.refuse(message("shared memory", f"{given} bytes", f"up to {allowed} on this device"))


def _unsigned(scalar: Scalar) -> Scalar:
    return Scalar("uint", scalar.bits) if scalar.kind == "int" else scalar
