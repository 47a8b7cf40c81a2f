"""RANDOM_GENERATOR on a GPU: a block for each thread, stored at once. A second launch writes the new state.

Devices without 64-bit integers make products of words from those of their halves.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.random_generator import BLOCK, RandomGenerator, advance, loaded, philox, product_in_64_bits
from tvmdml.schedules.gpu import Numbers, group_knobs, groups_for, position, strided
from tvmdml.schedules.gpu._words import offset, save, unravel
from tvmdml.targets._device import DeviceTarget

KNOBS = group_knobs("random_generator")


def kernel(desc: RandomGenerator, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel over blocks, whatever the dimensions."""
    result, old, new = desc.output_tensor, desc.input_state_tensor, desc.output_state_tensor
    sizes, (steps,) = collapse(result.sizes, result.layout)
    sizes, steps = sizes or (1,), steps or (1,)
    threads = min(knobs.threads, target.max_threads)
    groups = groups_for(desc.blocks, threads, target, knobs.most_groups)
    states = tuple(5 * tensor.layout[-1] for tensor in (old, new) if tensor is not None)
    span = max(result.span, result.element_count, *states)
    numbers = Numbers(span, elements=result.element_count, groups=groups, sizes=sizes, steps=steps)
    writer = _Writer(desc, numbers, threads=threads, packed=steps == (1,), shared=bool(shared), wide=target.has("int64"))
    parameters = (*writer.parameters, ("rank", len(sizes)), ("states", states))
    return Kernel("random_generator", "blocks", parameters, writer.function, numbers.scalars)


class _Writer:
    """Writes the kernel."""

    threads: int
    packed: bool
    shared: bool
    wide: bool

    def __init__(self, desc: RandomGenerator, numbers: Numbers, **choices: Any) -> None:
        self.desc, self.numbers = desc, numbers
        self.__dict__.update(choices)
        self.parameters = (*choices.items(), *numbers.parameters)

    def function(self) -> T.PrimFunc:
        desc, dtype = self.desc, self.numbers.dtype
        with T.on_device(), T.counting(dtype), T.function() as f:
            given = None if self.shared else f.buffer("state", "uint32")
            self.result = f.buffer("output", "uint32")
            new = None if desc.output_state_tensor is None else f.buffer("new_state", "uint32")
            old = new if given is None else given
            self.n = n = self.numbers.declare(f)
            blocks = T.truncdiv(n.elements + (BLOCK - 1), self.numbers.const(BLOCK))
            with T.launch(n.groups, self.threads) as (group, thread):
                state = loaded(old, desc.input_state_tensor)
                first = position(group, thread, self.threads, dtype)
                with strided(first, T.let(blocks), T.let(n.groups * self.threads)) as block:
                    self._store(block, philox(state, T.cast(block, "uint32"), product_in_64_bits if self.wide else None))
            if desc.output_state_tensor is not None:  # every block has read the old state, over which this may be written
                with T.launch(1, 1):
                    advance(old, desc.input_state_tensor, new, desc.output_state_tensor, T.cast(blocks, "uint32"))
        return f.result()

    def _store(self, block: Any, words: list[Any]) -> None:
        at = T.let(block * BLOCK)
        if not self.packed:
            self._one_by_one(at, words)
            return
        whole = at + BLOCK <= self.n.elements
        T.either(whole, lambda: save(self.result, T.multiple(at, BLOCK), words), lambda: self._one_by_one(at, words))

    def _one_by_one(self, at: Any, words: list[Any]) -> None:
        for i, word in enumerate(words):
            with T.when(at + i < self.n.elements):
                place = at + i if self.packed else offset(unravel(at + i, self.n.sizes), self.n.steps, self.numbers.dtype)
                T.store(self.result, place, word)
