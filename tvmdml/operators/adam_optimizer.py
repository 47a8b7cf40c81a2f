"""DML_OPERATOR_ADAM_OPTIMIZER: one step of training with Adam."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._accuracy import Expected, within_steps
from tvmdml.operators._contract import Float, Input, NumpyArray, Output, defaults
from tvmdml.operators._pointwise import Pointwise, precise
from tvmdml.operators._support import support

_INPUTS = ("input_parameters_tensor", "input_first_moment_tensor", "input_second_moment_tensor", "gradient_tensor")
_OUTPUTS = ("output_parameters_tensor", "output_first_moment_tensor", "output_second_moment_tensor")


class AdamOptimizer(Pointwise):
    """One step of training (``DML_ADAM_OPTIMIZER_OPERATOR_DESC``).

    The moments become ``m = beta1 * m + (1 - beta1) * gradient`` and ``v = beta2 * v + (1 - beta2) * gradient * gradient``, and the
    parameters ``x - learning_rate * alpha * m / (sqrt(v) + epsilon)``. ``alpha`` is ``sqrt(1 - beta2 ** t) / (1 - beta1 ** t)``,
    where ``t`` is the training step; for 0 it is 1.

    Args:
        training_step: one element: the number of this step, from 1 on.
        learning_rate: how far a step goes.
        beta1: how much of the first moment is kept.
        beta2: how much of the second moment is kept.
        epsilon: is added to the divisor.
    """

    DEFAULTS = defaults(beta1=0.9, beta2=0.999, epsilon=1e-8)
    SUPPORT = support("3.0 F r4 · 4.0 r8 · ext +D", training_step_tensor="3.0 u r4 · 4.0 r8")
    SINGLE = ("training_step_tensor",)
    SHARES = tuple((given, made) for given in _INPUTS for made in _OUTPUTS)
    STEPS = 8
    """Those of ``alpha``."""

    input_parameters_tensor: Input
    input_first_moment_tensor: Input
    input_second_moment_tensor: Input
    gradient_tensor: Input
    training_step_tensor: Input
    output_parameters_tensor: Output
    output_first_moment_tensor: Output
    output_second_moment_tensor: Output
    learning_rate: Float
    beta1: Float
    beta2: Float
    epsilon: Float

    def value(self, x: Any, m: Any, v: Any, gradient: Any, step: Any) -> Any:
        rate, beta1, beta2, epsilon = (T.like(x, one) for one in (self.learning_rate, self.beta1, self.beta2, self.epsilon))
        one = T.like(x, 1)
        alpha = T.hold(T.sqrt(_less_power(beta2, step)) / _less_power(beta1, step))
        alpha = T.hold(T.select(T.expression(step == T.like(step, 0)), one, alpha))
        m = T.hold(T.rounded(beta1 * m) + T.rounded((one - beta1) * gradient))
        v = T.hold(T.rounded(beta2 * v) + T.rounded(T.rounded((one - beta2) * gradient) * gradient))
        moved = T.rounded(T.rounded(T.rounded(rate * alpha) * m) / (T.sqrt(v) + epsilon))
        return x - moved, m, v

    def numpy(self, x: NumpyArray, m: NumpyArray, v: NumpyArray, gradient: NumpyArray, step: NumpyArray) -> Any:
        rate, beta1, beta2, epsilon = (x.dtype.type(one) for one in (self.learning_rate, self.beta1, self.beta2, self.epsilon))
        one = x.dtype.type(1)
        alpha = np.sqrt(_less_power_numpy(beta2, step)) / _less_power_numpy(beta1, step)
        alpha = np.where(step == 0, 1, alpha)
        m = beta1 * m + (one - beta1) * gradient
        v = beta2 * v + (one - beta2) * gradient * gradient
        divisor = precise(np.sqrt(v) + epsilon)
        moved = precise(rate) * alpha * precise(m) / divisor
        moved = np.where(np.abs(moved) > np.finfo(x.dtype).max, np.copysign(np.inf, moved), moved)
        return precise(x) - moved, m, v, moved, divisor

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The moments are exact; alpha is not, and the parameters are off by as much of the step, and by roundings.

        A product may be denormal before it is divided by a number far below 1: its last digit counts as much more.
        """
        wide = [one.astype(np.float32) if one is not None and one.dtype == np.float16 else one for one in inputs]
        with np.errstate(all="ignore"):
            x, m, v, moved, divisor = self.numpy(*wide)  # type: ignore[arg-type] # all are there
            dtype = self.output_parameters_tensor.data_type.numpy
            info = np.finfo(wide[0].dtype)  # type: ignore[union-attr]
            error = (self.STEPS + 4) * float(info.eps) * np.abs(moved)
            error += precise(info.smallest_subnormal) * (1 + np.abs(precise(m))) / np.abs(divisor)
            near = within_steps(x, dtype, 1, np.nan_to_num(error, posinf=0.0))
            return near, m.astype(dtype), v.astype(dtype)


def _less_power(beta: Any, step: Any) -> Any:
    """``1 - beta ** step``, without cancellation."""
    size = T.hold(T.absolute(beta))
    power = T.hold(mathematics.expm1(T.hold(T.rounded(T.hold(mathematics.log(size)) * T.to(step, T.scalar_type(beta))))))
    odd = T.expression((step & T.like(step, 1)) != T.like(step, 0)) & (beta < T.like(beta, 0))
    return T.hold(T.select(odd, power + T.like(beta, 2), T.negative(power)))


def _less_power_numpy(beta: Any, step: NumpyArray) -> Any:
    power = np.expm1(step.astype(np.longdouble) * np.log(np.abs(np.longdouble(beta))))
    return np.where((step % 2 == 1) & (beta < 0), 2 + power, -power)
