"""Values of a group's threads, combined in shared memory: the result is the same in each run, and all threads get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T

Values = Sequence[Any]


class JoinedThreads:
    """The threads of a group, in a launch; all of them must reach each of its operations.

    Args:
        threads: how many there are, a power of two.
        thread: the index of each, of any type.
    """

    def __init__(self, threads: int, thread: Any) -> None:
        self.thread, self._threads = thread, threads
        self._arrays: dict[str, Any] = {}

    @property
    def is_first(self) -> Any:
        """Whether a thread is the first one."""
        return self.thread == T.const(0, T.type_of(self.thread))

    def across(self, values: Values, combine: Callable[[Values, Values], Values]) -> tuple[Any, ...]:
        """The values of all threads combined, each half with the other."""
        places = [self._array(i, T.scalar_type(value)) for i, value in enumerate(values)]
        for array, value in zip(places, values, strict=True):
            T.store(array, self.thread, value)
        T.barrier()
        half = self._threads // 2
        while half:
            with T.when(self.thread < T.const(half, T.type_of(self.thread))):
                own, other = (
                    tuple(T.hold(array[self.thread + step] if step else array[self.thread]) for array in places)
                    for step in (0, half)
                )
                for array, value in zip(places, tuple(map(T.hold, combine(own, other))), strict=True):
                    T.store(array, self.thread, value)
            T.barrier()
            half //= 2
        found = tuple(T.hold(array[T.const(0, T.type_of(self.thread))]) for array in places)
        T.barrier()  # the next values are stored where these are read
        return found

    def _array(self, number: int, kind: str) -> Any:
        """Shared memory for a value of each thread; all calls use the same."""
        name = f"{number} {kind}"
        if name not in self._arrays:
            self._arrays[name] = T.shared(kind, self._threads)
        return self._arrays[name]
