"""The operators of ``operators/roi_align.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tvmdml.enums import InterpolationMode, ReduceFunction
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.roi_align import RoiAlign, RoiAlign1, RoiAlignGrad
from tvmdml.proof.conformance.cases._common import LAYOUTS, Broken, Case, change
from tvmdml.tensors import TensorDataType, TensorDesc

NEAREST, LINEAR = InterpolationMode
AVERAGE, MAX = ReduceFunction.AVERAGE, ReduceFunction.MAX
MOST = (1 << 32) - 1

PLAIN: Mapping[str, Any] = {
    "reduction_function": AVERAGE,
    "interpolation_mode": LINEAR,
    "spatial_scale_x": 1.0,
    "spatial_scale_y": 0.75,
    "minimum_samples_per_output": 1,
    "maximum_samples_per_output": MOST,
}
OFFSETS: Mapping[str, Any] = {"input_pixel_offset": 0.5, "output_pixel_offset": -0.5, "align_regions_to_corners": False}


def described(
    cls: type[Operator], x: TensorDesc, regions: int = 5, parts: tuple[int, int] = (3, 2), layout: str = "packed", **changed: Any
) -> Operator:
    """An operator on images of these sizes, or on tensors of any rank."""
    batch = changed.pop("batch", TensorDataType.UINT32)
    outputs = changed.pop("outputs", (True, True))
    sizes = (*x.sizes, *(1,) * 4)[:4]
    whole = (regions, sizes[1], *parts)
    given: dict[str, Any] = {**PLAIN, **({} if cls is RoiAlign else OFFSETS)}
    laid = TensorDesc(x.data_type, whole if x.rank == 4 else (2,) * x.rank, LAYOUTS[layout](whole) if x.rank == 4 else None)
    ones = {"packed": 0, "padded": 1, "spread": 2, "transposed": 3}[layout]
    roi = TensorDesc(x.data_type, (*[1] * min(ones, 2), regions, 4))
    index = TensorDesc(batch, (*[1] * ones, regions))
    if cls is RoiAlignGrad:
        results = {
            "output_gradient_tensor": TensorDesc(x.data_type, x.sizes, LAYOUTS[layout](x.sizes)) if outputs[0] else None,
            "output_roi_gradient_tensor": roi if outputs[1] else None,
        }
        image = x if outputs[1] or changed.get("reduction_function") is MAX else None
        present = {name: one for name, one in results.items() if one is not None}
        return RoiAlignGrad.of(image, laid, roi, index, **present, **{**given, **changed})
    given["out_of_bounds_input_value"] = -1.5
    return cls.of(x, roi, index, output_tensor=laid, **{**given, **changed})


CLASSES: tuple[type[Operator], ...] = (RoiAlign, RoiAlign1, RoiAlignGrad)
DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {cls: partial(described, cls) for cls in CLASSES}
X = TensorDesc("float32", (2, 3, 6, 5))


def _broken(cls: type[Operator]) -> Iterator[tuple[str, Broken]]:
    name, good = cls.NAME, described(cls, X)
    level = str(cls.feature_level())
    yield (
        "before its level",
        Broken(
            lambda: good,
            f"{name} feature_level",
            "2.1",
            f"{level} and above",
            Unsupported,
            "2.1",
            "That level introduced the operator.",
        ),
    )
    for fields, where, shown, allowed in (
        ({"reduction_function": "sum"}, "reduction_function", "'sum'", "'average', 'max'"),
        ({"minimum_samples_per_output": 0}, "minimum_samples_per_output", "0", "1 to 65536"),
        ({"minimum_samples_per_output": 65537}, "minimum_samples_per_output", "65537", "1 to 65536"),
        (
            {"minimum_samples_per_output": 3, "maximum_samples_per_output": 2},
            "maximum_samples_per_output", "2", "3 or more, the least number of samples",
        ),
        (
            {"roi_tensor": TensorDesc("float32", (5, 3)), **({"output_roi_gradient_tensor": None} if cls is RoiAlignGrad else {})},
            "roi_tensor.sizes", "(5, 3)", "4 numbers for each region: x1, y1, x2, y2",
        ),
        ({"batch_indices_tensor": TensorDesc("uint32", (4,))}, "batch_indices_tensor.sizes", "4 indices", "5, one for each region"),
        ({"batch_indices_tensor": TensorDesc("uint32", (2, 5))}, "batch_indices_tensor.sizes", "(2, 5)", "1 before the last"),
    ):  # fmt: skip
        yield f"{where} {shown}", Broken(change(good, **fields), f"{name} {where}", shown, allowed)
    first = "input_gradient_tensor" if cls is RoiAlignGrad else "input_tensor"
    half = TensorDesc("float16", (5, 4))
    yield (
        "another type of the regions",
        Broken(change(good, roi_tensor=half), f"{name} roi_tensor.data_type", "float16", f"float32, as in {first}"),
    )
    if cls is RoiAlignGrad:
        none = change(good, output_gradient_tensor=None, output_roi_gradient_tensor=None)
        yield "no result", Broken(none, f"{name} output_gradient_tensor", "None", "a TensorDesc: at least one of both outputs")
        why = "a TensorDesc: the largest samples, and gradients of regions, depend on the images"
        yield "no images", Broken(change(good, input_tensor=None), f"{name} input_tensor", "None", why)
        other = TensorDesc("float32", (2, 3, 6, 6))
        yield (
            "other images",
            Broken(
                change(good, output_gradient_tensor=other),
                *(f"{name} output_gradient_tensor.sizes", "(2, 3, 6, 6)", "(2, 3, 6, 5), as in input_tensor"),
            ),
        )
        wrong = TensorDesc("float32", (5, 2, 3, 2))
        yield (
            "other channels",
            Broken(change(good, input_gradient_tensor=wrong), f"{name} input_gradient_tensor.sizes[:2]", "(5, 2)", "(5, 3)"),
        )
    else:
        wrong = TensorDesc("float32", (5, 2, 3, 2))
        allowed = "(5, 3), the regions and the channels"
        yield "other channels", Broken(change(good, output_tensor=wrong), f"{name} output_tensor.sizes[:2]", "(5, 2)", allowed)


BROKEN = {f"{cls.NAME}: {what}": rule for cls in CLASSES for what, rule in _broken(cls)}


def _ways(cls: type[Operator]) -> Iterator[dict[str, Any]]:
    """Both modes and both functions, few and many samples, and centres and corners."""
    numbers: tuple[dict[str, Any], ...] = (
        {},
        {"minimum_samples_per_output": 2, "maximum_samples_per_output": 2},
        {"spatial_scale_x": 7.3, "spatial_scale_y": 0.01, "minimum_samples_per_output": 3},
    )
    placed: tuple[dict[str, Any], ...] = ({},)
    if cls is not RoiAlign:
        placed = ({}, {"input_pixel_offset": 0.0, "output_pixel_offset": 0.25}, {"align_regions_to_corners": True})
    for mode, function in itertools.product((LINEAR, NEAREST), (AVERAGE, MAX)):
        for number, place in itertools.product(numbers, placed):
            yield {"interpolation_mode": mode, "reduction_function": function, **number, **place}
    if cls is not RoiAlign:
        yield {"align_regions_to_corners": True, "maximum_samples_per_output": 1, "parts": (1, 1)}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every way, with hostile numbers among the regions and the images; every type, layout and kind of index."""
    yield from dict.fromkeys(_reference(cls))


def _reference(cls: type[Operator]) -> Iterator[Case]:
    types = tuple(TensorDataType[name] for name in ("FLOAT32", "FLOAT16", "FLOAT64"))
    for number, way in enumerate(_ways(cls)):
        for fill in ("mixed", "normal", "special"):
            yield Case(described(cls, TensorDesc(types[number % 3] if fill == "mixed" else types[0], X.sizes), **way), fill)
    for data_type, layout in itertools.product(types, ("packed", "padded", "transposed", "spread")):
        x = TensorDesc(data_type, X.sizes, LAYOUTS[layout](X.sizes))
        yield Case(described(cls, x, layout=layout))
    yield Case(described(cls, TensorDesc("float32", X.sizes, LAYOUTS["outer repeated"](X.sizes))))
    kinds = ("INT32", "INT64", "UINT64")
    yield from (Case(described(cls, X, batch=TensorDataType[kind])) for kind in kinds)
    for sizes, regions, parts in (
        ((1, 1, 1, 1), 3, (2, 2)),
        ((1, 2, 1, 40), 4, (1, 7)),
        ((3, 20, 33, 21), 9, (7, 7)),
        ((1, 40, 14, 14), 30, (5, 3)),
        ((1, 2, 3, 64), 3, (2, 2)),
        ((1, 1, 5, 70), 3, (2, 2)),
    ):
        yield Case(described(cls, TensorDesc("float32", sizes), regions, parts), "normal")
    if cls is RoiAlignGrad:
        for outputs, function in itertools.product(((True, False), (False, True)), (AVERAGE, MAX)):
            yield Case(described(cls, X, outputs=outputs, reduction_function=function))
