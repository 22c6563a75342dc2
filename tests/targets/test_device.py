"""Texts for GPUs compile; run thread by thread on the CPU, they compute what the interpreter computes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tests.loops.nests import NESTS, array, loop, ref, sizes_for
from tests.loops.test_lift_alone import last
from tests.targets import tiles
from tests.targets.compiled import compiler
from tests.targets.test_emit import EPS, random_inputs

from moapipe.algebra.function import FUNCS
from moapipe.algebra.scalar import Like, op, scalar
from moapipe.errors import TargetError
from moapipe.lab import emulation
from moapipe.loops.interpret import run
from moapipe.loops.onf import Accumulate, Alloc, Assign, Kernel
from moapipe.targets.emit import emit
from moapipe.targets.isa import ARITHMETIC
from moapipe.targets.table import TARGETS, flags


def kept(columns: Like) -> Kernel:
    """Rows of four threads: each fetches two elements as one into registers of its own, zeros past the end, and stores their squares."""
    place, there = op("+", op("*", 2, "t"), "v"), op("<", op("+", op("*", 2, "t"), "v"), columns)
    past = op("<=", columns, op("+", op("*", 2, "t"), "v"))
    whole = columns == 8
    copies = [Assign(ref("own", "t", "v"), ref("x", "i", place), () if whole else (there,), "own"), *([] if whole else [Assign(ref("own", "t", "v"), scalar(0.0), (past,), "own")])]
    square = Assign(ref("y", "i", place), op("*", ref("own", "t", "v"), ref("own", "t", "v")), (), "y")
    body = loop("i", "n", Alloc("own"), loop("t", 4, loop("v", 2, *copies, kind="vector"), kind="thread"), loop("t", 4, loop("v", 2, square, kind="unroll"), kind="thread"), kind="parallel")
    return Kernel("kept", ("n",) if whole else ("n", "m"), (array("x", "input", "n", columns), array("y", "output", "n", 8), array("own", "register", 4, 2)), (body,))


def counted() -> Kernel:
    """A row's first elements added up, whose number stands in memory."""
    term = Accumulate("sum", ref("y", "i"), ref("x", "i", "j"), (), "y")
    body = loop("i", "n", Assign(ref("y", "i"), scalar(0.0), (), "y"), loop("j", op("min", op("floor", ref("lengths", "i")), "m"), term), kind="parallel")
    return Kernel("counted", ("n", "m"), (array("x", "input", "n", "m"), array("lengths", "input", "n"), array("y", "output", "n")), (body,))


KERNELS = {name: replace(k, name=name) for name, k in {
    **NESTS, "product": tiles.product(4, 4), "row_sums": tiles.row_sums(4), "masked_rows": tiles.masked_rows(4, 16),
    "triangle": tiles.triangle(), "panels": tiles.panels(4), "copied": tiles.copied(4), "shared": tiles.shared(),
    "functions": tiles.functions(FUNCS, "lane", 4), "team": last("a tile by a team").kernel, "lanes": last("an element by lanes").kernel,
    "counted": counted(),
}.items()}
DEVICES = emulation.LANGUAGES


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("target", DEVICES)
def test_device_text_compiles(target, dtype, tmp_path):
    """All kernels in one file a dtype: these compilers start slowly."""
    if not compiler(target):
        pytest.skip(f"no {TARGETS[target].compiler}")
    texts = [emit(k, target, "plain", dtype).text.split("\n") for k in KERNELS.values()]
    head = "\n".join(max(([l for l in t if l.startswith("#")] for t in texts), key=len))    # that of a text which shuffles holds the others'
    parts = [f"namespace n{i} {{\n{chr(10).join(l for l in t if not l.startswith('#'))}\n}}" for i, t in enumerate(texts)]
    source = TARGETS[target].source
    (tmp_path / source).write_text("\n".join([head, *parts]))
    row = TARGETS[target]
    done = subprocess.run(["env", *row.environment, compiler(target), *flags(target, "plain", dtype), "-c", source, "-o", "kernel.o"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", [n for n in KERNELS if n != "functions"])
def test_device_text_computes_the_same(name, target, dtype, tmp_path):
    kernel = KERNELS[name]
    source = emit(kernel, target, "plain", dtype)
    (tmp_path / source.manifest["source"]).write_text(source.text)
    emulation.compile_text(tmp_path / source.manifest["source"], dtype, tmp_path / "kernel.so")
    cases = {"product": {"m": 7, "n": 9, "p": 5}, "row_sums": {"n": 3, "m": 11}, "masked_rows": {"n": 5, "m": 9}, "triangle": {"n": 7},
             "panels": {"n": 6}, "counted": {"n": 9, "m": 3}, "copied": {"n": 3, "m": 2}, "shared": {"n": 9, "m": 5}, **{n: {"ni": 5, "nj": 9, "nk": 7, "ne": 1} for n in ("team", "lanes")}}
    sizes = cases.get(name) or sizes_for(kernel, 6)
    inputs = random_inputs(kernel, sizes, dtype)
    ran = run(kernel, sizes, {n: v.astype(np.float64) for n, v in inputs.items()})
    for threads in (1, 5, 200):
        got = emulation.run(tmp_path / "kernel.so", {**source.manifest, "dtype": dtype}, inputs, sizes, threads, descending=threads == 5)
        for n, value in ran.outputs.items():
            np.testing.assert_allclose(got.outputs[n], value, rtol=16 * EPS[dtype], atol=16 * EPS[dtype])
        assert not got.faults, got


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_what_is_stored_narrow_is_rounded_to_nearest_with_ties_to_even(tmp_path):
    """As ml_dtypes casts, whoever wrote that: numbers of all sizes, ties, subnormal ones, infinities, no numbers; and read again as they are."""
    x = np.concatenate([np.random.default_rng(0).integers(0, 1 << 32, 3000, np.uint32), (np.arange(1 << 16, dtype=np.uint32)[::7] << 16) + 0x8000, [0x3F807FFF, 0x3F808001]])
    x = x.astype(np.uint32).view(np.float32)
    body = (loop("i", "n", Assign(ref("y", "i"), ref("x", "i"), (), "y"), kind="parallel"), loop("j", "n", Assign(ref("z", "j"), ref("y", "j"), (), "z"), kind="parallel"))
    kernel = Kernel("rounds", ("n",), (array("x", "input", "n"), replace(array("y", "output", "n"), narrow=True), array("z", "output", "n")), body)
    source = emit(kernel, "cuda", "plain", "bf16")
    (tmp_path / "kernel.cu").write_text(source.text)
    emulation.compile_text(tmp_path / "kernel.cu", "bf16", tmp_path / "kernel.so")
    got = emulation.run(tmp_path / "kernel.so", {**source.manifest, "dtype": "bf16"}, {"x": x}, {"n": len(x)}, 200)
    with np.errstate(all="ignore"):
        want = x.astype(bfloat16)
        numbers = ~np.isnan(want)
    assert got.outputs["y"].dtype == bfloat16 and (got.outputs["y"].view(np.uint16) == want.view(np.uint16))[numbers].all() and np.isnan(got.outputs["y"][~numbers]).all()
    np.testing.assert_array_equal(got.outputs["z"][numbers], want.astype(np.float32)[numbers])
    assert not got.faults and (got.traffic["y"].stores, got.traffic["y"].loads) == (len(x), len(x)) and (~numbers).any()


@pytest.mark.parametrize("target", [t for t in TARGETS if "bf16" not in TARGETS[t].dtypes])
def test_a_language_without_a_dtype_says_who_has_it(target):
    with pytest.raises(TargetError, match=f"{target} holds no numbers in bf16") as refused:
        emit(KERNELS["product"], target, "plain", "bf16")
    assert "cuda can" in refused.value.hint and f"{target} takes f32, f64" in refused.value.hint


@pytest.mark.parametrize("name", KERNELS)
def test_hip_reads_the_text_of_cuda(name):
    """So what is shown of one text by running it is shown of the other."""
    texts = [emit(KERNELS[name], target, "plain", "f64").text.split("\n") for target in ("cuda", "hip")]
    assert texts[0][1:] == [l for l in texts[1][1:] if l != "#include <hip/hip_runtime.h>"]


TEAMS = [t for t, row in TARGETS.items() if row.team]


@pytest.mark.parametrize("target", TEAMS)
def test_a_bound_that_is_read_is_reckoned_once_and_in_32_bits(target):
    text = emit(KERNELS["counted"], target, "plain", "f32").text
    end = "const integer end_1 = min_index((integer)FLOOR(lengths[i]), m);"
    assert text.count("FLOOR(") == 1 and f"{end}\n    for (integer j = 0; j < end_1; j++) {{" in text


@pytest.mark.parametrize("target", TEAMS)
def test_registers_are_never_counted_by_a_loop_that_stays_one(target):
    """They have no addresses on a GPU: what goes element by element is written out, and nothing is where all is fetched as one."""
    whole, guarded = (emit(kept(columns), target, "plain", "f64").text for columns in (8, "m"))
    assert "#pragma unroll\n" in guarded and "unroll 1" not in guarded and "(m % 2) == 0" in guarded
    assert "else" not in whole and "got" in whole


@pytest.mark.parametrize(("held", "blocks"), [(16, 2), (64, 2), (66, 1)])
def test_a_block_is_alone_where_its_arrays_take_more_registers_than_two_blocks_have(held, blocks):
    """Two blocks of 256 threads leave each thread 128 registers; half of them for arrays, of 32 bits each."""
    wide = kept(8)
    rows = (held - 4) // 2
    sums = replace(wide, arrays=(*wide.arrays, array("sums", "register", 4, rows)))
    (team,) = wide.body
    fold = loop("t", 4, loop("r", rows, Assign(ref("sums", "t", "r"), scalar(0.0), (), "sums"), kind="unroll"), kind="thread")
    text = emit(replace(sums, body=(replace(team, body=(Alloc("sums"), fold, *team.body)),)), "cuda", "plain", "f64").text
    assert f"__launch_bounds__(4, {blocks})" in text
