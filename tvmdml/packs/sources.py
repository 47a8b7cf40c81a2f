"""Specs from several kinds of files: specs themselves, DxDispatch models, ONNX models, saved graphs."""

from __future__ import annotations

import difflib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tvmdml import dxdispatch, onnx_nodes
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.graph import saving
from tvmdml.operators import _shared
from tvmdml.packs import onnx_apart, spec
from tvmdml.packs.spec import KnobValues, Spec, Wanted
from tvmdml.tensors import MAX_ELEMENTS

Sizes = Mapping[str, int]
_NO_SIZES: Sizes = MappingProxyType({})


_OPEN = "Open sizes are given by name (--size NAME=N)."


class Found(NamedTuple):
    """A spec, and notes about how it was made."""

    spec: Spec
    notes: tuple[str, ...] = ()
    """Which parts of a model were used, which were not, and why."""


def read(paths: Sequence[str | os.PathLike[str]], targets: Sequence[str] = (), sizes: Sizes = _NO_SIZES) -> Found:
    """Read one spec from several files: ``.toml`` (specs), ``.json`` (DxDispatch models), ``.onnx`` (ONNX models),
    ``.graph`` (graphs that ``save_graph`` wrote).

    Args:
        paths: the files.
        targets: the targets to compile for; by default, all targets that the files name.
        sizes: the values of sizes that ONNX models leave open, by name.

    Raises:
        InvalidArgument, ModelError: a file cannot be read, is invalid, or has no operators of tvmdml.
        Unsupported: ONNX is not installed.
    """
    for name, size in sizes.items():
        if type(size) is not int or not 1 <= size <= MAX_ELEMENTS:
            raise InvalidArgument(message(f"size {name}", safe_repr(size), f"an integer from 1 to {MAX_ELEMENTS}"))
    known: set[str] = set()
    found = []
    for path in map(Path, paths):
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise InvalidArgument(message(str(path), f"a file of type {path.suffix or 'none'!r}", ", ".join(_READERS)))
        found.append(reader(path, sizes, known))
    for name in sizes:
        if name not in known:
            likely = difflib.get_close_matches(name, known, n=1)
            advice = f"Did you mean {likely[0]}?" if likely else ""
            raise InvalidArgument(message("size", repr(name), ", ".join(sorted(known)) or "none: no model leaves one open", advice))
    joined = Spec(
        targets=tuple(targets) or tuple(dict.fromkeys(itertools.chain.from_iterable(one.spec.targets for one in found))),
        wanted=spec.once(itertools.chain.from_iterable(one.spec.wanted for one in found)),
        knobs=_joined([one.spec.knobs for one in found]),
        logs=tuple(dict.fromkeys(itertools.chain.from_iterable(one.spec.logs for one in found))),
    )
    return Found(joined, tuple(itertools.chain.from_iterable(one.notes for one in found)))


def _joined(several: Iterable[KnobValues]) -> KnobValues:
    joined: dict[str, dict[str, int | str]] = {}
    for operator, values in itertools.chain.from_iterable(knobs.items() for knobs in several):
        own = joined.setdefault(operator, {})
        for name, value in values.items():
            if own.setdefault(name, value) != value:
                raise InvalidArgument(message(f"knobs.{operator}.{name}", f"{own[name]!r} and {value!r}", "one value in all files"))
    return joined


def _read_spec(path: Path, sizes: Sizes, known: set[str]) -> Found:
    return Found(spec.read(path))


def _read_dxdispatch(path: Path, sizes: Sizes, known: set[str]) -> Found:
    wanted = []
    for dispatchable in dxdispatch.read(path).dispatchables.values():
        desc = spec.plain(dispatchable.desc)
        wanted += [Wanted(desc, shared) for shared in _shared.ways(desc)]  # a command may bind several tensors to one resource
    return Found(Spec(wanted=spec.once(wanted)))


def _read_onnx(path: Path, sizes: Sizes, known: set[str]) -> Found:
    taken, open_sizes = onnx_apart.read(path, sizes)
    known |= open_sizes
    mine = [node for node in taken if node.ours]
    others = Counter(node.kind for node in taken if not node.ours)
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(others.items(), key=lambda item: (-item[1], item[0])))
    if not mine:
        raise InvalidArgument(
            message(str(path), f"a model of {listed or 'no nodes'}", f"one with {', '.join(onnx_nodes.OPERATORS)}")
        )
    wanted = spec.once(Wanted(node.desc) for node in mine if node.desc is not None)
    notes = [f"{node.name}: {node.reason}" for node in mine if node.desc is None]
    if not wanted:
        given = f"nothing that can be compiled ahead of time ({'; '.join(note.rstrip('.') for note in notes[:8])})"
        raise InvalidArgument(message(str(path), given, "known sizes, DirectML's types, a constant k", _OPEN))
    notes = [f"{path}: {note}" for note in notes]
    count = sum(node.desc is not None for node in mine)
    notes.insert(0, f"{path}: {count} of {len(taken)} nodes are in the spec" + (f"; the others are {listed}" if listed else ""))
    return Found(Spec(wanted=wanted), tuple(notes))


def _read_graph(path: Path, sizes: Sizes, known: set[str]) -> Found:
    wanted = spec.once(Wanted(spec.plain(desc), shared) for desc, shared in saving.operations(path))
    return Found(Spec(wanted=wanted))


_READERS: Mapping[str, Callable[[Path, Sizes, set[str]], Found]] = {
    ".toml": _read_spec,
    ".json": _read_dxdispatch,
    ".onnx": _read_onnx,
    ".graph": _read_graph,
}
