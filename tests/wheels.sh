#!/usr/bin/env bash
# Installs tvmdml from a folder of wheels alone, into an empty environment, for each Python: bash tests/wheels.sh FOLDER PYTHON...
# The wheels are built of the clone that this file is in, and what tvmdml needs is put beside them; then no index is asked any more.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
shift
source=$folder/source # a copy: what a build leaves behind goes there
mkdir -p "$source"
(cd "$clone" && git ls-files -co --exclude-standard -z | xargs -0 cp -Pp --parents -t "$source")
for python in "$@"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  place=$folder/$version
  mkdir -p "$place"
  "$python" -m pip wheel -q -w "$place/wheels" "$source[compiler]"
  "$python" -m venv "$place/venv"
  "$place/venv/bin/pip" install -q --no-index --find-links "$place/wheels" 'tvmdml[compiler]'
  (
    cd "$place"
    export TVMDML_CACHE_DIR=$place/cache
    venv/bin/python - <<'PY'
import numpy as np

import tvmdml
from tvmdml.targets.cpu import threads

assert "site-packages" in tvmdml.__file__, tvmdml.__file__
assert threads.state() == "native thread pool", threads.state()
assert tvmdml.top_k(np.arange(9, dtype="int16"), 2).indices.tolist() == [8, 7]
PY
    venv/bin/tvmdml run "$clone/tests/models/top_k1.json" | grep "Resource 'column indices': 2, 2, 0, 0, 1, 1, 1, 1" >/dev/null
  )
  echo "Python $version: installed from $(find "$place/wheels" -name '*.whl' | wc -l) wheels, and ran"
done
