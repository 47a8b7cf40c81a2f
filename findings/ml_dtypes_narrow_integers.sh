#!/usr/bin/env bash
# ml_dtypes 0.6.0 and 0.7.0 (NumPy 2.4.6): casts of float32 to int4 and uint4 beyond their ranges, and what the import costs.
#
# Expected: a minor release casts as the one before; numbers that a type has not are cast alike, whichever type they come from.
# Seen: 0.6.0 gives their low bits, from float32 and from int32. 0.7.0 gives 0 from float32, with NumPy's warning about invalid values,
# and still the low bits from int32. Its import takes the processor a hundred times as long, 0.48 s here, and each program that imports
# the package onnx pays for it.
#
# Output:
#   0.6.0: int4 of float32 [4, 7, -8, 7, -8, -7, -4], of int32 [4, 7, -8, 7, -8, -7, -4]; uint4 of float32 [4, 7, 8, 7, 8, 9, 12]
#   0.7.0: int4 of float32 [0, 0, -8, 7, 0, 0, 0], of int32 [4, 7, -8, 7, -8, -7, -4]; uint4 of float32 [0, 0, 0, 7, 8, 9, 0]
#   the import takes at least 20 times as long: True
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
for version in 0.6.0 0.7.0; do
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$version" ml_dtypes==$version
done
cat >"$folder/casts.py" <<'PYTHON'
import sys
import time

import numpy as np

before = time.process_time()
import ml_dtypes

took = time.process_time() - before
x = np.array([-300, -9, -8, 7, 8, 9, 300])


def cast(source, to):
    with np.errstate(invalid="ignore"):
        return x.astype(source).astype(to).astype(int).tolist()


print(f"{ml_dtypes.__version__}: int4 of float32 {cast('f4', ml_dtypes.int4)}, of int32 {cast('i4', ml_dtypes.int4)}; "
      f"uint4 of float32 {cast('f4', ml_dtypes.uint4)}")
print(took, file=sys.stderr)
PYTHON
for version in 0.6.0 0.7.0; do
  PYTHONPATH=$folder/$version "$folder/venv/bin/python" "$folder/casts.py" >/dev/null 2>&1 # makes bytecode
  PYTHONPATH=$folder/$version "$folder/venv/bin/python" "$folder/casts.py" 2>"$folder/took-$version"
done | tee "$folder/seen"
python3 -c 'import sys; a, b = (float(open(one).read()) for one in sys.argv[1:]); print("the import takes at least 20 times as long:", b >= 20 * a)' \
  "$folder/took-0.6.0" "$folder/took-0.7.0" | tee -a "$folder/seen"
diff "$folder/seen" - <<'END'
0.6.0: int4 of float32 [4, 7, -8, 7, -8, -7, -4], of int32 [4, 7, -8, 7, -8, -7, -4]; uint4 of float32 [4, 7, 8, 7, 8, 9, 12]
0.7.0: int4 of float32 [0, 0, -8, 7, 0, 0, 0], of int32 [4, 7, -8, 7, -8, -7, -4]; uint4 of float32 [0, 0, 0, 7, 8, 9, 0]
the import takes at least 20 times as long: True
END
echo "as described"
