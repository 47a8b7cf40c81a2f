#!/usr/bin/env bash
# SwiftShader of Chromium 153 (npm @sparticuz/chromium 153.0.0): f32(u32), SPIR-V's OpConvertUToF, rounds numbers from 2^31 on twice.
#
# Expected: "Conversions between types: correctly rounded", as Vulkan says of single precision (Precision of Core SPIR-V Instructions).
# Seen: of the numbers from 2^31 on, one of six becomes the farther one of its two neighbours: they are off by up to 3/4 of the
# distance between these. Numbers below 2^31 are right, and so are all that are the sum of two halves: f32(x >> 16) * 65536 + f32(x & 65535).
#
# Output:
#   SwiftShader Device (Subzero)
#   f32(x): 8360 of 100005 wrong, 0 of them below 2^31; the largest error is 0.746 of the distance between floats
#   f32(0xffffff7f): 4294967296.0; correct: 4294967040.0
#   f32(x >> 16) * 65536 + f32(x & 65535): 0 wrong
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check wgpu==0.32.0 numpy==2.4.6
cd "$folder"
npm pack --silent @sparticuz/chromium@153.0.0 >/dev/null
tar -xzf sparticuz-chromium-153.0.0.tgz package/bin/swiftshader.tar.br
node -e 'process.stdout.write(require("zlib").brotliDecompressSync(require("fs").readFileSync("package/bin/swiftshader.tar.br")))' | tar -x
VK_DRIVER_FILES=$folder/vk_swiftshader_icd.json "$folder/venv/bin/python" -I - <<'PYTHON'
import numpy as np
import wgpu
from wgpu.utils.compute import compute_with_buffers

print(wgpu.gpu.request_adapter_sync().info["device"])
x = np.array([0x80000000, 0x80000180, 0x80000280, 0xE9AB1E71, 0xFFFFFF7F], np.uint32)
x = np.concatenate([x, np.random.default_rng(0).integers(0, 1 << 32, 100_000, np.uint32)])
right = x.astype(np.float32)


def computed(expression):
    """The expression of each x, as WGSL."""
    code = f"""
    @group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{
      let i = at.x;
      if (i < arrayLength(&x)) {{ y[i] = {expression}; }}
    }}
    """
    return np.frombuffer(compute_with_buffers({0: x}, {1: (x.size, "f")}, code, n=(x.size + 63) // 64)[1], np.float32)


found, halves = computed("f32(x[i])"), computed("f32(x[i] >> 16u) * 65536.0 + f32(x[i] & 65535u)")
wrong, small = found != right, x < 2**31
most = (abs(found.astype(np.float64) - x) / np.spacing(right)).max()
print(f"f32(x): {wrong.sum()} of {x.size} wrong, {wrong[small].sum()} of them below 2^31; "
      f"the largest error is {most:.3f} of the distance between floats")
print(f"f32({x[4]:#x}): {found[4]}; correct: {right[4]}")
print(f"f32(x >> 16) * 65536 + f32(x & 65535): {(halves != right).sum()} wrong")
assert (wrong.sum(), wrong[small].sum(), f"{most:.3f}", (halves != right).sum()) == (8360, 0, "0.746", 0), "changed"
PYTHON
echo "as described"
