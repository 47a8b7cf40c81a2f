"""Products and convolutions rounded to bfloat16: the same bits with matrix tiles, with AVX512_BF16, and without either."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import amx
import numpy as np
import pytest
from fenced import Place, Work, run
from support import Array, assert_outputs_agree, assert_same_bits, desc_of, seeded

import tvmdml
from tvmdml import targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._attention_bfloat16_fused import KEYS, Bfloat16Attention
from tvmdml.operators._matrix_bfloat16_fused import Bfloat16Convolution, Bfloat16Gemm, rounded
from tvmdml.targets.cpu import host

_SHAPES: dict[str, tuple[int, ...]] = {
    "a row": (1, 130, 64),
    "one tile": (16, 32, 16),
    "less than a tile": (5, 7, 21),
    "few columns": (9, 70, 5),
    "edges": (70, 300, 101),
    "several blocks": (33, 2100, 65),
    "a batch": (2, 20, 48, 40),
}


def nearest(exact: Array, rest: Array) -> Array:
    """The float32 that is nearest to the sum of two float64, of which the second is what the first is off by."""
    odd = exact.view(np.int64) | (rest != 0)  # rounding to odd first makes rounding twice the same as rounding once
    low = (rest != 0) & ((exact.view(np.int64) & 1) == 0) & ((rest < 0) == (exact > 0))
    odd = np.where(low, (exact.view(np.int64) - 1) | 1, odd)
    return odd.view(np.float64).astype(np.float32)


def fused(x: Array, y: Array, total: Array) -> Array:
    """``x * y + total``, rounded once. Products of bfloat16 are exact in float64."""
    p, t = x.astype(np.float64) * y.astype(np.float64), total.astype(np.float64)
    found = p + t
    back = found - p
    return nearest(found, (p - (found - back)) + (t - back))


def product(a: Array, b: Array) -> Array:
    """The product of matrices, in the order that the family states."""
    x, y = rounded(a), rounded(b)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for block in range(0, a.shape[-1], 32):
        halves = []
        for start in (block, block + 16):
            own = np.zeros_like(total)
            for k in range(start, min(start + 16, a.shape[-1])):
                own = fused(x[..., k, None], y[..., k, :][..., None, :], own)
            halves.append(own)
        total = total + (halves[0] + halves[1])
    return total


class Heads(NamedTuple):
    """The sizes of an attention."""

    heads: int
    rows: int
    keys: int
    channels: int
    values: int
    biased: bool = False


@pytest.mark.parametrize(
    "heads", [Heads(2, 40, 70, 64, 64), Heads(3, 33, 300, 40, 40, True), Heads(1, 5, 20, 7, 19, True)], ids=str
)
@pytest.mark.parametrize("equal", [False, True], ids=["", "equal scores"])
def test_attention_has_the_same_sums_everywhere(heads: Heads, equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal scores all weights are 1, and a result is a sum of products divided by the number of keys."""
    random, keys = seeded(str(heads)), min(heads.keys, KEYS) if equal else heads.keys

    def rows(count: int, channels: int) -> Array:
        made = random.standard_normal((1, count, heads.heads, channels)).astype(np.float32)
        return made.transpose(0, 2, 1, 3)

    q, k, v = rows(heads.rows, heads.channels), rows(keys, heads.channels), rows(keys, heads.values)
    bias = random.standard_normal((1, heads.heads, heads.rows, keys)).astype(np.float32) if heads.biased and not equal else None
    q = q * np.float32(0) if equal else q
    y = rows(heads.rows, heads.values)
    desc = Bfloat16Attention.of(
        *map(desc_of, (q, k, v)), bias if bias is None else desc_of(bias), output_tensor=desc_of(y), scale=0.2
    )
    inputs: list[Array | None] = [q, k, v, bias]
    found: dict[str, Array] = {}

    def add(name: str, target: str) -> None:
        for at_end in (True, False):
            (own,) = run(Work(desc, targets.resolve(target)), inputs, "kernel", Place(at_end), Place(not at_end))
            assert_outputs_agree(desc, [own], desc.reference(*inputs))
            found[name] = own.copy()

    for name in processors():
        add(name, f"cpu:{name}")
    if not amx.missing():
        with amx.tiles(monkeypatch) as tiles:
            add("tiles", tiles.name)
            assert dict(kernel_for(desc, targets.resolve(tiles.name)).parameters)["tiles"] is True
    if equal:
        expected = product(np.ones((1, heads.heads, heads.rows, keys), np.float32), v) / np.float32(keys)
        for one in found.values():
            assert_same_bits(one, expected)
    wide = [one for name, one in found.items() if name.startswith("x86-64-v4") or name == "tiles"]
    for one in wide[1:]:  # powers have the same bits, too
        assert_same_bits(one, wide[0])


def processors() -> list[str]:
    own = host.host()
    found = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+avx512bf16"]
    return [name for name in found if own.runs(host.parse(name))]


def checked(desc: Any, inputs: list[Array | None], expected: Array, owned: tuple[str, ...], names: list[str]) -> None:
    flags = {name: dataclasses.replace(getattr(desc, name), flags="OWNED_BY_DML") for name in owned}
    given = dataclasses.replace(desc, **flags)
    for name in names:
        for at_end in (True, False):
            found = run(Work(given, targets.resolve(f"cpu:{name}")), inputs, "kernel", Place(at_end), Place(not at_end))
            assert_outputs_agree(desc, found, desc.reference(*inputs))
            assert_same_bits(found[0], expected)


@pytest.mark.parametrize("turned", ["none", "a", "b"])
@pytest.mark.parametrize("shape", list(_SHAPES))
def test_products_have_the_same_bits_everywhere(shape: str, turned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *batch, rows, depth, columns = _SHAPES[shape]
    random = seeded(shape, turned)
    a, b = (random.standard_normal((*batch, *sizes)).astype(np.float32) for sizes in ((rows, depth), (depth, columns)))
    a[..., 0, 0] = 1e-40  # it counts as 0
    expected = product(a, b)
    x = np.asfortranarray(a) if turned == "a" else a
    y = b.swapaxes(-1, -2).copy() if turned == "b" else b
    desc = Bfloat16Gemm.of(desc_of(x), desc_of(y), trans_b="transpose" if turned == "b" else "none")
    for owned in (("b_tensor",), ()):
        checked(desc, [x, y, None], expected, owned, processors())
    if not amx.missing():
        with amx.tiles(monkeypatch) as tiles:
            name = tiles.name.removeprefix("cpu:")
            kernel = kernel_for(desc.canonical(), targets.resolve(tiles.name))
            in_tiles = str(dict(kernel.parameters)["arithmetic"]).startswith("TileBfloat16")
            assert in_tiles == (columns >= 16 and (turned != "a" or rows == 1))
            checked(desc, [x, y, None], expected, ("b_tensor",), [name])


class Case(NamedTuple):
    """A convolution."""

    sizes: tuple[int, ...]
    """Of the image."""
    filters: int
    kernel: tuple[int, ...]
    numbers: dict[str, Any] = {}  # noqa: RUF012 - none changes it
    has_kernel: bool = True
    """Whether it is a product with packed filters."""


_CASES = {
    "one tap": Case((2, 40, 5, 6), 21, (1, 1)),
    "steps": Case((2, 32, 7, 9), 17, (1, 1), {"strides": [2, 3]}),
    "padding": Case((2, 32, 7, 9), 33, (3, 3), {"start_padding": [1, 2], "end_padding": [0, 1]}),
    "dilations and steps": Case((1, 64, 13, 11), 16, (3, 2), {"strides": [2, 1], "dilations": [2, 3], "start_padding": [3, 0]}),
    "deep": Case((1, 96, 6, 5), 20, (3, 3), {"start_padding": [1, 1], "end_padding": [1, 1]}),
    "a line": Case((2, 32, 19), 18, (5,), {"start_padding": [2], "strides": [2]}),
    "few channels": Case((1, 5, 6, 7), 3, (3, 3), has_kernel=False),
}


_USUAL = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0, "output_padding": 0}


def convolved(case: Case, x: Array, w: Array, filled: str = "") -> Array:
    """What filters meet as a matrix, channels of a tap after those of another, times the filters.

    ``filled``: what begins with a new step, of "taps" or "rows" of them.
    """
    rank = len(case.kernel)
    strides, dilations, start, end = (case.numbers.get(name, [usual] * rank) for name, usual in list(_USUAL.items())[:4])
    padded = np.pad(x, ((0, 0), (0, 0), *zip(start, end, strict=True)))
    reach = [(k - 1) * d + 1 for k, d in zip(case.kernel, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    windows = windows[
        (slice(None), slice(None), *(slice(None, None, n) for n in strides), *(slice(None, None, n) for n in dilations))
    ]
    met, filters = np.moveaxis(windows, 1, -1), np.moveaxis(w, 1, -1)
    if filled:
        across = 2 if filled == "rows" else 1
        met, filters = (one.reshape(*one.shape[:-across], math.prod(one.shape[-across:])) for one in (met, filters))
        met, filters = (np.pad(one, (*[(0, 0)] * (one.ndim - 1), (0, -one.shape[-1] % 32))) for one in (met, filters))
    rows = met.reshape(*met.shape[: 1 + rank], -1)
    found = product(rows.reshape(-1, rows.shape[-1]), filters.reshape(len(w), -1).T)
    return np.moveaxis(found.reshape(*rows.shape[:-1], -1), -1, 1)


_GRAPHS = {
    "channels that do not fill a step": Case((2, 40, 7, 9), 33, (3, 3), {"start_padding": [1, 2], "end_padding": [0, 1]}),
    "steps of one tap": Case((1, 40, 8, 9), 17, (1, 1), {"strides": [2, 2]}),
    "few channels": Case((2, 3, 21, 23), 20, (7, 7), {"strides": [2, 2], "start_padding": [3, 3], "end_padding": [3, 2]}),
    "patches": Case((1, 3, 16, 24), 32, (8, 8), {"strides": [8, 8]}),
    "few channels of a line": Case((2, 5, 40), 18, (9,), {"start_padding": [4], "end_padding": [4]}),
}


@pytest.mark.parametrize("name", list(_GRAPHS))
def test_convolutions_of_graphs_have_the_same_bits_everywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters and images are arranged first. An infinity of the image is where filters meet it, and nowhere else."""
    case, random = _GRAPHS[name], seeded(name)
    x = random.standard_normal(case.sizes).astype(np.float32)
    w = random.standard_normal((case.filters, case.sizes[1], *case.kernel)).astype(np.float32)
    x[0, 0].flat[-1] = np.inf
    rows = case.sizes[1] < 32 and case.kernel[-1] > 1
    with np.errstate(all="ignore"):
        expected = convolved(case, x, w, "rows" if rows else "taps")
    numbers = {name: [usual] * len(case.kernel) for name, usual in _USUAL.items()} | case.numbers

    def check(target: str) -> None:
        graph = tvmdml.Graph(precision="bf16")
        given = graph.input(x.shape, name="x")
        compiled = graph.compile(tvmdml.convolution(given, graph.constant(w), **numbers), target=target)
        assert "tiles of FUSED_BFLOAT16_CONVOLUTION" in str(compiled.explain())
        (found,) = compiled({"x": x})
        finite = np.isfinite(expected)
        assert np.array_equal(finite, np.isfinite(found))
        assert_same_bits(found[finite], expected[finite])

    for processor in processors():
        check(f"cpu:{processor}")
    if not amx.missing():
        with amx.tiles(monkeypatch) as tiles:
            check(tiles.name)


def last(array: Array) -> Array:
    """The same with channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@pytest.mark.parametrize("name", list(_CASES))
def test_convolutions_have_the_same_bits_everywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, random = _CASES[name], seeded(name)
    x = random.standard_normal(case.sizes).astype(np.float32)
    w = random.standard_normal((case.filters, case.sizes[1], *case.kernel)).astype(np.float32)
    expected = convolved(case, x, w, "taps")
    for order in (last, np.ascontiguousarray):
        y = order(expected)
        numbers = {name: [usual] * len(case.kernel) for name, usual in _USUAL.items()} | case.numbers
        desc = Bfloat16Convolution.of(desc_of(order(x)), desc_of(order(w)), output_tensor=desc_of(y), **numbers)
        has_kernel = case.has_kernel and (order is last or (math.prod(case.kernel) == 1 and "strides" not in case.numbers))
        owned = ("filter_tensor",) if has_kernel else ()
        checked(desc, [order(x), order(w), None], expected, owned, processors())
        if not amx.missing():
            with amx.tiles(monkeypatch) as tiles:
                checked(desc, [order(x), order(w), None], expected, owned, [tiles.name.removeprefix("cpu:")])
