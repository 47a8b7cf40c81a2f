"""``Calls``: what TensorIR calls by name: functions of numbers, barriers, atomics, and what a warp works out together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmdml.targets.cuda import terms
from tvmdml.targets.cuda.terms import SIZES, TYPES, Term

if TYPE_CHECKING:
    from tvmdml.targets.cuda.source import Writer

_EXTERN = ("tirx.call_extern", "tirx.call_pure_extern")
_BARRIERS = {
    "shared": "__syncthreads()",
    "shared.dyn": "__syncthreads()",
    "global": "__threadfence(), __syncthreads()",
    "warp": "__syncwarp()",
}
_ATOMICS = tuple(
    f"atomic_{name}" for name in ("add", "sub", "min", "max", "and", "or", "xor", "exchange", "compare_exchange", "load", "store")
)
_SUBGROUP = tuple(
    f"subgroup_{name}"
    for name in (
        "size", "lane", "index", "elect", "any", "all", "ballot", "add", "inclusive_add", "exclusive_add", "min", "max",
        "broadcast", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down",
    )
)  # fmt: skip
_WARP = ("tvm_warp_shuffle", "tvm_warp_shuffle_xor", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down")


class Calls:
    """Translates the calls of one function."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def call(self, node: Any) -> Term:
        """Translate a call. One that returns nothing is only a statement."""
        name = full = str(getattr(node.op, "name", node.op))
        arguments = list(node.args)
        if full in _EXTERN:
            name = str(arguments.pop(0).value)
            if name not in _CALLS and name not in terms.MATH and name.endswith("f") and name[:-1] in terms.MATH:
                name = name[:-1]  # C's name of the function of float32
        else:
            name = full.rpartition(".")[2] if full.startswith(("tirx.", "prim.")) else full  # there is prim.clz
            name = {"round": "nearbyint"}.get(name, name)  # TVM rounds halves to even
        if name in terms.MATH:
            values = [self._writer.value(argument) for argument in arguments]
            return terms.math_call(name, values[0].dtype, *values)
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

    def _rsqrt(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """By a square root and a division, both rounded right: CUDA's own is not."""
        value = self._writer.value(arguments[0])
        one = terms.constant("float32" if value.dtype == terms.HALF else value.dtype, 1)
        root = f"sqrt{'' if value.dtype == 'float64' else 'f'}({terms.wide(value)})"
        return Term(value.dtype, terms.narrowed(value.dtype, f"({one.code} / {root})"), value.lanes)

    def _operator(self, node: Any, name: str, arguments: list[Any]) -> Term:
        a, b = map(self._writer.value, arguments)
        return terms.binary(_OPERATORS[name], a, b)

    def _bitwise_not(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return terms.inverse(self._writer.value(arguments[0]))

    def _reinterpret(self, node: Any, name: str, arguments: list[Any]) -> Term:
        writer = self._writer
        value, (dtype, lanes) = writer.value(arguments[0]), writer.type_of(node)
        writer.uses.add("bits")
        if lanes == value.lanes:
            return Term(dtype, f"bits_as<{TYPES[dtype]}>({value.code})", lanes)
        writer.hoisted("a change of lanes")
        code = value.code
        if value.lanes > 1:
            code = writer.materialised(value).code.partition(".at[")[0]
        target = writer.lanes_type(dtype, lanes) if lanes > 1 else TYPES[dtype]
        whole = f"bits_as<{target}>({code})"
        if lanes == 1:
            return Term(dtype, whole)
        name = writer.named(f"const {target}", "bits", whole)
        return Term(dtype, f"{name}.at[lane]", lanes)

    def _classify(self, node: Any, name: str, arguments: list[Any]) -> Term:
        value = self._writer.value(arguments[0])
        return Term("bool", f"bool({name}({terms.wide(value)}))", value.lanes)

    def _bits(self, node: Any, name: str, arguments: list[Any]) -> Term:
        value, (dtype, _) = self._writer.value(arguments[0]), self._writer.type_of(node)
        size = SIZES[value.dtype]
        function = {"popcount": "__popc", "clz": "__clz"}[name] + ("ll" if size == 8 else "")
        unsigned = f"uint{8 * size}_t({value.code})"
        spare = f" - {32 - 8 * size}" if name == "clz" and size < 4 else ""
        return Term(dtype, f"{TYPES[dtype]}({function}({unsigned}){spare})", value.lanes)

    # -- Barriers and atomics

    def _barrier(self, node: Any, name: str, arguments: list[Any]) -> Term:
        kind = str(arguments[0].value)
        if kind not in _BARRIERS:
            self._writer.refuse(f"there is no barrier of {kind!r}")
        return Term("int32", _BARRIERS[kind])

    def _fence(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("int32", "__threadfence()")

    def _atomic(self, node: Any, name: str, arguments: list[Any]) -> Term:
        writer, place = self._writer, arguments[0]
        if type(place).__name__ != "Call" or str(place.op.name) != "tirx.address_of":
            writer.refuse(f"{name} takes address_of(buffer[index])")
        array, address = writer.address(place.args[0])
        if array.dtype not in ("int32", "uint32", "int64", "uint64"):
            writer.refuse(f"{name} on {array.dtype}: there are atomics on integers of 32 and 64 bits")
        values = [writer.value(argument) for argument in arguments[1:]]
        for value in values:
            if value.dtype != array.dtype:
                writer.refuse(f"{name} on {array.dtype} is given a {value.dtype}")
        writer.uses.add("atomics")
        array.memory.written = True
        return Term(array.dtype, f"{name}({', '.join([address, *(value.code for value in values)])})")

    # -- Warps

    def _subgroup(self, node: Any, name: str, arguments: list[Any]) -> Term:
        dtype, _ = self._writer.type_of(node)
        self._writer.uses.add("subgroups")
        values = [self._writer.value(argument) for argument in arguments]
        if name == "subgroup_ballot" and not values:
            values = [terms.constant("bool", 1)]
        found = f"{name}({', '.join(value.code for value in values)})"
        return Term(dtype, found if name not in _NUMBERS else f"{TYPES[dtype]}({found})")

    def _warp(self, node: Any, name: str, arguments: list[Any]) -> Term:
        """TVM's own shuffles: of a mask, a value, a lane or a distance, the width, and the warp's size."""
        mask, value, other, width = (self._writer.value(argument) for argument in arguments[:4])
        function = f"__shfl_{name.removeprefix('tvm_warp_shuffle').lstrip('_')}_sync".replace("__sync", "_sync")
        code = f"{function}({mask.code}, {value.code}, {other.code}, {width.code})"
        return Term(value.dtype, code)

    def _active(self, node: Any, name: str, arguments: list[Any]) -> Term:
        return Term("uint32", "__activemask()")


_NUMBERS = ("subgroup_size", "subgroup_lane", "subgroup_index")
_OPERATORS = {
    "shift_right": "RShift", "shift_left": "LShift", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
}  # fmt: skip
_CALLS: dict[str, Callable[[Calls, Any, str, list[Any]], Term]] = {
    "assume": Calls._skip,
    "bitwise_not": Calls._bitwise_not,
    "clz": Calls._bits,
    "if_then_else": Calls._if_then_else,
    "isfinite": Calls._classify,
    "isinf": Calls._classify,
    "isnan": Calls._classify,
    "likely": Calls._same,
    "memory_fence": Calls._fence,
    "popcount": Calls._bits,
    "reinterpret": Calls._reinterpret,
    "rsqrt": Calls._rsqrt,
    "tvm_storage_sync": Calls._barrier,
    "tvm_warp_activemask": Calls._active,
    **dict.fromkeys(_OPERATORS, Calls._operator),
    **dict.fromkeys(_ATOMICS, Calls._atomic),
    **dict.fromkeys(_SUBGROUP, Calls._subgroup),
    **dict.fromkeys(_WARP, Calls._warp),
}
