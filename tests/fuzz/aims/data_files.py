"""Files that a model's values are read from: .npy and raw data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml import dxdispatch
from tvmdml.tensors import TensorDataType

EXAMPLES = 100
_MODELS = Path(__file__).parents[2] / "models"
WORDS = (
    "\x93NUMPY", "\x01\x00", "\x02\x00", "\x03\x00", "descr", "fortran_order", "shape", "True", "False", "<f4", ">f4", "|O",
    "<f4,<i4", "()", "(6,)", "(99999999999,)", "(-1,)", "(2**9,)", "[('a', '<f4')]", "|V8", "<M8[s]", "L", "PK\x03\x04",
    "lambda: 0", "__import__",
)  # fmt: skip


def seeds() -> list[bytes]:
    """The files of the tests, as they are."""
    return [b"\0" + (_MODELS / "halves.npy").read_bytes(), b"\0" + (_MODELS / "halves.dat").read_bytes()]


def one(choices: Choices) -> None:
    """Bytes as they come; a good file with changes; a header of any words."""
    kind = choices.integer(0, 2)
    if kind == 0:
        check(choices.rest())
    elif kind == 1:
        check(trees.damaged(choices, (_MODELS / "halves.npy").read_bytes(), WORDS))
    else:
        header = {
            "descr": choices.pick((*WORDS[9:14], "<i8", "|b1", "<c8", "|S3")),
            "fortran_order": choices.flag(),
            "shape": (choices.number() % 10**9,) * choices.integer(0, 40),
        }
        text = trees.damaged(choices, repr(header).encode(), WORDS) if choices.flag() else repr(header).encode()
        size = len(text) if choices.flag(1) else choices.integer(0, 65535)
        check(b"\x93NUMPY\x01\x00" + min(size, 65535).to_bytes(2, "little") + text + choices.rest())


def check(content: bytes) -> None:
    """Print it, with each way to say what it holds."""
    for name, kind in (("values.npy", None), ("values.npy", "FLOAT32"), ("values.dat", "INT64"), ("values", "UNKNOWN")):
        Path(name).write_bytes(content)
        values = {"initialValues": {"sourcePath": name}, **({"initialValuesDataType": kind} if kind else {})}
        model = {
            "resources": {"x": values},
            "dispatchables": {},
            "commands": [{"type": "print", "resource": "x", "verbose": kind is None}],
        }
        Path("model.json").write_text(json.dumps(model))
        said: list[str] = []
        with refusals():
            found = dxdispatch.read("model.json")
            if found.resources["x"].size < 1 << 20:
                found.run(write=said.append)
        if kind is None and said and any("Resource" in text for text in said):  # what was taken is what NumPy has
            array = np.load(io.BytesIO(content), allow_pickle=False)
            assert TensorDataType.from_numpy(array.dtype) is not None
            assert found.resources["x"].initial.size == array.nbytes
