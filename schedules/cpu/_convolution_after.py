"""The elements that what follows a convolution needs: they lie as the output, or there is one for each channel.

Some kernels also take images whose channels are neighbours, as the output's are, and whose places lie otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._matrix_fused import place_of

_IMAGE = "image"


def near(tensor: Any) -> bool:
    """Whether the channels of a place are neighbours."""
    return bool(tensor.layout[1] == 1)


class After:
    """What is fused behind a convolution, in a kernel."""

    def __init__(self, desc: Any) -> None:
        self.desc, self.head = desc, desc.head()
        self.names = [name for name, _ in desc.later()]
        self.places = [place_of(tensor, desc.output_tensor) or _IMAGE * near(tensor) for _, tensor in desc.later()]

    @property
    def suits(self) -> bool:
        """Whether all tensors lie so."""
        return all(self.places) and not self.images

    @property
    def images(self) -> list[tuple[str, Any]]:
        """The images that lie otherwise."""
        return [one for one, place in zip(self.desc.later(), self.places, strict=True) if place == _IMAGE]

    @property
    def changes(self) -> bool:
        """Whether there is anything behind the head."""
        return self.desc is not self.head

    @property
    def apart(self) -> bool:
        """Whether each of the output's elements needs others."""
        return "output" in self.places

    def addends(self) -> list[str]:
        """The names of what the head adds."""
        return [name for name, _ in self.head.addends()]

    def steps(self) -> list[int]:
        """How far apart the elements of channels are: of what the head adds, and of what comes later."""
        own = [tensor.layout[1] for _, tensor in self.head.addends()]
        return own + [
            0 if place in ("output", _IMAGE) else tensor.layout[1]
            for place, (_, tensor) in zip(self.places, self.desc.later(), strict=True)
        ]

    def value(
        self,
        found: Any,
        tensors: dict[str, Any],
        of_channel: Callable[[str, int], Any],
        of_output: Callable[[Any], Any],
        of_image: Callable[[str], Any] | None = None,
    ) -> Any:
        """The output's element, or a vector, from that of the head.

        Args:
            found: the head's.
            tensors: the kernel's buffers.
            of_channel: reads a channel's elements: a buffer's name, and the number of its step.
            of_output: reads those in the output's place from a buffer.
            of_image: reads those of an image that lies otherwise, by its name.
        """
        first = len(self.head.addends())
        reads = {"output": lambda name, i: of_output(tensors[name]), "channel": of_channel}
        if of_image is not None:
            reads[_IMAGE] = lambda name, i: of_image(name)
        given = [T.hold(reads[place](name, first + i)) for i, (name, place) in enumerate(zip(self.names, self.places, strict=True))]
        return self.desc.after(found, *given)
