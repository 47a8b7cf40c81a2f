"""The interface of ``pydirectml``, the Python module of Microsoft's samples for DirectML: programs written for it run here.

It is older than ``tvmdml.directml`` and has less: all tensors that are given are float32, and they are given by position.
``python -m tvmdml.pydirectml program.py`` runs a program as it is. The README.md of ``tvmdml.directml`` explains.
"""

from __future__ import annotations

import typing as _typing
from types import ModuleType as _Module

from tvmdml.directml.activations import FusedActivation as FusedActivation
from tvmdml.directml.enums import ConvolutionDirection as ConvolutionDirection
from tvmdml.directml.enums import ConvolutionMode as ConvolutionMode
from tvmdml.directml.enums import ExecutionFlags as ExecutionFlags
from tvmdml.directml.enums import GRUOutputOptions
from tvmdml.directml.enums import InterpolationMode as InterpolationMode
from tvmdml.directml.enums import MatrixTransform as MatrixTransform
from tvmdml.directml.enums import OperatorType as OperatorType
from tvmdml.directml.enums import PaddingMode as PaddingMode
from tvmdml.directml.enums import RecurrentNetworkDirection as RecurrentNetworkDirection
from tvmdml.directml.enums import TensorDataType as TensorDataType
from tvmdml.directml.enums import TensorFlags as TensorFlags
from tvmdml.directml.older import Binding as Binding
from tvmdml.directml.older import Device as Device
from tvmdml.directml.older import Expression as Expression
from tvmdml.directml.older import GraphBuilder as GraphBuilder
from tvmdml.directml.older import Model as Model
from tvmdml.directml.older import Size2D as Size2D
from tvmdml.directml.older import TensorData as TensorData
from tvmdml.directml.older import TensorDesc as TensorDesc
from tvmdml.directml.older_functions import FUNCTIONS as _FUNCTIONS
from tvmdml.directml.results import GRUOutputs as GRUOutputs
from tvmdml.directml.results import MaxPoolingOutputs as MaxPoolingOutputs
from tvmdml.directml.tensors import TensorPolicy as TensorPolicy
from tvmdml.system.names import no_attribute as _no_attribute

OutputOptions = GRUOutputOptions
del GRUOutputOptions

globals().update(_FUNCTIONS)
for _kind in (
    *(TensorDataType, TensorFlags, MatrixTransform, RecurrentNetworkDirection, ConvolutionMode, ConvolutionDirection),
    *(InterpolationMode, PaddingMode, ExecutionFlags, OperatorType),
):
    globals().update(_kind.__members__)  # members are names of the module, too

__all__ = [name for name, one in globals().items() if name != "annotations" and name[0] != "_" and not isinstance(one, _Module)]


if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _no_attribute(f"module {__name__!r}", name, __all__)


if __name__ == "__main__":
    import sys

    from tvmdml.system.program import run

    # The first versions of directml had this interface.
    sys.exit(run(dict.fromkeys(("pydirectml", "directml"), "tvmdml.pydirectml"), sys.argv[1:]))
