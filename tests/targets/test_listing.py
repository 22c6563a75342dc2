"""The assembler gate: real listings of good and of deliberately bad kernels, and small listings written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.targets import tiles
from tests.targets.compiled import HERE, compiler, listing

from moapipe.errors import TargetError
from moapipe.targets.emit import emit
from moapipe.targets.isa import ARITHMETIC, ISAS, tile_parameters
from moapipe.targets.listing import check, gate, tiles_of
from moapipe.targets.table import TARGETS
from moapipe.targets.target import Tile

LANGUAGES = [t for t in TARGETS if not (TARGETS[t].device or TARGETS[t].offloads) and compiler(t)]
UNITS = [(t, isa, dtype) for t in LANGUAGES for isa in HERE for dtype in ARITHMETIC]


@pytest.mark.parametrize(("target", "isa", "dtype"), UNITS)
def test_the_tile_of_the_rule_stays_in_registers(target, isa, dtype, tmp_path):
    p = tile_parameters(isa, dtype)
    source = emit(tiles.product(p["MR"], p["V"], p["NV"]), target, isa, dtype)
    (report,) = gate(listing(source, target, isa, dtype, tmp_path), source.tiles, isa, dtype)
    assert (report.fma, report.stores) == (p["MR"] * p["NV"], ())
    assert tiles_of(source.manifest) == source.tiles


@pytest.mark.parametrize(("target", "isa", "dtype"), UNITS)
def test_too_many_accumulators_are_refused(target, isa, dtype, tmp_path):
    v, rows = ISAS[isa].lanes(dtype), ISAS[isa].registers * 5 // 8
    source = emit(tiles.product(rows, v), target, isa, dtype)
    with pytest.raises(TargetError, match=r"tile product.*\n? *hint: take fewer rows|tile product"):
        gate(listing(source, target, isa, dtype, tmp_path), source.tiles, isa, dtype)


@pytest.mark.skipif(not compiler("fortran"), reason="no gfortran")
@pytest.mark.skipif("avx512" not in HERE, reason="the host has no AVX-512")
def test_fortran_without_its_directives_is_refused(tmp_path):
    """GCC peels a short lane loop to scalars before it vectorises: the directive in the text prevents it. (Seen with
    twelve rows; with eight, GCC 12 does well by itself.)"""
    p = tile_parameters("avx512", "f64")
    source = emit(tiles.product(12, p["V"], p["NV"]), "fortran", "avx512", "f64")
    bare = replace(source, text=source.text.replace("!GCC$", "!"))
    with pytest.raises(TargetError, match="tile product"):
        gate(listing(bare, "fortran", "avx512", "f64", tmp_path), source.tiles, "avx512", "f64")


@pytest.mark.parametrize("target", LANGUAGES)
def test_code_without_optimisation_is_refused(target, tmp_path):
    p = tile_parameters("plain", "f32")
    source = emit(tiles.product(p["MR"], p["V"], p["NV"]), target, "plain", "f32")
    assert not check(listing(source, target, "plain", "f32", tmp_path, extra=("-O0",)), source.tiles, "plain", "f32")[0].good


TILE = Tile("t", 1, 16, 16, 1, (10, 12))
GOOD = """
    .file 1 "kernel.c"
    .file 2 "math.h"
f:
    .loc 1 10 5
.L2:
    .loc 1 11 5 is_stmt 0
    vmovups (%rdi), %zmm1
    vfmadd231ps (%rsi){1to16}, %zmm1, %zmm0   # comment
    .loc 1 10 5
    cmpq %rax, %rdi
    jne .L2
    vmovups %zmm0, (%rdx)
"""
NEON = """
    .file 1 "kernel.c"
.L2:
    .loc 1 11 5
    ldr q1, [x0], 16
    fmla v0.4s, v1.4s, v2.s[0]
    cmp x0, x1
    bne .L2
    str q0, [x2]
"""


def test_a_good_loop_by_hand():
    (r,) = check(GOOD, [TILE], "avx512", "f32")
    assert (r.problem, r.fma, r.loads, r.instructions) == ("", 1, 1, 4)
    (r,) = check(NEON, [TILE], "neon", "f32")
    assert (r.problem, r.fma, r.loads) == ("", 1, 1)


@pytest.mark.parametrize(("old", "new", "problem"), [
    ("    cmpq", "    vmovaps %zmm0, 64(%rsp)\n    cmpq", "1 vector stores in the loop, the first is `vmovaps %zmm0, 64(%rsp)`"),
    ("%zmm1, %zmm0", "%ymm1, %ymm0", "1 multiply-adds are not on full vectors"),
    ("vfmadd231ps", "vfmadd231ss", "1 multiply-adds are not on full vectors"),
    ("    cmpq", "    vfmadd231ps %zmm1, %zmm1, %zmm1\n    vfmadd231ps %zmm1, %zmm1, %zmm1\n    cmpq", "3 vector multiply-adds in the loop, expected 2"),
    ("jne .L2", "jne .L3", "no loop with its multiply-adds"),
    (".loc 1 11", ".loc 2 11", "no loop with its multiply-adds"),
])
def test_what_is_wrong_is_named(old, new, problem):
    tile = Tile("t", 2, 16, 16, 2, (10, 12)) if "expected 2" in problem else TILE
    (r,) = check(GOOD.replace(old, new), [tile], "avx512", "f32")
    assert problem in r.problem
    assert r.hint
    assert not r.good


def test_neon_spills_are_seen():
    (r,) = check(NEON.replace("    cmp", "    str q0, [sp, 16]\n    cmp"), [TILE], "neon", "f32")
    assert "1 vector stores" in r.problem


def test_a_manifest_with_a_broken_tile_is_refused():
    with pytest.raises(TargetError, match="expected"):
        tiles_of({"tiles": [{"mark": "t", "rows": "12", "columns": 1, "vector": 1, "fma": 1, "lines": [1, 2]}]})
    with pytest.raises(TargetError, match="lines"):
        tiles_of({"tiles": [{"mark": "t", "rows": 12, "columns": 1, "vector": 1, "fma": 1, "lines": 3}]})
