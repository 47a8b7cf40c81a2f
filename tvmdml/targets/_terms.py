"""The words that targets share with the modules around them. Nothing here imports a driver, the compiler, or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    from tvmdml.tensors.arrays import NumpyArray

Value = int | str
"""A knob's value."""

Launcher: TypeAlias = Any
"""A loaded kernel, in the form that its target's ``launch`` takes. The CPU's is called with tensors, temporaries and integers."""

Form: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], bool] | None"
"""The form an array must have: type, shape, strides in bytes, and whether it is written to; ``None`` for an absent array."""


class Launch(Protocol):
    """A kernel with all its arguments except the arrays.

    The arrays are NumPy's or the target's own, in field order. An input may be read-only.
    """

    def __call__(self, *arrays: NumpyArray) -> None:
        """Launch on arrays that were already checked."""

    def bind(self, *arrays: NumpyArray) -> Callable[[], None]:
        """Prepare repeated launches on these arrays: everything that can be done once is done now."""

    def fit(self, forms: tuple[Form, ...]) -> Callable[..., bool]:
        """Return a function that checks and launches, if there is a fast way to do both.

        The returned function accepts any arguments. It returns whether they were arrays of these forms, with no output that may
        share memory with another array. If so, the kernel was launched on them; if not, nothing was done.
        """


class Machine(NamedTuple):
    """A kind of machine, which winners are valid for."""

    target: str
    """The explicit target of the kernels: ``cpu:x86-64-v4+gfni``, ``cuda:sm_90``, ``vulkan``."""
    processor: str
    """The vendor, family and model of a processor, or the name of a device."""
    threads: int
    """The number of the processor's threads in use; 0 for a device."""


class Logs(Protocol):
    """Tuning logs, as a target keeps them for its schedules: see ``tuning.logs.Logs``."""

    def find(self, operator: str, desc: Any, shared: Any, machine: Machine) -> Any:
        """The record to use, or ``None``."""
