"""Yardsticks beside the builds: the library moves every element and nothing else, its loop nest means the same and is counted as one."""

import shutil

import numpy as np
import pytest

from moapipe.lab.experiment import Point
from moapipe.lab.library import run
from moapipe.lab.yardstick import BLOCK, STORES, at_elements, compiled, moving, nest
from moapipe.loops import interpret
from moapipe.loops.cost import count
from moapipe.loops.soundness import verify
from moapipe.machine.rate import WAYS
from moapipe.machine.topology import native_isa

MANIFEST = {
    "dtype": "f64", "sizes": ["rows", "d"], "inputs": [{"name": "g", "shape": ["d"]}, {"name": "x", "shape": ["rows", "d"]}],
    "outputs": [{"name": "z", "shape": ["rows", "d"]}],
}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def test_the_largest_input_is_copied_and_as_much_as_all_are_is_read():
    for way, elements in (("copy", 15), ("stream", 15), ("read", 20)):
        point = at_elements(way, Point({"n": 3}, {"rows": 3, "d": 5}, 2), MANIFEST)
        assert point.sizes == {"rows": 3, "d": 5, "elements": elements} and point.label == "n=3"
        made = moving(way, MANIFEST)
        assert made["symbol"] == f"yardstick_{way}" and made["sizes"] == ["elements"] and len(made["outputs"]) == (way != "read")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_its_loop_nest_moves_and_counts_each_element_once(way, n):
    kernel = nest(way)
    verify(kernel)
    x = np.arange(float(n))
    outputs = interpret.run(kernel, {"elements": n}, {"from": x}).outputs
    counts = count(kernel, {"elements": n}, 8, threads=2)
    assert (counts.footprint_read_bytes, counts.footprint_written_bytes) == (8 * n, 0 if way == "read" else 8 * n)
    assert counts.flops == (n if way == "read" else 0)
    if way != "read":
        np.testing.assert_array_equal(outputs["to"], x)
        assert kernel.array("to").stream is (STORES[way] == "stream")


@needs_gcc
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("way", WAYS)
def test_the_library_moves_blocks_and_what_is_left_over(way, dtype, tmp_path):
    (tmp_path / "config/machines").mkdir(parents=True)
    (tmp_path / "config/machines/local.yaml").write_text("compilers: {c: {command: gcc}}\n")
    library = compiled(tmp_path, "local", native_isa(), dtype)
    assert compiled(tmp_path, "local", native_isa(), dtype) == library
    for n in (0, 1, 127, 256, 903):
        x = np.random.default_rng(0).standard_normal(n)
        for threads in (1, 2, 3):
            made = run(library, moving(way, {**MANIFEST, "dtype": dtype}), {"from": x}, {"elements": n}, threads)
            assert set(made) == (set() if way == "read" else {"to"})
            for to in made.values():
                np.testing.assert_array_equal(to, x.astype(to.dtype))
