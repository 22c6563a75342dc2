"""Texts for GPUs compile; run thread by thread on the CPU, they compute what the interpreter computes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from tests.loops.nests import NESTS, sizes_for
from tests.targets import tiles
from tests.targets.compiled import NUMPY, call, compiler
from tests.targets.test_emit import EPS, random_inputs

from moapipe.algebra.function import FUNCS
from moapipe.loops.interpret import run
from moapipe.targets.emit import emit
from moapipe.targets.isa import DTYPES
from moapipe.targets.table import TARGETS, flags

KERNELS = {name: replace(k, name=name) for name, k in {
    **NESTS, "product": tiles.product(4, 4), "row_sums": tiles.row_sums(4), "masked_rows": tiles.masked_rows(4, 16),
    "triangle": tiles.triangle(), "panels": tiles.panels(4), "copied": tiles.copied(4),
    "functions": tiles.functions(FUNCS, "lane", 4),
}.items()}
DEVICES = [t.name for t in TARGETS.values() if t.device]
SHIM = """
#include <math.h>
#define __global__
#define __device__
#define __host__
#define __restrict__ __restrict
struct Index { unsigned x; };
static Index blockIdx, threadIdx, blockDim;
"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", DEVICES)
def test_device_text_compiles(target, dtype, tmp_path):
    """All kernels in one file a dtype: these compilers start slowly."""
    if not compiler(target):
        pytest.skip(f"no {TARGETS[target].compiler}")
    texts = [emit(k, target, "plain", dtype).text.split("\n") for k in KERNELS.values()]
    head = "\n".join(l for l in texts[0] if l.startswith("#"))
    parts = [f"namespace n{i} {{\n{chr(10).join(l for l in t if not l.startswith('#'))}\n}}" for i, t in enumerate(texts)]
    source = TARGETS[target].source
    (tmp_path / source).write_text("\n".join([head, *parts]))
    row = TARGETS[target]
    done = subprocess.run(["env", *row.environment, compiler(target), *flags(target, "plain", dtype), "-c", source, "-o", "kernel.o"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def on_the_cpu(text: str) -> str:
    """Launches become loops over blocks and threads."""
    launch = (r"for (blockIdx.x = 0, blockDim.x = \3; blockIdx.x < \2; blockIdx.x++) "
              r"for (threadIdx.x = 0; threadIdx.x < \3; threadIdx.x++) \1(")
    text = text.replace("#include <hip/hip_runtime.h>", "")
    return SHIM + re.sub(r"(\w+_grid)<<<(.+), (\d+)>>>\(", launch, text)


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", [n for n in KERNELS if n != "functions"])
def test_device_text_computes_the_same(name, target, dtype, tmp_path):
    kernel = KERNELS[name]
    source = emit(kernel, target, "plain", dtype)
    (tmp_path / "kernel.cpp").write_text(on_the_cpu(source.text))
    subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    cases = {"product": {"m": 7, "n": 9, "p": 5}, "row_sums": {"n": 3, "m": 11}, "masked_rows": {"n": 5, "m": 9}, "triangle": {"n": 7},
             "panels": {"n": 6}, "copied": {"n": 3, "m": 2}}
    sizes = cases.get(name) or sizes_for(kernel, 6)
    inputs = random_inputs(kernel, sizes, dtype)
    expected = run(kernel, sizes, {n: v.astype(np.float64) for n, v in inputs.items()}).outputs
    for threads in (1, 5, 200):
        got = call(library, source.manifest, sizes, {n: v.astype(NUMPY[dtype]) for n, v in inputs.items()}, dtype, threads)
        for n, value in expected.items():
            np.testing.assert_allclose(got[n], value, rtol=16 * EPS[dtype], atol=16 * EPS[dtype])
