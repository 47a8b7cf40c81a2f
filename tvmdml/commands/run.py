"""``tvmdml run``: DxDispatch's models, ONNX models, and graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tvmdml.errors import DeviceError, InvalidArgument, message
from tvmdml.options import (
    EXACT,
    device_option,
    device_rows,
    feature_level_option,
    named_value,
    precision_option,
    size_option,
    target_of,
)
from tvmdml.system.console import parsed, short_target, table

if TYPE_CHECKING:
    from tvmdml.enums import FeatureLevel
    from tvmdml.targets import Target


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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@click.option("-m", "--model", "named_model", metavar="MODEL", help="The model, in place of the argument.")
@click.option(
    "-i", "--dispatch_iterations", type=click.IntRange(1), default=1, show_default=True, help="Minimum number of samples."
)
@click.option("-r", "--dispatch_repeat", type=click.IntRange(1), default=1, show_default=True, help="Dispatches per sample.")
@click.option("-t", "--milliseconds_to_run", type=click.IntRange(0), default=0, help="Minimum time to take samples for.")
@click.option(
    "-w",
    "--warmup_samples",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Maximum number of samples counted as cold.",
)
@click.option(
    "-v",
    "--timing_verbosity",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="0: hot timings in one line; 1: initialisation, cold and hot timings; 2: also each sample.",
)
@click.option(
    "-I",
    "--dispatch_interval",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Least milliseconds from the begin of one sample to that of the next.",
)
@click.option("--print_commands", is_flag=True, help="Print each command before and after it.")
@click.option("-S", "--show_dependencies", is_flag=True, help="Show the versions of tvmdml and of the packages that it uses.")
@click.option("-s", "--show_adapters", is_flag=True, help="Show the available devices.")
@click.option("-a", "--adapter", help="Run on the first device whose name contains this text.")
@device_option
@click.option("--input_path", type=click.Path(), help="Folder to read data files from.  [default: the model's folder]")
@click.option(
    "--input",
    "inputs",
    metavar="NAME=FILE.npy",
    multiple=True,
    callback=parsed(named_value),
    help="ONNX: an input; may be repeated. Other inputs get random values.",
)
@size_option()
@click.option(
    "-f",
    "--onnx_free_dim_name_override",
    "dimensions",
    metavar="NAME:N",
    multiple=True,
    callback=parsed(dimension),
    help="The same as --size.",
)
@click.option(
    "-b",
    "--binding_shape",
    "shapes",
    metavar="TENSOR:N,N",
    multiple=True,
    callback=parsed(shape),
    help="ONNX: all sizes of an input; may be repeated.",
)
@click.option(
    "--fallback", metavar="MODULE", help="ONNX: what runs nodes that cannot be converted: onnxruntime, or a package with a backend."
)
@precision_option
@click.option(
    "--profile",
    metavar="FILE.json",
    help="ONNX: run once more, show the slowest kernels, and write the time of each for chrome://tracing or ui.perfetto.dev.",
)
@click.option("--output_path", type=click.Path(), help="Folder to write files to; required if the model writes files.")
@click.option("--overwrite", is_flag=True, help="Replace files that already exist in that folder.")
@feature_level_option
@direct3d_options
def run(
    model: str | None,
    named_model: str | None,
    dispatch_iterations: int,
    dispatch_repeat: int,
    milliseconds_to_run: int,
    warmup_samples: int,
    timing_verbosity: int,
    dispatch_interval: int,
    print_commands: bool,
    show_dependencies: bool,
    show_adapters: bool,
    adapter: str | None,
    device: Target | None,
    input_path: str | None,
    inputs: tuple[tuple[str, str], ...],
    sizes: tuple[tuple[str, int], ...],
    dimensions: tuple[tuple[str, int], ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    fallback: str | None,
    precision: str,
    profile: str | None,
    output_path: str | None,
    overwrite: bool,
    feature_level: FeatureLevel | None,
) -> None:
    """Run a MODEL: an ONNX file, a saved graph, a pack of one, or a JSON file of resources, dispatchables and commands.

    The options are DxDispatch's. - is standard input. Of an ONNX model or a graph each output is described; --output_path writes
    NAME.npy files. The outputs of a graph are named by their numbers.
    """
    if adapter is not None and device is not None:
        raise click.UsageError("--adapter and --device name the same thing: give one of them.")
    if model is not None and named_model is not None:
        raise click.UsageError("MODEL and --model name the same thing: give one of them.")
    model = named_model if model is None else model
    if show_dependencies:
        table(("package", "version"), _versions())
    if show_adapters:
        table(("target", "device", "state"), [{**row, "target": short_target(row["target"])} for row in device_rows()])
    if model is None:
        if show_adapters or show_dependencies:
            return
        raise click.UsageError("Missing argument 'MODEL': the path of a JSON file, or - for standard input.")
    from tvmdml import dxdispatch

    target = device or target_of("cpu" if adapter is None else _find_adapter(adapter))
    timing = dxdispatch.Timing(
        dispatch_iterations, dispatch_repeat, milliseconds_to_run, warmup_samples, timing_verbosity, dispatch_interval
    )
    from tvmdml.onnx import command

    if command.is_model(model):
        output = command.OutputFiles(output_path, overwrite)
        given = {**dict(dimensions), **dict(sizes)}
        command.run(
            model, dict(inputs), given, target, output, timing, sys.stdout.write, profile, dict(shapes), fallback, precision
        )
        return
    if inputs or sizes or dimensions or shapes or profile or fallback or precision != EXACT:
        raise click.UsageError("--input, --size, -f, -b, --fallback, --precision and --profile are for ONNX models and graphs.")
    dxdispatch.read(model, input_path=input_path).run(
        target,
        feature_level=feature_level,
        output_path=output_path,
        overwrite=overwrite,
        timing=timing,
        write=sys.stdout.write,
        tell=print_commands,
    )


def _versions() -> list[dict[str, str]]:
    from importlib import metadata

    import tvmdml

    found = {"tvmdml": tvmdml.__version__}
    for name in ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return [{"package": name, "version": version} for name, version in found.items()]


def _find_adapter(part: str) -> str:
    rows = [row for row in device_rows() if row["device"] != "none"]
    for row in rows:
        if part.lower() in f"{row['device']} {row['target']}".lower():
            return str(row["target"])
    raise DeviceError(message("adapter", repr(part), f"a part of one of {', '.join(repr(row['device']) for row in rows)}"))
