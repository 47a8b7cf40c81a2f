"""ONNX's own tests of single nodes: each passes, or DirectML cannot say it, for one of these reasons."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import numpy as np
import pytest

from tvmdml.errors import Unsupported

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

PARTS = 16
UNMAPPED = [
    "ArrayFeatureExtractor",
    "Adagrad",
    "Adam",
    "Momentum",
    "Binarizer",
    "TreeEnsemble",
    "LabelEncoder",
    "DeformConv",
    "Det",
    "ImageDecoder",
    "MelWeightMatrix",
    "NonMaxSuppression",
    "OptionalGetElement",
    "OptionalHasElement",
    "TfIdfVectorizer",
    "Unique",
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
]
"""Operators without a counterpart."""
REASONS = [
    re.compile(pattern)
    for pattern in (
        r"given the type (string|sequence|optional|u?int[24]|float4e2m1|float8\w+|bfloat16|map|nothing)\b",
        r"data type float8_e5m2|type (FLOAT8|FLOAT4|U?INT[24]|BFLOAT16|STRING)",
        r"the type of its output is not one of DirectML's",
        rf"(?:^|[ .])({'|'.join(UNMAPPED)}) (of )?'.*': (DirectML has no counterpart|no operator of this name is known)",
        r"version \d of ONNX's operators",
        r"its result is random",
        r"its mode is max",
        r"it is of version 8, with batches",
    )
]


@functools.cache
def cases() -> list[Any]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return sorted(node.collect_testcases(None), key=lambda case: str(case.name))


def array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def problem(case: Any) -> str:
    """What is wrong with the results of a case; a reason that starts with ``-`` says why it has none."""
    from tvmdml.onnx.backend import prepare

    try:
        prepared = prepare(case.model)
        for inputs, expected in case.data_sets:
            found = prepared.run([array(one) for one in inputs])
            for one, value in zip(found, expected, strict=True):
                right = array(value)
                if (one.dtype, one.shape) != (right.dtype, right.shape):
                    return f"{one.dtype}{list(one.shape)}, and not {right.dtype}{list(right.shape)}"
                near = max(case.rtol, 1e-2 if right.dtype == np.float16 else 1e-3)
                if not np.allclose(one.astype(np.float64), right.astype(np.float64), near, max(case.atol, 1e-6), equal_nan=True):
                    return f"differs by {np.nanmax(np.abs(one.astype(np.float64) - right.astype(np.float64)))}"
    except Unsupported as error:
        text = " ".join(str(error).split())
        return "" if any(reason.search(text) for reason in REASONS) else text
    return ""


@pytest.mark.drawn("part", range(PARTS), 2)
def test_nodes_give_what_onnx_expects(part: int) -> None:
    wrong = {}
    for case in cases()[part::PARTS]:
        try:
            found = problem(case)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            wrong[case.name] = found
    assert not wrong


def test_most_nodes_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused stays what it is: a case that is refused by mistake would pass above."""
    from tvmdml.onnx import converting
    from tvmdml.onnx.model import Model, load

    def convert(self: Model, shapes: Any, decided: Any) -> None:
        converting.raise_all("model", converting.Conversion(self._model, shapes, decided).problems)

    monkeypatch.setattr(Model, "_compile", convert)
    refused = {}
    for case in cases():
        try:
            load(case.model)
        except Unsupported as error:
            refused[case.name] = str(error)
    assert len(refused) < 0.167 * len(cases()), refused
    for name in (
        "test_loop11",
        "test_attention_4d_causal",
        "test_range_int32_type_negative_delta",
        "test_if",
        "test_einsum_transpose",
    ):
        assert name not in refused
