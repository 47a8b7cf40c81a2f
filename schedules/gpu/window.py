"""The window family on a GPU: a thread for each element of the result. Sizes, strides and windows' numbers are passed at launch.

Operators whose code depends on more than the windows' numbers (regions, quantized tensors, places from a tensor) have the default
schedule, whose kernels are for one shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.launched import with_fields
from tvmdml.operators._contract import Shared
from tvmdml.operators._window import Window, levels_of
from tvmdml.operators._window_gradients import Gathered
from tvmdml.operators._window_largest import Largest
from tvmdml.operators._window_sums import Summed
from tvmdml.schedules.gpu import (
    Numbers,
    _default,
    each_item,
    enough_groups,
    groups_for,
    one_launch,
    require_few_rounds,
    taken_steps,
)
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "window",
    enough_groups(1024),
    threads=Knob(128, (32, 64, 128, 256, 512), "threads per group"),
    most_groups=Knob(65535, (*(1 << n for n in range(16)), 65535), "maximum groups; each strides over the rest"),
)

_FIELDS = ("strides", "window_size", "start_padding", "end_padding", "dilations")


class _Launched:
    """A tensor whose sizes and strides are integers of the launch."""

    def __init__(self, tensor: Any, sizes: Any, layout: Any) -> None:
        self.data_type, self.rank, self.sizes, self.layout = tensor.data_type, tensor.rank, sizes, layout


def kernel(desc: Any, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch."""
    if not isinstance(desc, (Summed, Largest, Gathered)) or not hasattr(desc, "window_size") or desc.wide():
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    types = (tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None)
    found: Kernel = one_launch(desc, target, "threads", _Writer(desc, target, knobs), *types)
    return found


class _Writer:
    """Writes the kernel."""

    def __init__(self, desc: Window, target: DeviceTarget, knobs: Any) -> None:
        self.desc = desc
        self.tensors = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
        result: Any = desc.outputs()[0]
        self.threads = min(knobs.threads, target.max_threads)
        items = result.element_count
        self.groups = groups_for(items, self.threads, target, knobs.most_groups)
        self.taps = desc.taps()
        self.windows = desc.windows_at() if isinstance(desc, Gathered) else 0
        each = -(-items // (self.groups * self.threads))
        # Each loop of a nest has rounds of its own, and so has the loop over items.
        searched = self.taps if not isinstance(desc, Gathered) or hasattr(desc, "input_tensor") else 1
        rounds = (2 * max(self.windows, 1) * (2 * searched + 1) + 4) * each
        require_few_rounds(desc, target, rounds)
        fields = [name for name in _FIELDS if hasattr(desc, name)]
        # Dilations that are all 1 need no division.
        plain = "dilations" in fields and set(desc.dilations) == {1}  # type: ignore[attr-defined]
        self.fields = [name for name in fields if not (plain and name == "dilations")]
        values: dict[str, Any] = {"items": items, "step": self.groups * self.threads}
        values |= {f"{name}_": tuple(getattr(desc, name)) for name in self.fields}
        for i, tensor in enumerate(self.tensors.values()):
            values |= {f"size{i}_": tensor.sizes, f"stride{i}_": taken_steps(tensor.sizes, tensor.layout)}
        padded = [one for name in self.fields for one in getattr(desc, name)]
        reach = max(along.span + along.start + along.end for along in desc.windows())
        longest = max(max(tensor.sizes) for tensor in self.tensors.values())
        span = max(max(tensor.span, tensor.element_count) for tensor in self.tensors.values())
        steps = max(along.stride for along in desc.windows()) * (longest + 1)
        self.numbers = Numbers(max(span, *padded, reach + longest, steps, values["step"] + items), groups=self.groups, **values)
        own = [field.name for field in desc.fields() if field.name not in (*self.tensors, *self.fields)]
        self.levels = levels_of(self.windows or self.taps)
        self.parameters = (
            ("operator", desc.NAME),
            ("types", " ".join(f"{name}:{tensor.data_type.tvm}{tensor.rank}" for name, tensor in self.tensors.items())),
            ("attributes", " ".join(f"{name}={getattr(desc, name)!r}" for name in own)),
            ("levels", self.levels),
            ("threads", self.threads),
            *self.numbers.parameters,
        )

    def function(self) -> PrimFunc:
        with T.on_device(), T.counting(self.numbers.dtype), T.function() as f:
            buffers = {name: f.buffer(name, tensor.data_type.tvm) for name, tensor in self.tensors.items()}
            found = self.numbers.declare(f)
            tensors = {
                name: _Launched(tensor, getattr(found, f"size{i}_"), getattr(found, f"stride{i}_"))
                for i, (name, tensor) in enumerate(self.tensors.items())
            }
            given = {name: tuple(getattr(found, f"{name}_")) for name in self.fields}
            # Sums of so many terms have these levels.
            known = {"known_taps": 1 if self.levels == 1 else 32 ** (self.levels - 1) + 1, "known_wide": False}
            known["known_windows"] = known["known_taps"]
            own: Any = with_fields(self.desc, **tensors, **given, **known)

            @contextmanager
            def each(items: Any) -> Iterator[Any]:
                with each_item(found.groups, self.threads, self.numbers.dtype, found.items, found.step) as item:
                    yield item

            own.write(each, buffers)
        return f.result()
