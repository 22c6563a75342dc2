"""Copies beside the builds: the library copies every element and nothing else, its loop nest means the same and is counted as one."""

import shutil

import numpy as np
import pytest

from moapipe.lab.experiment import Point
from moapipe.lab.library import run
from moapipe.lab.yardstick import BLOCK, WAYS, at_elements, compiled, copying, nest
from moapipe.loops import interpret
from moapipe.loops.cost import count
from moapipe.loops.onf import verify
from moapipe.machine.topology import native_isa

MANIFEST = {
    "dtype": "f64", "sizes": ["rows", "d"], "inputs": [{"name": "g", "shape": ["d"]}, {"name": "x", "shape": ["rows", "d"]}],
    "outputs": [{"name": "z", "shape": ["rows", "d"]}],
}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def test_the_largest_input_is_copied():
    point = at_elements(Point({"n": 3}, {"rows": 3, "d": 5}, 2), MANIFEST)
    assert point.sizes == {"rows": 3, "d": 5, "elements": 15} and point.label == "n=3"
    made = copying("stream", MANIFEST, point.sizes)
    assert [a["name"] for a in made["inputs"]] == ["x"] and made["symbol"] == "copy_stream" and made["sizes"] == ["elements"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_its_loop_nest_copies_and_counts_each_element_once(way, n):
    kernel = nest(way)
    verify(kernel)
    x = np.arange(float(n))
    np.testing.assert_array_equal(interpret.run(kernel, {"elements": n}, {"from": x}).outputs["to"], x)
    counts = count(kernel, {"elements": n}, 8, threads=2)
    assert (counts.footprint_read_bytes, counts.footprint_written_bytes, counts.flops) == (8 * n, 8 * n, 0)
    assert kernel.array("to").stream is (way == "stream")


@needs_gcc
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("way", WAYS)
def test_the_library_copies_blocks_and_what_is_left_over(way, dtype, tmp_path):
    (tmp_path / "config/machines").mkdir(parents=True)
    (tmp_path / "config/machines/local.yaml").write_text("compilers: {c: {command: gcc}}\n")
    library = compiled(tmp_path, "local", native_isa(), dtype)
    assert compiled(tmp_path, "local", native_isa(), dtype) == library
    for rows, d in ((0, 1), (1, 1), (1, 127), (2, 128), (7, 129)):
        sizes, manifest = {"rows": rows, "d": d, "elements": rows * d}, {**MANIFEST, "dtype": dtype, "inputs": MANIFEST["inputs"][1:]}
        x = np.random.default_rng(0).standard_normal((rows, d))
        for threads in (1, 2, 3):
            made = run(library, copying(way, manifest, sizes), {"x": x}, sizes, threads)
            np.testing.assert_array_equal(made["to"], x.ravel().astype(made["to"].dtype))
