"""The kernels compile for the devices they are meant for, in bfloat16, on matrix units, and what
they hold fits into registers. In a process of its own: here Triton may interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

_CAPABILITIES = (80, 90)
"""Matrix units differ between them; kernels that use none are compiled for the first."""

_ON_MATRIX_UNITS = {"_attend", "_widen", "_multiply"}

_SPILLED = 8
"""Bytes that may not: what is known before a loop and needed behind it."""

_COMPILE = """
import json, pathlib, subprocess, sys, triton
from itertools import product
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from common.model.cuda import attention, draw, experts, grouped, products, rolling, rowwise
from common.model.llama import Curve, Gate

HEADS, WIDE = dict(HEADS=32, KV_HEADS=8, SIZE=128), dict(HEADS=32, KV_HEADS=4, SIZE=512)
B, F, I, L = "*bf16", "*fp32", "*i32", "*i64"
KERNELS = [
    (attention._attend,
     dict(queries=B, cache=B, sums=F, tops=F, words=I, count="i32",
          tiles="i32", begin="i32", scale="fp32"),
     dict(HEADS, BLOCK=128, ROWS=4, PAGE=16, WINDOW=4096, SOFTCAP=50.0)),
    (attention._attend,
     dict(queries=B, cache=B, sums=F, tops=F, words=I, count="i32",
          tiles="i32", begin="i32", scale="fp32"),
     dict(WIDE, BLOCK=512, ROWS=2, PAGE=16, WINDOW=0, SOFTCAP=0.0),
     dict(num_warps=8, num_stages=1)),
    (attention._join,
     dict(sums=F, tops=F, out=B, sinks=F, words=I, count="i32", stretches="i32", begin="i32"),
     dict(HEADS=32, SIZE=128, BLOCK=128, WINDOW=0, SUNK=True)),
    (rowwise._norm, dict(x=B, weight=F, out=B, epsilon="fp32"),
     dict(SIZE=4096, STRIDE=4096, BLOCK=4096)),
    (rowwise._turn_and_store,
     dict(qkv=B, words=I, count="i32", cos=F, sin=F, growth=F, weights=F, queries=B, cache=B,
          epsilon="fp32"),
     dict(HEADS, NORMED=True, VALUES_NORMED=False, GROWN=True, BLOCK_HEADS=64, BLOCK_KV=8,
          BLOCK_HALF=64, BLOCK_SIZE=128)),
    (rowwise._turn_and_store,
     dict(qkv=B, words=I, count="i32", cos=F, sin=F, growth=F, weights=F, queries=B, cache=B,
          epsilon="fp32"),
     dict(WIDE, NORMED=True, VALUES_NORMED=True, GROWN=False, BLOCK_HEADS=64, BLOCK_KV=4,
          BLOCK_HALF=256, BLOCK_SIZE=512),
     dict(num_warps=16)),
    (rowwise._cap, dict(x=B, count="i32"), dict(CAP=30.0, BLOCK=1024)),
    *((rowwise._gated, dict(both=B, out=B),
       dict(rowwise.known_of(Gate(curve)), SIZE=14336, BLOCK=1024)) for curve in Curve),
    (products._widen,
     dict(x=B, weight="*i8", scale=F, bias=B, other=B, out=B),
     dict(OUT=4096, IN=14336, BIASED=True, ADDED=True, OUTPUTS=32, INPUTS=128),
     dict(num_stages=products._STAGES)),
    (experts._choose,
     dict(scores=F, favours=F, words=I, count="i32", first="i32", chosen=I, weights=F, share=F,
          scale="fp32"),
     dict(EXPERTS=160, CHOSEN=8, SIGMOID=True, FAVOURED=True, SUMMED=True, WEIGHED=True, BLOCK=256,
          PLACES=8)),
    (grouped._list, dict(chosen=I, lists=I, counts=I, choices="i32"),
     dict(CHOSEN=8, LISTED=grouped._LISTED)),
    *((grouped._multiply,
       dict(x=x, weight=weight, scale=F, bias=F, lists=I, counts=I, out=x if gated else F,
            rows="i32"),
       dict(rowwise.known_of(Gate(curve, 1.7, 7.0)), READERS=8 if gated else 1, IN=2048, OUT=768,
            GATED=gated, ROUNDED=weight != x, BIASED=weight != x,
            OUTPUTS=grouped._OUTPUTS, INPUTS=grouped._INPUTS),
       dict(num_stages=stages))
      for x, weight, stages, gated, curve in
      ((B, B, 4, True, Curve.SILU), (B, B, 4, False, Curve.SILU), (F, F, 3, True, Curve.SILU),
       (B, "*i8", 4, True, Curve.CLAMPED))),
    (experts._sum,
     dict(parts=F, chosen=I, weights=F, share=F, beside=B, out=B),
     dict(CHOSEN=8, SIZE=2048, SHARED=True, WEIGHED=True, BLOCK=experts._CHUNK)),
    (draw._score, dict(logits=B, drawings=L, scaled=F, places=L, vocab="i32"), dict(QUADS=256)),
    (draw._pick,
     dict(scaled=F, places=L, drawings=L, ids=L, behind=F, best="i32", vocab="i32"),
     dict(TOKENS=4096), dict(num_warps=draw._WARPS)),
    (rolling._advance, dict(words=I, count="i32", ids=L, drawings=L, best="i32"), {}),
]
tools = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin"
least, *_ = capabilities = [*map(int, sys.argv[2].split(","))]
for capability, (kernel, arguments, known, *options) in product(capabilities, KERNELS):
    if capability > least and kernel.__name__ not in sys.argv[3].split(","):
        continue
    kinds = {**arguments, **dict.fromkeys(known, "constexpr")}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds.values())
               if kind[0] == "*"}
    compiled = triton.compile(ASTSource(kernel, kinds, known, aligned),
                              target=GPUTarget("cuda", capability, 32),
                              options=dict(*options))
    binary = pathlib.Path(sys.argv[1]) / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run([tools / "cuobjdump", "-res-usage", binary],
                           capture_output=True, text=True, check=True).stdout
    print(json.dumps(dict(
        name=kernel.__name__, capability=capability, shared=compiled.metadata.shared,
        matrices="mma" in compiled.asm["ptx"], halves=B in kinds.values(),
        spilled=int(usage.split("STACK:")[1].split()[0]))))
"""


def test_kernels_compile(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    lists = [",".join(map(str, _CAPABILITIES)), ",".join(_ON_MATRIX_UNITS)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE, str(tmp_path), *lists],
        env={**environment, "TRITON_CACHE_DIR": f"{tmp_path}/cache"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert [kernel["capability"] for kernel in kernels] == [80] * 21 + [90] * 7
    for kernel in kernels:
        assert kernel["spilled"] <= _SPILLED, kernel
        assert kernel["shared"] <= 99 << 10, f"{kernel}: more than the smaller devices have"
        expected = kernel["name"] in _ON_MATRIX_UNITS and kernel["halves"]
        assert kernel["matrices"] is expected, kernel
