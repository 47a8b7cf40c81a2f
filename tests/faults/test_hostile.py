"""Unfortunate or hostile callers, systems and arrays: an error or the right result, never a crash, a hang or a wrong result."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from programs import python

import tvmdml
from tvmdml.errors import InvalidArgument

X = np.array([[2.5, -1.5], [0.5, 3.5]], np.float32)


class Liar:
    """Shows a longer array the first time than later."""

    def __init__(self, first: np.ndarray, later: np.ndarray) -> None:
        self.shown = [first]
        self.later = later

    def __dlpack__(self, **keywords: Any) -> Any:
        return (self.shown.pop() if self.shown else self.later).__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_out_is_looked_at_once() -> None:
    memory = np.full(12, -1, np.float32)
    x = np.arange(8, dtype=np.float32)
    tvmdml.round(x, out=Liar(memory[:8], memory[:2]))
    np.testing.assert_array_equal(memory, [*x, -1, -1, -1, -1])
    memory[:] = -1
    with pytest.raises(InvalidArgument, match=r"shape \(2,\)"):
        tvmdml.round(x, out=Liar(memory[:2], memory[:8]))
    assert (memory == -1).all()


def test_a_scalar_is_no_out() -> None:
    with pytest.raises(InvalidArgument, match=r"tvmdml.round: out .*: given float32; allowed: a NumPy array"):
        tvmdml.round(np.float32(2.6), out=np.float32(7))


def test_an_out_whose_elements_share_an_address_is_refused() -> None:
    out = np.lib.stride_tricks.as_strided(np.zeros(2, np.float32), (2, 2), (0, 4))
    with pytest.raises(InvalidArgument, match=r"tvmdml\.round: output: given strides"):
        tvmdml.round(X, out=out)


def test_an_output_that_pytorch_would_copy_is_refused_by_the_descriptor_door() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    desc = tvmdml.TensorDesc("float32", (4,))
    rounded = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=0))  # type: ignore[arg-type]
    negative = torch._neg_view(torch.zeros(4))
    assert negative.is_neg()
    with pytest.raises(InvalidArgument, match=r"ELEMENT_WISE_ROUND output_tensor: .*a lazy conjugate or negative view"):
        rounded(torch.full((4,), 2.5), negative)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), 0.5])
def test_no_value_escapes_the_check(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"tvmdml.diagonal_matrix: value: given .*; allowed: an integer from 0 to"):
        tvmdml.diagonal_matrix(np.zeros((2, 2), np.uint64), value=value)


@pytest.mark.parametrize("sizes", [itertools.count(2), range(2**40), 5, [2, None], "22", [True, 2]])
def test_sizes_that_are_none_are_refused_at_once(sizes: Any) -> None:
    with pytest.raises(InvalidArgument, match="sizes"):
        tvmdml.diagonal_matrix(sizes=sizes)


@pytest.mark.parametrize("folder", ["~nobody-has-this-name/x", "x" * 300])
def test_any_name_of_a_folder_will_do(monkeypatch: pytest.MonkeyPatch, forget: None, tmp_path: Any, folder: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVMDML_CACHE_DIR", folder)
    monkeypatch.setattr("tvmdml.system.disk.stores._warned", {str((tmp_path / folder) / "kernels"), folder + "/kernels"})
    assert tvmdml.round(X).tolist() == np.rint(X).tolist()


def test_a_list_of_outs_is_a_tuple_of_them() -> None:
    values, indices = np.empty((2, 1), np.float32), np.empty((2, 1), np.uint32)
    tvmdml.top_k(X, 1, out=[values, indices])  # type: ignore[arg-type]
    assert indices.tolist() == [[0], [1]]


@pytest.mark.parametrize("spelling", ["float32", "FLOAT32", "DML_TENSOR_DATA_TYPE_FLOAT32", 1, np.float32, np.dtype("f4"), "<f4"])
def test_a_data_type_has_many_spellings(spelling: Any) -> None:
    assert tvmdml.TensorDesc(spelling, (2,)).data_type is tvmdml.TensorDataType.FLOAT32


def test_pytorch_names_of_types_are_known() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert tvmdml.top_k(X, 1, index_dtype=torch.int64).indices.dtype == np.int64
    assert tvmdml.diagonal_matrix(sizes=(2, 2), dtype=torch.float16).dtype == np.float16


@pytest.mark.full
def test_an_input_that_another_thread_writes_meanwhile_gives_positions_that_exist() -> None:
    python("""
import os, threading, time
os.environ["TVMDML_NUM_THREADS"] = "2"
import numpy as np, tvmdml
x = np.ones(1 << 18, np.float32)
over = False
def change():
    while not over:
        x[:] = 1
        x[:] = 0
thread = threading.Thread(target=change)
thread.start()
for k in (20, 300, 3000):
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert (tvmdml.top_k(x, k).indices < x.size).all()
over = True
thread.join()
""")


def test_an_interrupt_inside_of_an_argument_is_not_lost() -> None:
    class Interrupts(int):
        def __hash__(self) -> int:
            raise KeyboardInterrupt

    tvmdml.top_k(X, 2)
    with pytest.raises(KeyboardInterrupt):
        tvmdml.top_k(X, Interrupts(2))
