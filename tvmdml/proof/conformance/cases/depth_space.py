"""The operators of ``operators/depth_space.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.enums import DepthSpaceOrder
from tvmdml.operators import Operator
from tvmdml.operators.depth_space import DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, Sizes, change
from tvmdml.tensors import TensorDesc


def _blocks(cls: type[Operator], *blocks: int, **attributes: Any) -> Callable[[TensorDesc], Operator]:
    """The first of these blocks that the tensor has whole; otherwise blocks of 1."""

    def made(x: TensorDesc) -> Operator:
        whole = (b for b in blocks if x.rank == 4 and _fits(cls, x.sizes, b))
        return cls.of(x, block_size=next(whole, 1), **attributes)

    return made


def _fits(cls: type[Operator], sizes: Sizes, block: int) -> bool:
    return sizes[1] % block**2 == 0 if cls in (DepthToSpace, DepthToSpace1) else sizes[2] % block == sizes[3] % block == 0


def _ways(cls: type[Operator], **attributes: Any) -> list[Callable[[TensorDesc], Operator]]:
    return [_blocks(cls, 2, **attributes), _blocks(cls, 3, 4, **attributes)]


def _whole(sizes: Sizes) -> Sizes:
    """Whole blocks of 2, and of 3 or 4: of the image, or for an odd number of channels in these."""
    if len(sizes) == 4 and sizes[2] % 4 == sizes[3] % 4 == 0:
        return sizes
    if len(sizes) != 4 or sizes[1] % 2:
        return sizes if len(sizes) != 4 else (sizes[0], 36, *sizes[2:])
    return (*sizes[:2], -(-sizes[2] // 6) * 6, -(-sizes[3] // 6) * 6)


X = _movement.X
RULES = {
    f"{cls.NAME}: {name}": rule
    for cls, where, given in ((SpaceToDepth, 2, 4), (SpaceToDepth1, 2, 4), (DepthToSpace, 1, 4), (DepthToSpace1, 1, 4))
    for name, rule in {
        "no whole blocks": Broken(
            change(_ways(cls, **{"order": 0} if cls.NAME[-1] == "1" else {})[0](X), block_size=3),
            f"{cls.NAME} input_tensor.sizes[{where}]",
            str(given),
            "a multiple of 3, the block_size" if where == 2 else "a multiple of 9, the elements of a block",
        ),
        "no block": Broken(
            change(_ways(cls, **{"order": 0} if cls.NAME[-1] == "1" else {})[0](X), block_size=0),
            *(f"{cls.NAME} block_size", "0", "1 or more"),
        ),
    }.items()
}

DESCRIBED, BROKEN, reference = _movement.of(
    "depth_space",
    {
        SpaceToDepth: _ways(SpaceToDepth),
        DepthToSpace: _ways(DepthToSpace),
        **{cls: [way for order in DepthSpaceOrder for way in _ways(cls, order=order)] for cls in (SpaceToDepth1, DepthToSpace1)},
    },
    RULES,
    _whole,
)
