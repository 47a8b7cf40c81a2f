"""The older interface, with which Microsoft's samples are written: builders, bindings by position, positional attributes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml
import tvmdml.pydirectml as dml

FUNCTIONS = """
input_tensor convolution up_sample_2d activation_relu activation_sigmoid activation_identity add subtract activation_tanh multiply
divide padding mean_variance_normalization slice value_scale_2d activation_linear batch_normalization local_response_normalization
gemm average_pooling max_pooling reinterpret activation_soft_max join gru gather
"""
FLOAT32, OWNED = dml.TensorDataType.FLOAT32, dml.TensorFlags.OWNED_BY_DML


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Built:
    """A graph whose inputs are made of arrays."""

    def __init__(self) -> None:
        self.device = dml.Device(True, True)
        self.builder = dml.GraphBuilder(self.device)
        self.bindings: list[dml.Binding] = []

    def given(self, array: Any, *form: Any) -> Any:
        desc = dml.TensorDesc(FLOAT32, *(form or (list(np.shape(array)),)))
        tensor = dml.input_tensor(self.builder, len(self.bindings), desc)
        self.bindings.append(dml.Binding(tensor, array))
        return tensor

    def computed(self, *outputs: Any) -> list[Any]:
        model = self.builder.build(dml.ExecutionFlags.NONE, list(outputs))
        return [np.array(one, np.float32) for one in self.device.compute(model, self.bindings, list(outputs))]


def test_the_names_are_those_of_the_module() -> None:
    assert {name for name, one in vars(dml).items() if inspect.isfunction(one) and name[0] != "_"} == set(FUNCTIONS.split())
    assert dml.FLOAT32 is dml.TensorDataType.FLOAT32
    assert dml.REFLECTION is dml.PaddingMode.REFLECTION
    assert list(dml.OutputOptions.__members__) == ["Both", "Sequence", "Single"]
    assert list(inspect.signature(dml.convolution).parameters)[3:6] == ["mode", "direction", "strides"]


def test_descriptions_have_several_forms() -> None:
    for given in ((FLOAT32, [1, 2]), (FLOAT32, OWNED, [1, 2]), (FLOAT32, [1, 2], [2, 1]), (FLOAT32, OWNED, [1, 2], [2, 1], 8, 0)):
        desc = dml.TensorDesc(*given)
        assert (desc.sizes, desc.total_tensor_size_in_bytes) == ([1, 2], 8)
        assert desc.flags is (OWNED if OWNED in given else dml.TensorFlags.NONE)
    assert dml.TensorDesc(FLOAT32, [1, 3, 2, 2], dml.TensorPolicy.interleaved_channel).strides == [12, 1, 6, 3]
    assert dml.TensorDesc(data_type=FLOAT32, sizes=[4], tensor_policy=dml.TensorPolicy.default).strides is None
    for wrong in ((FLOAT32,), (FLOAT32, [1], None, 4, 0, 7), (3, [1])):
        with pytest.raises(TypeError):
            dml.TensorDesc(*wrong)


@pytest.mark.full
def test_a_network_with_positional_attributes() -> None:
    net = Built()
    image, weights, bias = drawn(1, 2, 8, 8), drawn(4, 2, 3, 3, seed=1), drawn(1, 4, 1, 1, seed=2)
    x = net.given(image)
    w = net.given(weights, OWNED, [4, 2, 3, 3])
    b = net.given(bias, OWNED, [1, 4, 1, 1])
    padded = dml.padding(x, dml.PaddingMode.REFLECTION, 0.0, [0, 0, 1, 1], [0, 0, 1, 1])
    convolved = dml.convolution(padded, w, b, strides=[1, 1])
    relu = dml.FusedActivation(dml.OperatorType.ACTIVATION_RELU)
    normal = dml.mean_variance_normalization(convolved, None, None, [2, 3], True, True, 1e-5, relu)
    older = dml.mean_variance_normalization(convolved, None, None, [2, 3], True, 1e-5, relu)
    pooled = dml.max_pooling(normal, [2, 2], [2, 2])
    flat = dml.reinterpret(pooled.values, FLOAT32, [1, 1, 1, 64], [64, 64, 64, 1])
    more = net.given(np.arange(64.0), [1, 1, 1, 64], [64, 64, 64, 1])
    soft = dml.activation_soft_max(dml.add(flat, more * 0.0625))
    cut = dml.slice(convolved, [0, 0, 1, 1], [1, 4, 6, 6], [1, 1, 2, 2])
    joined = dml.join([cut, dml.activation_linear(cut, 2.0, 1.0)], 1)
    larger = dml.up_sample_2d(cut, dml.Size2D(2, 3), dml.InterpolationMode.NEAREST_NEIGHBOR)
    assert larger.get_output_desc().sizes == [1, 4, 9, 6]
    found = net.computed(normal, soft, joined, larger, older)

    right = tvmdml.convolution(np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)), "reflect"), weights, bias)
    wide = (right - right.mean((2, 3), keepdims=True)) / np.sqrt(right.var((2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(found[0], np.maximum(wide, 0), rtol=1e-4, atol=1e-5)
    sums = np.maximum(wide, 0).reshape(1, 4, 4, 2, 4, 2).max((3, 5)).ravel() + np.arange(64) / 16
    np.testing.assert_allclose(found[1].ravel(), np.exp(sums) / np.exp(sums).sum(), rtol=1e-4, atol=1e-6)
    part = right[:, :, 1:7:2, 1:7:2]
    np.testing.assert_allclose(found[2], np.concatenate([part, 2 * part + 1], 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[3], part.repeat(3, 2).repeat(2, 3), rtol=1e-5, atol=1e-5)
    assert np.array_equal(found[4], found[0])


def test_truth_values_are_numbers_in_samples() -> None:
    net = Built()
    image = drawn(1, 2, 4, 4)
    x = net.given(image)
    relu = dml.FusedActivation(dml.OperatorType.ACTIVATION_RELU)
    mean, variance, scale, bias = (net.given(np.full((1, 2, 1, 1), n), OWNED, [1, 2, 1, 1]) for n in (0.5, 2.0, 3.0, 0.25))
    found = net.computed(
        dml.batch_normalization(x, mean, variance, scale, bias, 1, 1e-5, relu),
        dml.mean_variance_normalization(x, scale, bias, [0, 2, 3], 1, 1, 1e-5, relu),
        dml.mean_variance_normalization(x, None, None, [0, 2, 3], 1, 1e-5),
        dml.mean_variance_normalization(x, axes=[0, 2, 3], normalize_variance=True, epsilon=1e-5),
        dml.average_pooling(x, [2, 2], [2, 2], [0, 0], [0, 0], 0),
        dml.average_pooling(x, [2, 2], [2, 2], [0, 0], [0, 0], [0, 0], 0),
        dml.average_pooling(
            x, strides=[2, 2], window_sizes=[2, 2], start_padding=[0, 0], end_padding=[0, 0], include_padding=False
        ),
    )
    normal = (image - image.mean((0, 2, 3), keepdims=True)) / np.sqrt(image.var((0, 2, 3), keepdims=True) + 1e-5)
    pooled = image.reshape(1, 2, 2, 2, 2, 2).mean((3, 5))
    right = [np.maximum(3 * (image - 0.5) / np.sqrt(2 + 1e-5) + 0.25, 0), np.maximum(3 * normal + 0.25, 0), normal, normal]
    for one, other in zip(found, [*right, pooled, pooled, pooled], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_remainders_are_those_of_c() -> None:
    net = Built()
    a, b = net.given(np.array([-7.0, -1, 1, 7])), net.given(np.array([5.0, 5, -5, -5]))
    remainder, quotient = net.computed(a % b, 2.0 / b)
    assert remainder.tolist() == [-2, -1, 1, 2]
    np.testing.assert_allclose(quotient, [0.4, 0.4, -0.4, -0.4], rtol=1e-6)
    with pytest.raises(TypeError):
        a % 2


def test_what_is_bound_must_fit() -> None:
    net = Built()
    x, w = net.given(drawn(1, 1, 2, 2)), net.given(np.ones(4), OWNED, [1, 1, 2, 2])
    y = x * w
    model = net.builder.build(dml.ExecutionFlags.NONE, [y])
    assert np.array_equal(net.device.compute(model, net.bindings, [y])[0], net.bindings[0].data)
    net.bindings[1] = dml.Binding(w, np.full(4, 2))  # float32, whatever is given
    found = net.device.compute(model, net.bindings, [y])[0]
    assert isinstance(found, dml.TensorData)
    assert np.array_equal(found, 2 * net.bindings[0].data)
    for inputs, outputs, kind in (
        (net.bindings[:1], [y], ValueError),
        (net.bindings, [x], ValueError),
        ([net.bindings[0], dml.Binding(w, np.ones(3))], [y], ValueError),
        ([net.bindings[0], 3], [y], TypeError),
    ):
        with pytest.raises(kind):
            net.device.compute(model, inputs, outputs)
    with pytest.raises(RuntimeError, match="input_index"):
        dml.input_tensor(net.builder, 7, dml.TensorDesc(FLOAT32, [1]))
    with pytest.raises(TypeError):
        dml.Binding(3, np.ones(3))


PROGRAM = """
import numpy as np
import pydirectml as dml
device = dml.Device()
builder = dml.GraphBuilder(device)
x = dml.input_tensor(builder, 0, dml.TensorDesc(dml.TensorDataType.FLOAT32, [1, 1, 2, 2]))
y = dml.gemm(x, x, trans_b=dml.MatrixTransform.TRANSPOSE)
op = builder.build(dml.ExecutionFlags.NONE, [y])
data = device.compute(op, [dml.Binding(x, np.array([[1, 2], [3, 4]]))], [y])
print(np.array(data[0], np.float32).ravel().tolist())
"""


@pytest.mark.full
@pytest.mark.parametrize("runner", ["tvmdml.pydirectml", "tvmdml.directml"])
def test_programs_run_as_they_are(runner: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", runner, "program.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "[5.0, 11.0, 11.0, 25.0]\n"


@pytest.mark.full
def test_early_programs_for_directml_have_types_and_two_steps(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import directml as dml
import numpy as np
device = dml.Device()
builder = dml.GraphBuilder(device)
kinds = dml.TensorDataType.INT32, dml.TensorFlags.OWNED_BY_DML
x = dml.input_tensor(builder, 0, dml.TensorDesc(kinds[0], [1, 1, 1, 2]))
w = dml.input_tensor(builder, 1, dml.TensorDesc(*kinds, [1, 1, 1, 2]))
y = dml.subtract(x, w)
model = builder.build(dml.ExecutionFlags.NONE, [y])
device.initialize(model, [dml.Binding(w, [1, 2**24 + 1])])
for _ in range(2):
    (found,) = device.dispatch(model, [dml.Binding(x, [5, 2**24 + 2])], [y])
print(found.dtype, found.tolist())
"""
    )
    done = subprocess.run([sys.executable, "-m", "tvmdml.pydirectml", program], capture_output=True, text=True, check=True)
    assert done.stdout == "int32 [[[[4, 1]]]]\n"
