"""The function interface: functions accept arrays and return arrays of the same kind.

A function in an operator's file converts its arguments to a descriptor; everything else happens here. The first call with arguments
of a form (types, shapes, strides and attributes) checks them and makes a plan; later calls of the same form use that plan and call
the kernel directly.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from tvmdml import targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import InvalidArgument, counted, message, safe_repr
from tvmdml.kernels import plans
from tvmdml.operators import _exact
from tvmdml.operators._accuracy import as_array
from tvmdml.operators._contract import Operator, Role, Shared, called_by
from tvmdml.system import imported
from tvmdml.targets import Launch, _quick
from tvmdml.tensors import MAX_ELEMENTS, MAX_RANK, MAX_STRIDE, TYPE_NAMES, ArrayTensorDesc, TensorDataType, arrays, native
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray, launched
from tvmdml.tensors.arrays.numbers import PYTHON, as_arrays
from tvmdml.tensors.sizes import is_open, texts_for_messages

AnyArray = Any
"""A NumPy array, a PyTorch tensor, an array of any library that supports DLPack, or a ``DeviceArray``."""

Operand = Any
"""Such an array, or a number that takes the type of the arrays beside it."""

Finish = Callable[[Sequence[NumpyArray | None], tuple[NumpyArray, ...]], tuple[NumpyArray, ...]]
"""``finish(inputs, results)`` returns the results for the caller."""

MAX_PLANS = 8192
"""The most plans to keep. Beyond that, all are dropped."""


class Described(NamedTuple):
    """A descriptor, and the types and shapes of its outputs for the caller where they differ from the kernel's."""

    desc: Operator
    dtypes: tuple[str | None, ...] = ()
    """Data types of the same size, such as int64 for UINT64."""
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    """Shapes with the same number of elements, such as () for {1}."""


class Tracer(Protocol):
    """Given instead of a device, it receives the call: for calls without data, in a graph or of a model's node."""

    def trace_call(
        self,
        describe: Describe,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        optional: bool,
        boolean: bool,
        finish: Finish | None,
    ) -> tuple[Any, ...]:
        """The call's results. The arguments are those of ``call``."""
        ...


MAX_FORMS = 64
"""The most forms of ``out`` that a plan keeps."""
_UNKNOWN: Any = object()
"""In place of the launch of a form that was not seen before."""

Describe = Callable[..., "Operator | Described"]
"""``describe(*input_descs, *attributes)``; an absent optional input is ``None``."""
D = TypeVar("D", bound=Describe)


def describes(name: str, *inputs: str) -> Callable[[D], D]:
    """Mark the callable that describes a function's calls with the names in errors: the function's, such as ``tvmdml.top_k``, and
    those of its inputs.
    """

    def mark(describe: D) -> D:
        describe.function, describe.inputs = name, inputs  # type: ignore[attr-defined]
        return describe

    return mark


def name_of(describe: Describe) -> str:
    """The function's name in errors."""
    return str(getattr(describe, "function", describe.__module__))


@functools.cache
def input_name(describe: Describe, i: int) -> str:
    """The name of an input in errors, such as ``tvmdml.add: b``; ``input`` if ``describe`` does not name its inputs."""
    names = getattr(describe, "inputs", ())
    return f"{name_of(describe)}: {names[i] if i < len(names) else 'input'}"


def described(describe: Describe, descs: Iterable[ArrayTensorDesc | None], attributes: Iterable[Any]) -> Described:
    """The descriptor of a call, checked.

    Raises:
        InvalidArgument, Unsupported: the function does not accept such inputs or attributes.
    """
    with texts_for_messages():
        found = describe(*descs, *attributes)
    found = Described(found) if isinstance(found, Operator) else found
    for name, tensor in found.desc.tensors():
        if tensor is not None and tensor.data_type.is_nibble:
            advice = "Arrays have no 4-bit elements: compile a descriptor, whose arrays have bytes of two elements."
            raise InvalidArgument(message(found.desc.where(name), tensor.data_type.tvm, TYPE_NAMES, advice))
    found.desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return found


def call(
    describe: Describe,
    inputs: tuple[AnyArray | None, ...],
    attributes: tuple[Any, ...],
    out: Any = None,
    device: Any = None,
    *,
    optional: bool = False,
    boolean: bool = False,
    finish: Finish | None = None,
) -> tuple[Any, ...]:
    """Run the operator that ``describe`` returns for the inputs and attributes; returns its outputs.

    Args:
        describe: called with the inputs' ``TensorDesc`` and the attributes.
        inputs: arrays, or ``None`` for an optional one that is absent.
        attributes: hashable values.
        out: an array for the output, or a tuple of arrays; allocated if absent.
        device: a target's name; ``None`` is the device of the inputs; or a ``Tracer``, which receives the call.
        optional: whether inputs may be absent.
        boolean: whether inputs may be bool; they count as UINT8.
        finish: a last step on the results, before they are converted to the caller's kind of array.
    """
    if device is not None and hasattr(device, "trace_call"):
        return _recorded(device, describe, inputs, attributes, out, optional, boolean, finish)
    quick = _quick_plans
    if quick is not None and (results := quick(describe, device, attributes, inputs, out)) is not None:
        return results if finish is None or out is not None else finish(inputs, results)
    numbers: tuple[Any, ...] | None = None
    if (takes := getattr(describe, "scalars", None)) is not None and not PYTHON.isdisjoint(map(type, inputs)):
        numbers, inputs = inputs, as_arrays(inputs, attributes, takes, functools.partial(input_name, describe))
    views: list[NumpyArray | None] = []
    forms: list[Any] = [describe]
    restore, on_device = None, False
    for array in inputs:
        if type(array) is not np.ndarray:
            if array is None and optional:
                views.append(None)
                forms.append(None)
                continue
            if is_open(array):  # a number of a graph's
                array = next((one for one in inputs if one is not None and issubclass(type(one), arrays.Traced)), array)
            if array is not None and issubclass(type(array), arrays.Traced):  # an object may say that it is of another class
                return _recorded(array.tracer, describe, inputs, attributes, out, optional, boolean, finish)
            given, array = array, arrays.view(array, input_name(describe, len(views)))
            if type(array) is DeviceArray:
                on_device = True
                views.append(array)
                forms += (array.dtype, array.shape, array.strides, array.aligned, array.target.name, array.library)
                continue
            restore = restore or arrays.restorer(given)
        views.append(array)
        forms += (array.dtype, array.shape, array.strides, array.flags.aligned)
    if out is not None and device is None and not on_device:  # the fast path is for the CPU only
        device = _home(out)
    forms.append(device)
    if quick is not None and restore is not None and out is None:
        results = quick(describe, device, attributes, tuple(views), out)
        if results is not None:
            return tuple(map(restore, results if finish is None else finish(views, results)))
    key = (_exact.key(attributes), *forms)  # only here: it takes longer than a call of the quick way
    try:
        plan = _plans.get(key)
    except Exception:  # an attribute that cannot be hashed: describe will report what is wrong with it
        plan = None
    if plan is None:
        with called_by(name_of(describe)):
            plan = _make_plan(key, describe, views, attributes, device, boolean)
    results = plan.run(views) if out is None else plan.run_into(views, out)
    if quick is not None and not on_device and (launch := plan.launch_on(views, out)) is not None:
        _quick.remember(quick, describe, device, attributes, views, out, launch, plan.results, numbers)
    if out is not None:
        return results
    if finish is not None:
        results = finish(views, results)
    if on_device:
        restore = plan.restore
    return results if restore is None else tuple(map(restore, results))


def _recorded(
    tracer: Tracer, describe: Describe, inputs: tuple[Any, ...], attributes: Any, out: Any, *rest: Any
) -> tuple[Any, ...]:
    """Hand a call to what records it."""
    if out is not None:
        raise InvalidArgument(message(f"{name_of(describe)}: out", safe_repr(out), "None: the call is recorded, not run"))
    return tracer.trace_call(describe, inputs, attributes, *rest)


_plans: dict[tuple[Any, ...], _Plan] = {}
_quick_plans = _quick.plans()
"""A table of plans in C, for the forms of calls that it supports."""
_storing = threading.RLock()


def _renew_lock() -> None:
    global _storing
    _storing = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


def forget_plans() -> None:
    """Drop all plans, so that each form of call is planned again: kernels may now come from elsewhere."""
    global _quick_plans
    with _storing:
        _plans.clear()
        _quick_plans = _quick.plans()


plans.plan_anew(forget_plans)


def _make_plan(
    key: tuple[Any, ...],
    describe: Describe,
    views: list[NumpyArray | None],
    attributes: Any,
    device: str | None,
    boolean: bool,
) -> _Plan:
    generation = plans.generation
    target, home = _where(views, device, describe)
    ready = [None if view is None else _kernel_form(view, target) for view in views]
    descs = [None if view is None else describe_array(view, input_name(describe, i)) for i, view in enumerate(ready)]
    bools = [i for i, view in enumerate(views) if view is not None and view.dtype == np.bool_]
    if bools and not boolean:
        raise _no_bool(describe(*descs, *attributes), input_name(describe, bools[0]), bools[0])
    found = described(describe, descs, attributes)
    copies = any(a is not b for a, b in zip(ready, views, strict=True))
    plan = _Plan(name_of(describe), found, target, copies, absent=any(view is None for view in views), home=home)
    with _storing, suppress(Exception):  # an attribute that cannot be hashed
        if plans.generation == generation:  # else a pack was loaded or unloaded meanwhile
            if len(_plans) >= MAX_PLANS:
                _plans.clear()
            _plans[key] = plan
    return plan


def _home(out: Any) -> str | None:
    """The device of the output arrays; ``None`` if they are on the CPU."""
    given = out if issubclass(type(out), (tuple, list)) else (out,)
    return next((device for device in map(arrays.device_of, given) if device is not None), None)


def _where(views: Sequence[Any], device: str | None, describe: Describe) -> tuple[targets.Target, DeviceArray | None]:
    """The target of a call, and the input on it that determines the kind of the results: if possible another library's array."""
    homes = [view for view in views if isinstance(view, DeviceArray)]
    named = None if isinstance(device, str) and not device else device
    if named is not None:
        target = targets.resolve(named, f"{name_of(describe)}: device")
    else:
        target = targets.resolve(homes[0].target if homes else "cpu")
    for i, view in enumerate(views):
        if view is not None:
            arrays.require_on(view, target, input_name(describe, i))
    return target, next((home for home in homes if home.is_foreign), homes[0] if homes else None)


class _Plan:
    """Everything that is the same for all calls of one form."""

    def __init__(
        self, function: str, described: Described, target: targets.Target, copies: bool, absent: bool, home: DeviceArray | None
    ) -> None:
        desc, dtypes, shapes = described
        self._function = function
        library = None if home is None else home.library
        self._desc = desc
        self._target = target
        self._copies = copies
        self._absent = absent
        self._new: Callable[..., Any] = np.empty if home is None else target.empty
        self.restore: arrays.Restore | None = None
        """Converts results to the caller's kind of array, if an input is on a device."""
        if home is not None and library is not None:
            self._new, self.restore = functools.partial(library.empty, home.target), library.restore
        outputs = desc.outputs()
        self._inputs = [name for name, tensor in desc.tensors(Role.INPUT) if tensor is not None]
        self._names = [name for name, out in desc.tensors(Role.OUTPUT) if out is not None]
        own: tuple[None, ...] = (None,) * len(outputs)
        self.results = tuple(
            (out.sizes if shape is None else shape, out.data_type.numpy if dtype is None else np.dtype(dtype))
            for out, dtype, shape in zip(outputs, dtypes or own, shapes or own, strict=True)
        )
        """The shape and data type of each result."""
        self._empty = any(t is not None and t.element_count == 0 for _, t in desc.tensors())
        self._launch = None if self._empty else _launch(desc, target)
        self._into: dict[Any, Launch | None] = {}
        """The launch for each form of ``out``; ``None`` if an output cannot share the memory that its array shares."""

    def launch_on(self, views: list[NumpyArray | None], out: Any) -> Launch | None:
        """The launch that calls with such an ``out`` can use directly on their arrays; ``None`` if more work is needed."""
        if self._copies:
            return None
        if out is None:
            return self._launch
        given = out if type(out) is tuple else (out,)
        if not all(type(array) is np.ndarray for array in given):
            return None
        same = _same_memory([view for view in views if view is not None], given)
        return None if same is None else self._into.get(_form(same, given))

    def run(self, views: list[NumpyArray | None]) -> tuple[NumpyArray, ...]:
        """Run with new arrays as outputs."""
        if self._copies:
            views = [None if view is None else _kernel_form(view, self._target) for view in views]
        results = tuple([self._new(shape, dtype) for shape, dtype in self.results])
        if self._launch is None:
            self._answer_empty(views, results)
        else:
            given = [v for v in views if v is not None] if self._absent else views
            if self._target.moves:
                launched(self._launch, [*given, *results])
            else:
                self._launch(*given, *results)
        return results

    def run_into(self, views: list[NumpyArray | None], out: Any) -> tuple[Any, ...]:
        """Run with the caller's arrays as outputs; without a copy where a kernel can write to them."""
        several = isinstance(out, tuple) or (isinstance(out, list) and len(self._names) > 1)
        given = tuple(out) if several else (out,)
        results = self._check_out(given)
        for i, name in enumerate(self._names):
            if any(arrays.overlaps(earlier, results[i]) for earlier in results[:i]):
                raise InvalidArgument(message(self._out(name), "memory that overlaps another output's", "separate memory"))
        if not self._run_directly(views, results):
            for array, result in zip(results, self.run(views), strict=True):
                arrays.assign(array, result)
        return given

    def _run_directly(self, views: list[NumpyArray | None], out: list[NumpyArray]) -> bool:
        """Run with checked arrays as outputs; returns false if a kernel cannot write to their layout directly."""
        if self._empty or any(not _takes(array) for array in out):
            return False
        if any(_strides_of(array, desc.sizes) is None for array, desc in zip(out, self._desc.outputs(), strict=True)):
            return False
        sources = [_kernel_form(view, self._target) if self._copies else view for view in views if view is not None]
        same = _same_memory(sources, out)
        if same is None:
            return False
        if same:
            sources = [source for i, source in enumerate(sources) if i not in same]
        form = _form(same, out)
        launch = self._into.get(form, _UNKNOWN)
        if launch is _UNKNOWN:
            launch = self._launch_on(out, {(self._inputs[i], self._names[j]) for i, j in same.items()})
            if len(self._into) >= MAX_FORMS:
                self._into.clear()
            self._into[form] = launch
        if launch is None:
            return False
        if self._target.moves:
            launched(launch, [*sources, *out])
        else:
            launch(*sources, *out)
        return True

    def _launch_on(self, out: list[NumpyArray], shared: set[tuple[str, str]]) -> Launch | None:
        desc = self._with_layouts(out)
        pairs = tuple(pair for pair in desc.shareable() if pair in shared)
        if len(pairs) < len(shared):
            return None
        with called_by(self._function):
            desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)  # refuses elements that share an address
            return _launch(desc, self._target, pairs)

    def _with_layouts(self, out: list[NumpyArray]) -> Operator:
        changed: dict[str, Any] = {}
        for name, desc, array in zip(self._names, self._desc.outputs(), out, strict=True):
            field, of_several, _ = name.partition("[")
            laid = dataclasses.replace(desc, strides=_strides_of(array, desc.sizes))
            changed[field] = (*changed.get(field, ()), laid) if of_several else laid
        return dataclasses.replace(self._desc, **changed)  # type: ignore[type-var] # its subclasses are dataclasses

    def _check_out(self, given: tuple[Any, ...]) -> list[NumpyArray]:
        views = []
        names = self._names
        if len(given) != len(names):
            raise InvalidArgument(
                message(f"{self._function}: out", counted(len(given), "array"), f"{len(names)}: {', '.join(names)}")
            )
        for name, array, (shape, dtype) in zip(names, given, self.results, strict=True):
            view = arrays.view(array, self._out(name), write=True)
            arrays.require_on(view, self._target, self._out(name))
            if native(view.dtype) != dtype or view.shape != tuple(shape):
                raise InvalidArgument(
                    message(self._out(name), f"{view.dtype} of shape {view.shape}", f"{dtype} of shape {tuple(shape)}")
                )
            if not (view.writeable if type(view) is DeviceArray else view.flags.writeable):
                raise InvalidArgument(message(self._out(name), "a read-only array", "a writable one"))
            views.append(view)
        return views

    def _out(self, name: str) -> str:
        """The name of an output array in errors."""
        return f"{self._function}: out ({name})"

    def _answer_empty(self, views: list[NumpyArray | None], results: tuple[NumpyArray, ...]) -> None:
        if not any(math.prod(result.shape) for result in results):
            return
        inputs = [view.numpy() if type(view) is DeviceArray else view for view in views]
        for result, answer in zip(results, map(as_array, self._desc.reference(*inputs)), strict=True):
            arrays.assign(result, answer.reshape(result.shape))


def _launch(desc: Operator, target: targets.Target, shared: Shared = ()) -> Launch:
    return _ready()(desc, target, shared)[1]


@functools.cache
def _ready() -> Callable[..., Any]:
    def load() -> Callable[..., Any]:
        from tvmdml.compiler import ready

        return ready

    return imported(load)


def _same_memory(sources: Sequence[NumpyArray], out: Sequence[NumpyArray]) -> dict[int, int] | None:
    """The outputs that are the same arrays as inputs, by input; ``None`` if an output overlaps an input in another way."""
    found = {}
    for i, source in enumerate(sources):
        for j, array in enumerate(out):
            if not arrays.may_overlap(source, array):
                continue
            if arrays.are_one(source, array):
                found[i] = j
            elif arrays.overlaps(source, array):
                return None
    return found


def _form(same: dict[int, int], out: Sequence[NumpyArray]) -> tuple[Any, ...]:
    """What the launch of a plan with given outputs depends on."""
    return (tuple(same.items()), *((array.dtype, array.shape, array.strides) for array in out))


def _takes(array: NumpyArray) -> bool:
    """Whether kernels can read and write this array in its layout."""
    return (
        array.dtype.isnative
        and (array.aligned if type(array) is DeviceArray else array.flags.aligned)
        and all(s >= 0 and s % array.itemsize == 0 and s <= MAX_STRIDE * array.itemsize for s in array.strides)
    )


def _strides_of(array: NumpyArray, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides, in elements, of a tensor of these sizes in the array's memory. Dimensions of size 1 may differ.

    ``None``: other dimensions differ, so the result must be copied into the array.
    """
    if array.shape == sizes:
        return tuple(s // array.itemsize for s in array.strides)
    if math.prod(array.shape) != math.prod(sizes) or [n for n in array.shape if n != 1] != [n for n in sizes if n != 1]:
        return None
    steps = iter([s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True) if n != 1])
    return tuple(next(steps) if n != 1 else 0 for n in sizes)


def _kernel_form(array: NumpyArray, target: targets.Target) -> NumpyArray:
    """The array itself if the target's kernels can read it, else a packed copy."""
    if _takes(array) and not (target.moves and _is_sparse(array)):
        return array
    if type(array) is DeviceArray and array.library is not None:
        return array.library.packed(array)
    return np.array(array, dtype=native(array.dtype), order="C")


def _is_sparse(array: NumpyArray) -> bool:
    """Whether the gaps between a NumPy array's elements are larger than the elements together."""
    if type(array) is not np.ndarray or not array.size:
        return False
    span: int = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return span > 2 * int(array.nbytes)


def _no_bool(found: Operator | Described, where: str, number: int) -> InvalidArgument:
    """The error for a bool array, with advice: the operator may accept its bytes as UINT8, or may not accept integers at all."""
    desc = found if isinstance(found, Operator) else found.desc
    names = [name for name, _ in desc.tensors(Role.INPUT)]
    name = names[number] if number < len(names) else names[0]
    types = [data_type for data_type in TensorDataType if any(data_type in row.tensors[name].types for row in desc.SUPPORT)]
    advice = "Pass x.view(numpy.uint8), which has the same bytes; for a PyTorch tensor, x.view(torch.uint8)."
    if TensorDataType.UINT8 not in types:
        advice = f"Convert it: numpy.asarray(x, {types[0].tvm!r}); for a PyTorch tensor, x.to(torch.{types[0].tvm})."
    return InvalidArgument(message(where, "data type bool", ", ".join(data_type.tvm for data_type in types), advice))


def describe_array(array: NumpyArray, where: str) -> ArrayTensorDesc:
    """The description of an array that kernels can read.

    Raises:
        InvalidArgument: DirectML has no such tensors.
    """
    data_type = TensorDataType.from_numpy(array.dtype, where)
    if not array.ndim <= MAX_RANK:
        raise InvalidArgument(message(where, f"{array.ndim} dimensions", f"0 to {MAX_RANK}"))
    if array.size > MAX_ELEMENTS:
        raise InvalidArgument(message(where, f"{array.size} elements", "at most 2^32 - 1", "Split the array."))
    if array.ndim == 0:
        return ArrayTensorDesc(data_type, (1,), zero_dimensional=True)
    if not array.size or array.flags.c_contiguous:
        return ArrayTensorDesc(data_type, array.shape)
    return ArrayTensorDesc(data_type, array.shape, tuple(s // array.itemsize for s in array.strides))
