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
from moapipe.loops.atomic import atomics
from moapipe.loops.footprint import Census
from moapipe.loops.interpret import Run, run
from moapipe.loops.onf import Kernel
from moapipe.loops.site import fullest
from moapipe.loops.team import shuffles, waits

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
    kernel: Kernel

    @property
    def census(self) -> Census:
        return Census(self.sizes)

    def emulate(self, **options):
        return emulation.run(self.library, self.manifest, self.inputs, self.sizes, THREADS, **options)


def make(b: Build, folder: Path, mutate=lambda text: text, **given: int) -> Made:
    d = derive(b, ROOT, tiny=True)
    text = mutate(d.source.text)
    (folder / d.manifest["source"]).write_text(text)
    emulation.compile_text(folder / d.manifest["source"], b.dtype, folder / "kernel.so")
    module = load(b.kernel, ROOT).module
    sizes = {s: SIZES + i for i, s in enumerate(module.SIZES)} | given
    x = {n: np.asarray(v) for n, v in module.inputs(np.random.default_rng(1), sizes, b.form).items()}
    kernel = d.schedule.kernel
    return Made(folder / "kernel.so", d.manifest, x, sizes, run(kernel, sizes, x, threads=THREADS), kernel)


def right(got, made: Made, dtype: str) -> bool:
    return all(np.allclose(got.outputs[n], v, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]) for n, v in made.ran.outputs.items())


@pytest.mark.parametrize("b", BUILDS, ids=lambda b: "-".join((b.kernel, b.form, b.variant, b.target)))
def test_numbers_are_right_no_fault_and_the_counts_of_the_interpreter(b, tmp_path):
    made = make(b, tmp_path)
    for descending in (False, True):
        got = made.emulate(descending=descending)
        assert right(got, made, b.dtype) and not got.faults
    shared = atomics(made.kernel, made.sizes)
    for name, traffic in got.traffic.items():
        access = made.ran.accesses.get(name)
        if access and (access.loads or access.stores):  # lengths are read as indices, which no count calls an access
            assert (traffic.loads + traffic.atomics, traffic.stores + traffic.atomics) == (access.loads, access.stores), name
        assert name == emulation.WORK or traffic.atomics == sum(a.updates for a in shared if a.array == name), name


    assert got.barriers == sum(made.census.runs(loops, conditions) for loops, conditions in waits(fullest(made.kernel)))
    assert got.shuffles == sum(n * made.census.runs(loops, conditions) for loops, conditions, n in shuffles(fullest(made.kernel)))


PLAIN, TEAM, ATOMIC = ("matmul", "nn", "naive"), ("attention_forward", "causal", "online_shared"), ("attention_forward_backward", "causal", "row_parallel_atomic")
LANES = ("rmsnorm", "forward", "row_team")
MUTANTS = {
    "two threads own one element": (PLAIN, r"item \+= threads", "item += 1"),
    "reads past the end": (PLAIN, r"A\[", "A[m * k + "),
    "an accumulator that nobody zeroes": (PLAIN, r"\S+ = 0\.0f?;", ";"),
    "a sum that is not atomic": (ATOMIC, r"atomicAdd\(&(.+?\]), (.*)\);", r"\1 = \1 + (\2);"),
    "a barrier that some threads meet": (TEAM, r"__syncthreads", "if (threadIdx.x < 2) __syncthreads"),
    "a barrier that each thread meets elsewhere": (TEAM, r"__syncthreads\(\);", "if (threadIdx.x < 2) __syncthreads(); else\n__syncthreads();"),
    "a tile of keys past the end": (TEAM, r"K\[", "K[kv_len * d_k + "),
    "a tile that is too short": (TEAM, r"SHARED\(Ks, \d+\)", "SHARED(Ks, 5)"),
    "a register that nobody zeroes": (TEAM, r"mixed\[.*\] = 0\.0f?;", ";"),
    "a shuffle that half of the lanes come to": (LANES, r"(sum_lanes\(.*?, \d+\))", r"(threadIdx.x % 2 ? \1 : 0)"),
    "a fold over half of the lanes": (LANES, r"lanes / 2", "lanes / 4"),
    "a shared sum that nobody zeroes": (TEAM, r"total\[\w+\] = 0\.0f?;", ";"),
}


def wrong(variant: tuple[str, str, str], folder: Path, mutate, **sizes: int) -> bool:
    """The changed text has a fault, or gives other numbers."""
    made = make(Build(*variant, "cuda", "plain", "f64"), folder, mutate, **sizes)
    got = made.emulate()
    return bool(got.faults) or not right(got, made, "f64")


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_found(fault, tmp_path):
    variant, old, new = MUTANTS[fault]

    def mutate(text):
        assert re.search(old, text), f"nothing to change in\n{text}"
        return re.sub(old, new, text, count=1)

    assert wrong(variant, tmp_path, mutate)


def test_no_barrier_can_be_spared(tmp_path):
    """Each of them is there for a dependence: without it, threads race, at usual sizes or where a fold in between has no terms."""
    stop = "__syncthreads();"
    parts = derive(Build(*TEAM, "cuda", "plain", "f64"), ROOT, tiny=True).source.text.split(stop)
    assert len(parts) > 6
    for n in range(1, len(parts)):
        text = stop.join([*parts[: n - 1], parts[n - 1] + parts[n], *parts[n + 1 :]])
        assert wrong(TEAM, tmp_path, lambda _, text=text: text) or wrong(TEAM, tmp_path, lambda _, text=text: text, d_k=0), f"barrier {n}"
