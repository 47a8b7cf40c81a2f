"""DML_OPERATOR_GEMM."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.enums import MatrixTransform
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import place
from tvmdml.kernels.launched import with_fields
from tvmdml.kernels.reduction import Totals
from tvmdml.operators._accuracy import Expected, Near
from tvmdml.operators._contract import (
    Float,
    Input,
    NumpyArray,
    Operator,
    OptionalInput,
    OptionalOperator,
    Output,
    defaults,
)
from tvmdml.operators._fused import OF_GEMM
from tvmdml.operators._gradients import gradients
from tvmdml.operators._matrix import BoundedSums, summed, sums_of
from tvmdml.operators._matrix_product import Product
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._reduction import Reduction, precise
from tvmdml.operators._reduction_activated import activated
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType, TensorDesc


class Gemm(Product):
    """Products of matrices: ``alpha * (a @ b) + beta * c`` (``DML_GEMM_OPERATOR_DESC``), passed through an activation, if any.

    The last two dimensions are a matrix, those before them a batch. Factors with one dimension are vectors, batches are broadcast
    as by ``numpy.matmul``, and ``c`` is broadcast to the result. Products and sums of float16 are computed in float32.

    Args:
        a_tensor: the first factor.
        b_tensor: the second factor.
        c_tensor: what is added; none by default. With a ``beta`` of 0 it is not read.
        trans_a: ``"transpose"`` if matrices of ``a`` are transposed, or ``"none"``.
        trans_b: the same for ``b``.
        alpha: the factor of the product.
        beta: the factor of ``c``.
        fused_activation: such as ``tvmdml.ActivationRelu.fused()``; none by default.
    """

    FUNCTION = "gemm"
    SUPPORT = support("1.0 F r4 · 4.0 r2-4 · ext +D r2-8")
    FUSES = MappingProxyType(OF_GEMM)
    DEFAULTS = defaults(trans_a=MatrixTransform.NONE, trans_b=MatrixTransform.NONE, alpha=1.0, beta=1.0, fused_activation=None)
    ONNX = ("Gemm", "MatMul", "com.microsoft.FusedMatMul")

    GRADIENT = gradients(
        a="factor(gradient, b, trans_a, trans_b, alpha, a_sizes, b_sizes)",
        b="second_factor(gradient, a, trans_a, trans_b, alpha, a_sizes, b_sizes)",
        c="multiply(gradient, beta)",
    )

    a_tensor: Input
    b_tensor: Input
    c_tensor: OptionalInput = None
    output_tensor: Output
    trans_a: MatrixTransform
    trans_b: MatrixTransform
    alpha: Float
    beta: Float
    fused_activation: OptionalOperator = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Gemm has matrices, and both others factors as ``numpy.matmul`` takes them."""
        known = {"transA", "transB", "alpha", "beta", "transBatchA", "transBatchB"}
        if unknown := sorted(set(node.attributes) - known):
            raise NotConvertible(f"its attribute {unknown[0]} has no counterpart in DirectML")
        if any(node.integer(name, 0) for name in ("transBatchA", "transBatchB")):
            raise NotConvertible("it transposes a batch")
        numbers = {name: float(node.attributes[name]) for name in ("alpha", "beta") if name in node.attributes}
        turned = {f"trans_{x}": MatrixTransform(int(bool(node.integer(f"trans{x.upper()}", 0)))) for x in "ab"}
        tensors = [node.tensor(i) if node.has(i) else None for i in range(3)]
        return cls.of(*tensors, **turned, **numbers)

    def transposed(self) -> tuple[bool, bool]:
        return self.trans_a is MatrixTransform.TRANSPOSE, self.trans_b is MatrixTransform.TRANSPOSE

    def check(self) -> None:
        """All tensors have one type; what is added has the output's sizes; a fused softmax has its own rules."""
        for name in ("b_tensor", "c_tensor", "output_tensor"):
            if getattr(self, name) is not None:
                self.require_same("data_type", name, "a_tensor")
        super().check()
        if self.c_tensor is not None:
            self.require_same("sizes", "c_tensor", "output_tensor")
        if (softmax := self.of_rows()) is not None:
            self._check_softmax(softmax)

    def _check_softmax(self, softmax: Any) -> None:
        sizes = self.output_tensor.sizes
        if not hasattr(softmax, "axes"):
            flat = all(size == 1 for size in sizes[:-2])
            advice = "Fuse ACTIVATION_SOFTMAX1, which has axes."
            self.require(flat, "output_tensor.sizes", sizes, "sizes of 1 before the last two, for ACTIVATION_SOFTMAX", advice)
            return
        axes = softmax.axes
        self.require(bool(axes), "fused_activation.axes", axes, f"1 to {len(sizes)} axes")
        for i, axis in enumerate(axes):
            self.require(axis < len(sizes), f"fused_activation.axes[{i}]", axis, f"0 to {len(sizes) - 1}")
            self.require(axis not in axes[:i], f"fused_activation.axes[{i}]", axis, "an axis that is not there already")

    # -- What is computed

    def reads(self) -> bool:
        """Whether something is added."""
        return self.c_tensor is not None and self.beta != 0

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        """``c``, unless its factor is 0."""
        return self.repeated("c_tensor") if self.reads() else ()

    def finish(self, total: Any, *values: Any) -> Any:
        """Scaled, with ``c`` added, and activated, unless that needs whole rows."""
        found = self._scaled(total, *values)
        return found if self.of_rows() is not None else activated(self.fused_activation, found)

    def _scaled(self, total: Any, *values: Any) -> Any:
        found = total if self.alpha == 1 else T.rounded(total * T.like(total, self.alpha))
        for c in values:
            found = found + (c if self.beta == 1 else T.rounded(c * T.like(c, self.beta)))
        return found

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        """Not how factors lie, which is a matter of steps."""
        return (*self.attributes_exactly(("trans_a", "trans_b")), ("adds", str(self.reads())))

    def of_rows(self) -> Any:
        """A fused softmax, as an operator on wide elements."""
        if not isinstance(self.fused_activation, Reduction):
            return None
        tensor = TensorDesc(TensorDataType.of(self.computed, "computed"), self.output_tensor.sizes)
        return with_fields(self.fused_activation, input_tensor=tensor, output_tensor=self.output_tensor)

    def _write_rows(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """One item for each slice of softmax. Each walk computes the sums again."""
        softmax, contraction = self.of_rows(), self.contraction()
        sizes, axes = self.output_tensor.sizes, softmax.reduced()
        kept = [i for i in range(len(sizes)) if i not in axes]
        length = softmax.slice_length
        with T.elements(each, [sizes[i] for i in kept] or [1]) as outer:

            def coordinates(position: Any) -> list[Any]:
                at: list[Any] = [T.index(0)] * len(sizes)
                inner = T.unravel(position, [sizes[i] for i in axes])
                for i, one in (*zip(kept, outer, strict=False), *zip(axes, inner, strict=True)):
                    at[i] = one
                return at

            def read(position: Any) -> list[Any]:
                at = coordinates(position)
                total = summed(contraction, tensors, at)
                values = [T.hold(T.wide(tensors[one.name][place(one, at)[0]])) for one in contraction.addends]
                return [T.hold(self._scaled(total, *values))]

            found: list[Any] = []
            for walk in softmax.walks():
                totals = Totals(walk, tuple(map(T.hold, walk.values(found, T.const(0, "int32"), read(T.index(0))))))
                with T.loop(T.index(length)) as i:
                    totals.add(walk.values(found, T.cast(i, "int32"), read(i)))
                    totals.fold_after(i + 1)
                found += map(T.hold, walk.totals(totals.values, found, T.const(float(length), self.computed)))
            with T.loop(T.index(length)) as i:
                value = softmax.element_of(T.cast(i, "int32"), read(i), found)
                at = coordinates(i)
                T.store(tensors["output_tensor"], place(contraction.result, at)[0], T.to(value, self.output_tensor.data_type.tvm))

    # -- The reference

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """``numpy.matmul`` in higher precision."""
        a, b, c = inputs
        assert a is not None
        assert b is not None
        x, y = (np.swapaxes(one, -1, -2) if turned else one for one, turned in zip((a, b), self.transposed(), strict=True))
        sums = sums_of(x, y, np.matmul, x.shape[-1])
        addend = 0.0 if c is None or not self.reads() else precise(np.asarray(c)) * self.beta
        if self.of_rows() is None:
            return (self.near(sums, self.alpha, addend),)
        return (self._near_softmax(sums, addend),)

    def _near_softmax(self, sums: BoundedSums, addend: Any) -> Expected:
        dtype = self.output_tensor.data_type.numpy
        axes = self.of_rows().reduced()
        with np.errstate(all="ignore"):
            x = sums.values * self.alpha + addend
            bound = np.max(np.broadcast_to(sums.bound(dtype, self.alpha, addend), x.shape), axis=axes, keepdims=True)
            d = np.max(x, axis=axes, keepdims=True) - x
            total = np.sum(np.exp(-d), axis=axes, keepdims=True)
            y = np.exp(-d) / total
            count = math.prod(x.shape[i] for i in axes)
            unit = float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps) / 2
            relative = np.expm1(2.1 * bound) + (1.01 * count + 8 + 6 * np.where(y > 0, d, 0)) * unit
            error = np.where(y > 0, y * relative, 0)
            error = np.where(np.isnan(bound), np.nan, error)
            return Near(y, np.dtype(dtype), 0, np.broadcast_to(error, y.shape).astype(np.float64))
