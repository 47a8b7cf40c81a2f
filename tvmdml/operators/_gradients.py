"""Gradients, as a class states them: for each input, a formula of its gradient.

``GRADIENT`` has a formula for each input that has a gradient, by the name of the function's parameter::

    GRADIENT = gradients(a="multiply(gradient, b)", b="multiply(gradient, a)")

A formula is a Python expression of these names:

- ``gradient``: that of the result, or of the first of several results; that of another result is ``<result>_gradient``
- an argument of the call; ``result``, or one of several results by its name; the sizes of an input, ``<input>_sizes``
- functions of tvmdml, whose attributes are given by keyword; a number in place of an array takes the type of the arrays beside it
- ``zeros(array)``: zeros of its sizes and type
- ``undefined("argument=value")``: raises an error, since there is no gradient with this argument
- ``scattered(sizes, axis, indices, elements)``: zeros, except for the elements at the places that the indices give along the axis
- ``factor(gradient, b, trans_a, trans_b, alpha, a_sizes, b_sizes)``: the gradient of the first factor of a product of matrices, and
  ``second_factor``, with ``a``, that of the second

- ``input_gradient``, ``filter_gradient`` and ``bias_gradient``: those of convolutions, by the same numbers

A formula may ignore that inputs are broadcast, that they are scaled first (``scale_bias``), and that the gradient may have another
data type than the input: whoever uses formulas takes care of it. Arrays that no formula names are not kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType, MappingProxyType

Formulas = Mapping[str, CodeType]


def gradients(**formulas: str) -> Formulas:
    """Formulas for ``Operator.GRADIENT``, which cannot be changed later.

    Raises:
        SyntaxError: a formula is not an expression.
    """
    return MappingProxyType({name: compile(formula, f"<gradient of {name}>", "eval") for name, formula in formulas.items()})
