"""Checks whether tvmdml follows DirectML's contracts on this machine. The reports can be sent to tvmdml's maintainers.

There are four parts: ``rules``, each broken once; reference ``cases``; DxDispatch ``models``; and, on request, ``onnx``: ONNX's own
test cases, which need the package onnx. The other parts need no further packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tvmdml.proof.conformance.terms import PARTS, SEED

if TYPE_CHECKING:
    from tvmdml.enums import FeatureLevel
    from tvmdml.proof.conformance.report import Report

__all__ = ["PARTS", "SEED", "again", "run"]


def run(
    devices: Sequence[str] = (),
    names: Iterable[str] = (),
    *,
    parts: Iterable[str] = PARTS[:3],
    seed: int = SEED,
    feature_level: str | FeatureLevel | None = None,
    isolated: bool = True,
    every_case: bool = False,
) -> Report:
    """Run the checks, as ``tvmdml conformance`` does.

    Args:
        devices: targets such as ``"cpu"`` and ``"vulkan:0"``; by default all that work on this machine.
        names: names of operators; by default all.
        parts: some of ``PARTS``; ``"onnx"`` needs ONNX.
        seed: the seed of the inputs, and of the cases that are drawn.
        feature_level: the feature level to check against; below the newest, cases that the level does not support are left out.
        isolated: run checks in separate processes, so that a crash only affects the outcome of its own check.
        every_case: run all reference cases; otherwise, without ``names``, some of each operator are drawn.

    Returns:
        The report.

    Raises:
        InvalidArgument, Unsupported: there is no such operator, part or target; or the compiler or ONNX is not installed.
        DeviceError: there is no such device.
    """
    from tvmdml.proof.conformance.plan import plan
    from tvmdml.proof.conformance.report import Report

    made = plan(
        devices, names, parts=parts, seed=seed, feature_level=feature_level, isolated=isolated,
        every_case=every_case,
    )  # fmt: skip
    return Report(made.targets, made.seed, made.level, list(made.outcomes()), cases=made.cases)


def again(case: str, fill: str = "mixed", device: str = "cpu", seed: int = SEED) -> str:
    """Run one reference case again, in this process, as a report describes it.

    Args:
        case: the descriptor: ``{ operator = "TOP_K1", … }``.
        fill: the name of its input.
        device: the target.
        seed: the seed of the input.

    Returns:
        A description of what is wrong; empty if nothing is.
    """
    from tvmdml import targets
    from tvmdml.proof.conformance import references

    return references.again(case, fill, targets.resolve(device, "device"), seed)
