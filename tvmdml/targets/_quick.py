"""The fast path of a function call, if the C extension was built: a call of a known form goes straight to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.targets import Launch
from tvmdml.targets.cpu import threads

if TYPE_CHECKING:
    from tvmdml.targets.cpu._native import Plans


def plans() -> Plans | None:
    """An empty cache of calls; ``None`` without the extension, or with one that was built from older sources."""
    extension = threads.native()
    return extension.Plans() if extension is not None and hasattr(extension.Plans, "one") else None


def remember(
    plans: Plans,
    describe: object,
    device: str | None,
    attributes: Any,
    inputs: Any,
    out: Any,
    launch: Launch,
    results: Any,
    given: tuple[Any, ...] | None = None,
) -> None:
    """Make the next calls like this one launch at once, if possible. All arrays of the call are NumPy's.

    ``launch`` is the launch of this call, and ``results`` the ((shape, data type), …) of its outputs. ``given`` are the inputs as
    the caller gave them, if there are Python numbers among them: ``inputs`` has arrays without dimensions instead.
    """
    if isinstance(launch, threads.native().Launch):  # type: ignore[union-attr] # with plans there is an extension
        inputs = tuple(inputs)
        plans.add(describe, device, attributes, inputs if given is None else given, out, launch, results, inputs)
