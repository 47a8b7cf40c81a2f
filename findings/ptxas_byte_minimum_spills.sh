#!/usr/bin/env bash
# nvcc and ptxas of CUDA 13.5 (nvidia-cuda-nvcc 13.5.37): the lesser of bytes, lane by lane, spills for Blackwell, and not for Hopper.
#
# Expected: a kernel that has room for its values on sm_80 and sm_90, with a third of the registers to spare, needs no memory on
# newer architectures, which have as many registers.
# Seen: two vectors of 16 bytes, of which the lesser lanes are stored, take 44 and 46 of the 64 registers that the launch bounds leave.
# For sm_100, sm_103, sm_120 and sm_121 ptxas uses 63, and stores 12 bytes to a stack: without a warning, unless -Xptxas -v asks.
#
# Output:
#   registers, and bytes of spill stores: sm_80 44 0, sm_90 46 0, sm_100 63 12, sm_103 63 12, sm_120 63 12, sm_121 63 12
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-deps nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
  nvidia-cuda-runtime==13.5.37
cat >"$folder/least.cu" <<'CU'
struct alignas(16) Lanes { unsigned char at[16]; };
extern "C" __global__ void __launch_bounds__(256, 4)
least(const unsigned char *__restrict__ a, unsigned char *__restrict__ b, int groups, int count) {
  #pragma unroll 1
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count / 16; i += groups * 256) {
    const Lanes x = *(const Lanes *)&b[i * 16], y = *(const Lanes *)&a[i * 16];
    Lanes z;
    #pragma unroll
    for (int lane = 0; lane < 16; ++lane) z.at[lane] = x.at[lane] < y.at[lane] ? x.at[lane] : y.at[lane];
    *(Lanes *)&b[i * 16] = z;
  }
}
CU
nvcc=$(find "$folder/venv" -path '*/bin/nvcc' | head -n 1)
seen=""
for architecture in 80 90 100 103 120 121; do
  said=$("$nvcc" -arch="sm_$architecture" -cubin -Xptxas -v -o /dev/null "$folder/least.cu" 2>&1)
  registers=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' <<<"$said")
  spilled=$(sed -n 's/.* \([0-9]*\) bytes spill stores.*/\1/p' <<<"$said")
  seen+="sm_$architecture $registers $spilled, "
done
echo "registers, and bytes of spill stores: ${seen%, }"
test "${seen%, }" = "sm_80 44 0, sm_90 46 0, sm_100 63 12, sm_103 63 12, sm_120 63 12, sm_121 63 12"
echo "as described"
