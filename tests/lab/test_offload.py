"""Directive texts of whole kernels: right on the host's threads, right on a device that only has what is mapped; a lost mapping is found."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from moapipe.lab import offload, pair
from moapipe.lab.derive import derive
from moapipe.lab.errand import Errand
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import FAMILIES, names, scan
from moapipe.lab.place import root
from moapipe.lab.trial import EXTENTS, examine, missing, stage

ROOT = root()
VARIANTS = [(k, next(iter(v.forms or scan(k, ROOT).forms)), n) for k in names(ROOT) for n, v in scan(k, ROOT).variants.items() if set(FAMILIES["directives"]) & set(v.targets)]
ROUTES = [(t, way) for t in FAMILIES["directives"] for way in offload.RUNS if offload.compiler(t, way)[0]]
SUMS = Build("attention_forward_backward", "full", "row_parallel_atomic", "c_omp_target", "plain", "f64")


@pytest.mark.parametrize(("target", "way"), [pytest.param(t, w, marks=pytest.mark.skipif(bool(why := missing(t, w)), reason=why)) for t, w in ROUTES])
def test_numbers_are_right(target, way):
    """One form of every variant in f64 for C with OpenMP, of attention's for the other three; the first also in f32."""
    chosen = [v for v in VARIANTS if target == SUMS.target or v[0] in ("attention_forward", SUMS.kernel)]
    builds = [Build(*v, target, "plain", "f64") for v in chosen if target in scan(v[0], ROOT).variant(v[2]).targets]
    builds += [replace(builds[0], dtype="f32")]
    bad = {b.path(): e.detail for b, e in zip(builds, examine(builds, ROOT, way), strict=True) if not e.passed}
    assert not bad


@pytest.mark.skipif(bool(missing(SUMS.target, "offload")), reason=missing(SUMS.target, "offload"))
def test_a_sum_that_does_not_come_back_is_seen_on_a_device_only(tmp_path):
    d, s, t = stage(SUMS, ROOT, *EXTENTS["offload"])
    outputs = re.search(r"map\(from: ([^)]*)\)", d.source.text)
    assert outputs
    source = tmp_path / d.manifest["source"]
    source.write_text(d.source.text.replace(outputs[0], f"map(to: {outputs[1]})"))
    right = {}
    for way in offload.RUNS:
        made = tmp_path / f"{way}.so"
        offload.compile_text(SUMS.target, way, source, made)
        (answer,) = offload.run([Errand(str(made), d.manifest, t.inputs, dict(s.sizes), 30)], way)
        right[way] = bool(answer.outputs) and all(np.allclose(v, np.asarray(t.outputs[n], float).reshape(v.shape)) for n, v in answer.outputs.items())
    assert right == {"fallback": True, "offload": False}


@pytest.mark.parametrize("model", ["omp_target", "openacc"])
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_c_and_fortran_are_the_same_program(variant, model):
    """The published GPU sources were not: each language had its own arrays and its own loops."""
    b = Build(*variant, f"c_{model}", "plain", "f64")
    if b.target not in scan(b.kernel, ROOT).variant(b.variant).targets:
        pytest.skip(f"{b.variant} is not written for {b.target}")
    found = pair.document(derive(b, ROOT))
    assert found["same"] and found["onf_hash"] == derive(replace(b, target=f"fortran_{model}"), ROOT).manifest["onf_hash"]
    assert [x for x in found["differences"] if x["what"] == "loop"]
