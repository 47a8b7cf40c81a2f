"""ONNX's own tests of single nodes: each passes, or DirectML cannot say it, for a reason in the table ``tvmdml/onnx/NODES.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tvmdml.errors import Unsupported

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
ml_dtypes: Any = pytest.importorskip("ml_dtypes", reason="the package onnx brings it")

from node_table import OTHERWISE, PLACE, array, cases, table  # noqa: E402 - they need ONNX

PARTS = 16
BEYOND = re.compile("test_cast(like)?_FLOAT(16)?_to_U?INT[24]")
"""Of numbers that the type has not, what is expected is what the installed ml_dtypes says: 0.7 gives 0, older ones the low bits."""
with np.errstate(invalid="ignore"):
    GIVES_ZERO = not np.array([9], np.float32).astype(ml_dtypes.int4)[0]
NEAR = {"float16": 1e-2, "bfloat16": 2**-6}
"""Of bfloat16 that is two units in the last place: each node rounds."""


def problem(case: Any) -> str:
    """What is wrong with the results of a case; a case that is refused has none, and one that is otherwise has other results."""
    from tvmdml.onnx.backend import prepare

    try:
        prepared = prepare(case.model)
        for inputs, expected in case.data_sets:
            given = [array(one) for one in inputs]
            found, model = prepared.run(given), prepared._model
            draws = model._for(dict(zip((one.name for one in model.inputs), given, strict=True))).draws
            for one, right in _tensors(found, list(map(array, expected))):
                if (one.dtype, one.shape) != (right.dtype, right.shape):
                    return f"{one.dtype}{list(one.shape)}, and not {right.dtype}{list(right.shape)}"
                if draws and np.issubdtype(right.dtype, np.number):
                    assert np.isfinite(one).all()
                if draws and "zero_ratio" not in case.name:
                    continue
                near = max(case.rtol, NEAR.get(right.dtype.name, 1e-3))
                if not np.allclose(one.astype(np.float64), right.astype(np.float64), near, max(case.atol, 1e-6), equal_nan=True):
                    return f"differs by {np.nanmax(np.abs(one.astype(np.float64) - right.astype(np.float64)))}"
    except Unsupported:
        return ""  # the table has the reason
    return ""


def _tensors(found: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    """Results beside those that are expected: of sequences each tensor, and of optional ones what is there."""
    if isinstance(expected, list):
        assert isinstance(found, list), found
        for one, right in zip(found, expected, strict=True):
            yield from _tensors(one, right)
    elif expected is None:
        assert found is None
    else:
        yield found, np.asarray(expected)


@pytest.mark.full
@pytest.mark.drawn("part", range(PARTS), 1)
def test_nodes_give_what_onnx_expects(part: int) -> None:
    wrong = {}
    for case in cases()[part::PARTS]:
        try:
            found = problem(case)
            if GIVES_ZERO and BEYOND.match(case.name) and found.startswith("differs"):
                found = ""  # test_onnx_narrow.py has what is right
            if case.name in OTHERWISE:
                found = "" if found.startswith("differs") else "it is as ONNX expects"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            wrong[case.name] = found
    assert not wrong


@pytest.mark.full
def test_the_table_says_what_is_converted() -> None:
    """What is refused stays what it is: a case that is refused by mistake would pass above."""
    written = PLACE.read_text()
    if f"onnx {onnx.__version__} " not in written:
        pytest.skip("the table is that of another version of ONNX")
    assert table() == written, "run python tests/onnx_models/node_table.py"
