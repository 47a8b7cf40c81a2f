"""Gradients of the PyTorch operators: every formula that a class states, against slopes and against PyTorch's own gradients."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import specimens
from support import seeded

from tvmdml import doors, operators
from tvmdml.doors._made import made
from tvmdml.errors import Unsupported
from tvmdml.operators._contract import Role
from tvmdml.operators._gradients import gradients
from tvmdml.tensors import TensorDataType

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tvmdml.torch  # noqa: E402 - registers
from tvmdml.torch import _gradients, _register, _schemas  # noqa: E402

ops = torch.ops.tvmdml

FUNCTIONS = {name: function for module in operators.modules() for name, function in doors.functions(module).items()}
DIFFERENTIABLE = [name for name, function in FUNCTIONS.items() if function.operator.GRADIENT]


def values(*sizes: int, seed: Any = "") -> Any:
    """Numbers of both signs, of which no two are equal, none near an integer, and none near those of another seed."""
    count, random = torch.Size(sizes).numel(), seeded("gradient", seed)
    return torch.from_numpy((random.permutation(count) - count // 2).reshape(sizes) / 3.0 + random.uniform(0.02, 0.1))


def arguments_of(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a function: tensors for its inputs, and values for what has no default."""
    function = FUNCTIONS[name]
    (schema, *_) = _schemas.schemas(function)
    types = [row.tensors for row in function.operator.SUPPORT]
    fields = [field.name for field in function.operator.fields() if field.role is Role.INPUT]
    tensors: list[Any] = []
    for field in fields:
        floating = any(TensorDataType.FLOAT64 in row[field].types for row in types)
        x = values(*SIZES_OF.get((name, field), SIZES.get(name, (4, 6))), seed=field)
        tensors.append(x.requires_grad_() if floating else (x > 0).to(torch.uint8))
    floats = itertools.count(0.3, 0.6)
    chosen: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = schema.arguments.get(parameter.name)
        if parameter.default is parameter.empty and kind is not None and not kind.startswith("Tensor"):
            chosen[parameter.name] = {"ScalarType?": torch.float64, "SymInt": 2}.get(kind) or next(floats)
    return tensors, ATTRIBUTES.get(name, chosen)


_WINDOW = {"start_padding": [1, 1], "end_padding": [1, 1]}
ATTRIBUTES: Mapping[str, dict[str, Any]] = {
    "slice": {"input_window_offsets": [1, 2], "input_window_sizes": [3, 4], "input_window_strides": [2, -1]},
    "slice_grad": {
        "input_window_offsets": [1, 0], "input_window_sizes": [4, 6], "input_window_strides": [1, -1],
        "output_gradient_sizes": [5, 7],
    },
    "max_pooling": _WINDOW | {"window_sizes": [3, 3]},
    "average_pooling": _WINDOW | {"window_sizes": [3, 3], "include_padding": True},
    "average_pooling_grad": _WINDOW | {"window_sizes": [3, 3], "output_gradient_sizes": [1, 2, 4, 3]},
    "local_response_normalization": {"cross_channel": True, "local_size": 2, "alpha": 0.5},
    "convolution": _WINDOW | {"strides": [2, 1], "dilations": [1, 2], "group_count": 2, "mode": "convolution"},
    "gemm": {"trans_a": "transpose", "alpha": 0.5, "beta": -2.0},
    "resample": {"output_sizes": [7, 4], "interpolation_mode": "linear"},
    "resample_grad": {"output_sizes": [3, 9], "interpolation_mode": "linear", "rounding_direction": "increasing"},
}  # fmt: skip
"""Attributes that must fit the tensors, of four rows with six elements unless ``SIZES`` says otherwise."""
SIZES = dict.fromkeys(("max_pooling", "average_pooling", "average_pooling_grad", "local_response_normalization"), (1, 2, 4, 3)) | {
    "gemm": (4, 4)
}
SIZES_OF: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("convolution", "input_tensor"): (2, 4, 5, 6),
    ("convolution", "filter_tensor"): (6, 2, 3, 2),
    ("convolution", "bias_tensor"): (1, 6, 1, 1),
}
"""Those of the tensors of an operator, by field."""


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_formula_is_the_slope_of_its_function(name: str) -> None:
    tensors, attributes = arguments_of(name)

    def run(*given: Any) -> Any:
        results = getattr(ops, name)(*given, **attributes)
        return results[0] if isinstance(results, tuple) else results

    # Functions of positive numbers, of numbers up to 1, of numbers above 1.
    for change in (torch.abs, lambda x: x / 10, lambda x: x.abs() + 1):
        if run(*tensors).isfinite().all():
            break
        tensors = [change(x.detach()).requires_grad_() for x in arguments_of(name)[0]]
    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_formula_names_only_what_exists(name: str) -> None:
    (schema, *_) = _schemas.schemas(FUNCTIONS[name])
    tensors = [one for one, kind in schema.arguments.items() if kind.startswith("Tensor")]
    known = {*schema.arguments, *schema.results, "gradient", *(f"{one}_gradient" for one in schema.results)}
    known |= {*(f"{one}_sizes" for one in tensors), *FUNCTIONS, *_gradients._WORDS}
    formulas = FUNCTIONS[name].operator.GRADIENT
    assert set(formulas) <= set(tensors)
    assert {one for formula in formulas.values() for one in formula.co_names} <= known


PYTORCHS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "max": torch.maximum,
    "min": torch.minimum,
    "modulus_truncate": torch.fmod,
    "modulus_floor": torch.remainder,
    "mean": lambda a, b: (a + b) / 2,
    "difference_square": lambda a, b: (a - b) ** 2,
    "negate": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "recip": torch.reciprocal,
    "activation_relu": torch.relu,
    "activation_leaky_relu": torch.nn.functional.leaky_relu,
    "activation_softsign": torch.nn.functional.softsign,
    "activation_celu": torch.celu,
    "activation_elu": torch.nn.functional.elu,
    "activation_gelu": torch.nn.functional.gelu,
    "activation_scaled_elu": torch.selu,
    "activation_sigmoid": torch.sigmoid,
    "activation_softplus": lambda x: torch.nn.functional.softplus(x, threshold=1e30),
    "activation_swish": torch.nn.functional.silu,
    "activation_tanh": torch.tanh,
    "atan": torch.atan,
    "erf": torch.erf,
    "exp": torch.exp,
    "sinh": torch.sinh,
    "sin": torch.sin,
    "cos": torch.cos,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.drawn("name", PYTORCHS, 8)
def test_gradients_are_pytorchs(name: str, dtype: Any) -> None:
    """Also where inputs are broadcast: their gradients are summed."""
    shapes = [(3, 4)] if len(FUNCTIONS[name].operator.GRADIENT) == 1 else [(3, 1), (2, 1, 4)]
    mine, theirs = ([values(*s, seed=s).to(dtype).requires_grad_() for s in shapes] for _ in range(2))
    result = getattr(ops, name)(*mine)
    weights = values(*result.shape).to(dtype)
    result.backward(weights)
    PYTORCHS[name](*theirs).backward(weights)
    for one, other in zip(mine, theirs, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", [((), (2, 3)), ((2, 3), ()), ((1,), (2, 3)), ((0, 1), (1, 3)), ((), ())])
def test_gradients_of_broadcast_inputs_have_their_sizes(shapes: tuple[Any, Any]) -> None:
    a, b = (torch.full(shape, 2.5, requires_grad=True) for shape in shapes)
    ops.multiply(a, b).sum().backward()
    for x in (a, b):
        assert x.grad.shape == x.shape
        assert x.grad.sum() == 2.5 * (a * b).numel()


def test_only_what_formulas_name_is_kept() -> None:
    a, b = (values(2, 3, seed=i).requires_grad_() for i in range(2))
    assert ops.add(a, b).grad_fn.saved_tensors == ()
    (kept,) = ops.multiply(a, b.detach()).grad_fn.saved_tensors
    assert kept.data_ptr() == b.data_ptr()


@pytest.mark.parametrize("name", ["abs", "sqrt", "recip", "clip", "identity", "floor"])
def test_scaled_inputs_have_the_gradient_of_the_scaled_function(name: str) -> None:
    x = values(3, 4).abs().requires_grad_()
    attributes = {"min": 1.0, "max": 2.0} if name == "clip" else {}
    assert torch.autograd.gradcheck(lambda x: getattr(ops, name)(x, scale_bias=[1.5, 0.125], **attributes), x)


def test_gradients_have_gradients() -> None:
    a, b = (values(2, 3, seed=i).requires_grad_() for i in range(2))
    assert torch.autograd.gradgradcheck(lambda a, b: ops.divide(ops.multiply(a, a), b), (a, b))


def test_a_cast_casts_the_gradient_back() -> None:
    x = values(2, 3).half().requires_grad_()
    ops.cast(x, torch.float32).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (torch.float16, [[1] * 3] * 2)
    assert not ops.cast(x, torch.int32).requires_grad


def test_gradients_flow_through_compiled_code_with_open_sizes() -> None:
    def step(a: Any, b: Any) -> Any:
        return ops.activation_leaky_relu(ops.multiply(ops.add(a, b), b)).sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (2, 5, 7):
        mine, theirs = ([values(rows, 4, seed=0).requires_grad_(), values(4, seed=1).requires_grad_()] for _ in range(2))
        compiled(*mine).backward()
        step(*theirs).backward()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


# -- New operators ------------------------------------------------------------------------------------------------


class TwoHalves(specimens.Parted):
    """A specimen with a gradient of each result."""

    NAME = "SPECIMEN_TWO_HALVES"
    FUNCTION = "specimen_two_halves"
    GRADIENT = gradients(
        a="subtract(multiply(gradient, 2), second_gradient)",
        b="subtract(multiply(second_gradient, 2), first_gradient)",
    )


class OnlyB(specimens.MixedByFamily):
    """A specimen with a gradient of one input only."""

    NAME = "SPECIMEN_ONLY_B"
    FUNCTION = "specimen_only_b"
    GRADIENT = gradients(b="negate(gradient)")


def registered(cls: Any) -> Any:
    function = made(cls)[cls.FUNCTION]
    _register._register_all({cls.FUNCTION: function})
    return getattr(ops, cls.FUNCTION)


def test_each_result_has_its_own_gradient() -> None:
    op = registered(TwoHalves)
    a, b = (values(2, 3, seed=i).requires_grad_() for i in range(2))
    assert torch.autograd.gradcheck(op, (a, b))


def test_an_input_without_a_gradient_says_so() -> None:
    op = registered(OnlyB)
    a, b = (values(2, 3, seed=i).requires_grad_() for i in range(2))
    op(a.detach(), b).sum().backward()
    assert b.grad.tolist() == [[-1] * 3] * 2
    text = "tvmdml.specimen_only_b: gradient of a: given a backward pass; allowed: none: it has no gradient. Pass x.detach"
    with pytest.raises(Unsupported, match=text):
        op(a, b).sum().backward()


def test_a_function_that_pytorch_has_no_types_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def specimen_strange(x: Any, y: complex) -> Any: ...

    specimen_strange.__annotations__ = {"x": "AnyArray", "y": "complex", "return": "AnyArray"}
    monkeypatch.setattr(tvmdml.torch._register, "UNREGISTERED", unregistered := {})
    _register._register_all({"specimen_strange": specimen_strange, "specimen_other": FUNCTIONS["add"]})
    assert list(unregistered) == ["specimen_strange"]
    assert "PyTorch has no type for y: complex" in unregistered["specimen_strange"]
    assert not hasattr(ops, "specimen_strange")
    assert ops.specimen_other is ops.add


def test_every_function_of_the_package_is_a_pytorch_operator() -> None:
    assert tvmdml.torch.UNREGISTERED == {}
