"""What ONNX Runtime GenAI has and this package has not, each with an error that says what is missing and what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

from tvmdml.errors import Unsupported, message

FEATURES = "Compute features in the program, and give them to Generator.set_inputs under the names of the network's inputs."


def lacks(what: str, allowed: str, advice: str = "") -> NoReturn:
    """Say that something is not here.

    Raises:
        Unsupported: always.
    """
    raise Unsupported(message(what, "a call", allowed, advice))


class Images:
    """Pictures for a model that sees: not read here."""

    @classmethod
    def open(cls, *paths: str) -> Images:
        """Not here.

        Raises:
            Unsupported: always.
        """
        lacks("Images", "models of text", FEATURES)

    @classmethod
    def open_bytes(cls, *contents: bytes) -> Images:
        """Not here.

        Raises:
            Unsupported: always.
        """
        lacks("Images", "models of text", FEATURES)


class StreamingProcessor:
    """What makes sound into features while it is recorded: not here."""

    def __init__(self, model: Any = None) -> None:
        lacks("StreamingProcessor", "models of text", FEATURES)


class MtpGenerator:
    """Generation with a second network that drafts: not here."""

    def __init__(self, model: Any = None, drafts: Any = None, params: Any = None) -> None:
        lacks("MtpGenerator", "Generator, which gives the same tokens without a second network")
