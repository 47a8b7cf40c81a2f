"""DirectML's operators on any machine, compiled by Apache TVM.

Functions such as ``tvmdml.top_k(x, k=5)`` take arrays and run at once. Descriptors such as ``tvmdml.TopK1(…)`` follow DirectML
to the letter; ``tvmdml.compile`` makes them ready to run. Every name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tvmdml.compiler import CompiledOperator as CompiledOperator
    from tvmdml.compiler import compile as compile
    from tvmdml.enums import AxisDirection as AxisDirection
    from tvmdml.enums import FeatureLevel as FeatureLevel
    from tvmdml.enums import RoundingMode as RoundingMode
    from tvmdml.errors import CompileError as CompileError
    from tvmdml.errors import DeviceError as DeviceError
    from tvmdml.errors import InvalidArgument as InvalidArgument
    from tvmdml.errors import ModelError as ModelError
    from tvmdml.errors import TvmdmlError as TvmdmlError
    from tvmdml.errors import Unsupported as Unsupported
    from tvmdml.tensors import TensorDataType as TensorDataType
    from tvmdml.tensors import TensorDesc as TensorDesc

# The names that are not an operator's, by the module that has them. Operators offer their own.
_MODULES = {
    "compiler": ("CompiledOperator", "compile"),
    "enums": ("AxisDirection", "FeatureLevel", "RoundingMode", "TensorFlags"),
    "errors": ("CompileError", "DeviceError", "InvalidArgument", "ModelError", "TvmdmlError", "Unsupported"),
    "operators": ("Operator",),
    "tensors": ("TensorDataType", "TensorDesc"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib
    import pkgutil

    try:
        if name in _HOMES:
            value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif any(module.name == name for module in pkgutil.iter_modules(__path__)):
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            value = importlib.import_module(f"{__name__}.operators").public_name(name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    import importlib

    operators = importlib.import_module(f"{__name__}.operators")
    return sorted({*_HOMES, *operators.public_names(), "__version__"})
