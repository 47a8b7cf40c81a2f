"""``torch.compile(backend="tvmdml")``: the same results as PyTorch's, and what does not map stays there."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tvmdml.graph.passes import empties  # noqa: E402
from tvmdml.torch import backend  # noqa: E402


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled."""
    found: list[Any] = []
    made = backend._Part._made

    def watched(self: Any, *given: Any) -> Any:
        one = made(self, *given)
        found.append(one.graph)
        return one

    monkeypatch.setattr(backend._Part, "_made", watched)
    return found


class Convolutions(nn.Module):
    """A small network for images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 16, 1, groups=4))
        self.last = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        y = self.second(self.first(x))
        return torch.log_softmax(self.last(functional.hardswish(y).mean((2, 3))), -1)


class Attention(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", dropout=0.0)
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens: Any) -> Any:
        return self.norm(self.layer(self.words(tokens)))[:, 0]


def check(model: Any, *given: Any) -> Any:
    model = model.eval()
    compiled = torch.compile(model, backend="tvmdml")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-5)
    return compiled


def test_networks(graphs: list[Any]) -> None:
    check(Convolutions(), torch.randn(2, 3, 16, 16))
    assert len(graphs) == 1
    assert graphs[0].kernel_count < 12
    check(Attention(), torch.randint(0, 50, (2, 7)))


def test_other_sizes_are_other_graphs(graphs: list[Any]) -> None:
    model = Convolutions().eval()
    compiled = torch.compile(model, backend="tvmdml", dynamic=True)
    with torch.no_grad():
        for count in (2, 3, 5, 3):
            x = torch.randn(count, 3, 16, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 4


def test_changed_parameters_are_seen(graphs: list[Any]) -> None:
    model = nn.Linear(8, 4).eval()
    compiled = torch.compile(model, backend="tvmdml")
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(6):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model.weight.mul_(0.5)
    assert len(graphs) <= backend.MOST_CHANGES + 2


def test_gradients_are_pytorchs() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    compiled = torch.compile(model, backend="tvmdml")
    x = torch.randn(5, 8)
    model(x).sum().backward()
    right = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    compiled(x).sum().backward()
    for one, other in zip(model.parameters(), right, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_attention() -> None:
    def attention(x: Any) -> Any:
        y = x.view(1, x.shape[0], 2, -1).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    compiled = torch.compile(attention, backend="tvmdml", dynamic=True)
    for n in (8, 5, 21):
        given = [torch.randn(n, 16, generator=torch.Generator().manual_seed(n)).requires_grad_() for _ in range(2)]
        found, right = (function(x) for function, x in zip((compiled, attention), given, strict=True))
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
        for result in (found, right):
            result.square().sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-4, atol=1e-4)


def test_what_does_not_map_stays_in_pytorch(graphs: list[Any]) -> None:
    def function(x: Any) -> Any:
        y = torch.relu(x) * 2
        z = torch.cumsum(y, 0)  # not in the table
        return torch.fft.fft(z).real + torch.sigmoid(y), (x > 0) & (y < 1), x.to(torch.float64).sum()

    check(_Module(function), torch.randn(6, 5))
    assert graphs


class _Module(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, x, -x) + torch.clamp(x, -1, 1) - x.pow(2) / 3,
        lambda x: torch.cat([x[:, 1:], x[:, :1]], 1).transpose(0, 1).unsqueeze(1).expand(-1, 3, -1),
        lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5).amax(1, keepdim=True),
        lambda x: functional.gelu(x, approximate="tanh") + functional.leaky_relu(x, 0.2) + functional.elu(x),
        lambda x: torch.split(x, [2, 3, 1], 1)[1].softmax(0),
        lambda x: functional.avg_pool2d(x[None, None], 2) + functional.adaptive_avg_pool2d(x[None, None], (2, 3)).sum(),
        lambda x: functional.conv_transpose2d(x[None, None], torch.ones(1, 2, 3, 3), stride=2, output_padding=1),
        lambda x: (x.to(torch.int32) + 1).to(torch.float32).rsqrt(),
        lambda x: (x.half() * 2).float(),
        lambda x: torch.where((x > 0.5) & (x <= 1.1), x, 0.0),
        lambda x: torch.bmm(x[None], x.t()[None]).squeeze(0).addmm(x, x.t(), beta=0.5, alpha=2.0),
    ],
)
def test_operators(function: Any) -> None:
    check(_Module(function), torch.rand(4, 6) + 0.25)


def test_results_have_the_types_of_pytorch() -> None:
    """What DirectML's operators give in another type stays in PyTorch."""
    whole = torch.arange(-6, 6)
    chosen = whole > 0
    for function in (
        lambda x: x / 3,
        lambda x: x.clamp(0.5),
        lambda x: torch.add(x, 3, alpha=2),
        lambda x: torch.where(x > 0, chosen, ~chosen),
        lambda x: torch.cat([chosen, x > 1]),
        lambda x: (x * 0.5).clamp(1, -1),
    ):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.testing.assert_close(torch.compile(function, backend="tvmdml")(whole), function(whole))


def test_modes_and_options_are_those_of_other_backends() -> None:
    for named in ({"mode": "max-autotune"}, {"options": {"target": "vulkan"}}):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=rf"given {next(iter(named))}=.*; allowed: neither mode nor options. .* run on the CPU"):
            torch.compile(torch.sin, backend="tvmdml", **named)(torch.ones(3))


def test_what_stays_in_pytorch_is_named() -> None:
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match=r"stays in PyTorch \(.*aten.sum.*\): a reduction of another type"), torch.no_grad():
        assert torch.compile(lambda x: (x * 3).sum(), backend="tvmdml")(torch.arange(4)).item() == 18


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_elements_are_computed_with_open_sizes(dtype: str) -> None:
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        return x.sum(0) / x.shape[0], x * (2 * x.shape[0] + 1), x.mean()

    compiled = torch.compile(function, backend="tvmdml", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for n in (5, 9, 40):
            x = torch.randn(n, 6, dtype=getattr(torch, dtype))
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), function(x), rtol=2e-3, atol=1e-4)
            if dtype == "float32":
                mine, right = x.clone().requires_grad_(), x.clone().requires_grad_()
                compiled(mine)[2].backward()
                function(right)[2].backward()
                torch.testing.assert_close(mine.grad, right.grad)


def test_numbers_that_half_precision_has_not() -> None:
    x = torch.randn(50).half() * 0.1

    def function(x: Any) -> Any:
        return x * 1e5, x * 1e-8 * 1e5, x + 0.1, x / 3.3

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend="tvmdml")(x), function(x), rtol=1e-3, atol=1e-3)


def test_results_lie_as_pytorch_expects_them() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def function(x: Any) -> Any:
        y = x + 1
        return y, torch.as_strided(y, (120,), (1,)), y.permute(1, 3, 0, 2) * 2

    with torch.no_grad():
        found = torch.compile(function, backend="tvmdml")(x)
    for one, other in zip(found, function(x), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def test_views_of_results_are_views() -> None:
    """Twins of other shapes, results given twice, and inputs, with PyTorch's strides and shared memory."""
    x = torch.rand(2, 3)

    def function(x: Any) -> Any:
        y, equal = x.exp(), x.exp()
        sums = x.sum(1), x.sum(1, keepdim=True)
        return y, y.view(3, 2), y.t(), y[:, ::2], y.expand(4, 2, 3), equal, equal.flatten(), y, *sums, x, x.reshape(6), y.clone()

    with torch.no_grad():
        found, right = torch.compile(function, backend="tvmdml")(x), function(x)
    places = [[one.data_ptr() for one in several] for several in (found, right)]
    for i, (one, other) in enumerate(zip(found, right, strict=True)):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)
        assert [place == places[0][i] for place in places[0]] == [place == places[1][i] for place in places[1]], i


@pytest.mark.parametrize("more", [0, 1, 2])
def test_output_padding_of_a_transposed_convolution(more: int) -> None:
    for padding in (0, 1, 2):
        torch._dynamo.reset()
        check(nn.ConvTranspose2d(4, 6, 3, 3, padding, more, groups=2), torch.randn(2, 4, 5, 5))


def test_odd_tensors_are_left_to_pytorch() -> None:
    scalar = torch.tensor(2.0)
    negative = torch.randn(3, dtype=torch.cfloat).conj().imag
    nothing = torch.zeros(0)
    for function, given in (
        (lambda x: x.sum(0), scalar),
        (lambda x: x.softmax(0), scalar),
        (lambda x: x.squeeze(0) + 1, scalar),
        (lambda x: x * 2, negative),
        (lambda x: torch.cat([x, x]) + 1, nothing),
    ):
        torch._dynamo.reset()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.testing.assert_close(torch.compile(function, backend="tvmdml")(given), function(given))


def test_a_refusal_is_of_some_sizes_only(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of nothing, as if graphs had nothing in its place."""
    monkeypatch.setattr(empties, "_CHANGES", {})
    compiled = torch.compile(lambda x, y: torch.addmm(y, x.t(), x), backend="tvmdml", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for count in (0, 5):
            torch.testing.assert_close(compiled(torch.ones(count, 4), torch.ones(4, 4)), torch.full((4, 4), count + 1.0))
    assert len(graphs) == 2, "the first of them is refused when its kernels are chosen"


def test_sums_of_nothing_are_compiled(graphs: list[Any]) -> None:
    compiled = torch.compile(lambda x: x.sum(0), backend="tvmdml", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for count in (0, 5):
            torch.testing.assert_close(compiled(torch.ones(count, 4)), torch.full((4,), float(count)))
    assert len(graphs) == 2


def test_training_with_a_pooling() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    x = torch.randn(2, 3, 8, 8)
    right = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = torch.autograd.grad(torch.compile(model, backend="tvmdml")(x).sum(), list(model.parameters()))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        model = nn.Linear(3, 2).eval()
        x = torch.randn(4, 3)
        torch.testing.assert_close(torch.compile(model, backend="tvmdml")(x), model(x))
