"""The larger or smaller of two floats by one instruction, in LLVM IR: a comparison whose result is chosen by it.

LLVM would join that with a choice of NaN to two comparisons and a choice. It does not look through a fence.
"""

from __future__ import annotations

import functools

_KINDS = {"float32": ("float", "f32"), "float64": ("double", "f64")}


def name(step: str, dtype: str, lanes: int) -> str:
    """The name of the function for a type. A step is ``greater`` or ``less``."""
    return f"tvmdml_{step}_{dtype}x{lanes}"


@functools.cache
def source(step: str, dtype: str, lanes: int) -> str:
    """That function: the first one if it is greater (or less), otherwise the second, also if either is NaN."""
    ctype, suffix = _KINDS[dtype]
    whole = f"<{lanes} x {ctype}>"
    return f"""
declare {whole} @llvm.arithmetic.fence.v{lanes}{suffix}({whole})
define {whole} @{name(step, dtype, lanes)}({whole} %a, {whole} %b) alwaysinline {{
  %first = fcmp o{step[0]}t {whole} %a, %b
  %found = select <{lanes} x i1> %first, {whole} %a, {whole} %b
  %same = call {whole} @llvm.arithmetic.fence.v{lanes}{suffix}({whole} %found)
  ret {whole} %same
}}
"""
