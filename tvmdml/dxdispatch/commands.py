"""A model's commands: dispatch, print and writeFile. Each is checked before the first one runs."""

from __future__ import annotations

import abc
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tvmdml.dxdispatch import bindings, images
from tvmdml.dxdispatch.bindings import AnyArray, RunBuffers
from tvmdml.dxdispatch.dispatchable import Dispatchable, Runner
from tvmdml.dxdispatch.resources import Resource
from tvmdml.errors import ModelError, reason
from tvmdml.operators._json.nodes import JsonNode, shown
from tvmdml.system import inside
from tvmdml.system.console import printable
from tvmdml.system.timings import Timing, timings
from tvmdml.tensors import MAX_ELEMENTS

_CHUNK = 1 << 14
_MAX_DIMENSIONS = 32
"""The most dimensions that every version of NumPy can read."""


class ModelRun(NamedTuple):
    """A run of a model."""

    memory: RunBuffers
    runners: Mapping[str, Runner]
    """By dispatchable."""
    output_path: Path | None
    """The folder for written files; ``None`` if the run writes none."""
    overwrite: bool
    """Whether files that existed before are replaced."""
    made: set[tuple[int, int]]
    """The device and inode numbers of the files that this run wrote; it may replace them."""
    timing: Timing
    write: Callable[[str], object]
    """Receives the printed text."""


class Command(abc.ABC):
    """One command."""

    def check(self, session: ModelRun) -> None:  # noqa: B027 - most commands have nothing more to check
        """Check whether the command can run.

        Raises:
            ModelError: it cannot.
        """

    @abc.abstractmethod
    def run(self, session: ModelRun) -> None:
        """Run it."""


def read(node: JsonNode, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]) -> Command:
    """The command that a node describes.

    Raises:
        ModelError: it is not a command, or names something that the model does not declare.
    """
    return node.need("type", ", ".join(_COMMANDS)).choice(_COMMANDS)(node, resources, dispatchables)


class Dispatch(Command):
    """Runs a dispatchable, repeatedly if requested, and prints how long it takes."""

    def __init__(self, node: JsonNode, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]) -> None:
        node.only(("type", "dispatchable", "bindings"), ignored=("threadGroupCount",))  # of shaders
        self._name = bindings.reference(node.need("dispatchable", "the name of a dispatchable"), dispatchables, "dispatchable")
        self._node = node.need("bindings", "an object that maps tensors to resources")
        self._bindings = dispatchables[self._name].bindings(self._node, resources)

    def check(self, session: ModelRun) -> None:
        """Bind once, which checks sizes, alignment and overlaps, and makes the buffers of deferred resources."""
        self._bind(session, session.memory)

    def run(self, session: ModelRun) -> None:
        """Take samples as the timing says."""
        timing, runner = session.timing, session.runners[self._name]
        target = runner.target
        samples = array("d")  # there may be very many samples, so use only 8 bytes for each
        used = {bound.resource for tensors in self._bindings.values() for bound in tensors} if runner.stays_there else ()
        with target.holding([session.memory.buffers[name] for name in used]) as there:
            for _ in timing.samples():
                call = self._bind(session, session.memory._replace(there=there))
                target.wait()
                begin = time.perf_counter()
                for _ in range(timing.repeat):
                    call()
                target.wait()
                samples.append(1e3 * (time.perf_counter() - begin) / timing.repeat)
        for line in timings(printable(self._name), samples, timing):
            session.write(f"{line}\n")

    def _bind(self, session: ModelRun, memory: RunBuffers) -> Callable[[], None]:
        return session.runners[self._name].bind(self._node, self._bindings, memory)


class Print(Command):
    """Prints the declared elements of a resource."""

    def __init__(self, node: JsonNode, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]) -> None:
        node.only(("type", "resource", "verbose"))
        self._name, self._resource = _typed(node, resources)
        self._node = node
        verbose = node.get("verbose")
        self._verbose = verbose.flag() if verbose else False

    def check(self, session: ModelRun) -> None:
        """A deferred resource was written before."""
        _require_written(self._node, self._name, session)

    def run(self, session: ModelRun) -> None:
        """Print in pieces, because a buffer's text is much larger than the buffer."""
        resource, buffer = self._resource, session.memory.buffers[self._name]
        elements = resource.elements(buffer, buffer.nbytes if resource.deferred else resource.offset + resource.initial.size)
        session.write(f"Resource '{printable(self._name)}':" + ("\n" if self._verbose else " "))
        for first in range(0, len(elements), _CHUNK):
            piece = elements[first : first + _CHUNK]
            if self._verbose:
                session.write("".join(_verbose(piece, first, len(str(len(elements))))))
            else:
                session.write((", " if first else "") + ", ".join(_texts(piece)))
        if not self._verbose:
            session.write("\n")


def _texts(elements: AnyArray) -> list[str]:
    """The elements as C++ prints them: floats with six digits."""
    return [f"{x:g}" if isinstance(x, float) else str(x) for x in elements.tolist()]


def _verbose(elements: AnyArray, first: int, width: int) -> Iterator[str]:
    """Lines with index, value and bits."""
    bits = elements.view(f"u{elements.itemsize}").tolist()
    for i, (text, word) in enumerate(zip(_texts(elements), bits, strict=True), first):
        yield f"[{i:{width}}] {text} (0x{word:0{2 * elements.itemsize}X})\n"


class WriteFile(Command):
    """Writes a resource to a file: .npy, an image, or raw data."""

    def __init__(self, node: JsonNode, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]) -> None:
        node.only(("type", "resource", "targetPath", "dimensions"))
        self._name, self._resource = _typed(node, resources)
        self._target = node.need("targetPath", "the path of a file to write")
        self._target.text()
        dimensions = node.get("dimensions")
        self._node = dimensions or node
        self._dimensions = [size.integer(1, MAX_ELEMENTS) for size in dimensions.items()] if dimensions else []
        self._image = images.SUFFIXES.get(os.path.splitext(self._target.text())[1].lower())
        """The format, of an image."""
        kind = self._resource.data_type
        if self._image is not None:
            images.checked(self._dimensions, self._node)
            if kind is None or not kind.is_float:
                raise self._target.error("a resource of integers", "a resource of floats from 0 to 1")
        if not self._resource.deferred:
            self._check_dimensions(self._resource.size)

    def _check_dimensions(self, size: int) -> None:
        room, wanted = size // self._resource.itemsize, math.prod(self._dimensions)
        if self._dimensions and (wanted > room or len(self._dimensions) > _MAX_DIMENSIONS):
            given = f"{len(self._dimensions)} dimensions, {wanted} elements"
            allowed = f"at most {_MAX_DIMENSIONS} dimensions, and {room} elements, the size of {self._name!r}"
            raise self._node.error(given, allowed)

    def check(self, session: ModelRun) -> None:
        """The file can be written, and would not replace a file that must be kept."""
        _require_written(self._node, self._name, session)
        self._check_dimensions(self._size(session))
        folder, name = self._folder(session), self._target.text()
        if self._image is not None:
            images.require()
        try:
            if inside.existing(folder, name) is not None and not session.overwrite:
                raise inside.NotOpened(_THERE)
        except inside.NotOpened as error:
            raise self._refusal(folder, error) from None

    def run(self, session: ModelRun) -> None:
        """Write the whole buffer, or the part given by the dimensions."""
        folder, name = self._folder(session), self._target.text()
        path = os.path.join(folder.resolve(), *inside.steps(name))
        self._check_dimensions(self._size(session))
        elements = self._resource.elements(session.memory.buffers[self._name], self._size(session))
        if self._dimensions:
            elements = elements[: math.prod(self._dimensions)].reshape(self._dimensions)
        try:
            with inside.create(folder, name, lambda about: session.overwrite or _identity(about) in session.made) as file:
                session.made.add(_identity(os.fstat(file.fileno())))
                if self._image is not None:
                    file.write(images.written(elements, self._image))
                elif path.lower().endswith(".npy"):
                    np.save(file, elements)
                else:
                    elements.tofile(file)
        except inside.NotOpened as error:
            raise self._refusal(folder, error) from None
        except OSError as error:
            raise self._target.error(f"{path!r}, which cannot be written ({reason(error)})", "a path that can be written") from None
        session.write(f"Resource '{printable(self._name)}' written to '{printable(path)}'\n")

    def _size(self, session: ModelRun) -> int:
        return session.memory.buffers[self._name].nbytes if self._resource.deferred else self._resource.size

    def _folder(self, session: ModelRun) -> Path:
        # A model may be untrusted: the user decides where it may write.
        if session.output_path is None:
            raise self._target.error(
                f"{shown(self._target.value)}, and no folder to write to",
                "files inside the folder given by --output_path (in Python: output_path)",
                "Give a folder, preferably a new one. Nothing was run.",
            )
        return session.output_path

    def _refusal(self, folder: Path, error: inside.NotOpened) -> ModelError:
        advice = "Use --overwrite (in Python: overwrite=True) to replace files." if _THERE in str(error) else ""
        advice = advice or "Choose another folder with --output_path."
        return self._target.error(f"{shown(self._target.value)}, {error}", f"a new file in {str(folder.absolute())!r}", advice)


_THERE = "which already exists"


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _require_written(node: JsonNode, name: str, session: ModelRun) -> None:
    if name not in session.memory.buffers:
        raise node.error(f"{name!r}, which is deferred", "a resource that a dispatch before this command writes")


def _typed(node: JsonNode, resources: Mapping[str, Resource]) -> tuple[str, Resource]:
    """The resource of a command. Its elements must be of one type."""
    named = node.need("resource", "the name of a resource")
    name = bindings.reference(named, resources, "resource")
    if resources[name].data_type is None:
        raise named.error(f"{name!r}, of elements of type UNKNOWN", "a resource whose elements are of one type")
    return name, resources[name]


_COMMANDS: Mapping[str, Callable[[JsonNode, Mapping[str, Resource], Mapping[str, Dispatchable]], Command]] = {
    "dispatch": Dispatch,
    "print": Print,
    "writeFile": WriteFile,
}
