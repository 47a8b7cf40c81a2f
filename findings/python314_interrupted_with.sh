#!/usr/bin/env bash
# CPython 3.14.2 (npm pyodide 314.0.7): an interrupt can leave the lock of `with lock:` locked. CPython 3.13.2 (pyodide 0.29.0) does not.
#
# Expected: what a with statement has entered is left again, also when a signal handler raises KeyboardInterrupt. Up to 3.13, no handler
# runs between the call of __enter__ and the block: one instruction, BEFORE_WITH, is both.
# Seen: from 3.14 on, __enter__ is called by an ordinary CALL, after which handlers run, and which the block's exception table does not
# cover: the lock was taken, and nobody releases it. It happens within some dozen interrupts; the same with Debian's native 3.14.10.
# A flag that is set right before `try:` and reset in `finally:` has no such gap.
#
# Output:
#   CPython 3.13.2: __enter__ is called by BEFORE_WITH, handlers do not run behind it; the lock is free
#   CPython 3.14.2: __enter__ is called by CALL, handlers run behind it; the lock is left locked
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund older@npm:pyodide@0.29.0 newer@npm:pyodide@314.0.7
cat >program.py <<'PYTHON'
import dis
import sys
import threading

import js

lock = threading.Lock()


def work():
    with lock:
        pass


names = [one.opname for one in dis.get_instructions(work)]
entered = next(name for name in names if name in ("BEFORE_WITH", "CALL"))
raised, left = 0, False
while raised < 500 and not left:
    try:
        js.interrupt()  # soon
        while True:
            work()
    except KeyboardInterrupt:
        raised += 1
        left = lock.locked()
gap = "handlers run behind it; the lock is left locked" if left else "handlers do not run behind it; the lock is free"
f"CPython {sys.version.split()[0]}: __enter__ is called by {entered}, {gap}"
PYTHON
cat >run.cjs <<'NODE'
const { Worker } = require("worker_threads");
const program = require("fs").readFileSync("program.py", "utf8");
(async () => {
  const python = await require(process.argv[2]).loadPyodide();
  const signals = new Uint8Array(new SharedArrayBuffer(1));
  const code = `const { parentPort, workerData } = require("worker_threads");
    parentPort.on("message", () => setTimeout(() => { workerData[0] = 2; }, 2));`;
  const worker = new Worker(code, { eval: true, workerData: signals });
  await new Promise((ready) => worker.once("online", ready));
  globalThis.interrupt = () => worker.postMessage(0);
  python.setInterruptBuffer(signals);
  console.log(python.runPython(program));
  process.exit(0);
})();
NODE
node run.cjs older | cut -c 1-200 | tee seen
node run.cjs newer | cut -c 1-200 | tee -a seen
diff - seen <<'SEEN'
CPython 3.13.2: __enter__ is called by BEFORE_WITH, handlers do not run behind it; the lock is free
CPython 3.14.2: __enter__ is called by CALL, handlers run behind it; the lock is left locked
SEEN
echo "as described"
