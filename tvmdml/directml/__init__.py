"""The interface of the Python package ``directml``: programs written for it run here, on Linux.

``import tvmdml.directml as dml`` in place of ``import directml as dml`` is all that changes; ``python -m tvmdml.directml
program.py`` runs a program as it is. README.md explains.
"""

from __future__ import annotations

import typing as _typing
from types import ModuleType as _Module

from tvmdml import __version__ as __version__
from tvmdml.directml.activations import FusedActivation as FusedActivation
from tvmdml.directml.compiled import CompiledOperator as CompiledOperator
from tvmdml.directml.devices import Buffer as Buffer
from tvmdml.directml.devices import Device as Device
from tvmdml.directml.enums import AxisDirection as AxisDirection
from tvmdml.directml.enums import ConvolutionDirection as ConvolutionDirection
from tvmdml.directml.enums import ConvolutionMode as ConvolutionMode
from tvmdml.directml.enums import DepthSpaceOrder as DepthSpaceOrder
from tvmdml.directml.enums import ExecutionFlags as ExecutionFlags
from tvmdml.directml.enums import GRUOutputOptions as GRUOutputOptions
from tvmdml.directml.enums import InterpolationMode as InterpolationMode
from tvmdml.directml.enums import IsInfinityMode as IsInfinityMode
from tvmdml.directml.enums import MatrixTransform as MatrixTransform
from tvmdml.directml.enums import OperatorType as OperatorType
from tvmdml.directml.enums import PaddingMode as PaddingMode
from tvmdml.directml.enums import QuantizationType as QuantizationType
from tvmdml.directml.enums import RandomGeneratorType as RandomGeneratorType
from tvmdml.directml.enums import RecurrentNetworkDirection as RecurrentNetworkDirection
from tvmdml.directml.enums import ReduceFunction as ReduceFunction
from tvmdml.directml.enums import RoundingMode as RoundingMode
from tvmdml.directml.enums import TensorDataType as TensorDataType
from tvmdml.directml.enums import TensorFlags as TensorFlags
from tvmdml.directml.expressions import Expression as Expression
from tvmdml.directml.functions import FUNCTIONS as _FUNCTIONS
from tvmdml.directml.graphs import Graph as Graph
from tvmdml.directml.results import BatchNormalizationGradOutputs as BatchNormalizationGradOutputs
from tvmdml.directml.results import BatchNormalizationTrainingOutputs as BatchNormalizationTrainingOutputs
from tvmdml.directml.results import GRUOutputs as GRUOutputs
from tvmdml.directml.results import MaxPoolingOutputs as MaxPoolingOutputs
from tvmdml.directml.results import NonZeroCoordinatesOutputs as NonZeroCoordinatesOutputs
from tvmdml.directml.results import RandomGeneratorOutputs as RandomGeneratorOutputs
from tvmdml.directml.results import RoiAlignGradOutputs as RoiAlignGradOutputs
from tvmdml.directml.results import TopKOutputs as TopKOutputs
from tvmdml.directml.tensors import TensorDesc as TensorDesc
from tvmdml.directml.tensors import TensorPolicy as TensorPolicy
from tvmdml.system.names import no_attribute as _no_attribute

globals().update(_FUNCTIONS)

__all__ = [name for name, one in globals().items() if name != "annotations" and name[0] != "_" and not isinstance(one, _Module)]


if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _no_attribute(f"module {__name__!r}", name, __all__)
