"""Random numbers of models: their distributions, and that each run, node and session has its own, or those of its seed."""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import BOOL, FLOAT, INT64, N, info, model  # noqa: E402 - they need ONNX

import tvmdml  # noqa: E402
import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import model as models  # noqa: E402
from tvmdml.onnx import random_state  # noqa: E402
from tvmdml.targets import Target  # noqa: E402

HALF, DOUBLE, INT32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32
COUNT = 30001
"""Numbers of each kind; the last block, and the last pair, are cut."""
WEIGHTS = np.array([3, 0, 1, 0, 0, 4], np.float64)


def everything() -> Any:
    """One node of each kind, and what decides about its numbers."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.stack([WEIGHTS, WEIGHTS[::-1]])).astype(np.float32) + 80
    weights = {
        "p": np.linspace(0, 1, 5, dtype=np.float32).repeat(4000),
        "logits": logits,
        "rate": np.float32(0.3),
        "yes": np.bool_(True),
    }
    nodes = [
        N("RandomUniform", [], ["uniform"], shape=[COUNT]),
        N("RandomUniform", [], ["shifted"], shape=[3, COUNT], low=-2.5, high=40.0, seed=7.0),
        N("RandomUniformLike", ["x"], ["half"], dtype=HALF, low=1000.0, high=1001.0),
        N("RandomUniformLike", ["x"], ["double"], dtype=DOUBLE, low=1.0, high=1.0 + 2**-23),
        N("RandomNormal", [], ["normal"], shape=[COUNT]),
        N("RandomNormalLike", ["x"], ["wide"], mean=-3.0, scale=2.0),
        N("RandomNormalLike", ["x"], ["narrow"], dtype=HALF, seed=7.0),
        N("Bernoulli", ["p"], ["decided"], dtype=BOOL),
        N("Multinomial", ["logits"], ["classes"], sample_size=COUNT, dtype=INT64),
        N("Dropout", ["x", "rate", "yes"], ["left", "mask"]),
    ]  # fmt: skip
    kinds = {"half": HALF, "double": DOUBLE, "narrow": HALF, "decided": BOOL, "classes": INT64, "mask": BOOL}
    names = [str(name) for node in nodes for name in node.output]
    return model(nodes, [info("x", ["n", 4])], [info(name, None, kinds.get(name, FLOAT)) for name in names], weights)


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_state, "_given", None)


X = np.ones((COUNT // 4, 4), np.float32)


@pytest.fixture(scope="module")
def file() -> bytes:
    return bytes(everything().SerializeToString())


def named(loaded: Any, found: list[Any]) -> dict[str, Any]:
    return dict(zip((one.name for one in loaded.outputs), found, strict=True))


def is_distributed(numbers: Any, below: Any) -> bool:
    """Kolmogorov's and Smirnov's test at 1 %: the largest distance from the part that should be ``below`` each number."""
    ordered = np.sort(numbers.reshape(-1).astype(np.float64))
    n = ordered.size
    right = np.array([below(one) for one in ordered]) if below is normally else below(ordered)
    steps = np.arange(n + 1) / n
    return bool(max((steps[1:] - right).max(), (right - steps[:-1]).max()) * math.sqrt(n) < 1.63)


def normally(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


@pytest.mark.full
def test_numbers_have_their_distributions(file: bytes, target: Target) -> None:
    loaded = tvmdml.onnx.load(file, target=target, seed=1)
    found = named(loaded, loaded(x=X))
    assert [(one.dtype, one.shape) for one in (found["half"], found["double"], found["classes"], found["decided"])] == [
        (np.float16, X.shape), (np.float64, X.shape), (np.int64, (2, COUNT)), (np.bool_, (20000,))
    ]  # fmt: skip
    assert is_distributed(found["uniform"], lambda x: x)
    assert 0 <= found["uniform"].min() < 2e-4 < 1 - 2e-4 < found["uniform"].max() < 1
    assert is_distributed(found["shifted"], lambda x: (x + 2.5) / 42.5)
    assert -2.5 <= found["shifted"].min() < found["shifted"].max() < 40
    assert set(found["half"].reshape(-1).tolist()) == {1000, 1000.5}, "1001 is not below itself"
    assert set(found["double"].reshape(-1).tolist()) == {1}
    for numbers in (found["normal"], (found["wide"] + 3) / 2, found["narrow"]):
        assert is_distributed(numbers, normally)
        wide = numbers.astype(np.float64)
        for power, right in ((1, 0), (2, 1), (3, 0), (4, 3)):
            allowed = 4 * math.sqrt(math.prod(range(1, 2 * power, 2)) / COUNT)
            assert abs((wide**power).mean() - right) < allowed, power
    first, second = np.split(found["normal"][:-1], 2)  # of the same words
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(first.size)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4 / math.sqrt(first.size)
    parts = found["decided"].reshape(5, -1).mean(1)
    assert np.abs(parts - [0, 0.25, 0.5, 0.75, 1]).max() < 0.03
    assert (parts[0], parts[-1]) == (0, 1)
    for row, weights in zip(found["classes"], (WEIGHTS, WEIGHTS[::-1]), strict=True):
        counts, right = np.bincount(row, minlength=6), weights * COUNT / 8
        assert not counts[weights == 0].any()
        assert ((counts - right)[weights > 0] ** 2 / right[weights > 0]).sum() < 13.8, "chi square at 0.1 %"
    kept = found["mask"]
    assert abs(kept.mean() - 0.7) < 4 * math.sqrt(0.21 / kept.size)
    assert np.array_equal(found["left"], np.where(kept, np.float32(1 / 0.7), np.float32(0)))
    assert not any(
        np.array_equal(one, other)
        for one, other in zip(loaded(x=X), found.values(), strict=True)
        if one is not found["double"] and one.dtype != np.float64
    )
    here = tvmdml.onnx.load(file, seed=1)
    assert all(map(np.array_equal, here(x=X), found.values())), "the same bits on every target"


def drawing(*nodes: Any, **more: Any) -> bytes:
    """A model that draws 64 numbers, or what nodes draw."""
    nodes = nodes or (N("RandomUniform", [], ["y"], shape=[64]),)
    return bytes(model(list(nodes), more.pop("inputs", []), [info("y", None)], **more).SerializeToString())


def words(run: int, place: int, key: tuple[int, int], count: int) -> Any:
    return tvmdml.random_generator(np.array([0, run, run >> 32, place, *key], np.uint32), (count,), output_state=False)


def test_numbers_follow_from_key_run_and_place() -> None:
    """What README.md says, so that seeds give the same numbers in other versions, and in C."""
    places = [
        N("RandomUniform", [], ["a"], shape=[64]),
        N("RandomUniform", [], ["b"], shape=[64], seed=2.5),
        N("Concat", ["a", "b"], ["y"], axis=0),
    ]
    loaded = tvmdml.onnx.load(drawing(*places), seed=5 << 32 | 9)
    seed = int(np.float32(2.5).view(np.uint32))
    for run in range(3):
        right = np.concatenate([words(run, 0, (9, 5), 64), words(run, 1, (seed, 1), 64)])
        assert np.array_equal(loaded()[0], (right >> 8) * np.float32(2**-24))
    state = random_state.RandomStates(-1)
    state._runs = iter([(1 << 40) + 3])
    assert state.state().tolist() == [0, 3, 256, 0, 2**32 - 1, 2**32 - 1]


def test_seeds_decide_and_without_one_nothing_comes_twice() -> None:
    file, fixed = drawing(), drawing(N("RandomUniform", [], ["y"], shape=[64], seed=3.0))

    def three(given: bytes, **more: Any) -> list[list[float]]:
        loaded = tvmdml.onnx.load(given, **more)
        return [loaded()[0].tolist() for _ in range(3)]

    apart = [*three(file), *three(file), *three(file, seed=1), *three(file, seed=2), *three(fixed)]
    assert len(set(map(tuple, apart))) == len(apart)
    assert three(file, seed=1) == apart[6:9]
    assert three(fixed, seed=1) == apart[12:]
    tvmdml.onnx.set_seed(2)
    assert [tvmdml.onnx.InferenceSession(file).run(None, {})[0].tolist() for _ in range(2)] == [apart[9]] * 2
    for wrong in (1.5, "1", True):
        with pytest.raises(tvmdml.InvalidArgument, match=r"load seed: given .*; allowed: an integer"):
            tvmdml.onnx.load(file, seed=wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_draws_other_numbers() -> None:
    for seed, same in ((None, False), (4, True)):
        numbers = random_state.RandomStates(seed)
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, numbers.state().tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        there = np.frombuffer(os.read(reader, 24), np.uint32)
        os.close(reader), os.close(writer)
        assert np.array_equal(there, numbers.state()) == same


def test_no_two_runs_of_threads_draw_the_same() -> None:
    file, found = drawing(), []
    together, alone = (tvmdml.onnx.load(file, seed=8) for _ in range(2))
    together()

    def work() -> None:
        found.extend(tuple(together()[0].tolist()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 300
    assert set(found) == {tuple(alone()[0].tolist()) for _ in range(301)} - {tuple(tvmdml.onnx.load(file, seed=8)()[0].tolist())}


def test_what_is_kept_on_disk_has_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    file = drawing(N("RandomNormalLike", ["x"], ["y"]), inputs=[info("x", ["n"])])
    x = np.zeros(40, np.float32)
    first, same = tvmdml.onnx.load(file)(x=x)[0], tvmdml.onnx.load(file, seed=3)(x=x)[0]
    monkeypatch.setattr(models.Model, "_origin", None)
    again = tvmdml.onnx.load(file)
    assert len({tuple(one.tolist()) for one in (first, again(x=x)[0], again(x=x)[0])}) == 3
    assert np.array_equal(tvmdml.onnx.load(file, seed=3)(x=x)[0], same)


@pytest.mark.full(first=1)
def test_bound_runs_and_runs_with_values_draw_the_same(target: Target) -> None:
    file = drawing(N("RandomNormalLike", ["x"], ["y"]), inputs=[info("x", ["n"])])
    x = np.zeros(40, np.float32)
    right = tvmdml.onnx.load(file, target=target, seed=6)
    loaded = tvmdml.onnx.load(file, target=target, seed=6)
    binding = loaded.io_binding()
    memory = tvmdml.onnx.OrtValue(target.empty((40,), np.float32))
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", memory)
    for _ in range(3):
        loaded.run_with_iobinding(binding)
        assert np.array_equal(memory.numpy(), right(x=x)[0])
    assert binding._quick is not None
    given = tvmdml.onnx.OrtValue(target.asarray(x))
    assert np.array_equal(loaded.run_with_ort_values(None, {"x": given})[0].numpy(), right(x=x)[0])


@pytest.mark.full
def test_a_size_that_grows_has_the_numbers_of_others() -> None:
    nodes = [
        N("RandomNormalLike", ["x"], ["a"]),
        N("Add", ["a", "x"], ["b"]),
        N("RandomUniformLike", ["b"], ["c"]),
        N("Mul", ["b", "c"], ["y"]),
    ]
    file = drawing(*nodes, inputs=[info("x", ["n", 2])])
    loaded = tvmdml.onnx.load(file, seed=6)
    for i, n in enumerate((3, 4, 6, 9)):
        x = np.full((n, 2), n, np.float32)
        alone = tvmdml.onnx.load(file, {"n": n}, seed=6)
        assert np.array_equal(loaded(x=x)[0], [alone(x=x)[0] for _ in range(i + 1)][-1])


def test_rounds_of_a_loop_and_functions_draw_apart() -> None:
    body = onnx.helper.make_graph(
        [N("RandomUniform", [], ["u"], shape=[8], seed=1.0), N("Identity", ["go"], ["still"])], "body",
        [info("i", [], INT64), info("go", [], BOOL)], [info("still", [], BOOL), info("u", None)],
    )  # fmt: skip
    file = drawing(N("Loop", ["rounds", "yes"], ["y"], body=body), weights={"rounds": np.int64(5), "yes": np.bool_(True)})
    loaded = tvmdml.onnx.load(file)
    rows = np.concatenate([loaded()[0], loaded()[0]])
    assert len(set(map(tuple, rows.tolist()))) == 10


@pytest.mark.full
def test_numbers_after_the_graph(target: Target) -> None:
    """Of as many elements as others decide; and what random numbers decide."""
    nodes = [
        N("RandomUniformLike", ["x"], ["u"]),
        N("Greater", ["u", "half"], ["far"]),
        N("NonZero", ["far"], ["places"]),
        N("Cast", ["places"], ["wide"], to=FLOAT),
        N("RandomUniformLike", ["wide"], ["v"], seed=2.0),
        N("Dropout", ["v", "rate", "yes"], ["y"]),
    ]
    weights = {"half": np.float32(0.5), "rate": np.float32(0.5), "yes": np.bool_(True)}
    made = model(nodes, [info("x", ["n"])], [info("u", None), info("v", None), info("y", None)], weights).SerializeToString()
    loaded, again = (tvmdml.onnx.load(made, target=target, seed=1) for _ in range(2))
    x, seen = np.zeros(5000, np.float32), set()
    for run in range(2):
        u, v, y = loaded(x=x)
        assert v.shape == (1, (u > 0.5).sum())
        (seed,) = np.array([2], np.float32).view(np.uint32).tolist()
        assert np.array_equal(v[0], (words(run, 1, (seed, 1), v.size) >> 8) * np.float32(2**-24))
        assert set(np.unique(y == v * 2)) == {False, True}
        assert ((y == 0) | (y == v * 2)).all()
        seen.update((float(u[0]), float(v[0, 0])))
        assert all(map(np.array_equal, again(x=x), (u, v, y)))
    assert len(seen) == 4


@pytest.mark.parametrize("known", [False, True])
def test_dropout_of_a_rate_that_is_given(known: bool) -> None:
    inputs = [info("x", [4000]), info("yes", [], BOOL), *([] if known else [info("rate", [])])]
    loaded = tvmdml.onnx.load(
        drawing(N("Dropout", ["x", "rate", "yes"], ["y"]), inputs=inputs, weights={"rate": np.float32(0.25)} if known else {}),
        seed=1,
    )
    x = np.arange(1, 4001, dtype=np.float32)
    given = {} if known else {"rate": np.float32(0.25)}
    (y,) = loaded(x=x, yes=np.bool_(True), **given)
    assert set(np.round(y / x * 3).tolist()) == {0, 4}
    assert abs((y == 0).mean() - 0.25) < 0.03
    assert np.array_equal(loaded(x=x, yes=np.bool_(False), **given)[0], x)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (N("RandomUniform", [], ["y"], shape=[4], low=2.0, high=1.0), "its numbers are from 2.0 to 1.0"),
        (N("RandomUniform", [], ["y"], shape=[4], low=-3e38, high=3e38), "its numbers are from"),
        (N("RandomUniform", [], ["y"], shape=[4], low=0.0, high=math.nan), "its numbers are from 0.0 to nan"),
        (N("RandomUniform", [], ["y"], shape=[1 << 40]), "RandomUniform of 'y'"),
        (N("RandomNormal", [], ["y"], shape=[-4]), "RandomNormal of 'y'"),
        (N("RandomNormalLike", ["i"], ["y"]), "RandomNormalLike of 'y'"),
        (N("Multinomial", ["p"], ["y"], sample_size=-1), "Multinomial of 'y'"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(node: Any, said: str) -> None:
    with pytest.raises((tvmdml.Unsupported, tvmdml.ModelError), match=said):
        tvmdml.onnx.load(drawing(node, inputs=[info("i", [4], INT32), info("p", [2, 4])]))
