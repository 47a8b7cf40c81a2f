"""The knobs of convolutions, which stand beside those of products (``matrix.py``)."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.kernels.knobs import Knob

ORDERS: dict[str, Callable[[int, int], bool]] = {
    "auto": lambda filters, frame: filters > frame,
    "filters": lambda filters, frame: True,
    "places": lambda filters, frame: False,
}
"""Whether tiles of the same filters follow each other, by the elements of filters and of the image: the larger is read once."""
BLOCK = 16
"""The usual channels of a block: those of a cache line."""
FOR_IMAGES = {
    "run": Knob(0, tuple(range(15)), "neighbours of a row in a tile of places, about; 0: as sizes suggest"),
    "lines": Knob(0, tuple(range(8)), "rows in a tile of places, about; 0: as sizes suggest"),
    "vectors": Knob(0, tuple(range(5)), "vectors of filters of such a tile, about; 0: as sizes suggest"),
    "order": Knob("auto", tuple(ORDERS), "what tiles that follow each other have in common: filters or places"),
    "block": Knob(BLOCK, (8, 16, 32, 64), "channels of a block in the copy of an image for results with channels last"),
    "follow": Knob(64, (1, 4, 16, 64, 256), "most tiles of places that meet the same block of filters one after the other"),
    "task_image_products": Knob(1 << 18, tuple(1 << n for n in range(10, 26)), "least products for each task over an image"),
}
