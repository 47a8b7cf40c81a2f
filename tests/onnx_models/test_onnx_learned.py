"""What a process has learned of sizes that grow, another one finds in the cache: it converts nothing, and computes the same."""

from __future__ import annotations

import gc
import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from test_onnx_growing import Counted, decoder, halving  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml import compiler  # noqa: E402
from tvmdml.disk import plans  # noqa: E402
from tvmdml.onnx.learned import Learned  # noqa: E402

PAST = (5, 6, 7)
"""Lengths that are learned from."""
KNOWN = (9, 13)
"""Lengths that are known then."""
SIZES = struct.Struct("<QQ")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that gets the kernels of this module."""
    found = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_memory", {})
        patch.setenv("TVMDML_CACHE_DIR", str(found))
        yield found


@pytest.fixture
def cache(kernels: Path) -> Path:
    """The same, without plans."""
    shutil.rmtree(kernels / "plans", ignore_errors=True)
    return kernels


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """How often models were converted."""
    monkeypatch.setattr("tvmdml.onnx.origin.Conversion", Counted)
    Counted.whole = 0
    return Counted


def step(length: int, width: int = 8) -> dict[str, Any]:
    """What a decoder takes."""
    rng = np.random.default_rng(length)
    return {name: rng.standard_normal((1, n, width), np.float32) for name, n in (("x", 1), ("past_k", length), ("past_v", length))}


def image(width: int) -> dict[str, Any]:
    """What a network of images takes."""
    return {"x": np.random.default_rng(width).standard_normal((1, 2, 8, width), np.float32)}


def bits(loaded: Any, feeds: Any) -> list[bytes]:
    return [one.tobytes() for one in loaded(feeds)]


def load(made: Any) -> Any:
    gc.collect()  # what is mapped by nobody is read again
    return tvmdml.onnx.load(made)


def alone(made: Any, feeds: Any) -> list[bytes]:
    """The results of a model that is new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_DISABLE_PLANS", "1")
        return bits(tvmdml.onnx.load(made), feeds)


def learn(made: Any = None) -> Any:
    loaded = load(decoder() if made is None else made)
    for n in PAST:
        loaded(step(n))
    return loaded


def files(cache: Path, what: bytes) -> list[Path]:
    """The plans whose descriptions have a word."""
    return [one for one in sorted((cache / "plans").rglob("*.plan")) if what in _text(one)]


def _text(path: Path) -> bytes:
    content = path.read_bytes()[plans.ALIGNMENT :]
    try:
        return zlib.decompress(content[SIZES.size : SIZES.size + SIZES.unpack_from(content)[0]])
    except (zlib.error, struct.error):
        return content  # the model's


@pytest.mark.full
def test_a_decoder_is_not_learned_again(cache: Path, conversions: type[Counted]) -> None:
    """Its masks and positions are computed by the model's nodes."""
    learn()
    assert conversions.whole >= 5
    for n in KNOWN:
        conversions.whole = 0
        found = bits(load(decoder()), step(n))
        assert not conversions.whole
        assert found == alone(decoder(), step(n))


@pytest.mark.full
def test_a_size_that_is_halved_is_not_learned_again(cache: Path, conversions: type[Counted]) -> None:
    """A new process has the functions of all residues, and learns others from them."""
    made = halving()
    loaded = load(made)
    for n in (80, 96, 104, 89, 113):
        loaded(image(n))
    for n in (88, 121, 112, 105):
        conversions.whole = 0
        found = bits(load(made), image(n))
        assert not conversions.whole, n
        assert found == alone(made, image(n))
    later = load(made)
    bits(later, image(88))
    for n in (90, 114):
        later(image(n))
    conversions.whole = 0
    assert bits(later, image(122)) == bits(load(made), image(122)) == alone(made, image(122))
    assert conversions.whole == 1, "the one that is alone"


@pytest.mark.full
def test_a_larger_size_is_learned_from_where_another_process_ended(cache: Path, conversions: type[Counted]) -> None:
    most = max(one.most for one in learn()._functions().every)
    later = load(decoder())
    for n in (most - 1, most + 1, most + 2, most + 30):
        assert bits(later, step(n)) == alone(decoder(), step(n)), n
    conversions.whole = 0
    assert bits(load(decoder()), step(most + 40)) == bits(later, step(most + 40))
    assert not conversions.whole
    (index,) = files(cache, b'"lines":')
    assert len(json.loads(_text(index))["described"]["lines"]) == 1, "the longer one is instead of the other one"


ALONE = """
import sys
for name in ("onnx", "tvm", "tvmdml.onnx.converting", "tvmdml.onnx.growing", "tvmdml.onnx_nodes"):
    sys.modules[name] = None  # an import would fail
import numpy as np, tvmdml.onnx
sys.stdout.write(tvmdml.onnx.load(sys.argv[1])(x=np.load(sys.argv[2]))[0].tobytes().hex())
"""


@pytest.mark.full
def test_a_new_width_needs_neither_compiler_nor_onnx(cache: Path, tmp_path: Path) -> None:
    """Where nothing but shapes follows from sizes, and the kernels are there."""
    path = tmp_path / "m.onnx"
    path.write_bytes(halving())
    loaded = load(path)
    for n in (80, 96, 104):
        loaded(image(n))
    loaded(image(120))  # for its kernels
    np.save(tmp_path / "x.npy", image(120)["x"])
    command = [sys.executable, "-c", ALONE, str(path), str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    assert done.stdout == alone(halving(), image(120))[0].hex()


def test_another_model_is_learned_for_itself(cache: Path, conversions: type[Counted]) -> None:
    learn()
    other = onnx.load_from_string(decoder())
    (weight,) = (one for one in other.graph.initializer if one.name == "wq")
    weight.raw_data = (2 * np.frombuffer(weight.raw_data, np.float32)).tobytes()
    changed = other.SerializeToString()
    conversions.whole = 0
    found = bits(load(changed), step(9))
    assert conversions.whole == 1
    assert found == alone(changed, step(9))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda content: content[:400] + bytes([content[400] ^ 1]) + content[401:],
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.mark.full
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("what", ["lines", "table"])
def test_damaged_files_are_made_again(cache: Path, what: str, how: str, conversions: type[Counted]) -> None:
    learn()
    (path,) = files(cache, f'"{what}":'.encode())
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    right = alone(decoder(), step(9))
    conversions.whole = 0
    assert bits(load(decoder()), step(9)) == right
    assert conversions.whole == 1
    later = load(decoder())
    for n in (10, 11, 12):
        later(step(n))
    conversions.whole = 0
    assert bits(load(decoder()), step(14)) == bits(later, step(14))
    assert not conversions.whole, "it was learned again"


def test_what_another_user_may_have_written_is_not_read(cache: Path, conversions: type[Counted]) -> None:
    learn()
    (path,) = files(cache, b'"table":')
    path.chmod(0o666)
    conversions.whole = 0
    assert bits(load(decoder()), step(9)) == alone(decoder(), step(9))
    assert conversions.whole >= 1


def _edges(table: Any) -> Any:
    """The form and numbers of the first call's edges."""
    return next(one for one in table["every"] if "calls" in json.dumps(table["forms"][one[0]]))


# What somebody may write in a function.
FORGED: dict[str, Callable[[Any], object]] = {
    "no form": lambda one: one["table"]["forms"].__setitem__(0, ["tuple"]),
    "no operator": lambda one: one["table"]["forms"].__setitem__(0, ["os.system", 0]),
    "another type": lambda one: one["table"]["forms"].__setitem__(0, {"enum": ["IntEnum", 1]}),
    "a form from the end": lambda one: one["table"]["every"][0].__setitem__(0, -1),
    "less numbers": lambda one: [own.__delitem__(slice(1, None)) for own in one["table"]["every"]],
    "a polynomial without divisor": lambda one: one["table"]["every"][0].__setitem__(1, [1, 2, 3, 0]),
    "reads beyond the end": lambda one: _edges(one["table"]).__setitem__(-1, 1 << 40),
    "reads before the begin": lambda one: _edges(one["table"]).__setitem__(-1, -64),
    "a node that is not there": lambda one: _edges(one["table"]).__setitem__(1, 1 << 20),
    "a description that is not there": lambda one: one["programs"]["descs"].__setitem__(0, 1 << 20),
    "another input": lambda one: one["programs"]["names"].__setitem__(0, "other"),
    "less results": lambda one: [one["programs"][name].pop() for name in ("ends", "results", "forms")],
    "no calls": lambda one: one["programs"].__setitem__("descs", []),
    "other places": lambda one: one.__setitem__("places", [9, 5]),
    "no place": lambda one: one.__setitem__("places", []),
    "no line": lambda one: one["line"].__setitem__(2, 0),
    "other nodes": lambda one: one.__setitem__("nodes", [1 << 20]),
    "other kinds": lambda one: one.__setitem__("kinds", "x"),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("how", FORGED)
def test_functions_that_fit_nothing_are_not_used(cache: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learn()
    (path,) = files(cache, b'"table":')
    content = path.read_bytes()[plans.ALIGNMENT :]
    text, said = SIZES.unpack_from(content)
    begin, end = SIZES.size + text, SIZES.size + text + said
    plan = json.loads(zlib.decompress(content[SIZES.size : begin]))
    FORGED[how](plan["described"])
    changed = zlib.compress(json.dumps(plan).encode())
    head = SIZES.pack(len(changed), said) + changed + content[begin:end]
    rest = content[-(-end // plans.ALIGNMENT) * plans.ALIGNMENT :]
    assert plans.PlanStore().add(path.stem, [head + bytes(-len(head) % plans.ALIGNMENT) + rest])
    asked = []
    monkeypatch.setattr(Learned, "read", lambda *given, read=Learned.read: asked.append(given) or read(*given))
    assert bits(load(decoder()), step(9)) == alone(decoder(), step(9))
    assert asked
