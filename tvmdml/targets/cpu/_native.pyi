from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Form = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], bool] | None

LAUNCH: int

class Launch:
    def __new__(cls, owner: object, handle: int, scalars: tuple[int, ...], temporaries: tuple[int, ...]) -> Launch: ...
    def __call__(self, *arrays: Array) -> None: ...
    def bind(self, *arrays: Array) -> Callable[[], None]: ...
    def fit(self, forms: tuple[Form, ...]) -> Fit: ...

class Fit:
    def __new__(cls, launch: Launch, forms: tuple[Form, ...]) -> Fit: ...
    def __call__(self, *arrays: object) -> bool: ...

class Plans:
    def __call__(
        self, describe: object, device: object, attributes: tuple[Any, ...], inputs: tuple[Any, ...], out: object, /
    ) -> tuple[Array, ...] | None: ...
    def add(
        self,
        describe: object,
        device: object,
        attributes: tuple[Any, ...],
        inputs: tuple[Any, ...],
        out: object,
        launch: Launch,
        results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...],
        arrays: tuple[Array | None, ...] = ...,
        /,
    ) -> None: ...

def connect(
    ndarray: type, empty: Callable[..., Any], to_error: Callable[[str, str, str], BaseException], addresses: tuple[int, ...], /
) -> None: ...
def inspect(array: Array, /) -> tuple[int, tuple[int, ...], tuple[int, ...], int, bytes, bytes, bool, bool]: ...
def set_limit(threads: int, /) -> None: ...
def started() -> int: ...
