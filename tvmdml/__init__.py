"""DirectML's operators on Linux, compiled by Apache TVM.

Functions such as ``tvmdml.top_k(x, k=5)`` take arrays and run immediately. Descriptors such as ``tvmdml.TopK1(…)`` follow DirectML
exactly; ``tvmdml.compile`` compiles them. Every name is loaded on first use.
"""

from __future__ import annotations

from typing import Any

from tvmdml.system import imported, whole  # imported first: a fork during a later import would leave a child process that hangs

__version__ = "0.1.0"

# Names by the module that defines them. Enumerations and operators are found in their own files.
_MODULES = {
    "compiler": ("CompiledOperator", "compile"),
    "tensors.arrays.device_array": ("DeviceArray",),
    "errors": (
        "CompileError",
        "DeviceError",
        "IndexOutOfRange",
        "InvalidArgument",
        "ModelError",
        "PackError",
        "TvmdmlError",
        "Unsupported",
    ),
    "graph": ("CompiledGraph", "Expression", "Graph", "load_graph", "save_graph"),
    "operators": ("Operator",),
    "packs": ("load_pack",),
    "targets._placing": ("asarray", "empty"),
    "operators._roles": ("ScaleBias", "Size2D"),
    "tensors": ("TensorDataType", "TensorDesc"),
    "tensors.arrays.viewing": ("broadcast", "reinterpret"),
}
# The modules that programs import from here, by the folder that they are in.
_ROOMS = {
    "arrays": "tensors",
    "bench": "proof",
    "conformance": "proof",
    "knobs": "library",
    "reference": "commands",
    "tensorir": "kernels",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _functions()
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = imported(lambda: _value(name))
    except AttributeError:
        with whole():
            from tvmdml.system.names import no_attribute

        raise no_attribute(f"module {__name__!r}", name, __dir__(), otherwise=" dir(tvmdml) lists all names.") from None
    globals()[name] = value
    return value


def _value(name: str) -> Any:
    import importlib.util

    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{_ROOMS[name]}.{name}")
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    return _found(name)


def _found(name: str) -> Any:
    """An enumeration, a descriptor class, a function, or the type of a function's results."""
    import importlib

    # Functions, in lower case, need the most imports.
    for module in ("doors",) if name.islower() else ("enums", "operators", "doors"):
        try:
            return importlib.import_module(f"{__name__}.{module}").public_name(name)
        except AttributeError:
            pass
    raise AttributeError(name)


def _functions() -> list[str]:
    """The names that ``help(tvmdml)`` lists. Classes are left out: their methods would fill thousands of lines."""
    with whole():
        import inspect

    return [name for name in __dir__() if not name.startswith("_") and inspect.isfunction(__getattr__(name))]


def __dir__() -> list[str]:
    with whole():
        import importlib

        homes = [importlib.import_module(f"{__name__}.{home}") for home in ("enums", "operators", "doors")]
        names = [name for home in homes for module in home.public_names_by_module().values() for name in module]
    return sorted({*_HOMES, "__version__", *names})
