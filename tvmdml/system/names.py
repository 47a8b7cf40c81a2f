"""What an error says about a name that is not there: the one that is meant, and what may be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvmdml.system import whole

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
        "reinterpret": "reshape view transpose permute flatten squeeze unsqueeze",
        "resample": "interpolate resize",
    }.items()
    for name in names.split()
}
"""What other libraries call a function."""


def meant(name: str, names: Iterable[str]) -> str:
    """A name that has this one as its last words, is written alike, or the same but for case and underscores, or has it as a part;
    functions come first. Empty if there is none.
    """
    with whole():
        import difflib

    def plain(text: str) -> str:
        return text.replace("_", "").lower()

    known = sorted(names, key=lambda one: (not one.islower(), len(one)))
    if name.startswith("DML_") and name.endswith("_OPERATOR_DESC"):  # a structure of DirectML
        name = name[len("DML_") : -len("_OPERATOR_DESC")]
        known = [one for one in known if one != one.lower()]
    near = [one for one in (_ELSEWHERE.get(name),) if one in known] or [one for one in known if one.endswith(f"_{name}")]
    near = near or difflib.get_close_matches(name, known, 1) or [one for one in known if plain(one) == plain(name)]
    if not near and len(plain(name)) > 3:
        near = [one for one in known if plain(name) in plain(one)]
    return near[0] if near else ""


def no_attribute(where: str, name: str, names: Iterable[str], prefix: str = "", otherwise: str = "") -> AttributeError:
    """The error for a name that is not there.

    Args:
        where: what has no such name.
        name: it.
        names: those that could be meant.
        prefix: what stands before the name that is meant.
        otherwise: what is said if none is.
    """
    near = "" if name.startswith("__") else meant(name, names)
    said = f" Did you mean {prefix + near!r}?" if near else otherwise
    # name=… prevents Python from adding its own suggestion, which would be TopK for topk.
    return AttributeError(f"{where} has no attribute {name!r}.{said}", name=name)


def takes(function: Callable[..., Any]) -> str:
    """A function's name and parameters, without types."""
    import enum
    import inspect

    parts: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = one.default.name if isinstance(one.default, enum.IntEnum) else one.default  # whose text is its number
        parts.append(one.name if one.default is one.empty else f"{one.name}={default}")
    return f"{function.__name__}({', '.join(parts)})"
