"""Closed forms and modelled traffic of the kernels' own variants: equal to the count, and within the promise, on tiny tiles."""

from __future__ import annotations

import pytest
from tests.loops.test_closed import assert_equal
from tests.loops.test_cost_kernels import TIERED, inputs_of, sizes_near, steps
from tests.loops.test_traffic import FACTOR, total

from moapipe.loops.closed import closed_forms
from moapipe.loops.interpret import run
from moapipe.loops.onf import statements
from moapipe.loops.traffic import Reuse, simulate

SIZES = (1, 6, 13)
CAPACITIES = (8, 16, 32, 64, 128, 256, 1024)
"""In lines: from where the promise of docs/cost_model.md begins to where everything fits."""
FORMS = ("full", "causal", "nn", "tn_accumulate", "forward", "step")
POINTS = [(9, 8), (13, 64), (16, 64)]
"""(size, bytes of a line): lines of one element, lines that no row is a multiple of, and some that are."""


@pytest.mark.parametrize(("name", "variant", "form"), TIERED)
def test_closed_forms_equal_the_count(name, variant, form):
    k = steps(name, variant, form)[-1]
    forms = closed_forms(k)
    assert set(forms.loads) and set(forms.stores) and set(forms.written)
    for n in SIZES if not form.endswith("_lse") else SIZES[-1:]:  # the log-sum-exp adds one nest to what the other form has
        assert_equal(forms, k, sizes_near(k, n))
    for s in k.sizes:  # one axis beyond all tiles, the others within one: what holds of all sizes alike may not hold of these
        assert_equal(forms, k, {**dict.fromkeys(k.sizes, 2), s: 29})
    for empty in k.sizes:
        assert_equal(forms, k, {**sizes_near(k, 7), empty: 0})


@pytest.mark.parametrize(("name", "variant", "form"), TIERED)
def test_no_statement_is_one_object_at_two_places(name, variant, form):
    """Traffic, teams and barriers tell statements apart by identity."""
    found = [id(s) for s in statements(steps(name, variant, form)[-1].body)]
    assert len(set(found)) == len(found)


HELD = [v for v in TIERED if v.values[2] in FORMS]
AT = [pytest.param(*v.values, *point, marks=v.marks if k % len(POINTS) == turn else pytest.mark.slow)
      for k, v in enumerate(HELD) for turn, point in enumerate(POINTS)]
"""Every variant at one of the points in turn, and every point by a third of the variants; in the slow tier, all by all."""


@pytest.mark.parametrize(("name", "variant", "form", "n", "line"), AT)
def test_traffic_lies_between_the_oracle_at_twice_and_at_half_the_capacity(name, variant, form, n, line):
    k = steps(name, variant, form)[-1]
    sizes = sizes_near(k, n)
    inputs = inputs_of(k, form, sizes)
    trace, reuse = run(k, sizes, inputs, trace=True).trace, Reuse(k, sizes, 8, line)
    oracle = {c: total(simulate(k, trace, 8, c * line, line)) for c in {x for c in CAPACITIES for x in (2 * c, c // 2)}}
    for c in CAPACITIES:
        past = reuse.past(c * line)
        assert oracle[2 * c] <= total(past) <= FACTOR * oracle[c // 2], (c, total(past))
        assert all(t.read >= 0 and t.allocated >= 0 and t.written >= 0 for t in past.values())


@pytest.mark.parametrize(("name", "variant", "form"), HELD)
def test_threads_with_caches_of_their_own_fetch_no_less_than_one(name, variant, form):
    k = steps(name, variant, form)[-1]
    one, several = (Reuse(k, sizes_near(k, 9), 8, 64, threads=t) for t in (1, 3))
    for c in (64 * 1024, 4 * 1024 * 1024):  # all of it fits
        assert total(several.past(c)) >= total(one.past(c)) * (1 - 1e-12) > 0
