"""Reductions: the contracts' examples, PyTorch's word, sums that lose nothing, and the same bits for any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, seeded

import tvmdml
from tvmdml import knobs
from tvmdml.operators._accuracy import difference
from tvmdml.operators.activation_softmax import ActivationLogSoftmax1, ActivationSoftmax1
from tvmdml.operators.normalization import MeanVarianceNormalization1
from tvmdml.operators.reduce import Reduce
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

f32, inf, nan = np.float32, math.inf, math.nan
Draw = Callable[..., list[Any]]

ROWS = [[1, 2, 3], [3, 0, 4], [2, 4, 2]]
EXAMPLES: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("reduce", ROWS, {"function": "sum", "axes": (0,)}, [[6, 6, 9]]),
    ("reduce", ROWS, {"function": "sum", "axes": (1,)}, [[6], [7], [8]]),
    ("reduce", ROWS, {"function": "sum"}, [[21]]),
    ("reduce", [-inf, 1, 2], {"function": "log_sum_exp"}, [2.3132617]),
    ("reduce", [1000, 1000], {"function": "log_sum_exp"}, [1000 + math.log(2)]),
    ("reduce", [-inf, -inf], {"function": "log_sum_exp"}, [-inf]),
    ("reduce", [inf, 1], {"function": "log_sum_exp"}, [inf]),
    ("argmax", [3, 2, 1, 2, 3], {}, [0]),
    ("argmax", [3, 2, 1, 2, 3], {"axis_direction": "decreasing"}, [4]),
    ("argmin", [1, 2, 3, 2, 1], {}, [0]),
    ("argmin", [1, 2, 3, 2, 1], {"axis_direction": "decreasing"}, [4]),
    ("argmax", [1, nan, 3, nan], {}, [1]),
    ("argmin", [1, nan, 3, nan], {"axis_direction": "decreasing"}, [3]),
    ("activation_softmax", [-inf, 1, 2], {}, [0, 0.26894143, 0.73105858]),
    ("activation_log_softmax", [-inf, 1, 2], {}, [-inf, -1.3132617, -0.31326169]),
    ("activation_hardmax", [[[12, 0], [-101, 11]], [[3, 234], [0, -101]]], {"axes": (1,)}, [[[1, 0], [0, 1]], [[1, 1], [0, 0]]]),
    ("activation_hardmax", [[[12, 0], [-101, 11]], [[3, 234], [0, -101]]], {"axes": (0, 2)}, [[[0, 0], [0, 1]], [[0, 1], [0, 0]]]),
    ("mean_variance_normalization", [1, 2, 3, 4], {"axes": (0,), "epsilon": 0}, [-1.3416408, -0.4472136, 0.4472136, 1.3416408]),
    (
        "mean_variance_normalization",
        *([1, 2, 3, 4], {"axes": (0,), "epsilon": 0, "normalize_mean": False}),
        [0.36514837, 0.73029674, 1.0954451, 1.4605935],
    ),
    ("lp_normalization", [[3, 4], [3e-6, 4e-6], [0, 0]], {}, [[0.6, 0.8], [0.3, 0.4], [0, 0]]),
]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("name", "x", "attributes", "wanted"), EXAMPLES)
def test_the_contracts_examples(name: str, x: Any, attributes: dict[str, Any], wanted: Any) -> None:
    found = getattr(tvmdml, name)(np.array(x, f32), **attributes)
    np.testing.assert_allclose(found, np.array(wanted), rtol=3e-7)


def test_integers_wrap_and_float16_does_not_overflow_on_the_way() -> None:
    most = np.array([2**31 - 1, 1], np.int32)
    assert tvmdml.reduce(most, function="sum") == [-(2**31)]
    assert tvmdml.reduce(np.array([-(2**31)], np.int32), function="l1") == [-(2**31)]
    assert tvmdml.reduce(np.array([300, 400], np.float16), function="l2") == [500]


def test_slices_without_elements() -> None:
    none = np.ones((0, 3), f32)
    wanted = {"sum": 0, "l1": 0, "l2": 0, "sum_square": 0, "multiply": 1, "average": nan, "log_sum": -inf, "log_sum_exp": -inf}
    for function, value in wanted.items():
        np.testing.assert_array_equal(tvmdml.reduce(none, function=function, axes=(0,)), np.full((1, 3), value))
    for call in (tvmdml.argmax, tvmdml.argmin, lambda x: tvmdml.reduce(x, function="max"), tvmdml.dynamic_quantize_linear):
        with pytest.raises(tvmdml.InvalidArgument, match="1 or more elements along the axes"):
            call(none)
    assert tvmdml.argmax(none, axes=(1,)).shape == (0, 1)
    assert tvmdml.activation_softmax(none).shape == (0, 3)
    ones = np.ones((1, 3), f32)
    found = tvmdml.batch_normalization_training(none, ones, ones)
    assert found[0].shape == (0, 3)
    assert np.isnan(found[1:]).all()
    gradients = tvmdml.batch_normalization_training_grad(none, none, ones, ones, ones)
    assert [one.sum() for one in gradients] == [0, 0, 0]


def test_batch_normalisation_that_trains_and_its_gradient() -> None:
    found = tvmdml.batch_normalization_training_grad(
        *(np.array([one], f32) for one in ([1, 2, 3, 6], [1, 0, 0, 1])),
        *(np.full((1, 1), one, f32) for one in (3, 3.5, 1)),
        epsilon=0,
    )
    np.testing.assert_allclose(found.gradient, [[0.3436216, -0.22908106, -0.26726124, 0.15272071]], rtol=1e-6)
    np.testing.assert_allclose((found.scale_gradient, found.bias_gradient), [[[0.53452248]], [[2]]], rtol=1e-6)


def test_dynamic_quantisation() -> None:
    x = np.array([0, 2, -3, -2.5, 1.34, 0.5], f32)
    q, scale, zero = tvmdml.dynamic_quantize_linear(x)
    assert (q.tolist(), scale.tolist(), zero.tolist()) == ([153, 255, 0, 26, 221, 179], [f32(0.019607844)], [153])
    q, _, zero = tvmdml.dynamic_quantize_linear(np.array([1, 2.1, 1.3, 2.5, 3.34, 4], f32), output_dtype="int8")
    assert (q.tolist(), zero.tolist()) == ([-64, 6, -45, 31, 85, 127], [-128])
    for poison, scale_is in ((nan, np.isnan), (inf, np.isinf)):
        q, scale, zero = tvmdml.dynamic_quantize_linear(np.array([1, poison, -3], f32))
        assert scale_is(scale[0])
        assert zero == [0]
        assert not q.any()


# -- Accuracy -----------------------------------------------------------------------------------------------------

DATA: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "0.1": lambda _, n: np.full(n, 0.1),
    "normal": lambda rng, n: rng.standard_normal(n),
    "far": lambda rng, n: 100 + rng.standard_normal(n),
    "turns": lambda rng, n: np.where(np.arange(n) % 2, -1, 1) * (10000 + rng.standard_normal(n)),
}
COUNTS = (1, 2, 3, 17, 64, 1000, 4096, 65536 + 1)


def _mistake(desc: Any, x: Array, found: Any) -> str:
    (wanted,) = desc.reference(x, *[None] * (len(list(desc.tensors())) - 2))
    return difference(found, wanted, True)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_and_variances_keep_their_bounds(dtype: str, target: Target, draw: Draw) -> None:
    rng = seeded(dtype)
    kind = np.dtype(dtype)
    for name, count, axis in draw([(name, n, axis) for name in DATA for n in COUNTS for axis in (0, 1)], 6):
        sizes = (3, count) if axis else (count, 5)
        x = np.moveaxis([DATA[name](rng, count) for _ in range(3 if axis else 5)], 0, 1 - axis).astype(kind)
        desc = Reduce.of(TensorDesc(dtype, sizes), function="sum", axes=(axis,))
        assert not _mistake(desc, x, tvmdml.reduce(x, function="sum", axes=(axis,), device=target.name)), (name, count, axis)
        norm = MeanVarianceNormalization1.of(TensorDesc(dtype, sizes), axes=(axis,))
        found = tvmdml.mean_variance_normalization(x, axes=(axis,), device=target.name)
        assert not _mistake(norm, x, found), (name, count, axis)


def test_what_loses_digits_breaks_the_bounds() -> None:
    """A float16 that is added up, one long chain, and a variance of squares: the rules of accuracy refuse each."""
    x16 = np.full((1, 1000), 0.1, np.float16)
    short = Reduce.of(TensorDesc("float16", x16.shape), function="sum", axes=(1,))
    assert _mistake(short, x16, np.cumsum(x16, 1, np.float16)[:, -1:])
    x = np.full((1, 65536), 0.1, f32)
    long = Reduce.of(TensorDesc("float32", x.shape), function="sum", axes=(1,))
    assert _mistake(long, x, np.cumsum(x, 1, f32)[:, -1:])
    assert not _mistake(long, x, tvmdml.reduce(x, function="sum", axes=(1,)))
    far = (1000 + seeded("far").standard_normal((1, 768))).astype(f32)
    mean = far.mean(1, keepdims=True)
    one_pass = np.mean(far * far, 1, keepdims=True, dtype=f32) - mean * mean
    norm = MeanVarianceNormalization1.of(TensorDesc("float32", far.shape), axes=(1,))
    assert _mistake(norm, far, ((far - mean) / np.sqrt(one_pass + f32(1e-5))).astype(f32))
    soft = ActivationSoftmax1.of(TensorDesc("float32", far.shape), axes=(1,))
    whole = np.exp(far.astype(np.float64) - far.max())
    assert _mistake(soft, far, (whole / whole.sum() * (1 + 1e-4)).astype(f32))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", ["cpu:x86-64", "cpu:x86-64-v3", "cpu"])
def test_softmax_of_any_distances_and_any_nan(dtype: str, level: str) -> None:
    """Exponentials next to the least normal number, far below it, and of NaN with all payloads."""
    least, rng = np.log(np.finfo(dtype).tiny), seeded(dtype)
    distances = np.concatenate([np.linspace(1.5 * least, 0, 4080), least * (1 + np.arange(-8, 8) * 1e-6), rng.standard_normal(16)])
    x = np.concatenate([np.zeros((257, 1)), distances.reshape(16, 257).T], axis=1).astype(dtype)
    bits = x[200:].view(f"u{x.itemsize}")
    bits[:, 9] = (np.inf * np.ones(1, dtype)).view(bits.dtype) | (1 << np.arange(57) % np.finfo(dtype).nmant).astype(bits.dtype)
    for cls, function in (
        (ActivationSoftmax1, tvmdml.activation_softmax),
        (ActivationLogSoftmax1, tvmdml.activation_log_softmax),
    ):
        desc, found = cls.of(TensorDesc(dtype, x.shape), axes=(1,)), function(x, axes=(1,), device=level)
        assert not _mistake(desc, x, found)
        assert np.isnan(found[200:]).all()


# -- The order ----------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.parametrize("axis", [0, 1])
def test_logarithms_of_sums_of_any_distances_and_infinities(axis: int, target: Target) -> None:
    sizes = (48, 48)
    x = (seeded("log-sum-exp", axis).standard_normal(sizes) * 100).astype(f32)
    x[0, :], x[:, 0] = -inf, 3e38  # the largest, and slices that have nothing else but one of it
    x[7, 9], x[11, 5], x[13, 5], x[17, 3], x[17, 19] = inf, nan, inf, inf, -inf
    desc = Reduce.of(TensorDesc("float32", sizes), function="log_sum_exp", axes=(axis,))
    found = tvmdml.reduce(x, function="log_sum_exp", axes=(axis,), device=target.name)
    assert not desc.mismatch((found,), desc.reference(x))


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "axes"), [((1, 300_007), (1,)), ((3, 70_001), (1,)), ((70_001, 40), (0,)), ((30, 40, 50), (0, 2))]
)
def test_the_number_of_threads_does_not_matter(sizes: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = seeded(str(sizes)).standard_normal(sizes).astype(f32)
    results = []
    for least in (1 << 10, 1 << 23):  # many tasks, and one
        with knobs.using(reduction={"task_elements": least}):
            results.append([
                tvmdml.reduce(x, function="sum", axes=axes),
                tvmdml.activation_softmax(x, axes=axes),
                tvmdml.mean_variance_normalization(x, axes=axes),
                tvmdml.argmax(x, axes=axes),
            ])  # fmt: skip
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


# -- PyTorch ------------------------------------------------------------------------------------------------------

TORCH: dict[str, Callable[..., Any]] = {
    "average": lambda x, axes: x.mean(axes, keepdim=True),
    "l1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "l2": lambda x, axes: x.square().sum(axes, keepdim=True).sqrt(),
    "log_sum_exp": lambda x, axes: x.logsumexp(axes, keepdim=True),
    "max": lambda x, axes: x.amax(axes, keepdim=True),
    "min": lambda x, axes: x.amin(axes, keepdim=True),
    "sum": lambda x, axes: x.sum(axes, keepdim=True),
    "sum_square": lambda x, axes: x.square().sum(axes, keepdim=True),
}


def test_pytorch_agrees(draw: Draw) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = seeded("torch")
    x = rng.standard_normal((3, 5, 7, 11))
    X = torch.from_numpy(x)
    for function in TORCH:
        (axes,) = draw([(1,), (3,), (0, 2), (0, 1, 2, 3)], 1)
        np.testing.assert_allclose(tvmdml.reduce(x, function=function, axes=axes), TORCH[function](X, axes).numpy(), rtol=1e-13)
    for axis in range(4):
        np.testing.assert_array_equal(tvmdml.argmax(x, axes=(axis,)), X.argmax(axis, keepdim=True).numpy())
        np.testing.assert_array_equal(tvmdml.argmin(x, axes=(axis,)), X.argmin(axis, keepdim=True).numpy())
        np.testing.assert_allclose(tvmdml.activation_softmax(x, axes=(axis,)), X.softmax(axis).numpy(), rtol=1e-13)
        np.testing.assert_allclose(tvmdml.activation_log_softmax(x, axes=(axis,)), X.log_softmax(axis).numpy(), rtol=1e-13)
        np.testing.assert_allclose(
            tvmdml.lp_normalization(x, axis=axis), torch.nn.functional.normalize(X, dim=axis, eps=1e-5), rtol=1e-13
        )
    scale, bias, mean = (rng.standard_normal((1, 5, 1, 1)) for _ in range(3))
    variance = rng.random((1, 5, 1, 1)) + 0.5
    S, B, M, V = (torch.from_numpy(one.reshape(5)) for one in (scale, bias, mean, variance))
    F = torch.nn.functional
    epsilon = float(f32(1e-5))
    found = tvmdml.batch_normalization(x, mean, variance, scale, bias)
    np.testing.assert_allclose(found, F.batch_norm(X, M, V, S, B, eps=epsilon), rtol=1e-12, atol=1e-13)
    trained = tvmdml.batch_normalization_training(x, scale, bias)
    np.testing.assert_allclose(
        trained.output, F.batch_norm(X, None, None, S, B, training=True, eps=epsilon), rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(trained.variance.ravel(), X.var((0, 2, 3), correction=0), rtol=1e-13)
    np.testing.assert_allclose(
        tvmdml.mean_variance_normalization(x, axes=(2, 3)), F.instance_norm(X, eps=epsilon), rtol=1e-10, atol=1e-12
    )
    gradient = rng.standard_normal(x.shape)
    for training, function in ((False, tvmdml.batch_normalization_grad), (True, tvmdml.batch_normalization_training_grad)):
        own = [torch.from_numpy(gradient), X, S, M, V, M, 1 / (V + epsilon).sqrt()]
        wanted = torch.ops.aten.native_batch_norm_backward(*own, training, epsilon, [True, True, True])
        for one, other in zip(function(x, gradient, mean, variance, scale), wanted, strict=True):
            np.testing.assert_allclose(one, other.numpy().reshape(one.shape), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["activation_softmax", "activation_log_softmax"])
def test_gradients_in_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401 - it registers the operators

    for axis in (0, 1):
        x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
        own = getattr(torch.ops.tvmdml, name)(x, axes=[axis])
        weights = torch.randn(4, 6, dtype=torch.float64)
        (found,) = torch.autograd.grad((own * weights).sum(), x)
        usual = getattr(torch, name.removeprefix("activation_"))(x, axis)
        (wanted,) = torch.autograd.grad((usual * weights).sum(), x)
        torch.testing.assert_close(found, wanted)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_extremes_of_any_bits(dtype: str) -> None:
    words, nans = np.dtype(f"u{np.dtype(dtype).itemsize}"), {"float16": (0x7C01, 0xFE00), "float32": (0x7F800001, 0xFFC00000)}
    bits = seeded(dtype).integers(0, 1 << (8 * words.itemsize), (40, 5, 70), words)
    x = bits.view(dtype)
    x[np.isnan(x)] = 1
    x[:10], x[10:20] = -np.abs(x[:10]), np.abs(x[10:20])
    x[20:23] = np.where(bits[20:23] % 2, 0, -0.0)
    for place, one in enumerate(nans[dtype]):
        bits[place, 2, 7], bits[10 + place, 2, 7] = one, one
    for axes in ((2,), (0,), (1, 2)):
        for function, numpy in (("max", np.max), ("min", np.min)):
            found = tvmdml.reduce(x, function=function, axes=axes)
            with np.errstate(invalid="ignore"):  # one NaN is signalling
                np.testing.assert_array_equal(found, numpy(x.astype(np.float64), axis=axes, keepdims=True))


@pytest.mark.full(first=1)
@pytest.mark.some(8)
@pytest.mark.parametrize("length", [1, 7, 45, 1000])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64"])
def test_the_first_of_elements_that_are_all_the_least_is_found(dtype: str, length: int) -> None:
    limits = np.iinfo(dtype)
    for value, function in ((limits.min, tvmdml.argmax), (limits.max, tvmdml.argmin)):
        x = np.full((3, length), value, dtype)
        for axis, one in ((1, x), (0, np.ascontiguousarray(x.T))):
            assert not function(one, axes=[axis]).any()
            assert (function(one, axes=[axis], axis_direction="decreasing") == length - 1).all()


def _all_first(x: Array, position: int) -> None:
    """Zeros of both signs, NaN, and the largest value several times."""
    x[0] = 0
    x[0, ::3] = -0.0
    x[1, position:] = x[1].max()
    x[2, position::7] = nan
    x[3] = x[3].min()


@pytest.mark.full
@pytest.mark.some(6)
@pytest.mark.parametrize("sizes", [(5, 1000), (35, 3001), (4, 70000), (40, 17)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64"])
def test_places_in_slices_of_many_blocks(sizes: tuple[int, int], dtype: str) -> None:
    x = (100 * seeded(sizes).standard_normal(sizes)).astype(dtype)
    if x.dtype.kind == "f":
        _all_first(x, sizes[1] // 2)
    key = x.astype(np.longdouble) if x.dtype.kind == "f" else x
    for one, found in ((key, tvmdml.argmax), (-key if x.dtype.kind == "f" else ~key, tvmdml.argmin)):
        np.testing.assert_array_equal(found(x, axes=(1,))[:, 0], one.argmax(1))
        with knobs.using(reduction={"task_elements": 1, "part_elements": 1024}):
            np.testing.assert_array_equal(found(x, axes=(1,))[:, 0], one.argmax(1))
        last = found(x, axes=(1,), axis_direction="decreasing")[:, 0]
        np.testing.assert_array_equal(last, sizes[1] - 1 - one[:, ::-1].argmax(1))
        pair = np.ascontiguousarray(x.reshape(2, sizes[0] // 2, -1)[:, :, :-1] if sizes[0] % 2 == 0 else x[None, :, :-1])
        flat = one.reshape(*pair.shape[:2], -1)[:, :, :-1].transpose(1, 0, 2).reshape(pair.shape[1], -1)
        np.testing.assert_array_equal(found(pair, axes=(0, 2)).ravel(), flat.argmax(1))


@pytest.mark.full
@pytest.mark.parametrize("columns", [1024, 1031])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_streamed_rows_have_the_same_bits(columns: int, dtype: str) -> None:
    x = seeded((columns, dtype)).standard_normal((600, columns)).astype(dtype)
    wanted = tvmdml.activation_softmax(x), tvmdml.mean_variance_normalization(x, axes=(1,))
    with knobs.using(reduction={"stream_bytes": 1 << 20}):
        for one, function in zip(
            wanted, (tvmdml.activation_softmax, partial(tvmdml.mean_variance_normalization, axes=(1,))), strict=True
        ):
            out = np.empty(x.size + 5, dtype)[5:].reshape(x.shape)
            assert_same_bits(function(x, out=out), one)


@pytest.mark.full
def test_a_norm_that_may_be_lost_gives_anything_and_another_one_does_not(target: Target) -> None:
    """Squares below the least normal number may be 0: then an epsilon that is no floor leaves the result open, and nothing else."""
    x = np.array([[3, 4, 0], [1e-30, -1e-30, 1e-30], [0, 0, 0], [1e-20, 1e-19, 2e-19], [3e-15, 4e-15, 0]], f32)
    form = TensorDesc("float32", x.shape)
    for p in (1, 2):
        for epsilon in (0.0, -1.0, 1e-40, 1e-25):
            desc = tvmdml.LpNormalization(input_tensor=form, output_tensor=form, axis=1, epsilon=epsilon, p=p)
            found = np.empty_like(x)
            tvmdml.compile(desc, target)(x, found)
            expected = desc.reference(x)
            assert not desc.mismatch((found,), expected), (p, epsilon)
            wrong = found.copy()
            wrong[0, 0] *= 1 + 1e-5
            assert desc.mismatch((wrong,), expected)
            wrong[0, 0], wrong[4, 1] = found[0, 0], 0.79
            assert desc.mismatch((wrong,), expected)
