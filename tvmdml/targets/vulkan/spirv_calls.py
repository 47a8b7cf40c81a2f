"""``Calls``: what TensorIR calls by name: math functions, barriers, atomics, and subgroup operations."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tvmdml.targets.vulkan import spirv_tables as tables
from tvmdml.targets.vulkan.spirv_arithmetic import Arithmetic, Value, each
from tvmdml.targets.vulkan.spirv_matrices import Matrices
from tvmdml.targets.vulkan.spirv_memory import Pointer, ShaderMemory
from tvmdml.targets.vulkan.spirv_module import Module
from tvmdml.targets.vulkan.spirv_tables import BOOL, FLOAT, UINT, Scalar

_INT = Scalar("int", 32)
_MATH = {*tables.EXACT_MATH, *tables.MATH, *tables.SCALED_MATH}
_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")


class CallTranslator(Protocol):
    """What translating a call needs from the translator of its function."""

    module: Module
    arithmetic: Arithmetic
    memory: ShaderMemory

    def value(self, node: Any) -> Value:
        """Translate an expression."""

    def type_of(self, node: Any) -> tuple[Scalar, int]:
        """An expression's type, and its number of lanes."""

    def address(self, node: Any) -> int:
        """The index of a load of one element."""

    def lazily(self, condition: int, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
        """One value or the other; the value that is not selected is not computed."""


class Calls:
    """Translates the calls of one function."""

    def __init__(self, writer: CallTranslator) -> None:
        self._writer = writer
        self._module = writer.module
        self._arithmetic = writer.arithmetic
        self._memory = writer.memory
        self._matrices = Matrices(writer.module, self._shared)

    def call(self, node: Any) -> Value:
        """Translate a call. A call without a result returns a dummy value."""
        name = full = str(getattr(node.op, "name", node.op))
        arguments = list(node.args)
        if full in _EXTERN:
            name = str(arguments.pop(0).value)
            if name not in _CALLS and name not in _MATH and name[:-1] in _MATH | {"copysign", "fmod"} and name.endswith("f"):
                name = name[:-1]  # C's name of the function for float32
        else:
            name = full.rpartition(".")[2] if full.startswith(("tirx.", "prim.")) else full  # there is prim.clz
            name = {"round": "nearbyint"}.get(name, name)  # TVM rounds halves to even
        if name in _MATH:
            values = [self._writer.value(argument) for argument in arguments]
            scalar = values[0].scalar
            return self._each(scalar, lambda *lanes: self._arithmetic.math(name, scalar, *lanes), values)
        found = _CALLS.get(name)
        if found is None:
            self._module.refuse(f"cannot translate Call {full}{f' of {name}' if full in _EXTERN else ''} to SPIR-V")
        return found(self, node, name, arguments)

    # -- Numbers

    def _each(self, scalar: Scalar, compute: Callable[..., int], values: Sequence[Value]) -> Value:
        return Value(scalar, each(compute, *(value.lanes for value in values)))

    def _one(self, scalar: Scalar, number: int) -> Value:
        return Value(scalar, (number,))

    def _nothing(self) -> Value:
        return self._one(UINT, 0)

    def _if_then_else(self, node: Any, name: str, arguments: list[Any]) -> Value:
        condition, then, otherwise = arguments
        (truth,) = self._writer.value(condition).lanes
        if all(type(branch).__name__ in ("IntImm", "FloatImm") for branch in (then, otherwise)):
            (scalar, (a,)), (_, (b,)) = self._writer.value(then), self._writer.value(otherwise)
            return Value(scalar, (self._arithmetic.select(scalar, truth, a, b),))
        return self._writer.lazily(truth, lambda: self._writer.value(then), lambda: self._writer.value(otherwise))

    def _same(self, node: Any, name: str, arguments: list[Any]) -> Value:
        return self._writer.value(arguments[0])

    def _skip(self, node: Any, name: str, arguments: list[Any]) -> Value:
        return self._nothing()

    def _reinterpret(self, node: Any, name: str, arguments: list[Any]) -> Value:
        (source, lanes), (target, _) = self._writer.value(arguments[0]), self._writer.type_of(node)
        return Value(target, self._arithmetic.reinterpret(source, target, lanes))

    def _classify(self, node: Any, name: str, arguments: list[Any]) -> Value:
        value = self._writer.value(arguments[0])
        arithmetic, scalar = self._arithmetic, value.scalar

        def is_finite(lane: int) -> int:
            nan, infinite = arithmetic.is_nan(scalar, lane), arithmetic.is_infinite(scalar, lane)
            return arithmetic.negation(arithmetic.binary("Or", BOOL, nan, infinite))

        compute = {
            "isnan": lambda lane: arithmetic.is_nan(scalar, lane),
            "isinf": lambda lane: arithmetic.is_infinite(scalar, lane),
            "isfinite": is_finite,
        }[name]
        return self._each(BOOL, compute, [value])

    def _bits(self, node: Any, name: str, arguments: list[Any]) -> Value:
        value = self._writer.value(arguments[0])
        target, _ = self._writer.type_of(node)
        if name == "clz":
            return self._each(
                target,
                lambda lane: self._arithmetic.cast(_INT, target, self._arithmetic.leading_zeros(value.scalar, lane)),
                [value],
            )
        return self._each(target, lambda lane: self._arithmetic.bit_count(value.scalar, lane), [value])

    def _multiply_add(self, node: Any, name: str, arguments: list[Any]) -> Value:
        """With two roundings: ``Fma`` may have one or two, as the device likes."""
        values = [self._writer.value(argument) for argument in arguments]
        scalar, binary = values[0].scalar, self._arithmetic.binary
        return self._each(scalar, lambda a, b, c: binary("Add", scalar, binary("Mul", scalar, a, b), c), values)

    def _two_floats(self, node: Any, name: str, arguments: list[Any]) -> Value:
        values = [self._writer.value(argument) for argument in arguments]
        scalar, arithmetic = values[0].scalar, self._arithmetic
        if name == "fmod":
            return self._each(scalar, lambda a, b: arithmetic.binary("Mod", scalar, a, b), values)
        return self._each(scalar, lambda a, b: arithmetic.copy_sign(scalar, a, b), values)

    def _pack_halves(self, node: Any, name: str, arguments: list[Any]) -> Value:
        (low,), (high,) = (self._writer.value(argument).lanes for argument in arguments)
        pair = self._module.pure("CompositeConstruct", self._module.vector(FLOAT, 2), low, high)
        return self._one(UINT, self._module.extended("PackHalf2x16", self._module.type(UINT), pair))

    def _looked_up(self, node: Any, name: str, arguments: list[Any]) -> Value:
        """By choices: drivers may put an array of constants into each thread's own memory."""
        width, column = (int(argument.value) for argument in arguments[1:3])
        numbers = [number for (number,) in struct.iter_unpack("<f", bytes.fromhex(str(arguments[0].value)))][column::width]
        arithmetic, zero = self._arithmetic, self._arithmetic.constant(UINT, 0)

        def choose(row: int) -> int:
            found = [arithmetic.constant(tables.FLOAT, number) for number in numbers]
            for bit in range(len(numbers).bit_length() - 1):
                masked = arithmetic.binary("BitwiseAnd", UINT, row, arithmetic.constant(UINT, 1 << bit))
                is_set = arithmetic.compare("NE", UINT, masked, zero)
                found = [arithmetic.select(tables.FLOAT, is_set, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
            return found[0]

        return self._each(tables.FLOAT, choose, [self._writer.value(arguments[3])])

    # -- Barriers and atomics

    def _semantics(self, order: int, memory: int = tables.UNIFORM_MEMORY) -> int:
        return self._module.constant(UINT, order | memory)

    def _scope(self, scope: int) -> int:
        return self._module.constant(UINT, scope)

    def _barrier(self, node: Any, name: str, arguments: list[Any]) -> Value:
        kind = str(arguments[0].value)
        execution, visible, memory = {
            "shared": (tables.WORKGROUP, tables.WORKGROUP, tables.WORKGROUP_MEMORY),
            "shared.dyn": (tables.WORKGROUP, tables.WORKGROUP, tables.WORKGROUP_MEMORY),
            "global": (tables.WORKGROUP, tables.DEVICE, tables.WORKGROUP_MEMORY | tables.UNIFORM_MEMORY),
            "warp": (tables.SUBGROUP, tables.SUBGROUP, tables.WORKGROUP_MEMORY),
        }.get(kind, (0, 0, 0))
        if not execution:
            self._module.refuse(f"cannot translate a barrier of {kind!r} to SPIR-V")
        self._memory.is_exchanged |= kind == "global"
        semantics = self._semantics(tables.ACQUIRE_RELEASE, memory)
        self._module.emit("ControlBarrier", self._scope(execution), self._scope(visible), semantics)
        return self._nothing()

    def _fence(self, node: Any, name: str, arguments: list[Any]) -> Value:
        self._memory.is_exchanged = True
        self._module.emit("MemoryBarrier", self._scope(tables.DEVICE), self._semantics(tables.ACQUIRE_RELEASE))
        return self._nothing()

    def _atomic(self, node: Any, name: str, arguments: list[Any]) -> Value:
        pointer = self._address(name, arguments[0])
        scalar, module = pointer.scalar, self._module
        values = [self._writer.value(argument) for argument in arguments[1:]]
        for value in values:
            if value.scalar != scalar:
                module.refuse(f"{name} on {scalar.name} is given a {value.scalar.name}")
        operands = [value.lanes[0] for value in values]
        is_shared = pointer.storage == "Workgroup"
        scope = self._scope(tables.WORKGROUP if is_shared else tables.DEVICE)
        memory = tables.WORKGROUP_MEMORY if is_shared else tables.UNIFORM_MEMORY
        self._memory.is_exchanged |= not is_shared
        kind = module.type(scalar)
        if name == "atomic_store":
            module.emit("AtomicStore", pointer.number, scope, self._semantics(tables.RELEASE, memory), *operands)
            return self._nothing()
        if name == "atomic_load":
            return self._one(
                scalar, module.result("AtomicLoad", kind, pointer.number, scope, self._semantics(tables.ACQUIRE, memory))
            )
        both = self._semantics(tables.ACQUIRE_RELEASE, memory)
        if name == "atomic_compare_exchange":
            expected, desired = operands
            either = self._semantics(tables.ACQUIRE, memory)
            return self._one(
                scalar,
                module.result("AtomicCompareExchange", kind, pointer.number, scope, both, either, desired, expected),
            )
        instruction = tables.ATOMICS[name][scalar.kind]
        return self._one(scalar, module.result(instruction, kind, pointer.number, scope, both, *operands))

    def _addressed(self, name: str, node: Any) -> Any:
        """The load of the element whose address is taken."""
        if type(node).__name__ != "Call" or str(node.op.name) != "tirx.address_of":
            self._module.refuse(f"{name} needs address_of(buffer[index])")
        return node.args[0]

    def _address(self, name: str, node: Any) -> Pointer:
        """The pointer for ``address_of(buffer[index])``, where an atomic operation takes place."""
        load = self._addressed(name, node)
        index = self._writer.address(load)
        pointer = self._memory.pointer(load.source, index, write=name != "atomic_load", read=True)
        scalar, device = pointer.scalar, self._module.device
        if pointer.storage == "Function" or scalar.kind not in ("int", "uint") or scalar.bits < 32:
            what = f"{scalar.name} in {pointer.storage} memory"
            self._module.refuse(f"{name} on {what}: atomics need integers of 32 or 64 bits in memory that threads share")
        if scalar.bits == 64:
            is_shared = pointer.storage == "Workgroup"
            if not (device.shared_atomic64 if is_shared else device.atomic64):
                self._module.refuse(f"the device lacks {'shaderSharedInt64Atomics' if is_shared else 'shaderBufferInt64Atomics'}")
            self._module.require("Int64Atomics")
        return pointer

    # -- Subgroups

    def _matrix(self, node: Any, name: str, arguments: list[Any]) -> Value:
        self._matrices.call(name, arguments)
        return self._nothing()

    def _shared(self, name: str, node: Any, write: bool) -> Pointer:
        """The pointer for ``address_of(buffer[index])``, where a matrix begins."""
        load = self._addressed(name, node)
        return self._memory.pointer(load.source, self._writer.address(load), write=write)

    def _require_subgroup(self, name: str, group: str, scalar: Scalar = UINT) -> None:
        device = self._module.device
        if group not in device.subgroup:
            self._module.refuse(f"{name}: the device lacks subgroup operations of the group {group!r}")
        if scalar.bits == 64 and scalar.kind != "float" and not device.subgroup_extended_types:
            self._module.refuse(f"{name} of {scalar.name}: the device lacks shaderSubgroupExtendedTypes")
        self._module.require(tables.SUBGROUP_CAPABILITY["basic"])
        self._module.require(tables.SUBGROUP_CAPABILITY[group])

    def _exchanged(self, value: Value, name: str, group: str, exchange: Callable[[int, Scalar], int]) -> Value:
        """The result of an exchange of values; bool and float16 are sent as types that every device can exchange."""
        scalar, (lane,) = value
        self._require_subgroup(name, group, scalar)
        sent = UINT if scalar.kind == "bool" else tables.FLOAT if scalar.kind == "float" and scalar.bits == 16 else scalar
        result = exchange(self._arithmetic.cast(scalar, sent, lane), sent)
        return self._one(scalar, self._arithmetic.cast(sent, scalar, result))

    def _lane(self, node: Any) -> int:
        """The number of a lane, or a distance between two lanes."""
        scalar, (lane,) = self._writer.value(node)
        return self._arithmetic.cast(scalar, UINT, lane)

    def _subgroup_number(self, node: Any, name: str, arguments: list[Any]) -> Value:
        target, _ = self._writer.type_of(node)
        return self._one(target, self._arithmetic.cast(UINT, target, self._subgroup_builtin(name)))

    def _subgroup_builtin(self, name: str) -> int:
        self._require_subgroup(name, "basic")
        variable = self._module.builtin(tables.SUBGROUP_BUILTINS[name])
        return self._module.result("Load", self._module.type(UINT), variable)

    def _subgroup_vote(self, node: Any, name: str, arguments: list[Any]) -> Value:
        group, instruction = tables.SUBGROUP_VOTES[name]
        self._require_subgroup(name, group)
        truths = [self._truth(argument) for argument in arguments]
        scope, kind = self._scope(tables.SUBGROUP), self._module.type(BOOL)
        return self._one(BOOL, self._module.result(instruction, kind, scope, *truths))

    def _truth(self, node: Any) -> int:
        scalar, (lane,) = self._writer.value(node)
        return self._arithmetic.cast(scalar, BOOL, lane)

    def _ballot(self, node: Any, name: str, arguments: list[Any]) -> Value:
        self._require_subgroup(name, "ballot")
        truth = self._truth(arguments[0]) if arguments else self._arithmetic.constant(BOOL, True)
        words = self._module.vector(UINT, 4)
        ballot = self._module.result("GroupNonUniformBallot", words, self._scope(tables.SUBGROUP), truth)
        word = self._module.result("CompositeExtract", self._module.type(UINT), ballot, int(name == "subgroup_ballot_high"))
        return self._one(UINT, word)

    def _subgroup_arithmetic(self, node: Any, name: str, arguments: list[Any]) -> Value:
        operation, instructions = tables.SUBGROUP_ARITHMETIC[name]

        def exchange(lane: int, scalar: Scalar) -> int:
            instruction, kind = f"GroupNonUniform{instructions[scalar.kind]}", self._arithmetic.type(scalar)
            scope = self._scope(tables.SUBGROUP)
            result = self._module.result(instruction, kind, scope, tables.GROUP_OPERATION[operation], lane)
            return self._arithmetic.in_range(scalar, result)

        return self._exchanged(self._writer.value(arguments[0]), name, "arithmetic", exchange)

    def _subgroup_shuffle(self, node: Any, name: str, arguments: list[Any]) -> Value:
        group, instruction = tables.SUBGROUP_SHUFFLES[name]
        value, lane = self._writer.value(arguments[0]), self._lane(arguments[1])
        return self._exchanged(value, name, group, lambda sent, scalar: self._shuffled(instruction, scalar, sent, lane))

    def _shuffled(self, instruction: str, scalar: Scalar, sent: int, lane: int) -> int:
        return self._module.result(instruction, self._arithmetic.type(scalar), self._scope(tables.SUBGROUP), sent, lane)

    def _warp_shuffle(self, node: Any, name: str, arguments: list[Any]) -> Value:
        """TVM's own shuffles, with CUDA's rules: within segments of ``width`` lanes; beyond them, a lane's own value."""
        value, other, width = self._writer.value(arguments[1]), self._lane(arguments[2]), self._lane(arguments[3])
        arithmetic = self._arithmetic
        own = self._subgroup_builtin("subgroup_lane")
        within = arithmetic.binary("Mod", UINT, own, width)
        if name == "tvm_warp_shuffle":
            there = arithmetic.binary("Mod", UINT, other, width)
            lane = arithmetic.binary("Add", UINT, arithmetic.binary("Sub", UINT, own, within), there)
        elif name == "tvm_warp_shuffle_xor":
            lane = arithmetic.binary("BitwiseXor", UINT, own, other)
        else:
            is_up = name == "tvm_warp_shuffle_up"
            moved = arithmetic.binary("Sub" if is_up else "Add", UINT, own, other)
            reach = (
                within
                if is_up
                else arithmetic.binary("Sub", UINT, arithmetic.binary("Sub", UINT, width, within), arithmetic.constant(UINT, 1))
            )
            lane = arithmetic.select(UINT, arithmetic.compare("LE", UINT, other, reach), moved, own)
        shuffle = "GroupNonUniformShuffle"
        return self._exchanged(value, name, "shuffle", lambda sent, scalar: self._shuffled(shuffle, scalar, sent, lane))


_CALLS: dict[str, Callable[[Calls, Any, str, list[Any]], Value]] = {
    "assume": Calls._skip,
    "clz": Calls._bits,
    "copysign": Calls._two_floats,
    "fmod": Calls._two_floats,
    "if_then_else": Calls._if_then_else,
    "isfinite": Calls._classify,
    "isinf": Calls._classify,
    "isnan": Calls._classify,
    "likely": Calls._same,
    "looked_up": Calls._looked_up,
    "memory_fence": Calls._fence,
    "pack_halves": Calls._pack_halves,
    "multiply_add": Calls._multiply_add,
    "popcount": Calls._bits,
    "reinterpret": Calls._reinterpret,
    "subgroup_ballot": Calls._ballot,
    "subgroup_ballot_high": Calls._ballot,
    "tvm_storage_sync": Calls._barrier,
    "tvm_warp_activemask": Calls._ballot,
    **dict.fromkeys(tables.MATRIX_CALLS, Calls._matrix),
    **dict.fromkeys(tables.SUBGROUP_ARITHMETIC, Calls._subgroup_arithmetic),
    **dict.fromkeys(tables.SUBGROUP_BUILTINS, Calls._subgroup_number),
    **dict.fromkeys(tables.SUBGROUP_SHUFFLES, Calls._subgroup_shuffle),
    **dict.fromkeys(tables.SUBGROUP_VOTES, Calls._subgroup_vote),
    **dict.fromkeys(
        ("tvm_warp_shuffle", "tvm_warp_shuffle_xor", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down"), Calls._warp_shuffle
    ),
    **dict.fromkeys((*tables.ATOMICS, "atomic_load", "atomic_store", "atomic_compare_exchange"), Calls._atomic),
}
