"""RANDOM_GENERATOR."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from tvmdml.enums import RandomGeneratorType
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.random_generator import STATE, RandomGenerator
from tvmdml.proof.conformance.cases._common import LENGTHS, ODD, Broken, Case, change, in_place, tensor
from tvmdml.tensors import TensorDesc as T


def random(
    sizes: tuple[int, ...], rank: int = 4, layout: str = "packed", new: bool = True, state: str = "packed"
) -> RandomGenerator:
    """Values of these sizes from a state of this rank."""
    words = tensor("uint32", (*(1,) * (rank - 1), STATE), state)
    return RandomGenerator(
        input_state_tensor=words,
        output_tensor=tensor("uint32", sizes, layout),
        output_state_tensor=words if new else None,
        type=RandomGeneratorType.PHILOX_4X32_10,
    )


def of_state(x: T) -> RandomGenerator:
    """The descriptor for a state: with another last size, for values of that size."""
    state = T(x.data_type, (*(1,) * (x.rank - 1), STATE))
    return RandomGenerator(
        input_state_tensor=state,
        output_tensor=T(x.data_type, x.sizes),
        output_state_tensor=state,
        type=RandomGeneratorType.PHILOX_4X32_10,
    )


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {RandomGenerator: of_state}

RANDOM = random((2, 3, 4, 5))
_STATES = "a counter of 4 words and a key of 2"

BROKEN: dict[str, Broken] = {
    "random before its level": Broken(lambda: RANDOM, "RANDOM_GENERATOR feature_level", "2.1", "3.0 and above", Unsupported, "2.1"),
    "random values of rank 3 at 3.0": Broken(
        change(RANDOM, output_tensor=T("uint32", (2, 3, 4))),
        *("RANDOM_GENERATOR output_tensor", "uint32 of rank 3", "uint32; rank 4, at feature level 3.0"),
        *(Unsupported, "3.0", "Feature level 4.0 supports it."),
    ),
    "random floats": Broken(
        change(RANDOM, output_tensor=T("float32", (2, 3, 4, 5))),
        *("RANDOM_GENERATOR output_tensor", "float32 of rank 4", "uint32; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "a state of five words": Broken(
        change(RANDOM, input_state_tensor=T("uint32", (1, 1, 1, 5))),
        *("RANDOM_GENERATOR input_state_tensor.sizes", "(1, 1, 1, 5)", f"(1, 1, 1, 6): {_STATES}"),
    ),
    "two states": Broken(
        change(RANDOM, input_state_tensor=T("uint32", (2, 6))),
        *("RANDOM_GENERATOR input_state_tensor.sizes", "(2, 6)", f"(1, 6): {_STATES}"),
    ),
    "a new state of other sizes": Broken(
        change(RANDOM, output_state_tensor=T("uint32", (6,))),
        *("RANDOM_GENERATOR output_state_tensor.sizes", "(6,)", "(1, 1, 1, 6), as in input_state_tensor"),
    ),
    "another generator": Broken(change(RANDOM, type=1), "RANDOM_GENERATOR type", "1", "'philox_4x32_10'"),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every rank and layout, lengths around those of blocks and vectors, counters that overflow, and states in place."""
    for rank, sizes in ODD.items():
        yield from in_place(random(sizes, rank), "mixed")
        yield Case(random(sizes, 9 - rank), "bits")
    for number, length in enumerate(LENGTHS):
        yield Case(random((length,), 1, new=number % 3 > 0), ("bits", "all NaN", "special")[number % 3])
    for layout in ("padded", "transposed", "spread"):
        yield from (Case(random(sizes, layout=layout), "bits") for sizes in ((7, 19), (2, 3, 5, 7), (40, 130)))
        yield from in_place(random((40, 33), state=layout), "all NaN")
    repeated = tensor("uint32", (1, 1, 1, STATE), "inner repeated")  # every word is the same
    yield Case(dataclasses.replace(random((33,)), input_state_tensor=repeated), "bits")
    for sizes in ((70_001,), (300, 701), (1 << 18,)):  # on several threads
        yield Case(random(sizes), "bits")
        yield from in_place(random(sizes), "all NaN")
    yield Case(random((1200, 1001), new=False), "special")
