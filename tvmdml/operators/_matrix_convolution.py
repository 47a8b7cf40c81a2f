"""The geometry of convolutions, and the rules that all of them have.

A filter's element meets the image at ``t * stride + j * dilation - start_padding`` in each spatial dimension, where ``j`` is its
place in the filter. Forward, ``t`` is a place of the output, and that is one of the image. Backward, ``t`` is a place of the image,
and that is one of the output. What lies outside contributes nothing. The last ``output_padding`` elements of the output are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tvmdml.enums import ConvolutionDirection, ConvolutionMode
from tvmdml.errors import InvalidArgument, counted, message, safe_repr
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, Contraction, Operand
from tvmdml.kernels.movement import INSIDE, WHOLE, CoordinateRule, Linear
from tvmdml.operators._contract import Operator
from tvmdml.operators._inference import is_description
from tvmdml.operators._matrix import Matrix
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

ABSENT: Mapping[str, int] = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0, "output_padding": 0}
"""The usual numbers for those that a caller leaves out."""


class ConvolutionAxis(NamedTuple):
    """A convolution along one spatial dimension."""

    image: Any
    kernel: int
    output: Any
    """The elements of the output that are not padding."""
    stride: int
    dilation: int
    start: int
    end: int
    padding: int
    """The zeros behind the output."""

    @property
    def span(self) -> int:
        """The elements from a filter's first to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def has_phases(self) -> bool:
        """Whether a place of the output modulo the stride says which taps of a transposed filter reach it."""
        whole = all(number % self.stride == 0 for number in (self.kernel, self.start, self.output))
        return whole and self.dilation == 1 and self.padding == 0


class Convolving(Matrix):
    """The base class of convolutions.

    Args:
        strides: the steps from one place to the next; 1 by default.
        dilations: the steps between the elements of a filter; 1 by default.
        start_padding: how much padding is before each spatial dimension; 0 by default.
        end_padding: that behind each.
        group_count: the number of groups; 1 by default.
        output_sizes: the sizes of the result.
    """

    NUMBERED: ClassVar[tuple[str, ...]] = ("strides", "dilations", "start_padding", "end_padding")
    """The attributes with a number for each spatial dimension."""

    # -- The geometry

    @property
    def backward(self) -> bool:
        """Whether it is transposed."""
        return getattr(self, "direction", None) is ConvolutionDirection.BACKWARD

    @property
    def turned(self) -> bool:
        """Whether the filter is turned round."""
        return getattr(self, "mode", None) is ConvolutionMode.CONVOLUTION

    def filters(self) -> tuple[Any, Any]:
        """Of each group: how many filters, and channels of the image."""
        own: Any = self
        first, second = own.filter_tensor.sizes[:2]
        return (second, first // own.group_count) if self.backward else (first // own.group_count, second)

    def along(self) -> list[ConvolutionAxis]:
        """The convolution along each spatial dimension."""
        own: Any = self
        sizes = (own.input_tensor.sizes[2:], own.filter_tensor.sizes[2:], own.output_tensor.sizes[2:])
        padding = getattr(self, "output_padding", (0,) * len(own.strides))
        numbers = (own.strides, own.dilations, own.start_padding, own.end_padding, padding)
        return [
            ConvolutionAxis(image, kernel, output - zeros, stride, dilation, start, end, zeros)
            for image, kernel, output, stride, dilation, start, end, zeros in zip(*sizes, *numbers, strict=True)
        ]

    def products(self) -> int:
        """The most products that an element of the output is the sum of."""
        own: Any = self
        return self.filters()[1] * math.prod(own.filter_tensor.sizes[2:])

    # -- The products

    def contraction(self) -> Contraction:
        """The batch is that of images and groups, rows are filters, columns places of the output."""
        return self._contraction(())

    def in_phases(self) -> Contraction:
        """Of a transposed convolution, only the products that exist, if they follow from an output's place modulo the strides.

        Such places, the phases, are rows as well. Sums are the same: others would add zeros, within one block of products.
        """
        along = self.along()
        fits = self.backward and self.of_rows() is None and self.contraction().depth <= KC
        if not fits or not all(one.has_phases for one in along) or all(one.stride == 1 for one in along):
            return self.simplified()
        return self._contraction(tuple(one.stride for one in along)).simplified()

    def _contraction(self, phases: tuple[int, ...]) -> Contraction:
        own: Any = self
        y, (filters, channels), along = own.output_tensor, self.filters(), self.along()
        k = len(along)
        batch, rows, columns = (y.sizes[0], own.group_count), (filters, *phases), y.sizes[2:]
        inner = (channels, *(one.kernel for one in along))
        if phases:
            columns = tuple(one.output // one.stride for one in along)
            inner = (channels, *(one.kernel // one.stride for one in along))
        zeros = [None if one is None else Operand(one[0], self._zero_place(one[1], k)) for one in self.zero_points()]
        addends = tuple(Operand(name, self._of_output(tensor.layout, phases)) for name, tensor in self.addends())
        return Contraction(
            batch,
            rows,
            columns,
            inner,
            Operand("filter_tensor", self._filter_place(k, phases)),
            Operand("input_tensor", *self._image_place(along, phases)),
            Operand("output_tensor", self._of_output(y.layout, phases)),
            addends,
            zeros[0],
            zeros[1],
            self.computed,
        )

    def zero_points(self) -> tuple[tuple[str, Any] | None, tuple[str, Any] | None]:
        """The fields and tensors of what is subtracted from filters and image."""
        return None, None

    def _of_output(self, layout: Sequence[int], phases: tuple[int, ...]) -> Linear:
        """A place in a tensor with the output's sizes, by image, group, filter, phase and place."""
        first, second, *steps = layout
        along = [step * phase for step, phase in zip(steps, phases or (1,) * len(steps), strict=True)]
        return Linear(0, (first, second * self.filters()[0], second, *(steps if phases else ()), *along))

    def _filter_place(self, k: int, phases: tuple[int, ...]) -> Linear:
        own: Any = self
        w, (filters, channels) = own.filter_tensor, self.filters()
        first, second, *taps = w.layout
        base = 0
        if self.turned:
            base = sum((size - 1) * step for size, step in zip(w.sizes[2:], taps, strict=True))
            taps = [-step for step in taps]
        outer = (channels * first, second) if self.backward else (filters * first, first)
        inner = [step * phase for step, phase in zip(taps, phases or (1,) * k, strict=True)]
        return Linear(base, (0, *outer, *(taps if phases else ()), *[0] * k, first if self.backward else second, *inner))

    def _image_place(self, along: Sequence[ConvolutionAxis], phases: tuple[int, ...]) -> tuple[Linear, tuple[CoordinateRule, ...]]:
        own: Any = self
        x, channels, k = own.input_tensor, self.filters()[1], len(along)
        batch, channel, *steps = x.layout
        outer = [0] * len(phases)
        place = Linear(0, (batch, channels * channel, 0, *outer, *[0] * k, channel, *[0] * k))
        rules = []
        for i, (one, step) in enumerate(zip(along, steps, strict=True)):

            def at(base: int, output: int, tap: int, i: int = i) -> Linear:
                column, element = ([number if j == i else 0 for j in range(k)] for number in (output, tap))
                return Linear(base, (0, 0, 0, *outer, *column, 0, *element))

            if phases:
                rules.append(CoordinateRule(INSIDE, one.image, step, at(one.start // one.stride, 1, -1)))
            elif self.backward:
                rules.append(CoordinateRule(WHOLE, one.image, step, at(one.start, 1, -one.dilation), one.stride))
            else:
                rules.append(CoordinateRule(INSIDE, one.image, step, at(-one.start, one.stride, one.dilation)))
            if one.padding:
                rules.append(CoordinateRule(INSIDE, one.output, 0, at(0, 1, 0)))
        return place, tuple(rules)

    def _zero_place(self, tensor: Any, k: int) -> Linear:
        step, filters = channel_step(tensor), self.filters()[0]
        return Linear(0, (0, filters * step, step, *[0] * (2 * k + 1)))

    def of_channels(self, *names: str) -> tuple[tuple[str, TensorDesc], ...]:
        """Tensors that are present, of one element or one for each channel, repeated to the output's sizes."""
        own: Any = self
        sizes, found = own.output_tensor.sizes, []
        for name in names:
            tensor = getattr(self, name)
            if tensor is not None:
                steps = (0, channel_step(tensor), *[0] * (len(sizes) - 2))
                found.append((name, ArrayTensorDesc(tensor.data_type, sizes, steps)))
        return tuple(found)

    # -- Rules

    def usual_sizes(self) -> tuple[Any, ...]:
        """The output's sizes, unless others are given: those that the numbers say, and the least where they leave a choice."""
        own: Any = self
        x, w = own.input_tensor, own.filter_tensor
        channels = w.sizes[1] * own.group_count if self.backward else w.sizes[0]
        padding = getattr(self, "output_padding", (0,) * len(own.strides))
        numbers = (own.strides, own.dilations, own.start_padding, own.end_padding, padding)
        found = []
        for size, kernel, stride, dilation, start, end, zeros in zip(x.sizes[2:], w.sizes[2:], *numbers, strict=True):
            span = (kernel - 1) * dilation + 1
            if self.backward:
                found.append((size - 1) * stride + span - start - end + zeros)
            else:
                found.append((size + start + end - span) // stride + 1 + zeros)
        return (x.sizes[0], channels, *found)

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output has the usual sizes."""
        own: Any = self
        x = own.input_tensor
        if x.rank not in (3, 4, 5):  # the support table refuses it
            return {"output_tensor": x}
        self.check_numbers()
        return {"output_tensor": x.with_sizes(self.usual_sizes(), self.result_type(*(one for _, one in self.tensors())))}

    @classmethod
    def result_type(cls, *tensors: Any) -> TensorDataType:
        """The output's type, of the tensors in DirectML's order."""
        return tensors[0].data_type

    def check_numbers(self) -> None:
        """Filters for the image's channels, numbers for each spatial dimension, and filters that fit into the padded image."""
        own: Any = self
        x, w = own.input_tensor, own.filter_tensor
        self.require_same("rank", "filter_tensor", "input_tensor")
        k = x.rank - 2
        for name in self.NUMBERED:
            given = getattr(self, name)
            self.require(len(given) == k, name, counted(len(given), "number"), f"{k}, one for each spatial dimension")
            if "padding" not in name:
                for i, one in enumerate(given):
                    self.require(one >= 1, f"{name}[{i}]", one, "1 or more")
        self._check_groups()
        for i, (size, kernel) in enumerate(zip(x.sizes[2:], w.sizes[2:], strict=True), 2):
            self.require(size >= 1, f"input_tensor.sizes[{i}]", size, "1 or more")
            self.require(kernel >= 1, f"filter_tensor.sizes[{i}]", kernel, "1 or more")
            span = (kernel - 1) * own.dilations[i - 2] + 1
            start, end = own.start_padding[i - 2], own.end_padding[i - 2]
            if self.backward:
                padded = (size - 1) * own.strides[i - 2] + span
                self.require(padded - start - end >= 1, f"start_padding[{i - 2}] and end_padding[{i - 2}]", f"{start} and {end}",
                             f"less than {padded} together, the elements that the filter reaches")  # fmt: skip
            else:
                padded = size + start + end
                self.require(span <= padded, f"filter_tensor.sizes[{i}]", f"{kernel}, over {span}", f"within {padded} elements")

    def _check_groups(self) -> None:
        own: Any = self
        groups, channels, (first, second) = own.group_count, own.input_tensor.sizes[1], own.filter_tensor.sizes[:2]
        self.require(groups >= 1, "group_count", groups, "1 or more")
        self.require(channels % groups == 0, "group_count", groups, f"a divisor of the input's {channels} channels")
        if self.backward:
            self.require(first == channels, "filter_tensor.sizes[0]", first, f"{channels}, the input's channels")
            return
        self.require(first % groups == 0, "group_count", groups, f"a divisor of the {first} filters")
        wanted = f"{channels // groups}, the input's channels" + (" of a group" if groups != 1 else "")
        self.require(second * groups == channels, "filter_tensor.sizes[1]", second, wanted)

    def check(self) -> None:
        """The output has the batch, a channel for each filter, and as many elements as the numbers say."""
        own: Any = self
        self.check_numbers()
        self.require_same("rank", "output_tensor", "input_tensor")
        usual, given = self.usual_sizes(), own.output_tensor.sizes
        words = "the input's batch and a channel for each filter"
        self.require(given[:2] == usual[:2], "output_tensor.sizes", given, f"{usual[:2]} first: {words}")
        for i, (size, least) in enumerate(zip(given[2:], usual[2:], strict=True)):
            name = f"output_tensor.sizes[{i + 2}]"
            if not self.backward:
                self.require(size == least, name, size, f"{least}, as the other sizes and numbers say")
                continue
            most = least + max(own.strides[i], own.dilations[i]) - 1
            for holds in (size >= least, size <= most):
                self.require(holds, name, size, f"{least}" if most == least else f"{least} to {most}")

    def require_channels(self, name: str) -> None:
        """A tensor has an element for each of the output's channels, and no more."""
        own: Any = self
        tensor = getattr(self, name)
        if tensor is None:
            return
        wanted = (1, self.usual_sizes()[1], *[1] * (own.input_tensor.rank - 2))
        self.require(tensor.sizes == wanted, f"{name}.sizes", tensor.sizes, f"{wanted}: one for each of the output's channels")

    def require_scale(self, name: str, each: bool) -> None:
        """A scale or a zero point is one for all, or with ``each`` one for each of the output's channels."""
        tensor = getattr(self, name)
        if tensor is None or tensor.element_count == 1:
            return
        channels = self.usual_sizes()[1]
        wanted = (channels,) if tensor.rank == 1 else (1, channels, *[1] * (tensor.rank - 2))
        allowed = f"one element, or {wanted}: one for each of the output's channels" if each else "one element"
        self.require(each and tensor.sizes == wanted, f"{name}.sizes", tensor.sizes, allowed)

    # -- Functions

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Operator:
        """Numbers that are left out are the usual ones."""
        sizes = given.pop("output_sizes", None)
        x = inputs[0]
        if x is None:
            raise InvalidArgument(message(cls.where("input_tensor"), "None", "an array"))
        if sizes is not None and (not is_description(sizes) or (not isinstance(sizes, TensorDesc) and len(sizes) != x.rank)):
            allowed = f"{x.rank} numbers: batch, channels, and each spatial size"
            raise InvalidArgument(message(cls.where("output_sizes"), safe_repr(sizes), allowed))
        for name in cls.NUMBERED:
            if given.get(name) is None:
                given[name] = (ABSENT[name],) * max(x.rank - 2, 0)
        fields = [field.name for field in cls.fields() if field.name.endswith("_tensor")]
        tensors = [
            of_channels(one, x.rank) if name == "bias_tensor" and one is not None and one.rank == 1 else one
            for name, one in zip((name for name in fields if name != "output_tensor"), inputs, strict=False)
        ]
        if is_description(sizes) and not isinstance(sizes, TensorDesc):
            kind = given.get("output_tensor")
            given["output_tensor"] = x.with_sizes(sizes, cls.result_type(*tensors) if kind is None else kind)
        return cls.of(*tensors, **given)


def of_channels(tensor: TensorDesc, rank: int) -> TensorDesc:
    """A tensor of rank 1 as one of channels."""
    step = tensor.layout[0]
    return ArrayTensorDesc(tensor.data_type, (1, *tensor.sizes, *[1] * (rank - 2)), (step,) * rank)


def channel_step(tensor: Any) -> int:
    """The step from one channel's element to the next; 0 where there is one for all."""
    if tensor.element_count == 1:
        return 0
    return tensor.layout[0 if tensor.rank == 1 else 1]


def requantised(total: Any, x_scale: Any, w_scale: Any, y_scale: Any, zero: Any) -> Any:
    """A sum of int32 times two scales, over a third one, rounded to the even integer where two are as near, plus a zero point."""
    real = T.rounded(T.cast(total, "float32") * T.rounded(x_scale * w_scale))
    found = T.hold(T.round_even(real / y_scale))
    found = T.select(T.is_nan(found), T.like(found, 0), found)
    return found if zero is None else found + T.cast(zero, "float32")  # exact, unless it saturates anyway
