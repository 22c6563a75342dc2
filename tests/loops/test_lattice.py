"""Points and projections of random systems against enumeration."""

from __future__ import annotations

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moapipe.errors import LiftError
from moapipe.loops import points
from moapipe.loops.footprint import image, intersection, union
from moapipe.loops.lattice import EMPTY, project, system
from moapipe.loops.points import count, profile

NAMES = "abcd"
LIMIT = 6
BOX = [c for v in NAMES for c in ({v: 1}, {v: -1, "": LIMIT - 1})]
constraints = st.lists(st.fixed_dictionaries({v: st.integers(-3, 3) for v in (*NAMES, "")}), max_size=3)
forms = st.lists(st.fixed_dictionaries({v: st.integers(-2, 3) for v in (*NAMES, "")}), min_size=1, max_size=2)
split = st.sampled_from([2, 3]).map(lambda f: [{"b": -1, "": f - 1}, {"a": f, "b": 1, "c": -1}, {"a": -f, "b": -1, "": 7}])


def holds(c, point):
    return sum(k * (point[v] if v else 1) for v, k in c.items()) >= 0


def walk(cs):
    for values in product(range(LIMIT), repeat=len(NAMES)):
        point = dict(zip(NAMES, values, strict=True))
        if all(holds(c, point) for c in cs):
            yield point


def value(form, point):
    return sum(k * (point[v] if v else 1) for v, k in form.items())


@settings(max_examples=150, deadline=None)
@given(st.one_of(constraints, split))
@pytest.mark.parametrize("largest", [points.TABLE, 1])
def test_points_equal_enumeration(largest, cs):
    with patch.object(points, "TABLE", largest):
        assert count(system([*BOX, *cs])) == sum(1 for _ in walk(cs))


@settings(max_examples=100, deadline=None)
@given(constraints)
def test_profile_equals_enumeration(cs):
    expected = np.zeros((LIMIT, LIMIT), int)
    for p in walk(cs):
        expected[p["b"], p["d"]] += 1
    found = profile(system([*BOX, *cs]), ("b", "d"))
    full = np.zeros_like(expected)
    full[: found.shape[0], : found.shape[1]] = found
    assert (full == expected).all()


@settings(max_examples=150, deadline=None)
@given(st.one_of(constraints, split))
def test_projection_keeps_exactly_the_shadow(cs):
    s, _, exists = project(system([*BOX, *cs]), "cd")
    assert count(s, exists) == len({(p["a"], p["b"]) for p in walk(cs)})


@settings(max_examples=150, deadline=None)
@given(st.one_of(constraints, split), forms)
def test_image_equals_enumeration(cs, entries):
    i = image(system([*BOX, *cs]), [{v: k for v, k in e.items() if k} for e in entries])
    expected = len({tuple(value(e, p) for e in entries) for p in walk(cs)})
    assert (0 if i.system == EMPTY else count(i.system, i.exists)) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(constraints, split), st.fixed_dictionaries({v: st.integers(-2, 3) for v in (*NAMES, "")})), min_size=2, max_size=4))
def test_union_equals_enumeration(parts):
    images = [image(system([*BOX, *cs]), [{v: k for v, k in e.items() if k}, {"a": 1}]) for cs, e in parts]
    expected = {(value(e, p), p["a"]) for cs, e in parts for p in walk(cs)}
    assert union([i for i in images if not i.system.empty], count) == len(expected)
    a, b = ({(value(e, p), p["a"]) for p in walk(cs)} for cs, e in parts[:2])
    both = intersection(images[0], images[1])
    assert (0 if both.system.empty else count(both.system, both.exists)) == len(a & b)


def test_unbounded_variables_are_named():
    with pytest.raises(LiftError, match="range of b"):
        count(system([{"a": 1}, {"a": -1, "": 3}, {"b": 1, "a": -1}]))
