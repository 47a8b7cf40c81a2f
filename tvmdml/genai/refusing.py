"""The errors of this room. ONNX Runtime GenAI raises RuntimeError, so programs that catch it catch these too."""

from __future__ import annotations

from tvmdml.errors import InvalidArgument, ModelError


class Refused(InvalidArgument, RuntimeError):
    """An option, token or call that is not allowed now."""


class FolderError(ModelError, RuntimeError):
    """A model's folder lacks something, or what is in it cannot be read."""
