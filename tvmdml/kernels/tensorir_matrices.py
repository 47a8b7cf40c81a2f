"""Words for small matrices that the threads of a subgroup hold together: tensor cores, cooperative matrices. ``tensorir`` has all
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels.tensorir_base import builder


def multiply_tiles(types: tuple[str, str], sums: Any, at: int, a: Sequence[Any], b: Sequence[Any]) -> None:
    """Add the product of two small matrices to sums, which the threads of a subgroup hold together.

    The first factor has 16 rows and the second one 8 columns, of 32 bytes each. Of the first a thread has four words, of the second
    two, as ``load_tiles`` gives them, and of the sums four: two neighbours in row ``lane // 4``, and two in the row 8 after it.
    Products of float16 are summed in float32, in a way that differs between devices; those of bytes in int32, which wraps.
    """
    t, name = builder(), "_".join(dict.fromkeys(types) if types[0] == "float16" else types)
    t.evaluate(t.call_extern("int32", f"multiply_tiles_{name}", t.address_of(sums[at]), *a, *b))


def load_tiles(words: Any, at: int, source: Any, place: Any, turned: bool = False) -> None:
    """Load four matrices of 8 rows of 16 bytes from shared memory; a thread has a word of row ``lane // 4`` of each.

    Thread ``i`` says where row ``i % 8`` of matrix ``i // 8`` is. With ``turned``, the memory's rows are columns, of 8 elements of
    16 bits.
    """
    t = builder()
    name = "load_turned_tiles" if turned else "load_tiles"
    t.evaluate(t.call_extern("int32", name, t.address_of(words[at]), t.address_of(source[place])))


class SubgroupMatrix:
    """A small matrix that the threads of a subgroup hold together, each of them parts that nobody knows.

    All of them must reach each of its operations. Products are summed in an order of the device's own, or in int32, which wraps.

    Args:
        name: its own in the kernel.
        use: ``a`` or ``b``, a factor, or ``sum``.
        dtype: the type of its elements.
        shape: its rows and columns.
    """

    def __init__(self, name: str, use: str, dtype: str, shape: tuple[int, int]) -> None:
        self._arguments = name, use, dtype, *shape

    def _do(self, operation: str, *arguments: Any) -> None:
        t = builder()
        t.evaluate(t.call_extern("int32", f"matrix_{operation}", *self._arguments, *arguments))

    def fill(self, value: int = 0) -> None:
        """All elements become an integer."""
        self._do("fill", value)

    def load(self, source: Any, place: Any, pitch: int, turned: bool = False) -> None:
        """Load it from shared memory, which may have another type, and whose rows are ``pitch`` of its elements apart; with
        ``turned``, the matrix's columns are.
        """
        self._do("load", builder().address_of(source[place]), int(turned), pitch)

    def store(self, target: Any, place: Any, pitch: int) -> None:
        """Store it to shared memory, as ``load`` reads it."""
        self._do("store", builder().address_of(target[place]), 0, pitch)

    def add(self, other: SubgroupMatrix) -> None:
        """Add another one, element by element."""
        self._do("add", *other._arguments)

    def multiply(self, other: SubgroupMatrix) -> None:
        """Multiply it by another one, element by element."""
        self._do("scale", *other._arguments)

    def add_product(self, a: SubgroupMatrix, b: SubgroupMatrix) -> None:
        """Add the product of two factors."""
        self._do("multiply", *a._arguments, *b._arguments)


def chosen_bytes(low: Any, high: Any, which: Any) -> Any:
    """A word of four bytes of two words, each by its number among the eight: in the lowest bits of a digit of 4 bits."""
    return builder().call_pure_extern("uint32", "chosen_bytes", low, high, which)


def halves(low: Any, high: Any) -> Any:
    """Two float32, rounded to float16, as a word: neighbours, as in a small matrix. In which direction is the driver's choice."""
    return builder().call_extern("uint32", "pack_halves", low, high)
