"""New packs from existing ones: several merged, or those targets split off that are wanted. Nothing is compiled.

The new pack is unsigned. A pack that may not be loaded is not accepted as input either: if it were, its code would lose the mark
that it is not trusted when the result is signed.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.library import format as container
from tvmdml.library import signing, tuned
from tvmdml.library.format import Pack, StoredPart
from tvmdml.library.records import GraphRecord, KernelRecord, OperationRecord

_Path = str | os.PathLike[str]


def merge(paths: Sequence[_Path], output: _Path) -> None:
    """Merge several packs into one. A record that several packs have is taken from the first of them.

    The result is unsigned: a signature covers one whole pack. A library is copied whole, even if only one kernel of it is wanted.
    Parts are copied one at a time, in pieces.

    Args:
        paths: the packs.
        output: the file to write, which may be one of them; it is replaced atomically.

    Raises:
        InvalidArgument: there is nothing to merge.
        PackError: a pack is damaged or not trusted; or two have different schedules, knobs or tuning records.
        OSError: the file cannot be written.
    """
    if not paths:
        raise InvalidArgument(message("merge", "no packs", "one or more"))
    with contextlib.ExitStack() as stack:
        packs = [stack.enter_context(contextlib.closing(Pack(path, signing.check))) for path in paths]
        head = packs[0].head
        for pack in packs[1:]:
            _require_alike(packs, head, pack)
            head = {
                **head,
                "producer": _both(head["producer"], pack.head["producer"]),
                "targets": {**pack.head["targets"], **head["targets"]},
                "sources": {**pack.head["sources"], **head["sources"]},
                "knobs": head["knobs"],
                "logs": tuned.together(head["logs"], pack.head["logs"]),
            }
        _write(output, head, packs, lambda record: True, lambda graph: True)


def split(path: _Path, target_names: Iterable[str], output: _Path) -> None:
    """Write a pack with the kernels for some targets of another. The result is unsigned: a signature covers one whole pack.

    Args:
        path: the pack.
        target_names: targets by the names that ``tvmdml pack inspect`` shows, such as ``cpu:x86-64-v3``, or kinds, such as ``cpu``.
        output: the file to write, which may be the same; it is replaced atomically.

    Raises:
        InvalidArgument: the pack has no kernels for a target, or no target is named.
        PackError: the pack is damaged or not trusted.
        OSError: the file cannot be written.
    """
    with contextlib.closing(Pack(path, signing.check)) as pack:
        targets = pack.head["targets"]
        codes: set[str] = set()
        for name in target_names:
            wanted = name.strip().lower()
            found = {code for code, called in targets.items() if wanted in (called, _kind(code))}
            if not found:
                allowed = ", ".join(sorted({*targets.values(), *map(_kind, targets)})) or "nothing: it is empty"
                raise InvalidArgument(message(f"{path} target", repr(name), allowed))
            codes |= found
        if not codes:
            raise InvalidArgument(message("split", "no targets", ", ".join(sorted(targets.values()))))
        kinds = set(map(_kind, codes))
        head = {
            **pack.head,
            "targets": {code: name for code, name in targets.items() if code in codes},
            "logs": tuned.serving(pack.head["logs"], (targets[code] for code in codes)),
            "sources": {name: stamp for name, stamp in pack.head["sources"].items() if _kind(name) in kinds},
        }
        _write(output, head, [pack], lambda record: record.target in codes, lambda graph: graph.kind in kinds)


# -- Heads --------------------------------------------------------------------------------------------------------


def _kind(code: str) -> str:
    """The kind of target of a code: the stamps of schedules are named by it."""
    return code.replace(":", " ").partition(" ")[0]


def _both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Versions of two packs. Where they differ, both are named."""
    found = dict(one)
    for name, version in other.items():
        known = found[name].split(", ") if name in found else []
        found[name] = ", ".join(dict.fromkeys([*known, *version.split(", ")]))
    return found


def _require_alike(packs: Sequence[Pack], head: Mapping[str, Any], pack: Pack) -> None:
    """Refuse a pack with other schedules, knobs or tuning records than the packs before it, whose merged head this is."""
    allowed, advice = "the same in all packs that are merged", "Build it again as the other was built, or load both."
    if pack.head["knobs"] != head["knobs"]:
        raise pack.error(f"knobs {pack.head['knobs']}, where {packs[0].shown} has {head['knobs']}", allowed, advice)
    if tuned.differ(pack.head, head):
        raise pack.error(f"other tuning records than {packs[0].shown} for the same targets", allowed, advice)
    for name, stamp in pack.head["sources"].items():
        if head["sources"].get(name, stamp) != stamp:
            first = next(one for one in packs if name in one.head["sources"])
            raise pack.error(
                f"kernels for {name} that were built from other schedules than those of {first.shown}", allowed, advice
            )


# -- Files --------------------------------------------------------------------------------------------------------


def _write(
    output: _Path,
    head: dict[str, Any],
    packs: Sequence[Pack],
    wanted: Callable[[KernelRecord | OperationRecord], bool],
    wanted_graph: Callable[[GraphRecord], bool],
) -> None:
    """Write the wanted records and graphs of the packs, and the parts they refer to, in the order that ``build`` would give them.

    Of the records, only keys are held in memory; parts are copied from file to file.
    """
    sources: dict[bytes, Pack] = {}
    by_target_and_operator: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for pack in packs:
        for record in pack.records():
            if wanted(record) and record.key not in sources:
                sources[record.key] = pack
                if isinstance(record, KernelRecord):
                    by_target_and_operator[record.target, record.operator].append(record.key)
    parts: list[StoredPart] = []
    known: dict[tuple[str, bytes], int] = {}
    """The new number of a part, by its suffix and checksum."""
    for _, kernels in sorted(by_target_and_operator.items()):
        for key in sorted(kernels):
            found = _stored(sources[key], key)
            if known.setdefault(_identity(found), len(parts)) == len(parts):
                parts.append(found)

    graphs: dict[tuple[str, str], GraphRecord] = {}
    for pack in packs:
        for graph in filter(wanted_graph, pack.graphs()):
            numbers = []
            for stored in (StoredPart(pack, number) for number in graph.parts):
                if known.setdefault(_identity(stored), len(parts)) == len(parts):
                    parts.append(stored)
                numbers.append(known[_identity(stored)])
            own = graph._replace(part=numbers[0], data=tuple(numbers[1:]))
            if graphs.setdefault((graph.name, graph.kind), own) != own:
                advice = "Build one pack for all targets, or give the graphs different names."
                raise pack.error(f"another graph {graph.name!r} for {graph.kind}", "graphs of different names", advice)
    files: dict[str, int] = {}
    for pack in packs:
        for name in pack.files:
            stored = StoredPart(pack, pack.head["files"][name])
            if known.setdefault(_identity(stored), len(parts)) == len(parts):
                parts.append(stored)
            if files.setdefault(name, known[_identity(stored)]) != known[_identity(stored)]:
                raise pack.error(f"another file {name!r}", "packs of one model", "Load both.")
    head = {name: value for name, value in head.items() if name not in ("graphs", "files")}
    if graphs:
        head["graphs"] = [graph._asdict() for graph in graphs.values()]
    if files:
        head["files"] = files

    def renumbered(key: bytes) -> KernelRecord | OperationRecord:
        record = sources[key].record(key)
        assert record is not None  # the key is one of the pack's
        if isinstance(record, KernelRecord):
            return record._replace(part=known[_identity(_stored(sources[key], key))])
        return record

    container.compose(output, head, parts, sorted(sources), renumbered)


def _stored(pack: Pack, key: bytes) -> StoredPart:
    """The part of a kernel."""
    number = pack.find(key)
    assert number is not None  # the key is a kernel's
    return StoredPart(pack, number)


def _identity(stored: StoredPart) -> tuple[str, bytes]:
    part = stored.pack.part(stored.number)
    return part.suffix, part.sha256
