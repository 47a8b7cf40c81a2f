# Written by `python -m tvmdml._stub`.
# ruff: noqa: A001, A002 - names of DirectMLX
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.arrays.device_array import DeviceArray as DeviceArray
from tvmdml.compiler import CompiledOperator as CompiledOperator
from tvmdml.compiler import compile as compile
from tvmdml.doors.cast import cast as cast
from tvmdml.doors.diagonal_matrix import diagonal_matrix as diagonal_matrix
from tvmdml.doors.element_wise_pow import pow as pow
from tvmdml.doors.fill_value import fill_value_constant as fill_value_constant
from tvmdml.doors.fill_value import fill_value_sequence as fill_value_sequence
from tvmdml.doors.multihead_attention import MultiheadAttentionResult as MultiheadAttentionResult
from tvmdml.doors.multihead_attention import multihead_attention as multihead_attention
from tvmdml.doors.nonzero_coordinates import NonzeroCoordinatesResult as NonzeroCoordinatesResult
from tvmdml.doors.nonzero_coordinates import non_zero_coordinates as non_zero_coordinates
from tvmdml.doors.nonzero_coordinates import nonzero_coordinates as nonzero_coordinates
from tvmdml.doors.pooling import MaxPoolingResult as MaxPoolingResult
from tvmdml.doors.pooling import max_pooling as max_pooling
from tvmdml.doors.quantization import dequantize as dequantize
from tvmdml.doors.quantization import quantize as quantize
from tvmdml.doors.random_generator import RandomGeneratorResult as RandomGeneratorResult
from tvmdml.doors.random_generator import random_generator as random_generator
from tvmdml.doors.recurrent import GruResult as GruResult
from tvmdml.doors.recurrent import LstmResult as LstmResult
from tvmdml.doors.recurrent import LstmStates as LstmStates
from tvmdml.doors.recurrent import RnnResult as RnnResult
from tvmdml.doors.recurrent import gru as gru
from tvmdml.doors.recurrent import lstm as lstm
from tvmdml.doors.recurrent import rnn as rnn
from tvmdml.doors.resample import resample as resample
from tvmdml.doors.resample import resample_grad as resample_grad
from tvmdml.doors.roi_align import RoiAlignGradResult as RoiAlignGradResult
from tvmdml.doors.roi_align import roi_align_grad as roi_align_grad
from tvmdml.doors.top_k import TopKResult as TopKResult
from tvmdml.doors.top_k import top_k as top_k
from tvmdml.enums import AxisDirection as AxisDirection
from tvmdml.enums import ConvolutionDirection as ConvolutionDirection
from tvmdml.enums import ConvolutionMode as ConvolutionMode
from tvmdml.enums import DepthSpaceOrder as DepthSpaceOrder
from tvmdml.enums import FeatureLevel as FeatureLevel
from tvmdml.enums import InterpolationMode as InterpolationMode
from tvmdml.enums import IsInfinityMode as IsInfinityMode
from tvmdml.enums import MatrixTransform as MatrixTransform
from tvmdml.enums import MultiheadAttentionMaskType as MultiheadAttentionMaskType
from tvmdml.enums import PaddingMode as PaddingMode
from tvmdml.enums import QuantizationType as QuantizationType
from tvmdml.enums import RandomGeneratorType as RandomGeneratorType
from tvmdml.enums import RecurrentNetworkDirection as RecurrentNetworkDirection
from tvmdml.enums import ReduceFunction as ReduceFunction
from tvmdml.enums import RoundingMode as RoundingMode
from tvmdml.enums import TensorFlags as TensorFlags
from tvmdml.errors import CompileError as CompileError
from tvmdml.errors import DeviceError as DeviceError
from tvmdml.errors import IndexOutOfRange as IndexOutOfRange
from tvmdml.errors import InvalidArgument as InvalidArgument
from tvmdml.errors import ModelError as ModelError
from tvmdml.errors import PackError as PackError
from tvmdml.errors import TvmdmlError as TvmdmlError
from tvmdml.errors import Unsupported as Unsupported
from tvmdml.functions import AnyArray
from tvmdml.graph import CompiledGraph as CompiledGraph
from tvmdml.graph import Expression as Expression
from tvmdml.graph import Graph as Graph
from tvmdml.graph import load_graph as load_graph
from tvmdml.graph import save_graph as save_graph
from tvmdml.operators import Operator as Operator
from tvmdml.operators.activation import ActivationHardSigmoid as ActivationHardSigmoid
from tvmdml.operators.activation import ActivationHardSwish as ActivationHardSwish
from tvmdml.operators.activation import ActivationIdentity as ActivationIdentity
from tvmdml.operators.activation import ActivationLeakyRelu as ActivationLeakyRelu
from tvmdml.operators.activation import ActivationLinear as ActivationLinear
from tvmdml.operators.activation import ActivationParameterizedRelu as ActivationParameterizedRelu
from tvmdml.operators.activation import ActivationRelu as ActivationRelu
from tvmdml.operators.activation import ActivationShrink as ActivationShrink
from tvmdml.operators.activation import ActivationSoftsign as ActivationSoftsign
from tvmdml.operators.activation import ActivationThresholdedRelu as ActivationThresholdedRelu
from tvmdml.operators.activation_smooth import ActivationCelu as ActivationCelu
from tvmdml.operators.activation_smooth import ActivationElu as ActivationElu
from tvmdml.operators.activation_smooth import ActivationGelu as ActivationGelu
from tvmdml.operators.activation_smooth import ActivationParametricSoftplus as ActivationParametricSoftplus
from tvmdml.operators.activation_smooth import ActivationScaledElu as ActivationScaledElu
from tvmdml.operators.activation_smooth import ActivationScaledTanh as ActivationScaledTanh
from tvmdml.operators.activation_smooth import ActivationSigmoid as ActivationSigmoid
from tvmdml.operators.activation_smooth import ActivationSoftplus as ActivationSoftplus
from tvmdml.operators.activation_smooth import ActivationSwish as ActivationSwish
from tvmdml.operators.activation_smooth import ActivationTanh as ActivationTanh
from tvmdml.operators.activation_softmax import ActivationHardmax as ActivationHardmax
from tvmdml.operators.activation_softmax import ActivationHardmax1 as ActivationHardmax1
from tvmdml.operators.activation_softmax import ActivationLogSoftmax as ActivationLogSoftmax
from tvmdml.operators.activation_softmax import ActivationLogSoftmax1 as ActivationLogSoftmax1
from tvmdml.operators.activation_softmax import ActivationSoftmax as ActivationSoftmax
from tvmdml.operators.activation_softmax import ActivationSoftmax1 as ActivationSoftmax1
from tvmdml.operators.adam_optimizer import AdamOptimizer as AdamOptimizer
from tvmdml.operators.batch_normalization import BatchNormalization as BatchNormalization
from tvmdml.operators.batch_normalization import BatchNormalizationGrad as BatchNormalizationGrad
from tvmdml.operators.batch_normalization import BatchNormalizationTraining as BatchNormalizationTraining
from tvmdml.operators.batch_normalization import BatchNormalizationTrainingGrad as BatchNormalizationTrainingGrad
from tvmdml.operators.cast import Cast as Cast
from tvmdml.operators.convolution import Convolution as Convolution
from tvmdml.operators.convolution import ConvolutionInteger as ConvolutionInteger
from tvmdml.operators.convolution import QuantizedLinearConvolution as QuantizedLinearConvolution
from tvmdml.operators.cumulative import CumulativeProduct as CumulativeProduct
from tvmdml.operators.cumulative import CumulativeSummation as CumulativeSummation
from tvmdml.operators.depth_space import DepthToSpace as DepthToSpace
from tvmdml.operators.depth_space import DepthToSpace1 as DepthToSpace1
from tvmdml.operators.depth_space import SpaceToDepth as SpaceToDepth
from tvmdml.operators.depth_space import SpaceToDepth1 as SpaceToDepth1
from tvmdml.operators.diagonal_matrix import DiagonalMatrix as DiagonalMatrix
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1 as DiagonalMatrix1
from tvmdml.operators.dynamic_quantize_linear import DynamicQuantizeLinear as DynamicQuantizeLinear
from tvmdml.operators.element_wise_binary import ElementWiseAdd as ElementWiseAdd
from tvmdml.operators.element_wise_binary import ElementWiseAdd1 as ElementWiseAdd1
from tvmdml.operators.element_wise_binary import ElementWiseDifferenceSquare as ElementWiseDifferenceSquare
from tvmdml.operators.element_wise_binary import ElementWiseDivide as ElementWiseDivide
from tvmdml.operators.element_wise_binary import ElementWiseIf as ElementWiseIf
from tvmdml.operators.element_wise_binary import ElementWiseMax as ElementWiseMax
from tvmdml.operators.element_wise_binary import ElementWiseMean as ElementWiseMean
from tvmdml.operators.element_wise_binary import ElementWiseMin as ElementWiseMin
from tvmdml.operators.element_wise_binary import ElementWiseModulusFloor as ElementWiseModulusFloor
from tvmdml.operators.element_wise_binary import ElementWiseModulusTruncate as ElementWiseModulusTruncate
from tvmdml.operators.element_wise_binary import ElementWiseMultiply as ElementWiseMultiply
from tvmdml.operators.element_wise_binary import ElementWiseSubtract as ElementWiseSubtract
from tvmdml.operators.element_wise_bit import ElementWiseBitAnd as ElementWiseBitAnd
from tvmdml.operators.element_wise_bit import ElementWiseBitCount as ElementWiseBitCount
from tvmdml.operators.element_wise_bit import ElementWiseBitNot as ElementWiseBitNot
from tvmdml.operators.element_wise_bit import ElementWiseBitOr as ElementWiseBitOr
from tvmdml.operators.element_wise_bit import ElementWiseBitShiftLeft as ElementWiseBitShiftLeft
from tvmdml.operators.element_wise_bit import ElementWiseBitShiftRight as ElementWiseBitShiftRight
from tvmdml.operators.element_wise_bit import ElementWiseBitXor as ElementWiseBitXor
from tvmdml.operators.element_wise_function import ElementWiseAcos as ElementWiseAcos
from tvmdml.operators.element_wise_function import ElementWiseAcosh as ElementWiseAcosh
from tvmdml.operators.element_wise_function import ElementWiseAsin as ElementWiseAsin
from tvmdml.operators.element_wise_function import ElementWiseAsinh as ElementWiseAsinh
from tvmdml.operators.element_wise_function import ElementWiseAtan as ElementWiseAtan
from tvmdml.operators.element_wise_function import ElementWiseAtanh as ElementWiseAtanh
from tvmdml.operators.element_wise_function import ElementWiseAtanYx as ElementWiseAtanYx
from tvmdml.operators.element_wise_function import ElementWiseCos as ElementWiseCos
from tvmdml.operators.element_wise_function import ElementWiseCosh as ElementWiseCosh
from tvmdml.operators.element_wise_function import ElementWiseErf as ElementWiseErf
from tvmdml.operators.element_wise_function import ElementWiseExp as ElementWiseExp
from tvmdml.operators.element_wise_function import ElementWiseLog as ElementWiseLog
from tvmdml.operators.element_wise_function import ElementWiseSin as ElementWiseSin
from tvmdml.operators.element_wise_function import ElementWiseSinh as ElementWiseSinh
from tvmdml.operators.element_wise_function import ElementWiseTan as ElementWiseTan
from tvmdml.operators.element_wise_function import ElementWiseTanh as ElementWiseTanh
from tvmdml.operators.element_wise_logical import ElementWiseIsInfinity as ElementWiseIsInfinity
from tvmdml.operators.element_wise_logical import ElementWiseIsNan as ElementWiseIsNan
from tvmdml.operators.element_wise_logical import ElementWiseLogicalAnd as ElementWiseLogicalAnd
from tvmdml.operators.element_wise_logical import ElementWiseLogicalEquals as ElementWiseLogicalEquals
from tvmdml.operators.element_wise_logical import ElementWiseLogicalGreaterThan as ElementWiseLogicalGreaterThan
from tvmdml.operators.element_wise_logical import ElementWiseLogicalGreaterThanOrEqual as ElementWiseLogicalGreaterThanOrEqual
from tvmdml.operators.element_wise_logical import ElementWiseLogicalLessThan as ElementWiseLogicalLessThan
from tvmdml.operators.element_wise_logical import ElementWiseLogicalLessThanOrEqual as ElementWiseLogicalLessThanOrEqual
from tvmdml.operators.element_wise_logical import ElementWiseLogicalNot as ElementWiseLogicalNot
from tvmdml.operators.element_wise_logical import ElementWiseLogicalOr as ElementWiseLogicalOr
from tvmdml.operators.element_wise_logical import ElementWiseLogicalXor as ElementWiseLogicalXor
from tvmdml.operators.element_wise_pow import ElementWiseConstantPow as ElementWiseConstantPow
from tvmdml.operators.element_wise_pow import ElementWisePow as ElementWisePow
from tvmdml.operators.element_wise_round import ElementWiseRound as ElementWiseRound
from tvmdml.operators.element_wise_unary import ElementWiseAbs as ElementWiseAbs
from tvmdml.operators.element_wise_unary import ElementWiseCeil as ElementWiseCeil
from tvmdml.operators.element_wise_unary import ElementWiseClip as ElementWiseClip
from tvmdml.operators.element_wise_unary import ElementWiseClip1 as ElementWiseClip1
from tvmdml.operators.element_wise_unary import ElementWiseFloor as ElementWiseFloor
from tvmdml.operators.element_wise_unary import ElementWiseIdentity as ElementWiseIdentity
from tvmdml.operators.element_wise_unary import ElementWiseNegate as ElementWiseNegate
from tvmdml.operators.element_wise_unary import ElementWiseRecip as ElementWiseRecip
from tvmdml.operators.element_wise_unary import ElementWiseSign as ElementWiseSign
from tvmdml.operators.element_wise_unary import ElementWiseSqrt as ElementWiseSqrt
from tvmdml.operators.element_wise_unary import ElementWiseThreshold as ElementWiseThreshold
from tvmdml.operators.fill_value import FillValueConstant as FillValueConstant
from tvmdml.operators.fill_value import FillValueSequence as FillValueSequence
from tvmdml.operators.fold import Fold as Fold
from tvmdml.operators.fold import Unfold as Unfold
from tvmdml.operators.gather import Gather as Gather
from tvmdml.operators.gather import GatherElements as GatherElements
from tvmdml.operators.gather import GatherNd as GatherNd
from tvmdml.operators.gather import GatherNd1 as GatherNd1
from tvmdml.operators.gemm import Gemm as Gemm
from tvmdml.operators.gradient import ActivationReluGrad as ActivationReluGrad
from tvmdml.operators.gradient import ElementWiseClipGrad as ElementWiseClipGrad
from tvmdml.operators.gradient import ElementWiseClipGrad1 as ElementWiseClipGrad1
from tvmdml.operators.join import Join as Join
from tvmdml.operators.join import Split as Split
from tvmdml.operators.local_response import LocalResponseNormalization as LocalResponseNormalization
from tvmdml.operators.local_response import LocalResponseNormalizationGrad as LocalResponseNormalizationGrad
from tvmdml.operators.matrix_multiply_integer import MatrixMultiplyInteger as MatrixMultiplyInteger
from tvmdml.operators.matrix_multiply_integer import MatrixMultiplyIntegerToFloat as MatrixMultiplyIntegerToFloat
from tvmdml.operators.matrix_multiply_integer import QuantizedLinearMatrixMultiply as QuantizedLinearMatrixMultiply
from tvmdml.operators.max_unpooling import MaxUnpooling as MaxUnpooling
from tvmdml.operators.multihead_attention import MultiheadAttention as MultiheadAttention
from tvmdml.operators.multihead_attention import MultiheadAttention1 as MultiheadAttention1
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates as NonzeroCoordinates
from tvmdml.operators.normalization import LpNormalization as LpNormalization
from tvmdml.operators.normalization import MeanVarianceNormalization as MeanVarianceNormalization
from tvmdml.operators.normalization import MeanVarianceNormalization1 as MeanVarianceNormalization1
from tvmdml.operators.normalization import MeanVarianceNormalization2 as MeanVarianceNormalization2
from tvmdml.operators.one_hot import OneHot as OneHot
from tvmdml.operators.padding import Padding as Padding
from tvmdml.operators.padding import Padding1 as Padding1
from tvmdml.operators.pooling import AveragePooling as AveragePooling
from tvmdml.operators.pooling import AveragePooling1 as AveragePooling1
from tvmdml.operators.pooling import LpPooling as LpPooling
from tvmdml.operators.pooling import LpPooling1 as LpPooling1
from tvmdml.operators.pooling import MaxPooling as MaxPooling
from tvmdml.operators.pooling import MaxPooling1 as MaxPooling1
from tvmdml.operators.pooling import MaxPooling2 as MaxPooling2
from tvmdml.operators.pooling_grad import AveragePoolingGrad as AveragePoolingGrad
from tvmdml.operators.pooling_grad import MaxPoolingGrad as MaxPoolingGrad
from tvmdml.operators.pooling_quantized import QuantizedLinearAveragePooling as QuantizedLinearAveragePooling
from tvmdml.operators.quantization import Dequantize as Dequantize
from tvmdml.operators.quantization import ElementWiseDequantizeLinear as ElementWiseDequantizeLinear
from tvmdml.operators.quantization import ElementWiseQuantizedLinearAdd as ElementWiseQuantizedLinearAdd
from tvmdml.operators.quantization import ElementWiseQuantizeLinear as ElementWiseQuantizeLinear
from tvmdml.operators.quantization import Quantize as Quantize
from tvmdml.operators.random_generator import RandomGenerator as RandomGenerator
from tvmdml.operators.recurrent import Gru as Gru
from tvmdml.operators.recurrent import Lstm as Lstm
from tvmdml.operators.recurrent import Rnn as Rnn
from tvmdml.operators.reduce import Argmax as Argmax
from tvmdml.operators.reduce import Argmin as Argmin
from tvmdml.operators.reduce import Reduce as Reduce
from tvmdml.operators.resample import Resample as Resample
from tvmdml.operators.resample import Resample1 as Resample1
from tvmdml.operators.resample import Resample2 as Resample2
from tvmdml.operators.resample import Resample3 as Resample3
from tvmdml.operators.resample import ResampleGrad as ResampleGrad
from tvmdml.operators.resample import ResampleGrad1 as ResampleGrad1
from tvmdml.operators.roi_align import RoiAlign as RoiAlign
from tvmdml.operators.roi_align import RoiAlign1 as RoiAlign1
from tvmdml.operators.roi_align import RoiAlignGrad as RoiAlignGrad
from tvmdml.operators.roi_pooling import RoiPooling as RoiPooling
from tvmdml.operators.scatter import Scatter as Scatter
from tvmdml.operators.scatter import ScatterNd as ScatterNd
from tvmdml.operators.slice import Slice as Slice
from tvmdml.operators.slice import Slice1 as Slice1
from tvmdml.operators.slice import SliceGrad as SliceGrad
from tvmdml.operators.tile import ReverseSubsequences as ReverseSubsequences
from tvmdml.operators.tile import Tile as Tile
from tvmdml.operators.top_k import TopK as TopK
from tvmdml.operators.top_k import TopK1 as TopK1
from tvmdml.operators.upsample_2d import Upsample2d as Upsample2d
from tvmdml.operators.value_scale_2d import ValueScale2d as ValueScale2d
from tvmdml.packs import load_pack as load_pack
from tvmdml.placing import asarray as asarray
from tvmdml.placing import empty as empty
from tvmdml.structs import ScaleBias as ScaleBias
from tvmdml.structs import Size2D as Size2D
from tvmdml.tensors import TensorDataType as TensorDataType
from tvmdml.tensors import TensorDesc as TensorDesc
from tvmdml.viewing import broadcast as broadcast
from tvmdml.viewing import reinterpret as reinterpret

class AdamOptimizerResult(NamedTuple):
    parameters: AnyArray
    first_moment: AnyArray
    second_moment: AnyArray

class BatchNormalizationTrainingResult(NamedTuple):
    output: AnyArray
    mean: AnyArray
    variance: AnyArray

class BatchNormalizationGradResult(NamedTuple):
    gradient: AnyArray
    scale_gradient: AnyArray
    bias_gradient: AnyArray

class BatchNormalizationTrainingGradResult(NamedTuple):
    gradient: AnyArray
    scale_gradient: AnyArray
    bias_gradient: AnyArray

class DynamicQuantizeLinearResult(NamedTuple):
    output: AnyArray
    scale: AnyArray
    zero_point: AnyArray

def activation_identity(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_relu(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_leaky_relu(
    input: AnyArray,
    *,
    alpha: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_parameterized_relu(
    input: AnyArray,
    slope: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_thresholded_relu(
    input: AnyArray,
    *,
    alpha: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_shrink(
    input: AnyArray,
    *,
    bias: float = ...,
    threshold: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_linear(
    input: AnyArray,
    *,
    alpha: float,
    beta: float,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_hard_sigmoid(
    input: AnyArray,
    *,
    alpha: float = ...,
    beta: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_hard_swish(
    input: AnyArray,
    *,
    alpha: float = ...,
    beta: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_softsign(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_sigmoid(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_tanh(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_scaled_tanh(
    input: AnyArray,
    *,
    alpha: float = ...,
    beta: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_elu(
    input: AnyArray,
    *,
    alpha: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_scaled_elu(
    input: AnyArray,
    *,
    alpha: float = ...,
    gamma: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_celu(
    input: AnyArray,
    *,
    alpha: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_softplus(
    input: AnyArray,
    *,
    steepness: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_parametric_softplus(
    input: AnyArray,
    *,
    alpha: float,
    beta: float,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_gelu(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_swish(
    input: AnyArray,
    *,
    sigmoid_input_scale: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_softmax(
    input: AnyArray,
    *,
    axes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_log_softmax(
    input: AnyArray,
    *,
    axes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_hardmax(
    input: AnyArray,
    *,
    axes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def adam_optimizer(
    input_parameters: AnyArray,
    input_first_moment: AnyArray,
    input_second_moment: AnyArray,
    gradient: AnyArray,
    training_step: AnyArray,
    *,
    learning_rate: float,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> AdamOptimizerResult: ...
def batch_normalization(
    input: AnyArray,
    mean: AnyArray,
    variance: AnyArray,
    scale: AnyArray,
    bias: AnyArray,
    *,
    spatial: bool = ...,
    epsilon: float = ...,
    fused_activation: Operator | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def batch_normalization_training(
    input: AnyArray,
    scale: AnyArray,
    bias: AnyArray,
    fused_add: AnyArray | None = ...,
    *,
    epsilon: float = ...,
    fused_activation: Operator | None = ...,
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> BatchNormalizationTrainingResult: ...
def batch_normalization_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    mean: AnyArray,
    variance: AnyArray,
    scale: AnyArray,
    *,
    epsilon: float | None = ...,
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> BatchNormalizationGradResult: ...
def batch_normalization_training_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    mean: AnyArray,
    variance: AnyArray,
    scale: AnyArray,
    *,
    epsilon: float = ...,
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> BatchNormalizationTrainingGradResult: ...
def convolution(
    input: AnyArray,
    filter: AnyArray,
    bias: AnyArray | None = ...,
    *,
    mode: ConvolutionMode | str = ...,
    direction: ConvolutionDirection | str = ...,
    strides: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    output_padding: Sequence[int] | None = ...,
    group_count: int = ...,
    fused_activation: Operator | None = ...,
    output_sizes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def convolution_integer(
    input: AnyArray,
    filter: AnyArray,
    input_zero_point: AnyArray | None = ...,
    filter_zero_point: AnyArray | None = ...,
    *,
    strides: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    group_count: int = ...,
    output_sizes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def quantized_linear_convolution(
    input: AnyArray,
    input_scale: AnyArray,
    filter: AnyArray,
    filter_scale: AnyArray,
    output_scale: AnyArray,
    input_zero_point: AnyArray | None = ...,
    filter_zero_point: AnyArray | None = ...,
    bias: AnyArray | None = ...,
    output_zero_point: AnyArray | None = ...,
    *,
    strides: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    group_count: int = ...,
    output_sizes: Sequence[int] | None = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def cumulative_summation(
    input: AnyArray,
    *,
    axis: int = ...,
    axis_direction: AxisDirection | str = ...,
    has_exclusive_sum: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def cumulative_product(
    input: AnyArray,
    *,
    axis: int = ...,
    axis_direction: AxisDirection | str = ...,
    has_exclusive_product: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def space_to_depth(
    input: AnyArray,
    *,
    block_size: int,
    order: DepthSpaceOrder | str = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def depth_to_space(
    input: AnyArray,
    *,
    block_size: int,
    order: DepthSpaceOrder | str = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def dynamic_quantize_linear(
    input: AnyArray,
    *,
    output_dtype: Any = ...,
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> DynamicQuantizeLinearResult: ...
def add(
    a: AnyArray,
    b: AnyArray,
    *,
    fused_activation: Operator | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def subtract(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def multiply(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def divide(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def mean(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def difference_square(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def max(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def min(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def modulus_truncate(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def modulus_floor(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def where(
    condition: AnyArray,
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_not(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_and(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_or(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_xor(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_count(
    input: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_shift_left(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def bit_shift_right(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def acos(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def acosh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def asin(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def asinh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def atan(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def atanh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def cosh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def erf(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def exp(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def log(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def sinh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def tanh(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def cos(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def sin(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def tan(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def atan_yx(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def is_nan(
    input: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def is_infinity(
    input: AnyArray,
    *,
    infinity_mode: IsInfinityMode | str = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def logical_not(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def logical_and(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def logical_or(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def logical_xor(
    a: AnyArray,
    b: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def equals(
    a: AnyArray,
    b: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def greater_than(
    a: AnyArray,
    b: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def less_than(
    a: AnyArray,
    b: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def greater_than_or_equal(
    a: AnyArray,
    b: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def less_than_or_equal(
    a: AnyArray,
    b: AnyArray,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def round(
    input: AnyArray,
    *,
    rounding_mode: RoundingMode | str = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def identity(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def abs(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def negate(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def sign(
    input: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def ceil(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def floor(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def sqrt(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def recip(
    input: AnyArray,
    *,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def clip(
    input: AnyArray,
    *,
    min: float,
    max: float,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def threshold(
    input: AnyArray,
    *,
    min: float,
    scale_bias: Sequence[float] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def unfold(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def fold(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    output_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def gather(
    input: AnyArray,
    indices: AnyArray,
    *,
    axis: int,
    index_dimensions: int | None = ...,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def gather_elements(
    input: AnyArray,
    indices: AnyArray,
    *,
    axis: int,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def gather_nd(
    input: AnyArray,
    indices: AnyArray,
    *,
    input_dimension_count: int | None = ...,
    indices_dimension_count: int | None = ...,
    batch_dimension_count: int = ...,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def gemm(
    a: AnyArray,
    b: AnyArray,
    c: AnyArray | None = ...,
    *,
    trans_a: MatrixTransform | str = ...,
    trans_b: MatrixTransform | str = ...,
    alpha: float = ...,
    beta: float = ...,
    fused_activation: Operator | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def clip_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    *,
    min: float,
    max: float,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def activation_relu_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def join(
    inputs: Sequence[AnyArray],
    *,
    axis: int,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def split(
    input: AnyArray,
    *,
    axis: int,
    output_axis_sizes: Sequence[int],
    out: Sequence[AnyArray] | None = ...,
    device: str | None = ...,
) -> tuple[AnyArray, ...]: ...
def local_response_normalization(
    input: AnyArray,
    *,
    cross_channel: bool,
    local_size: int,
    alpha: float = ...,
    beta: float = ...,
    bias: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def local_response_normalization_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    *,
    cross_channel: bool,
    local_size: int,
    alpha: float = ...,
    beta: float = ...,
    bias: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def matrix_multiply_integer(
    a: AnyArray,
    b: AnyArray,
    a_zero_point: AnyArray | None = ...,
    b_zero_point: AnyArray | None = ...,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def matrix_multiply_integer_to_float(
    a: AnyArray,
    a_scale: AnyArray,
    b: AnyArray,
    b_scale: AnyArray,
    a_zero_point: AnyArray | None = ...,
    b_zero_point: AnyArray | None = ...,
    bias: AnyArray | None = ...,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def quantized_linear_matrix_multiply(
    a: AnyArray,
    a_scale: AnyArray,
    b: AnyArray,
    b_scale: AnyArray,
    output_scale: AnyArray,
    a_zero_point: AnyArray | None = ...,
    b_zero_point: AnyArray | None = ...,
    output_zero_point: AnyArray | None = ...,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def max_unpooling(
    input: AnyArray,
    indices: AnyArray,
    *,
    output_sizes: Sequence[int],
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def mean_variance_normalization(
    input: AnyArray,
    scale: AnyArray | None = ...,
    bias: AnyArray | None = ...,
    *,
    axes: Sequence[int],
    normalize_variance: bool = ...,
    epsilon: float = ...,
    fused_activation: Operator | None = ...,
    normalize_mean: bool | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def lp_normalization(
    input: AnyArray,
    *,
    axis: int = ...,
    epsilon: float = ...,
    p: int = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def one_hot(
    indices: AnyArray,
    values: AnyArray,
    *,
    axis: int,
    output_length: int,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def padding(
    input: AnyArray,
    *,
    start_padding: Sequence[int],
    end_padding: Sequence[int],
    padding_mode: PaddingMode | str = ...,
    padding_value: int | float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def average_pooling(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    include_padding: bool = ...,
    output_sizes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def lp_pooling(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    p: int = ...,
    output_sizes: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def average_pooling_grad(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    output_gradient_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    include_padding: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def max_pooling_grad(
    input: AnyArray,
    input_gradient: AnyArray,
    *,
    window_size: Sequence[int],
    strides: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def quantized_linear_average_pooling(
    input: AnyArray,
    input_scale: AnyArray,
    output_scale: AnyArray,
    input_zero_point: AnyArray | None = ...,
    output_zero_point: AnyArray | None = ...,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = ...,
    start_padding: Sequence[int] | None = ...,
    end_padding: Sequence[int] | None = ...,
    dilations: Sequence[int] | None = ...,
    include_padding: bool = ...,
    output_sizes: Sequence[int] | None = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def quantize_linear(
    input: AnyArray,
    scale: AnyArray,
    zero_point: AnyArray | None = ...,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def dequantize_linear(
    input: AnyArray,
    scale: AnyArray,
    zero_point: AnyArray | None = ...,
    *,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def quantized_linear_add(
    a: AnyArray,
    a_scale: AnyArray,
    b: AnyArray,
    b_scale: AnyArray,
    output_scale: AnyArray,
    a_zero_point: AnyArray | None = ...,
    b_zero_point: AnyArray | None = ...,
    output_zero_point: AnyArray | None = ...,
    *,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def argmax(
    input: AnyArray,
    *,
    axes: Sequence[int] | None = ...,
    axis_direction: AxisDirection | str = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def argmin(
    input: AnyArray,
    *,
    axes: Sequence[int] | None = ...,
    axis_direction: AxisDirection | str = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def reduce(
    input: AnyArray,
    *,
    function: ReduceFunction | str,
    axes: Sequence[int] | None = ...,
    output_dtype: Any = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def roi_align(
    input: AnyArray,
    roi: AnyArray,
    batch_indices: AnyArray,
    *,
    reduction_function: ReduceFunction | str,
    interpolation_mode: InterpolationMode | str,
    spatial_scale_x: float,
    spatial_scale_y: float,
    input_pixel_offset: float,
    output_pixel_offset: float,
    out_of_bounds_input_value: float,
    minimum_samples_per_output: int,
    maximum_samples_per_output: int,
    align_regions_to_corners: bool,
    output_height: int,
    output_width: int,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def roi_pooling(
    input: AnyArray,
    roi: AnyArray,
    *,
    pooled_size: Sequence[int],
    spatial_scale: float = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def scatter_elements(
    input: AnyArray,
    indices: AnyArray,
    updates: AnyArray,
    *,
    axis: int,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def scatter(
    input: AnyArray,
    indices: AnyArray,
    updates: AnyArray,
    *,
    axis: int,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def scatter_nd(
    input: AnyArray,
    indices: AnyArray,
    updates: AnyArray,
    *,
    input_dimension_count: int | None = ...,
    indices_dimension_count: int | None = ...,
    check_indices: bool = ...,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def slice(
    input: AnyArray,
    *,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def slice_grad(
    input: AnyArray,
    *,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    output_gradient_sizes: Sequence[int],
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def tile(
    input: AnyArray,
    *,
    repeats: Sequence[int],
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def reverse_subsequences(
    input: AnyArray,
    sequence_lengths: AnyArray,
    *,
    axis: int,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def upsample_2d(
    input: AnyArray,
    *,
    scale_size: Sequence[int],
    interpolation_mode: InterpolationMode | str,
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...
def value_scale_2d(
    input: AnyArray,
    *,
    scale: float,
    bias: Sequence[float],
    out: AnyArray | None = ...,
    device: str | None = ...,
) -> AnyArray: ...

__version__: str
