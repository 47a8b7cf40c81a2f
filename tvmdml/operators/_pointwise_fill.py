"""``FillOperator``: the base class of operators that write numbers without an input."""

from __future__ import annotations

from collections.abc import Mapping

from tvmdml.operators._contract import NumpyArray, Output
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._scalars import element, require_number
from tvmdml.tensors import TensorDataType, TensorDesc


class FillOperator(Pointwise):
    """Base class of operators without inputs. Their other fields are numbers of the output's type."""

    CONSTANT_SHAPES = "elements are counted in a tensor that is not in memory"

    BROADCAST = False

    output_tensor: Output
    value_data_type: TensorDataType

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given."""
        return {}

    def check(self) -> None:
        """The numbers have the output's type."""
        stated, own = self.value_data_type, self.output_tensor.data_type
        self.require(stated is own, "value_data_type", stated.tvm, f"{own.tvm}, the output's type")
        for field in self.fields()[2:]:
            require_number(self, field.name, own)

    def element(self, number: int | float) -> NumpyArray:
        """A number in the output's type, as a 0-d array."""
        return element(number, self.output_tensor.data_type)

    def bits(self, number: int | float) -> int:
        """The bits of a number in the output's type."""
        return int(self.element(number).view(f"u{self.output_tensor.data_type.itemsize}"))
