"""``tvmdml.random_generator``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.doors._made import door, truth
from tvmdml.doors._sizes import hashable
from tvmdml.enums import RandomGeneratorType
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.random_generator import RandomGenerator
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

__all__ = ["RandomGeneratorResult", "random_generator"]


class RandomGeneratorResult(NamedTuple):
    """The results of ``random_generator``."""

    values: AnyArray
    """The random words."""
    state: AnyArray
    """The state for the next call."""


@door(
    RandomGenerator,
    ({"output_state": "Literal[False]", "out": "AnyArray | None"}, "AnyArray"),
    ({"out": "Sequence[AnyArray] | None"}, "RandomGeneratorResult"),
)
def random_generator(
    input_state: AnyArray,
    output_sizes: Sequence[int],
    *,
    output_state: bool = True,
    type: RandomGeneratorType | str = RandomGeneratorType.PHILOX_4X32_10,  # noqa: A002
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> AnyArray:
    """Make random 32-bit words by Philox 4x32-10, and the state for the next call (DML_OPERATOR_RANDOM_GENERATOR).

    The same state gives the same words, on every device.

    Args:
        input_state: uint32, with six elements in the last dimension and sizes of 1 before it: a counter of 128 bits, its least
            significant word first, and a key of 64 bits.
        output_sizes: the sizes of the values: up to eight dimensions.
        output_state: whether the new state is returned, too.
        type: ``"philox_4x32_10"``, the only one.
        out: arrays for the values and the new state, which may be ``input_state`` itself; without the new state, one array.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input_state``.

    Returns:
        The values, as uint32, and the new state; with ``output_state=False`` only the values. A part of a block that is not used is
        not part of the next call's values.
    """
    both = truth("random_generator", "output_state", output_state)
    sizes = hashable(output_sizes, "tvmdml.random_generator: output_sizes")
    results = call(_describe, (input_state,), (sizes, both, type), out, device)
    return RandomGeneratorResult(*results) if both else results[0]


@describes("tvmdml.random_generator", "input_state")
def _describe(input_state: ArrayTensorDesc, sizes: tuple[int, ...], output_state: bool, type: Any) -> Described:  # noqa: A002
    values = ArrayTensorDesc(TensorDataType.UINT32, sizes or (1,), zero_dimensional=not sizes)
    new = {"output_state_tensor": input_state.with_sizes(input_state.sizes)} if output_state else {}
    desc = RandomGenerator.of(input_state, output_tensor=values, type=type, **new)
    return Described(desc, shapes=(None if sizes else (), *(None for _ in new)))
