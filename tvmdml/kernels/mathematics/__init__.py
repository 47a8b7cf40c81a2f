"""Functions of floats as TensorIR expressions, for scalars and vectors alike: the same bits on every device.

They are made of steps that every target does exactly: sums, products, quotients and square roots, each rounded by itself; and
integers, bits and choices. float32 and float64 have the same code, with polynomials of different lengths. README.md says more.
"""

from __future__ import annotations

from tvmdml.kernels.mathematics.activation import sigmoid as sigmoid
from tvmdml.kernels.mathematics.activation import softplus as softplus
from tvmdml.kernels.mathematics.activation import swish as swish
from tvmdml.kernels.mathematics.error_function import erf as erf
from tvmdml.kernels.mathematics.exponential import cosh as cosh
from tvmdml.kernels.mathematics.exponential import decay as decay
from tvmdml.kernels.mathematics.exponential import exp as exp
from tvmdml.kernels.mathematics.exponential import expm1 as expm1
from tvmdml.kernels.mathematics.exponential import sinh as sinh
from tvmdml.kernels.mathematics.exponential import tanh as tanh
from tvmdml.kernels.mathematics.inverse import acos as acos
from tvmdml.kernels.mathematics.inverse import asin as asin
from tvmdml.kernels.mathematics.inverse import atan as atan
from tvmdml.kernels.mathematics.inverse import atan2 as atan2
from tvmdml.kernels.mathematics.logarithm import acosh as acosh
from tvmdml.kernels.mathematics.logarithm import asinh as asinh
from tvmdml.kernels.mathematics.logarithm import atanh as atanh
from tvmdml.kernels.mathematics.logarithm import log as log
from tvmdml.kernels.mathematics.logarithm import log1p as log1p
from tvmdml.kernels.mathematics.powers import power as power
from tvmdml.kernels.mathematics.trigonometric import cos as cos
from tvmdml.kernels.mathematics.trigonometric import sin as sin
from tvmdml.kernels.mathematics.trigonometric import tan as tan
