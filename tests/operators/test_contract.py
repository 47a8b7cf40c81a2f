"""The contracts: what each feature level supports, and every rule violated once, with the expected message.

The violations are those that ``tvmdml conformance`` tests. Fields, levels, types and ranks are compared with ``catalogue.json``,
which has them in another form than the operators' own tables. A new operator needs no line here.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from catalogue import CATALOGUE, taken, written
from drawn import some_operators
from support import ALL, INT_MAX, INT_MIN, diagonal_desc, nonzero_desc, round_desc, top_k_desc

import tvmdml
from tvmdml import (
    AxisDirection,
    DiagonalMatrix,
    ElementWiseRound,
    FeatureLevel,
    InvalidArgument,
    Operator,
    RoundingMode,
    TensorDesc,
    TvmdmlError,
    Unsupported,
    operators,
)
from tvmdml.kernels import launched
from tvmdml.operators._contract import Role
from tvmdml.operators._frozen import Frozen
from tvmdml.proof.conformance import cases
from tvmdml.proof.conformance.rules import refusal

T = TensorDesc


def change(desc: Operator, **fields: Any) -> Operator:
    """The descriptor with some fields changed."""
    return dataclasses.replace(desc, **fields)  # type: ignore[type-var]


X = T("float32", (2, 3, 4, 5))
ROUND = round_desc(X)
TOP = top_k_desc(X, 1, 2, "increasing")
DIAGONAL = diagonal_desc(X, 1, 0, 1)
DIAGONAL_2_0 = DiagonalMatrix(output_tensor=X, offset=0, value=1)


# -- The catalogue ------------------------------------------------------------------------------------------------

OPERATORS = operators.all_operators()
each_operator = pytest.mark.each("name", OPERATORS)


def described(name: str) -> Operator:
    """A valid descriptor of an operator: its first tensor has a type and a rank that DirectML allows."""
    entry = CATALOGUE[name]
    first = next(field.dml_name for field in OPERATORS[name].fields() if field.role in (Role.INPUT, Role.OUTPUT))
    data_type, rank = min(entry.takes(FeatureLevel.LEVEL_6_4, first), key=lambda pair: (abs(pair[1] - 4), pair[0]))
    return cases.described(name)(T(data_type, (2, 3, 4, 5, 2, 1, 2, 1)[:rank]))


@each_operator
def test_fields_are_directmls_in_directmls_order(name: str) -> None:
    assert tuple(map(written, OPERATORS[name].fields())) == CATALOGUE[name].fields


@each_operator
def test_an_operator_came_with_its_level_and_may_be_in_place_where_directml_says_so(name: str) -> None:
    assert OPERATORS[name].feature_level() == CATALOGUE[name].level
    has_input = any(field.role is Role.INPUT for field in OPERATORS[name].fields())  # without one there is nothing to share
    assert bool(OPERATORS[name].SHARES) == (CATALOGUE[name].in_place and has_input)


@each_operator
def test_every_tensor_has_the_types_and_ranks_of_the_catalogue(name: str) -> None:
    tensors = [field for field in OPERATORS[name].fields() if field.role in (Role.INPUT, Role.OUTPUT)]
    for level, field in itertools.product(FeatureLevel, tensors):
        own, given = taken(OPERATORS[name], level, field.name), CATALOGUE[name].takes(level, field.dml_name)
        assert own == given, f"{field.dml_name} at {level}"


@some_operators(12)
def test_a_level_takes_exactly_the_types_and_ranks_of_the_catalogue(name: str) -> None:
    make = cases.described(name)
    names = {field.name: field.dml_name for field in OPERATORS[name].fields()}
    for level, data_type, rank in itertools.product(FeatureLevel, ALL, range(1, 9)):
        desc = make(T(data_type, (2,) * rank))
        tensors = [(names[field.partition("[")[0]], tensor) for field, tensor in desc.tensors() if tensor is not None]
        case = desc.function.name if hasattr(desc, "function") else ""
        if all((tensor.data_type, tensor.rank) in CATALOGUE[name].takes(level, field, case) for field, tensor in tensors):
            desc.validate(level)
        else:
            with pytest.raises(TvmdmlError):
                desc.validate(level)


@pytest.mark.parametrize("level", [level for level in FeatureLevel if level >= 0x3000], ids=str)
def test_dimension_counts_of_nonzero_may_differ_from_level_4_0(level: FeatureLevel) -> None:
    differing = nonzero_desc(T("float32", (2, 2, 2, 2)), rank=5)
    if level >= FeatureLevel.LEVEL_4_0:
        differing.validate(level)
    else:
        with pytest.raises(InvalidArgument, match=r"output_coordinates_tensor\.rank: given 5; allowed: 4, as in input_tensor\."):
            differing.validate(level)


# -- Every rule, broken once --------------------------------------------------------------------------------------


@each_operator
def test_a_broken_rule_is_refused_with_what_was_given_and_what_is_allowed(name: str) -> None:
    broken = cases.broken(name)
    assert len(broken) >= 3
    for rule, case in broken.items():
        assert not refusal(case, tvmdml.targets.resolve("cpu")), rule


def test_the_limits_of_each_rule_are_allowed() -> None:
    for desc in (
        change(TOP, k=3, output_value_tensor=X, output_index_tensor=T("uint32", X.sizes)),
        change(TOP, axis=3, k=1, **dict.fromkeys(["output_value_tensor"], T("float32", (2, 3, 4, 1))),
               output_index_tensor=T("uint32", (2, 3, 4, 1))),
        change(DIAGONAL, diagonal_fill_begin=INT_MIN, diagonal_fill_end=INT_MAX),
        change(DIAGONAL_2_0, offset=INT_MAX),
        change(DIAGONAL_2_0, offset=INT_MIN),
        change(DIAGONAL_2_0, value=1e39),
        change(DIAGONAL, value=2**1023),
        change(ROUND, input_tensor=T("float32", X.sizes, (0, 0, 0, 0))),
        change(ROUND, output_tensor=T("float32", X.sizes, (1, 2, 6, 24))),
        nonzero_desc(T("int8", (1, 1, 1, 1)), 1),
    ):  # fmt: skip
        desc.validate(FeatureLevel.LEVEL_6_4)


def test_the_value_of_diagonal_matrix_is_a_float_of_c() -> None:
    assert DiagonalMatrix(output_tensor=X, offset=0, value=0.1).value == 0.10000000149011612
    assert DiagonalMatrix(output_tensor=X, offset=0, value=1e39).value == float("inf")


# -- Descriptors as values ----------------------------------------------------------------------------------------


@each_operator
def test_an_operator_is_found_by_its_directml_name_in_any_case(name: str) -> None:
    for text in (name, name.lower(), f"DML_OPERATOR_{name}"):
        assert operators.by_name(text) is OPERATORS[name]
    assert getattr(tvmdml, OPERATORS[name].__name__) is OPERATORS[name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("DML_OPERATOR_NO_SUCH", ""), ("ROUND", "Did you mean ELEMENT_WISE_ROUND? "), ("gem", "Did you mean GEMM? ")],
)
def test_an_unknown_operator_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(Unsupported) as caught:
        operators.by_name(name)
    allowed = f"the names of DirectML's {len(OPERATORS)} operators. {meant}`tvmdml operators` lists them."
    assert str(caught.value) == f"operator: given {name!r}; allowed: {allowed}"


def test_files_are_found_by_what_they_quote_and_without_their_text() -> None:
    kinds = {kind: cls for cls in OPERATORS.values() for kind in cls.ONNX}
    assert {kind: operators.of_onnx(kind) for kind in kinds} == kinds
    assert all(operators.modules_quoting(kind) != operators.modules() for kind in kinds)
    assert operators.of_onnx("Loop") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "_quoting", dict)  # as if there were only bytecode
        for kind in ("Conv", "Tanh", "com.microsoft.Gelu"):
            assert operators.of_onnx.__wrapped__(kind) is kinds[kind]
        assert next(operators.modules_like("top_k")) == "top_k"


@each_operator
def test_a_descriptor_is_a_value(name: str) -> None:
    desc = described(name)
    same = pickle.loads(pickle.dumps(desc))
    assert same == desc
    assert hash(same) == hash(desc)
    assert dataclasses.replace(desc) == desc  # type: ignore[type-var]
    assert repr(desc).startswith(f"{type(desc).__name__}(")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(desc, desc.fields()[0].name, None)


@each_operator
def test_fields_are_named_and_all_but_optional_ones_needed(name: str) -> None:
    desc = described(name)
    given = {field.name: getattr(desc, field.name) for field in desc.fields()}
    with pytest.raises(TypeError):
        type(desc)(*given.values())
    for field in desc.fields():
        rest = {name: value for name, value in given.items() if name != field.name}
        if field.optional:
            type(desc)(**rest)
        else:
            with pytest.raises(TypeError, match=field.name):
                type(desc)(**rest)


def test_a_descriptor_class_is_as_a_dataclass_of_the_same_fields() -> None:
    class Same(Frozen):
        first: int
        second: float = 2.0

    frozen: Any = Same
    own: Any = dataclasses.make_dataclass("Same", [("first", "int"), ("second", "float", 2.0)], kw_only=True, frozen=True)
    own.__qualname__ = frozen.__qualname__ = "Same"
    assert inspect.signature(frozen) == inspect.signature(own)
    assert repr(frozen(first=1)) == repr(own(first=1)) == "Same(first=1, second=2.0)"
    assert dataclasses.asdict(frozen(first=1)) == {"first": 1, "second": 2.0}
    assert (frozen(first=1) == frozen(second=2, first=1), frozen(first=1) == frozen(first=2)) == (True, False)
    assert frozen(first=1) != own(first=1)
    for args, given in (((), {}), ((1,), {}), ((), {"first": 1, "third": 3}), ((), {"third": 3})):
        with pytest.raises(TypeError) as wanted:
            own(*args, **given)
        with pytest.raises(TypeError) as caught:
            frozen(*args, **given)
        assert str(caught.value).rpartition(".")[2] == str(wanted.value).rpartition(".")[2]


def test_enumerations_in_a_descriptor_may_be_names() -> None:
    assert round_desc(X, "DML_ROUNDING_MODE_TOWARD_ZERO").rounding_mode is RoundingMode.TOWARD_ZERO
    assert top_k_desc(X, 0, 1, "Decreasing").axis_direction is AxisDirection.DECREASING
    assert change(DIAGONAL, value_data_type="FLOAT32") == DIAGONAL


@pytest.mark.parametrize("desc", [None, "TOP_K1", ElementWiseRound, X], ids=["None", "a name", "a class", "a tensor"])
def test_compile_takes_a_descriptor_and_nothing_else(desc: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.compile(desc)
    assert str(caught.value).startswith(
        f"compile desc: given {type(desc).__name__}; allowed: an operator descriptor, such as tvmdml.TopK1(…)."
    )


@pytest.mark.parametrize("target", ["abacus", "", "cpu2"])
def test_an_unknown_target_is_answered_with_those_there_are(target: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.compile(ROUND, target)
    assert str(caught.value).startswith(f"target: given {target!r}; allowed: {', '.join(tvmdml.targets.kinds())}.")


@pytest.mark.parametrize("level", ["7.0", "newest", 3])
def test_an_unknown_feature_level_is_refused(level: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^feature_level: given .* allowed: 1\.0, .*6\.4\."):
        tvmdml.compile(ROUND, feature_level=level)


@pytest.mark.parametrize("compute", [lambda word: word * 2, lambda word: 1 - word, lambda word: word < 0, float])
def test_an_attribute_of_the_launch_says_how_it_is_read(compute: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"allowed: T\.like\(x, self\.alpha\)"):
        compute(launched.Word(0))


def test_a_changed_copy_has_a_text_of_its_own() -> None:
    first = tvmdml.ActivationLeakyRelu.of(tvmdml.TensorDesc("float32", (3,)), alpha=0.5)
    assert first.exactly() == first.exactly()
    changed = launched.with_fields(first, alpha=0.25)
    other = first.with_tensors(lambda tensor: tvmdml.TensorDesc(tensor.data_type, (4,)))
    assert len({first.exactly(), changed.exactly(), other.exactly()}) == 3
    assert copy.copy(first) == first
