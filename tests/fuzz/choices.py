"""Decisions that are read from bytes: the same bytes are the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 9, 64, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
           -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, 10**400, -(10**400), 10**5000)  # fmt: skip
"""Integers that stand on some edge; the last has more digits than Python likes to print."""
FLOATS = (0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e-320, 3.4e38, 1e39, 1e308, float("inf"), float("-inf"), float("nan"))
FLOATS_16 = (0.0, -0.0, 0.5, 1.5, -2.5, 65504.0, 6e-8, float("inf"), float("-inf"), float("nan"))
LETTERS = "a0 _-+.,:;=/\\[]{}()'\"%~$#@\n\r\t\0\x1b\x7f\u0130\u200b\u202e\ufeff\uffff\ud800\U0001f600éß"


class Choices:
    """Where the bytes end, every decision is the first of its options: an example is as long as its bytes, and no longer."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def integer(self, low: int, high: int) -> int:
        """An integer within bounds."""
        size = ((high - low).bit_length() + 7) // 8
        return low + int.from_bytes(self.bytes(size), "little") % (high - low + 1)

    def flag(self, one_in: int = 2) -> bool:
        """True for one of so many."""
        return self.integer(0, one_in - 1) == one_in - 1

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def several(self, make: Callable[[], T], most: int, least: int = 0) -> list[T]:
        """As many things as make comes up with, from none on."""
        return [make() for _ in range(self.integer(least, most))]

    def bytes(self, count: int) -> bytes:
        """So many bytes."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found.ljust(count, b"\0")

    def rest(self) -> bytes:
        """All the bytes that are left."""
        found, self._at = self._data[self._at :], len(self._data)
        return found

    def number(self) -> int:
        """An integer: a small one, one on an edge, or next to an edge."""
        kind = self.integer(0, 3)
        return self.integer(-3, 12) if kind < 2 else self.pick(NUMBERS) + (self.integer(-1, 1) if kind == 3 else 0)

    def real(self) -> float:
        """A float of any bits, or one that stands on some edge."""
        import struct

        return self.pick(FLOATS) if self.flag() else float(struct.unpack("<d", self.bytes(8))[0])

    def text(self, words: Sequence[str] = (), most: int = 12) -> str:
        """Words, and letters that are hard to take."""
        parts: list[str] = []
        for _ in range(self.integer(1, 3)):
            if words and not self.flag(3):
                parts.append(self.pick(words))
            else:
                parts.append("".join(self.several(lambda: self.pick(LETTERS), most)) * self.pick((1, 1, 1, 1, 300)))
        return "".join(parts)

    def shuffled(self, options: Sequence[Any]) -> list[Any]:
        """The options in some order."""
        left, found = list(options), []
        while left:
            found.append(left.pop(self.integer(0, len(left) - 1)))
        return found
