"""Groups of pointwise operators give the bits of their operators one by one, however they are wired, laid out and run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from support import Array, mixture, seeded, tensor

import tvmdml
from tvmdml import InvalidArgument, Operator, TensorDataType, TensorDesc, Unsupported, operators, packs, targets
from tvmdml.compiler import CompiledOperator
from tvmdml.enums import NEWEST_FEATURE_LEVEL, FeatureLevel
from tvmdml.library import lines
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import _chain_reference as chains
from tvmdml.operators import _pointwise_fused as groups
from tvmdml.operators._accuracy import Near, difference
from tvmdml.operators._chain_reference import ChainStep
from tvmdml.operators._pointwise_fused import FusedPointwise, Result, fuse, fusible
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance import references
from tvmdml.targets import Target
from tvmdml.tensors.arrays.guarded import GuardedTensor

Draw = Callable[..., list[Any]]

# -- Programs -----------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """Operators in turn, and where each takes its inputs from."""

    nodes: list[Operator]
    wiring: list[list[Any]]
    results: list[Result]
    inputs: list[TensorDesc]

    @property
    def fused(self) -> FusedPointwise:
        return fuse(self.nodes, self.wiring, self.results)

    def one_by_one(self, inputs: list[Array]) -> tuple[Array, ...]:
        """The results of a kernel for each operator, on the CPU."""
        made: dict[tuple[int, int], Array] = {}
        for i, (node, wires) in enumerate(zip(self.nodes, self.wiring, strict=True)):
            outputs = [GuardedTensor(one).array for one in node.outputs()]
            taken = [inputs[wire] if isinstance(wire, int) else made[tuple(wire)] for wire in wires]
            CompiledOperator(node, targets.resolve("cpu"))(*taken, *outputs)
            made |= {(i, at): array for at, array in enumerate(outputs)}
        return tuple(made[tuple(result)] for result in self.results)


def agrees(program: Program, target: Target, shared: Any = (), seed: object = 0) -> None:
    """The group's kernel gives the bits of the operators one by one, and writes nothing else."""
    desc, taken = program.fused, dict(shared)
    arrays: dict[str, Array] = {}
    for i, one in enumerate(program.inputs):
        name = f"input_tensors[{i}]"
        values = mixture(seeded(seed, i), one.data_type, one.sizes)
        arrays[name] = arrays.get(taken.get(name, ""), GuardedTensor(one).holding(values).array)
        arrays.setdefault(taken.get(name, name), arrays[name])
    inputs = [arrays[f"input_tensors[{i}]"] for i in range(len(program.inputs))]
    expected = program.one_by_one(inputs)
    given = iter([x for name, x in arrays.items() if name.startswith("input")])
    trial = OperatorTrial(desc, shared, lambda *_: next(given), expected, flushed=target.flushed())
    problem = references.tried(desc, target, trial)
    assert not problem, f"{problem}\n{lines.toml(lines.of(desc))}"


LAYOUTS = ("packed", "packed", "packed", "padded", "transposed", "broadcast outer", "broadcast inner")
FLOATS = ("float32", "float32", "float16", "float64")
SAME = (
    *("ElementWiseAdd", "ElementWiseSubtract", "ElementWiseMultiply", "ElementWiseMax", "ElementWiseMin"),
    *("ElementWiseDifferenceSquare", "ElementWiseMean", "ElementWiseDivide"),
)
LIKE: dict[str, dict[str, Any]] = {
    "ElementWiseAbs": {"scale_bias": (1.5, -0.25)},
    "ElementWiseNegate": {},
    "ElementWiseIdentity": {},
    "ElementWiseClip": {"min": -1.5, "max": 20.0},
    "ActivationRelu": {},
}
OF_FLOATS: dict[str, dict[str, Any]] = {
    "ElementWiseSqrt": {},
    "ElementWiseRecip": {},
    "ElementWiseFloor": {},
    "ActivationLeakyRelu": {"alpha": 0.1},
    "ActivationHardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "ActivationSigmoid": {},
    "ElementWiseExp": {},
    "ElementWiseTanh": {},
}


class Drawer:
    """Draws a program: any values, of any type, taken as often as it comes."""

    def __init__(self, rng: random.Random, sizes: tuple[int, ...], types: tuple[str, ...], exact: bool) -> None:
        self.rng, self.sizes, self.types, self.exact = rng, sizes, types, exact
        self.nodes: list[Operator] = []
        self.wiring: list[list[Any]] = []
        self.inputs: list[TensorDesc] = []
        self.known: list[tuple[Any, TensorDesc]] = []

    def value(self, dtype: str, but: Any = None) -> tuple[Any, TensorDesc]:
        """A known value of a type, or a new input; but not a certain value."""
        alike = [one for one in self.known if one[1].data_type.tvm == dtype and one[0] != but]
        if alike and (len(self.inputs) >= 5 or self.rng.random() < 0.8):
            return self.rng.choice(alike[-4:])
        layout = self.rng.choice(LAYOUTS if len(self.sizes) > 1 else ("packed",))
        self.inputs.append(tensor(dtype, self.sizes, layout))
        self.known.append((len(self.inputs) - 1, self.inputs[-1]))
        return self.known[-1]

    def add(self, cls: Any, *dtypes: str, result: str = "", **attributes: Any) -> None:
        """One more operator, if it has these types."""
        inputs, known = list(self.inputs), list(self.known)
        taken: list[tuple[Any, TensorDesc]] = []
        for dtype in dtypes:
            # Mesa's driver for the CPU makes a product with a difference that is always 0 the number 0, too.
            but = taken[0][0] if cls is tvmdml.ElementWiseDequantizeLinear and len(taken) == 2 else None
            taken.append(self.value(dtype, but))
        out = tensor(result or dtypes[-1], self.sizes, self.rng.choice(("packed", "packed", "padded")))
        names = [name for name, _ in cls.fused(**attributes).tensors()]
        tensors = dict(zip(names, (*(one for _, one in taken), out), strict=False))
        node = cls(**tensors, **attributes)
        try:
            node.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        except Unsupported:
            self.inputs, self.known = inputs, known
            return
        self.nodes.append(node)
        self.wiring.append([wire for wire, _ in taken])
        self.known.append((Result(len(self.nodes) - 1), out))

    def step(self) -> None:
        dtype = self.rng.choice(self.types)
        kind = self.rng.choice(("same", "same", "like", "like", "floats", "compare", "cast", "bytes", "bits"))
        if kind == "floats" and dtype.startswith("float"):
            name = self.rng.choice([*OF_FLOATS][: 5 if self.exact else None])
            self.add(getattr(tvmdml, name), dtype, **OF_FLOATS[name])
        elif kind in ("like", "floats"):
            name = self.rng.choice([*LIKE])
            self.add(getattr(tvmdml, name), dtype, **LIKE[name])
        elif kind == "same":
            self.add(getattr(tvmdml, self.rng.choice(SAME)), dtype, dtype)
        elif kind == "compare":
            self.add(tvmdml.ElementWiseLogicalLessThan, dtype, dtype, result="uint8")
            self.add(tvmdml.ElementWiseIf, "uint8", dtype, dtype)
        elif kind == "cast":
            self.add(tvmdml.Cast, dtype, result=self.rng.choice(self.types))
        elif kind == "bytes":
            self.add(tvmdml.ElementWiseQuantizeLinear, "float32", "float32", "int8", result="int8")
            self.add(tvmdml.ElementWiseDequantizeLinear, "int8", "float32", "int8", result="float32")
        else:
            self.add(tvmdml.ElementWiseBitXor, "uint32", "uint32")

    def program(self, steps: int) -> Program:
        while len(self.nodes) < steps:
            self.step()
        results = [Result(i) for i in range(len(self.nodes))]
        used = {tuple(wire) for some in self.wiring for wire in some if not isinstance(wire, int)}
        chosen = [one for one in results if tuple(one) not in used or self.rng.random() < 0.1]
        return Program(self.nodes, self.wiring, chosen[-5:], self.inputs)


def drawn(
    rng: random.Random, exact: bool = False, types: tuple[str, ...] = ("float32", "float32", "float16", "float64", "int32", "uint8")
) -> Program:
    """A program that is small enough for a group."""
    while True:
        sizes = rng.choice([(131,), (7, 19), (20, 33), (33, 40), (3, 5, 13), (2, 3, 5, 7)])
        program = Drawer(rng, sizes, types, exact).program(rng.randint(2, 12))
        try:
            _ = program.fused
        except InvalidArgument as error:
            if "values at a time" in str(error) or "together" in str(error) or "not exact" in str(error):
                continue
            raise
        return program


@pytest.mark.full
@given(st.integers(0, 2**32))
def test_any_wiring_gives_the_bits_of_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    program = drawn(rng)
    cpu = targets.resolve("cpu")
    agrees(program, cpu, seed=seed)
    pairs = list(program.fused.shareable())
    if pairs:
        agrees(program, cpu, (rng.choice(pairs),), seed)


@pytest.mark.full
def test_on_devices(device: Target, draw: Draw) -> None:
    for seed in draw(range(40), 3):
        program = drawn(random.Random(seed), exact=True)
        agrees(program, device, seed=seed)
        for pair in list(program.fused.shareable())[:1]:
            agrees(program, device, (pair,), seed)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions_on_devices(device: Target, dtype: str) -> None:
    """They have the bits that the device gives them one by one."""
    x = TensorDesc(dtype, (1000,))
    nodes = [of(tvmdml.ElementWiseExp, x), of(tvmdml.ElementWiseMultiply, x, x), of(tvmdml.ElementWiseTanh, x)]
    desc = fuse(nodes, [[0], [Result(0), 1], [Result(1)]], [Result(2), Result(0)])
    given = [mixture(seeded(dtype, i), x.data_type, x.sizes) for i in range(2)]
    a, b, tanh, exp, product, *fused = (tvmdml.asarray(one, device.name) for one in (*given, *[np.zeros_like(given[0])] * 5))
    for node, some in zip(nodes, ((a, exp), (exp, b, product), (product, tanh)), strict=True):
        tvmdml.compile(node, device)(*some)
    tvmdml.compile(desc, device)(a, b, *fused)
    for one, other in zip(fused, (tanh, exp), strict=True):
        assert not difference(one.numpy(), other.numpy(), any_nan=True)


# -- Each kind of wiring ------------------------------------------------------------------------------------------

X = TensorDesc("float32", (20, 40))


def of(cls: Any, *tensors: TensorDesc, **attributes: Any) -> Any:
    return cls.of(*tensors, **attributes)


def scaled_chain(alpha: float, low: float, sizes: tuple[int, ...] = (20, 40)) -> FusedPointwise:
    x = TensorDesc("float32", sizes)
    nodes = [
        of(tvmdml.ElementWiseMultiply, x, x),
        of(tvmdml.ActivationLeakyRelu, x, alpha=alpha),
        tvmdml.ElementWiseClip(input_tensor=x, output_tensor=x, min=low, max=9),
    ]
    return fuse(nodes, [(0, 1), [Result(0)], [Result(1)]], [Result(2)])


def test_a_group_is_no_operator_of_directml() -> None:
    assert "FUSED_POINTWISE" not in operators.all_operators()
    assert operators.by_name("FUSED_POINTWISE") is FusedPointwise
    assert not fusible(scaled_chain(0.1, 0))


def test_numbers_and_sizes_are_no_part_of_the_kernel(target: Target) -> None:
    some = [scaled_chain(0.1, -1), scaled_chain(0.7, -2), scaled_chain(0.1, -1, (3, 7, 1))]
    assert len({kernel_for(desc, target).identity for desc in some}) == 1
    other = fuse(
        [of(tvmdml.ElementWiseMultiply, X, X), of(tvmdml.ActivationLeakyRelu, X, alpha=0.1)], [(0, 1), [Result(0)]], [(1, 0)]
    )
    assert kernel_for(other, target).identity != kernel_for(some[0], target).identity


def test_wirings_and_results_are_a_part_of_the_kernel() -> None:
    cpu, less = targets.resolve("cpu"), of(tvmdml.ElementWiseSubtract, X, X)
    ways = [
        fuse([less, less], wiring, results)
        for wiring in ([(0, 1), (Result(0), 0)], [(0, 1), (0, Result(0))], [(0, 1), (Result(0), Result(0))])
        for results in ([Result(1)], [Result(0), Result(1)], [Result(1), Result(0)])
    ]
    assert len({kernel_for(desc, cpu).identity for desc in ways}) == len({desc.exactly() for desc in ways}) == 9


@pytest.mark.full
def test_a_value_less_itself_is_not_always_0(target: Target) -> None:
    """Of NaN and infinities it is NaN: TVM's simplifier would make it 0."""
    less, more = of(tvmdml.ElementWiseSubtract, X, X), of(tvmdml.ElementWiseAdd, X, X)
    agrees(Program([less], [[0, 0]], [Result(0)], [X]), target)
    agrees(Program([more, less, less], [[0, 1], [Result(0), Result(0)], [Result(0), 0]], [Result(1), Result(2)], [X, X]), target)


def test_a_product_and_a_sum_are_rounded_one_by_one(target: Target) -> None:
    product, total = of(tvmdml.ElementWiseMultiply, X, X), of(tvmdml.ElementWiseAdd, X, X)
    desc = fuse([product, total], [(0, 1), (Result(0), 2)], [Result(1)])
    a, b = (seeded("product", i).standard_normal(X.sizes).astype(np.float32) for i in range(2))
    out = tvmdml.asarray(np.ones_like(a), target.name)
    tvmdml.compile(desc, target)(*(tvmdml.asarray(one, target.name) for one in (a, b, -(a * b))), out)
    assert not np.asarray(out if target.kind == "cpu" else out.numpy()).any()


@pytest.mark.full
def test_single_elements_numbered_elements_and_blocks(target: Target) -> None:
    """Inputs of one element are repeated; an operator without inputs, or one that counts elements, may be in the middle."""
    byte = TensorDesc("uint8", (4, 6, 10))
    one, ones = TensorDesc("float32", (1, 1, 1)), TensorDesc("uint8", (1, 1, 1))
    floats = TensorDesc("float32", (4, 6, 10))
    scale = TensorDesc("float32", (1, 6, 1))
    nodes: list[Operator] = [
        of(tvmdml.ElementWiseQuantizedLinearAdd, byte, one, ones, byte, one, ones, one, ones),
        tvmdml.Dequantize(
            input_tensor=byte,
            quantization_type="scale_zero_point",
            quantization_tensors=[scale, TensorDesc("uint8", (1, 6, 1))],
            output_tensor=floats,
        ),
        tvmdml.FillValueSequence(output_tensor=floats, value_data_type="float32", value_start=1, value_delta=0.5),
        of(tvmdml.ElementWiseAdd, floats, floats),
    ]
    wiring = [[0, 1, 2, 3, 1, 2, 4, 2], [Result(0), 5, 6], [], [Result(1), Result(2)]]
    program = Program(nodes, wiring, [Result(3), Result(0)], [])
    rng = seeded("single")
    desc = program.fused
    assert [tensor.layout for tensor in desc.input_tensors[1:3]] == [(0, 0, 0), (0, 0, 0)]
    assert desc.input_tensors[5].layout == (0, 1, 0)
    scales = np.array([0.5, 0.25, 2], np.float32)
    given = [
        rng.integers(0, 256, byte.sizes, np.uint8), scales[:1].reshape(one.sizes), np.array([[[7]]], np.uint8),
        rng.integers(0, 256, byte.sizes, np.uint8), scales[1:2].reshape(one.sizes),
        rng.uniform(0.1, 1, scale.sizes).astype(np.float32), rng.integers(0, 256, scale.sizes, np.uint8),
    ]  # fmt: skip
    expected = program.one_by_one(given)
    arrays = iter([np.broadcast_to(x, byte.sizes) for x in given])
    assert not references.tried(desc, target, OperatorTrial(desc, (), lambda *_: next(arrays), expected, flushed=target.flushed()))


@pytest.mark.full
def test_several_pairs_in_place(target: Target) -> None:
    padded = tensor("float32", (20, 40), "padded")
    less = tvmdml.ElementWiseSubtract(a_tensor=padded, b_tensor=padded, output_tensor=padded)
    more = tvmdml.ElementWiseAdd(a_tensor=padded, b_tensor=padded, output_tensor=padded)
    program = Program([less, more], [[0, 1], [Result(0), 0]], [Result(0), Result(1)], [padded, padded])
    assert len(program.fused.shareable()) == 4
    for shared in (
        (("input_tensors[0]", "output_tensors[0]"),),
        (("input_tensors[0]", "output_tensors[1]"), ("input_tensors[1]", "output_tensors[0]")),
    ):
        agrees(program, target, shared)


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(2, 4), (40, 70)])
def test_in_place_of_what_one_part_reads_as_a_float_and_another_as_bits(target: Target, sizes: tuple[int, ...]) -> None:
    """The buffer is that of the choice's result, which counts as an integer; the comparison takes its elements as floats."""
    x, flag = TensorDesc("float32", sizes), TensorDesc("uint8", sizes)
    more = tvmdml.ElementWiseLogicalGreaterThan(a_tensor=x, b_tensor=x, output_tensor=flag)
    choice = tvmdml.ElementWiseIf(condition_tensor=flag, a_tensor=x, b_tensor=x, output_tensor=x)
    sigmoid = tvmdml.ActivationSigmoid(input_tensor=x, output_tensor=x)
    wiring = [[0, 1], [Result(0), 0, 1], [Result(1)]]
    program = Program([more, choice, sigmoid], wiring, [Result(1), Result(2)], [x, x])
    agrees(program, target, (("input_tensors[0]", "output_tensors[0]"),))


# -- References ---------------------------------------------------------------------------------------------------


def test_references_are_exact_if_all_operators_are() -> None:
    x = mixture(seeded("exact"), TensorDataType.FLOAT32, X.sizes)
    (found,) = scaled_chain(0.1, -1).reference(x, x)
    assert isinstance(found, np.ndarray)


@pytest.mark.full
@given(st.integers(0, 2**32))
def test_references_agree(seed: int) -> None:
    program = drawn(random.Random(seed), types=FLOATS)
    desc = program.fused
    rng = seeded(seed)
    trial = OperatorTrial(desc, (), lambda dtype, sizes: mixture(rng, dtype, sizes))
    problem = references.tried(desc, targets.resolve("cpu"), trial)
    assert not problem, f"{problem}\n{lines.toml(lines.of(desc))}"


def test_a_bound_follows_from_what_comes_before() -> None:
    desc = fuse([of(tvmdml.ElementWiseExp, X), of(tvmdml.ElementWiseSubtract, X, X)], [[0], (Result(0), 1)], [Result(1), Result(0)])
    x = np.full(X.sizes, 3, np.float32)
    near, own = desc.reference(x, np.exp(x))
    assert isinstance(near, Near)
    assert isinstance(own, Near)
    assert own.steps > 0
    one = float(np.spacing(np.exp(x))[0, 0])
    assert near.steps == 0
    assert 2 * one < float(np.max(near.error)) < 20 * one
    assert desc.mismatch((np.full(X.sizes, 100 * one, np.float32), np.exp(x)), (near, own))


def test_what_follows_a_sum_that_may_be_anything_may_be_so_too() -> None:
    """The first sum is infinite, or NaN: in float32 its other product overflows to minus infinity. The second one is infinite."""
    like = TensorDesc("float32", (1, 2))
    steps = [
        ChainStep(tvmdml.Gemm.of(like, TensorDesc("float32", (2, 2))), (0, 1)),
        ChainStep(tvmdml.ElementWiseAdd.of(like, like), (2, 3)),
    ]
    left, right = np.array([[-1e30, np.inf]], np.float32), np.array([[1e30, 0], [1, 1]], np.float32)
    (found,) = chains.expected(steps, [left, right, np.ones((1, 2), np.float32)], [4])
    for first in (np.inf, -np.inf, np.nan):
        assert not difference(np.array([[first, np.inf]], np.float32), found)
    assert difference(np.array([[np.inf, np.nan]], np.float32), found)


# -- Packs --------------------------------------------------------------------------------------------------------


def test_lines_packs_and_records(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    desc = scaled_chain(0.1, -1)
    line = lines.of(desc)
    assert lines.read(line, "a line") == desc
    x, y = (seeded("packs", i).standard_normal(X.sizes).astype(np.float32) for i in range(2))
    first, out = np.empty_like(x), np.empty_like(x)
    with packs.record() as recording:
        tvmdml.compile(desc)(x, y, first)
    assert [one.desc for one in recording.spec.wanted] == [desc]
    recording.write(tmp_path / "spec.toml")
    packs.build(tmp_path / "spec.toml", tmp_path / "some.pack")
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "empty"))
    with tvmdml.load_pack(tmp_path / "some.pack", strict=True):
        tvmdml.compile(desc)(x, y, out)
    assert np.array_equal(out, first)


# -- Rules --------------------------------------------------------------------------------------------------------


def test_parts_have_their_own_rules() -> None:
    x = TensorDesc("float64", (4,))
    desc = fuse([of(tvmdml.ElementWiseAdd, x, x)], [(0, 1)], [Result(0)])
    desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    with pytest.raises(Unsupported, match="ELEMENT_WISE_ADD a_tensor: given float64"):
        desc.validate(NEWEST_FEATURE_LEVEL)
    integers = TensorDesc("int32", (1, 1, 1, 4))
    desc = fuse([of(tvmdml.ElementWiseAdd, integers, integers)], [(0, 1)], [Result(0)])
    desc.validate(NEWEST_FEATURE_LEVEL)
    with pytest.raises(Unsupported, match="ELEMENT_WISE_ADD"):
        desc.validate(FeatureLevel.of("1.0"))


def wrong() -> Iterator[tuple[str, Callable[[], Any], str]]:
    add, relu = of(tvmdml.ElementWiseAdd, X, X), of(tvmdml.ActivationRelu, X)
    turned = TensorDesc("float32", X.sizes, (1, 20))
    other = of(tvmdml.ActivationRelu, TensorDesc("float32", (20, 41)))
    half = of(tvmdml.ActivationRelu, TensorDesc("float16", X.sizes))
    nibbles = TensorDesc("uint4", (4, 4))
    quantize = tvmdml.Dequantize(
        input_tensor=nibbles, quantization_type="scale", quantization_tensors=[TensorDesc("float32", (1, 1))],
        output_tensor=TensorDesc("float32", (4, 4)),
    )  # fmt: skip
    yield "another family", lambda: fuse([tvmdml.Join.of([X, X], axis=0)], [[0, 1]], [Result(0)]), r"nodes\[0\]: given JOIN"
    yield "4 bits", lambda: fuse([quantize], [[0, 1]], [Result(0)]), r"nodes\[0\]: given DEQUANTIZE"
    yield "no node", lambda: fuse([], [], []), "operators"
    yield "no result", lambda: fuse([relu], [[0]], []), "output_tensors"
    yield "too few wires", lambda: fuse([add], [[0]], [Result(0)]), r"wiring\[0\]"
    yield "too few nodes", lambda: fuse([add], [], [Result(0)]), "wiring"
    yield "a gap", lambda: fuse([add], [[0, 2]], [Result(0)]), r"inputs \[0, 2\]"
    yield "a later node", lambda: fuse([relu, relu], [[Result(1)], [0]], [Result(1)]), "earlier node"
    yield "no such output", lambda: fuse([relu, relu], [[0], [Result(0, 1)]], [Result(1)]), "earlier node"
    yield "twice", lambda: fuse([relu], [[0]], [Result(0), Result(0)]), "distinct"
    yield "two layouts", lambda: fuse([relu, of(tvmdml.ActivationRelu, turned)], [[0], [0]], [Result(1)]), "layout"
    yield "other sizes", lambda: fuse([relu, other], [[0], [1]], [Result(0), Result(1)]), "sizes"
    yield "other types", lambda: fuse([relu, half], [[0], [Result(0)]], [Result(1)]), "float16"


@pytest.mark.parametrize(("call", "said"), [pytest.param(call, said, id=name) for name, call, said in wrong()])
def test_what_cannot_be_fused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call()


def test_limits() -> None:
    relu, add, exp = of(tvmdml.ActivationRelu, X), of(tvmdml.ElementWiseAdd, X, X), of(tvmdml.ElementWiseExp, X)
    leaky = of(tvmdml.ActivationLeakyRelu, X, alpha=0.5)

    def chain(node: Operator, count: int) -> FusedPointwise:
        return fuse([node] * count, [[0], *([Result(i)] for i in range(count - 1))], [Result(count - 1)])

    assert len(chain(relu, groups.MOST_OPERATORS).operators) == groups.MOST_OPERATORS
    with pytest.raises(InvalidArgument, match="up to 16"):
        chain(relu, groups.MOST_OPERATORS + 1)
    with pytest.raises(InvalidArgument, match="not exact"):
        chain(exp, groups.MOST_FUNCTIONS + 1)
    chain(leaky, groups.MOST_WORDS)
    count = groups.MOST_TENSORS
    with pytest.raises(InvalidArgument, match="together"):
        fuse([add] * (count - 1), [[0, 1], *([Result(i), i + 2] for i in range(count - 2))], [Result(count - 2)])
    alive = groups.MOST_ALIVE + 1
    wide = [*([0] for _ in range(alive)), *([Result(0 if i == 0 else alive + i - 1), Result(i + 1)] for i in range(alive - 1))]
    nodes = [*[relu] * alive, *[add] * (alive - 1)]
    with pytest.raises(InvalidArgument, match=r"values at a time|operators"):
        fuse(nodes, wide, [Result(len(nodes) - 1)])
