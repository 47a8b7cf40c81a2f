"""DirectML's operators on any machine, compiled by Apache TVM.

Functions such as ``tvmdml.top_k(x, k=5)`` take arrays and run immediately. Descriptors such as ``tvmdml.TopK1(…)`` follow DirectML
exactly; ``tvmdml.compile`` compiles them. Every name is loaded on first use.
"""

from __future__ import annotations

from typing import Any

from tvmdml._whole import whole  # imported first: a fork during a later import would leave a child process that hangs

__version__ = "0.1.0"

# Names by the module that defines them. Enumerations and operators are found in their own files.
_MODULES = {
    "compiler": ("CompiledOperator", "compile"),
    "arrays.device_array": ("DeviceArray",),
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
    "placing": ("asarray", "empty"),
    "structs": ("ScaleBias", "Size2D"),
    "tensors": ("TensorDataType", "TensorDesc"),
    "viewing": ("broadcast", "reinterpret"),
}
# The modules that programs import from here, by the folder that they are in.
_ROOMS = {"knobs": "kernels", "tensorir": "kernels"}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _functions()
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        with whole():
            import importlib
            import pkgutil

            if name in _HOMES:
                value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
            elif name in _ROOMS:
                value = importlib.import_module(f"{__name__}.{_ROOMS[name]}.{name}")
            elif any(module.name == name for module in pkgutil.iter_modules(__path__)):
                value = importlib.import_module(f"{__name__}.{name}")
            else:
                value = _found(name)
    except AttributeError:
        # name=… prevents Python from adding its own suggestion, which would be TopK for topk.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{_suggestion(name)}", name=name) from None
    globals()[name] = value
    return value


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


_ELSEWHERE = {
    name: function
    for function, names in {
        "convolution": "conv conv2d conv_transpose",
        "gather": "embedding take",
        "gemm": "bmm dense dot linear matmul",
        "join": "cat concat concatenate",
        "mean_variance_normalization": "group_norm instance_norm layer_norm layer_normalization",
        "multihead_attention": "scaled_dot_product_attention",
        "padding": "pad",
        "average_pooling": "mean_pool",
        "reduce": "sum",
        "resample": "interpolate resize",
    }.items()
    for name in names.split()
}
"""What other libraries call a function."""


def _suggestion(name: str) -> str:
    """A name that has this one as its last words, is written alike, or the same but for case and underscores, or has it as a part;
    functions come first.
    """
    with whole():
        import difflib

    def plain(text: str) -> str:
        return text.replace("_", "").lower()

    names = sorted(__dir__(), key=lambda one: (not one.islower(), len(one)))
    if name.startswith("DML_") and name.endswith("_OPERATOR_DESC"):  # a structure of DirectML
        name = name[len("DML_") : -len("_OPERATOR_DESC")]
        names = [one for one in names if one != one.lower()]
    near = [_ELSEWHERE[name]] if name in _ELSEWHERE else [one for one in names if one.endswith(f"_{name}")]
    near = near or difflib.get_close_matches(name, names, 1) or [one for one in names if plain(one) == plain(name)]
    if not near and len(plain(name)) > 3:
        near = [one for one in names if plain(name) in plain(one)]
    return f" Did you mean {near[0]!r}?" if near else " dir(tvmdml) lists all names."


def __dir__() -> list[str]:
    with whole():
        import importlib

        homes = [importlib.import_module(f"{__name__}.{home}") for home in ("enums", "operators", "doors")]
        names = [name for home in homes for module in home.public_names_by_module().values() for name in module]
    return sorted({*_HOMES, "__version__", *names})
