"""``load_graph``: a compiled graph from a file that ``save_graph`` wrote, or from a pack.

In a pack, a graph is a part with its description, JSON as in such a file, and a part for each constant; graphs share equal
constants. A weight that a kernel reads packed is there in that form, for each processor level that the builder could run; if all
kernels read it so, it is there in no other. A reader maps constants from the pack, and copies none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.arrays import NumpyArray
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.kernels import Progress
from tvmdml.graph.laying import Stored, laid_out
from tvmdml.graph.program import Finished
from tvmdml.graph.saving import kind_of, parsed, read, reading
from tvmdml.packs import shelf
from tvmdml.packs.files import is_pack
from tvmdml.packs.format import Pack
from tvmdml.packs.records import Graph


def load_graph(
    path: str | os.PathLike[str],
    target: str | targets.Target = "cpu",
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> CompiledGraph:
    """Read a graph that ``save_graph`` wrote, or that is in a pack, and prepare it for a target.

    The kernels of a graph in a file come from a loaded pack, the cache, or the compiler; those of a graph in a pack, from the pack.

    Args:
        path: the file. Its constants stay in it: it must not be changed while the graph is used.
        target: where to run.
        name: which graph of a pack, if it has several for this kind of target.
        progress: called with (kernels ready, kernels in all) while kernels compile.

    Raises:
        ModelError: the file cannot be read, or is not such a file.
        PackError: the pack is damaged, or not trusted.
        InvalidArgument: the pack has no such graph, or several.
        Unsupported: the graph is for another kind of target.
        CompileError: a kernel is in no pack, and cannot be compiled.
    """
    place = targets.resolve(target, "load_graph target")
    if is_pack(path):
        with shelf.load_pack(path) as loaded:
            return compiled(in_pack(loaded.pack, _chosen(loaded.pack, place, name)), place, progress)
    finished, kind = read(path)
    if name is not None and name != finished.name:
        raise InvalidArgument(message("load_graph name", safe_repr(name), safe_repr(finished.name)))
    if kind != place.kind:
        allowed = f"a target of the kind that {path} was compiled for: {kind}"
        raise Unsupported(message("load_graph target", place.name, allowed, "Save the graph once for each kind."))
    return CompiledGraph(laid_out(finished, place, progress=progress), place)


class InPack(NamedTuple):
    """A graph of a pack."""

    finished: Finished
    stored: Stored
    """Its packed weights."""
    described: Mapping[str, Any]


def compiled(found: InPack, target: targets.Target, progress: Progress | None = None) -> CompiledGraph:
    """Ready to run. The pack is loaded, so that its kernels are found."""
    return CompiledGraph(laid_out(found.finished, target, progress=progress, stored=found.stored), target)


def of_kind(pack: Pack, target: targets.Target) -> list[Graph]:
    """The graphs of a pack for a target's kind.

    Raises:
        PackError, Unsupported: there is none.
    """
    found = [one for one in pack.graphs() if one.kind == target.kind]
    if not found:
        kinds = ", ".join(sorted({one.kind for one in pack.graphs()}))
        if not kinds:
            raise pack.error("no graph", "a pack that was built from a graph or an ONNX model")
        allowed = f"a target of a kind that {pack.shown} has graphs for: {kinds}"
        raise Unsupported(message("target", target.name, allowed, "Name such a target, or build it for this one, too."))
    return found


def _chosen(pack: Pack, target: targets.Target, name: str | None) -> Graph:
    several = of_kind(pack, target)
    names = ", ".join(safe_repr(one.name) for one in several)
    wanted = [one for one in several if name is None or one.name == name]
    if len(wanted) != 1:
        given = "no name" if name is None else safe_repr(name)
        raise InvalidArgument(message("load_graph name", given, names))
    return wanted[0]


def in_pack(pack: Pack, graph: Graph) -> InPack:
    """Read a graph of a pack. Nothing of it is trusted.

    Raises:
        ModelError: its description is wrong.
        PackError: a part is damaged.
    """
    with reading(f"{pack.shown}: {graph.name}"):
        described = json.loads(pack.content(graph.part))
        if kind_of(described) != graph.kind or described["name"] != graph.name:
            raise ValueError("a description of another graph")
        mapped: dict[int, NumpyArray] = {}

        def data(at: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NumpyArray:
            if type(at) is not int or not 0 <= at < len(graph.data):
                raise ValueError(f"constant {safe_repr(at)} of {len(graph.data)}")
            if at not in mapped:
                mapped[at] = pack.mapped(graph.data[at])
            if mapped[at].nbytes != dtype.itemsize * math.prod(shape):
                raise ValueError(f"{mapped[at].nbytes} bytes for a constant {dtype}{list(shape)}")
            return mapped[at].view(dtype).reshape(shape) if mapped[at].nbytes else np.empty(shape, dtype)

        finished = parsed(described, lambda one, dtype, shape: None if one["place"] is None else data(one["place"], dtype, shape))
        stored: dict[tuple[int, str, str], NumpyArray] = {}
        for call, name, layout, at, elements, dtype in described["packed"]:
            if type(call) is not int or type(name) is not str or type(layout) is not str:
                raise ValueError(f"a packed weight of {safe_repr(call)}")
            if type(elements) is not int or elements < 0:
                raise ValueError(f"a packed weight of {safe_repr(elements)} elements")
            stored[call, name, layout] = data(at, np.dtype(str(dtype)), (elements,))
        return InPack(finished, stored, described)
