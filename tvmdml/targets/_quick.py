"""The quick way of a function's call, where the C extension was built: from a call of a known form straight to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.targets import Launch
from tvmdml.targets.cpu import threads

if TYPE_CHECKING:
    from tvmdml.targets.cpu._native import Plans


def plans() -> Plans | None:
    """An empty memory of calls; ``None`` where there is no extension."""
    extension = threads.native()
    return None if extension is None else extension.Plans()


def remember(
    plans: Plans, describe: object, device: str | None, attributes: Any, inputs: Any, out: Any, launch: Launch, results: Any
) -> None:
    """Have calls like this one (all its arrays NumPy's) launched at once, if that is possible.

    ``launch`` is what the call led to, and ``results`` the ((shape, data type), …) of its outputs.
    """
    if isinstance(launch, threads.native().Launch):  # type: ignore[union-attr] # there are plans
        plans.add(describe, device, attributes, tuple(inputs), out, launch, results)
