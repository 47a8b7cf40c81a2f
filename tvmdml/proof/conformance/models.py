"""Models: DxDispatch's JSON, run like ``tvmdml run``, with the expected results.

A model here contains its expected results, under names that the reader ignores:

- ``$expected``: by the name of a resource, its elements after all commands; for a partly defined output, only the first elements.
- ``$printed``: all lines that the commands print, except timings.
- ``$written``: by path, the contents of the written files: type, elements, and for .npy files the sizes.
"""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tvmdml import dxdispatch
from tvmdml.dxdispatch import commands
from tvmdml.enums import FeatureLevel
from tvmdml.errors import ModelError, Unsupported
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._json import nodes
from tvmdml.proof.conformance.checks import Check, is_taken
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType

FOLDER = Path(__file__).with_name("models")
_OWN = ("Running on ", "Dispatch ", "Initialize ")
"""The beginnings of lines that differ from run to run."""


@dataclasses.dataclass(frozen=True)
class ModelCheck(Check):
    """A model gives, prints and writes the expected results."""

    part: ClassVar[str] = "models"
    path: Path
    level: FeatureLevel

    @property
    def what(self) -> str:
        """The file's name."""
        return self.path.name

    def problem(self, target: Target, seed: int) -> str:
        """The first result that is not as expected."""
        try:
            return self._problem(target)
        except ModelError as error:  # it names a part of the file; what matters is whether the device lacks something
            if (lacking := _cause(error)) is None:
                raise
            raise lacking from None

    def _problem(self, target: Target) -> str:
        root = nodes.read(self.path)
        model = dxdispatch.read(self.path)
        said = io.StringIO()
        with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
            asked = root.value["$expected"]
            looks = [_look(name, number, model) for number, name in enumerate(asked)]
            dataclasses.replace(model, commands=[*model.commands, *looks]).run(
                target, feature_level=self.level, output_path=folder, write=said.write
            )
            for number, (name, values) in enumerate(asked.items()):
                found = np.load(Path(folder) / f"{number}.look.npy")
                if problem := _differing(found[: len(values)], _array(values, found.dtype)):
                    return f"{name}: {problem}"
            for path, content in root.value.get("$written", {}).items():
                if problem := _misread(Path(folder) / path, content):
                    return f"{path}: {problem}"
        return _misprinted(said.getvalue(), root.value.get("$printed", []))


def _cause(error: BaseException | None) -> Unsupported | None:
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or error.__context__
    return error


def _look(name: str, number: int, model: dxdispatch.Model) -> commands.Command:
    """A command that writes a resource's current content to a file."""
    node = nodes.JsonNode({"type": "writeFile", "resource": name, "targetPath": f"{number}.look.npy"}, "$expected")
    return commands.read(node, model.resources, model.dispatchables)


def _array(values: list[Any], dtype: np.dtype[Any]) -> NumpyArray:
    """An array from JSON elements; strings are names of numbers that JSON cannot express."""
    return np.array([float(value) if isinstance(value, str) else value for value in values], dtype)


def _differing(found: NumpyArray, wanted: NumpyArray) -> str:
    """The first difference. All NaN are equal, but zeros of different signs are not."""
    if found.shape != wanted.shape:
        return f"is of shape {found.shape}, should be {wanted.shape}"
    bits = f"u{found.itemsize}"
    differ = found.view(bits) != wanted.view(bits)
    if found.dtype.kind == "f":
        differ &= ~(np.isnan(found) & np.isnan(wanted))
    if not differ.any():
        return ""
    at = int(differ.argmax())
    first = f"{found.flat[at]}, should be {wanted.flat[at]}"
    return f"{int(differ.sum())} of {differ.size} elements differ, first element {at}: {first}"


def _misread(path: Path, content: Mapping[str, Any]) -> str:
    if not path.is_file():
        return "was not written"
    dtype = TensorDataType.parse(content["type"], str(path)).numpy
    found = np.load(path) if path.suffix == ".npy" else np.fromfile(path, dtype)
    if found.dtype != dtype:
        return f"is of {found.dtype}, should be {dtype}"
    wanted = _array(content["values"], dtype)
    return _differing(found, wanted.reshape(content.get("sizes", wanted.shape)))


def _misprinted(said: str, wanted: list[str]) -> str:
    lines = [line for line in said.splitlines() if not line.startswith(_OWN) and "' written to '" not in line]
    return "" if lines == wanted else f"prints {lines}, should be {wanted}"


def checks(names: Iterable[str], level: FeatureLevel) -> Iterator[Check]:
    """The models whose first operator is one of these names, if the level supports all their operators."""
    names = list(names)
    for path in sorted(FOLDER.glob("*.json")):
        descs = [each.desc for each in dxdispatch.read(path).dispatchables.values()]
        if descs[0].NAME in names and all(is_taken(desc, level) for desc in descs):
            yield ModelCheck(descs[0].NAME, path, level)
