"""DxDispatch's options that only Direct3D or ONNX Runtime understand, with what to use instead; and how it writes sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from tvmdml.errors import InvalidArgument, message

F = TypeVar("F", bound=Callable[..., Any])


class _Other(NamedTuple):
    """An option that means nothing here."""

    flags: tuple[str, ...]
    has_value: bool
    why: str
    needed: bool = False
    """Whether a model runs otherwise without it, so that it must not be left out."""


_DIRECT3D = "there is no Direct3D here"
_TUNED = "graphs are always optimized"
_OTHERS = (
    _Other(("-d", "--debug"), False, f"{_DIRECT3D}; bindings are always checked"),
    _Other(("-q", "--queue_type"), True, _DIRECT3D),
    _Other(("--clear_shader_caches",), False, "set TVMDML_CACHE_DIR to an empty folder"),
    _Other(("--disable_gpu_timeout",), False, _DIRECT3D),
    _Other(("--disable_background_processing",), False, _DIRECT3D),
    _Other(("--set_stable_power_state",), False, _DIRECT3D),
    _Other(("--disable_agility_sdk",), False, _DIRECT3D),
    _Other(("--print_hlsl_disassembly",), False, "shaders (HLSL) are not run"),
    _Other(("--post_dispatch_barriers",), True, "dispatches wait for what they read"),
    _Other(("--xbox_allow_precompile",), False, "shaders (HLSL) are not run"),
    _Other(("-c", "--pix_capture_type"), True, "PIX is for Direct3D; --profile writes the times of an ONNX model's kernels"),
    _Other(("-o", "--pix_capture_name"), True, "PIX is for Direct3D; --output_path is the folder that files are written to"),
    _Other(("--max_gpu_time_measurements",), True, "times are measured by the processor's clock"),
    _Other(("-l", "--onnx_graph_optimization_level"), True, _TUNED),
    _Other(("-L", "--onnx_logging_level"), True, "TVMDML_LOG=info prints what is compiled"),
    _Other(("-p", "--print_onnx_bindings"), False, "outputs are always described"),
    _Other(("-e", "--onnx_session_config_entry"), True, "ONNX Runtime does not run here"),
    _Other(("--enable_onnx_profiling",), False, "--profile FILE.json writes the time of each kernel", True),
    _Other(("-F", "--onnx_free_dim_denotation_override"), True, "sizes are given by name: -f NAME:N, or --size NAME=N", True),
    _Other(("-x", "--enable_ort_extensions"), False, "operators of ONNX Runtime's extensions are not run", True),
)


def direct3d_options(command: F) -> F:
    """Take these options, hidden: most are left out with a line on standard error, and some are usage errors."""
    for other in reversed(_OTHERS):
        command = click.option(
            *other.flags,
            is_flag=not other.has_value,
            multiple=other.has_value,
            hidden=True,
            expose_value=False,
            callback=_told(other),
        )(command)
    return command


def _told(other: _Other) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if not value:
            return
        if other.needed:
            raise click.UsageError(f"{other.flags[-1]} is not an option here: {other.why}.")
        click.echo(f"{other.flags[-1]} is left out: {other.why}.", err=True)

    return callback


def _split(text: str, what: str, allowed: str) -> tuple[str, str]:
    name, colon, value = text.rpartition(":")
    if not (colon and name and value):
        raise InvalidArgument(message(what, repr(text), allowed))
    return name, value


def dimension(text: str) -> tuple[str, int]:
    """``NAME:N``: an open size of a model, and its value, as DxDispatch writes it."""
    name, value = _split(text, "size", "NAME:N, such as batch:2")
    if not (value.isascii() and value.isdecimal()) or len(value) > 18:
        raise InvalidArgument(message(f"size {name}", repr(value), "an integer of 0 or more"))
    return name, int(value)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``TENSOR:N,N``: the sizes of an input, as DxDispatch writes them."""
    name, value = _split(text, "shape", "TENSOR:N,N, such as image:1,3,224,224")
    sizes = value.split(",")
    if not all(n.isascii() and n.isdecimal() and len(n) <= 18 for n in sizes):
        raise InvalidArgument(message(f"shape of {name}", repr(value), "integers of 0 or more, with commas between"))
    return name, tuple(map(int, sizes))
