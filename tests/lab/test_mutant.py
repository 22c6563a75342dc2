"""Faults that are planted in every text: the checks report them, and a fault that nobody reports is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.loops.nests import array, loop, ref

from moapipe.algebra.index import evaluate
from moapipe.errors import LabError
from moapipe.lab import mutant, trial
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names, scan
from moapipe.lab.mutant import MUTANTS, Mutant, examine, finder, planted
from moapipe.lab.place import root
from moapipe.loops.atomic import uncontended
from moapipe.loops.onf import Accumulate, Kernel
from moapipe.loops.wide import widths
from moapipe.targets.isa import ARITHMETIC

ROOT = root()
TEAM = Build("matmul", "nn", "shared", "cuda", "plain", "f32")
ATOMIC = Build("attention_backward", "weights", "row_parallel_atomic", "cuda", "plain", "f32")
UPDATED = Build("matmul", "nn_accumulate", "naive", "cuda", "plain", "f64")
WAYS = [pytest.param(t, marks=pytest.mark.skipif(bool(why := trial.missing(t, finder(t))), reason=why)) for t in ("cuda", "opencl")]
MAPPED = Build("matmul", "nn_accumulate", "naive", "c_omp_target", "plain", "f64")
maps = pytest.mark.skipif(bool(trial.missing(MAPPED.target, "offload")), reason=trial.missing(MAPPED.target, "offload"))


@pytest.mark.parametrize("target", WAYS)
def test_every_planted_fault_is_found(target):
    """Three texts that have all kinds of fault among them; `make evidence` goes through all texts."""
    builds = [replace(b, target=target) for b in (TEAM, ATOMIC, UPDATED)]
    found = examine(builds, ROOT)
    assert [e.detail for e in found if not e.passed] == []
    assert {name for b in builds for name, _ in planted(trial.stage(b, ROOT, trial.EXTENTS["shim"][0])[0])} == {n for n, m in MUTANTS.items() if target in m.targets}
    assert f"{7 if target == 'cuda' else 6} of " in found[0].detail


SUMMED = [Build(k, f, v, "opencl", "plain", "f64") for k in names(ROOT) for f in scan(k, ROOT).forms for v in scan(k, ROOT).variants_of(f, "opencl")
          if any("atomic" in lift for lift in scan(k, ROOT).variant(v).lifts)]  # fmt: skip


@pytest.mark.parametrize("b", SUMMED, ids=lambda b: b.path())
def test_workers_meet_in_every_atomic_sum_that_a_fault_is_planted_in(b):
    """Where none do, a plain sum is right, and nothing would find it: a causal mask leaves the last block of keys no query in a case that
    is one key too short."""
    for kind in ("shim", "oclgrind"):
        d, s, _ = trial.stage(b, ROOT, trial.EXTENTS[kind][0])
        assert not uncontended(d.schedule.kernel, dict(s.sizes), max(s.threads))


@pytest.mark.parametrize("target", WAYS[1:])
def test_a_plain_sum_is_found_where_owners_hardly_meet(target, monkeypatch):
    monkeypatch.setattr(mutant, "MUTANTS", {n: m for n, m in MUTANTS.items() if "plain sums" in n})
    (found,) = examine([Build("attention_backward", "causal", "kv_owner_atomic", target, "plain", "f64")], ROOT)
    assert found.detail == "1 of 1 planted faults found: plain sums for atomic ones"


def test_a_sum_in_which_nobody_meets_has_no_case():
    term = Accumulate("sum", ref("C", "i"), ref("A", "i"), (), "C", atomic=True)
    nest = Kernel("lonely", ("m", "n", "k"), (array("A", "input", "m"), array("C", "output", "m")), (loop("i", "m", term, kind="parallel"),))
    with pytest.raises(LabError, match="nobody shares an element of C up to"):
        trial.scenario(load("matmul", ROOT), trial.EXTENTS["oclgrind"][0], nest)


WIDE = [Build(k, next(iter(scan(k, ROOT).forms)), v, "cuda", "plain", dtype) for k in names(ROOT) for v in scan(k, ROOT).variants
        if any("vector" in lift for lift in scan(k, ROOT).variant(v).lifts) for dtype in ARITHMETIC]  # fmt: skip


@pytest.mark.parametrize("b", WIDE, ids=lambda b: b.path())
def test_no_row_is_whole_where_rows_of_any_length_are_fetched_as_one(b):
    """Features that are two more than positions leave f64, which fetches two, nothing to be misplaced."""
    for extent in trial.EXTENTS["shim"]:
        d, s, _ = trial.stage(b, ROOT, extent)
        rows = {evaluate(a.shape[-1], dict(s.sizes)) for a in d.schedule.kernel.arrays if a.space == "input" and len(a.shape) > 1}
        assert all((n % max(widths(d.schedule.kernel)) == 0) == extent.whole for n in rows)


@maps
def test_every_lost_mapping_is_found():
    """Of an input, of an output, and of a buffer that is both."""
    found = examine([MAPPED, replace(ATOMIC, target="c_omp_target")], ROOT)
    assert [(e.status, e.detail.partition(":")[0]) for e in found] == [("passed", "2 of 2 planted faults found")] * 2


@pytest.mark.parametrize("target", WAYS)
def test_a_fault_that_nothing_reports_is_said(target, monkeypatch):
    monkeypatch.setattr(mutant, "MUTANTS", {"none at all": Mutant("race", lambda d, text: text + "\n")})
    (found,) = examine([replace(UPDATED, target=target)], ROOT)
    assert found.status == "failed" and found.detail == "none at all: not found (nothing is reported)"


@pytest.mark.parametrize("name", [n for n, m in MUTANTS.items() if "cuda" in m.targets])
def test_a_fault_changes_only_texts_that_can_have_it(name):
    """Barriers, shared arrays and elements fetched as one are of teams, atomics of shared sums; whoever deals iterations out has no team."""
    changed = [name in dict(planted(trial.stage(b, ROOT, trial.EXTENTS["shim"][0])[0])) for b in (TEAM, ATOMIC)]
    team, atomic = any(w in name for w in ("barrier", "shared", "fetched")), "atomic" in name or "iterations" in name
    assert changed == [not atomic, not team]
