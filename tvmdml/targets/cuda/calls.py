"""``Calls``: what TensorIR calls by name: math functions, barriers, atomics, warp operations, and tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from tvmdml.targets.cuda import prelude, terms
from tvmdml.targets.cuda.buffers import BufferArray
from tvmdml.targets.cuda.terms import EVERYTHING, HALF, SIZES, TYPES, Term, call, cast, is_float, narrowed, typed, wide
from tvmdml.targets.cuda.vectors import Vectors

_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")
_BARRIERS = {
    "shared": "__syncthreads()",
    "shared.dyn": "__syncthreads()",
    "global": "__threadfence(), __syncthreads()",
    "warp": "__syncwarp()",
}
_WHOLE = ("int32", "uint32", "int64", "uint64")
_ATOMICS = {
    "atomic_add": (*_WHOLE, "float16", "float32", "float64"),
    "atomic_sub": (*_WHOLE, "float16", "float32", "float64"),
    "atomic_exchange": (*_WHOLE, "float32"),
    "atomic_load": (*_WHOLE, "float32", "float64"),
    "atomic_store": (*_WHOLE, "float32", "float64"),
    **dict.fromkeys(("atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor", "atomic_compare_exchange"), _WHOLE),
}
"""The types for which CUDA has each of them."""
_SHUFFLES = {
    "subgroup_broadcast": "__shfl_sync", "subgroup_shuffle": "__shfl_sync", "subgroup_shuffle_xor": "__shfl_xor_sync",
    "subgroup_shuffle_up": "__shfl_up_sync", "subgroup_shuffle_down": "__shfl_down_sync", "tvm_warp_shuffle": "__shfl_sync",
    "tvm_warp_shuffle_xor": "__shfl_xor_sync", "tvm_warp_shuffle_up": "__shfl_up_sync",
    "tvm_warp_shuffle_down": "__shfl_down_sync",
}  # fmt: skip
_VOTES = {"subgroup_any": "__any_sync", "subgroup_all": "__all_sync", "subgroup_ballot": "__ballot_sync"}
_REDUCED = ("subgroup_add", "subgroup_inclusive_add", "subgroup_exclusive_add", "subgroup_min", "subgroup_max")
_NUMBERS = ("subgroup_size", "subgroup_lane", "subgroup_index", "subgroup_elect")
_OPERATORS = {
    "shift_right": "RShift", "shift_left": "LShift", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
}  # fmt: skip
_WARP = Term("uint32", "0xffffffffu")
_WARP_THREADS = 32
_ONCE = frozenset({EVERYTHING})


class CallTranslator(Protocol):
    """What translating a call needs from the translator of its function."""

    vectors: Vectors

    def value(self, node: Any) -> Term:
        """Translate an expression."""

    def type_of(self, node: Any) -> tuple[str, int]:
        """An expression's type, and its number of lanes."""

    def choice(self, condition: Any, then: Any, otherwise: Any) -> Term:
        """One value or the other; the value that is not selected is not computed."""

    def address(self, node: Any, whole: bool = False) -> tuple[BufferArray, Term]:
        """For ``address_of(buffer[index])``: the buffer, and the index's C++. ``whole``: up to 16 bytes are moved together."""

    def threads(self) -> tuple[int, int, int]:
        """The extents of a group, as far as they are known so far."""

    def table(self, numbers: str) -> str:
        """The name of a constant array of float32, which are given as hexadecimal digits."""

    def refuse(self, why: str) -> NoReturn:
        """Raise ``CompileError``."""


class Calls:
    """Translates the calls of one function."""

    def __init__(self, writer: CallTranslator) -> None:
        self._writer = writer

    def call(self, node: Any) -> Term:
        """Translate a call. One that returns nothing is only a statement."""
        name = full = str(getattr(node.op, "name", node.op))
        arguments = list(node.args)
        if full in _EXTERN:
            name = str(arguments.pop(0).value)
            if name not in _CALLS and name not in terms.MATH and name.endswith("f") and name[:-1] in terms.MATH:
                name = name[:-1]  # C's name of the function for float32
        else:
            name = full.removeprefix("tirx.").removeprefix("prim.")  # there is prim.clz
            name = {"round": "nearbyint"}.get(name, name)  # TVM rounds halves to even
        if name in terms.MATH:
            return terms.math_call(name, *map(self._writer.value, arguments))
        found = _CALLS.get(name)
        if found is None:
            self._writer.refuse(f"cannot translate Call {full}{f' of {name}' if full in _EXTERN else ''}")
        return found(self, node, name, arguments)

    # -- Numbers

    def _if_then_else(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return self._writer.choice(*arguments)

    def _same(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return self._writer.value(arguments[0])

    def _skip(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("int32", "")

    def _multiply_add(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return terms.math_call("fma", *map(self._writer.value, arguments))

    def _rsqrt(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """Computed with a square root and a division, both correctly rounded: CUDA's own function is not."""
        value = wide(self._writer.value(arguments[0]))
        root = terms.math_call("sqrt", value)
        return narrowed(self._writer.type_of(node)[0], terms.binary("Div", terms.constant(value.dtype, 1), root))

    def _operator(self, node: Any, name: str, arguments: list[Any]) -> Term:
        a, b = map(self._writer.value, arguments)
        return terms.binary(_OPERATORS[name], a, b)

    def _bitwise_not(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return terms.inverse(self._writer.value(arguments[0]))

    def _large(self, node: Any, name: str, arguments: list[Any]) -> Term:
        low, high = (int(argument.value) for argument in arguments)
        return terms.constant(self._writer.type_of(node)[0], (high << 32) | (low & 0xFFFFFFFF))

    def _reinterpret(self, node: Any, name: str, arguments: list[Any]) -> Term:
        value, (dtype, lanes) = self._writer.value(arguments[0]), self._writer.type_of(node)
        if lanes != value.lanes:
            return self._writer.vectors.cut(value, dtype, lanes)
        if is_float(value.dtype) or is_float(dtype):
            return call(dtype, f"bits_as<{TYPES[dtype]}>", value if value.held else typed(value))._replace(data=True)
        return cast(value, dtype)

    def _classify(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return call("bool", name, wide(self._writer.value(arguments[0])))._replace(held="int32")

    def _bits(self, node: Any, name: str, arguments: list[Any]) -> Term:
        value, (dtype, _) = self._writer.value(arguments[0]), self._writer.type_of(node)
        bits = 8 * SIZES[value.dtype]
        # As an unsigned integer, which is extended with zeros.
        function = {"popcount": "__popc", "clz": "__clz"}[name] + ("ll" if bits == 64 else "")
        found = call("int32", function, cast(value, f"uint{bits}"))
        if name == "clz" and bits < 32:
            found = terms.binary("Sub", found._replace(data=False), terms.constant("int32", 32 - bits))
        return cast(found, dtype)

    def _looked_up(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """Through the cache of global memory: constant memory gives a warp one address at a time."""
        table, width, column = self._writer.table(str(arguments[0].value)), int(arguments[1].value), int(arguments[2].value)
        row = self._writer.value(arguments[3])
        place = terms.binary("Add", terms.binary("Mul", row, terms.constant("uint32", width)), terms.constant("uint32", column))
        return Term("float32", f"{table}[{place.code}]", row.lanes, data=True, reads=row.reads, depth=place.depth + 1)

    # -- Barriers and atomics

    def _barrier(self, node: Any, name: str, arguments: list[Any]) -> Term:
        kind = str(arguments[0].value)
        if kind not in _BARRIERS:
            self._writer.refuse(f"there is no barrier of {kind!r}")
        code = _BARRIERS[kind]
        # A group of one warp needs no barrier of groups: that of warps orders its threads' accesses to memory as well.
        is_one_warp = math.prod(self._writer.threads()) == _WARP_THREADS
        return Term("int32", code.replace("__syncthreads", "__syncwarp") if is_one_warp else code)

    def _fence(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("int32", "__threadfence()")

    def _atomic(self, node: Any, name: str, arguments: list[Any]) -> Term:
        writer = self._writer
        array, address = self._address(name, arguments[0])
        dtype, memory = array.dtype, array.memory
        if memory.place == "thread":
            writer.refuse(f"{name} on {memory.name}: atomics need memory that threads share")
        if dtype not in _ATOMICS[name]:
            writer.refuse(f"{name} on {dtype}: CUDA has it for {', '.join(_ATOMICS[name])}")
        values = [writer.value(argument) for argument in arguments[1:]]
        for value in values:
            if value.dtype != dtype:
                writer.refuse(f"{name} on {dtype} is given a {value.dtype}")
        memory.written |= name != "atomic_load"
        if name == "atomic_sub":
            zero = terms.constant(dtype, -0.0 if is_float(dtype) else 0)
            name, values = "atomic_add", [terms.binary("Sub", zero, values[0]._replace(data=True))]
        return call(dtype, name, address, *values)._replace(data=True, reads=_ONCE)

    def _address(self, name: str, place: Any, whole: bool = False) -> tuple[BufferArray, Term]:
        if type(place).__name__ != "Call" or str(place.op.name) != "tirx.address_of":
            self._writer.refuse(f"{name} needs address_of(buffer[index])")
        return self._writer.address(place.args[0], whole)

    # -- Tensor cores, and copies that go on meanwhile

    def _tiles(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """Its first argument is where it writes; others are addresses or values."""
        array, found = self._address(name, arguments[0])
        array.memory.written = True
        given = []
        for one in arguments[1:]:
            is_address = str(getattr(getattr(one, "op", None), "name", "")) == "tirx.address_of"
            given.append(self._address(name, one, whole=True)[1] if is_address else self._writer.value(one))
        return call("int32", name, found, *given)._replace(data=True, reads=_ONCE)

    def _copy(self, node: Any, name: str, arguments: list[Any]) -> Term:
        (target, to), (_, source) = (self._address(name, one, whole=True) for one in arguments[:2])
        size, there = int(arguments[2].value), self._writer.value(arguments[3])
        target.memory.written = True
        return call("int32", f"copy_bytes_async<{size}>", to, source, there)._replace(data=True, reads=_ONCE)

    def _end_copies(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("int32", "end_copies()", reads=_ONCE)

    def _await_copies(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("int32", f"await_copies<{int(arguments[0].value)}>()", reads=_ONCE)

    def _quick(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """Instructions that C++ has no function for."""
        return call(self._writer.type_of(node)[0], name, *(typed(self._writer.value(one)) for one in arguments))._replace(data=True)

    def _chosen_bytes(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return call("uint32", "__byte_perm", *map(self._writer.value, arguments))

    # -- Warps

    def _number(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """A thread's number in its warp, or the warp's number: threads are counted along x first."""
        dtype, _ = self._writer.type_of(node)
        x, y, z = self._writer.threads()
        if name == "subgroup_size":
            return terms.constant(dtype, _WARP_THREADS)
        place = Term("uint32", "threadIdx.x")
        if y * z > 1:
            place = Term("uint32", f"(threadIdx.x + {x} * (threadIdx.y + {y} * threadIdx.z))")
        if name == "subgroup_index":
            return cast(terms.binary("RShift", place, terms.constant("int32", 5)), dtype)
        lane = terms.binary("BitwiseAnd", place, terms.constant("uint32", 31))
        return cast(lane, dtype) if name == "subgroup_lane" else terms.binary("EQ", lane, terms.constant("uint32", 0))

    def _vote(self, node: Any, name: str, arguments: list[Any]) -> Term:
        truth = cast(self._writer.value(arguments[0]), "bool") if arguments else terms.constant("bool", 1)
        found = call("uint32" if name == "subgroup_ballot" else "bool", _VOTES[name], _WARP, truth)
        return found._replace(held="" if name == "subgroup_ballot" else "int32", data=True, reads=_ONCE)

    def _ballot_high(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return terms.constant("uint32", 0)  # a warp has no lanes after the first 32

    def _reduced(self, node: Any, name: str, arguments: list[Any]) -> Term:
        value = self._writer.value(arguments[0])
        dtype = value.dtype
        if dtype == "bool":
            self._writer.refuse(f"there is no {name} of {dtype}")
        if is_float(dtype):
            sent = wide(value)
        elif name.endswith("add"):  # unsigned addition wraps
            sent = cast(value, f"uint{8 * max(SIZES[dtype], 4)}")
        else:
            sent = cast(value, "int32") if SIZES[dtype] < 4 else typed(value)
        values = [sent] if "clusive" not in name else [sent, cast(self._number(node, "subgroup_lane", []), "int32")]
        found = call(sent.dtype, name, *values)._replace(data=True, reads=_ONCE)
        return narrowed(dtype, found) if dtype == HALF else cast(found, dtype)

    def _shuffle(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """CUDA's shuffles, and TVM's of the same form: mask, value, lane or distance, width, and warp size."""
        values = [self._writer.value(argument) for argument in arguments]
        mask, value, *rest = values[:4] if name.startswith("tvm") else [_WARP, *values]
        dtype = value.dtype
        # There are no shuffles of narrow integers: these are passed as int, and a float16 as its bits.
        if dtype == HALF:
            value = call("uint16", "__half_as_ushort", value)
        sent = cast(value, "int32") if SIZES[value.dtype] < 4 else typed(value)
        found = call(sent.dtype, _SHUFFLES[name], mask, sent, *rest)._replace(data=True, reads=_ONCE)
        return call(dtype, "__ushort_as_half", found) if dtype == HALF else cast(found, dtype)

    def _active(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("uint32", "__activemask()", data=True, reads=_ONCE, depth=1)


_CALLS: dict[str, Callable[[Calls, Any, str, list[Any]], Term]] = {
    "await_copies": Calls._await_copies,
    "copy_async": Calls._copy,
    "end_copies": Calls._end_copies,
    **dict.fromkeys((*prelude.TILES, "multiply_add_pair"), Calls._tiles),
    "near_exp2": Calls._quick,
    "pack_halves": Calls._quick,
    "assume": Calls._skip,
    "bitwise_not": Calls._bitwise_not,
    "chosen_bytes": Calls._chosen_bytes,
    "clz": Calls._bits,
    "if_then_else": Calls._if_then_else,
    "isfinite": Calls._classify,
    "isinf": Calls._classify,
    "isnan": Calls._classify,
    "large_uint_imm": Calls._large,
    "likely": Calls._same,
    "looked_up": Calls._looked_up,
    "memory_fence": Calls._fence,
    "multiply_add": Calls._multiply_add,
    "popcount": Calls._bits,
    "reinterpret": Calls._reinterpret,
    "rsqrt": Calls._rsqrt,
    "subgroup_ballot_high": Calls._ballot_high,
    "tvm_storage_sync": Calls._barrier,
    "tvm_warp_activemask": Calls._active,
    **dict.fromkeys(_NUMBERS, Calls._number),
    **dict.fromkeys(_VOTES, Calls._vote),
    **dict.fromkeys(_REDUCED, Calls._reduced),
    **dict.fromkeys(_SHUFFLES, Calls._shuffle),
    **dict.fromkeys(_OPERATORS, Calls._operator),
    **dict.fromkeys(_ATOMICS, Calls._atomic),
}
