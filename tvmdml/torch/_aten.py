"""PyTorch's own operators (aten) as tvmdml's functions of a graph's expressions: a table, and what its entries share.

An entry takes the arguments of the aten operator, with expressions in the place of tensors, and returns an expression or a tuple of
them. What an entry does not support it refuses with ``Unsupported``; its part of the graph then stays in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import tvmdml
from tvmdml.errors import Unsupported
from tvmdml.graph import Expression
from tvmdml.tensors.sizes import is_open

aten = torch.ops.aten

AtenFunction = Callable[..., Any]
TABLE: dict[Any, AtenFunction] = {}
"""The functions, by overloads such as ``aten.add.Tensor``."""
MIXED: set[Any] = set()
"""Those whose tensors may have different types."""
CONDITIONS: dict[Any, Callable[[Any], bool]] = {}
"""Which nodes of some overloads are meant."""
FIRST_ONLY = {
    aten.max_pool2d_with_indices.default,
    aten.native_layer_norm.default,
    aten._native_batch_norm_legit_no_training.default,
}
"""Those of whose results only the first is made: gradients need the others, and then PyTorch computes them all."""


def entry(*overloads: Any, mixed: bool = False) -> Callable[[AtenFunction], AtenFunction]:
    """Put a function into the table."""

    def put(function: AtenFunction) -> AtenFunction:
        TABLE.update(dict.fromkeys(overloads, function))
        MIXED.update(overloads if mixed else ())
        return function

    return put


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Unsupported(what)


def _axes(dims: Sequence[int] | None, rank: int) -> list[int]:
    return list(range(rank)) if not dims or not rank else [dim % rank for dim in dims]


def _truth(x: Expression) -> Expression:
    """Zeros and ones as bools."""
    return x.view(np.bool_)


def _number(x: Any) -> Any:
    """A bool tensor as UINT8, for operators that take its bytes."""
    return x.view(np.uint8) if isinstance(x, Expression) and x.dtype == np.bool_ else x


def _compared(function: AtenFunction) -> AtenFunction:
    return lambda a, b: _truth(function(_number(a), _number(b)))


# -- Elements

for _overload, _name in {
    aten.relu.default: "activation_relu",
    aten.sigmoid.default: "activation_sigmoid",
    aten.tanh.default: "activation_tanh",
    aten.neg.default: "negate",
    aten.abs.default: "abs",
    aten.exp.default: "exp",
    aten.log.default: "log",
    aten.sqrt.default: "sqrt",
    aten.reciprocal.default: "recip",
    aten.sin.default: "sin",
    aten.cos.default: "cos",
    aten.erf.default: "erf",
    aten.floor.default: "floor",
    aten.ceil.default: "ceil",
    aten.maximum.default: "max",
    aten.minimum.default: "min",
}.items():
    TABLE[_overload] = getattr(tvmdml, _name)


def _with_number(function: AtenFunction) -> AtenFunction:
    """With a number that is not one of half precision, PyTorch computes in single precision."""

    def computed(a: Any, b: Any) -> Any:
        for x, number in ((a, b), (b, a)):
            if isinstance(x, Expression) and x.dtype == np.float16 and isinstance(number, (int, float)):
                with np.errstate(over="ignore"):
                    exact = not is_open(number) and float(np.float16(number)) == number
                if not exact:
                    wide = [one.astype("float32") if one is x else one for one in (a, b)]
                    return function(*wide).astype("float16")
        return function(a, b)

    return computed


TABLE[aten.mul.Tensor] = TABLE[aten.mul.Scalar] = _with_number(tvmdml.multiply)
TABLE[aten.div.Tensor] = TABLE[aten.div.Scalar] = _with_number(tvmdml.divide)

for _overload, _name in {
    aten.eq: "equals",
    aten.lt: "less_than",
    aten.le: "less_than_or_equal",
    aten.gt: "greater_than",
    aten.ge: "greater_than_or_equal",
}.items():
    for _kind in (_overload.Tensor, _overload.Scalar):
        TABLE[_kind] = _compared(getattr(tvmdml, _name))


@entry(aten.ne.Tensor, aten.ne.Scalar)
def _ne(a: Any, b: Any) -> Expression:
    return _truth(tvmdml.logical_not(tvmdml.equals(_number(a), _number(b))))


@entry(aten.logical_not.default, aten.bitwise_not.default)
def _not(x: Expression) -> Expression:
    _require(x.dtype == np.bool_, "logical_not of numbers")
    return _truth(tvmdml.logical_not(_number(x)))


@entry(aten.logical_and.default, aten.bitwise_and.Tensor)
def _and(a: Expression, b: Expression) -> Expression:
    _require(a.dtype == b.dtype == np.bool_, "and of numbers")
    return _truth(tvmdml.logical_and(_number(a), _number(b)))


@entry(aten.logical_or.default, aten.bitwise_or.Tensor)
def _or(a: Expression, b: Expression) -> Expression:
    _require(a.dtype == b.dtype == np.bool_, "or of numbers")
    return _truth(tvmdml.logical_or(_number(a), _number(b)))


@entry(aten.add.Tensor, aten.add.Scalar)
def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return _with_number(tvmdml.add)(a, _times(b, alpha))


@entry(aten.sub.Tensor, aten.sub.Scalar)
def _sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return _with_number(tvmdml.subtract)(a, _times(b, alpha))


def _times(b: Any, alpha: Any) -> Any:
    if alpha == 1:
        return b
    return TABLE[aten.mul.Tensor](b, alpha) if isinstance(b, Expression) else b * alpha


@entry(aten.rsqrt.default)
def _rsqrt(x: Expression) -> Any:
    return tvmdml.recip(tvmdml.sqrt(x))


@entry(aten.pow.Tensor_Scalar)
def _pow(x: Expression, exponent: float) -> Any:
    return tvmdml.multiply(x, x) if exponent == 2 else tvmdml.pow(x, float(exponent))


@entry(aten.gelu.default)
def _gelu(x: Expression, *, approximate: str = "none") -> Any:
    if approximate == "none":
        return tvmdml.activation_gelu(x)
    cubic = tvmdml.multiply(tvmdml.multiply(tvmdml.multiply(x, x), x), 0.044715)
    inner = tvmdml.multiply(tvmdml.add(x, cubic), math.sqrt(2 / math.pi))
    return tvmdml.multiply(tvmdml.multiply(x, 0.5), tvmdml.add(tvmdml.tanh(inner), 1.0))


@entry(aten.clamp.default)
def _clamp(x: Expression, low: Any = None, high: Any = None) -> Any:
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return tvmdml.clip(x, min=min(low, high), max=high)  # PyTorch: the higher bound counts


@entry(aten.hardtanh.default)
def _hardtanh(x: Expression, low: float = -1.0, high: float = 1.0) -> Any:
    return tvmdml.clip(x, min=low, max=high)


@entry(aten.leaky_relu.default)
def _leaky_relu(x: Expression, slope: float = 0.01) -> Any:
    return tvmdml.activation_leaky_relu(x, alpha=slope)


@entry(aten.where.self, mixed=True)
def _where(condition: Expression, a: Any, b: Any) -> Any:
    if isinstance(a, Expression) and a.dtype == np.bool_:
        return _truth(tvmdml.where(_number(condition), _number(a), _number(b)))
    return tvmdml.where(_number(condition), a, b)


@entry(aten._to_copy.default, mixed=True)
def _to_copy(x: Expression, *, dtype: Any = None, **rest: Any) -> Any:
    return x.copy() if dtype is None else x.astype(str(dtype).removeprefix("torch."))


@entry(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def _same(x: Expression, **rest: Any) -> Expression:
    return x


# -- Views


@entry(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _view(x: Expression, sizes: Sequence[int]) -> Expression:
    return x.reshape(tuple(sizes))


@entry(aten.permute.default)
def _permute(x: Expression, order: Sequence[int]) -> Expression:
    return x.transpose(tuple(order))


@entry(aten.transpose.int)
def _transpose(x: Expression, one: int, other: int) -> Expression:
    order = list(range(x.ndim))
    order[one], order[other] = order[other], order[one]
    return x.transpose(tuple(order))


@entry(aten.unsqueeze.default)
def _unsqueeze(x: Expression, dim: int) -> Expression:
    at = dim % (x.ndim + 1)
    return x.reshape((*x.shape[:at], 1, *x.shape[at:]))


@entry(aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(x: Expression, dims: Any) -> Expression:
    gone = _axes([dims] if isinstance(dims, int) else dims, x.ndim)
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in gone))


@entry(aten.expand.default)
def _expand(x: Expression, sizes: Sequence[int]) -> Expression:
    added = len(sizes) - x.ndim
    return x.broadcast(tuple(x.shape[i - added] if n == -1 else n for i, n in enumerate(sizes)))


@entry(aten.slice.Tensor)
def _slice(x: Expression, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Expression:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@entry(aten.select.int)
def _select(x: Expression, dim: int, index: int) -> Expression:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


@entry(aten.split_with_sizes.default)
def _split(x: Expression, sizes: Sequence[int], dim: int = 0) -> tuple[Expression, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(_slice(x, dim, at, at + n) for at, n in zip(starts, sizes, strict=True))


@entry(aten.cat.default)
def _cat(tensors: Sequence[Expression], dim: int = 0) -> Any:
    whole = [one for one in tensors if one.size] or list(tensors[:1])
    if len(whole) == 1:
        return whole[0]
    found = tvmdml.join([_number(one) for one in whole], axis=dim % whole[0].ndim)
    return _truth(found) if whole[0].dtype == np.bool_ else found


@entry(aten.constant_pad_nd.default)
def _pad(x: Expression, pad: Sequence[int], value: float = 0) -> Any:
    _require(all(n >= 0 for n in pad), "a negative padding")
    before, after = list(pad[::2])[::-1], list(pad[1::2])[::-1]
    rest = [0] * (x.ndim - len(before))
    return tvmdml.padding(x, start_padding=rest + before, end_padding=rest + after, padding_value=value)


# -- Sums and rows


@entry(aten.mean.dim)
def _mean(x: Expression, dims: Sequence[int] | None, keep: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(x, "average", dims, keep, dtype)


@entry(aten.sum.dim_IntList)
def _sum(x: Expression, dims: Sequence[int] | None, keep: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(x, "sum", dims, keep, dtype)


@entry(aten.amax.default)
def _amax(x: Expression, dims: Sequence[int] = (), keep: bool = False) -> Any:
    return _reduced(x, "max", dims, keep, None)


@entry(aten.amin.default)
def _amin(x: Expression, dims: Sequence[int] = (), keep: bool = False) -> Any:
    return _reduced(x, "min", dims, keep, None)


def _reduced(x: Expression, function: str, dims: Sequence[int] | None, keep: bool, dtype: Any) -> Any:
    _require(dtype is None and x.dtype.kind == "f", "a reduction of another type")
    axes = _axes(dims, x.ndim)
    found = tvmdml.reduce(x, function=function, axes=axes)
    return found if keep else found.reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))


@entry(aten._softmax.default)
def _softmax(x: Expression, dim: int, half_to_float: bool) -> Any:
    _require(not half_to_float, "softmax to another type")
    return tvmdml.activation_softmax(x, axes=_axes([dim], x.ndim))


@entry(aten._log_softmax.default)
def _log_softmax(x: Expression, dim: int, half_to_float: bool) -> Any:
    _require(not half_to_float, "log_softmax to another type")
    return tvmdml.activation_log_softmax(x, axes=_axes([dim], x.ndim))


@entry(aten.native_layer_norm.default)
def _layer_norm(x: Expression, sizes: Sequence[int], weight: Any, bias: Any, epsilon: float) -> tuple[Any, None, None]:
    axes = list(range(x.ndim - len(sizes), x.ndim))
    scale, shift = (None if one is None else one.broadcast(x.shape) for one in (weight, bias))
    _require((scale is None) == (shift is None), "a layer norm with only one of weight and bias")
    found = tvmdml.mean_variance_normalization(x, scale, shift, axes=axes, epsilon=epsilon)
    return found, None, None


@entry(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    x: Expression, weight: Any, bias: Any, mean: Expression, variance: Expression, momentum: float, epsilon: float
) -> tuple[Any, None, None]:
    _require(weight is not None and bias is not None and x.ndim >= 2, "a batch norm without weight and bias")
    sizes = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    rest = [one.reshape(sizes) for one in (mean, variance, weight, bias)]
    return tvmdml.batch_normalization(x, *rest, epsilon=epsilon), None, None


# -- Products and windows


@entry(aten.mm.default, aten.bmm.default)
def _mm(a: Expression, b: Expression) -> Any:
    return tvmdml.gemm(a, b)


@entry(aten.addmm.default)
def _addmm(c: Expression, a: Expression, b: Expression, *, beta: float = 1, alpha: float = 1) -> Any:
    return tvmdml.gemm(a, b, c.broadcast((a.shape[0], b.shape[1])), alpha=float(alpha), beta=float(beta))


@entry(aten.convolution.default)
def _convolution(
    x: Expression,
    weight: Expression,
    bias: Any,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    count = weight.ndim - 2
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    shift = None if bias is None else bias.reshape((1, channels, *(1 for _ in range(count))))
    return tvmdml.convolution(
        x,
        weight,
        shift,
        strides=list(strides),
        dilations=list(dilations),
        start_padding=list(padding),
        end_padding=[max(n - more, 0) for n, more in zip(padding, output_padding, strict=True)],  # PyTorch cuts so much less off
        output_padding=[max(more - n, 0) for n, more in zip(padding, output_padding, strict=True)],
        group_count=groups,
        direction="backward" if transposed else "forward",
    )


@entry(aten.max_pool2d_with_indices.default)
def _max_pool(
    x: Expression,
    window: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Any = (1,),
    ceil: bool = False,
) -> tuple[Any, None]:
    _require(not ceil and x.ndim == 4, "max_pool2d with ceil_mode, or without a batch")
    window, padding, dilation = _pair(window), _pair(padding), _pair(dilation)
    steps = _pair(strides) if strides else window
    found = tvmdml.max_pooling(
        x, window_sizes=window, strides=steps, start_padding=padding, end_padding=padding, dilations=dilation
    )
    return found, None


@entry(aten.avg_pool2d.default)
def _avg_pool(
    x: Expression,
    window: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil: bool = False,
    include_padding: bool = True,
    divisor: Any = None,
) -> Any:
    _require(not ceil and divisor is None and x.ndim == 4, "avg_pool2d with ceil_mode or a divisor, or without a batch")
    window, padding = _pair(window), _pair(padding)
    steps = _pair(strides) if strides else window
    return tvmdml.average_pooling(
        x, window_sizes=window, strides=steps, start_padding=padding, end_padding=padding, include_padding=include_padding
    )


@entry(aten._adaptive_avg_pool2d.default)
def _adaptive(x: Expression, sizes: Sequence[int]) -> Any:
    _require(x.ndim == 4 and all(n % m == 0 for n, m in zip(x.shape[2:], sizes, strict=True)), "uneven adaptive pooling")
    if all(n == 1 for n in sizes):
        return tvmdml.reduce(x, function="average", axes=[2, 3])
    window = [n // m for n, m in zip(x.shape[2:], sizes, strict=True)]
    return tvmdml.average_pooling(x, window_sizes=window, strides=window)


def _pair(sizes: Any) -> list[int]:
    some = [sizes] if isinstance(sizes, int) else list(sizes)
    return some * 2 if len(some) == 1 else some


@entry(aten.embedding.default, mixed=True)
def _embedding(weight: Expression, indices: Expression, *rest: Any) -> Any:
    count = max(indices.ndim, 1)
    flat = indices.reshape(indices.size)
    rows = tvmdml.gather(weight, flat.reshape((1, flat.size)), axis=0, index_dimensions=1)
    return rows.reshape((*indices.shape, weight.shape[1])) if count else rows
