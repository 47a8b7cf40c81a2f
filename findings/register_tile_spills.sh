#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM 22.1.0), code for x86-64-v4: the inner loop of a register tile, 12 rows by 2 vectors of 16 floats, adds the
# product of a row's scalar and each vector to 24 sums. With rows at constant distances, the loop keeps all sums in registers. With
# rows whose distances are variables, the same loop reads the scalars of all rows before the first product, into registers that
# sums need, and writes sums to the stack and back in each round.
#
# Expected: no sum leaves its register: 24 sums, 2 vectors and 1 scalar need 27 of 32 registers in both cases.
# Seen: 17 moves between the stack and registers of 64 bytes in each round of the second loop.
#
# Output:
#   llvmlite 0.50.0 LLVM 22.1.0
#   constant distances: 24 products, 0 moves to or from the stack
#   variable distances: 24 products, 17 moves to or from the stack
#   as described
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check llvmlite==0.50.0
cd "$folder"
"$folder/venv/bin/python" -I - <<'PYTHON'
import re
import sys

import llvmlite
import llvmlite.binding as llvm

ROWS, VECTORS, LANES = 12, 2, 16
KIND = f"<{LANES} x float>"
TILE = [(row, vector) for row in range(ROWS) for vector in range(VECTORS)]


def tile(variable):
    """A function that adds n products to the sums of a tile, and stores them."""
    lines = [f"declare {KIND} @llvm.fma.v{LANES}f32({KIND}, {KIND}, {KIND})"]
    lines += ["define void @tile(ptr noalias %a, ptr noalias %b, ptr noalias %c, ptr noalias %t, ptr noalias %d, i64 %n) {", "entry:"]
    for row in range(ROWS):
        distance = row * LANES
        if variable:
            lines += [f"  %dp{row} = getelementptr i64, ptr %d, i64 {row}", f"  %d{row} = load i64, ptr %dp{row}"]
            distance = f"%d{row}"
        lines.append(f"  %row{row} = getelementptr float, ptr %a, i64 {distance}")
    lines += ["  br label %loop", "loop:", "  %k = phi i64 [0, %entry], [%next, %loop]"]
    lines += [f"  %s{r}_{v} = phi {KIND} [zeroinitializer, %entry], [%n{r}_{v}, %loop]" for r, v in TILE]
    lines += ["  %tp = getelementptr i64, ptr %t, i64 %k", "  %at = load i64, ptr %tp", f"  %kb = mul i64 %k, {VECTORS * LANES}"]
    for vector in range(VECTORS):
        lines.append(f"  %bk{vector} = add i64 %kb, {vector * LANES}")
        lines += [f"  %bp{vector} = getelementptr float, ptr %b, i64 %bk{vector}"]
        lines += [f"  %b{vector} = load {KIND}, ptr %bp{vector}, align 4"]
    for row in range(ROWS):
        lines += [f"  %p{row} = getelementptr float, ptr %row{row}, i64 %at", f"  %x{row} = load float, ptr %p{row}"]
        lines += [f"  %i{row} = insertelement {KIND} poison, float %x{row}, i64 0"]
        lines += [f"  %w{row} = shufflevector {KIND} %i{row}, {KIND} poison, <{LANES} x i32> zeroinitializer"]
        for v in range(VECTORS):
            arguments = f"{KIND} %w{row}, {KIND} %b{v}, {KIND} %s{row}_{v}"
            lines.append(f"  %n{row}_{v} = call {KIND} @llvm.fma.v{LANES}f32({arguments})")
    lines += ["  %next = add i64 %k, 1", "  %more = icmp slt i64 %next, %n", "  br i1 %more, label %loop, label %end", "end:"]
    for number, (r, v) in enumerate(TILE):
        lines += [f"  %cp{number} = getelementptr float, ptr %c, i64 {number * LANES}"]
        lines += [f"  store {KIND} %n{r}_{v}, ptr %cp{number}, align 4"]
    return "\n".join([*lines, "  ret void", "}"])


llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
print("llvmlite", llvmlite.__version__, "LLVM", ".".join(map(str, llvm.llvm_version_info)))
machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine("x86-64-v4", "-prefer-256-bit", opt=3)
seen = []
for variable in (False, True):
    module = llvm.parse_assembly(tile(variable))
    module.triple = machine.triple
    blocks = re.split(r"^\.LBB\w+:", machine.emit_assembly(module), flags=re.MULTILINE)
    loop = max(blocks, key=lambda block: block.count("vfmadd")).splitlines()
    products, moves = sum("vfmadd" in line for line in loop), sum("%zmm" in line and "(%rsp)" in line for line in loop)
    seen.append((products, moves))
    print(f"{'variable' if variable else 'constant'} distances: {products} products, {moves} moves to or from the stack")
unchanged = seen == [(24, 0), (24, 17)]
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
