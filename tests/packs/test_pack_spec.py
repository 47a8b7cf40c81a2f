"""Specs of packs: what they may contain, what it means, what is refused, and that a written spec reads back equal."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn import relaid
from hypothesis import given, settings
from hypothesis import strategies as st
from support import IN_PLACE, diagonal_desc, round_desc, tensor, top_k_desc

from tvmdml import (
    AxisDirection,
    DiagonalMatrix1,
    ElementWiseRound,
    NonzeroCoordinates,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK1,
    errors,
    operators,
)
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.library import spec
from tvmdml.library.spec import KnobValues, Spec, Wanted
from tvmdml.operators._shared import ways
from tvmdml.proof.conformance import cases
from tvmdml.proof.conformance.cases import Case
from tvmdml.tensors import ArrayTensorDesc

Draw = Callable[[st.SearchStrategy[Any]], Any]
TOP_K = 'operator = "TOP_K1"\ntypes = "float32"\nsizes = [2, 3]\nAxis = 1\n'


def read(text: str) -> Spec:
    return spec.parse(text, "pack.toml")


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
        Wanted(round_desc(tensor("float64", (2, 3), "padded"), layout="padded"), IN_PLACE),
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
    wanted = [Wanted(top_k_desc(TensorDesc("int8", (4,)), 0, 2, "increasing"), (("input_tensor", "output_value_tensor"),))]
    for arguments in ([wanted], [[], ["gpu"]], [[], ["cpu:\u00e4"]], [[], [], {"top_k": {"algorithm": "bubbles"}}]):
        with pytest.raises(errors.TvmdmlError):
            spec.write(tmp_path / "pack.toml", *arguments)
    assert os.listdir(tmp_path) == []


def test_a_description_of_an_array_and_a_buffer_is_written_as_a_tensor() -> None:
    given = ArrayTensorDesc(TensorDataType.FLOAT32, (1,), zero_dimensional=True)
    buffer = TensorDesc("float32", (1,), None, 64, 16)
    expected = (Wanted(round_desc(TensorDesc("float32", (1,)))),)
    for desc in (round_desc(given), round_desc(buffer)):
        assert read(spec.text([Wanted(desc)])).wanted == expected


def test_an_input_that_never_changes_is_written_as_such() -> None:
    for strides, said in ((None, "float32[1] owned"), ((4,), "float32[1] strides [4] owned")):
        x = TensorDesc("float32", (1,), strides, flags="OWNED_BY_DML")
        wanted = Wanted(dataclasses.replace(round_desc(TensorDesc("float32", (1,))), input_tensor=x))
        text = spec.text([wanted])
        assert f'"{said}"' in text
        assert read(text).wanted == (wanted,)


@st.composite
def _described(draw: Draw) -> Operator:
    """A descriptor of any operator: that of one of its conformance cases, with other strides."""
    name = draw(st.sampled_from([*operators.all_operators()]))
    found = draw(st.sampled_from(_cases(name)))
    return relaid(found, draw(st.randoms(use_true_random=False))).desc


@functools.cache
def _cases(name: str) -> tuple[Case, ...]:
    """Some of an operator's cases."""
    found = list(cases.reference(name))
    return tuple(found[:: -(-len(found) // 100)])


@pytest.mark.full
@settings(max_examples=20)
@given(descs=st.lists(_described(), max_size=3), data=st.data())
def test_any_descriptor_survives_the_way_through_a_spec(descs: list[Operator], data: st.DataObject) -> None:
    for desc in descs:
        desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    wanted = [Wanted(desc, data.draw(st.sampled_from([*ways(desc)]))) for desc in descs]
    text = spec.text(wanted)
    found = read(text).wanted
    assert [(one.desc.exactly(), one.shared) for one in found] == [*dict.fromkeys((w.desc.exactly(), w.shared) for w in wanted)]
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
    assert found == (Wanted(mixed), Wanted(one, IN_PLACE))
    assert read(f"[[operators]]\n{table}in_place = true").wanted == (Wanted(round_desc(packed), IN_PLACE),)


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
