"""Launches through TVM's runtime, from Python: every target can use them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmdml.system import imports, whole
from tvmdml.targets._terms import Form, Launcher
from tvmdml.tensors import arrays
from tvmdml.tensors.arrays import NumpyArray


class RuntimeLaunch:
    """A kernel with its integer arguments and temporaries."""

    def __init__(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> None:
        self._launcher = launcher
        self._scalars = tuple(scalars)
        self._temporaries = tuple((count, np.dtype(dtype)) for dtype, count in temporaries)

    def __call__(self, *tensors: Any) -> None:
        """Launch on arrays, or on the converted arrays that ``bind`` passes."""
        rest = (*(np.empty(count, dtype) for count, dtype in self._temporaries), *self._scalars)
        # Python must not end a daemon thread inside the runtime. It never ends the main thread that way.
        with contextlib.nullcontext() if threading.current_thread() is threading.main_thread() else whole():
            try:
                self._launcher(*tensors, *rest)
            except BufferError:  # raised before the launch: the runtime rejects read-only arrays, but inputs may be read-only
                self._launcher(*map(_writable, tensors), *rest)

    def bind(self, *tensors: NumpyArray) -> Callable[[], None]:
        """A launch on these arrays, which are converted for the runtime only once."""
        convert = imports.tvm_ffi().from_dlpack
        ready = [convert(_writable(tensor)) for tensor in tensors]
        return lambda: self(*ready)

    def fit(self, forms: tuple[Form, ...]) -> Callable[..., bool]:
        """A launch on arrays of these forms. It returns whether the arrays had these forms, and so were launched on."""
        present = [i for i, form in enumerate(forms) if form is not None]
        # An output may share no memory with an array before it, and an input none with an output before it.
        apart = [(i, j) for j in present for i in present if i < j and (forms[i][3] or forms[j][3])]  # type: ignore[index]

        def launch(*tensors: Any) -> bool:
            if len(tensors) != len(forms):
                return False
            for tensor, form in zip(tensors, forms, strict=True):
                if form is None:
                    if tensor is not None:
                        return False
                    continue
                dtype, shape, strides, output = form
                if type(tensor) is not np.ndarray or tensor.shape != shape or tensor.strides != strides or tensor.dtype != dtype:
                    return False
                flags = tensor.flags
                if not flags.aligned or (output and not flags.writeable):
                    return False
            if any(np.may_share_memory(tensors[i], tensors[j]) for i, j in apart):
                return False
            self(*(tensors[i] for i in present))
            return True

        return launch


def _writable(tensor: Any) -> Any:
    return tensor if not isinstance(tensor, np.ndarray) or tensor.flags.writeable else arrays.writable_alias(tensor)
