"""Texts for GPUs on the processor: right numbers, no fault, the counts of the interpreter; and faults that are planted are found."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from moapipe.lab import emulation
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names, scan
from moapipe.lab.place import root
from moapipe.loops.atomic import Atomic, atomics
from moapipe.loops.interpret import Run, run
from moapipe.targets.isa import DTYPES

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
ROOT = root()
BUILDS = [Build(k, form, v, "cuda", "plain", "f64") for k in names(ROOT) for form in scan(k, ROOT).forms for v in scan(k, ROOT).variants_of(form, "cuda")]
SIZES, THREADS = 5, 7
TOLERANCE = {"f32": 3e-5, "f64": 1e-13}


@dataclass(frozen=True)
class Made:
    library: Path
    manifest: dict
    inputs: dict
    sizes: dict
    ran: Run
    shared: tuple[Atomic, ...]

    def emulate(self, **options):
        return emulation.run(self.library, self.manifest, self.inputs, self.sizes, THREADS, **options)


def make(b: Build, folder: Path, mutate=lambda text: text, size=SIZES) -> Made:
    d = derive(b, ROOT, tiny=True)
    text = mutate(d.source.text)
    (folder / d.manifest["source"]).write_text(text)
    emulation.compile_text(folder / d.manifest["source"], b.dtype, folder / "kernel.so")
    module = load(b.kernel, ROOT).module
    sizes = {s: size + i for i, s in enumerate(module.SIZES)}
    given = {n: np.asarray(v) for n, v in module.inputs(np.random.default_rng(1), sizes, b.form).items()}
    kernel = d.schedule.kernel
    return Made(folder / "kernel.so", d.manifest, given, sizes, run(kernel, sizes, given, threads=THREADS), atomics(kernel, sizes))


def right(got, made: Made, dtype: str) -> bool:
    return all(np.allclose(got.outputs[n], v, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]) for n, v in made.ran.outputs.items())


@pytest.mark.parametrize("b", BUILDS, ids=lambda b: "-".join((b.kernel, b.form, b.variant, b.target)))
def test_numbers_are_right_no_fault_and_the_counts_of_the_interpreter(b, tmp_path):
    made = make(b, tmp_path)
    for descending in (False, True):
        got = made.emulate(descending=descending)
        assert right(got, made, b.dtype) and got.faults == 0
    for name, traffic in got.traffic.items():
        access = made.ran.accesses.get(name)
        if access and (access.loads or access.stores):  # lengths are read as indices, which no count calls an access
            assert (traffic.loads + traffic.atomics, traffic.stores + traffic.atomics) == (access.loads, access.stores), name
        assert name == emulation.WORK or traffic.atomics == sum(a.updates for a in made.shared if a.array == name), name


PLAIN = Build("matmul", "nn", "naive", "cuda", "plain", "f64")
MUTANTS = {
    "two threads own one element": (r"item \+= threads", "item += 1"),
    "reads past the end": (r"A\[", "A[m * k + "),
    "an accumulator that nobody zeroes": (r"\S+ = 0\.0f?;", ";"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_found(fault, dtype, tmp_path):
    old, new = MUTANTS[fault]

    def mutate(text):
        assert re.search(old, text), text
        return re.sub(old, new, text)

    b = Build(**{**{f: getattr(PLAIN, f) for f in ("kernel", "form", "variant", "target", "isa")}, "dtype": dtype})
    sound, faulty = tmp_path / "sound", tmp_path / "faulty"
    sound.mkdir()
    faulty.mkdir()
    assert right((made := make(b, sound)).emulate(), made, dtype)
    made = make(b, faulty, mutate)
    got = made.emulate()
    assert got.faults > 0 or not right(got, made, dtype)
