"""A processor with fewer features than code was built for: the code is not run, and an error names the missing features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import python
from support import round_desc, tensor

import tvmdml
from tvmdml import packs
from tvmdml.library.spec import Spec, Wanted
from tvmdml.targets.cpu import host

# A processor of 2008, which has no AVX.
PROGRAM = """
import sys
from tvmdml.targets.cpu import host
host._cpuinfo = lambda: "flags : cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
import numpy as np, tvmdml
from tvmdml import packs, targets
new, both = sys.argv[1:]
x = np.linspace(-9, 9, 20, dtype="float32").reshape(4, 5)

def says(*words):
    try:
        tvmdml.round(x, rounding_mode="toward_zero")
    except tvmdml.CompileError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it ran")

assert str(targets.resolve("cpu")) == "cpu:x86-64-v2"
says("no pack is loaded", "it is not in")  # though this very kernel is in the cache, for the processor that is really here
packs.load_pack(new)
says(f"{new} has it for cpu:x86-64-v4, which does not run here: build it for cpu:x86-64-v2 as well")
packs.load_pack(both)
assert (tvmdml.round(x, rounding_mode="toward_zero") == np.trunc(x)).all()
desc = tvmdml.TensorDesc("float32", (3,))
for level in ("x86-64-v3", "x86-64-v4", "x86-64-v2+gfni"):
    try:
        tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=0), f"cpu:{level}")
    except tvmdml.Unsupported as error:
        assert str(error) == f"target cpu: given '{level}'; allowed: what this processor has: x86-64-v2."
    else:
        raise AssertionError(f"{level} was taken")
"""


@pytest.mark.full
@pytest.mark.skipif(not host.host().level.startswith("x86-64-v"), reason="it is about levels of x86-64")
def test_code_for_a_better_processor_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    wanted = (Wanted(round_desc(tensor("float32", (4, 5)), "toward_zero")),)
    new, both = tmp_path / "new.tvmdml", tmp_path / "both.tvmdml"
    packs.build(Spec(("cpu:x86-64-v4",), wanted, {}), new, jobs=1)
    packs.build(Spec(("cpu:x86-64-v4", "cpu:x86-64-v2"), wanted, {}), both, jobs=1)
    if host.host().level != "x86-64-v2":  # otherwise no better target exists here
        assert tvmdml.round(np.full((4, 5), -1.5, "float32"), rounding_mode="toward_zero").tolist() == [[-1.0] * 5] * 4
    python(PROGRAM, new, both, TVMDML_DISABLE_JIT="1")
