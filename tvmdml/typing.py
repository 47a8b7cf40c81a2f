"""Types for annotations: what functions take and return. Nothing is converted here."""

from tvmdml.tensors import DType, NumpyArray
from tvmdml.tensors.annotations import Array, Number

__all__ = ["Array", "DType", "Number", "NumpyArray"]
