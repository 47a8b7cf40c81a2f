"""Specs of packs: what they may contain, what it means, what is refused, and that a written spec reads back equal."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ALL, FLOATING, diagonal_desc, round_desc, tensor, top_k_desc

from tvmdml import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    ElementWiseRound,
    NonzeroCoordinates,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
    errors,
    operators,
)
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.packs import lines, spec
from tvmdml.packs.spec import KnobValues, Spec, Wanted
from tvmdml.tensors import ArrayTensorDesc

Draw = Callable[[st.SearchStrategy[Any]], Any]
TOP_K = 'operator = "TOP_K1"\ntypes = "float32"\nsizes = [2, 3]\nAxis = 1\n'


def read(text: str) -> Spec:
    return spec.parse(text, "pack.toml")


def product(text: str) -> list[str]:
    """The lines of what one table multiplies out to."""
    return [str(one.desc) + " in place" * one.in_place for one in read(f"[[operators]]\n{text}").wanted]


def refusal(text: str) -> str:
    with pytest.raises(errors.InvalidArgument) as caught:
        read(text)
    return str(caught.value)


# -- Exact descriptors --------------------------------------------------------------------------------------------

LINE = (
    '{ operator = "TOP_K1", InputTensor = "float32[2, 3]", OutputValueTensor = "float32[2, 1]", '
    'OutputIndexTensor = "uint32[2, 1]", Axis = 1, K = 1, AxisDirection = "DECREASING" }'
)


def test_a_line_is_a_descriptor_and_counts_once() -> None:
    desc = top_k_desc(TensorDesc("float32", (2, 3)), 1, 1, AxisDirection.DECREASING)
    assert read(f"kernels = [{LINE}, {LINE}]") == Spec(wanted=(Wanted(desc),))


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    wanted = (
        Wanted(round_desc(tensor("float64", (2, 3), "padded"), layout="padded"), True),
        Wanted(round_desc(tensor("float64", (2, 3), "padded"), layout="padded")),
        Wanted(top_k_desc(TensorDesc("int8", (4,)), 0, 2, "increasing", "uint64")),
    )
    targets = ("cpu:x86-64-v3", "cuda:sm_80,sm_90")
    knobs: KnobValues = {"top_k": {"algorithm": "sort", "room_per_k": 8}}
    spec.write(tmp_path / "pack.toml", [*wanted, *wanted], targets, knobs)
    assert spec.read(tmp_path / "pack.toml") == Spec(targets, wanted, knobs)
    assert (tmp_path / "pack.toml").read_text() == spec.text(wanted, targets, knobs)
    assert os.listdir(tmp_path) == ["pack.toml"]
    spec.write(tmp_path / "pack.toml", [])
    assert spec.read(tmp_path / "pack.toml") == Spec()


def test_only_what_reads_again_is_written(tmp_path: Path) -> None:
    wanted = [Wanted(top_k_desc(TensorDesc("int8", (4,)), 0, 2, "increasing"), True)]
    for arguments in ([wanted], [[], ["gpu"]], [[], ["cpu:\u00e4"]], [[], [], {"top_k": {"algorithm": "bubbles"}}]):
        with pytest.raises(errors.TvmdmlError):
            spec.write(tmp_path / "pack.toml", *arguments)
    assert os.listdir(tmp_path) == []


def test_a_description_of_an_array_and_a_buffer_is_written_as_a_tensor() -> None:
    given = ArrayTensorDesc(TensorDataType.FLOAT32, (1,), zero_dimensional=True)
    owned = TensorDesc("float32", (1,), None, 64, 16, "OWNED_BY_DML")
    expected = (Wanted(round_desc(TensorDesc("float32", (1,)))),)
    for desc in (round_desc(given), round_desc(owned)):
        assert read(spec.text([Wanted(desc)])).wanted == expected


@st.composite
def _sizes(draw: Draw, least: int = 1) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 6), min_size=least, max_size=8)))


@st.composite
def _tensors(draw: Draw, types: tuple[TensorDataType, ...], least: int = 1, output: bool = False) -> TensorDesc:
    sizes = draw(_sizes(least))
    layouts = ["packed", "padded", "transposed", "spread", "shuffled", *([] if output else ["broadcast outer", "broadcast inner"])]
    return tensor(draw(st.sampled_from(types)), sizes, draw(st.sampled_from(layouts)))


INTS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def _rounds(draw: Draw) -> Operator:
    layout = draw(st.sampled_from(["packed", "padded", "spread"]))
    return round_desc(draw(_tensors(FLOATING)), draw(st.sampled_from(RoundingMode)), layout)


@st.composite
def _top_ks(draw: Draw) -> Operator:
    x = draw(_tensors(ALL))
    axis = draw(st.integers(0, x.rank - 1))
    k = draw(st.integers(1, x.sizes[axis]))
    index = draw(st.sampled_from(["uint32", "uint64"]))
    desc = top_k_desc(x, axis, k, draw(st.sampled_from(AxisDirection)), index, draw(st.sampled_from(["packed", "padded"])))
    fields = {field.name: getattr(desc, field.name) for field in TopK.fields()}
    return TopK(**fields) if draw(st.booleans()) else desc


@st.composite
def _nonzeros(draw: Draw) -> Operator:
    x = draw(_tensors(ALL))
    columns = draw(st.integers(max(x.effective_rank, 1), x.rank))
    sizes = (*(1,) * draw(st.integers(0, 6)), x.element_count, columns)
    return NonzeroCoordinates(
        input_tensor=x,
        output_count_tensor=TensorDesc("uint32", (1,) * draw(st.integers(1, 8))),
        output_coordinates_tensor=tensor(draw(st.sampled_from(["uint32", "uint64"])), sizes, "packed"),
    )


@st.composite
def _diagonals(draw: Draw) -> Operator:
    x = draw(_tensors(ALL, least=2))
    bits = 8 * x.data_type.itemsize
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if x.data_type.is_signed else (0, 2**bits - 1)
    numbers = st.floats(allow_nan=False) | st.integers(-(2**200), 2**200) if x.data_type.is_float else st.integers(low, high)
    return DiagonalMatrix1(
        input_tensor=x if draw(st.booleans()) else None,
        output_tensor=tensor(x.data_type, x.sizes, draw(st.sampled_from(["packed", "padded"]))),
        value_data_type=x.data_type,
        value=draw(numbers),
        diagonal_fill_begin=draw(INTS),
        diagonal_fill_end=draw(INTS),
    )


@st.composite
def _old_diagonals(draw: Draw) -> Operator:
    sizes = tuple(draw(st.integers(1, 6)) for _ in range(4))
    value = draw(st.floats(width=32, allow_nan=False))
    return DiagonalMatrix(output_tensor=TensorDesc("float16", sizes), offset=draw(INTS), value=value)


VALID = {
    "DIAGONAL_MATRIX": _old_diagonals(),
    "DIAGONAL_MATRIX1": _diagonals(),
    "ELEMENT_WISE_ROUND": _rounds(),
    "NONZERO_COORDINATES": _nonzeros(),
    "TOP_K": _top_ks(),
    "TOP_K1": _top_ks(),
}


def test_every_operator_is_drawn_here() -> None:
    assert set(VALID) == set(operators.all_operators())


@settings(max_examples=60)
@given(descs=st.lists(st.one_of(*VALID.values()), max_size=3), data=st.data())
def test_any_descriptor_survives_the_way_through_a_spec(descs: list[Operator], data: st.DataObject) -> None:
    for desc in descs:
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    wanted = [Wanted(desc, spec.can_be_in_place(desc) and data.draw(st.booleans())) for desc in descs]
    text = spec.text(wanted)
    found = read(text).wanted
    assert [(one.desc.exactly(), one.in_place) for one in found] == [*dict.fromkeys((w.desc.exactly(), w.in_place) for w in wanted)]
    assert spec.text(found) == text


def test_numbers_that_toml_has_no_word_for_are_written() -> None:
    def filled(value: float) -> DiagonalMatrix1:
        return diagonal_desc(TensorDesc("float64", (2, 2)), value, 0, 1)

    values = [0.0, -0.0, 0, math.inf, -math.inf, math.nan, 1e300, 5e-324, 10**300]
    found = read(spec.text([Wanted(filled(value)) for value in values])).wanted
    assert [repr(one.desc.value) for one in found if isinstance(one.desc, DiagonalMatrix1)] == [repr(value) for value in values]


# -- Products -----------------------------------------------------------------------------------------------------


def test_lists_are_multiplied_out() -> None:
    found = read(
        """
        [[operators]]
        operator = "TOP_K1"
        types = ["float32", "float64"]
        sizes = [[32, 100], [1, 7]]
        k = [1, 5]
        axis = 1
        axis_direction = ["DECREASING"]
        OutputIndexTensor = ["uint64", "uint32"]
        """
    ).wanted
    expected = [
        Wanted(top_k_desc(TensorDesc(data_type, sizes), 1, k, "decreasing", index))
        for data_type in ("float32", "float64")
        for sizes in ((32, 100), (1, 7))
        for k in (1, 5)
        for index in ("uint64", "uint32")
    ]
    assert list(found) == expected


SIZES = {
    "[4]": [(4,)],
    "[4, 5]": [(4, 5)],
    "[[4, 5]]": [(4, 5)],
    "[[4], [5, 6]]": [(4,), (5, 6)],
    "[4, [5, 6]]": [(4, 5), (4, 6)],
    "[[[4, 5], [6, 7]]]": [(4, 6), (4, 7), (5, 6), (5, 7)],
    "[{ from = 2, to = 4 }]": [(2,), (3,), (4,)],
    "[3, { from = 1, to = 6, step = 2 }]": [(3, 1), (3, 3), (3, 5)],
    "[[{ from = 3, to = 50, times = 4 }], [7]]": [(3,), (12,), (48,), (7,)],
    "[{ from = 5, to = 5, times = 2 }]": [(5,)],
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes_may_be_lists_and_ranges(text: str) -> None:
    found = read(f'[[operators]]\noperator = "ELEMENT_WISE_ROUND"\ntypes = "float32"\nsizes = {text}').wanted
    assert [one.desc.outputs()[0].sizes for one in found] == SIZES[text]


def test_attributes_may_be_ranges() -> None:
    found = read(f"[[operators]]\n{TOP_K}K = {{ from = 1, to = 3 }}").wanted
    assert [one.desc.k for one in found if isinstance(one.desc, TopK1)] == [1, 2, 3]


def test_an_optional_tensor_may_be_there_or_not() -> None:
    table = 'operator = "DIAGONAL_MATRIX1"\ntypes = ["int64"]\nsizes = [4, 5]\nvalue = 1\ndiagonal_fill_end = 1\n'
    fields: dict[str, Any] = {"value_data_type": "int64", "value": 1, "diagonal_fill_begin": 0, "diagonal_fill_end": 1}
    matrix = TensorDesc("int64", (4, 5))
    without = Wanted(DiagonalMatrix1(output_tensor=matrix, **fields))
    with_input = Wanted(DiagonalMatrix1(input_tensor=matrix, output_tensor=matrix, **fields))
    assert read(f"[[operators]]\n{table}").wanted == (without,)
    assert read(f"[[operators]]\n{table}InputTensor = [true, false]").wanted == (with_input, without)


def test_a_tensor_may_be_given_exactly() -> None:
    table = 'operator = "NONZERO_COORDINATES"\ntypes = "int64"\nsizes = [2, 3]\nOutputCountTensor = "uint32[1]"\n'
    (one,) = read(f'[[operators]]\n{table}OutputCoordinatesTensor = "uint64[6, 2] strides [4, 1]"').wanted
    expected = NonzeroCoordinates(
        input_tensor=TensorDesc("int64", (2, 3)),
        output_count_tensor=TensorDesc("uint32", (1,)),
        output_coordinates_tensor=TensorDesc("uint64", (6, 2), (4, 1)),
    )
    assert one.desc == expected


def test_strides_and_in_place() -> None:
    table = 'operator = "ELEMENT_WISE_ROUND"\ntypes = "float16"\nsizes = [2, 3]\nRoundingMode = "TOWARD_ZERO"\n'
    strided, packed = TensorDesc("float16", (2, 3), (8, 1)), TensorDesc("float16", (2, 3))
    found = read(f"[[operators]]\n{table}strides = [[8, 1]]\nin_place = [false, true]").wanted
    mixed = ElementWiseRound(input_tensor=strided, output_tensor=packed, rounding_mode=RoundingMode.TOWARD_ZERO)
    one = ElementWiseRound(input_tensor=strided, output_tensor=strided, rounding_mode=RoundingMode.TOWARD_ZERO)
    assert found == (Wanted(mixed), Wanted(one, True))
    assert read(f"[[operators]]\n{table}in_place = true").wanted == (Wanted(round_desc(packed), True),)


def test_what_breaks_the_contract_is_refused_or_left_out() -> None:
    said = refusal(f"[[operators]]\n{TOP_K}K = [1, 4]")
    assert said.startswith(
        "pack.toml: operators[0] with types = float32, sizes = (2, 3), Axis = 1, K = 4: TOP_K1 k: given 4; allowed: 1 to 3"
    )
    assert "skip_invalid" in said
    found = read(f"[[operators]]\n{TOP_K}K = [0, 1, 4, 2]\nskip_invalid = true").wanted
    assert [one.desc.k for one in found if isinstance(one.desc, TopK1)] == [1, 2]


def test_products_have_a_limit_that_is_found_without_multiplying_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "{ from = 1, to = 4294967295 }"
    said = refusal(f'[[operators]]\noperator = "ELEMENT_WISE_ROUND"\ntypes = "float32"\nsizes = [{", ".join([whole] * 8)}]')
    assert "more than 10^18 combinations; allowed: at most 100000" in said
    monkeypatch.setattr(spec, "MAX_COMBINATIONS", 5)
    table = f"[[operators]]\n{TOP_K}K = [1, 2, 3]\n"
    assert len(read(table).wanted) == 3
    assert "given operators of 6 combinations; allowed: at most 5" in refusal(table * 2)


# -- What is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "kernel = []": "pack.toml: kernel: given an unknown field; .* Did you mean kernels?",
    "kernels = 3": r"pack.toml: kernels: given 3; allowed: a list",
    "kernels = [3]": r"pack.toml: kernels\[0\]: given 3",
    "kernels = [{}]": r"pack.toml: kernels\[0\]: operator: given None; allowed: a name, such as TOP_K1",
    'kernels = [{ operator = "NO_SUCH_OPERATOR" }]': r"pack.toml: kernels\[0\]: operator: given 'NO_SUCH_OPERATOR'; allowed: ",
    f"kernels = [{LINE.replace('Axis =', 'Axes =')}]": r"pack.toml: kernels\[0\]: Axes: .* Did you mean Axis?",
    f"kernels = [{LINE.replace('K = 1', 'K = 9')}]": r"pack.toml: kernels\[0\]: TOP_K1 k: given 9; allowed: 1 to 3",
    f"kernels = [{LINE.replace('[2, 3]', '[2 3]')}]": r"pack.toml: kernels\[0\]: ",
    f"kernels = [{LINE.replace('[2, 3]', '[' + '9' * 5000 + ']')}]": r"pack.toml: kernels\[0\]: ",
    f"kernels = [{LINE.replace('}', ', in_place = true }')}]": r"pack.toml: kernels\[0\]: given in_place = true for TOP_K1",
    "targets = 'cpu'": 'pack.toml: targets: given "cpu"; allowed: a list',
    "targets = ['gpu']": r"pack.toml: targets\[0\]: given \"gpu\"; allowed: cpu, cuda, vulkan",
    "[knobs]\ntopk = {}": "pack.toml: knobs.topk: .* Did you mean top_k?",
    "[knobs.top_k]\nalgorithms = 1": "pack.toml: knobs.top_k: top_k knob: given 'algorithms'; allowed: algorithm,",
    "[knobs.top_k]\nalgorithm = 'bubbles'": "knob algorithm: given 'bubbles'; allowed: 'auto'",
    "[knobs.top_k]\nalgorithm = ['sort']": "knob algorithm: given",
    "knobs.top_k = 3": "pack.toml: knobs.top_k: given 3",
    "operators = {}": "pack.toml: operators: given an empty object; allowed: a list",
    "[[operators]]": r"pack.toml: operators\[0\].operator: given nothing",
    "[[operators]]\noperator = 'TOPK1'": r"pack.toml: operators\[0\].operator: operator: given 'TOPK1'",
    "[[operators]]\noperator = 'TOP_K1'\ntypes = 'float32'": r"operators\[0\].sizes: given nothing",
    "[[operators]]\noperator = 'TOP_K1'\nsizes = [1]": r"operators\[0\].types: given nothing",
    f"[[operators]]\n{TOP_K}K = []": r"operators\[0\].K: given an empty list",
    f"[[operators]]\n{TOP_K}K = 1\nk = 1": r"operators\[0\].k: given a field that is given twice",
    f"[[operators]]\n{TOP_K}K = 1\nKs = 1": r"operators\[0\].Ks: given an unknown field; .* Did you mean K?",
    f"[[operators]]\n{TOP_K}K = {{ from = 1, too = 2 }}": r"operators\[0\].K.too: .* Did you mean to?",
    f"[[operators]]\n{TOP_K}K = {{ from = 1, to = 2, step = 0 }}": r"operators\[0\].K.step: given 0; allowed: an integer from 1",
    f"[[operators]]\n{TOP_K}K = {{ from = 1, to = 2, step = 1, times = 2 }}": "either a step, or times",
    f"[[operators]]\n{TOP_K}K = {{ from = 0, to = 2, times = 2 }}": "either a step, or times and numbers from 1",
    f"[[operators]]\n{TOP_K}K = {{ from = 2, to = 1 }}": r"K.to: given 1; allowed: an integer from 2",
    f"[[operators]]\n{TOP_K}K = 1\nin_place = true": "given in_place = true for TOP_K1; allowed: false",
    f"[[operators]]\n{TOP_K}K = 1\nin_place = 1": r"operators\[0\].in_place: given 1; allowed: true or false",
    f"[[operators]]\n{TOP_K}K = 1\nInputTensor = 'int8'": r"operators\[0\].InputTensor: given \"int8\"; allowed: true or false",
    f"[[operators]]\n{TOP_K}K = 1\nOutputIndexTensor = 'bool'": r"OutputIndexTensor: given \"bool\"; allowed: float32,",
    f"[[operators]]\n{TOP_K}K = 1\nOutputIndexTensor = 'uint32[2'": "Tensor: given 'uint32.2'; allowed: a type and sizes",
    f"[[operators]]\n{TOP_K}K = 1\nstrides = [1]": "strides = .1,., .*given 1 stride; allowed: 2",
    f"[[operators]]\n{TOP_K}K = 1.5": "K = 1.5: .*given 1.5; allowed: an integer from 0",
    f"[[operators]]\n{TOP_K.replace('Axis = 1', 'Axis = -1')}K = 1": "Axis: given -1; allowed: an integer from 0",
    f"[[operators]]\n{TOP_K.replace('[2, 3]', '[[2, 3], []]')}K = 1": r"operators\[0\].sizes: given an empty list",
    f"[[operators]]\n{TOP_K.replace('[2, 3]', '[2, 0]')}K = 1": r"operators\[0\].sizes\[1\]: given 0; allowed: an integer from 1",
    f"[[operators]]\n{TOP_K.replace('[2, 3]', '3')}K = 1": r"operators\[0\].sizes: given 3; allowed: a list",
    "kernels = [": "pack.toml: given text that is not valid TOML",
    "a = 1\na = 1": "pack.toml: given text that is not valid TOML",
    "a = " + "9" * 5000: "pack.toml: given text that is not valid TOML",
    "a = 0x" + "f" * 5000: "pack.toml: given a int, 1 levels deep; allowed: .*ordinary numbers",
    "a = " + "[" * 5000: "pack.toml: given TOML that is nested too deeply",
    "a = " + "[" * 20 + "]" * 20: "pack.toml: given a list, 16 levels deep",
    "a." * 5000 + "a = 1": "pack.toml: given a key of more than 256 parts",
    "a = 1979-05-27": "pack.toml: given a date, 1 levels deep",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_what_is_wrong_is_said_with_its_place(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=REFUSED[text]):
        read(text)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "large.toml").write_text("#" * 100)
    os.mkfifo(tmp_path / "pipe.toml")
    monkeypatch.setattr(spec, "MAX_SPEC_BYTES", 99)
    for name in ("missing.toml", "bytes.toml", "large.toml", "pipe.toml", ".", "a\0b"):
        with pytest.raises(errors.InvalidArgument, match="allowed: a file of TOML of at most"):
            spec.read(tmp_path / name)


# -- Hostile specs --------------------------------------------------------------------------------------------------

NAMES = ("TOP_K1", "ELEMENT_WISE_ROUND", "NONZERO_COORDINATES", "DIAGONAL_MATRIX1", "DIAGONAL_MATRIX", "DECREASING", "TOWARD_ZERO")
TENSORS = ("float32", "INT64", "uint64[2, 1]", "float32[2, 3]", "float32[2, 3] strides [3, 1]")
WORDS = st.sampled_from([*NAMES, *TENSORS, "nan", "-inf", "", "[", "cpu", "cuda:\0", "\ud800"])
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**32, 2**64, 10**300, 2**5000, 1.5, math.nan, math.inf, True, False])
PARTS = st.sampled_from(["from", "to", "step", "times", "Type", "UInt16"])
VALUES = st.recursive(
    WORDS | NUMBERS | st.none() | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PARTS, inner, max_size=3),
    max_leaves=6,
)
OWN = ("operator", "types", "sizes", "strides", "in_place", "skip_invalid")
KEYS = [*OWN, *(field.dml_name for cls in operators.all_operators().values() for field in cls.fields()), "k", "\n"]
TABLES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)


@st.composite
def _nearly(draw: Draw) -> dict[str, Any]:
    """A table that means something, but for a few of its values."""
    table = {"operator": "TOP_K1", "types": "float32", "sizes": [2, 3], "Axis": 1, "K": 1}
    return {**table, **draw(st.dictionaries(st.sampled_from([*table, "OutputIndexTensor", *OWN[3:]]), VALUES, max_size=2))}


@st.composite
def _nearly_a_line(draw: Draw) -> dict[str, Any]:
    desc = draw(st.one_of(*VALID.values()))
    line = lines.of(desc)
    return {**line, **draw(st.dictionaries(st.sampled_from([*line, "in_place"]), VALUES, min_size=1, max_size=2))}


MODULES = st.sampled_from(["top_k", "_contract", "top_k.x", ""])
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "targets": VALUES | st.lists(WORDS, max_size=2),
        "kernels": VALUES | st.lists(TABLES | _nearly_a_line(), max_size=2),
        "operators": VALUES | st.lists(TABLES | _nearly(), max_size=2),
        "knobs": VALUES | st.dictionaries(MODULES, VALUES | st.dictionaries(WORDS, VALUES)),
    },
)


def read_or_refused(given: Any) -> Spec | None:
    """The spec, or nothing where it is refused as it should be."""
    try:
        return spec.parse(given, "pack.toml")
    except errors.InvalidArgument as error:
        said = str(error)
    assert said.startswith("pack.toml: ")
    return None


@settings(max_examples=300)
@given(mapping=SPECS)
def test_a_hostile_mapping_is_refused_or_read(mapping: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "MAX_COMBINATIONS", 64)
        found = read_or_refused(mapping)
    if found is not None:
        again = read(spec.text(found.wanted, found.targets, found.knobs))
        assert [one.line for one in again.wanted] == [one.line for one in found.wanted]


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("\n[]{}=.,\"'#\\ kernelsoperators01_\0\u2028"), max_size=60))
def test_hostile_text_is_refused_or_read(text: str) -> None:
    read_or_refused(text)
