"""``Module``: a SPIR-V module under construction. It numbers results, keeps types and constants unique, and orders the sections."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from tvmdml.errors import CompileError, Lacking
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.spirv_tables import (
    BUILTIN,
    CAPABILITY,
    DECORATION,
    EXECUTION_MODE,
    EXECUTION_MODEL,
    FUNCTION_CONTROL,
    GLSL,
    HEADER_WORDS,
    LOOP_CONTROL,
    MAGIC,
    MATRIX_USES,
    MEMORY_MODEL,
    MEMORY_OPERANDS,
    NO_CONTRACTION,
    OPCODES,
    STORAGE_CLASS,
    SUBGROUP,
    UINT,
    VERSION,
    WORKGROUP,
    Scalar,
)

ENTRY = "main"
# The device feature needed before a capability may be declared: the field of Capabilities, and Vulkan's name.
_FEATURES = {
    "Int8": ("int8", "shaderInt8"),
    "Int16": ("int16", "shaderInt16"),
    "Int64": ("int64", "shaderInt64"),
    "Float16": ("float16", "shaderFloat16"),
    "Float64": ("float64", "shaderFloat64"),
    "CooperativeMatrixKHR": ("matrices", "cooperativeMatrix"),
    "StorageBuffer8BitAccess": ("storage8", "storageBuffer8BitAccess"),
    "StorageBuffer16BitAccess": ("storage16", "storageBuffer16BitAccess"),
}
_FLOAT_CODES = {16: "<e", 32: "<f", 64: "<d"}
_WIDE = {"int": "Int64", "uint": "Int64", "float": "Float64"}


class Module:
    """One entry point with its globals.

    ``emit`` and ``result`` append to the function's body; the other methods build the sections before it.
    """

    def __init__(self, name: str, device: Capabilities) -> None:
        self.name = name
        self.device = device
        self._bound = 1
        self._capabilities = {"Shader"}
        self._names: list[int] = []
        self._decorations: list[int] = []
        self._globals: list[int] = []
        self._variables: list[int] = []
        self._code: list[int] = []
        self._interface: list[int] = []
        self._known: dict[Hashable, int] = {}
        self._computed: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self._since: list[tuple[str, int, tuple[int, ...]]] = []
        self._float_widths: set[int] = set()
        self._glsl = self.id()
        self.has_matrices = False
        """Whether subgroups hold matrices together. Then the memory model is Vulkan's, and accesses to shared memory say so."""
        self.current_block = self._first = self.id()
        """The label of the current block, which the next instruction is added to."""

    # -- Refusals

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that names the part of the function that has no translation.

        Raises:
            CompileError: always.
        """
        raise CompileError(f"{self.name}: {what}")

    def require(self, capability: str) -> None:
        """Declare a capability, if the device supports it."""
        if capability in self._capabilities:
            return
        if capability in _FEATURES:
            field, feature = _FEATURES[capability]
            if not getattr(self.device, field):
                raise Lacking(self.name, feature)
        self._capabilities.add(capability)

    # -- Instructions

    def id(self) -> int:
        """A new result id."""
        number = self._bound
        self._bound += 1
        return number

    def emit(self, name: str, *operands: int) -> None:
        """Append an instruction to the body."""
        self._code += ((len(operands) + 1) << 16 | OPCODES[name], *operands)

    def result(self, name: str, result_type: int, *operands: int) -> int:
        """Append an instruction with a result to the body."""
        number = self._bound
        self._bound += 1
        self._code += ((len(operands) + 3) << 16 | OPCODES[name], result_type, number, *operands)
        return number

    def pure(self, name: str, result_type: int, *operands: int) -> int:
        """An instruction without side effects. If the same one was already computed on every path to here, its result is reused."""
        key = (name, result_type, operands)
        number = self._computed.get(key)
        if number is None:
            number = self._computed[key] = self.result(name, result_type, *operands)
            self._since.append(key)
            if name in NO_CONTRACTION:
                self.decorate(number, "NoContraction")
        return number

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Code that is not on every path: results computed in it are not reused afterwards."""
        before, self._since = self._since, []
        yield
        for key in self._since:
            del self._computed[key]
        self._since = before

    def extended(self, name: str, result_type: int, *operands: int) -> int:
        """A function of GLSL.std.450."""
        return self.pure("ExtInst", result_type, self._glsl, GLSL[name], *operands)

    def label(self, number: int) -> None:
        """Start a block."""
        self.current_block = number
        self._code += (2 << 16 | OPCODES["Label"], number)

    def phi(self, result_type: int, *sources: int) -> int:
        """A phi at the start of a block: one (value, label) pair for each predecessor."""
        return self.result("Phi", result_type, *sources)

    def loop_phi(self, result_type: int, first: int, before: int, again: int) -> tuple[int, Callable[[int], None]]:
        """A phi whose value from the block ``again`` is not known yet; the returned function sets it."""
        number = self.phi(result_type, first, before, 0, again)
        place = len(self._code) - 2

        def complete(value: int) -> None:
            self._code[place] = value

        return number, complete

    def describe(self, number: int, text: str) -> None:
        """Give a result a name for readers of the assembly."""
        if text:
            _append(self._names, "Name", number, *_words(text))

    def decorate(self, number: int, decoration: str, *operands: int) -> None:
        """Decorate a result."""
        _append(self._decorations, "Decorate", number, DECORATION[decoration], *operands)

    def repeat(
        self,
        types: Sequence[int],
        values: Sequence[int],
        condition: Callable[..., int],
        step: Callable[..., Sequence[int]],
    ) -> list[int]:
        """A loop: while the condition holds for the values, a step computes their next ones. Neither may have branches."""
        before, header, body, again, merge = self.current_block, *(self.id() for _ in range(4))
        self.emit("Branch", header)
        self.label(header)
        phis = [self.loop_phi(kind, value, before, again) for kind, value in zip(types, values, strict=True)]
        numbers = [number for number, _ in phis]
        truth = condition(*numbers)
        self.emit("LoopMerge", merge, again, LOOP_CONTROL["None"])
        self.emit("BranchConditional", truth, body, merge)
        self.label(body)
        with self.branch():
            for (_, complete), value in zip(phis, step(*numbers), strict=True):
                complete(value)
        self.emit("Branch", again)
        self.label(again)
        self.emit("Branch", header)
        self.label(merge)
        return numbers

    # -- Types, constants, variables

    def type(self, scalar: Scalar) -> int:
        """A scalar type. Integer types are unsigned: each instruction defines whether it treats them as signed."""
        kind, bits = scalar
        if kind == "bool":
            return self._once("TypeBool")
        if bits == 64 and kind != "float" and not self.device.int64:
            return self.vector(UINT, 2)  # see ``spirv_pairs``
        if bits == 64:
            self.require(_WIDE[kind])
        if kind == "float":
            self._float_widths.add(bits)
            return self._once("TypeFloat", bits)
        return self._once("TypeInt", bits, 0)

    def vector(self, scalar: Scalar, lanes: int) -> int:
        """A vector type of 2 to 4 lanes."""
        return self._once("TypeVector", self.type(scalar), lanes)

    def two_words(self) -> int:
        """The type of a product of two words."""
        word = self.type(UINT)
        return self._once("TypeStruct", word, word)

    def pointer(self, storage: str, pointee: int) -> int:
        """A pointer type."""
        return self._once("TypePointer", STORAGE_CLASS[storage], pointee)

    def array(self, element: int, count: int) -> int:
        """The type of an array of known length."""
        return self._once("TypeArray", element, self.constant(UINT, count))

    def block(self, element: int, stride: int) -> int:
        """The type of a storage buffer's content: a structure with an array of unknown length."""
        key = ("block", element)
        if key not in self._known:
            array = self._global("TypeRuntimeArray", element)
            self.decorate(array, "ArrayStride", stride)
            self._known[key] = self.structure([array], [0])
        return self._known[key]

    def structure(self, members: Sequence[int], offsets: Sequence[int]) -> int:
        """The type of a structure with members at these offsets in bytes."""
        number = self._global("TypeStruct", *members)
        self.decorate(number, "Block")
        for member, offset in enumerate(offsets):
            _append(self._decorations, "MemberDecorate", number, member, DECORATION["Offset"], offset)
        return number

    def constant(self, scalar: Scalar, value: float | int | bool) -> int:
        """A constant; an integer may be given directly, or modulo 2 to the power of its bits."""
        kind, bits = scalar
        if kind == "bool":
            return self._once("ConstantTrue" if value else "ConstantFalse", typed=self.type(scalar))
        number = pattern(scalar, value)
        words = (number & 0xFFFFFFFF, number >> 32) if bits == 64 else (number,)
        if bits == 64 and kind != "float" and not self.device.int64:
            return self._once("ConstantComposite", *(self.constant(UINT, word) for word in words), typed=self.type(scalar))
        return self._once("Constant", *words, typed=self.type(scalar))

    def variable(self, storage: str, pointee: int) -> int:
        """A variable, of the function or global."""
        if storage == "Function":
            number = self.id()
            _append(self._variables, "Variable", self.pointer(storage, pointee), number, STORAGE_CLASS[storage])
            return number
        number = self._global("Variable", STORAGE_CLASS[storage], typed=self.pointer(storage, pointee))
        self._interface.append(number)
        return number

    def builtin(self, name: str, lanes: int = 1) -> int:
        """The variable of a built-in value made of 32-bit unsigned integers."""
        key = ("builtin", name)
        if key not in self._known:
            self._known[key] = self.variable("Input", self.vector(UINT, lanes) if lanes > 1 else self.type(UINT))
            self.decorate(self._known[key], "BuiltIn", BUILTIN[name])
        return self._known[key]

    def _once(self, name: str, *operands: int, typed: int | None = None) -> int:
        key = (name, typed, operands)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._global(name, *operands, typed=typed)
        return number

    def _global(self, name: str, *operands: int, typed: int | None = None) -> int:
        number = self.id()
        _append(self._globals, name, *([number] if typed is None else [typed, number]), *operands)
        return number

    def matrix(self, use: str, scalar: Scalar, rows: int, columns: int) -> int:
        """The type of a matrix that a subgroup holds: a factor (``a``, ``b``) or a ``sum``."""
        self.require("CooperativeMatrixKHR")
        if scalar.bits < 32:
            self.require(f"{'Float' if scalar.kind == 'float' else 'Int'}{scalar.bits}")
        self.has_matrices = True
        numbers = (SUBGROUP, rows, columns, MATRIX_USES[use])
        return self._once("TypeCooperativeMatrixKHR", self.type(scalar), *(self.constant(UINT, number) for number in numbers))

    def filled(self, kind: int, value: int) -> int:
        """A constant matrix with one element everywhere."""
        return self._once("ConstantComposite", value, typed=kind)

    def memory_operands(self, storage: str, write: bool) -> tuple[int, ...]:
        """What an access to a group's memory ends with."""
        if storage != "Workgroup" or not self.has_matrices:
            return ()
        name = f"MakePointer{'Available' if write else 'Visible'}|NonPrivatePointer"
        return MEMORY_OPERANDS[name], self.constant(UINT, WORKGROUP)

    # -- The end

    def assemble(self, block: tuple[int, int, int]) -> bytes:
        """The complete module, with the body as the entry point's only function."""
        void = self._once("TypeVoid")
        signature = self._once("TypeFunction", void)
        function = self.id()
        self.describe(function, ENTRY)
        if 16 in self._float_widths and not self._capabilities & {"Float16", "StorageBuffer16BitAccess"}:
            # Conversions to and from float16 do the rounding: one of the two capabilities must provide the type.
            self.require("Float16" if self.device.float16 else "StorageBuffer16BitAccess")
        if self.has_matrices:
            self.require("VulkanMemoryModel")
        modes: list[int] = []
        _append(modes, "ExecutionMode", function, EXECUTION_MODE["LocalSize"], *block)
        for mode, widths in (
            ("DenormPreserve", self.device.keep_denormals),
            ("SignedZeroInfNanPreserve", self.device.keep_special),
            ("RoundingModeRTE", self.device.nearest_even),
        ):
            for width in sorted(self._float_widths.intersection(widths)):
                self.require(mode)
                _append(modes, "ExecutionMode", function, EXECUTION_MODE[mode], width)
        words = [MAGIC, VERSION, 0, self._bound, 0]
        for capability in sorted(self._capabilities, key=CAPABILITY.__getitem__):
            _append(words, "Capability", CAPABILITY[capability])
        if self.has_matrices:
            _append(words, "Extension", *_words("SPV_KHR_cooperative_matrix"))
        _append(words, "ExtInstImport", self._glsl, *_words("GLSL.std.450"))
        _append(words, "MemoryModel", 0, MEMORY_MODEL["Vulkan" if self.has_matrices else "GLSL450"])
        _append(words, "EntryPoint", EXECUTION_MODEL["GLCompute"], function, *_words(ENTRY), *self._interface)
        for section in (modes, self._names, self._decorations, self._globals):
            words += section
        _append(words, "Function", void, function, FUNCTION_CONTROL["None"], signature)
        _append(words, "Label", self._first)
        words += self._variables
        words += self._code
        _append(words, "FunctionEnd")
        return struct.pack(f"<{len(words)}I", *words)


def _append(section: list[int], name: str, *operands: int) -> None:
    section += ((len(operands) + 1) << 16 | OPCODES[name], *operands)


def _words(text: str) -> tuple[int, ...]:
    """Text in SPIR-V's encoding: UTF-8 followed by at least one zero byte, in whole words."""
    data = text.encode() + b"\0"
    data += bytes(-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def pattern(scalar: Scalar, value: float | int | bool) -> int:
    """The bits of a number."""
    return _float_bits(float(value), scalar.bits) if scalar.kind == "float" else int(value) & ((1 << scalar.bits) - 1)


def _float_bits(value: float, bits: int) -> int:
    try:
        packed = struct.pack(_FLOAT_CODES[bits], value)
    except OverflowError:  # Python does not round to infinity
        packed = struct.pack(_FLOAT_CODES[bits], float("inf") if value > 0 else float("-inf"))
    return int.from_bytes(packed, "little")


def without_names(code: bytes) -> bytes:
    """A module without its names: modules that are equal without names are the same program."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    kept = list(words[:HEADER_WORDS])
    at = HEADER_WORDS
    while at < len(words):
        length = words[at] >> 16
        if words[at] & 0xFFFF != OPCODES["Name"]:
            kept += words[at : at + length]
        at += length
    return struct.pack(f"<{len(kept)}I", *kept)
