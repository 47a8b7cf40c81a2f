"""``Adapters``: weights of LoRA that a network has inputs for, from ONNX Runtime's files, which are FlatBuffers."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.errors import message, reason, safe_repr
from tvmdml.genai.model import Model
from tvmdml.genai.refusing import FolderError, Refused
from tvmdml.onnx.types import dtype_of
from tvmdml.system import at_hand
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.dxdispatch import flat

_MARK = b"TORT"
"""Bytes 4 to 7 of such a file."""
_VERSION = 1


class Adapters:
    """Adapters of a model, by their names."""

    def __init__(self, model: Model) -> None:
        """None yet.

        Raises:
            Refused: it is not a model.
        """
        if not isinstance(model, Model):
            raise Refused(message("Adapters", safe_repr(model), "a Model"))
        self._weights: dict[str, dict[str, NumpyArray]] = {}

    def load(self, path: str | os.PathLike[str], name: str) -> None:
        """Read a file.

        Raises:
            FolderError: it is not there, or is no such file.
            Refused: there is an adapter of this name.
        """
        if name in self._weights:
            raise Refused(
                message("Adapters.load", f"{safe_repr(name)}, which is loaded", "another name", "unload(name) forgets one.")
            )
        self._weights[name] = read(Path(path))

    def unload(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            Refused: there is none of this name.
        """
        self.weights(name)
        del self._weights[name]

    def weights(self, name: str) -> dict[str, NumpyArray]:
        """The weights of an adapter, by the names of the network's inputs.

        Raises:
            Refused: there is none of this name.
        """
        if name not in self._weights:
            raise Refused(message("adapter", safe_repr(name), ", ".join(self._weights) or "none: nothing is loaded"))
        return self._weights[name]


def read(path: Path) -> dict[str, NumpyArray]:
    """The weights in a file, by their names.

    Raises:
        FolderError: it is not there, or is no such file.
    """
    at_hand("tvmdml.dxdispatch.flat")  # few programs have adapters
    from tvmdml.dxdispatch import flat

    where = f"adapter {path}"
    try:
        content = path.read_bytes()
        if content[4:8] != _MARK:
            raise flat.Damaged(f"a file whose bytes 4 to 7 are {content[4:8]!r}")
        root = flat.root(content)
        if root.number(0, "i") != _VERSION:
            raise flat.Damaged(f"format version {root.number(0, 'i')}")
        return dict(_weight(table) for table in root.tables(3))
    except (OSError, flat.Damaged) as error:
        raise FolderError(
            message(where, reason(error), f"a file of ONNX Runtime's adapters, of format version {_VERSION}")
        ) from None


def _weight(table: flat.FlatTable) -> tuple[str, NumpyArray]:
    from tvmdml.dxdispatch import flat

    name, sizes, content = table.text(0), table.array(1, "<i8"), table.array(3, "u1")
    number = table.number(2, "i")
    dtype: Any = dtype_of(number)
    if not name or dtype is None:
        raise flat.Damaged(f"a tensor named {safe_repr(name)}, of type {number}")
    shape = [] if sizes is None else [int(n) for n in sizes]
    count = 0 if content is None else content.size
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != count:
        raise flat.Damaged(f"{count} bytes for {dtype}{shape}, {name}")
    return name, np.frombuffer(content.tobytes(), dtype).reshape(shape)
