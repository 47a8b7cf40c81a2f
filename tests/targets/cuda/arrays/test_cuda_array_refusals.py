"""What is refused of other libraries' arrays on a CUDA device, and what arrays say of themselves that cannot be."""

from __future__ import annotations

import gc
import os
import types
import weakref
from typing import Any

import numpy as np
import pytest
from foreign_arrays import VALUES, Says, Shows, Speaks, SpeaksOld, assert_refused, at_once_alone, capsule, on, run, seen
from support import round_desc

import tvmdml
from tvmdml import InvalidArgument, TensorDesc, Unsupported
from tvmdml.targets.cuda import CudaTarget, dlpack, foreign

# -- What is refused ----------------------------------------------------------------------------------------------


def test_pytorchs_rules_hold_on_a_device_too(torch: Any) -> None:
    x = torch.tensor(VALUES).requires_grad_()
    with pytest.raises(InvalidArgument, match="requires a gradient"):
        tvmdml.round(x)
    with torch.no_grad():
        assert np.array_equal(seen(tvmdml.round(x).detach()), np.rint(VALUES))
    z = torch.tensor(np.array([1.5 + 0.5j, 2.5 - 2.5j], np.complex64))
    imaginary = torch.conj(z).imag
    assert imaginary.is_neg()
    assert seen(tvmdml.round(imaginary)).tolist() == [-0.0, 2.0]
    with pytest.raises(InvalidArgument, match=r"output_tensor\): .*a lazy conjugate or negative view"):
        tvmdml.round(torch.tensor(np.float32([1, 2])), out=imaginary)
    for wrong in (z, torch.tensor(np.zeros(2, np.int16)).view(torch.bfloat16)):
        with pytest.raises(InvalidArgument, match=r"round: input: given a PyTorch tensor torch.\w+ on .*; allowed: float64"):
            tvmdml.round(wrong)

    def has_none(self: Any) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    for address, says in ((has_none, "Cannot access data pointer"), (lambda self: 0, "no memory of its own")):
        hidden = torch.tensor(VALUES).as_subclass(type("Hidden", (torch.CudaTensor,), {"data_ptr": address}))
        foreign._libraries[type(hidden)] = foreign._libraries[torch.CudaTensor]
        with pytest.raises(InvalidArgument, match=f"given a Hidden torch.float32 on .* whose memory is not accessible .*{says}"):
            tvmdml.round(hidden)


def test_a_type_that_pytorch_lacks_is_refused(torch: Any) -> None:
    library = foreign._libraries[torch.CudaTensor]
    del library._own[np.dtype(np.uint32)]  # type: ignore[attr-defined] # as with PyTorch before 2.3
    x = torch.tensor(VALUES)
    with pytest.raises(Unsupported, match="data type uint32"):
        tvmdml.top_k(x, 2, index_dtype="uint32")
    assert tvmdml.top_k(x, 2).indices.dtype == torch.int64
    assert tvmdml.top_k(x, 2, index_dtype="int32").indices.dtype == torch.int32


@at_once_alone
def test_what_cannot_be_seen_is_refused(device: CudaTarget) -> None:
    x = on(device, VALUES)

    class Fails(Speaks):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it is spread over several devices")

    with pytest.raises(InvalidArgument, match=r"given Fails that NumPy cannot access \(BufferError: it is spread"):
        tvmdml.round(Fails(x))
    with pytest.raises(InvalidArgument, match="given a masked array"):
        tvmdml.round(Shows(x, mask=x))
    with pytest.raises(InvalidArgument, match="given elements >f4"):
        tvmdml.round(Shows(x, typestr=">f4"))
    with pytest.raises(InvalidArgument, match="data type complex64"):
        tvmdml.round(Shows(x, typestr="<c8", shape=(3, 2)))
    with pytest.raises(InvalidArgument, match="strides"):
        tvmdml.round(Shows(x[:, :1], strides=(6, 4)))
    with pytest.raises(InvalidArgument, match=r"cannot access .*is not a DLPack capsule"):
        tvmdml.round(types.SimpleNamespace(__dlpack__=lambda **_: 1, __dlpack_device__=lambda: (2, 0)))


@at_once_alone
def test_what_is_read_only_is_not_written_to(device: CudaTarget) -> None:
    x, out = on(device, VALUES), on(device, np.zeros_like(VALUES))
    locked = Shows(out, data=(out.memory.address, True))
    with pytest.raises(InvalidArgument, match=r"tvmdml.round: out \(output_tensor\): given a read-only array"):
        tvmdml.round(x, out=locked)
    with pytest.raises(InvalidArgument, match="a read-only array; allowed: a writable one: it is an output"):
        tvmdml.compile(round_desc(TensorDesc("float32", VALUES.shape)), device)(x, locked)
    with pytest.raises(InvalidArgument, match="read-only"):
        tvmdml.round(x, out=SpeaksOld(out))  # the older kind of capsule cannot express that
    there = tvmdml.asarray(locked, device)
    assert not there.flags.writeable
    with pytest.raises(InvalidArgument, match=r"DeviceArray\.write: given a read-only array"):
        there.write(VALUES)
    with pytest.raises(BufferError, match="read-only"):
        there.__dlpack__()
    assert not dlpack.read(there.__dlpack__(max_version=(1, 0))).writeable
    assert there.__cuda_array_interface__["data"][1]
    with pytest.raises(InvalidArgument, match="read-only"):
        tvmdml.round(x, out=Speaks(there))
    tvmdml.round(x, out=Speaks(out))
    assert np.array_equal(out.numpy(), np.rint(VALUES))


@pytest.mark.full
@pytest.mark.skipif(not os.environ.get("TVMDML_CUDA_LIBRARY"), reason="the emulator has as many devices as it is asked for")
def test_arrays_of_two_devices_do_not_mix() -> None:
    code = """
        import numpy as np, pytest, tvmdml
        from support import round_desc
        from tvmdml import InvalidArgument, TensorDesc, targets
        from foreign_arrays import *
        zero, one = targets.resolve("cuda:0"), targets.resolve("cuda:1")
        x, out = Shows(on(zero, VALUES)), Shows(on(one, VALUES))
        for given in (out, out.array):
            with pytest.raises(InvalidArgument, match="given an array on cuda:1; allowed: one on cuda:0"):
                tvmdml.round(x, out=given)
        with pytest.raises(InvalidArgument, match="given an array on cuda:1; allowed: one on cpu"):
            tvmdml.round(out, device="cpu")
        with pytest.raises(InvalidArgument, match="given an array on cuda:0; allowed: one on cuda:1"):
            tvmdml.compile(round_desc(TensorDesc("float32", VALUES.shape)), one)(x, out)
        assert np.array_equal(tvmdml.round(out).numpy(), np.rint(VALUES)) and tvmdml.round(out).device == "cuda:1"
        assert tvmdml.round(Speaks(on(one, VALUES))).device == "cuda:1"
        said = Says(lambda: capsule(out.array, True, {}))
        assert_refused(x.array, said, "given an array of device 0 with memory of device 1")
        tvmdml.round(VALUES, out=out)
        assert np.array_equal(out.array.numpy(), np.rint(VALUES))
        assert tvmdml.asarray(x, "cuda:1").device == "cuda:1" and np.array_equal(tvmdml.asarray(x, "cuda:1").numpy(), VALUES)
    """
    run(code, TVMDML_EMULATED_DEVICES="2")


# -- What arrays say of themselves that cannot be ---------------------------------------------------------------------


HOST = np.zeros(64, np.float32)
NOWHERE, NO_MEMORY, NO_LAYOUT, NO_TYPE = (
    "not in a CUDA device's memory",
    "no memory of its own",
    "allowed: up to 64 sizes",
    "given elements",
)
SHOWN = {
    "null": ({"data": (0, False)}, NO_MEMORY),
    "the host's": ({"data": (HOST.ctypes.data, False)}, NOWHERE),
    "garbage": ({"data": (0xDEAD0000, False)}, NOWHERE),
    "negative address": ({"data": (-1, False)}, NO_LAYOUT),
    "address that wraps": ({"data": (2**64 - 8, False)}, NO_LAYOUT),
    "address as text": ({"data": ("1", False)}, "given memory address '1'"),
    "type None": ({"typestr": None}, NO_TYPE),
    "objects": ({"typestr": "|O"}, NO_TYPE),
    "junk": ({"typestr": "junk"}, NO_TYPE),
    "size as a fraction": ({"shape": (8.0, 8)}, NO_LAYOUT),
    "negative size": ({"shape": (-1, 8)}, NO_LAYOUT),
    "sizes no tuple": ({"shape": 8}, NO_LAYOUT),
    "sizes of more than 64 bits": ({"shape": (2**62, 2**62)}, NO_LAYOUT),
    "a repeated element": ({"shape": (2**40, 2**40), "strides": (0, 0)}, NO_LAYOUT),
    "rank 65": ({"shape": (1,) * 65}, NO_LAYOUT),
    "too few strides": ({"strides": (4,)}, NO_LAYOUT),
    "strides as fractions": ({"strides": (16.0, 4.0)}, NO_LAYOUT),
    "strides that overflow": ({"strides": (2**62, 4)}, NO_LAYOUT),
    "strides to below 0": ({"strides": (-(2**60), 4)}, NO_LAYOUT),
    "a stream's name": ({"stream": "main"}, "given stream 'main'"),
    "a negative stream": ({"stream": -1}, "given stream -1"),
}
SAID = {
    "null": ({"data": None}, NO_MEMORY),
    "the host's": ({"data": HOST.ctypes.data}, NOWHERE),
    "huge offset": ({"byte_offset": 2**62}, NOWHERE),
    "offset that wraps": ({"byte_offset": 2**64 - 4}, NO_LAYOUT),
    "another device": ({"device_id": 1}, r"given a capsule of device \(2, 1\) from an array of device \(2, 0\)"),
    "the CPU": ({"device_type": 1}, r"given a capsule of device \(1, 0\)"),
    "rank -1": ({"ndim": -1}, "-1 dimensions"),
    "no sizes": ({"shape": None}, "dimensions without sizes"),
    "negative size": ({"sizes": (-3, 4)}, NO_LAYOUT),
    "sizes of more than 64 bits": ({"sizes": (2**62, 8)}, NO_LAYOUT),
}


@at_once_alone
@pytest.mark.parametrize("case", SHOWN)
def test_an_interface_that_cannot_be_is_refused(device: CudaTarget, case: str) -> None:
    changes, match = SHOWN[case]
    x = on(device, VALUES)
    assert_refused(x, Shows(on(device, VALUES), **changes), match)


@at_once_alone
@pytest.mark.parametrize("versioned", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("case", SAID)
def test_a_capsule_that_cannot_be_is_refused(device: CudaTarget, case: str, versioned: bool) -> None:
    changes, match = SAID[case]
    x, held = on(device, VALUES), on(device, VALUES)
    assert_refused(x, Says(lambda: capsule(held, versioned, changes)), match)


@at_once_alone
@pytest.mark.parametrize("said", [None, (), (2,), (2, None), (2, 0.5), ("x", "y"), (2, -1), (2, 99)], ids=str)
def test_a_device_that_cannot_be_is_refused(device: CudaTarget, said: Any) -> None:
    x = on(device, VALUES)
    assert_refused(x, Says(lambda: capsule(x, True, {}), said), "cannot access|target: given 'cuda:")


@at_once_alone
@pytest.mark.parametrize("name", ["__cuda_array_interface__", "__dlpack__", "__dlpack_device__"])
def test_a_property_that_fails_is_an_invalid_argument(device: CudaTarget, name: str) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("it is gone")

    members = {"__dlpack__": None, "__dlpack_device__": lambda _: (2, 0)} if "dlpack" in name else {}
    kind = type("Gone", (), {**members, name: property(fail)})
    assert_refused(on(device, VALUES), kind(), "given Gone that NumPy cannot access .RuntimeError: it is gone")


def test_empty_arrays_need_no_memory(device: CudaTarget) -> None:
    for address in (0, None, 0xDEAD0000):
        x = Shows(on(device, VALUES), data=(address, False), shape=(0, 4))
        assert tvmdml.round(x).shape == (0, 4)
        assert tvmdml.asarray(x, device).numpy().shape == (0, 4)
    held = on(device, VALUES[:0])
    assert tvmdml.round(Says(lambda: capsule(held, True, {"data": None}))).shape == (0, 4)


@pytest.mark.full
@at_once_alone
def test_types_are_not_kept_for_ever(device: CudaTarget) -> None:
    x = on(device, VALUES)
    shown = x.__cuda_array_interface__
    kinds = []
    for _ in range(5):
        kind = type("Short", (), {"__cuda_array_interface__": shown})
        assert np.array_equal(tvmdml.round(kind()).numpy(), np.rint(VALUES))
        kinds.append(weakref.ref(kind))
        del kind
    gc.collect()
    assert sum(kind() is not None for kind in kinds) <= 1
