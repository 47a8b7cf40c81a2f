"""Specs from several kinds of files: specs themselves, DxDispatch models, ONNX models, saved graphs."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tvmdml import dxdispatch, targets
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.graph.stored import saving
from tvmdml.library import spec
from tvmdml.library.files import is_graph
from tvmdml.library.spec import KnobValues, Spec, Wanted
from tvmdml.onnx import model as onnx_model
from tvmdml.onnx import origin, packed
from tvmdml.onnx.reading import ReadModel as Opened
from tvmdml.onnx.types import Exactness
from tvmdml.operators import _shared
from tvmdml.packs import folders
from tvmdml.packs.graphs import GraphSource
from tvmdml.packs.open_graphs import OpenSource
from tvmdml.tensors import MAX_ELEMENTS, PRECISIONS

SizeChoices = Mapping[str, int | range]
_NO_SIZES: SizeChoices = MappingProxyType({})
_LONGEST_NAME = 48
"""How long a graph's name may be with the names of sizes."""


def read(
    paths: Sequence[str | os.PathLike[str]],
    names: Sequence[str] = (),
    sizes: SizeChoices = _NO_SIZES,
    precision: str = PRECISIONS[0],
) -> Spec:
    """Read one spec from several files: ``.toml`` (specs), ``.json`` (DxDispatch models), ``.onnx`` (ONNX models),
    ``.graph`` (graphs that ``save_graph`` wrote); or folders of language models.

    Args:
        paths: the files.
        names: the targets to compile for; by default, all targets that the files name.
        sizes: the values of sizes that ONNX models leave open, by name, or ranges of values.
        precision: that of ONNX models, as for ``tvmdml.onnx.load``; other files have their own.

    Raises:
        InvalidArgument, ModelError: a file cannot be read, is invalid, or has no operators of tvmdml.
        Unsupported: ONNX is not installed.
    """
    for name, size in sizes.items():
        ends = (size[0], size[-1]) if isinstance(size, range) and size and size.step > 0 else (size,)
        if not all(type(n) is int and 1 <= n <= MAX_ELEMENTS for n in ends):
            given = f"{size.start}..{size.stop - 1}" if isinstance(size, range) and size.step > 0 else safe_repr(size)
            raise InvalidArgument(message(f"size {name}", given, f"an integer from 1 to {MAX_ELEMENTS}, or least..most of them"))
    exactness = Exactness(precision=precision)
    exactness.check()
    known: set[str] = set()
    found = []
    for path in map(Path, paths):
        reader = _read_folder if path.is_dir() else _read_graph if is_graph(path) else _READERS.get(path.suffix.lower())
        if reader is None:
            allowed = f"{', '.join(_READERS)}, or a folder of a language model"
            raise InvalidArgument(message(str(path), f"a file of type {path.suffix or 'none'!r}", allowed))
        if reader is _read_onnx:
            found.append(_read_onnx(path, sizes, known, exactness))
            continue
        if precision != PRECISIONS[0]:
            raise InvalidArgument(message(f"precision of {path}", safe_repr(precision), f"{PRECISIONS[0]!r}: it is no ONNX model"))
        found.append(reader(path, sizes, known))
    for name in sizes:
        if name not in known:
            likely = difflib.get_close_matches(name, known, n=1)
            advice = f"Did you mean {likely[0]}?" if likely else ""
            raise InvalidArgument(message("size", repr(name), ", ".join(sorted(known)) or "none: no model leaves one open", advice))
    return Spec(
        targets=tuple(names) or tuple(dict.fromkeys(itertools.chain.from_iterable(one.targets for one in found))),
        wanted=spec.once(itertools.chain.from_iterable(one.wanted for one in found)),
        knobs=_joined([one.knobs for one in found]),
        logs=tuple(dict.fromkeys(itertools.chain.from_iterable(one.logs for one in found))),
        graphs=tuple(itertools.chain.from_iterable(one.graphs for one in found)),
        cases=tuple(dict.fromkeys(itertools.chain.from_iterable(one.cases for one in found))),
        networks=tuple(dict.fromkeys(itertools.chain.from_iterable(one.networks for one in found))),
        files=_alone([one.files for one in found if one.files]),
    )


def _alone(several: Sequence[Mapping[str, bytes]]) -> Mapping[str, bytes]:
    """The files of the only folder."""
    if len(several) > 1:
        raise InvalidArgument(message("pack build", f"{len(several)} folders of language models", "one", "Build a pack for each."))
    return several[0] if several else {}


def _joined(several: Iterable[KnobValues]) -> KnobValues:
    joined: dict[str, dict[str, int | str]] = {}
    for operator, values in itertools.chain.from_iterable(knobs.items() for knobs in several):
        own = joined.setdefault(operator, {})
        for name, value in values.items():
            if own.setdefault(name, value) != value:
                raise InvalidArgument(message(f"knobs.{operator}.{name}", f"{own[name]!r} and {value!r}", "one value in all files"))
    return joined


def _read_spec(path: Path, sizes: SizeChoices, known: set[str]) -> Spec:
    return spec.read(path)


def _read_dxdispatch(path: Path, sizes: SizeChoices, known: set[str]) -> Spec:
    wanted = []
    for dispatchable in dxdispatch.read(path).dispatchables.values():
        desc = spec.plain(dispatchable.desc)
        wanted += [Wanted(desc, shared) for shared in _shared.ways(desc)]  # a command may bind several tensors to one resource
    return Spec(wanted=spec.once(wanted))


def _read_onnx(path: Path, sizes: SizeChoices, known: set[str], exactness: Exactness = Exactness()) -> Spec:  # noqa: B008 - as Model's
    model = Opened(path)
    open_sizes = origin.open_sizes(model)
    known.update(open_sizes)
    given = {name: n for name in open_sizes if isinstance(n := sizes.get(name), int)}
    ranges = {name: n for name in open_sizes if isinstance(n := sizes.get(name), range)}
    if ranges:
        return Spec(graphs=(OpenSource(_graph_name(path.stem, given), model, given, ranges, exactness),))
    recorded = onnx_model.Model(model, given, targets.resolve("cpu"), exactness=exactness).recorded()
    described = {"model": packed.described(recorded.inputs, recorded.outputs, given, recorded.lengths)}
    name = _graph_name(path.stem, given)
    return Spec(graphs=(GraphSource(name, lambda target: saving.planned(recorded.finished(target), target), described),))


def _graph_name(stem: str, sizes: Mapping[str, int]) -> str:
    """The name of a model's graph for some sizes: ``model_batch1``, or ``model_1x320`` if that would be long."""
    name = "_".join([stem, *(f"{name}{'_' * name[-1:].isdecimal()}{size}" for name, size in sizes.items())])
    return name if len(name) <= _LONGEST_NAME else f"{stem}_{'x'.join(map(str, sizes.values()))}"


def _read_folder(path: Path, sizes: SizeChoices, known: set[str]) -> Spec:
    return folders.read(path, sizes, known, targets.resolve("cpu"))


def _read_graph(path: Path, sizes: SizeChoices, known: set[str]) -> Spec:
    saved = saving.read(path)
    return Spec(graphs=(GraphSource(saved.name or path.stem, saved.plan, {}),))


_READERS: Mapping[str, Callable[[Path, SizeChoices, set[str]], Spec]] = {
    ".toml": _read_spec,
    ".json": _read_dxdispatch,
    ".onnx": _read_onnx,
    ".graph": _read_graph,
}
