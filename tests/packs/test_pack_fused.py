"""Packs with kernels that several operators' files define: of a fused activation, and of a chain of operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import packs as small
import pytest
from support import assert_same_bits

import tvmdml
from tvmdml import TensorDesc, packs
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import finding, opened, spec, stamps
from tvmdml.library import format as container
from tvmdml.library.scheduling import kernel_for
from tvmdml.packs import change
from tvmdml.targets import Target

X = TensorDesc("float32", (3, 70))
FUSED = tvmdml.ElementWiseAdd1.of(X, X, fused_activation=tvmdml.ActivationLeakyRelu.fused(alpha=0.5))
PLAIN = tvmdml.ElementWiseAdd.of(X, X)


@pytest.fixture
def path(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """A pack of both operators, on a machine that has compiled nothing."""
    found = tmp_path / "fused.tvmdml"
    packs.build(spec.Spec((small.name_for(target),), (spec.Wanted(FUSED), spec.Wanted(PLAIN))), found, jobs=1)
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(opened, "_libraries", {})
    return found


def _run(desc: tvmdml.Operator, target: Target) -> None:
    a, b = (np.linspace(-2, 3, 210, dtype=np.float32).reshape(3, 70)[::step] for step in (1, -1))
    out = np.empty_like(a)
    tvmdml.compile(desc, target)(a, np.ascontiguousarray(b), out)
    assert_same_bits(out, desc.reference(a, b)[0])  # type: ignore[arg-type]


def test_kernels_of_fused_operators_are_found(path: Path, target: Target) -> None:
    before = finding.compiled_count
    with tvmdml.load_pack(path, strict=True):
        _run(FUSED, target)
        _run(PLAIN, target)
    assert finding.compiled_count == before


def test_they_are_passed_over_if_the_activations_differ(path: Path, target: Target, tmp_path: Path) -> None:
    pack = packs.Pack(path)
    contents = pack.contents()
    sources = {**contents.head["sources"], f"{target.kind} activation": "0123456789abcdef"}
    other = tmp_path / "other.tvmdml"
    container.write(other, contents._replace(head={**contents.head, "sources": sources}))
    pack.close()
    with tvmdml.load_pack(other, strict=True):
        _run(PLAIN, target)
        with (
            pytest.warns(RuntimeWarning, match=f"its {target.kind} kernels for activation were built from other schedules"),
            pytest.raises(tvmdml.CompileError, match="other schedules"),
        ):
            _run(FUSED, target)


def test_a_part_of_a_pack_keeps_the_stamps_of_fused_operators(path: Path, target: Target, tmp_path: Path) -> None:
    part = tmp_path / "part.tvmdml"
    change.split(path, [target.kind], part)
    with tvmdml.load_pack(part, strict=True):
        _run(FUSED, target)


def test_a_kernel_depends_on_the_source_of_the_fused_operator(target: Target) -> None:
    fused, plain = (kernel_for(desc, target) for desc in (FUSED, PLAIN))
    assert isinstance(fused, Kernel)
    assert [*stamps.sources(fused, target)] == ["element_wise_binary", "activation"]
    assert [*stamps.sources(plain, target)] == ["element_wise_binary"]
    assert stamps.source(fused, target) != stamps.source(plain, target)
