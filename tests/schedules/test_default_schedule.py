"""The schedule for operators that have none of their own: when it is used, and what its kernels depend on."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from support import (
    Array,
    Placed,
    _place,
    assert_outputs_agree,
    assert_same_bits,
    bits_of,
    diagonal_desc,
    mixture,
    reference,
    round_desc,
    seeded,
)

from tvmdml import CompileError, Operator, TensorDataType, TensorDesc, compiler, operators, targets
from tvmdml import tensorir as T
from tvmdml.library import finding, scheduling, spec
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Bool, Input, Output, Role, Shared
from tvmdml.operators._support import support
from tvmdml.operators.cumulative import CumulativeSummation
from tvmdml.schedules.cpu import _default
from tvmdml.targets import Target


@pytest.fixture(scope="module")
def cpu() -> Target:
    """The folder of schedules under test is the CPU's."""
    return targets.resolve("cpu")


def launch(desc: Operator, cpu: Target, tensors: list[Array]) -> None:
    """Run the default kernel on tensors that lie as the descriptor says."""
    kernel = _default.kernel(desc.canonical(), cpu, ())
    temporaries = [np.empty(count, dtype) for dtype, count in kernel.temporaries]
    cpu.launch(finding.find(kernel, cpu), kernel.scalars, ())(*tensors, *temporaries)


def assert_default_agrees(desc: Operator, cpu: Target, *inputs: Array | None, shifted: bool = False) -> None:
    given = [x for x in inputs if x is not None]
    before = [bits_of(x) for x in given]
    outputs = [_place(tensor, shifted) for _, tensor in desc.tensors(Role.OUTPUT) if tensor is not None]
    launch(desc, cpu, [*given, *(o.array for o in outputs)])
    for output in outputs:
        output.assert_nothing_else_was_written()
    for x, bits in zip(given, before, strict=True):
        assert_same_bits(bits_of(x), bits)
    assert_outputs_agree(desc, tuple(o.array for o in outputs), reference(desc, *inputs))


def test_descriptors_that_differ_have_kernels_that_differ(cpu: Target) -> None:
    x = TensorDesc("float32", (3, 4))
    descs: list[Operator] = [
        round_desc(x, "toward_zero"),
        round_desc(x, "toward_infinity"),
        round_desc(TensorDesc("float32", (4, 3)), "toward_zero"),
        round_desc(TensorDesc("float32", (3, 4), (1, 3)), "toward_zero"),
        diagonal_desc(x, 0.0, 0, 1),
        diagonal_desc(x, -0.0, 0, 1),
        *(diagonal_desc(x, value.item(), 0, 1) for value in np.array([0x7FF8000000000000, 0x7FF8000000000005]).view("f8")),
        diagonal_desc(x, 0.0, 0, 1, has_input=False),
    ]
    assert len({_default.kernel(desc, cpu, ()).identity for desc in descs}) == len(descs)


def test_one_kernel_serves_a_class_of_shapes(cpu: Target) -> None:
    kernels = set()
    for sizes in [(16, 16), (17, 40), (1, 4095), (1, 4097), (3, 9000), (700, 33), (4096, 16), (1, 1 << 17)]:
        x = mixture(seeded(sizes), TensorDataType.FLOAT32, sizes)
        desc = round_desc(TensorDesc("float32", sizes), "toward_infinity")
        assert_default_agrees(desc, cpu, x)
        kernels.add(_default.kernel(desc, cpu, ()).identity)
    assert len(kernels) <= 2, "one with threads, and one without"


@pytest.mark.full(first=1)
@pytest.mark.parametrize("rank", range(1, 9))
def test_rows_of_all_ranks_are_counted_up(rank: int, cpu: Target) -> None:
    """A kernel goes through many rows an item, and wraps each coordinate."""
    for last in (1, 15, 16, 37):
        sizes = (*((3, 2, 5, 2, 3, 2, 3)[: rank - 1]), last)
        x = Placed.holding(mixture(seeded(sizes), TensorDataType.FLOAT32, sizes), "padded")
        assert_default_agrees(round_desc(x.desc, "toward_zero", "padded"), cpu, x.array)


def test_a_class_has_what_a_fast_kernel_has_to_know(cpu: Target) -> None:
    sizes, others = (20, 30), (21, 31)
    layouts: list[tuple[int, int] | None] = [None, (40, 1), (1, 40), (0, 1), (1, 0), (40, 2)]
    identities = {
        one: {_default.kernel(round_desc(TensorDesc("float32", one, layout)), cpu, ()).identity for layout in layouts}
        for one in (sizes, others)
    }
    # Packed input and output have equal strides; the others differ in their strides of 0 and 1, but (1, 40) from (40, 2) does not.
    assert len(identities[sizes]) == 5
    assert identities[sizes] == identities[others]


class Careless(Operator):
    """Its computation needs a size as a Python integer, and does not say so."""

    NAME = "CARELESS"
    SUPPORT = support("1.0 F r8")

    input_tensor: Input
    output_tensor: Output
    early: Bool

    def computation(self, each: T.Each, shared: Shared = ()) -> Any:
        sizes = self.input_tensor.sizes if self.early else ()
        with T.function() as f:
            f.tensors(self)
            for _ in range((sizes or self.input_tensor.sizes)[0]):
                pass
        return f.result()


def test_a_computation_cannot_take_an_integer_of_the_launch_for_a_constant(cpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    x = TensorDesc("float32", (20, 30))
    monkeypatch.setattr(operators, "module_of", lambda cls: "careless")
    with pytest.raises(TypeError):
        _default.kernel(Careless(input_tensor=x, output_tensor=x, early=False), cpu, ()).build()
    with pytest.raises(RuntimeError, match=r"sizes and strides only after Function\.tensors"):
        _default.kernel(Careless(input_tensor=x, output_tensor=x, early=True), cpu, ()).build()
    monkeypatch.setattr(Careless, "CONSTANT_SHAPES", "a loop of Python")
    _default.kernel(Careless(input_tensor=x, output_tensor=x, early=True), cpu, ()).build()


def test_a_target_falls_back_to_the_default_for_an_operator_without_a_schedule(
    cpu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_schedule", scheduling._schedule.__wrapped__)
    monkeypatch.setattr(operators, "module_of", lambda cls: "not_scheduled")
    desc = diagonal_desc(TensorDesc("float32", (3, 4)), 1, 0, 1)
    assert kernel_for(desc, cpu).name == "default"


def test_where_the_links_of_a_clone_were_lost_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    scheduling._schedule.cache_clear()
    with pytest.raises(CompileError, match=r"schedules is not a folder\. In a clone it is a symbolic link .* keeps symbolic links"):
        scheduling._schedule("cpu", "top_k", "")


IN_ROWS = """operator = "FOLD", InputTensor = "float32[1, 18, 3136]", OutputTensor = "float32[1, 2, 56, 56]",
    WindowSizes = [3, 3], Strides = [1, 1], Dilations = [1, 1], StartPadding = [1, 1], EndPadding = [1, 1]"""
CHANNELS_LAST = """operator = "RESAMPLE", InputTensor = "float32[64, 8, 14, 14] strides [1, 12544, 896, 64]",
    OutputTensor = "float32[64, 16, 28, 28] strides [1, 50176, 1792, 64]", InterpolationMode = "LINEAR",
    Scales = [1.0, 2.0, 2.0, 2.0]"""


def test_a_scan_over_the_only_dimension_has_one_item(cpu: Target) -> None:
    x = Placed.holding(mixture(seeded((131,)), TensorDataType.INT32, (131,)), "padded")
    y = TensorDesc("int32", (131,))
    fields: dict[str, Any] = {"axis": 0, "axis_direction": "increasing", "has_exclusive_sum": False}
    assert_default_agrees(CumulativeSummation(input_tensor=x.desc, output_tensor=y, **fields), cpu, x.array)


@pytest.mark.parametrize("text", [IN_ROWS, CHANNELS_LAST])
def test_neighbours_in_memory_are_computed_at_once_where_sizes_are_constants(cpu: Target, text: str) -> None:
    """Rows are along the least step of the results, whatever the order of dimensions is."""
    (wanted,) = spec.parse(f"kernels = [{{ {' '.join(text.split())} }}]", "case").wanted
    assert kernel_for(wanted.desc, cpu).name == "default"
    code = compiler.CompiledOperator(wanted.desc, cpu).source("llvm")
    assert re.search(r"store <\d+ x float>", code), code[:2000]
