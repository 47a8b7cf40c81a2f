"""Attention on a GPU: a group of threads for a block of query rows of a head, which goes over blocks of keys.

There is never a matrix of all scores: a block's are in registers or in shared memory, with the largest one so far and the sum of
weights of each row (flash attention).

One kernel serves all lengths. Where query rows are few, as in decoding, the keys have parts, each with a group of threads; a second
launch adds what the parts come to, in their order.

Which way computes an attention follows from its type, its channels and the target:

- ``cores``: float16 with tensor cores (``_attention_cores.py``).
- ``plain``: everything else (``_attention_plain.py``), but for heads that do not fit into shared memory.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._attention import Attention
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import _default, checked, enough_groups, require, require_few_rounds
from tvmdml.schedules.gpu._attention_cores import AttentionCores
from tvmdml.schedules.gpu._attention_frame import Frame
from tvmdml.schedules.gpu._attention_plain import PlainAttention
from tvmdml.targets._device import DeviceTarget

KNOBS = Knobs(
    "attention",
    enough_groups(1024),
    threads=Knob(128, (64, 128, 256), "threads per group; with tensor cores at most, a subgroup for 16 query rows"),
    rows=Knob(32, (4, 8, 16, 32, 64), "query rows of a block, at most, without tensor cores"),
    keys=Knob(32, (8, 16, 32, 64), "keys of a block, at most, without tensor cores"),
    rows_per_thread=Knob(2, (1, 2, 4), "query rows of a thread, at most, without tensor cores"),
    part_keys=Knob(512, tuple(64 << n for n in range(9)), "keys of a part, where query rows are too few for all groups"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)
_WAYS: tuple[type[Frame], ...] = (AttentionCores, PlainAttention)
"""The first one that fits serves."""


def kernel(desc: Attention, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """A kernel for a class of shapes; the default one where a head's channels do not fit into shared memory."""
    writer = next((one for one in (way(desc, target, shared, knobs) for way in _WAYS) if one.fits), None)
    if writer is None:
        return _default.kernel(desc, target, shared)
    require(desc, target, *sorted(desc.stored_types()))
    require_few_rounds(desc, target, writer.whole_rounds)
    module, *also = desc.modules()
    name = "parts" if writer.part_keys else "blocks"
    built = Kernel(
        module, name, writer.parameters, writer.function, writer.numbers.scalars, writer.temporaries, also=tuple(also)
    )  # fmt: skip
    return checked(desc, target, built)
