"""What is loaded when: imports are cheap, and an existing kernel runs without the compiler."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
from programs import python

from tvmdml.targets.cpu import threads


def modules_after(code: str) -> set[str]:
    code += "\nimport sys; print('MODULES', *sys.modules)"
    return set(python(code, may_complain=True).partition("MODULES")[2].split())


FIRST = """
import numpy as np, tvmdml
x = np.array([0.5, 1.5, -2.5, 0.0], "float32")
assert tvmdml.round(x).tolist() == [0, 2, -2, 0]
assert tvmdml.top_k(x, 2).indices.tolist() == [1, 0]
assert tvmdml.nonzero_coordinates(x).tolist() == [[0], [1], [2]]
assert tvmdml.diagonal_matrix(sizes=(2, 2), value=3).tolist() == [[3, 0], [0, 3]]
"""


def test_importing_loads_neither_numpy_nor_tvm() -> None:
    loaded = modules_after("import tvmdml")
    assert not loaded & {"numpy", "tvm", "tvm_ffi", "torch", "click", "rich"}
    assert {name for name in loaded if name.startswith("tvmdml.")} == {"tvmdml.system"}, "more than what forks go through"


_LASTING = """
import gc, weakref
from tvmdml import system

class Node:
    pass

def garbage():
    node = Node()
    node.itself = node
    return weakref.ref(node)

looks = []
young = garbage()
gc.callbacks.append(lambda phase, about: looks.append(about))
made = system.imported(lambda: [[] for _ in range(100_000)])
others = [[] for _ in range(gc.get_threshold()[0] // 2)]
assert gc.isenabled() and not looks, "what was imported was looked at"
assert not gc.get_freeze_count() and young() is not None
gc.collect()
assert young() is None, "garbage from before the import stayed"

gc.freeze()
frozen = gc.get_freeze_count()
system.imported(lambda: None)
assert gc.get_freeze_count() == frozen, "what the program froze is not frozen any more"
"""


def test_what_is_imported_is_no_garbage_to_look_for() -> None:
    subprocess.run([sys.executable, "-c", _LASTING], check=True)


@pytest.mark.full
def test_names_are_found_without_a_compiler() -> None:
    loaded = modules_after("import tvmdml; assert {'top_k', 'TopK1', 'compile'} <= set(dir(tvmdml)); tvmdml.TopK1; tvmdml.top_k")
    assert not loaded & {"tvm", "tvm_ffi", "torch"}


def test_a_name_that_is_not_there_says_so() -> None:
    import tvmdml

    for name, meant in (
        ("topk", "top_k"),
        ("Topk1", "TopK1"),
        ("CompilError", "CompileError"),
        ("RoundMode", "RoundingMode"),
        ("TOP_K1", "TopK1"),
        ("nonzero", "nonzero_coordinates"),
        ("softmax", "activation_softmax"),
        ("conv2d", "convolution"),
        ("pad", "padding"),  # and not add
        ("layer_normalization", "mean_variance_normalization"),
        ("DML_CONVOLUTION_OPERATOR_DESC", "Convolution"),
        ("DML_ELEMENT_WISE_ADD1_OPERATOR_DESC", "ElementWiseAdd1"),
    ):
        with pytest.raises(AttributeError, match=f"^module 'tvmdml' has no attribute '{name}'. Did you mean '{meant}'"):
            getattr(tvmdml, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'xyzzy'. dir\(tvmdml\) lists all names"):
        tvmdml.xyzzy  # noqa: B018


@pytest.mark.full
def test_the_suggestion_is_made_once() -> None:
    done = subprocess.run([sys.executable, "-c", "import tvmdml\ntvmdml.topk"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'tvmdml' has no attribute 'topk'. Did you mean 'top_k'?"


@pytest.mark.full
def test_help_lists_the_functions() -> None:
    import tvmdml

    text = pydoc.render_doc(tvmdml, renderer=pydoc.plaintext)
    listed = text.partition("\nFUNCTIONS\n")[2]
    for function in ("top_k", "round", "nonzero_coordinates", "diagonal_matrix", "compile", "asarray", "load_pack"):
        assert f"\n    {function}(" in f"\n{listed}"
    assert text.index("FUNCTIONS") < 5000  # at the first access


@pytest.mark.full
def test_a_kernel_that_exists_runs_without_the_compiler(cache_dir: object) -> None:
    modules_after(FIRST)
    loaded = modules_after(FIRST)
    assert ("tvm_ffi" in loaded) == (threads.native() is None), "the C extension needs no runtime"
    assert not loaded & {"tvm", "torch", "click", "rich", "platformdirs"}


@pytest.mark.full
def test_a_parallel_kernel_runs_without_the_compiler(cache_dir: object) -> None:
    code = """
import numpy as np, tvmdml
x = np.arange(1 << 22, dtype="float32") / 4
assert (tvmdml.round(x) == np.rint(x)).all()
"""
    modules_after(f"import os; os.environ['TVMDML_NUM_THREADS'] = '2'\n{code}")
    loaded = modules_after(f"import os; os.environ['TVMDML_NUM_THREADS'] = '2'\n{code}")
    assert "tvmdml.targets.cpu.threads" in loaded
    assert "tvm" not in loaded


@pytest.mark.full
def test_a_device_runs_a_kernel_that_exists_without_compiler_and_runtime(cache_dir: object, vulkan: object) -> None:
    code = FIRST.replace("x = np.array", "x = tvmdml.asarray(np.array").replace('"float32")', '"float32"), "vulkan")', 1)
    code = code.replace("value=3)", 'value=3, device="vulkan")')
    modules_after(code)
    loaded = modules_after(code)
    assert "tvmdml.targets.vulkan.driver" in loaded
    assert not loaded & {"tvm", "tvm_ffi", "tvmdml.targets.vulkan.spirv", "tvmdml.targets._lower", "torch", "click", "rich"}


@pytest.mark.parametrize("first", ["tvmdml", "torch"])
def test_pytorch_comes_before_or_after(first: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    imports = "import torch\n" if first == "torch" else ""
    code = f"{imports}{FIRST}\nimport torch\nassert tvmdml.round(torch.tensor([1.5])).tolist() == [2]"
    assert "torch" in modules_after(code)


@pytest.mark.full
def test_a_kernel_can_be_compiled_after_another_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    one = "import numpy as np, tvmdml; x = np.array([1.5], 'float32'); assert tvmdml.round(x) == 2"
    modules_after(one)
    loaded = modules_after(f"{one}\nfor way in ('toward_zero', 'toward_infinity'): tvmdml.round(x, rounding_mode=way)")
    assert "tvm" in loaded


REGISTERED = """
import tvm_ffi, tvm.tirx.script
from tvm.ir import _ffi_api as ir
operators = sorted(map(str, ir.ListOpNames()))
print("REGISTERED", len(operators), [str(ir.OpGetAttr(ir.GetOp(name), "TScriptPrinterName")) for name in operators],
      sorted(tvm_ffi.registry.list_global_func_names()), sorted(map(str, tvm_ffi.get_global_func("ffi.GetRegisteredTypeKeys")())),
      sorted(vars(ir)), *(type(one).__name__ for one in (ir.GetOp, ir.RegisterOpAttr)),
      *(one.__module__ for one in (tvm_ffi.init_ffi_api, tvm_ffi.registry.list_global_func_names)))
"""


@pytest.mark.full
def test_the_compiler_is_imported_in_short_and_is_the_same() -> None:
    def after(code: str) -> str:
        return python(code, may_complain=True).partition("REGISTERED")[2]

    ours = after("from tvmdml.system import imports; imports.tvm()" + REGISTERED)
    assert ours
    assert ours == after("import sys; sys.modules.update({'torch': None, 'cuda.bindings': None}); import tvm" + REGISTERED)
