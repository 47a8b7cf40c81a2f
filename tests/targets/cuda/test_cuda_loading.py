"""The CUDA driver: how it is found and described, every reason why it is not, and what is taken from cuda.h."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_work import program

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import driver, header, loader, survey
from tvmdml.targets.cuda.driver import Device

# Devices


def test_a_device_says_who_it_is(device: Device) -> None:
    info = driver.devices()[0]
    assert info is device.info
    assert info.index == 0
    assert info.name
    assert re.fullmatch(r"sm_\d{2,3}", info.arch)
    assert info.memory >= 1 << 28
    assert info.processors >= 1
    assert int(info.driver.split(".")[0]) >= 12
    assert not info.problem
    assert hash(info)
    assert repr(device) == f"<CUDA device 0: {info.name}>"
    assert driver.open_device(0) is device
    assert device.attribute(header.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == info.processors


def test_a_device_that_is_too_old_is_listed_and_refused(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = survey.attribute
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.setattr(driver, "_open", {})
    major, minor = header.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, header.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    old = {major: 7, minor: 0}
    monkeypatch.setattr(survey, "attribute", lambda cuda, device, number: old.get(number, real(cuda, device, number)))
    assert driver.devices()[0].problem == "compute capability 7.0 is too old: 7.5 or newer is needed"
    assert driver.devices()[0].arch == "sm_70"
    with pytest.raises(DeviceError, match=r"cannot be used: compute capability 7.0 is too old"):
        driver.open_device(0)
    old[minor] = 5
    monkeypatch.setattr(driver, "_found", ())
    assert not driver.devices()[0].problem
    old[header.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = header.CU_COMPUTEMODE_PROHIBITED
    monkeypatch.setattr(driver, "_found", ())
    assert "compute mode is prohibited" in driver.devices()[0].problem


def test_a_driver_that_is_too_old(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.setattr(loader.cuda(), "version", 11080)
    assert "the driver supports CUDA 11.8, not 12.0" in driver.devices()[0].problem


def test_nothing_is_loaded_before_it_is_needed(present: None) -> None:
    code = """
import tvmdml.targets.cuda.driver
print(loader._loaded, any("libcuda" in line for line in open("/proc/self/maps")))
driver.devices()
print(current_context(), driver._open)
device = driver.open_device(0)
print(current_context())
"""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux says what is loaded")
    assert program(code) == "None False\nNone {}\nNone\n"


def test_without_a_driver_it_says_what_to_install() -> None:
    code = """
for attempt in (driver.devices, lambda: driver.open_device(0), driver.devices):
    try:
        print(attempt())
    except DeviceError as error:
        print(error)
"""
    lines = program(code, TVMDML_CUDA_LIBRARY="/nonexistent/libcuda.so.1").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("cuda: no NVIDIA driver was found (/nonexistent/libcuda.so.1: ")
        assert "Install the NVIDIA driver" in line
        assert line.endswith("TVMDML_CUDA_LIBRARY is set to '/nonexistent/libcuda.so.1'.")


def test_without_a_driver_of_the_usual_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_LIBRARY", "libcuda-that-is-not-here.so.1")
    monkeypatch.setattr(loader, "_loaded", None)
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.delenv("TVMDML_CUDA_LIBRARY", raising=False)
    with pytest.raises(
        DeviceError, match=r"^cuda: no NVIDIA driver was found \(libcuda-that-is-not-here.so.1: .*\)\. Install .*all\.$"
    ):
        driver.devices()


def library(folder: Path, source: str) -> str:
    """A driver's library of the test's own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=source, text=True, check=True)
    return str(made)


def every_function(*but: str) -> str:
    names = {*header.FUNCTIONS, *header.QUICK, *header.HOT} - {*but}
    return "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """What is said of a driver's library, whose source is given; as in a process that has not looked for one."""
    numbers = itertools.count()

    def tell(source: str) -> str:
        monkeypatch.setattr(loader, "_started", False)
        monkeypatch.setattr(loader, "_loaded", None)
        monkeypatch.setattr(driver, "_found", ())
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        monkeypatch.setenv("TVMDML_CUDA_LIBRARY", library(folder, source))
        with pytest.raises(DeviceError) as caught:
            driver.devices()
        return str(caught.value)

    return tell


def test_a_library_that_is_no_driver_is_refused(
    told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "is not an NVIDIA driver, or is damaged: it has no cuInit. Install the NVIDIA driver" in told("int nothing;")
    assert "it has no cuMemFreeAsync. Install the NVIDIA driver" in told(every_function("cuMemFreeAsync"))
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"this is no library")
    monkeypatch.setenv("TVMDML_CUDA_LIBRARY", str(broken))
    with pytest.raises(DeviceError, match=r"no NVIDIA driver was found \(.*broken\.so: .*\)"):
        driver.devices()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (header.CUDA_ERROR_NO_DEVICE, r"`nvidia-smi -L` lists what the driver sees\. CUDA_VISIBLE_DEVICES is set to ''\."),
        (header.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "restart the computer"),
        (header.CUDA_ERROR_STUB_LIBRARY, "Install the NVIDIA driver"),
        (header.CUDA_ERROR_NOT_INITIALIZED, "spawn"),
        (7, "`nvidia-smi` shows whether"),
    ],
)
def test_a_driver_that_does_not_start_says_why(
    told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    others = every_function("cuInit", "cuGetErrorName", "cuGetErrorString")
    texts = """
int cuGetErrorName(int code, const char **text) { *text = "NAME"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = 0; return 1; }
"""
    said = told(others + texts + f"int cuInit(unsigned flags) {{ return {code}; }}\n")
    assert re.search(rf"cuda: the NVIDIA driver is installed but does not start: NAME\. .*{advice}", said), said


def test_an_old_driver_is_told_to_be_updated(told: Callable[[str], str]) -> None:
    version = "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }\n"
    said = told(every_function("cuDriverGetVersion", "cuLaunchKernelEx") + version)
    assert "has no cuLaunchKernelEx: it supports CUDA 11.4, but 12.0 is needed. Update the NVIDIA driver." in said


# What is taken from cuda.h


def cuda_include() -> Path:
    nvcc = shutil.which("nvcc")
    near = [Path(nvcc).resolve().parents[1]] if nvcc else []
    for top in (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        *near,
        "/usr/local/cuda",
        *Path("/usr/local").glob("cuda-*"),
    ):
        if top and "CUDAAPI" in read(Path(top, "include", "cuda.h")):
            return Path(top, "include")
    pytest.skip("NVIDIA's cuda.h is not here")


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def test_values_structures_and_prototypes_are_those_of_cuda_h(tmp_path: Path) -> None:
    include, compiler = cuda_include(), shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    values = {name: value for name, value in vars(header).items() if re.match("CUD?A?_[A-Z]", name) and isinstance(value, int)}
    assert len(values) > 60
    expected, lines = [], []
    for name, value in values.items():
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
        expected.append(f"{name} {value}")
    for structure in (header.CUmemLocation, header.CUmemPoolProps, header.CUlaunchConfig):
        kind = structure.__name__
        lines.append(f'printf("{kind} %zu\\n", sizeof({kind}));')
        expected.append(f"{kind} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            lines.append(f'printf("{kind}.{field} %zu %zu\\n", offsetof({kind}, {field}), sizeof((({kind} *)0)->{field}));')
            expected.append(f"{kind}.{field} {getattr(structure, field).offset} {getattr(structure, field).size}")
    assert struct.calcsize(header.LAUNCH_CONFIG) <= ctypes.sizeof(header.CUlaunchConfig)
    for name, arguments in (header.FUNCTIONS | header.QUICK).items():
        lines.append(f'show<decltype({name})>("{name}");')
        kinds = ["p" if kind in (ctypes.c_void_p, ctypes.c_char_p) else str(ctypes.sizeof(kind)) for kind in arguments]
        expected.append(" ".join([name, *kinds]))
    source = tmp_path / "values.cpp"
    source.write_text(
        """
#include <cuda.h>
#include <cstddef>
#include <cstdio>
#include <type_traits>
template <class T> void kind() {
  if (std::is_pointer<T>::value) printf(" p"); else printf(" %zu", sizeof(T));
}
template <class F> struct Shown;
template <class... A> struct Shown<CUresult(A...)> {
  static void show(const char *name) { printf("%s", name); int all[] = {0, (kind<A>(), 0)...}; (void)all; puts(""); }
};
template <class F> void show(const char *name) { Shown<F>::show(name); }
int main() {
"""
        + "\n".join(lines)
        + "}\n"
    )
    subprocess.run([compiler, "-std=c++11", "-w", f"-I{include}", source, "-o", tmp_path / "values"], check=True)
    said = subprocess.run([tmp_path / "values"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == expected
    text = read(include / "cuda.h")
    assert all(re.search(rf"\b{name.removesuffix('_v2')}\b", text) for name in header.HOT)
    fatal = re.findall(r"/\*\*(?:(?!\*/).)*?must be terminated(?:(?!\*/).)*?\*/\s*CUDA_ERROR_(\w+)", text, re.DOTALL)
    assert {getattr(header, f"CUDA_ERROR_{name}") for name in fatal} <= loader.BROKEN
