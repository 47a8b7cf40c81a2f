# Written by `python -m tvmdml._stub`.

from tvmdml.compiler import CompiledOperator as CompiledOperator
from tvmdml.compiler import compile as compile
from tvmdml.device_arrays import DeviceArray as DeviceArray
from tvmdml.device_arrays import asarray as asarray
from tvmdml.device_arrays import empty as empty
from tvmdml.enums import AxisDirection as AxisDirection
from tvmdml.enums import FeatureLevel as FeatureLevel
from tvmdml.enums import RoundingMode as RoundingMode
from tvmdml.enums import TensorFlags as TensorFlags
from tvmdml.errors import CompileError as CompileError
from tvmdml.errors import DeviceError as DeviceError
from tvmdml.errors import InvalidArgument as InvalidArgument
from tvmdml.errors import ModelError as ModelError
from tvmdml.errors import PackError as PackError
from tvmdml.errors import TvmdmlError as TvmdmlError
from tvmdml.errors import Unsupported as Unsupported
from tvmdml.operators import Operator as Operator
from tvmdml.operators.diagonal_matrix import DiagonalMatrix as DiagonalMatrix
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1 as DiagonalMatrix1
from tvmdml.operators.diagonal_matrix import diagonal_matrix as diagonal_matrix
from tvmdml.operators.element_wise_round import ElementWiseRound as ElementWiseRound
from tvmdml.operators.element_wise_round import round as round
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates as NonzeroCoordinates
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinatesResult as NonzeroCoordinatesResult
from tvmdml.operators.nonzero_coordinates import non_zero_coordinates as non_zero_coordinates
from tvmdml.operators.nonzero_coordinates import nonzero_coordinates as nonzero_coordinates
from tvmdml.operators.top_k import TopK as TopK
from tvmdml.operators.top_k import TopK1 as TopK1
from tvmdml.operators.top_k import TopKResult as TopKResult
from tvmdml.operators.top_k import top_k as top_k
from tvmdml.packs import load_pack as load_pack
from tvmdml.tensors import TensorDataType as TensorDataType
from tvmdml.tensors import TensorDesc as TensorDesc

__version__: str
