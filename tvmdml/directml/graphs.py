"""``Graph``: inputs, constants, and what functions make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tvmdml import graph
from tvmdml.directml.bindings import Slot, check_count
from tvmdml.directml.compiled import CompiledOperator
from tvmdml.directml.devices import Buffer, Device
from tvmdml.directml.enums import ExecutionFlags, TensorFlags
from tvmdml.directml.errors import refusing
from tvmdml.directml.expressions import Expression, required
from tvmdml.directml.tensors import TensorDesc, TensorPolicy, check_cast, numpy_type, sizes_of
from tvmdml.graph.program import needed


class Graph:
    """A graph of operators.

    Args:
        device: where it will run.
        tensor_policy: how the results of operators lie.
    """

    EXPRESSION: ClassVar[type[Expression]] = Expression
    """What its expressions are."""

    def __init__(self, device: Device, *, tensor_policy: TensorPolicy | None = None) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"Graph device: given {type(device).__name__}; allowed: a Device")
        self._device = device
        self._policy = TensorPolicy.default if tensor_policy is None else tensor_policy
        self._graph = graph.Graph()
        self._slots: list[Slot] = []
        self._memories: list[graph.Expression] = []
        """What each input is a view of."""
        self._constants: dict[object, Any] = {}

    @property
    def recorder(self) -> graph.Graph:
        """The ``tvmdml.Graph`` behind this one."""
        return self._graph

    def input(
        self,
        sizes: Sequence[int] | None = None,
        dtype: Any = None,
        *,
        owned: bool = False,
        strides: Sequence[int] | None = None,
        desc: TensorDesc | None = None,
        name: str | None = None,
    ) -> Expression:
        """A tensor that is given at each dispatch.

        Args:
            sizes: its sizes.
            dtype: its type in either spelling; float32 by default.
            owned: it is given once, to ``initialize``.
            strides: its strides in elements; 0 repeats an axis.
            desc: in place of all of these, the whole description.
            name: by which it may be given, in place of the expression.

        Raises:
            TypeError: there are neither sizes nor a description, or both.
            ValueError: another input has the name.
        """
        if desc is None:
            if sizes is None:
                raise TypeError("input() needs sizes, or desc= with a whole description")
            flags = TensorFlags.OWNED_BY_DML if owned else TensorFlags.NONE
            desc = TensorDesc(np.float32 if dtype is None else dtype, sizes, flags=flags, strides=strides)
        elif sizes is not None or dtype is not None or owned or strides is not None:
            raise TypeError("input(): desc= is the whole description of the tensor: give nothing else but a name")
        elif not isinstance(desc, TensorDesc):
            raise TypeError(f"input() desc: given {type(desc).__name__}; allowed: a TensorDesc")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"input() name: given {type(name).__name__}; allowed: a str")
        if name is not None and any(slot.name == name for slot in self._slots):
            raise ValueError(f"the graph already has an input named {name!r}")
        slot = Slot(len(self._slots), desc, name)
        memory = self._graph.input((slot.count,), slot.dtype.name, owned=slot.owned)
        self._slots.append(slot)
        self._memories.append(memory)
        found = self.EXPRESSION(self, memory.reinterpret(slot.sizes, desc.strides), strides=desc.strides, desc=desc)
        found.token = slot.token
        return found

    def constant(self, array: Any, dtype: Any = None, *, sizes: Sequence[int] | None = None, name: str | None = None) -> Expression:
        """A tensor whose elements are known now. The array is kept until ``compile``, and let go then.

        Args:
            array: the numbers, or a Buffer.
            dtype: the type; by default the array's.
            sizes: the sizes; by default the array's.
            name: as for ``input``.

        Raises:
            ValueError: the array is not converted to this type without ``astype``, or does not fill the sizes.
            TypeError: DirectML has no such type.
        """
        given = array if isinstance(array, Buffer) else np.asarray(array)
        target = numpy_type(given.dtype if dtype is None else dtype)
        dims = (list(given.shape) if sizes is None else sizes_of(sizes, "constant sizes")) or [1]
        what = f"the constant {name!r}" if name is not None else f"a constant of shape {dims}"
        if not isinstance(given, Buffer):
            check_cast(given, target, what)
        elif given.dtype != target:
            raise ValueError(f"{what}: a Buffer of {given.dtype} for {target.name}; Buffers are not converted")
        check_count(given, dims, what)
        found = self.input(dims, target, owned=True, name=name)
        self._constants[found.token] = given
        self._slots[-1].constant = True
        return found

    def compile(self, outputs: Sequence[Expression], *, flags: Any = ExecutionFlags.NONE) -> CompiledOperator:
        """Compile what some expressions depend on. The graph may be dropped after this; it lets go of its constants.

        Args:
            outputs: the expressions that each dispatch returns, in this order.
            flags: accepted; they change no result.

        Returns:
            An operator; it is initialized if constants are all that it owns.

        Raises:
            TypeError: an output is no expression.
            RuntimeError: the device does not support an operator, or a kernel cannot be compiled.
        """
        if not isinstance(outputs, Iterable):
            raise TypeError(f"compile() outputs: given {type(outputs).__name__}; allowed: a list of Expressions")
        wanted = [required(one, "compile() outputs").value for one in outputs]
        if not isinstance(flags, (ExecutionFlags, int)):
            raise TypeError(f"compile() flags: given {type(flags).__name__}; allowed: ExecutionFlags")
        recorder, memories, target = self._graph, list(self._memories), self._device.target

        def compiled(known: Mapping[int, Any]) -> graph.CompiledGraph:
            with refusing():
                return recorder.compile(wanted, target, known={memories[i]: array for i, array in known.items()})

        calls = needed(self._graph.calls, wanted)
        read = {id(edge.source) for edge in (*(one.edge for one in wanted), *(e for call in calls for e in call.edges.values()))}
        used = [id(node) in read for node in self._graph.inputs]
        found = CompiledOperator(self._device, compiled, list(zip(self._slots, used, strict=True)), self._constants)
        self._constants = {}
        return found

    def wrapped(self, found: Any) -> Any:
        """The results of a function, as expressions that lie as the graph's policy says."""
        if isinstance(found, tuple):
            return tuple(self.wrapped(one) for one in found)
        strides = self._policy.strides(found.desc.sizes)
        if strides is None:
            return self.EXPRESSION(self, found)
        axes = range(2, len(strides))
        copied = found.transpose(0, *axes, 1).copy()
        return self.EXPRESSION(self, copied.transpose(0, len(strides) - 1, *(axis - 1 for axis in axes)))
