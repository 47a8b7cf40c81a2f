"""Some examples of each of ``fuzz``'s aims, the same in every run; and inputs that once failed, one by one."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import TESTS
from fuzz import aims, child, engine, oracle
from fuzz.choices import Choices

import tvmdml
from tvmdml import knobs, targets, tuning
from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import log_files, logs, shelf, spec
from tvmdml.packs import building
from tvmdml.system.disk import stores

_REGRESSIONS = TESTS / "fuzz" / "regressions"
_X = tvmdml.TensorDesc("float32", (3, 4))
_ROUND = tvmdml.ElementWiseRound(input_tensor=_X, output_tensor=_X, rounding_mode=0)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _aim(name: str) -> Any:
    try:
        return aims.find(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{name}: {error}")


def _run(aim: Any, count: int, seed: int) -> None:
    for data in itertools.islice(child.examples(seed, list(aims.seeds(aim))), count):
        finding = oracle.examine(aim.one, data)
        assert finding is None, f"{finding.title}\nthe example is bytes.fromhex({data.hex()!r})\n{finding.text}"


@pytest.mark.full
@pytest.mark.parametrize("name", aims.names())
def test_examples_give_results_or_refusals(name: str) -> None:
    aim = _aim(name)
    _run(aim, aim.EXAMPLES, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", aims.names())
def test_many_examples_give_results_or_refusals(name: str) -> None:
    aim = _aim(name)
    _run(aim, 20 * aim.EXAMPLES, 1)


@pytest.mark.parametrize("path", sorted(_REGRESSIONS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_that_once_failed(path: Path) -> None:
    _aim(path.parent.name).check(path.read_bytes())


# -- The search itself --------------------------------------------------------------------------------------------


def _seed_for(kind: int) -> int:
    """A seed with which, of the planted faults that end a process, this one comes first."""
    for seed in range(1000):
        found = (data[0] % 16 for data in child.examples(seed, []))
        if next(one for one in found if one in (1, 2)) == kind:
            return seed
    raise AssertionError


@pytest.mark.parametrize(("kind", "said"), [(1, "ends the process (-6)"), (2, "hangs for more than")])
def test_a_crash_and_a_hang_are_findings(kind: int, said: str, tmp_path: Path) -> None:
    told: list[str] = []
    running = engine.Engine(tmp_path / "corpus", tmp_path / "findings", 0, False, 1 << 30, 0.7, told.append)
    tally = running.tallies["_planted"] = engine.Tally()
    running._process("_planted", 60.0, _seed_for(kind))
    (crash,) = (path for path in (tmp_path / "findings").glob("*.txt") if said in path.read_text())
    assert crash.with_suffix(".bin").read_bytes()[0] % 16 == kind
    assert crash.with_suffix(".bin").name in tally.new
    assert tally.examples > 0


def test_wrong_errors_and_huge_allocations_are_findings() -> None:
    from fuzz.aims import _planted

    found = {oracle.examine(_planted.one, bytes([kind])) for kind in (0, 3)}
    assert sorted(one.title.partition(" ")[0] for one in found if one is not None) == ["KeyError", "MemoryError"]
    assert oracle.examine(_planted.one, b"\xff") is None


def test_the_same_seed_gives_the_same_examples() -> None:
    one, other = (list(itertools.islice(child.examples(3, [b"known"]), 50)) for _ in range(2))
    assert one == other
    assert one[0] == b"known"
    assert len(set(one)) > 40


def test_decisions_end_with_the_bytes() -> None:
    choices = Choices(b"\x05")
    assert choices.pick("abcdefgh") == "f"
    assert choices.pick("abcdefgh") == "a"
    assert choices.text() == ""
    assert choices.rest() == b""


# -- Arguments that once failed -----------------------------------------------------------------------------------

_HUGE = 10**5000
"""Python refuses to print it."""


class _Unprintable:
    """Of no use in a message."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class _Text(str):
    """A text without a length."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no")


class _Odd:
    """What is shown as such a text."""

    def __repr__(self) -> str:
        return _Text("odd")


class _Sulky:
    """An array's element that does not want to be one."""

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("no")


_REFUSED: dict[str, Callable[[], Any]] = {
    "k is huge": lambda: tvmdml.top_k(np.zeros(3, np.float32), _HUGE),
    "k is a dict of a huge integer": lambda: tvmdml.top_k(np.zeros(3, np.float32), {"k": _HUGE}),  # type: ignore[arg-type]
    "a size is huge": lambda: tvmdml.TensorDesc("float32", [_HUGE]),
    "a size cannot be shown": lambda: tvmdml.TensorDesc("float32", [_Unprintable()]),  # type: ignore[list-item]
    "a size is shown oddly": lambda: tvmdml.TensorDesc("float32", [_Odd()]),  # type: ignore[list-item]
    "a list of what cannot be in an array": lambda: tvmdml.asarray([_Sulky()]),
    "a mode cannot be shown": lambda: tvmdml.round(np.zeros(3, np.float32), rounding_mode=_Unprintable()),  # type: ignore[arg-type]
    "a type of a lone surrogate": lambda: tvmdml.TensorDesc("float32\ud800", (2,)),
    "a type that NumPy takes for several": lambda: tvmdml.TensorDesc("6.4, float", (2,)),
    "a type that is an array": lambda: tvmdml.TensorDesc(np.zeros(3), (2,)),  # type: ignore[arg-type]
    "sizes without a dimension": lambda: tvmdml.TensorDesc("float32", np.array(3)),  # type: ignore[arg-type]
    "trim is an array": lambda: tvmdml.nonzero_coordinates(np.zeros(3, np.float32), trim=np.zeros(3)),  # type: ignore[call-overload]
    "a value that is a time": lambda: tvmdml.diagonal_matrix(np.zeros((2, 2), np.float32), value=np.timedelta64(1, "s")),  # type: ignore[arg-type]
    "a device that is an array": lambda: tvmdml.round(np.zeros(3, np.float32), device=np.zeros(3)),  # type: ignore[arg-type]
    "a level that is an array of no characters": lambda: tvmdml.compile(_ROUND, "cpu", np.full(2, 0x7FFFFFFF, "u4").view("U1")),  # type: ignore[arg-type]
    "a shape without end": lambda: tvmdml.empty(itertools.count(1)),  # type: ignore[arg-type]
    "a shape of too much": lambda: tvmdml.empty((2**31, 2**31, 2**31)),
    "knobs that are none": lambda: knobs.using(top_k=None).__enter__(),  # type: ignore[arg-type]
    "knobs of a module in a module": lambda: knobs.using(**{"a.b": {}}).__enter__(),
    "knobs of no name": lambda: knobs.using(**{"": {}}).__enter__(),
    "a display that is none": lambda: tuning.tune(_ROUND, trials=1, display=object()),  # type: ignore[arg-type]
    "operations without a dimension": lambda: tuning.tune(np.array(None)),  # type: ignore[arg-type]
    "an operation of something else": lambda: tuning.tune(spec.Wanted({})),  # type: ignore[arg-type]
    "a pack's path that is none": lambda: building.build(spec.Spec(("cpu",), (spec.Wanted(_ROUND),)), 7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", _REFUSED.values(), ids=_REFUSED)
def test_arguments_that_once_failed_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match=r": given .*; allowed: "):
        call()


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this NumPy has no StringDType")
@pytest.mark.parametrize("x", [np.zeros(3, np.float32), np.zeros(4, "T" if hasattr(np.dtypes, "StringDType") else "U1")[::-1]])
def test_arrays_of_strings_are_refused(x: Any) -> None:
    with pytest.raises(InvalidArgument, match="StringDType"):
        tvmdml.round(x, out=np.zeros(3, "T"))


_USES: dict[str, Callable[[Any], Any]] = {
    "a type that is none": lambda x: x.view("no type"),
    "a type of a lone surrogate": lambda x: x.view("\ud800"),
    "objects": lambda x: x.view(object),
    "no step": lambda x: x[::0],
    "half a step": lambda x: x[:0.5],
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
def test_uses_of_device_arrays_that_once_failed_are_refused(use: Callable[[Any], Any], device: targets.Target) -> None:
    with pytest.raises(InvalidArgument, match=r"DeviceArray.*: given .*; allowed: "):
        use(tvmdml.asarray(np.zeros((2, 3)), device=device))


@pytest.mark.parametrize("keyword", [{"max_version": True}, {"dl_device": (1, None)}, {"dl_device": np.zeros(3)}, {"copy": "no"}])
def test_capsules_are_asked_for_in_words_that_make_sense(keyword: dict[str, Any], device: targets.Target) -> None:
    x = tvmdml.asarray(np.zeros((2, 3)), device=device)
    with pytest.raises(InvalidArgument if device.kind == "cuda" else BufferError, match="DeviceArray"):
        x.__dlpack__(**keyword)


def test_an_exported_shape_may_have_no_end(device: targets.Target) -> None:
    x = tvmdml.asarray(np.zeros((2, 3)), device=device)
    if device.kind != "cuda":
        assert not hasattr(x, "__cuda_array_interface__")
        return
    exporter = type("Exporter", (), {"__cuda_array_interface__": {**x.__cuda_array_interface__, "shape": itertools.repeat(1)}})()
    with pytest.raises(InvalidArgument, match=r"up to \d+ sizes from 0 up"):
        tvmdml.asarray(exporter, device=device)


class _Word(str):
    """A text that behaves like none."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def upper(self) -> Any:
        return float


def test_texts_of_odd_classes_are_what_they_say() -> None:
    assert targets.resolve(_Word("cpu")) == targets.resolve("cpu")
    assert tvmdml.TensorDesc(_Word("float32"), (2,)).data_type is tvmdml.TensorDataType.FLOAT32


def test_tensors_of_pytorch_that_are_no_integers_and_no_types_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    large = torch.tensor(2**64 - 1, dtype=torch.uint64)
    x = np.zeros((3, 3), np.float32)
    for call in (
        lambda: tvmdml.empty((large,)),
        lambda: tvmdml.TensorDesc("float32", (large,)),
        lambda: tvmdml.top_k(x, large),
        lambda: tvmdml.top_k(x, 1, axis=large),
        lambda: tvmdml.diagonal_matrix(x, diagonal_fill_begin=large),
        lambda: tvmdml.diagonal_matrix(sizes=(large, 2)),
        lambda: tvmdml.empty((2,), dtype=torch._neg_view(large)),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_a_description_has_integers_and_so_a_hash() -> None:
    desc = tvmdml.TensorDesc("float32", (2,), None, np.array(8), np.array(16))  # type: ignore[arg-type]
    assert (desc.total_tensor_size_in_bytes, desc.guaranteed_base_offset_alignment) == (8, 16)
    assert hash(desc) == hash(tvmdml.TensorDesc("float32", (2,), None, 8, 16))


# -- Files that once failed ---------------------------------------------------------------------------------------


def _record() -> bytes:
    import json

    from fuzz.aims import logs as lines

    return json.dumps(lines._lines()[0]).encode()


def test_a_mark_of_the_order_of_bytes_costs_no_line(tmp_path: Path) -> None:
    (tmp_path / "top_k.jsonl").write_bytes(b"\xef\xbb\xbf" + _record())
    (line,) = log_files.read(tmp_path / "top_k.jsonl")
    assert line.record is not None


def test_a_file_of_bad_lines_is_left_alone_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "top_k.jsonl"
    path.write_bytes(_record() + b"\n" + b"x\n" * 5000 + _record())
    monkeypatch.setattr(stores, "_warned", set())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(list(logs.read([tmp_path]))) == 1
    said = [str(one.message) for one in told]
    assert any(
        "top_k.jsonl:1002: left out of the tuning logs: the rest is not read: 1000 lines before it are bad" in text for text in said
    )
    assert len(said) == 5, said
    assert len(log_files.read(path)) == 5002  # once when it is checked and once when it is written, the whole file counts


def test_a_cache_that_no_file_can_be_in_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", "x" * 300)
    store = stores.DiskStore()
    assert (store.entries(), store.prune()) == ([], 0)


# -- The environment ----------------------------------------------------------------------------------------------


def test_a_pack_of_the_environment_is_blamed_on_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_PACKS", "no-such.tvmdml")
    with pytest.raises(PackError, match="TVMDML_PACKS"):
        shelf._packs()


def test_examples_differ() -> None:
    """The decisions are spread: of a hundred random examples of functions, all four operators are called."""
    from fuzz.aims import functions

    chance = random.Random(0)
    called = {Choices(chance.randbytes(64)).pick(functions._CALLS).__name__ for _ in range(100)}
    assert len(called) == len(functions._CALLS)
