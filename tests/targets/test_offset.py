"""Offsets are 64 bits wide: a sequence whose cache lies beyond 2³¹ elements is read and written there. Pages that nobody touches cost nothing."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest
from tests.targets.compiled import build, compiler

from moapipe.algebra.index import evaluate, parse
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build, native_isa
from moapipe.lab.place import root

NORESERVE = 0x4000
LENGTH = 5


def sparse(elements: int) -> np.ndarray:
    """Zeros in single precision, in memory that is there when it is touched."""
    held = mmap.mmap(-1, max(4 * elements, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return np.frombuffer(held, np.float32, elements)


@pytest.mark.skipif(sys.platform != "linux", reason="memory without a reserve is Linux's")
@pytest.mark.parametrize("target", ["c", "fortran"])
def test_a_cache_beyond_32_bits(target, tmp_path):
    if not compiler(target):
        pytest.skip(f"no compiler for {target}")
    d = derive(Build("decode", "step", "rows", target, native_isa(), "f32"), root())
    sizes = {"batch": 2, "kv_heads": 1, "group": 1, "max_len": 2**31 + 16, "d_k": 1, "d_v": 1}
    at, manifest, rng = {**sizes, "threads": 1}, d.source.manifest, np.random.default_rng(2)
    rows = [*manifest["inputs"], *(o for o in manifest["outputs"])]
    held = {a["name"]: sparse(int(np.prod([evaluate(parse(s), at) for s in a["shape"]], dtype=object))) for a in rows}
    second = sizes["max_len"]  # where the second sequence's cache begins
    for cache, new in (("K", "k_new"), ("V", "v_new")):
        held[cache][second : second + LENGTH], held[new][:] = rng.standard_normal(LENGTH), (3.0, 4.0)
    held["Q"][:], held["scale"][:], held["lengths"][:] = 1.0, 1.0, LENGTH
    given = [held[a["name"]] for a in rows]
    arrays = [*given, sparse(evaluate(parse(manifest["workspace"]["elements"]), at))]
    library = build(d.source, target, native_isa(), "f32", tmp_path, ("-O1",))
    function = getattr(library, manifest["symbol"])
    function.restype = None
    function(*(ctypes.c_void_p(x.ctypes.data) for x in arrays), *(ctypes.c_int64(at[s]) for s in manifest["sizes"]), ctypes.c_int64(1))
    keys, values = (held[c][second : second + LENGTH + 1].astype(np.float64) for c in ("K", "V"))
    assert keys[LENGTH] == values[LENGTH] == 4.0
    w = np.exp(keys - keys.max())
    assert held["out"][1] == pytest.approx((w / w.sum()) @ values, rel=1e-5)
