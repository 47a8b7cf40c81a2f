"""Tensors of 4-bit elements: their storage, and kernels that read and write them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import fenced
import numpy as np
import pytest
from specimens import Recoded

import tvmdml
from tvmdml import InvalidArgument, TensorDataType, TensorDesc, Unsupported, functions, operators, packs, targets
from tvmdml.errors import ModelError
from tvmdml.library import lines, spec
from tvmdml.library.format import Pack
from tvmdml.library.log_terms import Job
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators._trial import OperatorTrial, any_values
from tvmdml.packs import header, verify
from tvmdml.targets import Target
from tvmdml.tuning import parcels
from tvmdml.tuning.stand import Stand

NIBBLES = ("int4", "uint4")
X = TensorDesc("int8", (9,))
# Sizes, strides and what is special about them.
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "one element": ((1,), None),
    "odd": ((131,), None),
    "even": ((2, 66), None),
    "odd rows": ((7, 19), None),
    "transposed": ((5, 7), (1, 5)),
    "padded rows": ((5, 3), (8, 1)),
    "odd padding": ((5, 3), (5, 1)),
    "every second": ((9,), (2,)),
    "far apart": ((9,), (5,)),
    "whole bytes between": ((3, 2, 3), (17, 8, 1)),
    "size 1 with a stride": ((3, 1, 5), (5, 4_000_000_000, 1)),
    "rank 8": ((2, 1, 2, 2, 3, 1, 2, 1), None),
    "interleaved": ((2, 3), (3, 2)),
}
INPUTS = {
    **LAYOUTS,
    "one element for all": ((3, 5), (0, 0)),
    "repeated rows": ((4, 7), (0, 1)),
    "repeated columns": ((4, 7), (1, 0)),
}


def tried(desc: Recoded, target: Target, shift: int = 0) -> str:
    """What is wrong with the operator's results on a target, or with what it wrote elsewhere."""
    trial = OperatorTrial(desc, (), lambda kind, sizes: any_values(np.random.default_rng(7), kind, sizes), shift=shift)
    places = trial.places()
    tvmdml.compile(desc, target)(*trial.arguments(places))
    return trial.problem(places)


def recoded(source: TensorDesc, result: TensorDesc) -> Recoded:
    return Recoded(input_tensor=source, output_tensor=result)


# -- Storage ------------------------------------------------------------------------------------------------------


def test_the_low_four_bits_come_first() -> None:
    desc = TensorDesc("int4", (5,))
    stored = desc.pack(np.array([1, -8, 7, -1, 3]))
    assert stored.tolist() == [0x81, 0xF7, 0x03]
    assert desc.unpack(stored).tolist() == [1, -8, 7, -1, 3]
    assert desc.unpack(stored).dtype == np.int8
    assert TensorDesc("uint4", (5,)).unpack(stored).tolist() == [1, 8, 7, 15, 3]


@pytest.mark.parametrize(("count", "stored", "needed"), [(1, 1, 4), (2, 1, 4), (7, 4, 4), (8, 4, 4), (9, 5, 8)])
def test_two_elements_take_a_byte(count: int, stored: int, needed: int) -> None:
    desc = TensorDesc("uint4", (count,))
    assert (desc.stored, desc.minimum_size_in_bytes) == (TensorDesc("uint8", (stored,)), needed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", NIBBLES)
def test_elements_come_back(kind: Any, layout: str) -> None:
    sizes, strides = LAYOUTS[layout]
    desc = TensorDesc(kind, sizes, strides)
    values = any_values(np.random.default_rng(3), TensorDataType.UINT8, sizes) % 16
    if kind == "int4":
        values = values.astype(np.int8) - np.int8(8)
    stored = desc.pack(values)
    assert stored.shape == desc.stored.sizes
    assert np.array_equal(desc.unpack(stored), values)


def test_other_types_are_stored_as_they_are() -> None:
    desc, array = TensorDesc("int8", (2, 3), (3, 1)), np.zeros((2, 3), np.int8)
    assert desc.stored is desc
    assert desc.pack(array) is array
    assert desc.unpack(array) is array


# -- Kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.parametrize("layout", INPUTS)
def test_reading(layout: str, target: Target) -> None:
    sizes, strides = INPUTS[layout]
    for kind in NIBBLES:
        assert tried(recoded(TensorDesc(kind, sizes, strides), TensorDesc("int8", sizes)), target) == ""


@pytest.mark.full(first=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing(layout: str, target: Target) -> None:
    sizes, strides = LAYOUTS[layout]
    assert tried(recoded(TensorDesc("int8", sizes), TensorDesc("uint4", sizes, strides)), target) == ""
    assert tried(recoded(TensorDesc("int4", sizes), TensorDesc("int4", sizes, strides)), target) == ""


@pytest.mark.full
def test_many_threads(target: Target) -> None:
    for kinds in itertools.product(("int8", "uint4"), repeat=2):
        source, result = (TensorDesc(kind, (3, 70_001)) for kind in kinds)
        assert tried(recoded(source, result), target) == ""


@pytest.mark.full
@pytest.mark.parametrize("door", ["kernel", "compiled", "bound"])
def test_kernels_stay_inside_of_their_arrays(door: str) -> None:
    """The arrays are next to inaccessible memory: an access outside of them ends the process."""
    cpu, rng = targets.resolve("cpu"), np.random.default_rng(5)
    for sizes, strides in LAYOUTS.values():
        for source, result in (("int4", "int8"), ("int8", "uint4"), ("uint4", "int4")):
            x, out = (TensorDesc(kind, sizes, strides if "4" in kind else None) for kind in (source, result))
            desc = recoded(x, out)
            values = any_values(rng, x.stored.data_type, x.stored.sizes)
            for places in itertools.product((fenced.Place(at_end=True), fenced.Place(at_end=False)), repeat=2):
                found = fenced.run(fenced.Work(desc, cpu), [values], door, *places)
                assert desc.mismatch(found, desc.reference(values)) == ""


def test_no_two_items_write_to_a_byte() -> None:
    """What an item of the work is: a byte, so half as many as elements."""
    counts = []

    def each(items: int) -> Any:
        counts.append(items)
        return tvmdml.tensorir.loop(tvmdml.tensorir.i64(items))

    recoded(TensorDesc("int8", (7, 19)), TensorDesc("int4", (7, 19))).computation(each)
    assert counts == [67]


# -- Comparison ---------------------------------------------------------------------------------------------------


def test_bits_of_no_element_are_not_compared() -> None:
    desc = recoded(TensorDesc("int8", (3,)), TensorDesc("uint4", (3,), (2,)))
    expected = desc.reference(np.array([1, 2, 3], np.int8))
    assert desc.mismatch((np.array([0x51, 0x62, 0x73], np.uint8),), expected) == ""
    problem = desc.mismatch((np.array([0x51, 0x65, 0x73], np.uint8),), expected)
    assert problem == "output_tensor: 1 of 3 elements differ, first at (1,): 5 (0x5), should be 2 (0x2)"
    assert "of shape (2,), should be uint8 of shape (3,)" in desc.mismatch((np.zeros(2, np.uint8),), expected)


def test_a_byte_without_elements_is_guarded() -> None:
    desc = recoded(TensorDesc("int8", (2,)), TensorDesc("uint4", (2,), (4,)))
    trial = OperatorTrial(desc, (), lambda kind, sizes: any_values(np.random.default_rng(7), kind, sizes))
    places = trial.places()
    tvmdml.compile(desc)(*trial.arguments(places))
    places["output_tensor"].array[1] = 0
    assert trial.problem(places) == "the kernel wrote to memory outside output_tensor"


# -- Refusals -----------------------------------------------------------------------------------------------------


def test_arrays_of_elements_are_refused_with_advice() -> None:
    compiled = tvmdml.compile(recoded(TensorDesc("int4", (6,)), TensorDesc("int8", (6,))))
    for x in (np.zeros(6, np.uint8), np.zeros(3, np.int8)):
        with pytest.raises(InvalidArgument, match=r"An array of int4\[6\] has its bytes, .*: TensorDesc.pack makes it"):
            compiled(x, np.zeros(6, np.int8))
    out = np.full(6, 99, np.int8)
    compiled(np.array([0x10, 0x32, 0x8F], np.uint8), out)
    assert out.tolist() == [0, 1, 2, 3, -1, -8]


@pytest.mark.parametrize("kind", NIBBLES)
def test_all_other_operators_refuse_them(kind: Any) -> None:
    x = TensorDesc(kind, (4,))
    with pytest.raises(Unsupported, match=f"ELEMENT_WISE_IDENTITY input_tensor: given {kind} of rank 1; allowed: float32,"):
        tvmdml.compile(tvmdml.ElementWiseIdentity(input_tensor=x, output_tensor=x))


def test_an_array_with_4_bit_elements_is_not_made() -> None:
    with pytest.raises(InvalidArgument, match=r"empty dtype: given int4; .*uint8"):
        tvmdml.empty((3,), dtype="int4")


# -- Everywhere else ----------------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The specimen is among the operators."""
    found = {**operators.all_operators(), Recoded.NAME: Recoded}
    monkeypatch.setattr(operators, "all_operators", lambda: found)


def test_functions_refuse_them() -> None:
    def narrowed(x: TensorDesc) -> Recoded:
        return recoded(x, x.with_sizes(x.sizes, TensorDataType.INT4))

    for out in (None, np.zeros(3, np.uint8)):
        with pytest.raises(InvalidArgument, match=r"output: given int4; allowed: float64, .*compile a descriptor"):
            functions.call(narrowed, (np.zeros((2, 3), np.int8),), (), out)


@pytest.mark.usefixtures("known")
def test_packs_have_them(tmp_path: Path) -> None:
    here = targets.resolve("cpu").name
    descs = (recoded(TensorDesc("int4", (9,), (3,)), X), recoded(X, TensorDesc("uint4", (9,), (3,))))
    wanted = tuple(Wanted(desc) for desc in descs)
    assert spec.parse(spec.text(wanted), "pack.toml").wanted == wanted
    assert packs.build(Spec((here,), wanted, {}), tmp_path / "pack", jobs=1).operations == 2
    assert verify.verify(tmp_path / "pack").failed == ()
    text = next(path for path in header.write(Pack(tmp_path / "pack"), tmp_path / "c") if path.suffix == ".h").read_text()
    assert "const uint8_t *input, int8_t *output" in text
    assert "const int8_t *input, uint8_t *output" in text
    assert "specimen_recoded_i4_9" in text


@pytest.mark.usefixtures("known")
def test_they_are_tuned(tmp_path: Path) -> None:
    desc = recoded(TensorDesc("int4", (9,), (3,)), TensorDesc("uint4", (9,), (5,)))
    job = Job(lines.of(desc), False, targets.resolve("cpu").name)
    stand = Stand(job)
    for sample in stand.samples:
        x, out = sample.arrays
        assert sample.problem(lambda x=x, out=out: tvmdml.compile(desc)(x, out))[0] == ""
    sent = parcels._sample(desc, (), "normal", 0)
    work = parcels.JobParcel(desc, (), (sent,), None)  # type: ignore[arg-type]
    (output,) = work.outputs()
    tvmdml.compile(desc)(parcels.view(desc.input_tensor, sent.inputs[0]), parcels.view(desc.output_tensor, output))
    assert work.mismatch(sent, (output,)) == ""
    output[1] ^= 1
    assert "between the elements" in work.mismatch(sent, (output,))


@pytest.mark.usefixtures("known")
def test_a_model_binds_bytes(tmp_path: Path) -> None:
    def described(kind: str) -> dict[str, Any]:
        return {"DataType": kind, "Sizes": [5]}

    model = {
        "resources": {
            "x": {"initialValuesDataType": "UINT8", "initialValues": [0x10, 0x32, 0x0F, 0]},
            "y": {"initialValuesDataType": "INT8", "initialValues": {"valueCount": 8, "value": 99}},
        },
        "dispatchables": {
            "one": {"type": Recoded.NAME, "desc": {"InputTensor": described("INT4"), "OutputTensor": described("INT8")}}
        },
        "commands": [
            {"type": "dispatch", "dispatchable": "one", "bindings": {"InputTensor": "x", "OutputTensor": "y"}},
            {"type": "print", "resource": "y"},
        ],
    }
    path, said = tmp_path / "model.json", list[str]()
    path.write_text(json.dumps(model))
    tvmdml.dxdispatch.read(path).run(output_path=tmp_path, write=said.append)
    assert "0, 1, 2, 3, -1, 99, 99, 99" in "".join(said)
    model["resources"]["x"]["initialValuesDataType"] = "INT4"  # type: ignore[index]
    path.write_text(json.dumps(model))
    with pytest.raises(ModelError, match=r"INT4.*UINT8"):
        tvmdml.dxdispatch.read(path)


def test_onnx_arrays_have_them() -> None:
    kinds = pytest.importorskip("ml_dtypes")
    assert TensorDataType.of(np.dtype(kinds.int4), "x") is TensorDataType.INT4
    with pytest.raises(InvalidArgument, match=r"given data type uint4; .*TensorDesc.pack stores two 4-bit elements"):
        TensorDataType.from_numpy(np.dtype(kinds.uint4))
    values = np.array([1, -8, 7], kinds.int4)
    assert TensorDesc("int4", (3,)).pack(values.astype(np.int8)).tolist() == [0x81, 0x07]
