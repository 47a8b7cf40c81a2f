"""Helpers to write TensorIR: TVM's IR builder, loaded when the first kernel is built, and constructs that kernels share.

Use it as ``from tvmdml.kernels import tensorir as T``; a name that is not defined here is TVM's own (``T.serial``, ``T.trunc`` …;
``T.PrimFunc`` in annotations).
Kernels are built by calls to the builder, not parsed from source: 1 ms instead of 20 to 44.

Every kernel is a flat function: pointers to elements first, then 64-bit integers. Tensors are one-dimensional buffers with the
alignment of one element, as in NumPy, and each index is computed from sizes and strides.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels.tensorir_base import Function as Function
from tvmdml.kernels.tensorir_base import ParameterSource as ParameterSource
from tvmdml.kernels.tensorir_base import Rounds as Rounds
from tvmdml.kernels.tensorir_base import Shuffle as Shuffle
from tvmdml.kernels.tensorir_base import Variable as Variable
from tvmdml.kernels.tensorir_base import const as const
from tvmdml.kernels.tensorir_base import constant as constant
from tvmdml.kernels.tensorir_base import counting as counting
from tvmdml.kernels.tensorir_base import dot as dot
from tvmdml.kernels.tensorir_base import either as either
from tvmdml.kernels.tensorir_base import function as function
from tvmdml.kernels.tensorir_base import hold as hold
from tvmdml.kernels.tensorir_base import i64 as i64
from tvmdml.kernels.tensorir_base import index as index
from tvmdml.kernels.tensorir_base import is_on_device as is_on_device
from tvmdml.kernels.tensorir_base import lanes as lanes
from tvmdml.kernels.tensorir_base import let as let
from tvmdml.kernels.tensorir_base import local as local
from tvmdml.kernels.tensorir_base import loop as loop
from tvmdml.kernels.tensorir_base import loop_while as loop_while
from tvmdml.kernels.tensorir_base import multiple as multiple
from tvmdml.kernels.tensorir_base import on_device as on_device
from tvmdml.kernels.tensorir_base import rounds_counted as rounds_counted
from tvmdml.kernels.tensorir_base import run as run
from tvmdml.kernels.tensorir_base import splat as splat
from tvmdml.kernels.tensorir_base import store as store
from tvmdml.kernels.tensorir_base import type_of as type_of
from tvmdml.kernels.tensorir_base import view as view
from tvmdml.kernels.tensorir_base import when as when
from tvmdml.kernels.tensorir_base import word as word
from tvmdml.kernels.tensorir_base import word_as as word_as
from tvmdml.kernels.tensorir_devices import atomic as atomic
from tvmdml.kernels.tensorir_devices import atomic_do as atomic_do
from tvmdml.kernels.tensorir_devices import await_copies as await_copies
from tvmdml.kernels.tensorir_devices import barrier as barrier
from tvmdml.kernels.tensorir_devices import copy_async as copy_async
from tvmdml.kernels.tensorir_devices import end_copies as end_copies
from tvmdml.kernels.tensorir_devices import launch as launch
from tvmdml.kernels.tensorir_devices import looked_up as looked_up
from tvmdml.kernels.tensorir_devices import multiply_add_pair as multiply_add_pair
from tvmdml.kernels.tensorir_devices import near_exp2 as near_exp2
from tvmdml.kernels.tensorir_devices import shared as shared
from tvmdml.kernels.tensorir_devices import subgroup as subgroup
from tvmdml.kernels.tensorir_devices import subgroup_barrier as subgroup_barrier
from tvmdml.kernels.tensorir_elements import Each as Each
from tvmdml.kernels.tensorir_elements import count_up as count_up
from tvmdml.kernels.tensorir_elements import divided_out as divided_out
from tvmdml.kernels.tensorir_elements import divides_by as divides_by
from tvmdml.kernels.tensorir_elements import elements as elements
from tvmdml.kernels.tensorir_elements import reciprocal_of as reciprocal_of
from tvmdml.kernels.tensorir_elements import unravel as unravel
from tvmdml.kernels.tensorir_elements import unravel_word as unravel_word
from tvmdml.kernels.tensorir_listed import listed_function as listed_function
from tvmdml.kernels.tensorir_matrices import SubgroupMatrix as SubgroupMatrix
from tvmdml.kernels.tensorir_matrices import chosen_bytes as chosen_bytes
from tvmdml.kernels.tensorir_matrices import halves as halves
from tvmdml.kernels.tensorir_matrices import load_tiles as load_tiles
from tvmdml.kernels.tensorir_matrices import multiply_tiles as multiply_tiles
from tvmdml.kernels.tensorir_processors import call_imported as call_imported
from tvmdml.kernels.tensorir_processors import do_imported as do_imported
from tvmdml.kernels.tensorir_processors import has_instructions as has_instructions
from tvmdml.kernels.tensorir_processors import instructions_of as instructions_of
from tvmdml.kernels.tensorir_processors import rounded as rounded
from tvmdml.kernels.tensorir_processors import same_memory as same_memory
from tvmdml.system import imports


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python inspects the module
        raise AttributeError(name)
    imports.tvm()
    from tvm.tirx.script import builder

    if not hasattr(builder, name):
        raise AttributeError(f"no word {name!r}: this module, tensorir_values.py and tvm.tirx.script have the words of kernels")
    return getattr(builder, name)
