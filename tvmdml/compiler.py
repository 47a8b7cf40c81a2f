"""The descriptor interface: compiles an operator's descriptor for a target.

The schedule determines the kernel. Packs that are loaded have it, or it is found or compiled (``finding``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.enums import FeatureLevel
from tvmdml.errors import CompileError, InvalidArgument, bounded, counted, message
from tvmdml.kernels import persistent
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.persistent import Packing
from tvmdml.library import notices, shelf
from tvmdml.library.finding import KernelMissing, absent, find
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role, Shared
from tvmdml.system import apart, imports, whole
from tvmdml.targets import Form, Launch, Launcher, Target
from tvmdml.tensors import TensorDesc, arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray, bound, launched

if TYPE_CHECKING:
    from tvmdml.typing import Array

# -- An operator's kernel ------------------------------------------------------------------------------------------


class ReadyOperator(NamedTuple):
    """An operator's kernel, ready to run."""

    kernel: Kernel
    launch: Launch
    """Takes arrays in field order; in place of inputs that are packed their buffers."""
    packings: tuple[Packing, ...] = ()
    """How inputs that never change are packed."""


def ready(desc: Operator, target: Target, shared: Shared = ()) -> tuple[Kernel, Launch]:
    """The same as ``ready_owned`` for an operator whose inputs are given with each call."""
    found = ready_owned(desc, target, shared)
    return found.kernel, found.launch


def ready_owned(desc: Operator, target: Target, shared: Shared = ()) -> ReadyOperator:
    """An operator's kernel, its launch, and how it wants inputs packed: from a loaded pack, or as ``find`` returns it.

    The inputs of ``shared``, pairs of ``desc.shareable()``, are not among the arrays of the launch: the outputs are.

    Raises:
        CompileError: as ``find``; or only packs may be used, and none contains the kernel.
        Unsupported: the target does not support the operator.
    """
    if folder := os.environ.get("TVMDML_PACK_RECORD", ""):
        from tvmdml.library import recording

        recording.append(folder, desc, target, shared)
    notices.note(desc, target, shared)
    wanted = desc.canonical()
    with whole():
        if (found := shelf.ready(wanted, target, shared)) is not None:
            return _ready(*found)
        kernel = kernel_for(wanted, target, shared)
    if shelf.strict():
        raise CompileError(shelf.missing(desc, target, shared, "and only packs may be used: one was loaded with strict=True"))
    try:
        launchers = [find(one, target) for one in kernel.every]
    except KernelMissing as error:
        raise CompileError(shelf.missing(desc, target, shared, str(error))) from None
    except imports.NoCompiler as error:
        raise CompileError(shelf.missing(desc, target, shared, f"it is not in the cache, and {error}")) from None
    with whole():
        both = zip(kernel.every, launchers, strict=True)
        launch, *packers = (target.launch(launcher, one.scalars, one.temporaries) for one, launcher in both)
        return _ready(kernel, launch, packers)


class Launches:
    """A kernel, which is found at its first launch, with any integers and temporaries."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.name = kernel.name
        """The kernel's."""
        self._kernel: Kernel | None = kernel
        """Until it is found: what builds it holds descriptors."""
        self._target = target
        self._launcher: Launcher | None = None

    def launch(self, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """The launch with some integers and temporaries.

        Raises:
            CompileError: as ``find``.
        """
        if (kernel := self._kernel) is not None:
            self._launcher = find(kernel, self._target)
            self._kernel = None
        assert self._launcher is not None
        with whole():
            return self._target.launch(self._launcher, scalars, temporaries)


def _ready(kernel: Kernel, launch: Launch, packers: Sequence[Launch]) -> ReadyOperator:
    return ReadyOperator(kernel, launch, tuple(map(Packing, kernel.owned, packers)))


def missing(desc: Operator, target: Target, shared: Shared = ()) -> list[Kernel]:
    """The kernels that ``ready`` would have to compile: those that are not loaded, in a pack, or in the store.

    Raises:
        Unsupported: as ``ready``.
    """
    wanted = desc.canonical()
    with whole():
        if shelf.strict() or shelf.ready(wanted, target, shared) is not None:
            return []
        return absent(kernel_for(wanted, target, shared).every, target)


# -- The descriptor interface -------------------------------------------------------------------------------------


def compile(  # noqa: A001 - DirectML's word: IDMLDevice::CompileOperator
    desc: Operator, target: str | Target = "cpu", feature_level: str | FeatureLevel | None = None
) -> CompiledOperator:
    """Check a descriptor and compile it (``IDMLDevice::CreateOperator`` and ``CompileOperator``).

    Args:
        desc: an operator's descriptor, such as ``TopK1(…)``.
        target: where to run: ``"cpu"``, a processor level such as ``"cpu:x86-64-v3"``, a device such as ``"cuda:0"``
            or ``"vulkan:0"``, or NVIDIA architectures, such as ``"cuda:sm_80,sm_90"``, which this machine need not have.
        feature_level: the feature level to check against; ``None`` is the newest, 6.4.

    Raises:
        InvalidArgument, Unsupported: the descriptor breaks the operator's contract.
        CompileError: the kernel does not compile.
        DeviceError: this machine has no such device.
    """
    if not issubclass(type(desc), Operator):  # callers need not use a type checker, and objects may pose as of another class
        allowed = "an operator descriptor, such as tvmdml.TopK1(…)"
        raise InvalidArgument(message("compile desc", type(desc).__name__, allowed))
    desc.validate(FeatureLevel.of(feature_level))
    return CompiledOperator(desc, targets.resolve(target))


class CompiledOperator:
    """An operator compiled for its shapes and a target (``IDMLCompiledOperator``).

    Call it with arrays in field order, or by field name: it reads inputs, writes outputs, and returns ``None``. An array must have
    the type, sizes and strides of its ``TensorDesc``, and may be of any library that supports DLPack. On a device, arrays that are
    already there (from ``asarray`` or another library) are used without a copy, and the call returns before the work is done; other
    arrays are copied there and back.

    Inputs with the flag OWNED_BY_DML are given once, to ``initialize``, and not in calls: there, ``None`` is in their place, or
    they are left out by name.
    """

    def __init__(self, desc: Operator, target: Target) -> None:
        self.desc = desc
        """The descriptor."""
        self.target = target
        """The target, resolved."""
        self._kernel, self._launch, self._packings = ready_owned(desc, target)
        self._owned = frozenset(desc.owned())
        self._kept: tuple[Any, ...] = ()
        """What is in place of owned inputs, in field order; empty before ``initialize``."""
        self._sharing: dict[Shared, Launch] = {}
        inputs, outputs = dict(desc.tensors(Role.INPUT)), dict(desc.tensors(Role.OUTPUT))
        self._expected = tuple(Expected(desc, name, tensor, name in outputs, target) for name, tensor in desc.tensors())
        self._present = tuple(e for e in self._expected if e.desc is not None)
        self._fit: Callable[..., bool] = self._not_yet if self._owned else self._launch.fit(tuple(e.form for e in self._expected))
        shareable = {pair: pair for pair in desc.shareable() if pair[0] not in self._owned}
        # The pairs of present tensors that must not overlap, and their names if they may be the same array.
        self._apart = tuple(
            (i, j, shareable.get((a.name, b.name)))
            for j, b in enumerate(self._present)
            for i, a in enumerate(self._present)
            if b.name in outputs and (a.name in inputs or i < j) and a.name not in self._owned
        )

    # -- Inputs that never change

    def initialize(self, *tensors: Array | None, **named: Array | None) -> None:
        """Give the inputs with the flag OWNED_BY_DML, in field order or by name (``IDMLOperatorInitializer``).

        They are copied to memory of this operator, packed as its kernel reads them; later changes to the arrays are not seen. Do
        this once, before the first call; an operator without such inputs does not need it. Another time replaces all of them: calls
        that are bound already keep those that they have.

        Raises:
            InvalidArgument: an array does not fit its description, is missing, or is not of such an input.
        """
        own = [e for e in self._present if e.name in self._owned]
        names = [e.name for e in own]
        given = dict(zip(names, tensors, strict=False))
        wrong = [name for name in named if name not in names or name in given]
        if wrong or len(tensors) > len(names) or len(given) + len(named) != len(names):
            said = f"{counted(len(tensors), 'tensor')} by position" + (f" and {', '.join(named)} by name" if named else "")
            allowed = f"{', '.join(names)}, each once" if names else "nothing: no input is OWNED_BY_DML"
            raise InvalidArgument(message(f"{self.desc.NAME} initialize", said, allowed))
        given.update(named)
        checked = {e.name: e.check(given[e.name]) for e in own}
        descs = [(e.name, e.desc) for e in own if e.desc is not None]
        kept = persistent.keep(descs, self._packings, checked, self.target)
        self._kept = tuple(kept.get(e.name) for e in self._expected)
        if kept:
            self._fit = self._fitting()

    @property
    def initialized(self) -> bool:
        """Whether it can be called: ``initialize`` was, or no input is OWNED_BY_DML."""
        return not self._owned or bool(self._kept)

    @property
    def persistent_size(self) -> int:
        """The bytes of memory for inputs with the flag OWNED_BY_DML (``PersistentResourceSize``)."""
        packed = {one.owned.name: one.owned.nbytes for one in self._packings}
        return sum(persistent.size(packed.get(e.name, e.span)) for e in self._present if e.name in self._owned)

    @property
    def temporary_size(self) -> int:
        """The bytes of scratch memory that a call uses (``TemporaryResourceSize``)."""
        return sum(persistent.size(count * np.dtype(dtype).itemsize) for dtype, count in self._kernel.temporaries)

    def _not_yet(self, *tensors: Any) -> bool:
        names = ", ".join(sorted(self._owned))
        raise InvalidArgument(
            message(f"{self.desc.NAME} call", "a call before initialize", f"initialize({names}) first", f"{names}: OWNED_BY_DML.")
        )

    def _fitting(self) -> Callable[..., bool]:
        """A launch on arrays of the right forms, and what is kept."""
        kept = self._kept
        forms = tuple(
            e.form if one is None else (one.dtype, one.shape, one.strides, False)
            for e, one in zip(self._expected, kept, strict=True)
        )
        fit = self._launch.fit(forms)

        def launch(*tensors: Any) -> bool:
            if len(tensors) != len(kept):
                return False
            for tensor, one in zip(tensors, kept, strict=True):
                if tensor is not None and one is not None:
                    return False
            return fit(*(tensor if one is None else one for tensor, one in zip(tensors, kept, strict=True)))

        return launch

    # -- Calls

    def __call__(self, *tensors: Array | None, **named: Array | None) -> None:
        """Run on the given arrays.

        Raises:
            InvalidArgument: an array does not fit its description, or an output overlaps another array.
        """
        if not named:
            if self._fit(*tensors):
                return
            if self.target.moves and not self._owned and (ready := self._at_once(tensors)):
                launched(self._launch, ready)
                return
        launch, ready = self._prepare(tensors, named)
        if self.target.moves:
            launched(launch, ready)
        else:
            launch(*ready)

    def bind(self, *tensors: Array | None, **named: Array | None) -> Callable[[], None]:
        """Check arrays once and return a function that runs on them (``IDMLBindingTable``): the fastest way to run repeatedly.

        The arrays stay alive, and cannot be resized, as long as the function exists. On another library's arrays it runs on the
        stream that is current in that library at the time of the call. If all arrays are aligned to 16 bytes, it neither allocates
        nor waits, and a CUDA graph can capture it.
        """
        launch, ready = self._prepare(tensors, named)
        ready = tuple(map(arrays.fixed, ready))
        run = launch.bind(*ready)
        return bound(run, ready) if self.target.moves else run

    def source(self, kind: str = "tir") -> str:
        """The kernel's code, built again: ``"tir"``; on the CPU ``"llvm"``, ``"asm"``; on CUDA ``"cuda"``, ``"ptx"``, ``"sass"``;
        on Vulkan ``"spirv"``.
        """

        def written() -> str:
            with whole():
                function = self._kernel.written(self.target)
                return str(function.script()) if kind == "tir" else self.target.source(function, kind)

        return apart(written)

    def __repr__(self) -> str:
        """The operator, tensors and target."""
        tensors = ", ".join(f"{e.name}={e.desc}" for e in self._present)
        return bounded(f"<CompiledOperator {self.desc.NAME}({tensors}) on {self.target}>")

    def _at_once(self, tensors: tuple[Any, ...]) -> tuple[NumpyArray, ...]:
        """The tensors, if they are on the target's device as described and do not overlap; else ``()``: check them one by one."""
        if len(tensors) != len(self._expected):
            return ()
        ready: list[Any] = []
        places = []
        for expected, tensor in zip(self._expected, tensors, strict=True):
            if expected.desc is None and tensor is None:
                continue
            if expected.desc is None or tensor is None:
                return ()
            array: Any = arrays.view(tensor, expected.where, expected.output)
            if type(array) is not DeviceArray or array.target is not self.target or not array.aligned:
                return ()
            if (array.dtype, array.shape, array.strides) != (expected.dtype, expected.shape, expected.strides):
                return ()
            if expected.output and not array.writeable:
                return ()
            ready.append(array)
            places.append((*array.start, expected.span))
        for i, j, _ in self._apart:
            (space, begin, span), (other_space, other_begin, other_span) = places[i], places[j]
            if space is other_space and begin < other_begin + other_span and other_begin < begin + span:
                return ()
        return tuple(ready)

    def _prepare(self, tensors: tuple[Any, ...], named: dict[str, Any]) -> tuple[Launch, tuple[NumpyArray, ...]]:
        """Check tensors one by one, and raise an error if one is wrong; returns the launch and its arrays."""
        if not self.initialized:
            self._not_yet()
        if named or len(tensors) != len(self._expected):
            tensors = self._in_order(tensors, named)
        kept = self._kept or (None,) * len(tensors)
        triples = zip(self._expected, tensors, kept, strict=True)
        ready = tuple(self._checked(e, tensor, one) for e, tensor, one in triples if e.desc is not None or tensor is not None)
        same: dict[int, tuple[str, str]] = {}
        for i, j, pair in self._apart:
            if not arrays.may_overlap(ready[i], ready[j]):
                continue
            if pair is not None and _start(ready[i]) == _start(ready[j]):
                same[i] = pair
            elif arrays.overlaps(ready[i], ready[j]):
                given = f"memory that overlaps {self._present[i].name}"
                allowed = "separate memory" + (", or exactly the input's memory" if pair is not None else "")
                raise InvalidArgument(message(f"{self.desc.NAME} {self._present[j].name}", given, allowed))
        if same:
            shared = tuple(same.values())
            launch = self._sharing.get(shared) or self._launch_sharing(shared)
            return launch, tuple([array for i, array in enumerate(ready) if i not in same])
        return self._launch, ready

    def _checked(self, expected: Expected, tensor: Any, kept: Any) -> NumpyArray:
        """An array that was given, or what is kept in its place."""
        if kept is None:
            return expected.check(tensor)
        if tensor is not None:
            given, allowed = "a tensor", "None: it is OWNED_BY_DML"
            raise InvalidArgument(message(expected.where, given, allowed, "Give it to initialize."))
        return kept

    def _launch_sharing(self, shared: Shared) -> Launch:
        in_order = tuple(pair for pair in self.desc.shareable() if pair in shared)
        _, launch = ready(self.desc, self.target, in_order)
        self._sharing[shared] = launch
        return launch

    def _in_order(self, tensors: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        names = [e.name for e in self._expected]
        given = dict(zip(names, tensors, strict=False))
        wrong = [name for name in named if name not in names or name in given]
        wanted = [e.name for e in self._present if e.name not in self._owned]
        missing = [name for name in wanted if name not in given and name not in named]
        if wrong or missing or len(tensors) > len(names):
            said = f"{counted(len(tensors), 'tensor')} by position" + (f" and {', '.join(named)} by name" if named else "")
            allowed = ", ".join(name for name in names if name not in self._owned)
            raise InvalidArgument(message(f"{self.desc.NAME} call", said, f"{allowed}, each once"))
        given.update(named)
        return tuple(given.get(name) for name in names)


class Expected:
    """The required form of one tensor of a compiled operator."""

    __slots__ = ("desc", "dtype", "form", "name", "operator", "output", "shape", "span", "strides", "target", "where")

    def __init__(self, operator: Operator, name: str, desc: TensorDesc | None, output: bool, target: Target) -> None:
        self.operator, self.name, self.desc, self.output, self.target = operator.NAME, name, desc, output, target
        self.form: Form = None
        self.where = f"{operator.NAME} {name}"
        if desc is not None:
            stored = desc.stored
            self.dtype = stored.data_type.numpy
            self.shape = stored.sizes
            self.strides = tuple(s * self.dtype.itemsize for s in stored.layout)
            self.span = stored.span_in_bytes
            self.form = (self.dtype, self.shape, self.strides, output)

    def check(self, tensor: Any) -> NumpyArray:
        """A NumPy view of the array, if it has the required form."""
        if tensor is None or self.desc is None:
            given, allowed = ("None", str(self.desc)) if tensor is None else ("a tensor", "None: the descriptor has no such tensor")
            raise InvalidArgument(message(f"{self.operator} {self.name}", given, allowed))
        if type(tensor) is not np.ndarray:
            tensor = arrays.view(tensor, self.where, write=self.output)
        array: NumpyArray = tensor
        arrays.require_on(array, self.target, self.where)
        if (array.dtype, array.shape, array.strides) != (self.dtype, self.shape, self.strides):
            self._check_loosely(array)
        flags = array.flags
        if not flags.aligned:
            raise InvalidArgument(
                message(
                    f"{self.operator} {self.name}",
                    "memory that is not aligned to its element size",
                    f"an address that is a multiple of {self.dtype.itemsize} bytes",
                    "Copy it first.",
                )
            )
        if self.output and not flags.writeable:
            raise InvalidArgument(message(f"{self.operator} {self.name}", "a read-only array", "a writable one: it is an output"))
        return array

    def _check_loosely(self, array: NumpyArray) -> None:
        """Raise an error for any difference, except in strides of dimensions of size 1."""
        where = f"{self.operator} {self.name}"
        if array.dtype != self.dtype and not (array.dtype == np.bool_ and self.dtype == np.uint8):
            raise InvalidArgument(message(where, f"data type {array.dtype}", str(self.dtype), self._advice("")))
        if array.shape != self.shape:
            advice = self._advice(
                "An array must have the sizes and strides of its TensorDesc; numpy.lib.stride_tricks.as_strided makes such a view."
            )
            raise InvalidArgument(message(where, f"shape {array.shape}", str(self.shape), advice))
        if any(n > 1 and a != b for n, a, b in zip(self.shape, array.strides, self.strides, strict=True)):
            itemsize = self.dtype.itemsize
            given, allowed = (
                str(tuple(s / itemsize if s % itemsize else s // itemsize for s in strides))
                for strides in (array.strides, self.strides)
            )
            raise InvalidArgument(
                message(where, f"strides {given} in elements", allowed, "Give these strides to its TensorDesc, or copy the array.")
            )

    def _advice(self, otherwise: str) -> str:
        """The advice for an array of a 4-bit tensor that is not its bytes."""
        if self.desc is None or not self.desc.data_type.is_nibble:
            return otherwise
        return f"An array of {self.desc} has its bytes, each with two elements: TensorDesc.pack makes it."


def _start(array: NumpyArray) -> tuple[object, int]:
    """The address space and address of an array's first element."""
    if type(array) is DeviceArray:
        return array.start
    return 0, array.__array_interface__["data"][0]
