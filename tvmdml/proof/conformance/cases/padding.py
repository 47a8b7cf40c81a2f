"""The operators of ``operators/padding.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvmdml.enums import PaddingMode
from tvmdml.operators import Operator
from tvmdml.operators.padding import Padding, Padding1
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _padded(
    cls: type[Operator], mode: str, start: int, end: int, value: float = 0, last: int = 0
) -> Callable[[TensorDesc], Operator]:
    """Padding of every dimension; ``last`` more before the last one. The higher dimensions of large ranks have none."""

    def made(x: TensorDesc) -> Operator:
        starts, ends = ([number if i < 5 else 0 for i in range(x.rank)] for number in (start, end))
        starts[-1] += last
        return cls.of(x, padding_mode=mode, padding_value=value, start_padding=starts, end_padding=ends)

    return made


GOOD = _padded(Padding1, "constant", 1, 2)(_movement.X)
RULES = {
    f"{cls.NAME}: {name}": rule
    for cls in (Padding, Padding1)
    for name, rule in {
        "too few numbers": Broken(
            change(_padded(cls, "edge", 1, 1)(_movement.X), end_padding=(1,)),
            *(f"{cls.NAME} end_padding", "1 number", "4, one for each dimension"),
        ),
        "another size of the output": Broken(
            change(_padded(cls, "edge", 1, 1)(_movement.X), end_padding=(1, 1, 1, 2)),
            *(f"{cls.NAME} output_tensor.sizes", "(4, 6, 6, 8)", "(4, 6, 6, 9)"),
        ),
        "a mode of a newer level": Broken(
            partial(_padded(cls, "wrap", 1, 1), _movement.X),
            f"{cls.NAME} padding_mode",
            "'wrap'",
            "'constant', 'edge', 'reflection', 'symmetric', at 6.3",
            level="6.3",
            advice="Feature level 6.4 has it.",
        ),
    }.items()
} | {
    "PADDING1: another type of the number": Broken(
        change(GOOD, padding_value_data_type="float16"), "PADDING1 padding_value_data_type", "float16", "float32, the input's type"
    ),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "padding",
    {
        Padding: (_padded(Padding, "constant", 1, 0, -2.6), _padded(Padding, "reflection", 0, 1, last=9)),
        Padding1: (
            _padded(Padding1, "constant", 1, 0, 3),
            *(_padded(Padding1, mode.name.lower(), 2, 1, last=7) for mode in PaddingMode if mode is not PaddingMode.CONSTANT),
            _padded(Padding1, "constant", 0, 0, 1, last=70),
        ),
    },
    RULES,
)
