"""What the fused and the published variants of attention's gradients promise: what grows with n², what is atomic, and what one lift changes."""

from __future__ import annotations

from math import prod

import pytest
from tests.loops.test_lift_meaning import ROOT, derived, given

from moapipe.algebra.index import evaluate
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load
from moapipe.lab.transcript import markdown
from moapipe.loops.atomic import atomics
from moapipe.loops.closed import closed_forms
from moapipe.loops.interpret import run

FUSED = "attention_forward_backward"
FORMS = ("full", "causal")
SMALL, LARGE = ({"batch": 1, "q_len": n, "kv_len": n, "d_k": 3, "d_v": 5} for n in (16, 32))


def growth(kernel):
    """How much more elements each array has when the sequence is twice as long: 2 for n, 4 for n²."""
    return {a.name: prod(evaluate(e, LARGE) for e in a.shape) / prod(evaluate(e, SMALL) for e in a.shape) for a in kernel.arrays}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", ["row_block", "two_pass", "row_parallel_atomic"])
def test_nothing_grows_with_the_square_of_the_length(variant, form):
    """In shapes, in the closed forms of what is written for the whole call, and in a run."""
    kernel = derived(FUSED, form, variant)[-1][1]
    assert max(growth(kernel).values()) <= 2.5
    touched = [run(kernel, at, given(FUSED, form, at)).footprint for at in (SMALL, LARGE)]
    held = {a.name for a in kernel.arrays if a.space in ("input", "output", "workspace")}
    assert all(touched[1][n].written <= 2.5 * touched[0][n].written for n in held)
    written = closed_forms(kernel).written
    assert all(written[n].value(LARGE, {}) <= 2.5 * written[n].value(SMALL, {}) for n in held & set(written))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", ["split_passes", "split_passes_owner", "split_passes_blocked"])
def test_the_published_passes_store_two_square_arrays(variant, form):
    kernel = derived(FUSED, form, variant)[-1][1]
    assert {n for n, g in growth(kernel).items() if g > 2.5} == {"weights_normalised", "dscores"}


@pytest.mark.parametrize(("kernel", "form", "variant", "updates"), [
    ("attention_backward", "weights", "row_parallel_atomic", 536_870_912), (FUSED, "full", "row_parallel_atomic", 1_073_741_824),
    (FUSED, "full", "split_passes", 536_870_912), (FUSED, "full", "split_passes_owner", 0), (FUSED, "full", "row_block", 0),
])
def test_the_published_counts_of_atomic_updates(kernel, form, variant, updates):
    """B = 2, n = 2048, d = 64: jobs of the validation paper (arXiv 2609.33916), from our own derivations."""
    k = derived(kernel, form, variant)[-1][1]
    at = {"batch": 2, "group": 1, "q_len": 2048, "kv_len": 2048, "d_k": 64, "d_v": 64}
    assert sum(a.updates for a in atomics(k, {s: at[s] for s in k.sizes})) == updates


def test_one_lift_turns_atomics_into_owners():
    """The scripts differ in that lift alone, the normal form stays, and both derivations show the refusal that leads there."""
    file = load(FUSED, ROOT)
    shared, owned = (file.variant(v).lifts for v in ("split_passes", "split_passes_owner"))
    different = [(a, b) for a, b in zip(shared, owned, strict=True) if a != b]
    assert [(*a, *b) for a, b in different] == [("atomic", "own")]
    made = [derive(Build(FUSED, "full", v, "c", "plain", "f64"), ROOT) for v in ("split_passes", "split_passes_owner")]
    assert made[0].denotation.hash == made[1].denotation.hash and made[0].schedule.hash != made[1].schedule.hash
    for d in made:
        (refused,) = [s for s in d.schedule.lifts if s.refusal]
        assert "race: iterations over q share dK_sum" in refused.refusal and "atomic" in refused.refusal
        assert "refused: bind(axis=q" in markdown(d)
