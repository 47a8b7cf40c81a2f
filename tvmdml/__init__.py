"""DirectML's operators on any machine, compiled by Apache TVM.

Functions such as ``tvmdml.top_k(x, k=5)`` take arrays and run immediately. Descriptors such as ``tvmdml.TopK1(…)`` follow DirectML
exactly; ``tvmdml.compile`` compiles them. Every name is loaded on first use.
"""

from __future__ import annotations

from typing import Any

from tvmdml._whole import whole  # imported first: a fork during a later import would leave a child process that hangs

__version__ = "0.1.0"

# The names that do not belong to an operator, by the module that defines them. Operator modules list their own names.
_MODULES = {
    "compiler": ("CompiledOperator", "compile"),
    "device_arrays": ("DeviceArray", "asarray", "empty"),
    "enums": ("AxisDirection", "FeatureLevel", "RoundingMode", "TensorFlags"),
    "errors": ("CompileError", "DeviceError", "InvalidArgument", "ModelError", "PackError", "TvmdmlError", "Unsupported"),
    "operators": ("Operator",),
    "packs": ("load_pack",),
    "tensors": ("TensorDataType", "TensorDesc"),
}
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
            elif any(module.name == name for module in pkgutil.iter_modules(__path__)):
                value = importlib.import_module(f"{__name__}.{name}")
            else:
                value = importlib.import_module(f"{__name__}.operators").public_name(name)
    except AttributeError:
        # name=… prevents Python from adding its own suggestion, which would be TopK for topk.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{_suggestion(name)}", name=name) from None
    globals()[name] = value
    return value


def _functions() -> list[str]:
    """The names that ``help(tvmdml)`` lists. Classes are left out: their methods would fill thousands of lines."""
    with whole():
        import inspect

    return [name for name in __dir__() if not name.startswith("_") and inspect.isfunction(__getattr__(name))]


def _suggestion(name: str) -> str:
    """A name that is written alike, or the same but for case and underscores, or has this one as a part; functions come first."""
    with whole():
        import difflib

    def plain(text: str) -> str:
        return text.replace("_", "").lower()

    names = sorted(__dir__(), key=lambda one: (not one.islower(), len(one)))
    near = difflib.get_close_matches(name, names, 1) or [one for one in names if plain(one) == plain(name)]
    if not near and len(plain(name)) > 3:
        near = [one for one in names if plain(name) in plain(one)]
    return f" Did you mean {near[0]!r}?" if near else " dir(tvmdml) lists what there is."


def __dir__() -> list[str]:
    with whole():
        import importlib

        names = importlib.import_module(f"{__name__}.operators").public_names_by_module().values()
    return sorted({*_HOMES, "__version__", *(name for module in names for name in module)})
