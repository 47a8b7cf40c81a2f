#!/usr/bin/env bash
# ptxas of CUDA 13.5 (nvidia-cuda-nvcc 13.5.37): for sm_103 and sm_107, instructions that do nothing stand between products of bytes.
#
# Expected: eight mma.sync of bytes with sums of their own become eight IMMA, one after the other, as for other Blackwell devices.
# Seen: for sm_103 and sm_107 four `@!UPT UIADD3 URZ, UPT, UPT, URZ, URZ, URZ`, which are never executed, stand between each two, so
# that a loop of products is longer there than for sm_100. Products of float16 have none.
#
# Output:
#   IMMA and idle instructions: sm_90 8 1, sm_100 8 0, sm_103 8 28, sm_107 8 28, sm_110 8 0, sm_120 8 1
#   HMMA and idle instructions: sm_90 8 1, sm_100 8 0, sm_103 8 0, sm_107 8 0, sm_110 8 0, sm_120 8 1
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-deps nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
  nvidia-cuda-runtime==13.5.37 nvidia-cuda-nvdisasm==13.5.37
nvcc=$(find "$folder/venv" -path '*/bin/nvcc' | head -n 1)
nvdisasm=$(find "$folder/venv" -name nvdisasm -type f | head -n 1)

count() { # the instruction, the instruction of PTX, the type of sums, and their constraint
  cat >"$folder/mma.cu" <<CU
extern "C" __global__ void products(const unsigned *x, $3 *y) {
  $3 c[8][4];
  for (int i = 0; i < 8; ++i) for (int j = 0; j < 4; ++j) c[i][j] = y[(i * 4 + j) * 32 + threadIdx.x];
  unsigned a[6];
  for (int i = 0; i < 6; ++i) a[i] = x[i * 32 + threadIdx.x];
  #pragma unroll
  for (int i = 0; i < 8; ++i)
    asm volatile("mma.sync.aligned.$2 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+$4"(c[i][0]), "+$4"(c[i][1]), "+$4"(c[i][2]), "+$4"(c[i][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
  for (int i = 0; i < 8; ++i) for (int j = 0; j < 4; ++j) y[(i * 4 + j) * 32 + threadIdx.x] = c[i][j];
}
CU
  seen=""
  for architecture in 90 100 103 107 110 120; do
    "$nvcc" -arch="sm_$architecture" -cubin -o "$folder/mma.cubin" "$folder/mma.cu"
    "$nvdisasm" "$folder/mma.cubin" >"$folder/listing"
    seen+="sm_$architecture $(grep -c "$1\." "$folder/listing") $(grep -c '@!UPT UIADD3 URZ' "$folder/listing" || true), "
  done
  echo "$1 and idle instructions: ${seen%, }"
}

bytes=$(count IMMA m16n8k32.row.col.s32.u8.s8.s32 int r)
halves=$(count HMMA m16n8k16.row.col.f32.f16.f16.f32 float f)
printf '%s\n' "$bytes" "$halves"
test "$bytes" = "IMMA and idle instructions: sm_90 8 1, sm_100 8 0, sm_103 8 28, sm_107 8 28, sm_110 8 0, sm_120 8 1"
test "$halves" = "HMMA and idle instructions: sm_90 8 1, sm_100 8 0, sm_103 8 0, sm_107 8 0, sm_110 8 0, sm_120 8 1"
echo "as described"
