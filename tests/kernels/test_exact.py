"""Values that are equal but not identical: each has its own plan and kernel."""

from __future__ import annotations

import copy
import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
import specimens
from support import assert_same_bits, seeded

import tvmdml
from tvmdml import TensorDesc, functions, knobs, targets
from tvmdml.functions import Described
from tvmdml.library.scheduling import kernel_for, remembering
from tvmdml.operators import _exact
from tvmdml.tensors import ArrayTensorDesc

Array = np.ndarray[Any, np.dtype[Any]]

PAYLOAD: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0ABC))[0]
ALIKE = (0.0, -0.0, 0, False, np.float32(0), np.float64(0), np.int8(0))
UNEQUAL = (math.nan, -math.nan, PAYLOAD)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (1, x), lambda x: tvmdml.ScaleBias(1.0, x), lambda x: ((x,),)])
def test_keys_differ_where_type_or_bits_do(wrap: Any) -> None:
    keys = [_exact.key(wrap(value)) for value in ALIKE + UNEQUAL]
    assert all(a != b for a, b in itertools.combinations(keys, 2))
    assert keys == [_exact.key(wrap(value)) for value in ALIKE + UNEQUAL], "and are equal again for the same value"
    assert len(set(keys)) == len(keys)


def test_a_named_tuple_is_not_the_plain_one() -> None:
    assert _exact.key(tvmdml.ScaleBias(1.0, 2.0)) != _exact.key((1.0, 2.0))


def pairs(alpha: float, *factors: float) -> specimens.Pairs:
    x, out = TensorDesc("float64", (3,)), TensorDesc("float64", (3, 3))
    return specimens.Pairs(input_tensor=x, output_tensor=out, alpha=alpha, factors=factors)  # type: ignore[arg-type]


def test_a_descriptor_in_words_has_the_bits_of_floats_in_sequences_and_in_parts() -> None:
    words = {pairs(a, b).exactly() for a in (0.0, -0.0) for b in (0.0, -0.0, math.nan, -math.nan)}
    assert len(words) == 8


def test_a_copy_whose_floats_are_changed_has_their_bits() -> None:
    first = pairs(0.0, 1.0)
    words, changed = first.exactly(), copy.copy(first)
    object.__setattr__(changed, "alpha", -0.0)
    assert changed.exactly() == pairs(-0.0, 1.0).exactly() != words


def test_a_graph_remembers_kernels_of_the_same_bits_and_knobs() -> None:
    target, x = targets.resolve("cpu"), TensorDesc("float32", (4, 300))
    desc, again, other = (tvmdml.TopK1.of(x, axis=1, k=k) for k in (5, 5, 7))
    alone = kernel_for(desc, target)
    with remembering():
        found = kernel_for(desc, target)
        with remembering():
            assert kernel_for(again, target) is found
        assert kernel_for(other, target).scalars != found.scalars
        for name in ("rank", "sort"):
            with knobs.using(top_k={"algorithm": name}):
                assert kernel_for(desc, target).name == name
    assert found.identity == alone.identity
    assert kernel_for(desc, target) is not found, "it lasts no longer than the graph"


def describe(x: ArrayTensorDesc, alpha: float, factors: tuple[float, ...], rows: int, extra: int) -> Described:
    sizes = (rows, *x.sizes)
    inner = (1,) * extra + sizes
    desc = specimens.Pairs(input_tensor=x, output_tensor=x.with_sizes(inner), alpha=alpha, factors=factors)
    return Described(desc, shapes=(sizes,))


def call(x: Array, alpha: float, factors: tuple[float, ...], out: Array | None = None, extra: int = 0) -> Array:
    found: Array = functions.call(describe, (x,), (alpha, factors, 1 + len(factors) + 1, extra), out)[0]
    return found


@pytest.mark.parametrize("quick", [True, False], ids=["C plans", "Python plans"])
def test_calls_with_equal_floats_do_not_meet_each_others_plan(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    functions.forget_plans()
    if not quick:
        monkeypatch.setattr(functions, "_quick_plans", None)
    x = np.arange(3.0)
    for _ in range(2):
        for alpha, factor in itertools.product((0.0, -0.0), (0.0, -0.0)):
            found = call(x, alpha, (factor,))
            assert_same_bits(found, np.array([[alpha] * 3, [factor] * 3, [0, 1, 2]]))


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_an_output_of_another_rank_than_its_descriptor_is_written_where_it_lies(extra: int) -> None:
    """The caller's array has the shape (4, 5), its tensor 0 to 2 dimensions of size 1 before it."""
    x = seeded(extra).standard_normal(5)
    expected = np.stack([np.full(5, 1.5), np.full(5, 2.5), np.full(5, -0.0), x])
    for steps in (
        (slice(None), slice(None, None, 2)),
        (slice(None, None, 3), slice(None)),
        (slice(None, None, 2), slice(1, None, 4)),
    ):
        room = np.full((12, 24), 7.0)
        cut = room[steps][:4, :5]
        untouched = room.copy()
        untouched[steps][:4, :5] = expected
        assert call(x, 1.5, (2.5, -0.0), cut, extra) is cut
        assert_same_bits(room, untouched)
    turned = np.empty((5, 4)).T
    assert_same_bits(call(x, 1.5, (2.5, -0.0), turned, extra), expected)


def test_the_quick_way_makes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tensor's call the key would take half as long again as all the rest."""
    if functions._quick_plans is None:
        pytest.skip("the C extension is not here")
    torch = pytest.importorskip("torch")
    x = torch.arange(8, dtype=torch.float32)
    first = tvmdml.round(x, rounding_mode="toward_zero")
    monkeypatch.setattr(_exact, "key", lambda value: pytest.fail("a key was made"))
    assert torch.equal(tvmdml.round(x, rounding_mode="toward_zero"), first)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0001))[0], 1e-310, 1e308, -1e-50])
def test_no_value_that_fills_a_matrix_is_a_floating_point_error(dtype: str, value: float) -> None:
    """Whatever the caller has NumPy do on such an error: a signaling NaN is invalid, and a tiny number becomes zero."""
    with np.errstate(all="raise"):
        found = tvmdml.diagonal_matrix(sizes=(2, 2), dtype=dtype, value=value)
    with np.errstate(all="ignore"):
        wanted = np.array(value).astype(dtype)
    assert np.array_equal(found.diagonal(), [wanted, wanted], equal_nan=True)
