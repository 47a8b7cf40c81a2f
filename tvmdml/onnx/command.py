"""``tvmdml run model.onnx``: inputs from files or made up, outputs described or written, and timings as DxDispatch prints them."""

from __future__ import annotations

import io
import json
import time
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, ModelError, Unsupported, counted, message, reason, safe_repr
from tvmdml.graph.compiled import Timed
from tvmdml.library.files import is_graph, is_pack
from tvmdml.onnx.kinds import Kind, part
from tvmdml.onnx.model import load
from tvmdml.onnx.running import Argument, Runnable
from tvmdml.system import inside
from tvmdml.system.console import printable, shown_seconds
from tvmdml.system.timings import Timing, timings
from tvmdml.targets import Target
from tvmdml.tensors import PRECISIONS

_SLOWEST = 10
"""How many kernels of a profile are printed."""


def is_model(path: str) -> bool:
    """Whether a file is for ``load``: an ONNX model, a pack or a saved graph, which have any name."""
    return path.endswith((".onnx", ".pack", ".graph")) or is_pack(path) or is_graph(path)


class OutputFiles(NamedTuple):
    """Where outputs are written."""

    folder: str | None
    """``None`` if they are not."""
    overwrite: bool
    """Whether files that exist are replaced."""


def run(
    path: str,
    inputs: Mapping[str, str],
    sizes: Mapping[str, int],
    target: Target,
    output: OutputFiles,
    timing: Timing,
    write: Callable[[str], object],
    profile: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    fallback: str | None = None,
    precision: str = PRECISIONS[0],
) -> None:
    """Run a model.

    Args:
        path: the file.
        inputs: files with arrays, by the inputs' names.
        sizes: values of open sizes.
        target: where to run.
        output: where outputs are written.
        timing: how often to run, and what to print of it.
        write: receives the printed text.
        profile: the file that gets the time of each kernel of one more run, in Chrome's trace format; ``None`` for no such run.
        shapes: all sizes of inputs, which say what open sizes are.
        fallback: what runs nodes that cannot be converted, as for ``load``.
        precision: as for ``load``.

    Raises:
        ModelError: the model or an output's name is wrong.
        InvalidArgument: an input is wrong, a size is missing, or there is nothing to profile.
        OSError: the file of the profile cannot be written.
    """
    if shapes:
        sizes = {**_sizes(load(path, target=target, fallback=fallback, precision=precision), shapes), **sizes}
    model = load(path, sizes, target=target, fallback=fallback, precision=precision)
    known = [one.name for one in model.feeds]
    for name in inputs:
        if name not in known:
            raise InvalidArgument(message("input", safe_repr(name), ", ".join(map(printable, known)) or "none"))
    feeds = made_up(model, {name: _read(name, file) for name, file in inputs.items()})
    files = _files(model, output)
    begin = time.perf_counter()
    found = model(feeds)  # not a sample: it converts and compiles what ``load`` could not, and a driver makes its pipelines
    prepared = time.perf_counter() - begin
    samples = array("d")
    for _ in timing.samples():
        begin = time.perf_counter()
        for _ in range(timing.repeat):
            found = model(feeds)
        samples.append(1e3 * (time.perf_counter() - begin) / timing.repeat)
    for line in timings(printable(Path(path).name), samples, timing):
        write(f"{line}\n")
    if timing.verbosity:
        write(f"Preparation: {shown_seconds(prepared)} for what was compiled for these inputs, and a first run\n")
    for one, result in zip(model.outputs, found, strict=True):
        for name, tensor in _named(one.name, result):
            write(f"Output '{printable(name)}': {tensor.dtype}{list(tensor.shape)}{_described(tensor)}\n")
    for file, result in zip(files, found, strict=False):
        for name, tensor in _named(file.removesuffix(".npy"), result):
            _write(f"{name}.npy", tensor, output)
    if profile is not None:
        _profile(model, feeds, profile, write)


def _sizes(model: Runnable, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The open sizes that the shapes of inputs give."""
    inputs = {one.name: one for one in model.inputs}
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        one = inputs.get(name)
        if one is None:
            raise InvalidArgument(message("binding_shape", safe_repr(name), ", ".join(map(printable, inputs)) or "none"))
        own = one.shape or ()
        fits = len(own) == len(shape) and all(n == m for n, m in zip(own, shape, strict=True) if isinstance(n, int))
        given = (m for n, m in zip(own, shape, strict=False) if not isinstance(n, int))
        named = dict(zip(one.open_sizes(), given, strict=False))
        if not fits or any(found.get(size, n) != n for size, n in named.items()):
            allowed = ", ".join(str(n) if isinstance(n, int) else printable(n or "any size") for n in own)
            raise InvalidArgument(message(f"binding_shape of {printable(name)}", str(list(shape)), f"[{allowed}]"))
        found |= named
    return found


def _profile(model: Runnable, feeds: Mapping[str, Any], path: str, write: Callable[[str], object]) -> None:
    """Run once more, write the time of each kernel to a file, and print what takes the most."""
    times: list[Timed] = []
    events: list[dict[str, Any]] = []
    for graph, given in model.graphs(feeds):
        more, shown = graph.events(given, sum(one.nanoseconds for one in times) / 1000)
        times, events = [*times, *more], [*events, *shown]
    Path(path).write_text(json.dumps({"traceEvents": events, "otherData": {"graph": model.name, "target": model.target.name}}))
    whole = sum(one.nanoseconds for one in times)
    skipped = sum(one.skipped for one in times)
    ran = counted(len(times) - skipped, "kernel") + (f" ({skipped} of branches not taken were skipped)" if skipped else "")
    write(f"Profile: {ran}, {shown_seconds(whole / 1e9)} in all; {printable(path)} has each of them\n")
    for one in sorted((one for one in times if not one.skipped), key=lambda one: -one.nanoseconds)[:_SLOWEST]:
        spent = shown_seconds(one.nanoseconds / 1e9)
        write(f"{spent:>10} {one.nanoseconds / max(whole, 1):4.0%}  {printable(one.name)}  {one.kernel}\n")


def _read(name: str, file: str) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgument(message(f"input {name}", f"{file} ({reason(error)})", "a file of numpy.save")) from None


def made_up(
    model: Runnable, given: Mapping[str, Any] | None = None, sizes: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """An array for each input: those that are given, and random ones, the same in each run.

    Args:
        model: the model.
        given: arrays of inputs; ``None`` if the command has no option for them.
        sizes: values of open sizes, by their names.

    Raises:
        InvalidArgument: an input that is not given has other open sizes.
        Unsupported: it is no tensor.
    """
    others = [about.with_sizes(sizes) for about in model.inputs if about.name not in (given or {})]
    return {**{about.name: _made_up(about, model, given is not None) for about in others}, **(given or {})}


def _made_up(one: Argument, model: Runnable, takes_files: bool) -> Any:
    """Random values, the same in each run: floats around 0, and integers that are small enough for indices."""
    if one.kind != Kind():
        raise Unsupported(message("input", f"{one.name}, a sequence or optional tensor", "tensors", "Call the model from Python."))
    if one.shape is None or one.open_sizes():
        sizes = ", ".join(str(n or "?") for n in one.shape or ("?",) if not isinstance(n, int))
        given = f"no array for {one.name}, with open sizes {sizes}"
        file = [f"--input {printable(one.name)}=FILE.npy"] if takes_files else []
        ways = [*file, *_ways(one, model)] or ["inputs whose sizes have names, or are known"]
        raise InvalidArgument(message("input", given, ", or ".join(ways)))
    shape = tuple(n for n in one.shape if isinstance(n, int))
    rng = np.random.default_rng(zlib.crc32(one.name.encode()))
    if one.dtype.kind == "f":
        return rng.standard_normal(shape).astype(one.dtype)
    return rng.integers(0, 2, shape).astype(one.dtype)


def _ways(one: Argument, model: Runnable) -> list[str]:
    """How the sizes of an input are given: those of a pack, or any."""
    named = {n: "N" for n in one.open_sizes() if n in model.symbols}
    several: Sequence[Mapping[str, object]] = model.choices or ([named] if named else [])
    return [" ".join(f"--size {printable(name)}={n}" for name, n in sizes.items()) for sizes in several]


def _named(name: str, result: Any) -> list[tuple[str, Any]]:
    """The tensors of an output, with names."""
    several = isinstance(result, list)
    return [(part(name, i), one) for i, one in enumerate(result)] if several else [] if result is None else [(name, result)]


def _described(result: Any) -> str:
    """The range of the elements."""
    if not result.size:
        return ""
    return f", {result.min()} to {result.max()}"


def _files(model: Runnable, output: OutputFiles) -> list[str]:
    """The files of the outputs; checked before the model runs."""
    if output.folder is None:
        return []
    found = [f"{one.name}.npy" for one in model.outputs]
    for name in found:
        try:
            if len(inside.steps(name)) != 1:
                raise inside.NotOpened("which names a folder")
            if inside.existing(output.folder, name) is not None and not output.overwrite:
                raise inside.NotOpened("which already exists")
        except inside.NotOpened as error:
            raise _refusal(name, output, error) from None
    return found


def _write(name: str, result: Any, output: OutputFiles) -> None:
    content = io.BytesIO()
    np.save(content, np.asarray(result), allow_pickle=False)
    try:
        with inside.create(output.folder or ".", name, lambda about: output.overwrite) as file:
            file.write(content.getbuffer())
    except inside.NotOpened as error:
        raise _refusal(name, output, error) from None


def _refusal(name: str, output: OutputFiles, error: inside.NotOpened) -> ModelError:
    advice = "Use --overwrite to replace files." if "already exists" in str(error) else ""
    return ModelError(message("output", f"{safe_repr(name)}, {error}", f"new files in {output.folder!r}", advice))
