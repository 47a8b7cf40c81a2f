"""Whether tvmdml does on this machine what DirectML's contracts say: to run anywhere, and to send to whoever looks after tvmdml.

Four parts: ``rules``, each broken once; reference ``cases``; ``models`` of DxDispatch's; and, where it is asked for and installed,
``onnx``: its own test cases. All else needs nothing but the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmdml.conformance.report import Report
    from tvmdml.enums import FeatureLevel

__all__ = ["PARTS", "SEED", "again", "run"]

RULES = "rules"
"""The part that runs no kernel."""
PARTS = (RULES, "cases", "models", "onnx")
SEED = 2024
"""Of the inputs: whoever leaves it as it is runs what all others run."""


def run(
    devices: Sequence[str] = (),
    names: Iterable[str] = (),
    *,
    parts: Iterable[str] = PARTS[:3],
    seed: int = SEED,
    feature_level: str | FeatureLevel | None = None,
    isolated: bool = True,
) -> Report:
    """Run the checks, as ``tvmdml conformance`` does.

    Args:
        devices: targets such as ``"cpu"`` and ``"vulkan:0"``; by default all that answer here.
        names: of operators; by default all.
        parts: of ``PARTS``; ``"onnx"`` needs ONNX.
        seed: of the inputs.
        feature_level: whose rules apply; below the newest, what the level does not take is left out.
        isolated: run in processes of their own, so that one which dies costs no more than its own outcome.

    Returns:
        What was found.

    Raises:
        InvalidArgument, Unsupported: there is no such operator, part or target; the compiler is missing, or ONNX.
        DeviceError: there is no such device.
    """
    from tvmdml.conformance.plan import plan
    from tvmdml.conformance.report import Report

    made = plan(devices, names, parts=parts, seed=seed, feature_level=feature_level, isolated=isolated)
    return Report(made.targets, made.seed, made.level, list(made.outcomes()))


def again(case: str, fill: str = "mixed", device: str = "cpu", seed: int = SEED) -> str:
    """Run one reference case once more, in this process, from what a report says of it.

    Args:
        case: the descriptor: ``{ operator = "TOP_K1", … }``.
        fill: the name of its input.
        device: the target.
        seed: of the input.

    Returns:
        What is wrong; empty if nothing is.
    """
    from tvmdml import targets
    from tvmdml.conformance import references

    return references.again(case, fill, targets.resolve(device), seed)
