"""Texts for OpenCL on two devices that share no code: right numbers, no report; and faults that are planted are reported."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.targets import tiles
from tests.targets.test_emit import random_inputs

from moapipe.lab import opencl
from moapipe.lab.errand import Answer, Errand
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names, scan
from moapipe.lab.place import root
from moapipe.lab.trial import EXTENTS, examine, stage
from moapipe.loops.interpret import run
from moapipe.targets.emit import emit
from moapipe.targets.table import target_named

ROOT = root()
RUNTIMES = [pytest.param(r, marks=pytest.mark.skipif(bool(why := opencl.missing(r)), reason=why)) for r in opencl.RUNTIMES]
grinds = pytest.mark.skipif(bool(opencl.missing("oclgrind")), reason=opencl.missing("oclgrind"))
FORMS = {k: scan(k, ROOT).forms for k in names(ROOT)}
BUILDS = {k: [Build(k, f, v, "opencl", "plain", dtype) for dtype in ("f64", "f32") for f in FORMS[k] for v in scan(k, ROOT).variants_of(f, "opencl")] for k in FORMS}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kernel", [k for k in BUILDS if BUILDS[k]])
def test_numbers_are_right_and_nothing_is_reported(kernel, runtime):
    """Every variant in the first of its forms in f64, and one text in f32; `make evidence` goes through all."""
    firsts = {b.variant: b for b in reversed(BUILDS[kernel]) if b.dtype == "f64"}
    builds = [*firsts.values(), replace(firsts[next(iter(firsts))], dtype="f32")]
    bad = {b.path(): e.detail for b, e in zip(builds, examine(builds, ROOT, runtime), strict=True) if not e.passed}
    assert not bad


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_launches_inside_loops_and_conditions(runtime):
    """Small nests whose entry point is no plain sequence, and one whose sums are shared."""
    kernels = {"panels": {"n": 6}, "shared": {"n": 9, "m": 5}, "triangle": {"n": 7}}
    jobs, expected = [], []
    for name, sizes in kernels.items():
        kernel = replace(getattr(tiles, name)(*([2] if name == "panels" else [])), name=name)
        source, inputs = emit(kernel, "opencl", "plain", "f64"), random_inputs(kernel, sizes, "f64")
        jobs.append(Errand(source.text, {**source.manifest, "dtype": "f64"}, inputs, sizes, 5))
        expected.append(run(kernel, sizes, inputs).outputs)
    for answer, outputs in zip(opencl.run(jobs, runtime), expected, strict=True):
        assert not answer.report
        for name, value in outputs.items():
            np.testing.assert_allclose(answer.outputs[name], value, rtol=1e-14, atol=1e-14)


SHARED = Build("attention_forward_backward", "full", "row_parallel_atomic", "opencl", "plain", "f64")
PLAIN = Build("attention_forward", "full", "online", "opencl", "plain", "f64")
TEAM = Build("attention_forward", "causal", "online_shared", "opencl", "plain", "f64")
MUTANTS = {
    "a plain sum where others add": (SHARED, r"atomic_add_real\(&([^;]*?), ([^;]*)\);\n", r"\1 = \1 + \2;\n", "data race"),
    "two threads own one element": (PLAIN, r"item \+= threads", "item += 1", "data race"),
    "reads past the end": (PLAIN, r"V\[", "V[batch * kv_len * d_v + ", "Invalid read"),
    "writes past the end": (PLAIN, r"out\[", "out[batch * q_len * d_v + ", "Invalid write"),
    "a running maximum that starts nowhere": (PLAIN, r"peak\[0\] = -INFINITY;", ";", "Uninitialized"),
}


def mutant(b: Build, old: str, new: str, runtime: str) -> Answer:
    d, s, t = stage(b, ROOT, *EXTENTS["oclgrind"])
    text, count = re.subn(old, new, d.source.text)
    assert count, d.source.text
    return opencl.run([Errand(text, d.manifest, t.inputs, dict(s.sizes), 40)], runtime)[0]


@grinds
@pytest.mark.parametrize("fault", MUTANTS)
def test_a_planted_fault_is_reported(fault):
    b, old, new, words = MUTANTS[fault]
    assert words in mutant(b, old, new, "oclgrind").report


@grinds
def test_no_barrier_can_be_spared():
    """Each is there for a dependence: without it, Oclgrind sees a race, at sizes of several tiles or where a loop in between has no iterations."""
    d, s, _ = stage(TEAM, ROOT, EXTENTS["shim"][0])
    stop = target_named("opencl").team.barrier
    parts = d.source.text.split(stop)
    assert len(parts) > 6
    texts = [stop.join([*parts[: n - 1], parts[n - 1] + parts[n], *parts[n + 1 :]]) for n in range(1, len(parts))]

    def races(**other: int) -> list[bool]:
        sizes = {**dict(s.sizes), **other}
        inputs = {n: np.asarray(v) for n, v in load(TEAM.kernel, ROOT).call("inputs", np.random.default_rng(1), sizes, TEAM.form).items()}
        return ["data race" in a.report for a in opencl.run([Errand(text, d.manifest, inputs, sizes, 40) for text in texts], "oclgrind")]

    assert all(any(each) for each in zip(races(), races(d_k=0), races(kv_len=0), strict=True))


@grinds
def test_what_is_said_of_one_text_silences_no_other():
    """Oclgrind counts what it reports and falls silent at a limit, whichever program it is."""
    d, s, t = stage(PLAIN, ROOT, *EXTENTS["oclgrind"])
    bad, good = (Errand(text, d.manifest, t.inputs, dict(s.sizes), 40) for text in (d.source.text.replace("out[", "out[1 + "), d.source.text))
    reports = [a.report for a in opencl.run([bad, bad, good, bad], "oclgrind", limits={"OCLGRIND_MAX_ERRORS": "1"})]
    assert [bool(r) for r in reports] == [True, True, False, True]


@pytest.mark.parametrize("runtime", RUNTIMES[:1])
def test_a_shared_sum_that_nobody_zeroes_is_no_number(runtime):
    """Oclgrind does not ask who wrote what an atomic reads; everything that it hands out is zero, everything of PoCL's is poisoned."""
    answer = mutant(SHARED, r"dV\[[^;=]*\] = 0\.0;", ";", runtime)
    assert np.isnan(answer.outputs["dV"]).all() and np.isfinite(answer.outputs["dQ"]).all()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_text_that_does_not_compile_answers_in_words(runtime):
    source, sizes = emit(tiles.shared(), "opencl", "plain", "f64"), {"n": 2, "m": 2}
    job = Errand(source.text + "\nint broken(", {**source.manifest, "dtype": "f64"}, random_inputs(tiles.shared(), sizes, "f64"), sizes, 3)
    good = replace(job, program=source.text)
    broken, whole = opencl.run([job, good], runtime)
    assert not broken.outputs and "does not compile" in broken.report and not whole.report
