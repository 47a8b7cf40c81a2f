"""What the package raises where an operator refuses its tensors or attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported


class Refused(TvmdmlError, RuntimeError):
    """An operator refuses its tensors or attributes: DirectML's E_INVALIDARG."""


@contextmanager
def refusing() -> Iterator[None]:
    """Report what an operator does not accept as the package does: a ``RuntimeError`` that ends with an HRESULT."""
    try:
        yield
    except (InvalidArgument, Unsupported) as error:
        raise Refused(f"{error} E_INVALIDARG (0x80070057)") from error
