"""The C extension: it launches as Python would, for arrays that Python would accept, and leaves everything else to Python."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from programs import python
from support import diagonal_desc, round_desc, top_k_desc

import tvmdml
from tvmdml import TensorDesc, functions, targets
from tvmdml.library import finding
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import _quick
from tvmdml.targets._launch import RuntimeLaunch
from tvmdml.targets.cpu import runtime_function, threads

Array = np.ndarray[Any, np.dtype[Any]]
only_native = pytest.mark.skipif(threads.native() is None, reason=threads.state())


def test_the_extension_is_there_where_it_was_to_be_built() -> None:
    if os.environ.get("TVMDML_EXPECT_NATIVE", "0") in ("", "0"):
        pytest.skip("TVMDML_EXPECT_NATIVE is not set")
    assert threads.state() == "native thread pool"


DECLARATIONS = "17a4238b872e7b00"
"""The digest of the declarations that the interface's number belongs to."""


def test_the_extension_is_not_used_without_pythons_global_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    if threads.native() is not None:
        found, state = threads._extension.__wrapped__()
        assert found is None
        assert state.endswith("needs Python's global lock (GIL), which is off; unset PYTHON_GIL")


def test_an_extension_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = hashlib.sha256(Path(threads.__file__).with_name("_native.pyi").read_bytes()).hexdigest()[:16]
    assert declared == DECLARATIONS, "raise the interface's number in threads.py and module.c, and write this digest"
    monkeypatch.setattr(threads, "_INTERFACE", threads._INTERFACE + 1)
    if threads.native() is not None:
        assert threads._extension.__wrapped__()[1].endswith("is of another version of tvmdml; install tvmdml again")


@pytest.mark.full
@pytest.mark.parametrize("setting", ["0", "1"])
def test_devices_says_which_pool_there_is(setting: str) -> None:
    code = "from tvmdml.cli import main; main(['devices'])"
    said = python(code, may_complain=True, TVMDML_DISABLE_NATIVE=setting)
    here = commands.call("devices").output
    assert ("Python thread pool: TVMDML_DISABLE_NATIVE is set" in said) == (setting == "1")
    assert threads.state() in here


@pytest.mark.full
@only_native
def test_results_are_made_without_numpys_c_interface_too() -> None:
    assert threads._new_array() > 0
    code = """
import numpy as np
from tvmdml.targets.cpu import runtime_function, threads
threads._new_array = lambda: 0
import tvmdml
for x in (np.array(-3.5), np.zeros((0, 3)), np.ones((1, 2, 3), "float16"), np.arange(8, dtype="int8").reshape(4, 2).T):
    for _ in range(3):
        result = tvmdml.add(x, 2)
        assert (result.dtype, result.shape, result.flags.owndata) == (x.dtype, x.shape, True), result
        assert result.flags.writeable and result.flags.c_contiguous and (result == x + 2).all()
"""
    python(code, may_complain=True)


def test_handing_work_over_costs_more_in_python() -> None:
    assert targets.resolve("cpu").handover() == (64 if threads.native() is None else 1)


# -- Arrays: the same answer from C as from Python ----------------------------------------------------------------

F = np.dtype(np.float32)
FORMS = ((F, (2, 3), (12, 4), False), (F, (2, 3), (12, 4), True))


class Subclass(np.ndarray):  # type: ignore[type-arg]
    pass


def _aligned(offset: int) -> Array:
    memory = np.zeros(24 + 8, np.uint8)
    return memory[offset : offset + 24].view(np.float32).reshape(2, 3)


def _flag(array: Array) -> Array:
    array.flags.writeable = False
    return array


CANDIDATES: dict[str, Callable[[], Any]] = {
    "good": lambda: np.zeros((2, 3), np.float32),
    "within another": lambda: np.zeros(99, np.float32)[7:13].reshape(2, 3),
    "read-only": lambda: _flag(np.zeros((2, 3), np.float32)),
    "unpickled": lambda: pickle.loads(pickle.dumps(np.zeros((2, 3), np.float32))),
    "misaligned": lambda: _aligned(1),
    "type": lambda: np.zeros((2, 3), np.int32),
    "wider type": lambda: np.zeros((2, 3), np.float64),
    "byte order": lambda: np.zeros((2, 3), ">f4"),
    "structure": lambda: np.zeros((2, 3), [("a", "f4")]),
    "void": lambda: np.zeros((2, 3), "V4"),
    "string": lambda: np.zeros((2, 3), "S4"),
    "object": lambda: np.zeros((2, 3), object),
    "time": lambda: np.zeros((2, 3), "M8[s]"),
    "shape": lambda: np.zeros((3, 2), np.float32),
    "rank": lambda: np.zeros((1, 2, 3), np.float32),
    "no rank": lambda: np.zeros((), np.float32),
    "nothing": lambda: np.zeros((0, 3), np.float32),
    "transposed": lambda: np.zeros((3, 2), np.float32).T,
    "padded": lambda: np.zeros((2, 4), np.float32)[:, :3],
    "backwards": lambda: np.zeros((2, 3), np.float32)[:, ::-1],
    "broadcast": lambda: np.broadcast_to(np.zeros(3, np.float32), (2, 3)),
    "subclass": lambda: np.zeros((2, 3), np.float32).view(Subclass),
    "masked": lambda: np.ma.zeros((2, 3), np.float32),
    "scalar": lambda: np.float32(1),
    "list": lambda: [[0.0] * 3] * 2,
    "None": lambda: None,
    "bytes": lambda: b"0" * 24,
    "the type": lambda: np.ndarray,
}


def _launches(desc: Any) -> tuple[targets.Launch, RuntimeLaunch]:
    cpu = targets.resolve("cpu")
    kernel = kernel_for(desc.canonical(), cpu)
    loaded = finding.find(kernel, cpu)
    integers_and_room = kernel.scalars, kernel.temporaries
    return cpu.launch(loaded, *integers_and_room), RuntimeLaunch(runtime_function(loaded), *integers_and_room)


@only_native
@pytest.mark.parametrize("name", CANDIDATES)
def test_both_take_the_same_arrays(name: str) -> None:
    launches = [launch.fit(FORMS) for launch in _launches(round_desc(TensorDesc("float32", (2, 3)), "toward_zero"))]
    for place in (0, 1):
        answers = []
        for launch in launches:
            arrays: list[Any] = [np.full((2, 3), 1.5, np.float32), np.full((2, 3), 9, np.float32)]
            arrays[place] = CANDIDATES[name]()
            answers.append(launch(*arrays))
            if answers[-1]:
                assert (arrays[1] == np.trunc(arrays[0])).all()
            elif place == 0:
                assert (arrays[1] == 9).all()
        assert answers[0] == answers[1]
        assert answers[0] == (name in ("good", "within another", "unpickled") or (name, place) == ("read-only", 0))


@only_native
@pytest.mark.parametrize("shift", range(-7, 8))
def test_both_see_the_same_overlap(shift: int) -> None:
    memory = np.zeros(24, np.float32)
    x, y = memory[8:14].reshape(2, 3), memory[8 + shift : 14 + shift].reshape(2, 3)
    for launch in _launches(round_desc(TensorDesc("float32", (2, 3)), "toward_zero")):
        assert launch.fit(FORMS)(x, y) is (abs(shift) >= 6)
        assert launch.fit(FORMS)(x, x) is False


@only_native
def test_both_want_the_same_number_of_arrays() -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    for launch in _launches(round_desc(TensorDesc("float32", (2, 3)), "toward_zero")):
        fit = launch.fit(FORMS)
        assert [fit(), fit(x), fit(x, y), fit(x, y, y)] == [False, False, True, False]
    for launch in _launches(diagonal_desc(TensorDesc("float32", (2, 3)), 7, 0, 1, has_input=False)):
        fit = launch.fit((None, FORMS[1]))
        assert [fit(None, y), fit(x, y), fit(y)] == [True, False, False]
        assert y.tolist() == [[7, 0, 0], [0, 7, 0]]


@only_native
def test_a_launch_takes_only_arrays() -> None:
    launch, _ = _launches(round_desc(TensorDesc("float32", (2, 3)), "toward_zero"))
    for wrong in ([0.0], None, np.float32(1), np.zeros((2, 3), np.float32).view(Subclass)):
        for call in (launch, launch.bind):
            with pytest.raises(TypeError, match="NumPy arrays"):
                call(wrong, np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match="takes no arguments"):
        launch.bind(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))(1)  # type: ignore[call-arg]
    for forms in [
        ((F, (2,), (4, 4), True),),
        ((F, (0,), (4,), True),),
        ((F, (2,), (-4,), True),),
        ((np.dtype(">f4"), (2,), (4,), True),),
    ]:
        with pytest.raises(ValueError, match=r"array|byte order"):
            launch.fit(forms)


@only_native
def test_temporaries_of_any_size_are_there() -> None:
    rng = np.random.default_rng(1)
    for length in (3000, 200_000, 3000, 1_500_000, 64):  # the largest exceeds what a thread keeps
        x = rng.integers(0, 2**31, length, dtype=np.int32)
        values, indices = np.empty_like(x), np.empty(length, np.uint32)
        operator = tvmdml.compile(top_k_desc(TensorDesc("int32", (length,)), 0, length, "increasing"), "cpu")
        operator(x, values, indices)
        assert np.array_equal(values, np.sort(x))


# -- Functions: the same answer from C's memory of calls as from Python's -----------------------------------------


@pytest.fixture(params=["C", "Python"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are remembered here, and nowhere else."""
    if request.param == "C" and threads.native() is None:
        pytest.skip(threads.state())
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans() if request.param == "C" else None)


X = np.array([[0.5, 1.5, -2.5], [2.75, -0.0, 7.0]], np.float32)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", CANDIDATES)
def test_a_call_that_is_known_does_not_hide_a_wrong_one(name: str) -> None:
    for _ in range(3):
        assert np.array_equal(tvmdml.round(X), np.rint(X))
        assert np.array_equal(tvmdml.round(X, out=np.empty_like(X)), np.rint(X))
    given, out = CANDIDATES[name](), CANDIDATES[name]()
    for _ in range(2):
        if name in ("good", "within another", "read-only", "unpickled", "misaligned", "wider type", "byte order", "shape", "rank"):
            np.testing.assert_array_equal(tvmdml.round(given), np.rint(given))
        elif name in ("type", "void", "string", "object", "time", "structure", "masked", "list", "None", "bytes", "the type"):
            with pytest.raises(tvmdml.TvmdmlError):
                tvmdml.round(given)
        if name in ("good", "within another", "unpickled", "misaligned", "byte order", "transposed", "padded", "backwards"):
            x = X if out.shape == (2, 3) else X.T
            assert tvmdml.round(x, out=out) is out
            np.testing.assert_array_equal(out, np.rint(x))
        elif name not in ("None", "subclass"):
            with pytest.raises(tvmdml.TvmdmlError):
                tvmdml.round(X, out=out)


@pytest.mark.usefixtures("memory")
def test_equal_attributes_of_other_types_are_other_calls() -> None:
    x = np.arange(9, dtype=np.float32)
    for _ in range(3):
        assert tvmdml.top_k(x, 1).values.tolist() == [8]
        with pytest.raises(tvmdml.InvalidArgument, match="given True"):
            tvmdml.top_k(x, True)
        with pytest.raises(tvmdml.InvalidArgument, match=r"given 1\.0"):
            tvmdml.top_k(x, 1.0)  # type: ignore[arg-type]
        assert tvmdml.top_k(x, 300 - 298).values.tolist() == [8, 7]
        assert tvmdml.round(x, rounding_mode=tvmdml.RoundingMode.TOWARD_ZERO).tolist() == x.tolist()
        with pytest.raises(tvmdml.InvalidArgument):
            tvmdml.round(x, rounding_mode=[0])  # type: ignore[arg-type]
        for zero in (0.0, -0.0):
            assert np.signbit(tvmdml.diagonal_matrix(sizes=(2, 2), value=zero)[0, 0]) == np.signbit(zero)


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("memory")
def test_every_way_of_a_call_is_remembered() -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.standard_normal((4, 50)).astype(np.float32)
        values, indices = np.empty((4, 3), np.float32), np.empty((4, 3), np.int64)
        got = tvmdml.top_k(x, 3, index_dtype="int64")
        tvmdml.top_k(x, 3, index_dtype="int64", out=(values, indices))
        np.testing.assert_array_equal(got.values, -np.sort(-x)[:, :3])
        np.testing.assert_array_equal(np.take_along_axis(x, got.indices, 1), got.values)
        np.testing.assert_array_equal(values, got.values)
        np.testing.assert_array_equal(indices, got.indices)
        assert got.indices.dtype == np.int64
        x[x < 0.5] = 0
        np.testing.assert_array_equal(tvmdml.nonzero_coordinates(x), np.argwhere(x))
        np.testing.assert_array_equal(tvmdml.nonzero_coordinates(x.T), np.argwhere(x.T))
        assert tvmdml.nonzero_coordinates(x, trim=False).coordinates.shape == (200, 2)
        assert tvmdml.nonzero_coordinates(np.float32(3)).shape == (1, 0)
        np.testing.assert_array_equal(tvmdml.diagonal_matrix(sizes=(3, 3)), np.eye(3))
        assert tvmdml.round(np.array(2.5)).shape == ()
        y = x.copy()
        assert tvmdml.round(y, out=y) is y
        np.testing.assert_array_equal(y, np.rint(x))
        memory = np.arange(10, dtype=np.float32) / 4
        expected = np.rint(memory[:6])
        tvmdml.round(memory[:6], out=memory[2:8])
        np.testing.assert_array_equal(memory[2:8], expected)


NUMBERS = [0, 1, -1, 127, 128, -128, 255, 256, 32768, 2**31, 2**63, -(2**63), 2**64 - 1, 2**64, 2**1100, True, False]
NUMBERS += [0.0, -0.0, 1.5, 0.1, 65519.99, 65520.0, 1e39, -1e300, float("inf"), float("nan")]
TYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", TYPES)
def test_a_python_number_is_converted_as_numpy_converts_it(dtype: str) -> None:
    x = np.ones(5, dtype)
    for given in (*NUMBERS, *NUMBERS):  # a form of call is known from the second time on
        try:
            with np.errstate(over="ignore"):
                expected = np.array(given, dtype) if x.dtype.kind == "f" or type(given) is not float else None
        except OverflowError:
            expected = None
        if expected is None:
            with pytest.raises(tvmdml.InvalidArgument, match="the arrays, can hold"):
                tvmdml.add(x, given)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                np.testing.assert_array_equal(tvmdml.add(x, given), x + expected)
                np.testing.assert_array_equal(tvmdml.subtract(given, x, out=np.empty_like(x)), expected - x)


@pytest.mark.usefixtures("memory")
def test_arrays_in_the_same_memory_are_told_apart() -> None:
    for _ in range(3):
        a, b = (np.arange(start, start + 6, dtype=np.float32) for start in (1, 10))
        expected = a - b
        assert tvmdml.subtract(a, b, out=a) is a
        np.testing.assert_array_equal(a, expected)
        expected = a - b
        np.testing.assert_array_equal(tvmdml.subtract(a, b, out=b), expected)
        expected = b - b
        np.testing.assert_array_equal(tvmdml.subtract(b, b, out=b), expected)
        expected = a - np.float32(2)
        np.testing.assert_array_equal(tvmdml.subtract(a, 2, out=a), expected)
        memory = np.arange(12, dtype=np.float32)
        expected = memory[:6] - memory[2:8]
        np.testing.assert_array_equal(tvmdml.subtract(memory[:6], memory[2:8], out=memory[:6]), expected)
        memory = np.arange(12, dtype=np.float32)
        expected = memory[0] - memory[2:8]
        np.testing.assert_array_equal(tvmdml.subtract(memory[:1], memory[2:8], out=memory[:6]), expected)


@only_native
def test_calls_in_place_and_with_numbers_are_known_to_c(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones(6, np.float32), np.ones(6, np.float32)
    half = a.astype(np.float16)
    calls: list[Callable[[], Any]] = [
        lambda: tvmdml.add(a, b, out=a),
        lambda: tvmdml.add(a, a, out=a),
        lambda: tvmdml.add(a, 1.5),
        lambda: tvmdml.add(a, 2, out=b),
        lambda: tvmdml.multiply(0.5, a, out=a),
        lambda: tvmdml.add(half, 0.1),
    ]
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    for call in calls:
        call()
    for slow in ("as_arrays", "_make_plan"):
        monkeypatch.delattr(functions, slow)
    monkeypatch.setattr(functions, "_plans", None)
    for call in calls:
        call()
    for given in ((), (len, None, None), (len, None, None, 2, a), (len, None, None, -1), (len, None, None, "1", a)):
        with pytest.raises(TypeError, match="a call must be"):
            functions._quick_plans.one(*given)


@pytest.mark.full
@only_native
def test_more_calls_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    gc.collect()
    for size in (*range(1, 5000), *range(1, 300)):
        x = np.full(size % 3000 + 1, 2.5, np.float16 if size % 2 else np.float32)
        assert tvmdml.round(x)[-1] == 2, size
