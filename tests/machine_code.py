"""What NVIDIA's assembler makes of the kernels that are used most, for each architecture: ``python tests/machine_code.py``.

It prints a row for each kernel and architecture: the registers of a thread, the bytes that it spills to memory, and of the loop
that multiplies most, or of the whole kernel, the instructions, those that multiply (a packed one for two, one of tensor cores for
one), and loads from global memory with those of them that are predicated.
Arguments are architectures; without them all that the compiler supports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import cubin

import tvmdml
from tvmdml import Operator, TensorDesc
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import all_operators
from tvmdml.proof.conformance.cases.multihead_attention import attention
from tvmdml.targets.cuda import CudaTarget, compilers

_CORES = ("HMMA", "IMMA")
"""Instructions of tensor cores. Where there are some, no others count."""
_MULTIPLY = {"FFMA": 1, "FFMA2": 2, "DFMA": 1}
"""Others that multiply and add, and how often each does."""


class Code(NamedTuple):
    """A kernel's machine code, or that of the launch that multiplies most."""

    registers: int
    spilled: int
    """Bytes of a thread."""
    instructions: int
    """Of the loop that multiplies most; of the whole kernel if it has none."""
    multiplied: int
    """Those of them that multiply and add."""
    loads: int
    """Those that load from global memory, in the whole kernel."""
    predicated: int
    """Those of the loads that not every thread makes."""

    @property
    def share(self) -> float:
        """How many products there are for each instruction."""
        return self.multiplied / max(self.instructions, 1)


def listed(listing: str) -> list[tuple[str, str, bool]]:
    """Labels, with a colon, and instructions: each has its name, its operands, and whether it is predicated."""
    found = []
    for label, predicate, name, operands in re.findall(
        r"^\s*(?:(\.L_x_\d+:)|/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);)", listing, re.M
    ):
        found.append((label or name, operands, bool(predicate or re.search(r", !?U?P\d\s*$", operands))))
    return found


def loop(code: Sequence[tuple[str, str, bool]]) -> list[str]:
    """The instructions of the smallest loop that multiplies at least half as often as any does; all, if none multiplies."""
    places = {name[:-1]: place for place, (name, _, _) in enumerate(code) if name.endswith(":")}
    loops = []
    for place, (name, operands, _) in enumerate(code):
        target = re.search(r"\.L_x_\d+", operands) if name.startswith("BRA") else None
        if target and places.get(target[0], place) < place:
            loops.append(code[places[target[0]] : place + 1])
    whole = [name for name, _, _ in code if not name.endswith(":") and name != "NOP"]
    inner = [[name for name, _, _ in one if not name.endswith(":")] for one in loops]
    most = max(map(products, inner), default=0)
    return min((one for one in inner if 0 < most <= 2 * products(one)), key=len, default=whole)


def products(names: Sequence[str]) -> int:
    """How often some instructions multiply and add."""
    cores = sum(name.startswith(_CORES) for name in names)
    return cores or sum(_MULTIPLY.get(name.partition(".")[0], 0) for name in names)


def read(desc: Operator, architecture: str) -> Code:
    """The machine code of an operator's kernel for an architecture.

    Raises:
        CompileError: there is no compiler, or no disassembler.
    """
    target = CudaTarget.parse(architecture)
    text = target.source(kernel_for(desc.canonical(), target).build(), "cuda")
    content, _ = compilers.machine_code(compilers._compiler()[1], text, architecture)
    _, kernels = cubin.read(content)
    code = listed(compilers.sass(content))
    inner, loads = loop(code), [predicated for name, _, predicated in code if name.startswith(("LDG.", "LDGSTS"))]
    return Code(
        max(one.registers for one in kernels.values()),
        max(one.stack for one in kernels.values()),
        len(inner),
        products(inner),
        len(loads),
        sum(loads),
    )


def _tensor(dtype: str, *sizes: int) -> TensorDesc:
    return TensorDesc(dtype, sizes)


def _convolved(dtype: str, size: int, groups: int = 1) -> Operator:
    x, w = _tensor(dtype, 1, 64, 56, 56), _tensor(dtype, 64, 64 // groups, size, size)
    given = {"mode": "cross_correlation", "direction": "forward", "output_padding": [0, 0], "group_count": groups}
    return tvmdml.Convolution.of(x, w, **given, **_around(size))


def _around(size: int) -> dict[str, list[int]]:
    padding = [size // 2] * 2
    return {"strides": [1, 1], "dilations": [1, 1], "start_padding": padding, "end_padding": padding}


def _bytes(m: int, k: int, n: int) -> Operator:
    return tvmdml.MatrixMultiplyInteger.of(_tensor("uint8", m, k), None, _tensor("int8", k, n), None)


def _convolved_bytes() -> Operator:
    x, w = _tensor("uint8", 1, 64, 56, 56), _tensor("int8", 64, 64, 3, 3)
    return tvmdml.ConvolutionInteger.of(x, None, w, None, group_count=1, **_around(3))


def _binary(name: str, dtype: str, *second: int) -> Operator:
    return all_operators()[name].of(_tensor(dtype, 64, 1000), _tensor(dtype, *(second or (64, 1000))))


def _unary(name: str, dtype: str, **more: Any) -> Operator:
    return all_operators()[name].of(_tensor(dtype, 64, 1000), **more)


KERNELS: dict[str, Callable[[], Operator]] = {
    "product float32": lambda: tvmdml.Gemm.of(_tensor("float32", 512, 512), _tensor("float32", 512, 512)),
    "product float32, large": lambda: tvmdml.Gemm.of(_tensor("float32", 2048, 2048), _tensor("float32", 2048, 2048)),
    "product float16": lambda: tvmdml.Gemm.of(_tensor("float16", 512, 512), _tensor("float16", 512, 512)),
    "product of bytes": lambda: _bytes(512, 512, 512),
    "product of bytes, odd sizes": lambda: _bytes(500, 333, 77),
    "convolution 3x3 float32": lambda: _convolved("float32", 3),
    "convolution 1x1 float32": lambda: _convolved("float32", 1),
    "convolution 3x3 float16": lambda: _convolved("float16", 3),
    "convolution 3x3 of bytes": _convolved_bytes,
    "depthwise convolution float32": lambda: _convolved("float32", 3, groups=64),
    "attention float16": lambda: attention(all_operators()["MULTIHEAD_ATTENTION"], "float16", (1, 512, 512, 0), (12, 12), (64, 64)),
    "add float32": lambda: _binary("ELEMENT_WISE_ADD1", "float32"),
    "multiply float16": lambda: _binary("ELEMENT_WISE_MULTIPLY", "float16"),
    "relu float16": lambda: _unary("ACTIVATION_RELU", "float16"),
    "gelu float32": lambda: _unary("ACTIVATION_GELU", "float32"),
    "sigmoid float16": lambda: _unary("ACTIVATION_SIGMOID", "float16"),
    "softmax float32": lambda: _unary("ACTIVATION_SOFTMAX1", "float32", axes=[-1]),
    "modulus int32": lambda: _binary("ELEMENT_WISE_MODULUS_FLOOR", "int32"),
    "top k float32": lambda: tvmdml.TopK1.of(_tensor("float32", 64, 1000), k=5),
    "sums float32": lambda: tvmdml.Reduce.of(_tensor("float32", 64, 1000), function="sum", axes=[-1]),
}
"""Operators of models, with sizes that are usual there."""


def main(names: Sequence[str]) -> None:
    """Print the table."""
    head = f"{'kernel':30} {'target':7}" + "".join(f"{one:>13}" for one in (*Code._fields, "share"))
    click.echo(f"{compilers.describe()} {compilers.version()}\n{head}")
    for kernel, make in KERNELS.items():
        for name in names or compilers.supported():
            code = read(make(), name)
            click.echo(f"{kernel:30} {name:7}" + "".join(f"{one:13}" for one in code) + f"{code.share:13.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
