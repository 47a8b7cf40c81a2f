"""Functions of floats as TensorIR expressions, for scalars and vectors alike: the same bits on every device.

They are made of steps that every target does exactly: sums, products, quotients and square roots, each rounded by itself; and
integers, bits and choices. float32 and float64 have the same code, with polynomials of different lengths. README.md says more.
"""

from __future__ import annotations

from tvmdml.mathematics.activation import sigmoid as sigmoid
from tvmdml.mathematics.activation import softplus as softplus
from tvmdml.mathematics.activation import swish as swish
from tvmdml.mathematics.error_function import erf as erf
from tvmdml.mathematics.exponential import cosh as cosh
from tvmdml.mathematics.exponential import decay as decay
from tvmdml.mathematics.exponential import exp as exp
from tvmdml.mathematics.exponential import expm1 as expm1
from tvmdml.mathematics.exponential import sinh as sinh
from tvmdml.mathematics.exponential import tanh as tanh
from tvmdml.mathematics.inverse import acos as acos
from tvmdml.mathematics.inverse import asin as asin
from tvmdml.mathematics.inverse import atan as atan
from tvmdml.mathematics.inverse import atan2 as atan2
from tvmdml.mathematics.logarithm import acosh as acosh
from tvmdml.mathematics.logarithm import asinh as asinh
from tvmdml.mathematics.logarithm import atanh as atanh
from tvmdml.mathematics.logarithm import log as log
from tvmdml.mathematics.logarithm import log1p as log1p
from tvmdml.mathematics.powers import power as power
from tvmdml.mathematics.trigonometric import cos as cos
from tvmdml.mathematics.trigonometric import sin as sin
from tvmdml.mathematics.trigonometric import tan as tan
