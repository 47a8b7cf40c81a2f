"""The C code of the headers that ``tvmdml.packs.header`` writes: the files in ``c/``.

``operations.h`` is a whole header, with the places where pieces of the other files go. A piece begins after a line ``//@ NAME``.
``pack_`` and ``PACK_`` are replaced by the header's name, and a word between ``@`` by the rows of a table.
"""

from __future__ import annotations

import re
from pathlib import Path

_PIECE = re.compile(r"^//@ (\w+)\n", re.MULTILINE)


def text(name: str) -> str:
    """The content of a file."""
    return Path(__file__).with_name("c").joinpath(f"{name}.h").read_text()


def pieces(name: str) -> dict[str, str]:
    """The pieces of a file, by their names."""
    _, *parts = _PIECE.split(text(name))
    return dict(zip(parts[::2], parts[1::2], strict=True))
