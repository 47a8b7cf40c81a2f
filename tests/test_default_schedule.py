"""The kernel of an operator without its own schedule: its computation, against the reference."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    INT_MIN,
    LAYOUT_PAIRS,
    SIZES,
    Array,
    Placed,
    _place,
    assert_outputs_agree,
    assert_same_bits,
    bits_of,
    diagonal_desc,
    mixture,
    nonzero_desc,
    random_bits,
    reference,
    round_desc,
    seeded,
    sparse,
    special_values,
    ties,
    top_k_desc,
)

from tvmdml import (
    AxisDirection,
    CompileError,
    DiagonalMatrix,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK,
    compiler,
    operators,
    targets,
)
from tvmdml.operators._contract import Role
from tvmdml.schedules.cpu import _default
from tvmdml.targets import Target

types = pytest.mark.parametrize("data_type", ALL, ids=str)
layouts = pytest.mark.parametrize("layouts", LAYOUT_PAIRS, ids=" to ".join)


@pytest.fixture(scope="module")
def cpu() -> Target:
    """The folder of schedules under test is the CPU's."""
    return targets.resolve("cpu")


def launch(desc: Operator, cpu: Target, tensors: list[Array]) -> None:
    """Run the default kernel on tensors that lie as the descriptor says."""
    kernel = _default.kernel(desc.canonical(), cpu, False)
    temporaries = [np.empty(count, dtype) for dtype, count in kernel.temporaries]
    compiler.find(kernel, cpu)(*tensors, *temporaries, *kernel.scalars)


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


@pytest.mark.parametrize("mode", RoundingMode, ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("data_type", FLOATING, ids=str)
def test_round_agrees(data_type: TensorDataType, mode: RoundingMode, cpu: Target) -> None:
    x = np.concatenate([special_values(data_type), random_bits(seeded(data_type), data_type, (500,))])
    x = np.concatenate([x, (np.arange(-20, 21) / 4).astype(data_type.numpy)])
    assert_default_agrees(round_desc(TensorDesc(data_type, x.shape), mode), cpu, x)


@layouts
def test_round_agrees_for_every_layout(layouts: tuple[str, str], cpu: Target) -> None:
    turn = LAYOUT_PAIRS.index(layouts)
    data_type, rank = FLOATING[turn % 3], 1 + turn % 8
    x = Placed.holding(mixture(seeded(layouts), data_type, SIZES[rank]), layouts[0])
    desc = round_desc(x.desc, list(RoundingMode)[turn % 3], layouts[1])
    assert_default_agrees(desc, cpu, x.array, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize("direction", AxisDirection, ids=lambda d: d.name.lower())
@types
def test_top_k_agrees(data_type: TensorDataType, direction: AxisDirection, cpu: Target) -> None:
    rng = seeded("default", data_type, direction)
    for sizes, axis, k in [((29,), 0, 29), ((3, 7, 2), 1, 4)]:
        desc = top_k_desc(TensorDesc(data_type, sizes), axis, k, direction, ("uint32", "uint64")[axis])
        for values in (ties, mixture):
            assert_default_agrees(desc, cpu, values(rng, data_type, sizes))


@layouts
def test_top_k_agrees_for_every_layout(layouts: tuple[str, str], cpu: Target) -> None:
    turn = LAYOUT_PAIRS.index(layouts)
    data_type, rank = ALL[turn % len(ALL)], 1 + turn % 8
    axis = max(range(rank), key=SIZES[rank].__getitem__)
    x = Placed.holding(ties(seeded(layouts), data_type, SIZES[rank]), layouts[0])
    desc = top_k_desc(x.desc, axis, 2, AxisDirection(turn % 2), layout=layouts[1])
    assert_default_agrees(desc, cpu, x.array, shifted=layouts[1] == "shifted")


def test_top_k_of_level_1_agrees(cpu: Target) -> None:
    one = top_k_desc(TensorDesc("float16", (2, 9)), 1, 5, "decreasing")
    tensors: dict[str, Any] = {n: getattr(one, n) for n in ("input_tensor", "output_value_tensor", "output_index_tensor")}
    assert_default_agrees(TopK(**tensors, axis=1, k=5), cpu, ties(seeded(1), TensorDataType.FLOAT16, (2, 9)))


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@types
def test_nonzero_agrees(data_type: TensorDataType, density: float, cpu: Target) -> None:
    for sizes, columns in [((31,), 1), ((1, 1, 3, 5), 3)]:
        x = sparse(seeded(data_type, density), data_type, sizes, density)
        assert_default_agrees(nonzero_desc(TensorDesc(data_type, sizes), columns), cpu, x)


@layouts
def test_nonzero_agrees_for_every_layout(layouts: tuple[str, str], cpu: Target) -> None:
    turn = LAYOUT_PAIRS.index(layouts)
    data_type, rank = ALL[turn % len(ALL)], 1 + turn % 8
    x = Placed.holding(sparse(seeded(layouts), data_type, SIZES[rank], 0.4), layouts[0])
    desc = nonzero_desc(x.desc, index=("uint32", "uint64")[turn % 2], layout=layouts[1])
    assert_default_agrees(desc, cpu, x.array, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize("has_input", [True, False], ids=["input", "no input"])
@types
def test_diagonal_matrix_agrees(data_type: TensorDataType, has_input: bool, cpu: Target) -> None:
    x = random_bits(seeded(data_type, has_input), data_type, (2, 3, 4))
    value = special_values(data_type)[-1].item()
    for begin, end in [(-1, 2), (2, -1), (1, 1), (INT_MIN, INT_MAX), (INT_MAX, INT_MIN), (INT_MIN, 0), (0, INT_MAX)]:
        desc = diagonal_desc(TensorDesc(data_type, (2, 3, 4)), value, begin, end, has_input)
        assert_default_agrees(desc, cpu, x if has_input else None)


@layouts
def test_diagonal_matrix_agrees_for_every_layout(layouts: tuple[str, str], cpu: Target) -> None:
    turn = LAYOUT_PAIRS.index(layouts)
    data_type, rank = ALL[turn % len(ALL)], 2 + turn % 7
    x = Placed.holding(random_bits(seeded(layouts), data_type, SIZES[rank]), layouts[0])
    desc = diagonal_desc(x.desc, 100, -1, 1, layout=layouts[1])
    assert_default_agrees(desc, cpu, x.array, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize(("dtype", "offset"), [*itertools.product(["float32", "int8"], [INT_MIN, -1, 2, INT_MAX])])
def test_diagonal_matrix_of_level_2_agrees(dtype: str, offset: int, cpu: Target) -> None:
    assert_default_agrees(DiagonalMatrix(output_tensor=TensorDesc(dtype, (1, 2, 3, 4)), offset=offset, value=-2.75), cpu)


@pytest.mark.usefixtures("in_parallel")
def test_items_in_parallel_are_the_same(cpu: Target) -> None:
    f16, i32 = TensorDataType.FLOAT16, TensorDataType.INT32
    descs: list[tuple[Operator, Array]] = [
        (round_desc(TensorDesc(f16, (40, 13)), "toward_zero"), mixture(seeded(1), f16, (40, 13))),
        (top_k_desc(TensorDesc(f16, (6, 13)), 1, 5, "decreasing"), ties(seeded(2), f16, (6, 13))),
        (nonzero_desc(TensorDesc(i32, (40, 13))), sparse(seeded(3), i32, (40, 13), 0.3)),
        (diagonal_desc(TensorDesc(i32, (40, 13)), 7, -3, 5), mixture(seeded(4), i32, (40, 13))),
    ]
    for desc, x in descs:
        assert dict(_default.kernel(desc, cpu, False).parameters)["parallel"] is True
        assert_default_agrees(desc, cpu, x)


IN_PLACE = """
import numpy as np
import tvmdml
from tvmdml import targets
from tvmdml.schedules.cpu import _default

targets._schedule = lambda folder, module: _default
desc = tvmdml.TensorDesc("float32", (2, 3))
x = np.full((2, 3), 1.75, np.float32)
tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"), "cpu")(x, x)
assert (x == 1).all(), x
"""


def test_an_operator_in_place_agrees() -> None:
    # In a separate process: in place there is only one array, and a kernel that expects two would read invalid memory.
    done = subprocess.run([sys.executable, "-c", IN_PLACE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
    assert len({_default.kernel(desc, cpu, False).identity for desc in descs}) == len(descs)


def test_a_target_falls_back_to_the_default_for_an_operator_without_a_schedule(
    cpu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_schedule", targets._schedule.__wrapped__)
    monkeypatch.setattr(operators, "module_of", lambda cls: "not_scheduled")
    desc = round_desc(TensorDesc("float32", (3, 4)), "toward_zero")
    assert cpu.kernel(desc).name == "default"


def test_where_the_links_of_a_clone_were_lost_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    targets._schedule.cache_clear()
    with pytest.raises(CompileError, match=r"schedules is not a folder\. In a clone it is a symbolic link .* keeps symbolic links"):
        targets._schedule("cpu", "top_k")
