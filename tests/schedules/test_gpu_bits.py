"""Products with a matrix of few bits in blocks on a GPU: as it is stored, of few rows and in tiles."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from followers import agrees, scaled
from support import Array, assert_agrees, seeded
from test_gpu_features import LACKING, refused, without

import tvmdml
from tvmdml import knobs
from tvmdml.kernels.kernel import Offers
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.schedules import gpu
from tvmdml.targets import Target


def spread(values: Array, desc: tvmdml.TensorDesc) -> Array:
    """The same elements with a tensor's strides; what is between them is no number, or all bits."""
    room = np.full(desc.span, np.nan if values.dtype.kind == "f" else 255, values.dtype)
    found = np.lib.stride_tricks.as_strided(room, values.shape, [step * values.itemsize for step in desc.layout])
    found[...] = values
    return found


class Case(NamedTuple):
    """A product, and how the matrix lies: bytes behind each row's."""

    rows: int
    columns: int
    places: int
    bits: int
    block: int
    dtype: str
    zero: str = ""
    is_signed: bool = False
    gap: int = 0
    batch: int = 0
    a_gap: int | None = 0
    """Elements behind each row of the first factor; ``None``: its batches are one."""

    @property
    def desc(self) -> Any:
        """The operator."""
        blocks, kind = -(-self.places // self.block), self.dtype
        a = (*([self.batch] if self.batch else []), self.rows, self.places)
        steps = [self.places + (self.a_gap or 0), 1]
        steps = [0 if self.a_gap is None else self.rows * steps[0] + self.a_gap, *steps] if self.batch else steps
        width = -(-self.places * self.bits // 8)
        zeros = {"": None, "floats": (kind, blocks), "bits": ("uint8", -(-blocks * self.bits // 8))}[self.zero]
        return BlockwiseGemm.of(
            tvmdml.TensorDesc(kind, a, steps),
            tvmdml.TensorDesc("uint8", (self.columns, width), (width + self.gap, 1)),
            tvmdml.TensorDesc(kind, (self.columns, blocks), (blocks + self.gap, 1)),
            None if zeros is None else tvmdml.TensorDesc(zeros[0], (self.columns, zeros[1]), (zeros[1] + self.gap, 1)),
            bits=self.bits,
            block_size=self.block,
            is_signed=self.is_signed,
        )

    def inputs(self) -> list[Array | None]:
        """Random ones."""
        rng = seeded("few bits", *map(str, self))
        found: list[Array | None] = []
        for name, tensor in self.desc.tensors():
            if name == "output_tensor":
                continue
            if tensor is None:
                found.append(None)
            elif tensor.data_type.is_float:
                found.append(spread(rng.normal(0, 1, tensor.sizes).astype(tensor.data_type.numpy), tensor))
            else:
                found.append(spread(rng.integers(0, 256, tensor.sizes, np.uint8), tensor))
        return found


FEW = {
    "one row": Case(1, 33, 256, 4, 32, "float32"),
    "halves": Case(1, 64, 512, 4, 32, "float16", "bits"),
    "two rows": Case(2, 17, 320, 4, 16, "float16", "floats"),
    "three rows": Case(3, 9, 257, 8, 64, "float32", "bits", gap=3),
    "eight rows": Case(8, 5, 1056, 2, 16, "float16", "bits", is_signed=True, gap=4),
    "large blocks": Case(4, 7, 600, 4, 256, "float32", "floats", is_signed=True, a_gap=4),
    "fewer places than a run": Case(5, 40, 11, 4, 16, "float16", "bits", a_gap=1),
    "a word's rest": Case(2, 6, 130, 2, 32, "float32", gap=5),
    "bytes": Case(1, 6, 99, 8, 24, "float32", "bits", is_signed=True),
    "a batch": Case(2, 1, 72, 4, 24, "float32", "bits", batch=3, a_gap=2),
    "a column": Case(1, 1, 64, 4, 32, "float32", "bits", batch=4, a_gap=None),
    "few columns": Case(1, 3, 8200, 4, 32, "float16", "bits"),
    "many columns": Case(1, 1030, 160, 4, 32, "float32", "bits"),
}
"""Products of few rows."""
MANY: dict[str, tuple[Case, dict[str, Any]]] = {
    "nine rows": (Case(9, 33, 256, 4, 32, "float32"), {}),
    "halves": (Case(33, 64, 320, 4, 16, "float16", "bits"), {"tile": "32x32"}),
    "in blocks": (Case(20, 24, 600, 4, 64, "float16", "floats", gap=4), {"algorithm": "blocks", "tile": "16x64"}),
    "in tiles": (Case(40, 70, 530, 2, 32, "float32", "bits", is_signed=True), {"algorithm": "tiles", "tile": "64x64"}),
    "bytes": (Case(12, 19, 99, 8, 24, "float32", "bits", is_signed=True), {"tile": "64x16", "depth": 8}),
    "a word's rest": (Case(17, 9, 70, 2, 16, "float16", gap=1), {"depth": 8}),
    "a batch": (Case(10, 13, 72, 4, 24, "float32", "floats", batch=3, a_gap=2), {"stages": 1}),
    "large blocks": (Case(130, 140, 300, 8, 256, "float32", "bits"), {"tile": "128x128"}),
    "fewer places than a step": (Case(64, 30, 5, 2, 16, "float32", "bits"), {}),
    "long sums": (Case(33, 37, 1100, 4, 512, "float16", "bits", is_signed=True), {"algorithm": "tiles"}),
    "the least blocks": (Case(70, 40, 420, 8, 16, "float16", "bits"), {"tile": "64x64", "stages": 4}),
    "wide steps": (Case(16, 130, 1064, 4, 64, "float16"), {"depth": 32, "algorithm": "blocks"}),
    "less than the least blocks": (Case(16, 24, 56, 8, 8, "float16"), {}),
}
"""Products in tiles, and knobs."""


@pytest.mark.parametrize("name", FEW)
def test_few_rows_are_as_the_reference_says(device: Target, name: str) -> None:
    case = FEW[name]
    assert kernel_for(case.desc.canonical(), device).name == "bits"
    assert_agrees(case.desc, device, *case.inputs())


@pytest.mark.parametrize("name", MANY)
def test_tiles_are_as_the_reference_says(device: Target, name: str) -> None:
    case, given = MANY[name]
    with knobs.using(matrix=given):
        kernel = kernel_for(case.desc.canonical(), device)
        assert kernel.name in given.get("algorithm", "tiles blocks"), kernel.name
        assert Offers.OWN in kernel.offers
        leaf = "plain"
        if case.dtype == "float16" and case.zero != "floats" and case.block >= 16:  # sums of a block have one scale
            leaf = "cores" if device.has("tensor_cores") else "held" if device.matrices("float16") else "plain"  # type: ignore[attr-defined]
        assert dict(kernel.parameters)["leaf"].startswith(leaf)
        assert_agrees(case.desc, device, *case.inputs())


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 33])
def test_every_way_of_storing_a_matrix(device: Target, rows: int, draw: Any) -> None:
    """Drawn from bits, blocks, types, zero points, signs, odd columns, places, and gaps between rows."""
    blocks = {2: (16, 48, 64, 256), 4: (16, 24, 32, 128), 8: (16, 20, 32, 256)}
    ways = [
        Case(rows, columns, places, bits, block, dtype, zero, is_signed, gap, 0, a_gap)
        for bits, own in blocks.items()
        for block, dtype, zero, is_signed, gap, (columns, places), a_gap in itertools.product(
            own,
            ("float16", "float32"),
            ("", "bits", "floats"),
            (False, True),
            (0, 1, 4, 16),
            ((1, 64), (5, 256), (37, 93), (70, 322), (3, 1030), (33, 512)),
            (0, 3),
        )
    ]
    for case in draw(ways, 5):
        assert Offers.OWN in kernel_for(case.desc.canonical(), device).offers
        assert_agrees(case.desc, device, *case.inputs())


@pytest.mark.parametrize("name", ["halves", "a batch", "many columns", "in blocks", "in tiles"])
def test_groups_stride_and_count_in_64_bits(device: Target, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {**FEW, **{key: one for key, (one, _) in MANY.items()}}[name]
    monkeypatch.setattr(gpu, "_NARROW", 1)
    monkeypatch.setattr(device, "max_groups", 2)
    kernel = kernel_for(case.desc.canonical(), device)
    parameters = dict(kernel.parameters)
    assert parameters["counted in"] == "int64"
    assert 2 in parameters.get("groups", kernel.scalars)
    assert_agrees(case.desc, device, *case.inputs())


def test_blocks_that_share_a_word_have_no_schedule_of_their_own(device: Target) -> None:
    case = Case(2, 7, 70, 2, 20, "float32", "bits")
    assert Offers.OWN not in kernel_for(case.desc.canonical(), device).offers
    assert_agrees(case.desc, device, *case.inputs())
    column = FEW["a column"]._replace(block=12)
    assert_agrees(column.desc, device, *column.inputs())


@pytest.mark.parametrize("rows", [2, 11])
def test_what_follows_is_in_the_kernel(device: Target, rows: int) -> None:
    case = Case(rows, 21, 96, 4, 32, "float16", "bits")
    desc = agrees(case.desc, scaled(case.desc.output_tensor), device)
    assert Offers.OWN in kernel_for(desc.canonical(), device).offers


def test_devices_with_words_alone_read_words_or_refuse(vulkan: Target) -> None:
    target = without(vulkan, **LACKING["all"])
    for name in ("one row", "nine rows", "large blocks", "in tiles"):
        case = {**FEW, **{key: one for key, (one, _) in MANY.items()}}[name]
        if case.dtype == "float32":
            given = case._replace(zero="floats" if case.zero else "", places=case.places // 32 * 32)
            assert_agrees(given.desc, target, *given.inputs())
    assert refused(FEW["bytes"].desc.canonical(), target) == "storageBuffer8BitAccess"
    assert refused(MANY["bytes"][0].desc.canonical(), target) == "storageBuffer8BitAccess"
    assert refused(FEW["halves"].desc.canonical(), target) == "storageBuffer16BitAccess"
    narrow = without(vulkan, **LACKING["narrow arithmetic"])
    for case in (FEW["halves"], MANY["halves"][0]):
        assert_agrees(case.desc, narrow, *case.inputs())
