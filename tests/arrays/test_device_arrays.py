"""Arrays on a device: the arrays themselves, and their use by functions and compiled operators."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import python
from support import ALL, assert_same_bits, diagonal_desc, random_bits, round_desc, seeded, top_k_desc

import tvmdml
from tvmdml import DeviceArray, DeviceError, InvalidArgument, TensorDesc, Unsupported, functions, targets
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget
from tvmdml.targets.vulkan import driver


def on(device: DeviceTarget, array: Any) -> DeviceArray:
    found = tvmdml.asarray(array, device)
    assert isinstance(found, DeviceArray)
    return found


def in_use(device: DeviceTarget) -> int:
    """Bytes of the device's memory that arrays take."""
    opened: Any = device.device
    used: int = opened.memory_use().in_use if device.kind == "cuda" else opened.memory_in_use
    return used


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 1, 3, 1, 2)], ids=str)
def test_what_goes_there_comes_back(device: DeviceTarget, shape: tuple[int, ...]) -> None:
    for data_type in ALL:
        x = random_bits(seeded(data_type, shape), data_type, shape)
        there = on(device, x)
        strides = x.strides if x.size else there.strides
        assert (there.shape, there.dtype, there.strides, there.device) == (x.shape, x.dtype, strides, device.name)
        assert (there.ndim, there.size, there.nbytes, there.itemsize) == (x.ndim, x.size, x.nbytes, x.itemsize)
        for back in (there.numpy(), np.asarray(there), there.copy().numpy()):
            assert_same_bits(back, x)
    empty = on(device, np.zeros((0, 3), np.float32))
    assert tvmdml.round(empty).shape == (0, 3)
    count, rows = tvmdml.nonzero_coordinates(empty, trim=False)
    assert (count.tolist(), rows.shape) == ([0], (0, 2))


def test_any_layout_and_byte_order_becomes_packed(device: DeviceTarget) -> None:
    x = np.arange(24, dtype=">f4").reshape(4, 6)
    for view in (x.T, x[::-2, 1:4], np.asfortranarray(x)):
        there = on(device, view)
        assert there.flags.c_contiguous
        assert there.dtype.isnative
        assert np.array_equal(there.numpy(), view)


def test_lists_and_numbers_become_arrays(device: DeviceTarget) -> None:
    assert on(device, [[1.5, 2], [3, 4]]).tolist() == [[1.5, 2.0], [3.0, 4.0]]
    one = on(device, 3)
    assert (int(one), float(one), one.item(), bool(one)) == (3, 3.0, 3, True)
    assert tvmdml.asarray(on(device, [1, 2]), "cpu").tolist() == [1, 2]
    x = np.arange(3)
    assert tvmdml.asarray(x) is x
    there = on(device, x)
    assert tvmdml.asarray(there, device) is there


def keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    slices = st.slices(9).filter(lambda s: s.step is None or s.step > 0)
    one = [st.one_of(st.integers(-n, n - 1), slices) for n in shape]
    return (
        st.integers(0, len(shape))
        .flatmap(lambda n: st.tuples(*one[:n]))
        .flatmap(lambda key: st.sampled_from([key, (*key, ...), *([key[0]] if len(key) == 1 else [])]))
    )


@given(keys((4, 3, 5)), st.data())
def test_slices_are_those_of_numpy(device: DeviceTarget, key: Any, data: Any) -> None:
    x = np.arange(60, dtype=np.int16).reshape(4, 3, 5)
    there = on(device, x)[key]
    expected = x[key]
    assert there.shape == expected.shape
    assert np.array_equal(there.numpy(), expected)
    if expected.ndim and expected.shape[0]:
        again = data.draw(st.integers(-expected.shape[0], expected.shape[0] - 1))
        assert np.array_equal(there[again].numpy(), expected[again])


@pytest.mark.parametrize(
    ("key", "error", "says"),
    [
        (slice(None, None, -1), InvalidArgument, "slices with a positive step"),
        ([0, 1], InvalidArgument, "integers, slices and Ellipsis"),
        (None, InvalidArgument, "given NoneType"),
        (True, InvalidArgument, "given bool"),
        (1.0, InvalidArgument, "given float"),
        ((..., ...), InvalidArgument, "two of ..."),
        (4, IndexError, "index 4 is out of bounds"),
        (-5, IndexError, "index -5 is out of bounds"),
        ((0, 0, 0), IndexError, "3 indices for an array of 2 dimensions"),
    ],
)
def test_other_indices_are_refused(device: DeviceTarget, key: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says.replace(".", r"\.")):
        on(device, np.zeros((4, 2), np.float32))[key]


def test_writing_changes_the_elements_and_nothing_else(device: DeviceTarget) -> None:
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    there = on(device, x)
    there[1:3].write(np.full((2, 6), 7, np.float64))
    there[4, ::2].write(on(device, np.array([-1, -2, -3], np.float32)))
    there[0].write(there[3])
    x[1:3], x[4, ::2], x[0] = 7, [-1, -2, -3], x[3]
    assert np.array_equal(there.numpy(), x)
    with pytest.raises(InvalidArgument, match="shape"):
        there.write(np.zeros((6, 5), np.float32))
    for wrong in ([1, 2], None, 3.0, "text", np.zeros((5, 6), complex)):
        with pytest.raises(InvalidArgument, match=r"DeviceArray\.write"):
            there.write(wrong)
    with pytest.raises(InvalidArgument, match="elements of float32; allowed: types that can be cast to int8 within the same kind"):
        on(device, np.zeros(3, np.int8)).write(np.zeros(3, np.float32))


def test_what_is_no_array_is_refused(device: DeviceTarget) -> None:
    for wrong in ("text", object(), np.zeros(3, complex), np.zeros(2, "S3"), None, {}, [1, [2, 3]], [1 << 70]):
        with pytest.raises(InvalidArgument):
            tvmdml.asarray(wrong, device)
    for target, says in (("abacus", "'abacus'"), ([], r"\[\]"), (None, "None"), ("vulkan:" + "9" * 5000, "'vulkan:9")):
        with pytest.raises(InvalidArgument, match=f"asarray device: given {says}"):
            tvmdml.asarray([1], target)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="copied"):
        np.array(on(device, [1]), copy=False)


def test_memory_goes_back_when_the_last_slice_is_dropped(device: DeviceTarget) -> None:
    gc.collect()
    device.wait()
    before = in_use(device)
    there = on(device, np.zeros(1 << 20, np.uint8))
    part = there[10:]
    del there
    assert in_use(device) >= before + (1 << 20)
    del part
    gc.collect()
    device.wait()
    assert in_use(device) == before


# -- Functions ----------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
def test_functions_take_and_give_arrays_of_the_device(device: DeviceTarget) -> None:
    x = seeded("device").standard_normal((6, 9)).astype(np.float32) * 3
    there = on(device, x)
    rounded = tvmdml.round(there)
    assert isinstance(rounded, DeviceArray)
    assert rounded.target == device
    assert_same_bits(rounded.numpy(), np.rint(x))
    values, indices = tvmdml.top_k(rounded, 3, index_dtype="int64")
    here = tvmdml.top_k(np.rint(x), 3, index_dtype="int64")
    assert_same_bits(values.numpy(), here.values)
    assert_same_bits(indices.numpy(), here.indices)
    found = tvmdml.nonzero_coordinates(rounded)
    assert isinstance(found, DeviceArray)
    assert_same_bits(found.numpy(), np.argwhere(np.rint(x)).astype(np.uint32))
    lower = tvmdml.diagonal_matrix(there, value=0, diagonal_fill_begin=1, diagonal_fill_end=2**31 - 1)
    assert_same_bits(lower.numpy(), np.where(np.tri(6, 9, dtype=bool), x, np.float32(0)))


@pytest.mark.full(first=1)
def test_numpy_goes_there_and_back(device: DeviceTarget) -> None:
    x = np.array([[1.5, -0.5], [2.5, np.inf]])
    found = tvmdml.round(x.T, device=device.name)
    assert isinstance(found, np.ndarray)
    assert_same_bits(found, np.rint(x).T.copy())
    assert tvmdml.diagonal_matrix(sizes=(2, 2), device=device.name).tolist() == [[1, 0], [0, 1]]
    out = np.zeros((2, 4))[:, ::2]
    assert tvmdml.round(x, device=device.name, out=out) is out
    assert_same_bits(out.copy(), np.rint(x))


def test_slices_that_begin_anywhere_are_inputs_and_outputs(device: DeviceTarget) -> None:
    x = seeded("slices").standard_normal((7, 5)).astype(np.float32) * 4
    there, out = on(device, x), on(device, np.zeros((7, 5), np.float32))
    expected = np.zeros((7, 5), np.float32)
    for key in (slice(1, 4), (slice(None), slice(1, 3)), (5,), (slice(None, None, 3), 2)):
        assert_same_bits(tvmdml.round(there[key]).numpy(), np.rint(x[key]))
        assert tvmdml.round(there[key], out=out[key]) is not None
        expected[key] = np.rint(x[key])
        assert_same_bits(out.numpy(), expected)


def test_out_may_be_the_input_or_overlap_it(device: DeviceTarget) -> None:
    x = np.array([0.6, 1.6, 2.6, 3.6], np.float32)
    there = on(device, x)
    tvmdml.round(there, out=there)
    assert there.tolist() == [1, 2, 3, 4]
    there = on(device, x)
    tvmdml.round(there[:3], out=there[1:])
    assert_same_bits(there.numpy(), np.array([0.6, 1, 2, 3], np.float32))


def test_an_array_is_worked_on_where_it_lies_and_nowhere_else(device: DeviceTarget) -> None:
    there = on(device, np.zeros(3, np.float32))
    with pytest.raises(InvalidArgument, match=f"given an array on {device}; allowed: one on cpu:.*Copy it with x.numpy"):
        tvmdml.round(there, device="cpu")
    with pytest.raises(InvalidArgument, match=r"out .*given an array on"):
        tvmdml.round(np.zeros(3, np.float32), out=there, device="cpu")


@pytest.mark.full(first=1)
def test_outputs_say_where_to_work(device: DeviceTarget) -> None:
    x = np.array([0.6, 1.6, 2.6], np.float32)
    out = tvmdml.empty(3, device=device)
    assert tvmdml.round(x, out=out) is out
    assert out.tolist() == [1, 2, 3]
    values, indices = tvmdml.empty((2,), device=device), tvmdml.empty([2], dtype="uint32", device=device)
    tvmdml.top_k(x, 2, out=(values, indices))
    assert indices.tolist() == [2, 1]
    identity = tvmdml.empty((2, 2), dtype=np.int16, device=device)
    tvmdml.diagonal_matrix(sizes=(2, 2), dtype="int16", out=identity)
    assert identity.tolist() == [[1, 0], [0, 1]]


def test_room_can_be_had_anywhere(device: DeviceTarget) -> None:
    assert isinstance(tvmdml.empty((2, 0)), np.ndarray)
    there = tvmdml.empty((2, 3), dtype="float16", device=device)
    assert (there.shape, there.dtype) == ((2, 3), np.float16)
    for wrong in ((-1,), ("a",), 1.5, (2, 2.5), (0, 1 << 40, 1 << 40)):
        for where in (device, "cpu"):
            with pytest.raises(InvalidArgument, match="empty shape"):
                tvmdml.empty(wrong, device=where)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="empty dtype"):
        tvmdml.empty(3, dtype="complex64", device=device)
    with pytest.raises(DeviceError, match="memory"):
        tvmdml.empty(1 << 50, dtype="int8", device=device)


@pytest.mark.full
def test_a_sparse_view_is_packed_before_it_is_moved(device: DeviceTarget) -> None:
    x = np.zeros((1 << 10, 1 << 16), np.float32)[:, :: 1 << 10]  # more bytes than a kernel can address
    x[...] = seeded("sparse").standard_normal(x.shape) * 9
    assert_same_bits(tvmdml.round(x, device=device.name), np.rint(x))


def test_arrays_past_what_a_kernel_may_see_are_refused(vulkan: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((40, 25), np.float32)
    there = on(vulkan, x)
    monkeypatch.setattr(vulkan.device, "max_storage_range", 3999)
    monkeypatch.setattr(functions, "_plans", {})
    says = f": given 4000 bytes on {vulkan}; allowed: up to 3999, the device's maxStorageBufferRange"
    for array in (x, there):
        with pytest.raises(Unsupported, match=f"tvmdml.round: input{says}"):
            tvmdml.round(array, device=vulkan.name)
    with pytest.raises(Unsupported, match=f"ELEMENT_WISE_ROUND input_tensor{says}"):
        tvmdml.compile(round_desc(TensorDesc("float32", (40, 25)), "toward_zero"), vulkan)


LOST = """
import numpy as np, tvmdml
x = np.arange(10, dtype=np.float32) + 0.5
there = tvmdml.asarray(x, "vulkan")
tvmdml.round(there)
operator = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=(d := tvmdml.TensorDesc("float32", (10,))), output_tensor=d,
                                                  rounding_mode="toward_zero"), "vulkan")
out = tvmdml.empty(10, device="vulkan")
bound = operator.bind(there, out)
tvmdml.targets.resolve("vulkan").device.connection.lose("a test")
for use in (lambda: there.numpy(), lambda: tvmdml.round(there), lambda: operator(there, out), bound):
    try:
        use()
    except tvmdml.DeviceError as error:
        assert "a test" in str(error), error
    else:
        raise AssertionError("what lay on the lost device is lost")
again = tvmdml.asarray(x, "vulkan")
for shape in ((10,), (2, 5)):
    assert (tvmdml.round(x.reshape(shape), device="vulkan") == np.rint(x).reshape(shape)).all()
assert (tvmdml.round(again).numpy() == np.rint(x)).all()
out = tvmdml.empty(10, device="vulkan")
operator(again, out)
operator.bind(again, out)()
assert (out.numpy() == np.trunc(x)).all()
"""


@pytest.mark.full
def test_a_lost_device_is_opened_again(vulkan: Target) -> None:
    python(LOST)


@pytest.mark.full(first=1)
def test_it_behaves_as_an_array_where_it_can(device: DeviceTarget) -> None:
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    there = on(device, x)
    assert [row.tolist() for row in there] == x.tolist()
    with pytest.raises(TypeError):
        list(there[0, 0])
    with pytest.raises(TypeError):
        assert 3 in there
    assert range(9)[there[1, 2]] == 5
    assert len({there, there}) == 1
    for copied in (copy.copy(there), copy.deepcopy(there)):
        there[0].write(x[1])
        assert copied.tolist() == x.tolist()
        there.write(x)
    with pytest.raises(TypeError, match=r"cannot be pickled: send x\.numpy\(\)"):
        pickle.dumps(there)
    assert there.view("float32").numpy().view("i4").tolist() == x.tolist()

    class Unspeakable:
        def __repr__(self) -> str:
            raise NotImplementedError

        def __len__(self) -> int:
            raise OverflowError

    strange: Any = type("Fields", (Unspeakable,), {"dtype": Unspeakable()})()
    for kind in ("int64", strange, Unspeakable()):
        with pytest.raises(InvalidArgument, match="types of 4 bytes"):
            there.view(kind)
    bools = on(device, np.array([True, False]))
    assert tvmdml.nonzero_coordinates(bools).tolist() == [[0]]
    with pytest.raises(InvalidArgument, match=r"x\.view\(numpy\.uint8\)"):
        tvmdml.top_k(bools, 1)
    assert tvmdml.top_k(bools.view(np.uint8), 1).indices.tolist() == [0]


# -- Compiled operators -------------------------------------------------------------------------------------------


def test_compiled_operators_take_arrays_of_both_kinds(device: DeviceTarget) -> None:
    desc = top_k_desc(TensorDesc("float32", (3, 8)), 1, 2, "decreasing")
    operator = tvmdml.compile(desc, device)
    x = seeded("kinds").standard_normal((3, 8)).astype(np.float32)
    expected = desc.reference(x)
    for place in (lambda a: a, lambda a: on(device, a)):
        tensors = [place(x), *(place(np.zeros_like(e)) for e in expected)]
        operator(*tensors)
        for found, e in zip(tensors[1:], expected, strict=True):
            assert_same_bits(np.asarray(found), e)
        run = operator.bind(*tensors)
        for tensor in tensors[1:]:
            if isinstance(tensor, DeviceArray):
                tensor.write(np.zeros_like(tensor.numpy()))
            else:
                tensor[...] = 0
        run()
        run()
        for found, e in zip(tensors[1:], expected, strict=True):
            assert_same_bits(np.asarray(found), e)


def test_in_place_is_one_array(device: DeviceTarget) -> None:
    operator = tvmdml.compile(round_desc(TensorDesc("float32", (5,)), "toward_zero"), device)
    there = on(device, np.array([1.5, -1.5, 2.5, -0.5, 9.9], np.float32))
    operator(there, there)
    assert_same_bits(there.numpy(), np.array([1, -1, 2, -0.0, 9], np.float32))


def test_what_does_not_fit_is_refused(device: DeviceTarget) -> None:
    operator = tvmdml.compile(round_desc(TensorDesc("float32", (4,)), "toward_zero"), device)
    x = on(device, np.zeros(8, np.float32))
    for wrong, says in ((x[:3], "shape"), (on(device, np.zeros(4, np.float64)), "data type float64"), (x[::2], "strides")):
        with pytest.raises(InvalidArgument, match=says):
            operator(wrong, x[:4])
    with pytest.raises(InvalidArgument, match="overlaps"):
        operator(x[1:5], x[:4])
    with pytest.raises(InvalidArgument, match="given an array on"):
        tvmdml.compile(round_desc(TensorDesc("float32", (4,)), "toward_zero"))(x[:4], x[4:])


def test_the_code_can_be_read(vulkan: Target) -> None:
    text = tvmdml.compile(diagonal_desc(TensorDesc("float32", (4, 4)), 1, 0, 1, has_input=False), vulkan).source("spirv")
    assert "OpEntryPoint GLCompute" in text
    with pytest.raises(InvalidArgument, match="allowed: tir, spirv"):
        tvmdml.compile(round_desc(TensorDesc("float32", (4,)), "toward_zero"), vulkan).source("asm")


def test_devices_are_found_by_number_and_by_name(vulkan: Target) -> None:
    name = vulkan.info.name.lower()  # type: ignore[attr-defined]
    for text in ("vulkan", vulkan.name, f"vulkan:{name}", f"VULKAN:{name[:4]}"):
        assert targets.resolve(text) == vulkan
    with pytest.MonkeyPatch.context() as patch:  # a number may be a part of a name
        patch.setattr(driver, "devices", lambda: (replace(vulkan.info, name="Some GPU 4090"),))  # type: ignore[attr-defined]
        assert targets._resolved.__wrapped__("vulkan:4090").name == vulkan.name
    for text in ("vulkan:99", "vulkan:no such device"):
        with pytest.raises(InvalidArgument, match=f"allowed: {vulkan.name}"):
            targets.resolve(text)
