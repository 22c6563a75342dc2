"""Variants that promise the same bits give them: with one thread, and in twenty runs with each number of more. The others update atomically."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.compiled import build, call, compiler

from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build, native_isa
from moapipe.lab.kernel import load, names
from moapipe.lab.place import root
from moapipe.loops.onf import Accumulate, leaves

ROOT = root()
RUNS, LONG = {1: 2, 2: 20, 3: 20}, 300
"""How often each number of threads runs it. One thread has nobody to be late; its second run would show what is read and never written."""
SIZES = {native_isa(): 37, "plain": 11}
"""Several tiles and a tail on every axis, with the smallest tiles; a batch of two, so that threads share heads. A script of LONG lifts is
made of others, whose vectors are held by themselves: its own tiles are those of the smallest vectors."""


def chosen(file):
    """Each variant in the last form that it is written for that has a mask, or in its last form."""
    for name, v in file.variants.items():
        forms = [f for f in file.forms if f in (v.forms or file.forms)]
        yield name, next((f for f in reversed(forms) if file.forms[f].get("causal")), forms[-1])


VARIANTS = [(k, form, variant) for k in names(ROOT) for variant, form in chosen(load(k, ROOT))]


def is_atomic(kernel):
    return any(isinstance(q, Accumulate) and q.atomic for q, _, _ in leaves(kernel.body))


@pytest.mark.parametrize(("kernel", "form", "variant"), VARIANTS)
def test_only_atomic_updates_are_excused(kernel, form, variant):
    v = load(kernel, ROOT).variant(variant)
    d = derive(Build(kernel, form, variant, v.targets[0], "plain", "f64"), ROOT, tiny=True)
    assert is_atomic(d.schedule.kernel) is not v.deterministic


@pytest.mark.skipif(not compiler("c"), reason="no C compiler")
@pytest.mark.parametrize(("kernel", "form", "variant"), [v for v in VARIANTS if load(v[0], ROOT).variant(v[2]).deterministic])
def test_the_same_bits_in_every_run_and_with_any_number_of_threads(kernel, form, variant, tmp_path):
    file = load(kernel, ROOT)
    if "c" not in file.variant(variant).targets:
        pytest.skip("not written for C")
    isa = "plain" if len(file.variant(variant).lifts) > LONG else native_isa()
    d = derive(Build(kernel, form, variant, "c", isa, "f32"), ROOT, tiny=True)
    sizes = {s: SIZES[isa] + i for i, s in enumerate(file.sizes)} | dict.fromkeys(file.sizes[: max(len(file.sizes) - 4, 0)], 2)
    given = {n: np.asarray(v, np.float32) for n, v in file.call("inputs", np.random.default_rng(1), sizes, form).items()}
    library = build(d.source, "c", isa, "f32", tmp_path, ("-O1",))
    first = call(library, d.source.manifest, sizes, given, "f32", 1)
    for threads, runs in RUNS.items():
        for _ in range(runs):
            again = call(library, d.source.manifest, sizes, given, "f32", threads)
            assert all(np.array_equal(first[n], again[n], equal_nan=True) for n in first), threads
