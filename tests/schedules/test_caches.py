"""Descriptions of processors' caches, the knobs' defaults derived from them, and results that must not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import TensorDataType, assert_agrees, diagonal_desc, random_bits, round_desc, seeded, tensor
from test_knobs import declared

import tvmdml
from tvmdml import knobs, packs, targets
from tvmdml.kernels.contraction import KC
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.schedules.cpu import diagonal_matrix, matrix, pointwise
from tvmdml.schedules.cpu._gemm import LaunchIntegers
from tvmdml.targets.cpu import CpuTarget, caches
from tvmdml.targets.cpu.caches import GENERIC, Caches

K, M = 1 << 10, 1 << 20


class Kind(NamedTuple):
    """Neighbouring processors that are alike: how many, and how many of them share a core, an L2 and an L3 cache."""

    count: int
    l1: str
    l2: str
    l3: str
    threads: int = 1
    share_l2: int = 1
    share_l3: int = 0  # all of the kind


def machine(root: Path, *kinds: Kind) -> Path:
    """Write what Linux says of a machine."""
    first = 0
    for kind in kinds:
        for number in range(first, first + kind.count):

            def group(size: int, of: int = number - first, first: int = first) -> str:
                begin = first + of // size * size
                return f"{begin}-{begin + size - 1}" if size > 1 else f"{begin}"

            folder = root / f"sys/devices/system/cpu/cpu{number}"
            shared = (kind.threads, kind.threads, kind.share_l2, kind.share_l3 or kind.count)
            rows = zip(
                ("1", "1", "2", "3"), ("Data", "Instruction", "Unified", "Unified"), (kind.l1, "64K", kind.l2, kind.l3), strict=True
            )
            for index, ((level, what, size), count) in enumerate(zip(rows, shared, strict=True)):
                texts = {"level": level, "type": what, "size": size, "shared_cpu_list": group(count)}
                for name, text in texts.items():
                    write(folder / f"cache/index{index}" / name, text)
            write(folder / "topology/core_cpus_list", group(kind.threads))
        first += kind.count
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


ZEN_3 = Kind(2, "32K", "512K", "32768K")
ZEN_4 = Kind(2, "32K", "1024K", "32768K")
INTEL = Kind(2, "48K", "2048K", "107520K")


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([ZEN_3], Caches(32 * K, 512 * K, 32 * M, 2)),
        ([ZEN_4], Caches(32 * K, M, 32 * M, 2)),
        ([INTEL], Caches(48 * K, 2 * M, 32 * M, 2)),  # not the 105 MiB of a whole socket for two of its cores
        ([INTEL._replace(count=56, threads=2, share_l2=2)], Caches(48 * K, 2 * M, 105 * M, 28)),
        ([INTEL._replace(threads=2, share_l2=2)], Caches(48 * K, 2 * M, 16 * M, 1)),  # two hardware threads of one core
        (
            [ZEN_4._replace(count=32, threads=2, share_l2=2, share_l3=16)],
            Caches(32 * K, M, 32 * M, 16),
        ),  # two groups of cores, each with its own cache
        (  # performance cores, and efficient cores of which four share an L2 cache
            [Kind(16, "48K", "2M", "36M", threads=2, share_l2=2), Kind(16, "32K", "4M", "36M", share_l2=4)],
            Caches(32 * K, M, 36 * M, 24),
        ),
    ],
    ids=["Zen 3", "Zen 4", "Intel, virtual", "Intel", "one core", "Zen 4, two groups", "two kinds of core"],
)
def test_a_machine_is_read(kinds: list[Kind], found: Caches, tmp_path: Path) -> None:
    root = machine(tmp_path, *kinds)
    assert caches.read(range(sum(kind.count for kind in kinds)), root) == found


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("processors", "granted", "cores", "l3"),
    [
        (range(56), None, 28, 105 * M),
        (range(4), None, 2, 32 * M),  # affinity to two cores
        (range(0, 8, 2), None, 4, 64 * M),  # one hardware thread of each of four cores
        (range(56), 3, 3, 48 * M),  # a CPU quota of three processors
        (range(4), 50, 2, 32 * M),
        ([7], None, 1, 16 * M),
    ],
)
def test_a_process_counts_what_it_may_use(
    processors: Iterable[int], granted: int | None, cores: int, l3: int, tmp_path: Path
) -> None:
    root = machine(tmp_path, INTEL._replace(count=56, threads=2, share_l2=2))
    assert caches.read(processors, root, granted) == Caches(48 * K, 2 * M, l3, cores)


def _damaged(name: str, text: str | None) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in root.glob(f"sys/devices/system/cpu/cpu*/{name}"):
            path.unlink() if text is None else write(path, text)

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_damaged("cache/index*/*", None), GENERIC),
        (_damaged("cache/index*/size", "0K"), GENERIC),
        (_damaged("cache/index*/size", "a lot"), GENERIC),
        (_damaged("cache/index*/size", "-1"), GENERIC),
        (_damaged("cache/index*/size", "999999999G"), GENERIC),
        (_damaged("cache/index*/size", ""), GENERIC),
        (_damaged("cache/index*/level", "one"), GENERIC),
        (_damaged("cache/index*/type", "Instruction"), GENERIC),
        (_damaged("cache/index3/*", None), Caches(48 * K, 2 * M, 32 * M, 2)),
        (_damaged("cache/index2/size", "16M"), Caches(48 * K, 16 * M, 32 * M, 2)),
        (
            _damaged("cache/index3/size", "1M"),
            Caches(48 * K, 2 * M, 2 * M, 2),
        ),  # no last-level cache is smaller than the level before it
        (_damaged("cache/index*/shared_cpu_list", "0-x,,"), Caches(48 * K, 2 * M, 32 * M, 2)),
        (_damaged("cache/index*/shared_cpu_list", "0-99999"), Caches(48 * K // 2, M, 32 * M, 2)),
        (_damaged("topology/core_cpus_list", None), Caches(48 * K, 2 * M, 32 * M, 2)),
        (_damaged("topology/core_cpus_list", "5-1"), Caches(48 * K, 2 * M, 32 * M, 2)),
    ],
)
def test_what_cannot_be_true_is_replaced(change: Callable[[Path], None], found: Caches, tmp_path: Path) -> None:
    root = machine(tmp_path, INTEL)
    change(root)
    assert caches.read(range(2), root) == found


def test_without_a_description_a_generic_machine_is_assumed(tmp_path: Path) -> None:
    assert caches.read(range(2), tmp_path) == GENERIC
    assert caches.read((), tmp_path) == caches.read([0], tmp_path)
    assert caches.here().cores >= 1
    assert 8 * K <= caches.here().l1 < caches.here().l2 <= caches.here().l3


# -- What follows from it -----------------------------------------------------------------------------------------


def here(monkeypatch: pytest.MonkeyPatch, found: Caches) -> CpuTarget:
    """This machine's target, as if it had such caches and two threads."""
    monkeypatch.setattr(caches, "here", lambda: found)
    monkeypatch.setenv("TVMDML_NUM_THREADS", "2")
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    target = targets.resolve("cpu")
    assert isinstance(target, CpuTarget)
    return target


MACHINES = {
    "Zen 3": Caches(32 * K, 512 * K, 32 * M, 2),
    "Zen 4": Caches(32 * K, M, 32 * M, 2),
    "Intel": Caches(48 * K, 2 * M, 105 * M, 28),
    "least": Caches(8 * K, 64 * K, 512 * K, 1),
    "most": Caches(M, 64 * M, 4096 * M, 500),
}


@pytest.mark.parametrize(
    ("name", "rounding", "diagonal"),
    [
        ("Zen 3", (16 * K, 16 * M), (192 * K, 16 * M, 32 * K)),
        ("Zen 4", (32 * K, 16 * M), (384 * K, 16 * M, 32 * K)),
        ("Intel", (64 * K, 32 * M), (768 * K, 32 * M, 32 * K)),
        ("least", (2 * K, M), (24 * K, M, 8 * K)),  # at least the smallest allowed value
        ("most", (2 * M, 2048 * M), (24 * M, 2048 * M, M)),
    ],
)
def test_defaults_follow_from_the_caches(
    name: str, rounding: tuple[int, ...], diagonal: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = here(monkeypatch, MACHINES[name])
    found = pointwise.KNOBS.now(target)
    assert (found.task_elements, found.stream_bytes) == rounding
    found = diagonal_matrix.KNOBS.now(target)
    assert (found.fill_bytes, found.stream_bytes, found.block_bytes) == diagonal


@pytest.mark.parametrize("one", declared(), ids=lambda one: one.operator)
def test_a_derived_default_is_a_choice_and_the_plain_one_that_of_a_generic_machine(
    one: knobs.Knobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (GENERIC, *MACHINES.values()):
        target = here(monkeypatch, found)
        values = vars(one.now(target))
        assert one.allowed({}, target) == "", "a default keeps the constraints"
        assert all(values[name] in knob.choices for name, knob in one.knobs.items())
        if found == GENERIC:
            assert all(values[name] == knob.default for name, knob in one.knobs.items() if knob.derived is not None)


def tasks(target: targets.Target, desc: Any) -> int:
    return int(kernel_for(desc, target).scalars[0])


@pytest.mark.parametrize(
    ("name", "alone"), [("Zen 3", (31 * K, 15 * K, 300)), ("Zen 4", (63 * K, 31 * K, 440)), ("Intel", (127 * K, 63 * K, 600))]
)
def test_one_thread_does_what_stays_in_its_second_cache(
    name: str, alone: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = here(monkeypatch, MACHINES[name])
    floats, halves, side = alone
    for more, is_alone in ((1, True), (2, False)):
        assert (tasks(target, round_desc(tensor("float32", (more * floats,)))) == 1) is is_alone
        assert (tasks(target, round_desc(tensor("float16", (more * halves,)))) == 1) is is_alone
        identity = diagonal_desc(tensor("float32", (more * side, side)), 1, 0, 1, has_input=False)
        assert (tasks(target, identity) == 1) is is_alone


@pytest.mark.parametrize(("name", "blocks"), [("Zen 3", 1), ("Zen 4", 1), ("Intel", 2), ("least", 1), ("most", 2)])
def test_panels_of_floats_are_as_deep_as_the_second_cache_allows(name: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How deep is passed at launch: machines share kernels. Those of bytes, and in matrix tiles, are the same everywhere."""
    descs = [_product(kind, kind) for kind in ("float32", "float16", "float64")]
    ours = [kernel_for(desc, here(monkeypatch, MACHINES[name])) for desc in descs]
    usual = [kernel_for(desc, here(monkeypatch, GENERIC)) for desc in descs]
    assert [one.parameters for one in ours] == [one.parameters for one in usual]
    at = LaunchIntegers._fields.index("depth_block")
    depths = [one.scalars[at] for one in ours]
    in_tiles = "TileHalves" in str(ours[1].parameters)
    assert depths == [blocks * KC, KC if in_tiles else blocks * KC, blocks * KC]
    of_bytes = {kernel_for(_product("uint8", "int8"), here(monkeypatch, one)).scalars[at] for one in (MACHINES[name], GENERIC)}
    assert len(of_bytes) == 1
    for _, variant in here(monkeypatch, MACHINES[name]).variants():
        assert matrix.KNOBS.now(variant) == matrix.KNOBS.now(None), "a pack is for a generic machine"


@pytest.mark.parametrize(
    ("places", "depth"), [(200, 1), (300, 2), (512, 2), (513, 3), (768, 3), (769, 2), (1024, 2), (1280, 3), (1281, 2), (4096, 2)]
)
def test_no_block_of_places_is_much_shorter_than_others(places: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at = LaunchIntegers._fields.index("depth_block")
    desc = _product("float32", "float32", places)
    assert kernel_for(desc, here(monkeypatch, MACHINES["Intel"])).scalars[at] == depth * KC
    assert kernel_for(desc, here(monkeypatch, MACHINES["Zen 4"])).scalars[at] == KC


def _product(a_type: str, b_type: str, places: int = 2048) -> Any:
    a, b = (tvmdml.TensorDesc(kind, size) for kind, size in ((a_type, (200, places)), (b_type, (places, 300))))
    return tvmdml.Gemm.of(a, b) if a_type == b_type else tvmdml.MatrixMultiplyInteger.of(a, None, b, None)


# -- What must not depend on it -----------------------------------------------------------------------------------


@pytest.mark.full
def test_a_pack_is_the_same_wherever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sizes for which the machines below make different decisions.
    descs = (round_desc(tensor("float32", (100 * K,))), diagonal_desc(tensor("float32", (512, 512)), 1, 0, 1, has_input=False))
    contents, decisions = set(), set()
    for name in ("Zen 3", "Intel", "least"):
        target = here(monkeypatch, MACHINES[name])
        decisions.add(tuple(tasks(target, desc) for desc in descs))
        path = tmp_path / "one.tvmdml"
        packs.build(Spec(("cpu:x86-64-v2", "cpu"), tuple(map(Wanted, descs))), path, jobs=1)
        contents.add(path.read_bytes())
    assert len(decisions) > 1
    assert len(contents) == 1


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", MACHINES)
def test_results_are_the_same_bits_on_every_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = here(monkeypatch, MACHINES[name])
    for data_type in (TensorDataType.FLOAT16, TensorDataType.FLOAT32):
        x = random_bits(seeded(name, data_type), data_type, (200, 701))
        assert_agrees(round_desc(tensor(data_type, x.shape)), target, x)
        for has_input in (False, True):
            assert_agrees(diagonal_desc(tensor(data_type, x.shape), 3, -1, 2, has_input), target, x if has_input else None)
