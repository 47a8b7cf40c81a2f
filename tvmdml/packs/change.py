"""New packs of old ones: several put together, or the part for some targets. Nothing is compiled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.packs import format as container
from tvmdml.packs import tuned
from tvmdml.packs.format import Contents, Pack, Part
from tvmdml.packs.records import Kernel, Operation

_Path = str | os.PathLike[str]


def merge(paths: Sequence[_Path], output: _Path) -> None:
    """Put several packs into one. What more than one of them has is taken from the first that has it.

    Signatures are left behind: they are of the packs that there were. A library of which one kernel is wanted comes along whole.

    Args:
        paths: the packs.
        output: the file to write, which may be one of them; it is replaced at once, when all is done.

    Raises:
        InvalidArgument: there is nothing to merge.
        PackError: a pack is damaged; or two are of different schedules, of different knobs, or tuned in different ways.
        OSError: the file cannot be written.
    """
    if not paths:
        raise InvalidArgument(message("merge", "no packs", "one or more"))
    with contextlib.ExitStack() as stack:
        packs = [stack.enter_context(contextlib.closing(Pack(path))) for path in paths]
        head = packs[0].head
        for pack in packs[1:]:
            _require_alike(packs, head, pack)
            head = {
                "producer": _both(head["producer"], pack.head["producer"]),
                "targets": {**pack.head["targets"], **head["targets"]},
                "sources": {**pack.head["sources"], **head["sources"]},
                "knobs": head["knobs"],
                "logs": tuned.together(head["logs"], pack.head["logs"]),
            }
        _write(output, head, packs, lambda record: True)


def split(path: _Path, target_names: Iterable[str], output: _Path) -> None:
    """Take out of a pack what is for some targets. Signatures are left behind: they are of the whole pack.

    Args:
        path: the pack.
        target_names: targets by the names that ``tvmdml pack inspect`` shows, such as ``cpu:x86-64-v3``, or kinds, such as ``cpu``.
        output: the file to write, which may be the same; it is replaced at once, when all is done.

    Raises:
        InvalidArgument: the pack has nothing for a target, or none is named.
        PackError: the pack is damaged.
        OSError: the file cannot be written.
    """
    with contextlib.closing(Pack(path)) as pack:
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
        used = {f"{_kind(kernel.target)} {kernel.operator}" for kernel in pack.kernels() if kernel.target in codes}
        head = {
            **pack.head,
            "targets": {code: name for code, name in targets.items() if code in codes},
            "logs": tuned.serving(pack.head["logs"], (targets[code] for code in codes)),
            "sources": {name: stamp for name, stamp in pack.head["sources"].items() if name in used},
        }
        _write(output, head, [pack], lambda record: record.target in codes)


# -- Heads --------------------------------------------------------------------------------------------------------


def _kind(code: str) -> str:
    """The kind of target that a code is of, as stamps of sources are called by it."""
    return code.replace(":", " ").partition(" ")[0]


def _both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Versions, with those that differ one after the other."""
    found = dict(one)
    for name, version in other.items():
        known = found[name].split(", ") if name in found else []
        found[name] = ", ".join(dict.fromkeys([*known, *version.split(", ")]))
    return found


def _require_alike(packs: Sequence[Pack], head: Mapping[str, Any], pack: Pack) -> None:
    """Refuse a pack whose kernels were decided for in another way than those of the packs before it, whose head this is."""
    allowed, advice = "the same in all packs that are merged", "Build it anew as the other was, or load both."
    if pack.head["knobs"] != head["knobs"]:
        raise pack.error(f"knobs {pack.head['knobs']}, where {packs[0].path} has {head['knobs']}", allowed, advice)
    if tuned.differ(pack.head, head):
        raise pack.error(f"records of tuning that {packs[0].path} has others of for the same targets", allowed, advice)
    for name, stamp in pack.head["sources"].items():
        if head["sources"].get(name, stamp) != stamp:
            first = next(one for one in packs if name in one.head["sources"])
            raise pack.error(f"kernels for {name} of other schedules than those of {first.path}", allowed, advice)


# -- Files --------------------------------------------------------------------------------------------------------


def _write(output: _Path, head: dict[str, Any], packs: Sequence[Pack], wanted: Callable[[Kernel | Operation], bool]) -> None:
    """Write the wanted records of packs, and the parts that they refer to: in the order in which ``build`` has them."""
    kernels: dict[bytes, tuple[Pack, Kernel]] = {}
    operations: dict[bytes, Operation] = {}
    for pack in packs:
        for record in pack.records():
            if not wanted(record):
                continue
            if isinstance(record, Kernel):
                kernels.setdefault(record.key, (pack, record))
            else:
                operations.setdefault(record.key, record)
    parts: dict[tuple[str, bytes], int] = {}
    contents: list[Part] = []
    numbered: list[Kernel] = []
    for _, (pack, kernel) in sorted(kernels.items(), key=_place):
        part = pack.part(kernel.part)
        identity = (part.suffix, part.sha256)
        if identity not in parts:
            parts[identity] = len(contents)
            contents.append(Part(part.suffix, pack.content(kernel.part)))
        numbered.append(kernel._replace(part=parts[identity]))
    container.write(output, Contents(head, contents, numbered, list(operations.values())))


def _place(item: tuple[bytes, tuple[Pack, Kernel]]) -> tuple[str, str, bytes]:
    key, (_, kernel) = item
    return kernel.target, kernel.operator, key
