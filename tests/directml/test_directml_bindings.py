"""The conventions of the package's interface: how arrays become tensors, what is refused, and who keeps what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tvmdml.directml as dml

SHAPE = [1, 1, 2, 2]
ZEROS = np.zeros((2, 2), np.float32)


@pytest.fixture(scope="module", params=["cpu", "vulkan"])
def device(request: pytest.FixtureRequest) -> Iterator[dml.Device]:
    if request.param != "cpu":
        request.getfixturevalue(request.param)  # skips what this machine does not have
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_DEVICE", request.param)
        yield dml.Device()


def copied(device: dml.Device, sizes: Any = SHAPE, dtype: Any = np.float32, **given: Any) -> tuple[Any, Any]:
    """An input, and a graph that returns it."""
    graph = dml.Graph(device)
    x = graph.input(sizes, dtype, **given)
    return x, graph.compile([dml.activation_identity(x)])


def summed(device: dml.Device) -> tuple[Any, Any, Any]:
    """An input, an owned one, and a graph that adds them."""
    graph = dml.Graph(device)
    x, w = graph.input(SHAPE, name="x"), graph.input(SHAPE, owned=True, name="w")
    return x, w, graph.compile([dml.add(x, w)])


def full(value: float, *sizes: int, dtype: Any = np.float32) -> np.ndarray:
    return np.full(sizes or (2, 2), value, dtype)


# -- Conversions


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(full(1.5, dtype=np.float64), np.float32), (full(0.5), np.float16), (np.arange(4, dtype=np.uint8), np.float32)],
)
def test_numbers_are_converted_within_their_kind_or_where_nothing_is_lost(device: dml.Device, given: Any, dtype: Any) -> None:
    x, op = copied(device, dtype=dtype)
    (found,) = op({x: given})
    assert found.dtype == dtype
    assert np.array_equal(found.ravel(), given.ravel())


def test_other_conversions_are_refused(device: dml.Device) -> None:
    x, op = copied(device)
    with pytest.raises(ValueError, match="astype"):
        op({x: np.zeros(4, np.int32)})
    graph = dml.Graph(device)
    x = graph.input(SHAPE, np.int32)
    with pytest.raises(ValueError, match="astype"):
        graph.compile([x - x])({x: ZEROS})
    with pytest.raises(ValueError, match="astype"):
        graph.constant(np.zeros((2, 2), np.int32), np.float32)
    with pytest.raises(ValueError, match="astype"):
        dml.Buffer(device, np.zeros((2, 2), np.int32), np.float32)


@pytest.mark.parametrize("array", [np.zeros(4, bool), np.zeros(4, complex), np.array(["a"])])
def test_types_that_tensors_do_not_have_are_type_errors(device: dml.Device, array: Any) -> None:
    for make in (dml.Graph(device).constant, lambda one: dml.Buffer(device, one), lambda one: dml.TensorDesc(one.dtype, [4])):
        with pytest.raises(TypeError, match="data type"):
            make(array)


def test_a_packed_input_takes_its_elements_in_any_shape(device: dml.Device) -> None:
    x, op = copied(device)
    (found,) = op({x: np.arange(4, dtype=np.float32)})
    assert found.shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match="does not fill"):
        op({x: np.zeros((2, 3), np.float32)})
    x, op = copied(device, [1, 1, 1, 3], np.float16)  # six bytes
    assert op({x: [1.0, 2.0, 3.0]})[0].tolist() == [[[[1, 2, 3]]]]


def test_a_strided_input_takes_its_memory(device: dml.Device) -> None:
    x, op = copied(device, [1, 2, 3, 4], strides=[2, 1, 0, 0])
    (found,) = op({x: np.array([5.0, 6.0], np.float32)})
    assert np.array_equal(found, np.broadcast_to(np.array([5, 6], np.float32).reshape(1, 2, 1, 1), (1, 2, 3, 4)))
    with pytest.raises(ValueError, match="fill"):
        op({x: np.array([5.0], np.float32)})
    x, op = copied(device, [2, 3], strides=[1, 2])
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.array_equal(op({x: given})[0], given.T)


def test_arrays_without_dimensions_have_one(device: dml.Device) -> None:
    graph = dml.Graph(device)
    c = graph.constant(np.float32(3))
    assert c.shape == (1,)
    assert dml.Buffer(device, 3.0).shape == (1,)
    assert graph.compile([c * 2])()[0].tolist() == [6.0]


def test_results_are_packed_copies(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x = graph.input([1, 2, 3, 4])
    turned = dml.reinterpret(x, [1, 2, 4, 3], [24, 12, 1, 4])
    given = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    op = graph.compile([x, turned, x, turned * 2])
    found = op({x: given})
    for one, right in zip(found, (given, given.swapaxes(2, 3), given, 2 * given.swapaxes(2, 3)), strict=True):
        assert one.flags.c_contiguous
        assert not np.shares_memory(one, given)
        assert np.array_equal(one, right)


def test_results_have_twins_in_other_shapes(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, fixed = graph.input([2, 3], name="x"), graph.constant(np.arange(6, dtype=np.float32), sizes=[2, 3])
    given = np.ones((2, 3), np.float32)
    several = [(-x, -given), (-x, -given), (x, given), (fixed, np.arange(6))]
    twins = [(dml.reinterpret(one, sizes), right) for one, right in several for sizes in ([2, 3], [3, 2], [6])]
    for one, (twin, right) in zip(graph.compile([twin for twin, _ in twins])({"x": given}), twins, strict=True):
        assert one.shape == tuple(twin.shape)
        assert np.array_equal(one.reshape(6), right.reshape(6))


# -- Names and keys


def test_inputs_are_bound_by_name_and_by_expression(device: dml.Device) -> None:
    graph = dml.Graph(device)
    a, b = graph.input(SHAPE, name="a"), graph.input(SHAPE, name="b")
    op = graph.compile([a - b])
    assert np.all(op({"a": full(3), b: full(1)})[0] == 2)
    with pytest.raises(ValueError, match="already has an input named 'a'"):
        graph.constant(ZEROS, name="a")


def wrong(op: Any, x: Any, w: Any) -> list[tuple[Callable[[], Any], type[Exception], str]]:
    """What cannot be bound, and what is said."""
    y = dml.Graph(dml.Device()).input(SHAPE)
    return [
        (lambda: op({}), ValueError, r"missing input 0 'x'"),
        (lambda: op({"z": ZEROS}), ValueError, "no input named 'z'"),
        (lambda: op({y: ZEROS}), ValueError, "not an input"),
        (lambda: op({0: ZEROS}), TypeError, "names"),
        (lambda: op([ZEROS]), TypeError, "dict"),
        (lambda: op({x: ZEROS, "x": ZEROS}), ValueError, "'x'.*bound twice"),
        (lambda: op({x: ZEROS, w: ZEROS}), ValueError, "initialize"),
        (lambda: op.initialize({w: ZEROS, x: ZEROS}), ValueError, "dispatch"),
        (lambda: op.initialize({}), ValueError, "missing input 1 'w'"),
    ]


def test_wrong_bindings_are_named(device: dml.Device) -> None:
    x, w, op = summed(device)
    op.initialize({w: ZEROS})
    for call, kind, said in wrong(op, x, w):
        with pytest.raises(kind, match=said):
            call()
    graph = dml.Graph(device)
    result = dml.activation_identity(graph.input(SHAPE))
    with pytest.raises(ValueError, match="not an input"):
        graph.compile([result])({result: ZEROS})


def test_what_nothing_depends_on_may_be_left_out(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, y = graph.input(SHAPE), graph.input(SHAPE, owned=True)
    graph.input(SHAPE)
    op = graph.compile([x + 1])
    op.initialize()
    assert np.all(op({x: ZEROS})[0] == 1)
    op.initialize({y: ZEROS})


def test_inputs_need_a_shape_or_a_description(device: dml.Device) -> None:
    graph = dml.Graph(device)
    desc = dml.TensorDesc(np.float16, [2, 3], flags=dml.TensorFlags.OWNED_BY_DML)
    x = graph.input(desc=desc)
    assert (x.shape, x.dtype, x.desc.flags) == ((2, 3), np.float16, dml.TensorFlags.OWNED_BY_DML)
    for given in ({}, {"sizes": [1], "desc": desc}, {"desc": desc, "dtype": np.float16}, {"desc": 3}, {"sizes": [1], "name": 3}):
        with pytest.raises(TypeError):
            graph.input(**given)
    with pytest.raises(TypeError):
        dml.Device(True)


# -- What is owned


def test_owned_inputs_are_given_before(device: dml.Device) -> None:
    x, w, op = summed(device)
    assert not op.initialized
    with pytest.raises(ValueError, match=r"initialize\(\).*input 1"):
        op({x: ZEROS})
    op.initialize({w: full(1)})
    assert op.initialized
    assert np.all(op({x: ZEROS})[0] == 1)
    op.initialize({"w": full(2)})
    assert np.all(op({x: ZEROS})[0] == 2)


def test_owned_arrays_are_copied(device: dml.Device) -> None:
    x, w, op = summed(device)
    weights = full(1)
    op.initialize({w: weights})
    weights[:] = 9
    assert np.all(op({x: ZEROS})[0] == 1)


def test_a_graph_may_be_dropped(device: dml.Device) -> None:
    graph = dml.Graph(device)
    a, w = graph.input([1, 1, 2, 3]), graph.input([1, 1, 3, 2], owned=True)
    op = graph.compile([dml.gemm(a, w)])
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    op.initialize({w: weights})
    del graph, w
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(op({a: given})[0][0, 0], given @ weights)
    assert op.persistent_size >= weights.nbytes
    assert op.temporary_size >= 0
    assert op.descriptor_count >= 3


def test_constants_initialize_what_owns_nothing_else(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x = graph.input(SHAPE, np.float16)
    c = graph.constant(np.full((2, 2), 0.5), np.float16, sizes=SHAPE)
    op = graph.compile([dml.add(x, c)])
    assert op.initialized
    (found,) = op({x: np.zeros((2, 2), np.float16)})
    assert found.dtype == np.float16
    assert np.all(found == 0.5)
    with pytest.raises(ValueError, match="missing input 1"):
        op.initialize({})
    op.initialize({c: full(5)})
    assert np.all(op({x: np.zeros((2, 2), np.float16)})[0] == 5)


def test_constants_wait_for_what_is_owned_too(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, c, w = graph.input(SHAPE), graph.constant(full(1), sizes=SHAPE), graph.input(SHAPE, owned=True)
    op = graph.compile([dml.add(dml.add(x, c), w)])
    assert not op.initialized
    with pytest.raises(ValueError, match="missing input 2"):
        op.initialize({})
    op.initialize({w: full(2)})
    assert np.all(op({x: ZEROS})[0] == 3)


def test_constants_are_compiled_in_until_they_are_given_again(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, b, c = graph.input(SHAPE), graph.constant(full(2), sizes=SHAPE), graph.constant(full(3), sizes=SHAPE, name="c")
    op = graph.compile([x - b * c])
    assert op.compiled.kernel_count == 1
    assert np.all(op({x: ZEROS})[0] == -6)
    with pytest.raises(ValueError, match="missing input 2 'c'"):
        op.initialize({b: full(1)})
    assert np.all(op({x: ZEROS})[0] == -6)
    op.initialize({b: full(1), "c": full(4)})
    assert np.all(op({x: ZEROS})[0] == -4)


def test_another_value_may_be_given_in_place_of_a_constant(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, w = graph.input(SHAPE), graph.input(SHAPE, owned=True)
    b, c = graph.constant(full(2), sizes=SHAPE), graph.constant(full(3), sizes=SHAPE)
    op = graph.compile([x - b * c * w])
    op.initialize({w: full(1), b: dml.Buffer(device, full(5))})
    assert np.all(op({x: ZEROS})[0] == -15)


def test_constants_must_fill_their_sizes(device: dml.Device) -> None:
    with pytest.raises(ValueError, match="does not fill"):
        dml.Graph(device).constant(ZEROS, sizes=[1, 1, 2, 3])


def test_nobody_keeps_a_constant_after_compiling(device: dml.Device) -> None:
    graph = dml.Graph(device)
    array = np.zeros(SHAPE, np.float32)
    c = graph.constant(array)
    held = sys.getrefcount(array)
    op = graph.compile([dml.activation_identity(c)])
    assert op.initialized
    assert sys.getrefcount(array) == held - 1


def test_a_graph_that_is_compiled_again_needs_the_constants_that_it_reads(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x, c = graph.input(SHAPE), graph.constant(full(2), sizes=SHAPE)
    graph.compile([x + c])
    assert np.all(graph.compile([x - 1])({x: ZEROS})[0] == -1)
    again = graph.compile([x * c])
    with pytest.raises(ValueError, match=r"earlier compile.*let go of its constants"):
        again({x: full(3)})
    again.initialize({c: full(4)})
    assert np.all(again({x: full(3)})[0] == 12)


# -- Buffers


def test_buffers_hold_tensors(device: dml.Device) -> None:
    array = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    buffer = dml.Buffer(device, array)
    assert (buffer.shape, buffer.dtype, buffer.nbytes, buffer.size, buffer.strides) == ((1, 1, 2, 3), np.float32, 24, 6, None)
    assert buffer.device is device
    assert isinstance(buffer.desc, dml.TensorDesc)
    array[:] = 0
    assert np.array_equal(buffer.numpy().ravel(), np.arange(6))
    assert dml.Buffer(device, full(0.5, dtype=np.float64), np.float16).dtype == np.float16


def test_buffers_are_bound_and_never_converted(device: dml.Device) -> None:
    x, op = copied(device)
    assert np.all(op({x: dml.Buffer(device, full(4))})[0] == 4)
    for buffer, said in (
        (dml.Buffer(device, full(4), np.float16), "not converted"),
        (dml.Buffer(device, full(4, 2, 3)), "does not fill"),
        (dml.Buffer(dml.Device(), full(4)), "different device"),
    ):
        with pytest.raises(ValueError, match=said):
            op({x: buffer})
    with pytest.raises(ValueError, match="not converted"):
        dml.Graph(device).constant(dml.Buffer(device, full(1)), np.float16)


def test_results_stay_on_the_device(device: dml.Device) -> None:
    graph = dml.Graph(device)
    x = graph.input(SHAPE)
    first = graph.compile([x * 2.0, x + 1.0])
    graph = dml.Graph(device)
    a, b = graph.input(SHAPE), graph.input(SHAPE)
    second = graph.compile([dml.multiply(a, b)])
    given = np.arange(4, dtype=np.float32).reshape(SHAPE)
    doubled, more = first({x: given}, readback=False)
    assert isinstance(doubled, dml.Buffer)
    assert doubled.shape == (1, 1, 2, 2)
    assert np.array_equal(second({a: doubled, b: more})[0], given * 2 * (given + 1))
    del first
    assert np.array_equal(doubled.numpy(), given * 2)


def test_buffers_are_owned_and_constant(device: dml.Device) -> None:
    x, w, op = summed(device)
    op.initialize({w: dml.Buffer(device, full(7))})
    assert np.all(op({x: ZEROS})[0] == 7)
    graph = dml.Graph(device)
    x, c = graph.input(SHAPE), graph.constant(dml.Buffer(device, full(7)), sizes=SHAPE)
    assert np.all(graph.compile([dml.add(x, c)])({x: ZEROS})[0] == 7)


def test_an_operator_of_nothing_is_called_without_inputs(device: dml.Device) -> None:
    graph = dml.Graph(device)
    filled = dml.fill_value_sequence(graph, sizes=[3], value_start=1, value_delta=2, dtype=np.int32)
    op = graph.compile([filled, filled + filled])
    assert [one.tolist() for one in op()] == [[1, 3, 5], [2, 6, 10]]
    assert op(readback=False)[0].numpy().tolist() == [1, 3, 5]
