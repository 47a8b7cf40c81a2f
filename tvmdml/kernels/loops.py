"""Loops of a computation inside each other, some of whose rounds are not made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T


@contextmanager
def counted_loop(count: Any, most: int | None) -> Iterator[Any]:
    """A loop over ``count``; on a device over ``most`` if that is known, so that its rounds are counted."""
    if most is not None and T.is_on_device():
        with T.loop(T.const(most, T.type_of(count))) as i, T.when(i < count):
            yield i
    else:
        with T.loop(count) as i:
            yield i


@contextmanager
def nested(loops: Sequence[Any]) -> Iterator[list[Any]]:
    """Context managers inside each other; returns what each gives."""
    with ExitStack() as stack:
        yield [stack.enter_context(one) for one in loops]
