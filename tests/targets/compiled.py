"""Emitted text, compiled with the machine's own compiler and called through ctypes, with canaries around every buffer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from moapipe.algebra.index import evaluate, parse
from moapipe.targets.isa import ISAS
from moapipe.targets.table import TARGETS, flags

NUMPY = {"f32": np.float32, "f64": np.float64}
PAD = 64
STRICT = {"c": ("-Wall", "-Werror"), "fortran": ("-Wall", "-Wno-unused-dummy-argument", "-Werror")}


def runs_here(isa: str) -> bool:
    """The host executes this instruction set."""
    if isa == "plain":
        return True
    words = Path("/proc/cpuinfo").read_text().split() if sys.platform == "linux" else []
    return {"avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw"}, "avx2": {"avx2", "fma"}, "neon": {"asimd"}}[isa] <= set(words)


HERE = [isa for isa in ISAS if runs_here(isa)]


def compiler(target: str) -> str | None:
    return shutil.which(TARGETS[target].compiler)


def build(source, target: str, isa: str, dtype: str, folder: Path, extra=()) -> ctypes.CDLL:
    """A shared library; warnings are errors."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / source.manifest["source"]
    text.write_text(source.text)
    command = [compiler(target), *flags(target, isa, dtype), *extra, *STRICT[target], "-shared", text.name, "-o", "kernel.so", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}\n{source.text}"
    return ctypes.CDLL(str(folder / "kernel.so"))


def listing(source, target: str, isa: str, dtype: str, folder: Path, extra=()) -> str:
    """The assembler text of the same build."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / source.manifest["source"]).write_text(source.text)
    command = [compiler(target), *flags(target, isa, dtype), *extra, "-S", source.manifest["source"], "-o", "kernel.s"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "kernel.s").read_text()


class Buffer:
    """`size` elements on a cache line, canaries on both sides."""

    def __init__(self, size: int, dtype: str) -> None:
        self.raw = np.full(size + 2 * PAD + 64, 12345.0, NUMPY[dtype])
        shift = (-(self.raw.ctypes.data + PAD * self.raw.itemsize) % 64) // self.raw.itemsize
        self.first, self.size = PAD + shift, size

    @property
    def data(self):
        return self.raw[self.first: self.first + self.size]

    def intact(self) -> bool:
        return bool((self.raw[: self.first] == 12345).all() and (self.raw[self.first + self.size:] == 12345).all())

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.data.ctypes.data if self.size else self.raw.ctypes.data)


def call(library, manifest, sizes, inputs, dtype: str, threads: int = 1):
    """Outputs by name; outputs and workspace start as NaN; asserts that nothing was written outside and no input changed."""
    at = {**sizes, "threads": threads}
    given = {}
    for row in manifest["inputs"]:
        given[row["name"]] = Buffer(int(np.size(inputs[row["name"]])), dtype)
        given[row["name"]].data[:] = np.ravel(inputs[row["name"]])
    shapes = {row["name"]: tuple(evaluate(parse(s), at) for s in row["shape"]) for row in manifest["outputs"]}
    made = {name: Buffer(int(np.prod(shape)), dtype) for name, shape in shapes.items()}
    work = Buffer(evaluate(parse(manifest["workspace"]["elements"]), at), dtype)
    for b in (*made.values(), work):
        b.data[:] = np.nan
    buffers = [*given.values(), *made.values(), work]
    function = getattr(library, manifest["symbol"])
    function.restype = None
    function(*(b.pointer for b in buffers), *(ctypes.c_int64(at[s]) for s in manifest["sizes"]), ctypes.c_int64(threads))
    assert all(b.intact() for b in buffers), "a canary died"
    for row in manifest["inputs"]:
        kept = row.get("becomes") or np.array_equal(given[row["name"]].data, np.ravel(inputs[row["name"]]).astype(NUMPY[dtype]), equal_nan=True)
        assert kept, "an input changed"
    return {name: made[name].data.reshape(shape).copy() for name, shape in shapes.items()}
