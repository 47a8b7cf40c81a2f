"""The functions as PyTorch operators: equal results, and graphs that know the results' shapes before there is data."""

from __future__ import annotations

import importlib
import inspect
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import specimens
from hypothesis import given
from hypothesis import strategies as st
from programs import python
from support import ordinary, seeded, sparse
from typing_extensions import overload

import tvmdml
from tvmdml import doors, operators
from tvmdml.doors.top_k import TopKResult
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported
from tvmdml.functions import AnyArray, call
from tvmdml.operators import Operator
from tvmdml.operators._contract import NumpyArray
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

import tvmdml.torch  # noqa: E402 - registers
from tvmdml.torch import _register, _schemas  # noqa: E402
from tvmdml.typing import DType  # noqa: E402

ops = torch.ops.tvmdml
opcheck = torch.library.opcheck

FLOATING = [torch.float16, torch.float32, torch.float64]
ALL = [*FLOATING, *(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))]
INDICES = [torch.int32, torch.int64, torch.uint32, torch.uint64]
NO_BOUND = 2**31 - 1


def of(make: Callable[..., NumpyArray], dtype: Any, shape: tuple[int, ...], *more: Any) -> Any:
    """A tensor of reproducible values."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return torch.from_numpy(np.asarray(seeded(shape).random(shape) < 0.4))
    return torch.from_numpy(make(seeded(make.__name__, name, shape), TensorDataType.of(name, ""), shape, *more).reshape(shape))


def in_bits(results: Any) -> list[tuple[Any, ...]]:
    """What must be equal of results that are to be the same."""
    flat = results if isinstance(results, (tuple, list)) else (results,)
    return [(type(t), t.dtype, tuple(t.shape), t.stride() if t.numel() else "any", t.numpy().tobytes()) for t in flat]


def layouts(tensor: Any, few: bool) -> Iterator[Any]:
    """The tensor as it is, and its elements in other orders of memory, with gaps, repeated."""
    yield tensor
    if tensor.ndim > 1:
        yield tensor.transpose(0, -1)
    if tensor.ndim and not few:
        yield tensor[..., ::2]
        yield tensor[1:]
        yield tensor[:1].expand(3 if len(tensor) else 0, *tensor.shape[1:])


FEW = [(), (2, 7), (3, 0, 2), (1, 2, 1, 2, 1, 2, 1, 2)]
MANY = [*FEW, (0,), (9,), (2, 3, 4), (2, 1, 2, 2, 3)]


def calls(dtype: Any, few: bool = False) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Every operator, with inputs of a type, in all the forms that differ; a few of them are of numbers alone."""
    for shape in FEW if few else MANY:
        for x in layouts(tame(of(sparse, dtype, shape, 0.5)) if few else of(sparse, dtype, shape, 0.5), few):
            yield ops.nonzero_coordinates, (x,), {}
            if dtype in FLOATING:
                yield ops.round, (x,), {"rounding_mode": "Toward_Infinity"}
            if dtype is not torch.bool and x.numel():
                sizes = tuple(x.shape) or (1,)
                yield ops.top_k, (x, 1), {}
                yield ops.top_k, (x, max(sizes)), {"axis": sizes.index(max(sizes)), "axis_direction": "increasing"}
            if dtype is not torch.bool and x.ndim >= 2:
                yield ops.diagonal_matrix, (x,), {"value": 3, "diagonal_fill_begin": -1}
    x = tame(of(sparse, dtype, (2, 7), 0.5))
    for index_dtype in INDICES:
        yield ops.nonzero_coordinates, (x,), {"index_dtype": index_dtype}
        if dtype is not torch.bool:
            yield ops.top_k, (x, 2), {"index_dtype": index_dtype}
    if dtype is not torch.bool:
        yield ops.diagonal_matrix, (), {"sizes": (2, 3, 4), "dtype": dtype, "value": 1}


def tame(x: Any) -> Any:
    """Numbers that PyTorch's own checks can compare and add up."""
    return x.nan_to_num().clamp(-9, 9) if x.dtype in FLOATING else x


def directly(op: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What tvmdml's function answers."""
    results = getattr(tvmdml, op.__name__)(*arguments, **keywords)
    flat = results if isinstance(results, tuple) else (results,)
    flat = tuple(torch.from_numpy(r) if isinstance(r, np.ndarray) else r for r in flat)
    return flat if isinstance(results, tuple) else flat[0]


# -- Registration -------------------------------------------------------------------------------------------------


def functions() -> dict[str, Any]:
    return {name: function for module in operators.modules() for name, function in doors.functions(module).items()}


@pytest.mark.parametrize("name", functions())
def test_every_function_is_registered_with_its_keywords(name: str) -> None:
    function, op = functions()[name], getattr(ops, name)
    taken = {argument.name for form in op.overloads() for argument in getattr(op, form)._schema.arguments}
    assert set(inspect.signature(function).parameters) - {"out", "device", "fused_activation", "activation_descs"} <= taken
    assert not any(argument.is_out for argument in op.default._schema.arguments)
    for form in op.overloads():
        for key in ("CPU", "CUDA", "Meta", "Autograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(getattr(op, form).name(), key)


def test_another_spelling_is_the_same_operator() -> None:
    assert ops.non_zero_coordinates is ops.nonzero_coordinates


def test_registering_again_changes_nothing() -> None:
    before = ops.top_k
    tvmdml.torch.register()
    importlib.reload(tvmdml.torch)
    assert ops.top_k is before
    assert ops.top_k(torch.tensor([1.0, 2.0]), 1)[1].tolist() == [1]


def test_pytorch_is_loaded_by_those_who_ask_for_it() -> None:
    code = "import sys, tvmdml; tvmdml.top_k; print('torch' in sys.modules, 'tvmdml.torch' in sys.modules)"
    assert python(code) == "False False\n"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("no PyTorch", "sys.modules['torch'] = None"),
        ("PyTorch 2.3.1", "sys.modules['torch'] = types.SimpleNamespace(__version__='2.3.1', library=None)"),
    ],
)
def test_without_pytorch_the_import_says_so(given: str, code: str) -> None:
    code = f"import sys, types; {code}\ntry: import tvmdml.torch\nexcept ImportError as error: print(error)"
    assert python(f"{code}\nimport tvmdml; tvmdml.top_k").startswith(
        f"tvmdml.torch: given {given}; allowed: 2.4 or later. `pip install"
    )


# -- Answers ------------------------------------------------------------------------------------------------------


@pytest.mark.drawn("dtype", [*ALL[1:], torch.bool], 3, ALL[0])
def test_an_operator_answers_as_the_function_does(dtype: Any) -> None:
    for op, arguments, keywords in calls(dtype):
        assert in_bits(op(*arguments, **keywords)) == in_bits(directly(op, arguments, keywords)), (op, arguments, keywords)


@pytest.mark.drawn("dtype", [*ALL, torch.bool], 3)
def test_an_operator_keeps_pytorchs_rules(dtype: Any, draw: Callable[..., list[Any]]) -> None:
    for op, arguments, keywords in draw(calls(dtype, few=True), 16):
        assert set(opcheck(op.default, arguments, keywords).values()) == {"SUCCESS"}
        if dtype in FLOATING and arguments and arguments[0].shape == (2, 7):
            arguments = (arguments[0].clone().requires_grad_(), *arguments[1:])
            assert set(opcheck(op.default, arguments, keywords).values()) == {"SUCCESS"}
    x = torch.ones((2, 3)).to(dtype)  # rows past the count are undefined: here there are none
    assert set(opcheck(ops.nonzero_coordinates.trim_false, (x,), {"trim": False}).values()) == {"SUCCESS"}


def test_nonzero_without_trimming_has_room_for_all() -> None:
    x = torch.tensor([[0, 3], [0, 4]])
    count, coordinates = ops.nonzero_coordinates(x, trim=False)
    assert count.tolist() == [2]
    assert coordinates.shape == (4, 2)
    assert coordinates[:2].tolist() == [[0, 1], [1, 1]]
    with pytest.raises(InvalidArgument, match=r"nonzero_coordinates: trim: given True; allowed: False. Omit trim"):
        ops.nonzero_coordinates(x, trim=True)


def test_a_matrix_from_nothing_lies_where_it_is_asked_for() -> None:
    assert ops.diagonal_matrix(sizes=[2, 2]).device.type == "cpu"
    assert ops.diagonal_matrix(sizes=[2, 2], device="cpu").tolist() == [[1, 0], [0, 1]]
    there = ops.diagonal_matrix(sizes=[2, 3], dtype=torch.int8, device="meta")
    assert (there.device.type, there.dtype, there.shape) == ("meta", torch.int8, (2, 3))
    x = torch.zeros(2, 2)
    assert ops.diagonal_matrix(x, device="cpu").tolist() == [[1, 0], [0, 1]]
    for wrong in (x, x.to("meta")):
        with pytest.raises(InvalidArgument, match=r"diagonal_matrix: device: given .*; allowed: .*, the input's"):
            ops.diagonal_matrix(wrong, device="cuda")
    assert ops.diagonal_matrix(sizes=(1, 1), dtype=torch.uint64, value=2**64 - 1).item() == 2**64 - 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_indices_are_int64_unless_a_type_is_named(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    assert ops.top_k(x, 1)[1].dtype == torch.int64
    assert ops.top_k(x, 1, index_dtype=torch.uint32)[1].dtype == torch.uint32
    assert ops.nonzero_coordinates.trim_false(x, trim=False)[1].dtype == torch.int64
    assert ops.top_k(x, 0)[1].shape == (2, 0)
    if device == "cpu":
        assert ops.nonzero_coordinates(x).dtype == torch.int64
        assert torch.equal(x[ops.nonzero_coordinates(x).unbind(1)], torch.ones(6))


def test_compiled_and_exported_programs_have_the_same_defaults() -> None:
    def best(x: Any) -> Any:
        found = ops.top_k(x, 2)
        kept = ops.diagonal_matrix(x, value=0, diagonal_fill_begin=None, diagonal_fill_end=1)
        return x.gather(1, found[1]), ops.top_k(x, 0)[0], kept

    x = torch.tensor([[3.0, 1, 2], [4, 6, 5]])
    expected = (torch.tensor([[3.0, 2], [6, 5]]), torch.empty(2, 0), torch.triu(x, 1))
    torch._dynamo.reset()
    for made in (best, torch.compile(best, backend="eager", fullgraph=True), exported(best, x).module()):
        for one, other in zip(made(x), expected, strict=True):
            assert torch.equal(one, other)


BAD: dict[str, Callable[[Any], Any]] = {
    "k too large": lambda x: ops.top_k(x, 99),
    "k below none": lambda x: ops.top_k(x, -1),
    "no such axis": lambda x: ops.top_k(x, 1, axis=2),
    "no such direction": lambda x: ops.top_k(x, 1, axis_direction="sideways"),
    "no such index type": lambda x: ops.top_k(x, 1, index_dtype=torch.float32),
    "no such mode": lambda x: ops.round(x, rounding_mode="up"),
    "integers to round": lambda x: ops.round(x.int()),
    "bool to sort": lambda x: ops.top_k(x > 0, 1),
    "bfloat16": lambda x: ops.top_k(x.bfloat16(), 1),
    "complex": lambda x: ops.nonzero_coordinates(x.to(torch.complex64)),
    "nine dimensions": lambda x: ops.round(x[(None,) * 7]),
    "a vector for a matrix": lambda x: ops.diagonal_matrix(x[0]),
    "no sizes": lambda x: ops.diagonal_matrix(),
    "other sizes": lambda x: ops.diagonal_matrix(x, sizes=(1, 1)),
    "negative sizes": lambda x: ops.diagonal_matrix(sizes=(-1, 1)),
    "a value that does not fit": lambda x: ops.diagonal_matrix(x.to(torch.int8), value=128),
    "trim": lambda x: ops.nonzero_coordinates(x, trim=True),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_argument_is_the_same_error_before_there_are_data(bad: Callable[[Any], Any]) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(TvmdmlError) as real:
        bad(x)
    with FakeTensorMode() as mode, pytest.raises(real.type):
        bad(mode.from_tensor(x))
    with pytest.raises(real.type):
        bad(x.to("meta"))
    with pytest.raises(real.type):
        exported(bad, x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=real.type.__name__):
        torch.compile(bad, backend="eager", fullgraph=True)(x)


# -- Without data -------------------------------------------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """A tensor of any type, rank and layout."""
    dtype = draw(st.sampled_from([*ALL, torch.bool]))
    sizes = draw(st.lists(st.integers(0, 4), max_size=8))
    steps = draw(st.lists(st.integers(1, 2), min_size=len(sizes), max_size=len(sizes)))
    order = draw(st.permutations(range(len(sizes))))
    x = of(sparse, dtype, tuple(n * s for n, s in zip(sizes, steps, strict=True)), 0.5)
    x = x[tuple(slice(None, None, step) for step in steps)].permute(order)
    if sizes and draw(st.booleans()):
        x = x[:1].expand(draw(st.integers(1, 3)) if x.shape[0] else 0, *x.shape[1:])
    return x


numbers = st.integers(-9, 9)
draws: list[Callable[[Any, st.DataObject], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = [
    lambda x, data: (ops.round, (x,), {"rounding_mode": data.draw(st.sampled_from(["toward_zero", "halves_to_nearest_even", ""]))}),
    lambda x, data: (
        ops.top_k,
        (x, data.draw(st.integers(-1, 5))),
        {"axis": data.draw(numbers), "index_dtype": data.draw(st.sampled_from([*INDICES, None]))},
    ),
    lambda x, data: (ops.nonzero_coordinates, (x,), {"index_dtype": data.draw(st.sampled_from([*INDICES, torch.bool]))}),
    lambda x, data: (ops.nonzero_coordinates, (x,), {"trim": False}),
    lambda x, data: (
        ops.diagonal_matrix,
        (data.draw(st.sampled_from([x, None])),),
        {
            "sizes": data.draw(st.sampled_from([None, x.shape])),
            "dtype": data.draw(st.sampled_from([None, x.dtype])),
            "value": data.draw(numbers | st.sampled_from([0.5, float("nan")])),
            "diagonal_fill_begin": data.draw(numbers),
            "diagonal_fill_end": data.draw(numbers),
        },
    ),
]


def form_of(results: Any, trimmed: bool) -> Any:
    """Type, shape and strides; not how many rows, where only the data tell."""
    flat = results if isinstance(results, tuple) else (results,)
    return [(t.dtype, tuple(t.shape)[trimmed:], t.stride()) for t in flat]


@given(tensors(), st.sampled_from(draws), st.data())
def test_results_without_data_have_the_form_of_those_with(x: Any, draw: Any, data: st.DataObject) -> None:
    op, arguments, keywords = draw(x, data)
    trimmed = op is ops.nonzero_coordinates and "trim" not in keywords
    try:
        real = op(*arguments, **keywords)
    except TvmdmlError as error:
        real = error
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        arguments = tuple(mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in arguments)
        if isinstance(real, TvmdmlError):
            with pytest.raises(type(real)):
                op(*arguments, **keywords)
        else:
            assert form_of(op(*arguments, **keywords), trimmed) == form_of(real, trimmed)


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def exported(function: Callable[..., Any], *arguments: Any, **dimensions: Any) -> Any:
    return torch.export.export(Model(function), arguments, dynamic_shapes=(dimensions["open"],) if dimensions else None)


B, N = Dim("b"), Dim("n", min=8)

# The function, the open dimensions of its matrix, and the results' shapes, with b and n as the matrix's.
OPEN: dict[str, tuple[Callable[[Any], Any], dict[int, Any], Callable[[Any, Any], list[tuple[Any, ...]]]]] = {
    "round": (lambda x: ops.round(x), {0: B, 1: N}, lambda b, n: [(b, n)]),
    "top_k of a batch": (lambda x: ops.top_k(x, 3), {0: B}, lambda b, n: [(b, 3)] * 2),
    "top_k of any length": (lambda x: ops.top_k(x, 3), {0: B, 1: N}, lambda b, n: [(b, 3)] * 2),
    "top_k of all": (lambda x: ops.top_k(x, x.shape[1]), {0: B, 1: N}, lambda b, n: [(b, n)] * 2),
    "top_k of all but one": (lambda x: ops.top_k(x, x.shape[1] - 1), {0: B, 1: N}, lambda b, n: [(b, n - 1)] * 2),
    "nonzero": (lambda x: ops.nonzero_coordinates(x), {0: B, 1: N}, lambda b, n: [(None, 2)]),
    "nonzero of nonzero": (
        lambda x: ops.nonzero_coordinates(ops.nonzero_coordinates(x)),
        {0: B, 1: N},
        lambda b, n: [(None, 2)] * 2,
    ),
    "nonzero, not trimmed": (
        lambda x: ops.nonzero_coordinates(x * 0 + 1, trim=False),
        {0: B, 1: N},
        lambda b, n: [(1,), (b * n, 2)],
    ),
    "diagonal_matrix": (lambda x: ops.diagonal_matrix(x, value=0.5), {0: B, 1: N}, lambda b, n: [(b, n)]),
    "diagonal_matrix of sizes": (
        lambda x: ops.diagonal_matrix(sizes=(x.shape[1], x.shape[0]), diagonal_fill_begin=x.shape[0], diagonal_fill_end=NO_BOUND),
        {0: B, 1: N},
        lambda b, n: [(n, b)],
    ),
    "diagonal_matrix of a sum": (lambda x: ops.diagonal_matrix(x, value=x.sum().item()), {0: B, 1: N}, lambda b, n: [(b, n)]),
    "top_k of as many as the data say": (
        lambda x: ops.top_k(x, counted(x)),
        {0: B},
        lambda b, n: [(b, None)] * 2,
    ),
    "top_k of what nonzero found": (
        lambda x: ops.top_k(at_least(2, ops.nonzero_coordinates(x)), 2, axis=0),
        {0: B, 1: N},
        lambda b, n: [(None, 2), (2, 2), (2, 2)],
    ),
}


def counted(x: Any) -> Any:
    count = (x != 0).sum().clamp(1, x.shape[1]).item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[1])
    return count


def at_least(rows: int, x: Any) -> Any:
    torch._check(x.shape[0] >= rows)
    return x


@pytest.mark.parametrize(("function", "dimensions", "shapes"), OPEN.values(), ids=OPEN)
def test_sizes_stay_open_in_an_exported_graph(function: Any, dimensions: Any, shapes: Any) -> None:
    x = of(sparse, torch.float32, (4, 16), 0.5)
    program = exported(function, x, open=(dimensions,))
    nodes = [node for node in program.graph.nodes if "tvmdml" in str(node.target)]
    results = [t for node in nodes for t in torch.utils._pytree.tree_leaves(node.meta["val"])]
    (given,) = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    assert len(results) == len(shapes(*given.shape))
    for result, shape in zip(results, shapes(*given.shape), strict=True):
        for size, wanted in zip(result.shape, shape, strict=True):
            assert isinstance(size, torch.SymInt) if wanted is None else str(size) == str(wanted)
    height, width = (9 if 0 in dimensions else 4), (33 if 1 in dimensions else 16)
    for other in (x, of(sparse, torch.float32, (height, width), 0.5), of(ordinary, torch.float32, (height, width))):
        assert in_bits(program.module()(other)) == in_bits(function(other))


def test_a_graph_keeps_the_guard_that_k_fits() -> None:
    program = exported(lambda x: ops.top_k(x, 3), torch.ones(4, 16), open=({1: N},))
    with pytest.raises(Exception, match=r"8"):
        program.module()(torch.ones(4, 7))


def test_an_exported_program_is_saved_and_loaded() -> None:
    x = of(ordinary, torch.float32, (4, 16))
    program = exported(pipeline, x, open=({0: B},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert [str(node.target) for node in loaded.graph.nodes] == [str(node.target) for node in program.graph.nodes]
    assert in_bits(loaded.module()(x[:3])) == in_bits(pipeline(x[:3]))


# -- Compiled -----------------------------------------------------------------------------------------------------


def pipeline(x: Any) -> tuple[Any, ...]:
    """Every operator whose results' sizes are known without data."""
    values, indices = ops.top_k(x * 2, 3, axis_direction="increasing")
    band = ops.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=NO_BOUND)
    mask = ops.diagonal_matrix(sizes=(x.shape[0], x.shape[1]), diagonal_fill_begin=-1)
    count, _ = ops.nonzero_coordinates(band, trim=False)
    return ops.round(values + 0.25), indices, band * mask, count


COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(COMPILER is None, reason="no C++ compiler, which inductor takes")),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_is_one_graph_with_the_same_answers(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(pipeline, backend=backend, fullgraph=True, dynamic=True)
    for shape in ((4, 16), (5, 7)):
        x = of(ordinary, torch.float32, shape)
        assert in_bits(compiled(x)) == in_bits(pipeline(x))
        assert in_bits(compiled(x.T)) == in_bits(pipeline(x.T))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_may_have_sizes_that_the_data_tell(backend: str) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: ops.nonzero_coordinates(x, index_dtype=torch.int64) * 2, backend=backend, fullgraph=True)
        for density in (0.0, 0.1, 0.5):
            x = of(sparse, torch.float32, (4, 16), density)
            assert in_bits(compiled(x)) == in_bits(ops.nonzero_coordinates(x, index_dtype=torch.int64) * 2)


def test_compiling_breaks_no_graph() -> None:
    explained = torch._dynamo.explain(pipeline)(torch.ones(4, 16))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    targets = {str(node.target) for graph in explained.graphs for node in graph.graph.nodes}
    assert {"tvmdml.top_k", "tvmdml.round", "tvmdml.diagonal_matrix", "tvmdml.nonzero_coordinates"} <= targets


# -- Gradients ----------------------------------------------------------------------------------------------------

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "top_k": lambda x: ops.top_k(x, 2)[0],
    "top_k along the first axis": lambda x: ops.top_k(x, 2, axis=0, axis_direction="increasing", index_dtype=torch.int32)[0],
    "diagonal_matrix": lambda x: ops.diagonal_matrix(x, value=0.5, diagonal_fill_begin=-1, diagonal_fill_end=2),
    "diagonal_matrix outside in": lambda x: ops.diagonal_matrix(x, diagonal_fill_begin=2, diagonal_fill_end=-1),
}


@pytest.mark.parametrize("function", SMOOTH.values(), ids=SMOOTH)
def test_gradients_are_the_functions_slopes(function: Any) -> None:
    x = torch.from_numpy(seeded("gradient").permutation(24).reshape(2, 3, 4) / 3.0).requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(lambda x: function(x) ** 2, x)


def test_gradients_are_pytorchs_where_both_mean_the_same() -> None:
    x = torch.from_numpy(seeded("gradient").permutation(27).reshape(3, 9) / 3.0).requires_grad_()  # no two are equal
    pairs = [
        (ops.top_k(x, 4)[0], torch.topk(x, 4).values),
        (ops.round(x), torch.round(x)),
        (ops.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=NO_BOUND), torch.tril(x)),
        (ops.top_k(x[0, 0], 1)[0], x[0, 0]),
    ]
    for mine, theirs in pairs:
        weights = torch.arange(1.0, mine.numel() + 1, dtype=x.dtype).reshape(mine.shape)
        wanted = torch.autograd.grad(theirs, x, weights.reshape(theirs.shape))
        assert in_bits(torch.autograd.grad(mine, x, weights)) == in_bits(wanted)


def test_integers_have_no_gradient() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert not ops.top_k(x, 1)[1].requires_grad
    assert not ops.nonzero_coordinates(x).requires_grad
    assert not any(t.requires_grad for t in ops.nonzero_coordinates(x, trim=False))
    with torch.no_grad():
        assert not ops.round(x).requires_grad
    with torch.inference_mode():
        assert ops.top_k(x, 1)[0].tolist() == [[1], [1]]


# -- New operators ------------------------------------------------------------------------------------------------


def _first(inputs: Any, results: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
    return tuple(result[:1] for result in results)


def first_of_two(a: AnyArray, b: AnyArray, *, device: str | None = None) -> AnyArray:
    def describe(a: ArrayTensorDesc, b: ArrayTensorDesc) -> Operator:
        return specimens.MixedByFamily(a_tensor=a, b_tensor=b, output_tensor=a)

    return call(describe, (a, b), (), None, device, finish=_first)[0]


def test_a_function_with_a_last_step_has_to_tell_shapes() -> None:
    (schema,) = _schemas.schemas(first_of_two)
    _register._register(schema)
    x = torch.ones(3)
    assert ops.first_of_two(x, x).tolist() == [1]
    with pytest.raises(Unsupported, match=r"test_torch: input: .* test_torch._first does not define `shapes`"):
        ops.first_of_two(x.to("meta"), x.to("meta"))


def of_many(
    inputs: Sequence[AnyArray],
    bias: AnyArray | None = None,
    *,
    steps: Sequence[int] | None = None,
    weights: Sequence[float] = (),
    mode: tvmdml.RoundingMode | str = tvmdml.RoundingMode.TOWARD_ZERO,
    name: str = "x",
    epsilon: float = 1e-5,
    scale: int | float = 2,
    flag: bool = False,
    dtype: DType = "float32",
) -> TopKResult: ...


@overload
def two_ways(x: AnyArray, *, how: Literal["b"]) -> TopKResult: ...
@overload
def two_ways(x: AnyArray, *, how: str = "a") -> AnyArray: ...
def two_ways(x: AnyArray, *, how: str = "a") -> AnyArray: ...


def strange(x: AnyArray, y: complex) -> AnyArray: ...


def strange_result(x: AnyArray) -> int: ...


def test_a_signature_becomes_a_schema() -> None:
    (schema,) = _schemas.schemas(of_many)
    assert schema.text == (
        "(Tensor[] inputs, Tensor? bias=None, *, SymInt[]? steps=None, float[] weights=(), "
        'str mode="toward_zero", str name="x", float epsilon=1e-05, Scalar scale=2, bool flag=False, '
        "ScalarType? dtype=None) -> (Tensor values, Tensor indices)"
    )
    forms = {schema.name: schema.text for schema in _schemas.schemas(two_ways)}
    assert forms == {
        "two_ways": "(Tensor x) -> Tensor",
        "two_ways.how_b": "(Tensor x, *, str how) -> (Tensor values, Tensor indices)",
    }
    with pytest.raises(TypeError, match=r"test_torch.strange: PyTorch has no type for y: complex"):
        _schemas.schemas(strange)
    with pytest.raises(TypeError, match=r"test_torch.strange_result: its result is int, but may be"):
        _schemas.schemas(strange_result)


def test_a_cast_to_bool_has_its_type_without_data() -> None:
    x = torch.tensor([0.0, 2.0])
    assert torch.equal(torch.ops.tvmdml.cast(x, torch.bool), x.bool())
    with torch._subclasses.FakeTensorMode():
        assert torch.ops.tvmdml.cast(torch.ones(3), torch.bool).dtype is torch.bool
