"""Options that several commands have: where to run, and an operation: ``--sizes 32,32000 --attr K=50``, or one of a model file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tvmdml.errors import InvalidArgument, ModelError, Unsupported, message
from tvmdml.system.console import Row, parsed

if TYPE_CHECKING:
    from tvmdml.enums import FeatureLevel
    from tvmdml.operators import Operator
    from tvmdml.targets import Target
    from tvmdml.tensors import TensorDataType

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


class TensorOption(NamedTuple):
    """A tensor whose type or sizes differ from the input's."""

    name: str
    data_type: TensorDataType | None
    sizes: tuple[int, ...]


class OperationOptions(NamedTuple):
    """The values of the options."""

    sizes: tuple[int, ...] | None
    dtype: TensorDataType
    attributes: tuple[tuple[str, Any], ...]
    tensors: tuple[TensorOption, ...]
    model: str | None
    dispatchable: str | None

    @property
    def given(self) -> bool:
        """Whether any of the options is given."""
        return bool(self.sizes is not None or self.attributes or self.tensors or self.model or self.dispatchable)

    def describe(self, operator: str | None, level: FeatureLevel | None = None, extensions: bool = False) -> Operator:
        """The operation's descriptor.

        Args:
            operator: DirectML's name of the operator; ``None`` if it comes from a model.
            level: the feature level to check against; ``None`` is the newest.
            extensions: if DirectML does not support the operation, allow tvmdml's extensions.

        Raises:
            click.UsageError: options are missing or contradict each other.
            InvalidArgument, Unsupported, ModelError: there is no such operation.
        """
        from tvmdml import operators
        from tvmdml.enums import FeatureLevel
        from tvmdml.operators._json import sketch

        if (operator is None) == (self.model is None):
            raise click.UsageError("Give an OPERATOR or a --model.")
        if operator is None:
            return self._from_model()
        if self.sizes is None:
            raise click.UsageError("Give the input's --sizes.")
        described = functools.partial(
            sketch.describe,
            operators.by_name(operator),
            self.dtype,
            self.sizes,
            dict(self.attributes),
            {tensor.name: tensor[1:] for tensor in self.tensors},
            FeatureLevel.of(level),
        )
        try:
            return described()
        except (InvalidArgument, ModelError, Unsupported):
            if not extensions:
                raise
            return described(extensions=True)

    def _from_model(self) -> Operator:
        from tvmdml import dxdispatch

        assert self.model is not None
        found = dxdispatch.read(self.model).dispatchables
        if self.dispatchable is None and len(found) == 1:
            return next(iter(found.values())).desc
        if self.dispatchable not in found:
            given = "none" if self.dispatchable is None else repr(self.dispatchable)
            raise ModelError(message(f"{self.model}: dispatchable", given, ", ".join(found) or "none: the model has none"))
        return found[self.dispatchable].desc


def operation_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add these options to a command, which receives them as one argument ``operation``, an ``OperationOptions``."""

    @functools.wraps(command)
    def gathered(*args: Any, **values: Any) -> T:
        operation = OperationOptions(*(values.pop(name) for name in OperationOptions._fields))
        return command(*args, operation=operation, **values)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def in_place_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options for tensors in the same memory; the command receives ``in_place``, as ``operators._shared.read`` takes it."""

    @click.option("--in-place", "in_place", is_flag=True, help="The operation writes its output to its first input's memory.")
    @click.option("--shared", metavar="INPUT=OUTPUT", multiple=True, help="Tensors in the same memory: BTensor=OutputTensor.")
    @functools.wraps(command)
    def gathered(*args: Any, in_place: bool, shared: tuple[str, ...], **values: Any) -> T:
        return command(*args, in_place=", ".join(shared) or in_place, **values)

    return gathered


def named_value(text: str, *, last: bool = False) -> tuple[str, str]:
    """``NAME=VALUE``; with ``last`` a name may have the sign, too."""
    name, sign, value = text.rpartition("=") if last else text.partition("=")
    if not sign or not name or not value:
        raise InvalidArgument(message("option", repr(text), "NAME=VALUE"))
    return name, value


def named_size(text: str) -> tuple[str, int]:
    """``NAME=N``: an open size of a model, and its value."""
    name, value = named_value(text, last=True)
    if not value.isdecimal() or len(value) > 18:
        raise InvalidArgument(message(f"size {name}", repr(value), "an integer of 0 or more"))
    return name, int(value)


def size_option(
    parameter: str = "sizes",
    metavar: str = "NAME=N",
    read: Callable[[str], object] = named_size,
    words: str = "The value of a size that an ONNX model leaves open; may be repeated.",
) -> Callable[[Command], Command]:
    """The option ``--size``, which ``read`` reads; a command receives the sizes as a parameter of this name."""
    return click.option("--size", parameter, metavar=metavar, multiple=True, callback=parsed(read), help=words)


def named_sizes(text: str) -> tuple[str, range]:
    """``NAME=LEAST:MOST:STEP``: an open size of a model, and the values that it takes; ``:STEP`` may be left out."""
    name, value = named_value(text, last=True)
    parts = value.split(":")
    if len(parts) not in (2, 3) or not all(part.isdecimal() and len(part) <= 18 for part in parts):
        raise InvalidArgument(message(f"sizes {name}", repr(value), "LEAST:MOST or LEAST:MOST:STEP, of integers"))
    least, most, step = (int(part) for part in (*parts, "1")[:3])
    if step < 1 or least > most:
        raise InvalidArgument(message(f"sizes {name}", repr(value), "a LEAST of at most MOST, and a STEP of 1 or more"))
    return name, range(least, most + 1, step)


def operator_name(text: str) -> str:
    """An operator's name, in DirectML's spelling.

    Raises:
        InvalidArgument: there is no such operator.
    """
    from tvmdml import operators

    try:
        return operators.by_name(text).NAME
    except Unsupported as error:
        raise InvalidArgument(str(error)) from None


def operator_names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """For shells: the names of operators that begin so, in upper or lower case."""
    from tvmdml import operators

    return [name for name in operators.all_operators() if name.startswith(begun.upper())]


# -- Parsing of values --------------------------------------------------------------------------------------------


def _data_type(text: str) -> TensorDataType:
    from tvmdml.tensors import TensorDataType

    return TensorDataType.parse(text, "dtype")


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.strip("[]()").split(","))
    except ValueError:
        raise InvalidArgument(message("sizes", repr(text), "numbers separated by commas, such as 32,32000")) from None


def _tensor(text: str) -> TensorOption:
    name, equals, rest = text.partition("=")
    data_type, colon, sizes = rest.rpartition(":")
    if not equals:
        raise InvalidArgument(message("tensor", repr(text), "NAME=TYPE:SIZES, such as OutputTensor=float32:32,50"))
    return TensorOption(name, _data_type(data_type) if colon else None, _sizes(sizes))


def _attribute(text: str) -> tuple[str, Any]:
    import pyjson5

    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(message("attr", repr(text), "NAME=VALUE, such as K=50 or AxisDirection=DECREASING"))
    try:
        return name, pyjson5.decode(f"[{value}]")[0]
    except (pyjson5.Json5Exception, IndexError):
        return name, value  # a plain word


_OPTIONS = (
    click.option(
        "--sizes", "--shape", "sizes", metavar="N,N,…", callback=parsed(_sizes), help="Sizes of the input, such as 32,32000."
    ),
    click.option(
        "--dtype", metavar="TYPE", callback=parsed(_data_type), default="float32", show_default=True, help="Type of the input."
    ),
    click.option(
        "--attr",
        "attributes",
        metavar="NAME=VALUE",
        callback=parsed(_attribute),
        multiple=True,
        help="A field's value, such as K=50; fields not given are zero.",
    ),
    click.option(
        "--tensor",
        "tensors",
        metavar="NAME=TYPE:SIZES",
        callback=parsed(_tensor),
        multiple=True,
        help="A tensor whose type or sizes differ from the input's.",
    ),
    click.option("--model", help="Read the operation from a model file instead."),
    click.option("--dispatchable", help="The model's dispatchable to use."),
)


# -- Where to run -------------------------------------------------------------------------------------------------


def target_of(text: str) -> Target:
    """The target that a word of the command line names."""
    from tvmdml import targets

    return targets.resolve(text, "device")


def _level(text: str) -> FeatureLevel:
    from tvmdml.enums import FeatureLevel

    return FeatureLevel.of(text)


device_option = click.option(
    "--device",
    "--target",
    "device",
    metavar="TARGET",
    callback=parsed(target_of),
    help="Where to run: cpu, cpu:x86-64-v3, cuda:0, vulkan:0 …  [default: cpu]",
)
operators_option = click.option(
    "--operator",
    "names",
    metavar="NAME",
    multiple=True,
    callback=parsed(operator_name),
    help="Only this operator; may be repeated.",
)
EXACT = "exact"
"""The usual precision."""
precision_option = click.option(
    "--precision",
    type=click.Choice([EXACT, "bf16"]),
    default=EXACT,
    help="ONNX: bf16: round the factors of products and convolutions by weights to bfloat16.  [default: exact]",
)
feature_level_option = click.option(
    "--feature_level",
    metavar="LEVEL",
    callback=parsed(_level),
    help="The feature level that operators are checked against.  [default: the newest]",
)


def device_rows() -> list[Row]:
    """The devices of this machine, and their states."""
    from tvmdml import targets

    return [row for kind in targets.kinds() for row in targets.target_class(kind).devices()]
