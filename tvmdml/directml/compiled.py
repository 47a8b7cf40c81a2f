"""``CompiledOperator``: a compiled graph that takes arrays and Buffers by name or expression."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tvmdml import graph
from tvmdml.directml.bindings import Slot, Slots
from tvmdml.directml.devices import Buffer, Device
from tvmdml.tensors.arrays.device_array import DeviceArray


class CompiledOperator:
    """A compiled graph. Calling it is ``dispatch``. ``Graph.compile`` makes it."""

    def __init__(
        self,
        device: Device,
        compiled: Callable[[Mapping[int, Any]], graph.CompiledGraph],
        slots: list[tuple[Slot, bool]],
        constants: dict[object, Any],
    ) -> None:
        """Not public: ``Graph.compile`` makes it, of a function that compiles with known arrays of some inputs, by number; of
        each input and whether anything depends on it; and of the constants.
        """
        self._device, self._compile = device, compiled
        self._slots = Slots([slot for slot, _ in slots])
        self._unread = {slot.index for slot, read in slots if not read}
        self._constants = constants
        self._owned = [slot for slot in self._slots.all if slot.owned]
        self._others = [slot for slot in self._slots.all if not slot.owned]
        self._initialized = False
        there = {slot.index: constants[slot.token] for slot, read in slots if read and slot.token in constants}
        arrays = {index: value for index, value in there.items() if not isinstance(value, Buffer)}
        self._known = frozenset(arrays)
        """The constants that are a part of the compiled graph, until other values are given for one of them."""
        self._compiled = compiled({i: np.array(array, self._slots.all[i].dtype).reshape(-1) for i, array in arrays.items()})
        if all(slot.token in constants or (slot.constant and slot.index in self._unread) for slot in self._owned):
            self.initialize()

    @property
    def temporary_size(self) -> int:
        """The bytes of the intermediate results of one dispatch."""
        return self._compiled.temporary_size

    @property
    def persistent_size(self) -> int:
        """The bytes that the operator keeps of what it owns."""
        return self._compiled.persistent_size

    @property
    def descriptor_count(self) -> int:
        """The number of arrays that a dispatch binds."""
        return self._compiled.binding_count

    @property
    def initialized(self) -> bool:
        """Whether all that it owns was given."""
        return self._initialized

    @property
    def compiled(self) -> graph.CompiledGraph:
        """The ``tvmdml.CompiledGraph`` behind this one."""
        return self._compiled

    def initialize(self, weights: Any = None) -> None:
        """Give the owned inputs. They are copied. A later call must give all of them again, constants too.

        Args:
            weights: an array or a Buffer for each, by expression or name. Constants may be left out the first time.

        Raises:
            ValueError: one is missing, unknown, not owned, bound twice, or does not fit.
            TypeError: a key is neither an expression nor a name.
        """
        bound = self._slots.given(weights, "initialize")
        known = frozenset() if self._initialized or not self._known.isdisjoint(bound) else self._known
        for slot in self._owned:
            if slot.index not in bound and slot.token in self._constants and slot.index not in known:
                bound[slot.index] = self._constants[slot.token]
        arrays = self._complete(bound, self._owned, "initialize", known)
        if known != self._known:
            self._compiled, self._known = self._compile({}), known
        self._compiled.initialize(arrays)
        self._constants = {}
        self._initialized = True

    def dispatch(self, inputs: Any = None, *, readback: bool = True) -> list[Any]:
        """Run.

        Args:
            inputs: an array or a Buffer for each input that is not owned, by expression or name.
            readback: whether the outputs are copied to NumPy arrays; if not, they are Buffers.

        Returns:
            An array or a Buffer for each output.

        Raises:
            ValueError: owned inputs were not given before; an input is missing, unknown, owned, bound twice, or does not fit.
            TypeError: a key is neither an expression nor a name.
        """
        if not self._initialized:
            gone = any(slot.constant and slot.token not in self._constants for slot in self._owned)
            raise ValueError(
                f"initialize() the operator before it is dispatched: it owns {', '.join(map(str, self._owned))}"
                + gone * ". An earlier compile() of this graph let go of its constants: give them again"
            )
        results = self._compiled(self._complete(self._slots.given(inputs, "dispatch"), self._others, "dispatch"))
        if not readback:
            return [Buffer.holding(self._device, one) for one in results]
        return [one.numpy() if type(one) is DeviceArray else one for one in results]

    __call__ = dispatch

    def _complete(self, bound: dict[int, Any], wanted: list[Slot], verb: str, known: Collection[int] = ()) -> list[Any]:
        """The memory of each input that is wanted; ``None`` for one that was not given, and is known or nothing depends on."""
        missing = [str(slot) for slot in wanted if slot.index not in bound and slot.index not in {*self._unread, *known}]
        if missing:
            raise ValueError(f"{verb}() is missing {', '.join(missing)}")
        return [slot.memory(bound[slot.index], self._device) if slot.index in bound else None for slot in wanted]

    def __repr__(self) -> str:
        return f"<dml.CompiledOperator of {len(self._slots.all)} inputs on {self._device.target}>"
