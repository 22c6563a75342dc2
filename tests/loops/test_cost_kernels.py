"""Counts equal the interpreter over all kernels × forms × variants, after every lift, on tiny tiles and awkward sizes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from moapipe.algebra.adjoint import denote
from moapipe.algebra.index import evaluate, parse
from moapipe.algebra.laws import LAWS
from moapipe.lab.kernel import load, names, scan
from moapipe.loops.cost import count
from moapipe.loops.interpret import run
from moapipe.loops.lift import apply_script
from moapipe.loops.onf_json import from_json, to_json
from moapipe.loops.share import lower

ROOT = Path(__file__).parents[2]
TINY = {"V": 2, "NV": 2, "W": 4, "MR": 3, "Br": 6, "Bq": 12, "Bc": 12, "KC": 4, "MC": 6, "NC": 8}
SIZES = (1, 2, 5, 6, 13)
AMONG = 9
"""Of the states before the last: several small tiles and a tail, some axes beyond the largest tile, others within; the last has all SIZES."""
STATES = 16
"""Of a longer script every so-manieth state is counted, and the last: the meaning is held after every lift elsewhere."""


def kernel_module(name):
    return load(name, ROOT).module


@cache
def denoted(name, form):
    """The normal form, which all variants share."""
    return denote(name, kernel_module(name).definitions(form))[0]


def few(k):
    """What stays small, because it only repeats the rest: a batch, the first of many sizes, and of more all but four."""
    return dict.fromkeys(k.sizes[: max(1, len(k.sizes) - 4)], 2) if len(k.sizes) > 3 else {}


def sizes_near(k, n):
    """All sizes near n, no two alike, but for what only repeats the rest."""
    return {s: n + i if n > 1 else 1 for i, s in enumerate(k.sizes)} | few(k)


def inputs_of(k, form, sizes):
    """The kernel file's own inputs: where lengths come with the data, the longest, which is what counts are of."""
    made = load(k.name, ROOT).call("inputs", np.random.default_rng(5), sizes, form)
    return {name: np.asarray(v, np.float64) for name, v in made.items()}


def assert_counted(k, form, n):
    sizes = sizes_near(k, n)
    inputs = inputs_of(k, form, sizes)
    ran, counted = run(k, sizes, inputs), count(k, sizes, 8)
    assert counted.accesses == ran.accesses
    assert counted.footprint == ran.footprint
    assert counted.calls == ran.calls


@pytest.mark.parametrize(("name", "form"), [(name, form) for name in names(ROOT) for form in kernel_module(name).FORMS])
def test_naive_kernels(name, form):
    k = lower(denoted(name, form))
    assert from_json(to_json(k)) == k
    for n in SIZES:
        assert_counted(k, form, n)


def tiled(v, tiles):
    """The tile parameters of a variant with tiny tiles: each of its own is an expression in what stands before it."""
    out = dict(tiles)
    for name, e in {**v.params, **v.tiny}.items():
        out[name] = evaluate(parse(str(e)), out)
    return out


@cache
def steps(name, variant, form):
    """Every state of a variant: the naive kernel, then one after each lift."""
    file, module = scan(name, ROOT), kernel_module(name)
    v = file.variants[variant]
    dnf = denoted(name, form)
    for law in v.laws:
        dnf = LAWS[law].apply(dnf)
    naive = lower(dnf, v.inline)
    return (naive, *(s.kernel for s in apply_script(naive, v.lifts, tiled(v, TINY), module.FORMS[form])))


VARIANTS = [(name, variant, form) for name in names(ROOT) for form in scan(name, ROOT).forms for variant in scan(name, ROOT).variants_of(form)]
LONG, LONGEST = 90, 400


def tier(name, variant, form):
    """A script of LONG lifts is held in one form; its other forms, which differ by a mask, are for the slow tier, and so is a script of
    LONGEST, which is made of others that are held by themselves."""
    file = scan(name, ROOT)
    first = next(f for f in file.forms if variant in file.variants_of(f))
    lifts = len(file.variants[variant].lifts)
    return pytest.mark.slow if lifts > LONGEST or (lifts > LONG and form != first) else ()


TIERED = [pytest.param(*v, marks=tier(*v)) for v in VARIANTS]


@pytest.mark.parametrize(("name", "variant", "form"), TIERED)
def test_every_state_of_every_variant(name, variant, form):
    states = steps(name, variant, form)
    distinct = tuple(dict.fromkeys(states)) if not form.endswith(("_lse", "_bottom_right")) else ()  # these are like others: their last will do
    for k in distinct[:: 1 + len(distinct) // STATES]:
        assert_counted(k, form, AMONG)
    for n in SIZES:
        assert_counted(states[-1], form, n)
    assert from_json(to_json(states[-1])) == states[-1]


def counted(variant, form, sizes):
    return count(steps("attention_forward", variant, form)[-1], sizes, 8)


def test_published_footprint_of_the_materialised_kernel():
    c = counted("materialised", "full", {"batch": 2, "q_len": 2048, "kv_len": 2048, "d_k": 64, "d_v": 64})
    assert c.footprint_read_bytes == 6_291_456 and c.footprint_written_bytes == 69_206_016
    assert c.footprint["scores"].space == "private" and c.footprint["scores"].written * 8 == 67_108_864


@pytest.mark.parametrize(("form", "extra"), [("full", 0), ("full_lse", 1)])
def test_online_touches_what_is_compulsory(form, extra):
    n, d_k, d_v = 1024, 64, 40
    c = counted("online", form, {"batch": 1, "q_len": n, "kv_len": n, "d_k": d_k, "d_v": d_v})
    assert c.footprint_read_bytes + c.footprint_written_bytes == 8 * (2 * n * d_k + 2 * n * d_v + extra * n)
    assert c.workspace_bytes == 0 and c.parameters == ("scale",)
