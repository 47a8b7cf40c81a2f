"""Tensors in the same memory: pairs of an input and an output, of operators with several of them, through every way of running."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specimens
from support import IN_PLACE, assert_same_bits, round_desc, seeded

import tvmdml
from tvmdml import InvalidArgument, Operator, TensorDesc, functions, operators, packs, targets
from tvmdml.library import lines, logs, records, spec
from tvmdml.library.log_terms import Job
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators._contract import Role, Shared
from tvmdml.operators._shared import check, read, ways, write
from tvmdml.operators._trial import OperatorTrial, any_values
from tvmdml.packs import verify
from tvmdml.proof.conformance.references import tried
from tvmdml.targets import Target
from tvmdml.tensors import arrays
from tvmdml.tuning import parcels, trials
from tvmdml.tuning.stand import Stand

Array = np.ndarray[Any, np.dtype[Any]]
A, B = ("a_tensor", "output_tensor"), ("b_tensor", "output_tensor")
BINARY = (specimens.Mixed, specimens.MixedByFamily)
binaries = pytest.mark.parametrize("cls", BINARY, ids=["default schedule", "family"])


def binary(cls: Any, *tensors: TensorDesc) -> Any:
    """The operator with these tensors: of a, b and the output; one tensor stands for all."""
    a, b, out = tensors * (3 if len(tensors) == 1 else 1)
    return cls(a_tensor=a, b_tensor=b, output_tensor=out)


def parted(tensor: TensorDesc) -> specimens.Parted:
    return specimens.Parted(a_tensor=tensor, b_tensor=tensor, first_tensor=tensor, second_tensor=tensor)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The specimens are among the operators."""
    more = (*BINARY, specimens.Parted, specimens.Joined)
    found = {**operators.all_operators(), **{cls.NAME: cls for cls in more}}
    monkeypatch.setattr(operators, "all_operators", lambda: found)


# -- Which tensors may --------------------------------------------------------------------------------------------

X = TensorDesc("float32", (3, 4))


def test_either_input_or_both_may_be_in_the_output_s_memory() -> None:
    assert [*ways(binary(specimens.Mixed, X))] == [(), (B,), (A,), (A, B)]
    assert [*ways(round_desc(X))] == [(), IN_PLACE]


@pytest.mark.parametrize(
    ("b", "allowed"),
    [
        (TensorDesc("float32", (3, 4), (0, 1)), (A,)),
        (TensorDesc("float32", (3, 4), (1, 3)), (A,)),
        (TensorDesc("float16", (3, 4)), (A,)),
        (TensorDesc("int32", (3, 4)), (A,)),
        (TensorDesc("float32", (4, 3)), (A,)),
        (TensorDesc("float32", (3, 4), (4, 1)), (A, B)),
    ],
    ids=["broadcast", "transposed", "narrower", "another type of the same width", "other sizes", "strides of a packed tensor"],
)
def test_only_tensors_of_the_same_type_sizes_and_strides_share(b: TensorDesc, allowed: Shared) -> None:
    assert binary(specimens.Mixed, X, b, X).shareable() == allowed


def test_the_stride_of_a_dimension_of_size_1_does_not_count() -> None:
    one, other = TensorDesc("float32", (1, 4), (77, 1)), TensorDesc("float32", (1, 4))
    assert binary(specimens.Mixed, one, other, one).shareable() == (A, B)


def test_each_input_has_one_output_at_most() -> None:
    found = [dict(shared) for shared in ways(parted(X))]
    assert len(found) == 9
    assert {tuple(sorted(one.items())) for one in found} == {
        tuple((name, output) for name, output in (("a_tensor", a), ("b_tensor", b)) if output)
        for a, b in itertools.product(("", "first_tensor", "second_tensor"), repeat=2)
    }


def test_a_field_of_several_tensors_stands_for_each() -> None:
    desc = specimens.Joined(input_tensors=(X, TensorDesc("float32", (3, 4), (9, 1)), X), output_tensor=X)
    assert desc.shareable() == (("input_tensors[0]", "output_tensor"), ("input_tensors[2]", "output_tensor"))
    assert desc.positions(desc.shareable()) == ((0, 0), (2, 0))
    assert [write(desc, shared) for shared in ways(desc)] == [
        False, "InputTensors[2]=OutputTensor", True, "InputTensors[0]=OutputTensor, InputTensors[2]=OutputTensor",
    ]  # fmt: skip
    assert [read(desc, write(desc, shared), "here") for shared in ways(desc)] == [*ways(desc)]


# -- In files -----------------------------------------------------------------------------------------------------


def test_a_file_s_word_is_true_for_the_first_pair_and_names_for_others() -> None:
    desc = binary(specimens.Mixed, X)
    assert [write(desc, shared) for shared in ((), (A,), (B,), (A, B))] == [
        False, True, "BTensor=OutputTensor", "ATensor=OutputTensor, BTensor=OutputTensor",
    ]  # fmt: skip
    assert [read(desc, write(desc, shared), "here") for shared in ways(desc)] == [*ways(desc)]
    assert read(desc, " BTensor=OutputTensor ,ATensor=OutputTensor", "here") == (A, B), "in any order"


@pytest.mark.parametrize(
    "given",
    ["", "BTensor",
     "OutputTensor=BTensor", "b_tensor=output_tensor", "BTensor=OutputTensor,", "BTensor=OutputTensor, BTensor=OutputTensor",
     1, None, ["BTensor=OutputTensor"], {"BTensor": "OutputTensor"}],
)  # fmt: skip
def test_other_words_are_refused(given: object) -> None:
    with pytest.raises(
        InvalidArgument, match=r'^here: given in_place = .* for SPECIMEN_MIXED; allowed: false, "ATensor=OutputTensor"'
    ):
        read(binary(specimens.Mixed, X), given, "here")


def test_pairs_that_this_descriptor_does_not_have_are_refused() -> None:
    repeated = binary(specimens.Mixed, X, TensorDesc("float32", (3, 4), (0, 1)), X)
    with pytest.raises(InvalidArgument, match=r'^here: given in_place = .*; allowed: false, "ATensor=OutputTensor"\. '):
        read(repeated, "BTensor=OutputTensor", "here")
    with pytest.raises(InvalidArgument, match=r"^here: given in_place = true for TOP_K1; allowed: false\. "):
        read(tvmdml.TopK1(input_tensor=X, output_value_tensor=X, output_index_tensor=TensorDesc("uint32", (3, 4)), axis=1, k=4,
                          axis_direction=tvmdml.AxisDirection.DECREASING), True, "here")  # fmt: skip
    for shared in (True, A, (("a_tensor", "nothing"),), (A, A), "AB", 5):
        with pytest.raises(InvalidArgument, match=r"^here: given in_place = "):
            check(binary(specimens.Mixed, X), shared, "here")
    both = (("a_tensor", "first_tensor"), ("a_tensor", "second_tensor"))
    with pytest.raises(InvalidArgument, match="once each"):
        check(parted(X), both, "here")


KEYS_OF_OLDER_PACKS = ["e86046d0cab1f7fc3dbc0a84532c39a8", "036a3c8e48cf66ddbad6156125641655"]
"""Of packs from before an operation could have other pairs than the first input and output."""


def test_older_packs_are_found_by_the_same_keys() -> None:
    line = lines.of(round_desc(X))
    keys = [records.operation_key("cpu:x86-64", line, in_place).hex() for in_place in (False, True)]
    assert keys == KEYS_OF_OLDER_PACKS


def test_a_spec_says_which_tensors_share() -> None:
    wanted = tuple(Wanted(binary(specimens.Mixed, X), shared) for shared in ways(binary(specimens.Mixed, X)))
    text = spec.text(wanted)
    assert [line.partition("in_place")[2] for line in text.splitlines()[1:-1]] == [
        "", ' = "BTensor=OutputTensor" },', " = true },", ' = "ATensor=OutputTensor, BTensor=OutputTensor" },',
    ]  # fmt: skip
    assert spec.parse(text, "pack.toml").wanted == wanted
    product = 'operator = "SPECIMEN_MIXED"\ntypes = "float32"\nsizes = [3, 4]\n'
    found = spec.parse(f'[[operators]]\n{product}in_place = [false, true, "BTensor=OutputTensor"]', "pack.toml").wanted
    assert [one.shared for one in found] == [(), (A,), (B,)]
    for text, said in (
        (
            f"[[operators]]\n{product}in_place = 1",
            r"operators\[0\]\.in_place: given 1; allowed: true or false, or the pairs of tensors",
        ),
        (
            f'[[operators]]\n{product}in_place = "C=D"',
            r"operators\[0\]: given in_place = 'C=D' for SPECIMEN_MIXED; allowed: false, ",
        ),
    ):
        with pytest.raises(InvalidArgument, match=said):
            spec.parse(text, "pack.toml")


# -- Results ------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "packed": TensorDesc("float32", (1000,)),
    "short": TensorDesc("float16", (3,)),
    "parts of lines": TensorDesc("float64", (5, 3, 77)),
    "padded": TensorDesc("float32", (40, 50), (64, 1)),
    "transposed": TensorDesc("float32", (70, 45), (1, 70)),
    "spread": TensorDesc("float16", (9, 31), (93, 3)),
}


def problem(desc: Operator, target: Target, shared: Shared) -> str:
    values = functools.partial(any_values, seeded(desc.exactly(), shared))
    return tried(desc, target, OperatorTrial(desc, shared, values, flushed=target.flushed()))


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_way_gives_the_reference_s_results(layout: str, target: Target) -> None:
    """With the default schedule; test_pointwise.py has the family's."""
    desc = binary(specimens.Mixed, LAYOUTS[layout])
    for shared in ways(desc):
        assert not problem(desc, target, shared), shared


@pytest.mark.full
@pytest.mark.parametrize("layout", ["packed", "parts of lines", "transposed", "spread"])
def test_two_outputs_each_in_an_input_s_memory(layout: str, target: Target) -> None:
    desc = parted(LAYOUTS[layout])
    for shared in ways(desc):
        assert not problem(desc, target, shared), shared


@pytest.mark.full
def test_the_default_schedule_s_outputs_do_not_disturb_each_other(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """``computation`` reads every input before it writes an output."""
    monkeypatch.setattr(specimens.Parted, "FAMILY", "")
    desc = parted(TensorDesc("float32", (5, 7)))
    for shared in ways(desc):
        assert not problem(desc, target, shared), shared


# -- A compiled operator ------------------------------------------------------------------------------------------


def three(shape: tuple[int, ...] = (4, 5)) -> tuple[Array, Array, Array]:
    rng = seeded(shape)
    a, b = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    return a, b, a + a - b


@pytest.mark.full(first=1)
@binaries
def test_arrays_that_are_the_same_are_seen(cls: Any, target: Target) -> None:
    run = tvmdml.compile(binary(cls, TensorDesc("float32", (4, 5))), target)
    a, b, expected = three()
    for call in (run, lambda *x: run.bind(*x)()):
        x, y = a.copy(), b.copy()
        call(x, y, x)
        assert_same_bits(x, expected)
        assert_same_bits(y, b)
        x = a.copy()
        call(x, y, y)
        assert_same_bits(y, expected)
        assert_same_bits(x, a)
        call(x, x, x)
        assert_same_bits(x, a)
        out = np.empty_like(a)
        call(a, a, out)
        assert_same_bits(out, a)


@binaries
def test_an_output_over_a_part_of_an_input_is_refused(cls: Any) -> None:
    run = tvmdml.compile(binary(cls, TensorDesc("float32", (6,))), "cpu")
    memory = np.arange(16, dtype=np.float32)
    x, y, apart = memory[:6], memory[2:8], np.zeros(6, np.float32)
    for given, field in (
        ((x, apart, y), "a_tensor"),
        ((apart, x, y), "b_tensor"),
        ((x, y, x), "b_tensor"),
        ((y, x, x), "a_tensor"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            run(*given)
        assert str(caught.value) == (
            f"{cls.NAME} output_tensor: given memory that overlaps {field}; "
            "allowed: separate memory, or exactly the input's memory."
        )
    assert_same_bits(memory, np.arange(16, dtype=np.float32))
    run(x, y, apart)  # inputs may overlap
    assert_same_bits(apart, x + x - y)


def test_a_broadcast_input_in_the_output_s_memory_is_refused() -> None:
    x = TensorDesc("float32", (3, 4))
    run = tvmdml.compile(binary(specimens.MixedByFamily, x, TensorDesc("float32", (3, 4), (0, 1)), x), "cpu")
    a = np.zeros((3, 4), np.float32)
    with pytest.raises(InvalidArgument, match=r"given memory that overlaps b_tensor; allowed: separate memory\.$"):
        run(a, np.broadcast_to(a[0], (3, 4)), a)


def test_outputs_each_take_the_memory_of_an_input(target: Target) -> None:
    run = tvmdml.compile(parted(TensorDesc("float32", (4, 5))), target)
    a, b, expected = three()
    for swapped in (False, True):
        x, y = a.copy(), b.copy()
        first, second = (y, x) if swapped else (x, y)
        run(x, y, first, second)
        assert_same_bits(first, expected)
        assert_same_bits(second, b + b - a)
    with pytest.raises(InvalidArgument, match="second_tensor: given memory that overlaps first_tensor"):
        run(x, y, x, x)


# -- A function ---------------------------------------------------------------------------------------------------


def mix(cls: Any, a: Any, b: Any, out: Any = None) -> Any:
    return functions.call(DESCRIBE[cls], (a, b), (), out)[0]


DESCRIBE: dict[Any, Callable[..., Operator]] = {
    cls: lambda a, b, cls=cls: cls(a_tensor=a, b_tensor=b, output_tensor=TensorDesc(a.data_type, a.sizes)) for cls in BINARY
}


@pytest.fixture(params=[True, False], ids=["C plans", "Python plans"])
def planned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    functions.forget_plans()
    if not request.param:
        monkeypatch.setattr(functions, "_quick_plans", None)


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("planned")
@binaries
def test_out_may_be_either_input(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "assign", None)  # nothing is copied
    a, b, expected = three()
    for _ in range(3):
        x, y, z = a.copy(), b.copy(), np.empty_like(a)
        assert mix(cls, x, y, z) is z
        assert mix(cls, x, y, x) is x
        for found in (x, z):
            assert_same_bits(found, expected)
        assert_same_bits(y, b)
        x = a.copy()
        assert mix(cls, x, y, y) is y
        assert_same_bits(y, expected)
        assert_same_bits(x, a)
        assert mix(cls, x, x, x) is x
        assert_same_bits(x, a)


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("planned")
@binaries
def test_strided_arrays_run_in_place(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "assign", None)
    a, b, expected = three()
    for _ in range(2):
        memory = np.zeros((2, 4, 10), np.float32)
        x, y = memory[0, :, ::2], memory[1, :, 1::2]
        x[...], y[...] = a, b
        mix(cls, x, y, x)
        assert_same_bits(np.ascontiguousarray(x), expected)
        x[...] = a
        memory[1, :, ::2] = a
        mix(cls, memory[1, :, ::2], y, y)
        assert_same_bits(np.ascontiguousarray(y), expected)
        assert not memory[0, :, 1::2].any()


@pytest.mark.usefixtures("planned")
@binaries
@pytest.mark.parametrize(("at", "into"), [(1, 0), (0, 1), (3, 2), (0, 3)])
def test_out_over_a_part_of_an_input_is_written_last(cls: Any, at: int, into: int) -> None:
    """Also where it is exactly the one input, and a part of the other."""
    for other in (at, into, 8):
        memory = seeded(at, into, other).standard_normal(20).astype(np.float32)
        for first, second in ((at, other), (other, at)):
            work = memory.copy()
            x, y = work[first : first + 6], work[second : second + 6]
            expected = work.copy()
            expected[into : into + 6] = x + x - y
            mix(cls, x, y, work[into : into + 6])
            assert_same_bits(work, expected)


@pytest.mark.usefixtures("planned")
def test_an_input_that_the_operator_sees_in_another_layout_is_copied() -> None:
    """The caller's arrays are one, but the tensors are not: the function turns the input around."""

    def describe(a: TensorDesc, b: TensorDesc) -> Operator:
        turned = TensorDesc(b.data_type, b.sizes, tuple(reversed(b.layout)))
        return binary(specimens.MixedByFamily, a, turned, TensorDesc(a.data_type, a.sizes))

    a, b, _ = three((5, 5))
    expected = a + a - b.T
    for _ in range(2):
        y = b.copy()
        functions.call(describe, (a, y), (), y)
        assert_same_bits(y, expected)


@pytest.mark.full(first=1)
@binaries
def test_out_on_a_device(cls: Any, device: Target) -> None:
    a, b, expected = three((40, 50))
    for _ in range(2):
        x, y = (tvmdml.asarray(array, device.name) for array in (a, b))
        mix(cls, x, y, x)
        assert_same_bits(x.numpy(), expected)
        x = tvmdml.asarray(a, device.name)
        mix(cls, x, y, y)
        assert_same_bits(y.numpy(), expected)
        mix(cls, x, x, x)
        assert_same_bits(x.numpy(), a)


def test_two_outputs_in_two_inputs() -> None:
    def describe(a: TensorDesc, b: TensorDesc) -> Operator:
        return parted(TensorDesc(a.data_type, a.sizes))

    a, b, expected = three()
    for _ in range(2):
        x, y = a.copy(), b.copy()
        assert functions.call(describe, (x, y), (), (y, x)) == (y, x)
        assert_same_bits(y, expected)
        assert_same_bits(x, b + b - a)


# -- Packs and models ---------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", ["cpu:x86-64", "vulkan"])
@binaries
def test_a_pack_has_the_kernels_of_every_way(
    cls: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None
) -> None:
    target = targets.resolve("cpu") if name.startswith("cpu") else pytest.importorskip("tvmdml.targets.vulkan") and _vulkan()
    if name.startswith("cpu") and not target.name.startswith(name):
        pytest.skip("packs here are for x86-64")
    desc = binary(cls, TensorDesc("float32", (4, 5)))
    wanted = tuple(Wanted(desc, shared) for shared in ways(desc))
    built = packs.build(Spec((name,), wanted, {}), tmp_path / "pack", jobs=1)
    assert built.operations == len(wanted) == 4
    assert verify.verify(tmp_path / "pack").failed == ()
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    with tvmdml.load_pack(tmp_path / "pack", strict=True):
        for shared in ways(desc):
            assert not problem(desc, target, shared)
        other = binary(cls, TensorDesc("float16", (4, 5)))  # a kernel serves all sizes, but one type
        with pytest.raises(tvmdml.CompileError, match=r'in_place = "BTensor=OutputTensor" \}') as caught:
            tvmdml.compiler.ready(other, target, (B,))
        assert "add this line" in str(caught.value)


def _vulkan() -> Target:
    try:
        return targets.resolve("vulkan")
    except tvmdml.DeviceError as error:
        pytest.skip(str(error))


def test_what_runs_is_recorded_with_its_pairs(tmp_path: Path) -> None:
    functions.forget_plans()
    a, b, _ = three()
    with packs.record() as recorded:
        mix(specimens.Mixed, a, b, b)
        mix(specimens.Mixed, a, a, a)
    assert [one.shared for one in recorded.spec.wanted] == [(), (B,), (A, B)]
    recorded.write(tmp_path / "spec.toml")
    assert spec.read(tmp_path / "spec.toml") == recorded.spec


def test_a_model_binds_the_output_and_an_input_to_one_resource(tmp_path: Path) -> None:
    tensor = {"DataType": "FLOAT32", "Sizes": [4]}
    resource = {"initialValuesDataType": "FLOAT32"}
    model = {
        "resources": {
            "a": {**resource, "initialValues": [1, 2, 3, 4]},
            "b": {**resource, "initialValues": [10, 20, 30, 40]},
        },
        "dispatchables": {
            "mix": {"type": "SPECIMEN_MIXED", "desc": {"ATensor": tensor, "BTensor": tensor, "OutputTensor": tensor}},
        },
        "commands": [
            {"type": "dispatch", "dispatchable": "mix", "bindings": {"ATensor": "a", "BTensor": "b", "OutputTensor": "b"}},
            {"type": "print", "resource": "b"},
            {"type": "print", "resource": "a"},
        ],
    }
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(model))
    said: list[str] = []
    tvmdml.dxdispatch.read(path).run(output_path=tmp_path, write=said.append)
    text = "".join(said)
    assert text.index("-8") < text.index("-16") < text.index("-24") < text.index("-32")
    found = packs.sources.read([path]).wanted
    assert [one.shared for one in found] == [(), (B,), (A,), (A, B)]


# -- Tuning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [(), (A,), (B,), (A, B)], ids=str)
def test_a_trial_runs_and_is_checked(shared: Shared) -> None:
    desc = binary(specimens.MixedByFamily, TensorDesc("float32", (300,), (2,)))
    job = Job(lines.of(desc), write(desc, shared), "cpu")
    assert Stand(job).shared == shared
    assert not trials.measure(job, {}, trials.TRIAL._replace(rounds=3, least_rounds=1)).problem


def test_each_way_has_a_class_of_its_own() -> None:
    desc = binary(specimens.Mixed, X)
    words = [logs.class_of(desc, shared).get("in_place") for shared in ((), (A,), (B,))]
    assert words == [None, "yes", "BTensor=OutputTensor"]


def test_inputs_in_one_memory_have_one_value(tmp_path: Path) -> None:
    desc = binary(specimens.MixedByFamily, TensorDesc("float32", (30,), (2,)))
    job = Job(lines.of(desc), write(desc, (A, B)), targets.resolve("cpu").name)
    assert not parcels.prepare(job, 1, tmp_path / "work")
    work = parcels.load(tmp_path / "work")
    (sample,) = work.samples
    assert_same_bits(*sample.inputs)
    output = sample.inputs[0].copy()
    parcels.view(desc.output_tensor, output)[...] = sample.expected[0]
    assert work.mismatch(sample, (output,)) == ""
    output[1] = 0
    assert "between the elements" in work.mismatch(sample, (output,))


def test_a_trial_compares_with_the_reference_of_the_shared_values() -> None:
    desc = binary(specimens.Mixed, X)
    rng = seeded("trial")
    trial = OperatorTrial(desc, (A, B), lambda data_type, sizes: rng.standard_normal(sizes).astype(np.float32))
    places = trial.places()
    assert [*places] == ["output_tensor"]
    assert [array is places["output_tensor"].array for array in trial.arguments(places)] == [True] * 3
    assert trial.problem(places) == "", "a + a - a is a"
    assert [name for name, _ in desc.tensors(Role.INPUT)] == ["a_tensor", "b_tensor"]
