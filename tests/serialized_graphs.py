"""Writes serialized graphs, as ONNX Runtime's DirectML provider does: the other side of ``tvmdml.dxdispatch.serialized``."""

from __future__ import annotations

from typing import Any, NamedTuple

import flatbuffers
import numpy as np

_STRUCTS = {
    "UInt32": (3, "Uint32"),
    "UInt64": (4, "Uint64"),
    "Int32": (5, "Int32"),
    "Float32": (6, "Float32"),
    "Bool": (13, "Bool"),
}
_ARRAYS = {"UIntArray": (7, np.uint32), "IntArray": (8, np.int32), "FloatArray": (9, np.float32)}
_PAIRS = {"ScaleBias": (10, "Float32"), "Size2D": (11, "Uint32")}


class Tensor(NamedTuple):
    """A tensor's description."""

    sizes: tuple[int, ...]
    data_type: str = "FLOAT32"
    strides: tuple[int, ...] | None = None


class Writer:
    """A graph that is being written. Nodes are written in the order in which they are added."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)
        self._nodes: list[int] = []

    def table(self, *fields: tuple[str, Any]) -> int:
        """A table of slots: ``("offset", n)``, ``("Uint8", 1)``, or ``None`` for those that are absent."""
        self.builder.StartObject(len(fields))
        for i, field in enumerate(fields):
            if field is not None:
                kind, value = field
                if kind == "offset":
                    self.builder.PrependUOffsetTRelativeSlot(i, value, 0)
                else:
                    getattr(self.builder, f"Prepend{kind}Slot")(i, value, 0)
        return int(self.builder.EndObject())

    def offsets(self, several: list[int]) -> int:
        """A vector of tables or strings."""
        self.builder.StartVector(4, len(several), 4)
        for one in reversed(several):
            self.builder.PrependUOffsetTRelative(one)
        return int(self.builder.EndVector())

    def texts(self, names: Any) -> int:
        return self.offsets([self.builder.CreateString(name) for name in names])

    def array(self, values: Any, dtype: Any) -> int:
        return int(self.builder.CreateNumpyVector(np.array(values, dtype)))

    def _tensor(self, one: Tensor) -> int:
        kind = self.builder.CreateString(f"DML_TENSOR_DATA_TYPE_{one.data_type}")
        sizes = self.array(one.sizes, np.uint32)
        strides = None if one.strides is None else ("offset", self.array(one.strides, np.uint32))
        return self.table(("offset", kind), ("offset", sizes), strides, ("Uint64", 0))

    def _attribute(self, name: str, kind: str, value: Any) -> int:
        text = ("offset", self.builder.CreateString(name))
        if kind in _STRUCTS:
            number, form = _STRUCTS[kind]
            self.builder.Prep(8, 0)
            getattr(self.builder, f"Prepend{form}")(value)
            inside = self.builder.Offset()
        elif kind in _PAIRS:
            number, form = _PAIRS[kind]
            self.builder.Prep(4, 8)
            for part in reversed(value):
                getattr(self.builder, f"Prepend{form}")(part)
            inside = self.builder.Offset()
        elif kind in _ARRAYS:
            number, dtype = _ARRAYS[kind]
            inside = self.table(("offset", self.array(value, dtype)))
        elif kind == "Scalar":
            number = 12
            self.builder.Prep(1, 8)
            for byte in reversed(bytes(value)):
                self.builder.PrependByte(byte)
            inside = self.table(("Uint8", 1), ("offset", self.builder.Offset()))
        elif kind == "Activation":
            number = 1
            if value is None:  # an absent one has no name, either
                return self.table(None, ("Uint8", number), None)
            inside = self._activation(*value)
        else:
            number, inside = 2, self.table(("offset", self.offsets([self._activation(*one) for one in value])))
        return self.table(text, ("Uint8", number), ("offset", inside))

    def _activation(self, kind: str, *attributes: tuple[str, str, Any]) -> int:
        several = self.offsets([self._attribute(*one) for one in attributes])
        return self.table(("offset", self.builder.CreateString(kind)), ("offset", several))

    def _node(self, kind: int, desc: int, name: str, inputs: Any, outputs: Any) -> None:
        text, before, after = self.builder.CreateString(name), self.texts(inputs), self.texts(outputs)
        self._nodes.append(self.table(("Uint8", kind), ("offset", desc), ("offset", text), ("offset", before), ("offset", after)))

    def operator(
        self,
        kind: str,
        inputs: list[tuple[str, Tensor | None]],
        outputs: list[tuple[str, Tensor]],
        *attributes: tuple[str, str, Any],
    ) -> None:
        """Add an operator: its tensors with the names of edges, ``None`` for one that is absent."""
        before = self.offsets([self._tensor(one) for _, one in inputs if one])
        after = self.offsets([self._tensor(one) for _, one in outputs])
        several = self.offsets([self._attribute(*one) for one in attributes])
        text = self.builder.CreateString(f"DML_OPERATOR_{kind}")
        desc = self.table(("offset", text), ("offset", before), ("offset", after), ("offset", several))
        self._node(1, desc, kind, [name for name, _ in inputs], [name for name, _ in outputs])

    def constant(self, name: str, content: bytes | None) -> None:
        """Add a constant: its bytes, or ``None`` if a file has them."""
        if content is None:
            number, inside = 1, self.table(("offset", self.builder.CreateString(name)))
        else:
            number, inside = 2, self.table(("offset", self.builder.CreateByteVector(content)))
        self._node(2, self.table(("Uint8", number), ("offset", inside)), name, [], [name])

    def finish(self, inputs: list[str], outputs: list[str]) -> bytes:
        """The file."""
        nodes, before, after = self.offsets(self._nodes), self.texts(inputs), self.texts(outputs)
        self.builder.Finish(self.table(("offset", nodes), ("offset", before), ("offset", after)))
        return bytes(self.builder.Output())


def matmul_add() -> bytes:
    """A product with a bias, whose factor is in a file, then a sum with a fused activation that has an attribute."""
    writer = Writer()
    writer.constant("factor", None)
    writer.constant("bias", np.array([10, -20], np.float32).tobytes())
    writer.operator(
        "GEMM",
        [
            ("model_input", Tensor((1, 1, 2, 3))),
            ("factor", Tensor((1, 1, 2, 3))),
            ("bias", Tensor((1, 1, 2, 2), strides=(0, 0, 0, 1))),
        ],
        [("product", Tensor((1, 1, 2, 2)))],
        ("TransA", "UInt32", 0),
        ("TransB", "UInt32", 1),
        ("Alpha", "Float32", 1.0),
        ("Beta", "Float32", 1.0),
        ("FusedActivation", "Activation", None),
    )
    writer.operator(
        "ELEMENT_WISE_ADD1",
        [("product", Tensor((1, 1, 2, 2))), ("product", Tensor((1, 1, 2, 2), strides=(4, 4, 1, 2)))],
        [("model_output", Tensor((1, 1, 2, 2)))],
        ("FusedActivation", "Activation", ("DML_OPERATOR_ACTIVATION_LEAKY_RELU", ("Alpha", "Float32", 0.5))),
    )
    return writer.finish(["model_input"], ["model_output"])
