"""The parts of every operator: a typed descriptor, a support table, shape rules, a computation and a reference.

A new operator is a module beside this one with a class such as::

    class ElementWiseRound(Operator):
        NAME = "ELEMENT_WISE_ROUND"
        SUPPORT = support("2.1 F r4 · 3.0 r8")

        input_tensor: Input
        output_tensor: Output
        rounding_mode: RoundingMode

It is found by its file; there is no list to add it to. Fields are DirectML's, in DirectML's order, in snake case. The counts that
C needs (``DimensionCount``, ``InputCount``) are not fields, because a Python sequence knows its length.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from tvmdml.enums import FeatureLevel, TensorFlags
from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.operators import _exact
from tvmdml.operators._accuracy import Expected, difference
from tvmdml.operators._accuracy import NumpyArray as NumpyArray
from tvmdml.operators._broadcast import common_sizes, repeated
from tvmdml.operators._frozen import Frozen, Shown, derived, hints_of
from tvmdml.operators._gradients import Formulas
from tvmdml.operators._inference import fields_of, outputs_of
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._roles import TENSORS, coerce, field_of, is_coerced
from tvmdml.operators._roles import Axes as Axes
from tvmdml.operators._roles import Axis as Axis
from tvmdml.operators._roles import Bool as Bool
from tvmdml.operators._roles import Field as Field
from tvmdml.operators._roles import Float as Float
from tvmdml.operators._roles import Floats as Floats
from tvmdml.operators._roles import Input as Input
from tvmdml.operators._roles import Inputs as Inputs
from tvmdml.operators._roles import Int as Int
from tvmdml.operators._roles import Ints as Ints
from tvmdml.operators._roles import OptionalBool as OptionalBool
from tvmdml.operators._roles import OptionalFloat as OptionalFloat
from tvmdml.operators._roles import OptionalInput as OptionalInput
from tvmdml.operators._roles import OptionalOutput as OptionalOutput
from tvmdml.operators._roles import OptionalScaleBias as OptionalScaleBias
from tvmdml.operators._roles import Output as Output
from tvmdml.operators._roles import Outputs as Outputs
from tvmdml.operators._roles import Role as Role
from tvmdml.operators._roles import Scalar as Scalar
from tvmdml.operators._roles import Size as Size
from tvmdml.operators._roles import Uint as Uint
from tvmdml.operators._roles import Uints as Uints
from tvmdml.operators._support import Support, refusal, where_supported
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import has_open_sizes, symbols, texts_for_keys, texts_for_messages

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.kernels.tensorir import Each

O = TypeVar("O", bound="Operator")  # noqa: E741 - O for operator

Shared = tuple[tuple[str, str], ...]
"""Which tensors are in the same memory: pairs of an input's and an output's name, such as ``(("a_tensor", "output_tensor"),)``."""


_FUNCTION: ContextVar[str] = ContextVar("tvmdml_function", default="")


@contextmanager
def called_by(function: str) -> Iterator[None]:
    """A context manager: errors about descriptors name this function, which the user called, instead of its operator."""
    token = _FUNCTION.set(function)
    try:
        yield
    finally:
        _FUNCTION.reset(token)


def defaults(**values: Any) -> Mapping[str, Any]:
    """Values for ``Operator.DEFAULTS``, which cannot be changed later."""
    return MappingProxyType(values)


def upper_snake(name: str) -> str:
    """DirectML's spelling of a class's name: ``FILL_VALUE_SEQUENCE`` of ``FillValueSequence``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])(?=\d+d)", "_", name).upper()


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Operator(Frozen, metaclass=Shown):
    """Base class of all operator descriptors. A subclass becomes a frozen, keyword-only dataclass."""

    NAME: ClassVar[str] = ""
    """DirectML's name without ``DML_OPERATOR_``; that of the class, unless it says otherwise. Base classes have none."""
    SUPPORT: ClassVar[tuple[Support, ...]] = ()
    """``support("…")``. The lowest level of the table is the one that introduced the operator."""
    FAMILY: ClassVar[str] = ""
    """The family whose schedules serve the operator if it has none of its own: the name of their files."""
    SCHEDULE: ClassVar[str] = ""
    """The operators' file whose schedules serve the operator, if that is not its own."""
    SHARES: ClassVar[Shared] = ()
    """The (input, output) fields whose tensors DirectML allows to share memory. A field of several tensors stands for each."""
    FUSES: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The operators that may be fused into this one (``FusedActivation``), and the feature level from which each may be."""
    ANY_NAN: ClassVar[bool] = False
    """Whether any NaN is accepted where the reference has a NaN."""
    SUMS: ClassVar[bool] = False
    """Whether elements are sums of many floats, which other libraries round in other ways."""
    FUNCTION: ClassVar[str] = ""
    """The name of the function ``tvmdml.<name>`` that is made from the class; empty for none, or for one in ``tvmdml.doors``."""
    ALIASES: ClassVar[tuple[str, ...]] = ()
    """Other names of the function."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Values of attributes that callers of functions and of ``of`` may leave out. The descriptor itself needs all attributes."""
    ARGUMENTS: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Arguments of the function that are no fields, such as sizes of outputs: their annotations by name. ``of_call`` gets them."""
    KEYWORDS: ClassVar[Mapping[str, str]] = MappingProxyType({"window_size": "window_sizes"})
    """The function's names of attributes that it calls otherwise than DirectML's structure, by the fields' names."""
    SYNONYMS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Other names that programs have for fields of DirectML's structure: DirectML's, by these."""
    RESULTS: ClassVar[tuple[str, ...]] = ()
    """The names of the function's results, if there are several."""
    DTYPES: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Keywords of the function by which the caller chooses an output's type, such as ``{"index_dtype": "output_index_tensor"}``."""
    NUMBERS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Inputs that may be Python numbers without an array of the same types beside them, and the usual type of such a number."""
    BROADCAST: ClassVar[bool] = False
    """Whether functions and ``of`` broadcast the inputs to common sizes."""
    TAKES_BOOL: ClassVar[bool] = False
    """Whether functions accept bool arrays, as UINT8."""
    CHECKS_INDICES: ClassVar[bool] = False
    """Whether the function has an argument ``check_indices``: an index that is out of range is then an error."""
    GRADIENT: ClassVar[Formulas] = MappingProxyType({})
    """``gradients(…)``: how the gradient of each of the function's inputs follows. See ``_gradients.py``."""
    ONNX: ClassVar[tuple[str, ...]] = ()
    """The ONNX operators that ``from_onnx`` converts."""
    ONNX_INPUTS: ClassVar[tuple[int, ...]] = ()
    """Which inputs of an ONNX node the descriptor's are, if those are in another order."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a dataclass."""
        super().__init_subclass__(**kwargs)
        if cls._is_operator() and "NAME" not in vars(cls):
            cls.NAME = upper_snake(cls.__name__)
        if any(row.others is not None for row in cls.SUPPORT):
            names = [field.name for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)]
            cls.SUPPORT = tuple(row.of(names) for row in cls.SUPPORT)

    @classmethod
    def _is_operator(cls) -> bool:
        """Whether it is an operator of DirectML, and no base class: neither its name nor its file's begins with an underscore."""
        package, _, module = cls.__module__.rpartition(".")
        return package == __package__ and not module.startswith("_") and not cls.__name__.startswith("_")

    def __post_init__(self) -> None:
        """Convert every field to its type."""
        for field in self.fields():
            value = getattr(self, field.name)
            if not is_coerced(field, value):
                object.__setattr__(self, field.name, coerce(self.where(field.name), field, value))

    # -- The contract ---------------------------------------------------------------------------------------------

    @classmethod
    @functools.cache
    def fields(cls) -> tuple[Field, ...]:
        """The descriptor's fields, in DirectML's order."""
        defaults = {**cls.FIELDS, **cls.DEFAULTS}
        return tuple(field_of(name, hint, defaults[name]) for name, hint in hints_of(cls).items())

    def rows(self) -> tuple[Support, ...]:
        """The rows of the support table that apply to this descriptor: all rows, unless they depend on an attribute."""
        return self.SUPPORT

    @classmethod
    def feature_level(cls) -> FeatureLevel:
        """The feature level that introduced the operator."""
        return min(row.level for row in cls.SUPPORT if row.level is not None)

    def tensors(self, *roles: Role) -> Iterator[tuple[str, TensorDesc | None]]:
        """The name and description of every tensor of these roles (of all roles, if none is given), in DirectML's order."""
        own, found = self.__dict__, []
        for name, many in self._tensor_fields(*roles):
            if many:
                found += [(f"{name}[{i}]", desc) for i, desc in enumerate(own[name])]
            else:
                found.append((name, own[name]))
        return iter(found)

    @classmethod
    @functools.cache
    def _tensor_fields(cls, *roles: Role) -> tuple[tuple[str, bool], ...]:
        """The names of fields of these roles, and whether each has several tensors."""
        return tuple((field.name, field.many) for field in cls.fields() if field.role in (roles or TENSORS))

    @classmethod
    def of(cls: type[O], *inputs: Any, **given: Any) -> O:
        """The descriptor for inputs and attributes; ``infer`` fills in the outputs.

        Args:
            inputs: each input's ``TensorDesc`` in DirectML's order; ``None`` for an optional one that is absent. Those at the end
                may be left out. For a list of tensors, a sequence.
            given: attributes by name; those with a default may be left out. A data type is then the first tensor's. An output by
                name is a ``TensorDesc``, or a data type instead of the usual one. Only outputs that are not optional are filled in
                without being asked for.

        Raises:
            InvalidArgument: a field is missing, unknown or invalid.
        """
        with texts_for_messages():
            draft = cls(**fields_of(cls, inputs, given))
            if cls.BROADCAST:
                draft = dataclasses.replace(draft, **draft.broadcast()[1])  # type: ignore[type-var] # a dataclass, as all are
            return dataclasses.replace(draft, **outputs_of(draft, draft.infer(), given))  # type: ignore[type-var]

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """The descriptor of a call of the class's function: that of ``of``, or of another operator that does the same."""
        return cls.of(*inputs, **given)

    @classmethod
    def result_sizes(cls, *inputs: Any, **given: Any) -> tuple[int, ...] | None:
        """The sizes of the result of a call, if they are not the descriptor's: some of size 1 are left out. The arguments are those
        of ``of_call``.
        """
        return None

    def infer(self) -> Mapping[str, Any]:
        """The fields that follow from the inputs and attributes, by name: the outputs, and inputs that ``broadcast`` repeats.

        It is called on a descriptor without outputs, before ``check``: with ``require`` it checks what it relies on. Sizes may be
        symbols, and a comparison could fix their values; it should make none that the result does not depend on. Without it no
        output follows, and ``of`` asks for each.
        """
        return {}

    def broadcast(self, *names: str) -> tuple[tuple[int, ...], dict[str, TensorDesc]]:
        """The common sizes of inputs (of all that are present, if none is named), and the inputs repeated to them, by name.

        Raises:
            InvalidArgument: NumPy's rules of broadcasting do not allow their sizes.
        """
        tensors = {name: desc for name, desc in self.tensors(Role.INPUT) if desc is not None and (not names or name in names)}
        sizes = common_sizes({self.where(name): desc for name, desc in tensors.items()})
        return sizes, {name: repeated(desc, sizes) for name, desc in tensors.items()}

    def onnx_inputs(self) -> tuple[int, ...]:
        """Which inputs of the ONNX node are the tensors that it has, in its own order; none if the order is the same."""
        return self.ONNX_INPUTS

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """The descriptor of a node of one of the operators in ``ONNX``: its inputs, and its attributes by the fields' names.

        Raises:
            Refused: the node cannot be converted.
        """
        unknown = sorted(set(node.attributes) - {field.name for field in cls.fields()})
        if unknown:
            raise NotConvertible(f"its attribute {unknown[0]} has no counterpart in DirectML")
        return cls.of(*node.tensors(boolean=cls.TAKES_BOOL), **node.attributes)

    @classmethod
    def fused(cls: type[O], **attributes: Any) -> O:
        """The operator as part of another operator (a fused activation): its attributes, without tensors.

        Attributes with a default may be left out.
        """
        absent = {field.name: None for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)}
        return cls(**absent, **{**cls.DEFAULTS, **attributes})

    def __copy__(self: O) -> O:
        """A copy whose fields may be changed: without what was derived from them."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__getstate__())
        return found

    def with_tensors(self: O, change: Callable[[TensorDesc], Any]) -> O:
        """A copy with another object in place of each tensor, which need not be a ``TensorDesc``; for code that writes kernels."""

        def changed(value: Any) -> Any:
            return tuple(map(changed, value)) if isinstance(value, tuple) else None if value is None else change(value)

        found = copy.copy(self)
        for field in self.fields():
            if field.role in TENSORS:
                object.__setattr__(found, field.name, changed(getattr(self, field.name)))
        return found

    def parts(self) -> Iterator[tuple[str, Operator]]:
        """The name and descriptor of every operator that is fused into this one."""
        for field in self.fields():
            value = getattr(self, field.name)
            if field.role is Role.OPERATOR and value is not None:
                yield from ((f"{field.name}[{i}]", one) for i, one in enumerate(value)) if field.many else [(field.name, value)]

    def modules(self) -> tuple[str, ...]:
        """The short names of the files that define the operator and those that are fused into it: kernels follow from them."""
        every = (self, *(part for _, part in self.parts()))
        return tuple(dict.fromkeys(type(one).__module__.rpartition(".")[2] for one in every))

    @derived
    def all_outputs(self) -> tuple[TensorDesc | None, ...]:
        """The output tensors in DirectML's order, absent ones included."""
        return tuple([desc for _, desc in self.tensors(Role.OUTPUT)])

    @derived
    def outputs(self) -> tuple[TensorDesc, ...]:
        """The output tensors that are present, in DirectML's order."""
        return tuple(desc for _, desc in self.tensors(Role.OUTPUT) if desc is not None)

    @derived
    def owned(self) -> tuple[str, ...]:
        """The inputs that never change, by name: those with the flag OWNED_BY_DML."""
        return tuple(name for name, desc in self.tensors(Role.INPUT) if desc is not None and desc.flags is TensorFlags.OWNED_BY_DML)

    def unowned(self: O) -> O:
        """The same, with inputs that are given with each call."""
        return self.with_tensors(_not_owned) if self.owned() else self

    def shareable(self) -> Shared:
        """The pairs that may share memory here: both tensors are present, and have the same type, sizes and strides."""
        if not self.SHARES:
            return ()
        tensors = dict(self.tensors())
        pairs = ((tensors[source], tensors[result]) for source, result in self.pairs())
        same = (one is not None and other is not None and one.is_like(other) for one, other in pairs)
        return tuple(itertools.compress(self.pairs(), same))

    def pairs(self) -> Shared:
        """The pairs of ``SHARES``, with the names of tensors in place of fields that have several."""
        if not self.SHARES:
            return ()
        named: dict[str, list[str]] = {}
        for name, _ in self.tensors():
            named.setdefault(name.partition("[")[0], []).append(name)
        several = (itertools.product(named.get(source, ()), named.get(result, ())) for source, result in self.SHARES)
        return tuple(itertools.chain.from_iterable(several))  # a field may have no tensor: a fused call of constants alone

    def positions(self, shared: Shared) -> tuple[tuple[int, int], ...]:
        """Pairs as positions among the input tensors that are present, and among such output tensors."""
        inputs, outputs = ([name for name, desc in self.tensors(role) if desc is not None] for role in (Role.INPUT, Role.OUTPUT))
        return tuple((inputs.index(source), outputs.index(result)) for source, result in shared)

    def validate(self, level: FeatureLevel, extensions: bool = False) -> None:
        """Check the whole contract: the support table at ``level``, writable outputs, and the operator's own rules.

        Raises:
            Unsupported: this level does not have the operator, or does not support these types and ranks.
            InvalidArgument: a rule of every level is broken.
        """
        if (level, extensions) not in self._levels():
            with texts_for_messages():
                self._validate(level, extensions)
            self._levels().add((level, extensions))

    @derived
    def _levels(self) -> set[tuple[FeatureLevel, bool]]:
        """Those of which the contract was found right."""
        return set()

    def _validate(self, level: FeatureLevel, extensions: bool) -> None:
        for field in self.fields():
            present = field.optional or getattr(self, field.name) is not None
            self.require(present, field.name, "None", f"{field.role.value}: a TensorDesc")
        self._check_support(level, extensions)
        for name, desc in self.tensors(Role.OUTPUT):
            if desc is not None:
                desc.check_writable(self.where(name))
        for name, fused in self.parts():
            self.check_part(name, fused, level, extensions)
        self.check_attributes(level)
        self.check_level(level)
        if not extensions:
            self.check_unextended()
        self.check()

    def check_attributes(self, level: FeatureLevel) -> None:
        """The operator's own rules for its attributes alone. They also apply where it is fused into another operator."""

    def check_unextended(self) -> None:
        """The operator's own rules of DirectML that functions, graphs and packs go beyond."""

    def check_level(self, level: FeatureLevel) -> None:
        """The operator's own rules that apply only to some feature levels."""

    def check(self) -> None:
        """The operator's own rules, in addition to the support table; written with ``require`` and ``require_same``."""

    def canonical(self) -> Operator:
        """The newer operator that replaces this one, or else this operator."""
        return self

    @derived
    def exactly(self) -> str:
        """The descriptor as text, followed by the bits of all its floats, because every NaN has the same text."""
        with texts_for_keys():
            return f"{self!r} {self._bits().hex()}"

    def exactly_in_code(self) -> str:
        """The same for what code is generated from: sizes that are open become Python's own integers."""
        text = self.exactly()
        return f"{self!r} {self._bits().hex()}" if has_open_sizes(text) else text

    @derived
    def _bits(self) -> bytes:
        """The bits of all floats, those of fused operators included, which many descriptors share."""
        values = (getattr(self, field.name) for field in self.fields() if field.role not in TENSORS)  # tensors have no floats
        return b"".join(map(_bits_of, values))

    def attributes_exactly(self, left_out: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
        """The name of each attribute, and its value as text followed by the bits of its floats."""
        names = [field.name for field in self.fields() if field.role not in TENSORS and field.name not in left_out]
        values = ((name, getattr(self, name)) for name in names)
        return tuple((name, f"{value!r} {_exact.bits(value).hex()}") for name, value in values)

    # -- Speed ----------------------------------------------------------------------------------------------------

    def shape_class(self) -> dict[str, int | str]:
        """The properties of the shapes that determine the best knobs.

        Sizes are integers, 0 included, and are compared by their nearest power of two. Strings are equal or not. An operator and
        its ``canonical`` have the same shape class.
        """
        first = next(desc for _, desc in self.tensors() if desc is not None)
        return {"elements": self.outputs()[0].element_count, "length": first.sizes[-1], "layout": self.layout()}

    def layout(self) -> str:
        """The memory layout: ``packed`` if all tensors are packed, else ``strided``."""
        return "packed" if all(desc.is_packed for _, desc in self.tensors() if desc is not None) else "strided"

    def samples(self) -> tuple[str, ...]:
        """The kinds of inputs to measure with: names of ``tvmdml.proof.bench.inputs.FILLS``. Empty if there is no input."""
        return ("normal",) if any(desc is not None for _, desc in self.tensors(Role.INPUT)) else ()

    @classmethod
    def agreeing(cls, sizes: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Sizes of inputs that agree, from some that were made smaller one by one: those that change. Most operators' agree."""
        return {}

    def bounds(self, name: str) -> tuple[int, int] | None:
        """The least and the greatest useful value of an input: indices within a dimension, small zero points.

        Where kernels are tried or measured, the input's values are mostly within these bounds, and some are outside. ``None`` means
        values of all kinds, as for most inputs.
        """
        return None

    # -- The computation ------------------------------------------------------------------------------------------

    CONSTANT_SHAPES: ClassVar[str] = ""
    """Why ``computation`` needs sizes and strides as Python integers. It then has a kernel for each shape; otherwise ``sizes``,
    ``layout`` and ``element_count`` of its tensors may be integers of the launch, and a kernel serves a class of shapes."""

    LAUNCHED_SHAPES: ClassVar[bool] = False
    """Whether kernels for devices take sizes and strides at launch all the same: ``computation`` takes tensors that have integers
    of the launch."""

    def scratch(self) -> tuple[tuple[str, int], ...]:
        """Memory that ``computation`` works in: a type and a number of elements for each buffer after the tensors."""
        return ()

    def stored_types(self) -> set[str]:
        """The types in which ``computation`` reads and writes elements."""
        return {tensor.data_type.stored.tvm for _, tensor in self.tensors() if tensor is not None}

    def computation(self, each: Each, shared: Shared = ()) -> PrimFunc:
        """The operator as a plain TensorIR function over its tensors in field order, correct for any layout.

        A target without a hand-written schedule for the operator compiles this. ``each`` is the target's way to run independent
        items. The inputs of ``shared``, pairs of ``shareable()``, are not parameters: they are read from the outputs' buffers. An
        operator of several inputs or outputs reads them with ``tensorir.hold`` before it stores: otherwise an output may overwrite
        another one's input, and TVM's simplifier cancels a difference of two inputs in the same memory.
        Sizes and strides are read after ``Function.tensors`` (see ``CONSTANT_SHAPES``). Attributes are constants.
        """
        raise NotImplementedError(self.NAME)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: the inputs in field order, the outputs in field order.

        Every kernel must agree with it: bit for bit if the expected output is an array, within the bound if it is a ``Near``.
        Arrays of 4-bit tensors are as callers pass them: ``TensorDesc.unpack`` reads an input, ``TensorDesc.pack`` makes an output.
        """
        raise NotImplementedError(self.NAME)

    def mismatch(self, actual: tuple[NumpyArray, ...], expected: tuple[Expected, ...]) -> str:
        """Compare outputs with the reference's: their types, their shapes, and all values.

        Returns:
            A description of the first difference; empty if they agree.
        """
        names = [name for name, desc in self.tensors(Role.OUTPUT) if desc is not None]
        for name, one, other in zip(names, actual, expected, strict=True):
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return f"{name} is {one.dtype} of shape {one.shape}, should be {other.dtype} of shape {other.shape}"
        # Of a 4-bit tensor only the elements are compared: bits between them, and after the last one, may have any value.
        each: tuple[tuple[Any, ...], ...] = tuple(actual), tuple(expected)
        found, wanted = (tuple(map(TensorDesc.unpack, self.outputs(), some)) for some in each)
        for name, one, other in zip(names, found, wanted, strict=True):
            if problem := difference(one, other, self.ANY_NAN):
                return f"{name}: {problem}"
        return ""

    # -- Stating rules --------------------------------------------------------------------------------------------

    @classmethod
    def where(cls, field: str) -> str:
        """The name of a field in errors: ``TOP_K1 k``, or ``tvmdml.top_k: k`` if the user called a function."""
        return f"{_FUNCTION.get() or cls.NAME}{': ' if _FUNCTION.get() else ' '}{cls.named(field)}"

    @classmethod
    def named(cls, field: str) -> str:
        """A field as the user knows it: ``a_tensor``; for a function ``a``, or the keyword that chooses an output's type."""
        return cls._keyword(field) if _FUNCTION.get() else field

    @classmethod
    @functools.lru_cache(maxsize=1 << 12)
    def _keyword(cls, field: str) -> str:
        chosen = {output: keyword for keyword, output in cls.DTYPES.items()}
        name, rest = re.fullmatch(r"(\w*)(.*)", chosen.get(field, field), re.DOTALL).groups()  # type: ignore[union-attr]
        return re.sub(r"_tensor\b", "", cls.KEYWORDS.get(name, name) + rest)

    def require(self, holds: bool, field: str, given: object, allowed: str, advice: str = "") -> None:
        """Raise ``InvalidArgument`` unless the rule holds."""
        if not symbols.holds(holds):
            raise InvalidArgument(message(self.where(field), given, allowed, advice))

    def require_same(self, what: str, tensor: str, other: str) -> None:
        """Raise ``InvalidArgument`` unless two tensors have the same ``data_type``, ``rank`` or ``sizes`` (``what``)."""
        mine, theirs = getattr(getattr(self, tensor), what), getattr(getattr(self, other), what)
        show = (lambda v: v.tvm) if what == "data_type" else str
        self.require(mine == theirs, f"{tensor}.{what}", show(mine), f"{show(theirs)}, as in {self.named(other)}")

    def _check_support(self, level: FeatureLevel, extensions: bool) -> None:
        introduced = self.feature_level()
        if level < introduced:
            raise Unsupported(
                message(self.where("feature_level"), str(level), f"{introduced} and above", "That level introduced the operator.")
            )
        tensors = list(self.tensors())
        refused = refusal([row for row in self.rows() if (extensions if row.level is None else row.level <= level)], tensors)
        if refused is not None:
            types = refused.types(nibbles=not extensions)
            types += ["bool"] if extensions and self.TAKES_BOOL and "uint8" in types else []
            allowed = f"{', '.join(types)}; {refused.ranks()}{'' if extensions else f', at feature level {level}'}"
            given = f"{refused.desc.data_type.tvm} of rank {refused.desc.rank}"
            raise Unsupported(message(self.where(refused.name), given, allowed, where_supported(self.rows(), tensors)))

    def check_part(self, name: str, fused: Operator, level: FeatureLevel, extensions: bool) -> None:
        """Refuse an operator that may not be fused into this one. ``extensions`` are those of ``validate``."""
        allowed = [one for one, since in self.FUSES.items() if FeatureLevel.of(since) <= level]
        if fused.NAME not in allowed:
            since = self.FUSES.get(fused.NAME)
            advice = f"It can be fused from feature level {since}." if since else "Run it as a separate operator."
            raise Unsupported(message(self.where(name), fused.NAME, f"{', '.join(allowed) or 'none'}, at {level}", advice))
        for tensor, desc in fused.tensors():
            self.require(desc is None, f"{name}.{tensor}", desc, "None", "A fused operator must not have tensors.")
        fused.check_attributes(level)


# Fields that hold operators: a fused activation, a list of them.
OptionalOperator = Annotated[Operator | None, Role.OPERATOR]
Operators = Annotated[tuple[Operator, ...], Role.OPERATOR]


def _not_owned(desc: TensorDesc) -> TensorDesc:
    return dataclasses.replace(desc, flags=TensorFlags.NONE)


def _bits_of(value: Any) -> bytes:
    """The bits of the floats in a field."""
    if isinstance(value, Operator):
        return value._bits()
    if type(value) is tuple:
        return b"".join(map(_bits_of, value))
    return b"" if value is None or type(value) in (bool, int) else _exact.bits(value)
