"""The PyTorch operator of a specimen: optional input, enumeration, several results, and result types that the caller chooses."""

from __future__ import annotations

from typing import Any

import pytest
import specimens

from tvmdml.doors._made import made

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tvmdml.torch import _register  # noqa: E402

_register._register_all({"specimen_graded": made(specimens.Graded)["specimen_graded"]})
graded = torch.ops.tvmdml.specimen_graded


def test_the_schema_follows_from_the_class() -> None:
    assert str(graded.default._schema) == (
        'tvmdml::specimen_graded(Tensor input, Tensor indices, Tensor? grade=None, *, str axis_direction="increasing", '
        "float factor=1., ScalarType? index_dtype=None, ScalarType? flag_dtype=None) "
        "-> (Tensor values, Tensor places, Tensor flags)"
    )


def test_it_keeps_pytorchs_rules() -> None:
    x, places = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 9], dtype=torch.int32)
    for grade in (None, x * 8):
        torch.library.opcheck(graded.default, (x, places, grade), {"axis_direction": "decreasing"})
    values, found, flags = graded(x, places)
    assert (values.tolist(), found.tolist(), flags.tolist()) == ([4, 1, 0], [2, 0, 0], [1, 1, 0])
    assert (found.dtype, flags.dtype) == (torch.int64, torch.uint8)


def test_sizes_stay_open_when_it_is_compiled() -> None:
    def run(x: Any, places: Any) -> Any:
        return graded(x, places, index_dtype=torch.int32)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (2, 5, 7):
        x, places = torch.arange(count + 1.0), torch.arange(count, dtype=torch.int32)
        for one, other in zip(compiled(x, places), run(x, places), strict=True):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
