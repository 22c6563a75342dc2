"""The calibration program really measures, and its peak loop is checked; no figure is compared with a time."""

import shutil

import pytest

from moapipe.errors import LabError
from moapipe.lab.calibrate import (
    DEEP,
    LONG,
    SHALLOW,
    SHORT,
    arguments,
    check_peak,
    compile_loops,
    rates,
    run,
    text,
    thread_counts,
    working_sets,
)
from moapipe.machine.topology import native_isa, probe
from moapipe.targets.isa import isa_named, tile_parameters

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


@needs_gcc
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_the_loops_compile_for_every_vector_width(isa, dtype, tmp_path):
    compile_loops("gcc", isa_named(isa), dtype, tmp_path)


@needs_gcc
def test_every_figure_is_measured_and_positive(tmp_path):
    top = probe()
    program = compile_loops("gcc", isa_named(native_isa()), "f64", tmp_path)
    seen = run(program, top, 1, bandwidths=True)
    found = seen.figures
    assert set(seen.unstable) <= set(found)
    levels = [c.level for c in top.caches] + ["memory"]
    assert {"clock", "fma", "shallow", "deep", "vector", "exp", "short_chain", "long_chain", "short_link", "long_link", "lanes", "region"} <= set(found)
    assert {f"{level}_{way}" for level in levels for way in ("read", "copy", "stream")} <= set(found)
    assert all(v > 0 for v in found.values())
    assert found["fma"] > found["exp"]


def test_a_scalar_peak_loop_is_refused():
    listing = "fma_loop:\n\tvfmadd132sd\t%xmm1, %xmm0, %xmm2\n\t.cfi_endproc\n"
    with pytest.raises(LabError, match="0 multiply-adds on zmm"):
        check_peak(listing, isa_named("avx512"), "f64")


@needs_gcc
def test_a_loop_that_the_compiler_spoils_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("moapipe.lab.calibrate.arguments", lambda isa, dtype: ("-O0", *arguments(isa, dtype), "-O0"))
    with pytest.raises(LabError, match="multiply-adds"):
        compile_loops("gcc", isa_named("avx512"), "f32", tmp_path)


@pytest.mark.parametrize("cores, counts", [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (128, (1, 2, 4, 8, 16, 32, 64, 128))])
def test_thread_counts_end_with_all_cores(cores, counts):
    assert thread_counts(cores) == counts


def test_working_sets_grow_outwards_and_fit():
    top = probe()
    sets = [s for s in working_sets(top, 1) if s]
    assert sets == sorted(sets)
    assert all(s <= c.bytes for s, c in zip(sets, top.caches, strict=False))


def test_two_depths_give_the_rate_of_a_tile_and_the_time_between_two():
    """Tiles that take 10 ns and 1 ns a step on each thread, whatever their number; folds of 1 ns a step, 20 of them beside the next fold."""
    seconds = {name: 1e-8 + k * 1e-9 for name, k in (("shallow", SHALLOW), ("deep", DEEP))}
    seconds |= {f"{name}_{kind}": (k - 20) * each for name, k in (("short", SHORT), ("long", LONG)) for kind, each in (("chain", 1e-9), ("link", 5e-10))}
    isa, tile = isa_named("avx512"), tile_parameters("avx512", "f64")
    figures = {t: {"fma": 1.0, "vector": 2.0, "exp": 3.0, "lanes": t / 4e-9, **{n: t / s for n, s in seconds.items()}} for t in (1, 2)}
    found = rates(isa, "f64", figures)
    assert found.chain == pytest.approx({1: 1e-9, 2: 1e-9}) and found.link == pytest.approx({1: 5e-10, 2: 5e-10})
    assert found.ahead == pytest.approx({1: 20.0, 2: 20.0}) and found.fold == pytest.approx({1: 4e-9, 2: 4e-9})
    assert found.start == pytest.approx({1: 1e-8, 2: 1e-8})
    assert found.tile == pytest.approx({t: t * tile["MR"] * tile["W"] * 1e9 for t in (1, 2)})
    assert (found.fma, found.vector, found.exp) == ({1: 1.0, 2: 1.0}, {1: 2.0, 2: 2.0}, {1: 3.0, 2: 3.0})


def test_the_depths_are_those_of_the_loops():
    loops = text(isa_named("avx512"), "f64")
    assert f"enum {{ SHALLOW = {SHALLOW}, DEEP = {DEEP} }};" in loops and f"enum {{ SHORT = {SHORT}, LONG = {LONG} }};" in loops
