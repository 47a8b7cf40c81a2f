"""DML_OPERATOR_RANDOM_GENERATOR: random bits, each block of which follows from a counter and a key (Philox 4x32-10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.enums import RandomGeneratorType
from tvmdml.kernels import tensorir as T
from tvmdml.operators._contract import Input, NumpyArray, Operator, OptionalOutput, Output, Shared, defaults
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

STATE = 6
"""Words of a state: a counter of four, least significant first, and a key of two."""
BLOCK = 4
"""Words of a block."""
ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = (1 << 32) - 1


class RandomGenerator(Operator):
    """Random 32-bit words, and the state for the next call (``DML_RANDOM_GENERATOR_OPERATOR_DESC``).

    A state is a counter of 128 bits, its least significant word first, and a key of 64 bits. The elements, in row-major order, are
    the words of the blocks that Philox 4x32-10 makes from the counter and its successors; the last block may be cut. The new state
    has the counter of the block after it. It may be written over the old one.
    """

    DEFAULTS = defaults(type=RandomGeneratorType.PHILOX_4X32_10)
    SUPPORT = support("3.0 u r4 · 4.0 r8")
    SHARES = (("input_state_tensor", "output_state_tensor"),)

    input_state_tensor: Input
    output_tensor: Output
    output_state_tensor: OptionalOutput = None
    type: RandomGeneratorType

    def infer(self) -> Mapping[str, TensorDesc]:
        """The new state is like the old one; the output must be given."""
        return {"output_state_tensor": self.input_state_tensor.with_sizes(self.input_state_tensor.sizes)}

    def check(self) -> None:
        """A state has six elements, and both states have the same sizes."""
        given = self.input_state_tensor.sizes
        wanted = (*(1,) * (len(given) - 1), STATE)
        self.require(given == wanted, "input_state_tensor.sizes", given, f"{wanted}: a counter of 4 words and a key of 2")
        if self.output_state_tensor is not None:
            self.require_same("sizes", "output_state_tensor", "input_state_tensor")

    @property
    def blocks(self) -> Any:
        """The number of blocks, the last of which may be cut."""
        return (self.output_tensor.element_count + (BLOCK - 1)) // BLOCK

    def shape_class(self) -> dict[str, int | str]:
        """The number of elements and the output's layout."""
        return {"elements": self.output_tensor.element_count, "layout": self.layout()}

    CONSTANT_SHAPES = "the new counter follows from the number of elements"

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element, which makes its whole block; then one for the new state."""
        source, result, state = self.input_state_tensor, self.output_tensor, self.output_state_tensor
        with T.function() as f:
            buffers = f.tensors(self, shared)
            with T.elements(each, result.sizes) as at:
                number = T.let(element_number(at, result.sizes))
                block = philox(loaded(buffers["input_state_tensor"], source), number >> T.const(2, T.type_of(number)))
                word = block[-1]
                for i, other in enumerate(block[:-1]):
                    here = (number & T.const(BLOCK - 1, T.type_of(number))) == T.const(i, T.type_of(number))
                    word = T.Select(here, other, word)
                T.store(buffers["output_tensor"], T.dot(at, result.layout), T.cast(word, "uint32"))
            if state is not None:
                with each(1):
                    advance(buffers["input_state_tensor"], source, buffers["output_state_tensor"], state, self.blocks)
        return f.result()

    def reference(self, *inputs: NumpyArray | None) -> tuple[NumpyArray, ...]:
        """The operator in NumPy: all blocks at once, in 64-bit words."""
        (state,) = inputs
        assert state is not None
        words = [int(word) for word in state.reshape(STATE)]
        counter = sum(word << (32 * i) for i, word in enumerate(words[:BLOCK]))
        after = (counter + self.blocks) % (1 << 128)
        with np.errstate(over="ignore"):
            low = np.arange(self.blocks, dtype=np.uint64) + np.uint64(counter % (1 << 64))
        high = (low < np.uint64(counter % (1 << 64))) + np.uint64(counter >> 64)
        c = [half >> np.uint64(shift) & np.uint64(_WORD) for half in (low, high) for shift in (0, 32)]
        for number in range(ROUNDS):
            k = [np.uint64((key + number * step) & _WORD) for key, step in zip(words[BLOCK:], _KEY_STEPS, strict=True)]
            p, q = c[0] * np.uint64(_FACTORS[0]), c[2] * np.uint64(_FACTORS[1])
            c = [q >> np.uint64(32) ^ c[1] ^ k[0], q & np.uint64(_WORD), p >> np.uint64(32) ^ c[3] ^ k[1], p & np.uint64(_WORD)]
        values = np.stack(c, -1).astype(np.uint32).reshape(-1)[: self.output_tensor.element_count].reshape(self.output_tensor.sizes)
        if self.output_state_tensor is None:
            return (values,)
        new = [*(after >> (32 * i) & _WORD for i in range(BLOCK)), *words[BLOCK:]]
        return values, np.array(new, np.uint32).reshape(state.shape)


# -- Steps of kernels ---------------------------------------------------------------------------------------------

WordProduct = Callable[[Any, int], "tuple[Any, Any]"]
"""The high and the low word of the product of a word and a constant."""


def word_type() -> str:
    """The type in which words are computed.

    On the CPU they are the low halves of 64-bit integers, as which processors multiply them; the high halves may have any value.
    """
    return "uint32" if T.is_on_device() else "uint64"


def element_number(at: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The number of an element in row-major order, in the type of words."""
    number = T.cast(at[0], word_type())
    for one, size in zip(at[1:], sizes[1:], strict=True):
        number = number * T.const(size, word_type()) + T.cast(one, word_type())
    return number


def loaded(buffer: Any, tensor: TensorDesc) -> list[Any]:
    """The words of a state."""
    return [T.hold(T.cast(buffer[T.index(i * tensor.layout[-1])], word_type())) for i in range(STATE)]


def advance(buffer: Any, tensor: TensorDesc, new_buffer: Any, new: TensorDesc, blocks: Any) -> None:
    """Write the state after so many blocks; the old one is read before."""
    words = loaded(buffer, tensor)
    number = T.const(blocks, word_type()) if isinstance(blocks, int) else blocks
    for i, word in enumerate([*_counted(words[:BLOCK], number), *words[BLOCK:]]):
        T.store(new_buffer, T.index(i * new.layout[-1]), T.cast(word, "uint32"))


def philox(state: Sequence[Any], number: Any, product: WordProduct | None = None) -> list[Any]:
    """The words of the block that is so many blocks after the state's counter, in the type and with the lanes of the number."""
    many = T.lanes(number)
    words = [T.splat(word, many) for word in state] if many > 1 else list(state)
    c, k = _counted(words[:BLOCK], number), words[BLOCK:]
    product = product or (_product_in_halves if T.is_on_device() else _product)
    for turn in range(ROUNDS):
        high, low = zip(*(product(word, factor) for word, factor in zip((c[0], c[2]), _FACTORS, strict=True)), strict=True)
        keys = (key + _like(key, (turn * step) & _WORD) for key, step in zip(k, _KEY_STEPS, strict=True))
        c = [T.hold(x ^ y ^ key) for x, y, key in zip(high[::-1], (c[1], c[3]), keys, strict=True)]
        c = [c[0], low[1], c[1], low[0]]
    return c


def _counted(counter: Sequence[Any], number: Any) -> list[Any]:
    """The counter plus a number. Nothing here overflows in a way that TVM or LLVM would assume not to happen."""
    found, carry = [], number
    for word in counter:
        if T.is_on_device():
            more = carry > ~word  # whether the sum does not fit
            found.append(T.hold(word + carry))
            carry = T.hold(T.Select(more, _like(word, 1), _like(word, 0)))
        else:
            found.append(T.hold(word + carry))
            carry = found[-1] >> _like(word, 32)
    return found


def _product(word: Any, factor: int) -> tuple[Any, Any]:
    """In 64 bits; the high half of the low word is not zero."""
    whole = T.hold((word & _like(word, _WORD)) * _like(word, factor))
    return whole >> _like(word, 32), whole


def product_in_64_bits(word: Any, factor: int) -> tuple[Any, Any]:
    """Of a 32-bit word, on a device that has 64-bit integers."""
    whole = T.hold(T.cast(word, "uint64") * T.const(factor, "uint64"))
    return T.cast(whole >> T.const(32, "uint64"), "uint32"), T.hold(T.cast(whole, "uint32"))


def _product_in_halves(word: Any, factor: int) -> tuple[Any, Any]:
    """Of a 32-bit word, in 32 bits: from the products of its halves."""
    half, mask = _like(word, 16), _like(word, 0xFFFF)
    low, high = word & mask, word >> half
    first, second = _like(word, factor & 0xFFFF), _like(word, factor >> 16)
    middle = T.hold(high * first + (low * first >> half))
    other = T.hold(low * second + (middle & mask))
    return high * second + (middle >> half) + (other >> half), T.hold(word * _like(word, factor))


def _like(value: Any, number: int) -> Any:
    one = T.const(number, T.type_of(value).partition("x")[0])
    return T.splat(one, T.lanes(value)) if T.lanes(value) > 1 else one
