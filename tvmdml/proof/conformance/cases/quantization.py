"""The operators of ``operators/quantization.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tvmdml.enums import QuantizationType
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators import quantization as own
from tvmdml.proof.conformance.cases import _pointwise
from tvmdml.proof.conformance.cases._common import DISTINCT, FLOATING, ODD, Broken, Case, Sizes, change, tensor
from tvmdml.tensors import TensorDataType, TensorDesc

ELEMENT_WISE = _pointwise.of("quantization")

BLOCKED = (own.Quantize, own.Dequantize)
QUANTIZED = tuple(TensorDataType[name] for name in ("UINT8", "INT8", "UINT4", "INT4"))
SIZES = (6, 8, 33)
SCALES: tuple[Sizes, ...] = ((1, 1, 1), (6, 1, 1), (1, 8, 1), (1, 4, 3), (3, 8, 11), (6, 8, 33), (2, 3, 33), (6, 8, 4))
"""For the whole tensor, for rows, for whole blocks, for each element, and for blocks of which the last has fewer elements."""


def blocked(cls: Any, floats: Any, quantized: Any, sizes: Sizes, scales: Sizes, zero_point: bool = True, *layouts: str) -> Operator:
    """A descriptor; ``layouts`` are those of the input, the output, the scale and the zero point, which are packed otherwise."""
    ends = (floats, quantized) if cls is own.Quantize else (quantized, floats)
    of = (*layouts, *["packed"] * (4 - len(layouts)))
    kinds = [floats, quantized] if zero_point else [floats]
    return cls(
        input_tensor=tensor(ends[0], sizes, of[0]),
        quantization_type=QuantizationType.SCALE_ZERO_POINT if zero_point else QuantizationType.SCALE,
        quantization_tensors=[tensor(kind, scales, layout) for kind, layout in zip(kinds, of[2:], strict=False)],
        output_tensor=tensor(ends[1], sizes, of[1]),
    )


def _described(cls: Any) -> Callable[[TensorDesc], Operator]:
    def described(x: TensorDesc) -> Operator:
        floats, quantized = ("float32", x.data_type) if cls is own.Dequantize else (x.data_type, "int8")
        return blocked(cls, floats, quantized, x.sizes, (1,) * x.rank)

    return described


DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {
    **ELEMENT_WISE.described,
    **{cls: _described(cls) for cls in BLOCKED},
}


# -- Rules --------------------------------------------------------------------------------------------------------


def _linear(cls: Any) -> Broken:
    """Before 6.2 the zero point was not optional."""
    floats, quantized = TensorDesc("float32", (2, 3)), TensorDesc("int8", (2, 3))
    ends = (floats, quantized) if cls is own.ElementWiseQuantizeLinear else (quantized, floats)
    return Broken(
        lambda: cls(input_tensor=ends[0], scale_tensor=floats, output_tensor=ends[1]),
        *(f"{cls.NAME} zero_point_tensor", "None", "a TensorDesc, at feature level 6.1", InvalidArgument, "6.1"),
        "It is optional from 6.2.",
    )


def _rules(cls: Any) -> Iterator[tuple[str, Broken]]:
    good = blocked(cls, "float32", "int8", SIZES, (1, 4, 3))
    scale, zero_point = good.quantization_tensors  # type: ignore[attr-defined]
    side, other = good.sides()  # type: ignore[attr-defined]
    parameters = f"{cls.NAME} quantization_tensors"
    yield (
        "before its level",
        Broken(
            lambda: good,
            f"{cls.NAME} feature_level",
            "6.2",
            "6.3 and above",
            Unsupported,
            "6.2",
            "That level introduced the operator.",
        ),
    )
    yield (
        "no type of quantization",
        Broken(change(good, quantization_type="none"), f"{cls.NAME} quantization_type", "none", "'scale', 'scale_zero_point'"),
    )
    for count, given in ((1, (scale,)), (3, (scale, zero_point, zero_point))):
        shown = f"{count} tensor{'s' * (count != 1)}"
        yield f"{count} parameters", Broken(change(good, quantization_tensors=given), parameters, shown, "2: scale, zero_point")
    strange = (
        ("another type of scale", 0, "data_type", TensorDesc("float16", scale.sizes), "float16", f"float32, as in {side}"),
        ("another type of zero point", 1, "data_type", TensorDesc("uint8", scale.sizes), "uint8", f"int8, as in {other}"),
        ("another rank", 0, "sizes", TensorDesc("float32", (4, 3)), "(4, 3)", "3 sizes, as in input_tensor"),
        ("other zero points", 1, "sizes", TensorDesc("int8", (1, 1, 1)), "(1, 1, 1)", "(1, 4, 3), as in quantization_tensors[0]"),
        ("no blocks", 0, "sizes", TensorDesc("float32", (1, 7, 3)), "(1, 7, 3)", f"numbers of equal blocks of {SIZES}"),
        ("too many scales", 0, "sizes", TensorDesc("float32", (7, 1, 1)), "(7, 1, 1)", f"numbers of equal blocks of {SIZES}"),
    )
    for name, i, what, found, shown, allowed in strange:
        both = (found, zero_point) if i == 0 else (scale, found)
        yield name, Broken(change(good, quantization_tensors=both), f"{parameters}[{i}].{what}", shown, allowed)
    ends = {name: getattr(good, name).data_type for name in ("input_tensor", "output_tensor")}
    yield (
        "another shape of the output",
        Broken(
            change(good, output_tensor=TensorDesc(ends["output_tensor"], (8, 6, 33))),
            *(f"{cls.NAME} output_tensor.sizes", "(8, 6, 33)", f"{SIZES}, as in input_tensor"),
        ),
    )
    yield (
        "repeated elements of the output",
        Broken(
            change(good, output_tensor=TensorDesc(ends["output_tensor"], SIZES, (0, 33, 1))),
            *(f"{cls.NAME} output_tensor", f"strides (0, 33, 1) for sizes {SIZES}", DISTINCT),
            advice="Only inputs may repeat elements.",
        ),
    )
    for name in ends:
        role = f"{name.partition('_')[0]} tensor: a TensorDesc"
        yield f"no {name}", Broken(change(good, **{name: None}), f"{cls.NAME} {name}", "None", role)


BROKEN: dict[str, Broken] = {
    **ELEMENT_WISE.broken,
    **{
        f"{cls.NAME}: no zero point before 6.2": _linear(cls)
        for cls in (own.ElementWiseQuantizeLinear, own.ElementWiseDequantizeLinear)
    },
    **{f"{cls.NAME}: {name}": rule for cls in BLOCKED for name, rule in _rules(cls)},
}


# -- Reference cases ----------------------------------------------------------------------------------------------


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every pair of types with whole blocks; all kinds of blocks, layouts and ranks for some pairs."""
    yield from ELEMENT_WISE.reference(cls)
    if cls not in BLOCKED:
        return
    for floats, quantized in itertools.product(FLOATING, QUANTIZED):
        for zero_point in (True, False):
            desc = blocked(cls, floats, quantized, (16, 256), (16, 8), zero_point)
            yield from (Case(desc, fill) for fill in ("bits", "special", "normal"))
    for wide, narrow in (("float32", "uint8"), ("float16", "int8"), ("float32", "int4"), ("float16", "uint4")):
        yield from (Case(blocked(cls, wide, narrow, SIZES, scales)) for scales in SCALES)
        yield from (Case(blocked(cls, wide, narrow, SIZES, scales, False)) for scales in SCALES)
        for scales in ((1, 4, 3), (6, 8, 4)):
            for layout in ("padded", "transposed", "spread"):
                yield Case(blocked(cls, wide, narrow, SIZES, scales, True, layout, "packed", "transposed", "padded"))
                yield Case(blocked(cls, wide, narrow, SIZES, scales, True, "outer repeated", layout, "inner repeated"))
        for sizes in ODD.values():
            yield Case(blocked(cls, wide, narrow, sizes, tuple(-(-n // 2) for n in sizes)))
            yield Case(blocked(cls, wide, narrow, sizes, (1,) * len(sizes)))
        yield Case(blocked(cls, wide, narrow, (4,) * 8, (2,) * 8))  # too many dimensions for strides
    yield Case(blocked(cls, "float16", "uint8", (1024, 4096), (1024, 128)), "normal")
