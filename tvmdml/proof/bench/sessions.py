"""Models of one node for ONNX Runtime and kernels of one operator for TVM, with their arrays already bound."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tvmdml import targets
from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.system import imports

_IR_VERSION = 10  # of the model file; every ONNX Runtime version with the operator sets used here reads it


def onnx_session(
    operator: str,
    inputs: Mapping[str, NumpyArray],
    outputs: Mapping[str, NumpyArray],
    threads: int,
    opset: int = 22,
    constants: Mapping[str, NumpyArray] | None = None,
    absent: Sequence[int] = (),
    domain: str = "",
    then: Sequence[str] = (),
    **attributes: Any,
) -> Callable[[], object]:
    """A call that runs one ONNX operator from bound inputs into bound outputs.

    Its threads spin between calls, as they do by default: that makes the next call faster. ``absent`` are the positions of inputs
    that are left out; the operators ``then`` follow, each on the result of the one before.
    """
    constants = constants or {}
    named = [*inputs, *constants]
    for position in absent:
        named.insert(position, "")
    between = [*(f"between{i}" for i in range(len(then))), *outputs]
    first = list(outputs) if not then else between[:1]
    nodes = [(operator, named, first, attributes), *((one, [between[i]], [between[i + 1]], {}) for i, one in enumerate(then))]
    return onnx_nodes_session(nodes, inputs, outputs, threads, opset, constants, domain)


def onnx_nodes_session(
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]],
    inputs: Mapping[str, NumpyArray],
    outputs: Mapping[str, NumpyArray],
    threads: int,
    opset: int = 22,
    constants: Mapping[str, NumpyArray] | None = None,
    domain: str = "",
) -> Callable[[], object]:
    """The same of several ONNX operators, each with its inputs, outputs and attributes; ``domain`` is that of the first one."""
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    constants = constants or {}

    def info(name: str, array: NumpyArray) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    graph = helper.make_graph(
        [
            helper.make_node(name, takes, gives, domain="" if i else domain, **more)
            for i, (name, takes, gives, more) in enumerate(nodes)
        ],
        "one",
        [info(name, array) for name, array in inputs.items()],
        [info(name, array) for name, array in outputs.items()],
        initializer=[onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    own = [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *own], ir_version=_IR_VERSION)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        # A view of the array's memory: otherwise the runtime would copy a small array, and write to the copy.
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        binding.bind_output(name, "cpu", 0, element, array.shape, array.ctypes.data)

    class Bound(partial):  # type: ignore[type-arg] # as fast to call as the method itself
        kept = (inputs, outputs)  # the binding has their addresses, but no reference to them

    return Bound(session.run_with_iobinding, binding)


def topi_kernel(
    write: Callable[[Any, Any], Sequence[Any]], inputs: Sequence[NumpyArray], outputs: Sequence[NumpyArray]
) -> Callable[[], object]:
    """A call that runs an operator of TVM's library, compiled for this processor; ``write(topi, placeholder)`` describes it."""
    tvm = imports.tvm()
    te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
    cpu: Any = targets.resolve("cpu")
    machine = importlib.import_module("tvmdml.targets.cpu")._tvm_target(cpu.processor)
    placeholders = [te.placeholder(array.shape, array.dtype.name) for array in inputs]
    with machine:
        results = write(topi, *placeholders)
        module = tvm.IRModule({"main": te.create_prim_func([*placeholders, *results])})
        entry = tvm.compile(module, target=machine).jit()["main"]
    arrays = [imports.tvm_ffi().from_dlpack(array) for array in (*inputs, *outputs)]
    return partial(entry, *arrays)
