"""The contents of a pack as rows, for people and programs, and the differences of two packs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tvmdml import operators
from tvmdml.errors import PackError, Unsupported
from tvmdml.library import signing
from tvmdml.library.format import Pack
from tvmdml.library.records import KernelRecord, LaunchRecord, OperationRecord, PackedRecord, symbol_of

_NOT_OF_KERNELS = ("producer", "knobs")
"""The members of a pack's head that are compared value by value."""


# -- One pack -----------------------------------------------------------------------------------------------------


def rows(pack: Pack) -> list[Mapping[str, Any]]:
    """The rows of ``tvmdml pack inspect``: one for each operation on each target.

    Each has ``operator``, ``tensors``, ``attributes``, ``target``, ``kernels`` (the number of different kernels, for all numbers of
    threads), ``launches`` (symbol, integers, temporaries and packed inputs, each from a number of threads on) and ``bytes``, the
    size of the kernels in the file. A kernel for a device is a part of its own. The CPU kernels of an operator share one library,
    and its size is divided equally among them. A kernel that several operations use counts for each of them.

    Raises:
        PackError: a record is wrong.
    """
    sizes = _sizes(pack)
    found = sorted(pack.operations(), key=lambda one: (named(pack, one.target), shown(one), one.key))
    return [
        {
            "operator": str(one.line.get("operator")),
            "tensors": _tensors(one),
            "attributes": _attributes(one),
            "target": named(pack, one.target),
            "kernels": len(keys := {key for launch in one.launches for key in launch.kernels}),
            "bytes": sum(sizes.get(key, 0) for key in keys),
            "launches": [
                {
                    "threads": launch.threads,
                    **_launched(launch),
                    **({"packed": [_packed(packed) for packed in launch.owned]} if launch.owned else {}),
                }
                for launch in one.launches
            ],
        }
        for one in found
    ]


def _launched(one: LaunchRecord | PackedRecord) -> dict[str, Any]:
    return {
        "symbol": symbol_of(one.kernel),
        "integers": list(one.scalars),
        "temporaries": [list(room) for room in one.temporaries],
    }


def _packed(one: PackedRecord) -> dict[str, Any]:
    """An input that a kernel takes packed, and the kernel that packs it."""
    own = {"tensor": one.name, "type": one.dtype, "elements": one.elements, "layout": one.layout, "of": list(one.inputs)}
    return {**own, **_launched(one)}


def summary(pack: Pack) -> dict[str, Any]:
    """Facts about the whole pack: sizes, counts, targets, versions of its producer, knobs, and who signed it.

    Raises:
        PackError: a record is wrong.
    """
    return {
        "bytes": pack.path.stat().st_size,
        "checksum": pack.checksum,
        "targets": sorted(pack.head["targets"].values()),
        "kernels": len(pack.kernels()),
        "parts": pack.part_count,
        "graphs": [f"{graph.name} for {graph.kind}" for graph in pack.graphs()],
        "files": list(pack.files),
        "producer": dict(pack.head["producer"]),
        "knobs": dict(pack.head["knobs"]),
        "logs": len(pack.head["logs"]),
        "signers": _signers(pack),
    }


def named(pack: Pack, code: str) -> str:
    """The name of a target, from its code."""
    return str(pack.head["targets"].get(code, code))


def shown(operation: OperationRecord) -> str:
    """An operation in one line, without its target."""
    return " ".join(filter(None, (str(operation.line.get("operator")), _tensors(operation), _attributes(operation))))


def _sizes(pack: Pack) -> dict[bytes, int]:
    """The size of each kernel in the file."""
    sharing: dict[int, list[bytes]] = defaultdict(list)
    for kernel in pack.kernels():
        sharing[kernel.part].append(kernel.key)
    return {key: pack.part(number).stored // len(keys) for number, keys in sharing.items() for key in keys}


def _signers(pack: Pack) -> list[str]:
    try:
        return list(signing.signers(pack))
    except PackError as error:  # not valid, or cannot be checked here: the rest of the pack can still be shown
        return [str(error)]


def _tensors(operation: OperationRecord) -> str:
    tensors = {name: value for name, value in _fields(operation) if _is_tensor(name)}
    sides: tuple[list[str], list[str]] = [], []
    for name, value in tensors.items():
        sides[name.startswith("Output")].extend(map(str, value if isinstance(value, list) else [value]))
    inputs, outputs = map(", ".join, sides)
    return f"{inputs} -> {outputs}".strip()


def _attributes(operation: OperationRecord) -> str:
    attributes = [f"{name}={value}" for name, value in _fields(operation) if not _is_tensor(name)]
    return ", ".join([*attributes, _in_place(operation)] if operation.in_place else attributes)


def _in_place(operation: OperationRecord) -> str:
    return "in place" if operation.in_place is True else f"in place: {operation.in_place}"


def _fields(operation: OperationRecord) -> Iterator[tuple[str, Any]]:
    """A line's fields in DirectML's order, or sorted by name if this version does not know the operator."""
    line = operation.line
    try:
        names = [field.dml_name for field in operators.by_name(str(line.get("operator"))).fields()]
    except Unsupported:
        names = []
    yield from ((name, line[name]) for name in [*names, *sorted(set(line) - set(names))] if name in line and name != "operator")


def _is_tensor(name: str) -> bool:
    """Judged by the name of the field: those of tensors end alike in DirectML."""
    return name.endswith(("Tensor", "Tensors"))


# -- Two packs ----------------------------------------------------------------------------------------------------


def diff(one: Pack, other: Pack) -> list[str]:
    """The differences of two packs, one line each: versions, schedules, knobs, tuning records, operations, kernels and code.

    File layout and signatures are not compared. A library of CPU kernels is compared as a whole: if one of its kernels is
    changed or added, the code of all of them differs.

    Returns:
        The differences; empty if both packs do the same.

    Raises:
        PackError: a record is wrong.
    """
    found = [*_heads(one, other), *sorted(_operations(one, other)), *sorted(_kernels(one, other))]
    targets, others = (set(pack.head["targets"].items()) for pack in (one, other))
    for pack, more in ((one, targets - others), (other, others - targets)):
        found += [f"only in {pack.path}: target {name} ({code})" for code, name in sorted(more)]
    return found


def _heads(one: Pack, other: Pack) -> Iterator[str]:
    for member in _NOT_OF_KERNELS:
        values, others = one.head[member], other.head[member]
        for name in sorted({*values, *others}):
            if values.get(name) != others.get(name):
                yield f"{member} {name}: {values.get(name, 'none')} in {one.path}, {others.get(name, 'none')} in {other.path}"
    for pack, another in ((one, other), (other, one)):
        for line in pack.head["logs"]:
            if line not in another.head["logs"]:
                about = f"{line['operator']} for {line['machine']['target']}: {line.get('shape_class')}"
                yield f"only in {pack.path}: tuning of {about}"
    sources, others = one.head["sources"], other.head["sources"]
    for name in sorted(set(sources) & set(others)):  # those that only one pack has appear among the kernels
        if sources[name] != others[name]:
            yield f"schedules for {name}: {sources[name]} in {one.path}, {others[name]} in {other.path}"


def _operations(one: Pack, other: Pack) -> Iterator[str]:
    found, others = ({operation.key: operation for operation in pack.operations()} for pack in (one, other))
    for pack, mine, theirs in ((one, found, others), (other, others, found)):
        for key in mine:
            if key not in theirs:
                yield f"only in {pack.path}: {shown(mine[key])} for {named(pack, mine[key].target)}"
    for key in found:
        if key in others and found[key].launches != others[key].launches:
            yield f"launched differently: {shown(found[key])} for {named(one, found[key].target)}"


def _kernels(one: Pack, other: Pack) -> Iterator[str]:
    found, others = ({kernel.key: kernel for kernel in pack.kernels()} for pack in (one, other))
    for pack, mine, theirs in ((one, found, others), (other, others, found)):
        for key in mine:
            if key not in theirs:
                yield f"only in {pack.path}: kernel {_called(pack, mine[key])}"
    for key in found:
        if key in others and one.part(found[key].part).sha256 != other.part(others[key].part).sha256:
            yield f"different code: kernel {_called(one, found[key])}"


def _called(pack: Pack, kernel: KernelRecord) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in kernel.parameters)
    return f"{kernel.operator}/{kernel.kernel} for {named(pack, kernel.target)} ({parameters})"
