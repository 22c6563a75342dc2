"""Lifts leave the meaning alone: after every lift of every variant, the interpreter equals the normal form's meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.loops.test_cost_kernels import denoted, tier, tiled

from moapipe.algebra.dnf import Dnf, meaning
from moapipe.algebra.laws import LAWS
from moapipe.algebra.scalar import variables
from moapipe.lab.kernel import load, names
from moapipe.loops.interpret import run
from moapipe.loops.lift import apply_script
from moapipe.loops.onf import Loop, statements
from moapipe.loops.share import lower

ROOT = Path(__file__).parents[2]
TINY = {"V": 2, "NV": 2, "W": 4, "MR": 2, "Br": 4, "Bq": 8, "Bc": 8, "KC": 3, "MC": 4, "NC": 8}
SIZES = {
    "attention_forward": [
        {"batch": 1, "q_len": 9, "kv_len": 19, "d_k": 3, "d_v": 5},      # two tiles and a tail on every axis, unlike each other
        {"batch": 2, "q_len": 13, "kv_len": 6, "d_k": 4, "d_v": 9},      # more queries than keys: rows that see nothing
        {"batch": 1, "q_len": 8, "kv_len": 16, "d_k": 2, "d_v": 8},      # whole tiles only
        {"batch": 1, "q_len": 1, "kv_len": 1, "d_k": 1, "d_v": 1},
        {"batch": 1, "q_len": 3, "kv_len": 0, "d_k": 1, "d_v": 2},
        {"batch": 1, "q_len": 0, "kv_len": 3, "d_k": 1, "d_v": 1},
        {"batch": 1, "q_len": 5, "kv_len": 7, "d_k": 0, "d_v": 4},
        {"batch": 2, "q_len": 5, "kv_len": 7, "d_k": 2, "d_v": 0},
        {"batch": 0, "q_len": 5, "kv_len": 7, "d_k": 2, "d_v": 1},
    ],
    "attention_backward": [
        {"batch": 1, "group": 2, "q_len": 9, "kv_len": 19, "d_k": 3, "d_v": 5},
        {"batch": 2, "group": 1, "q_len": 13, "kv_len": 6, "d_k": 4, "d_v": 9},
        {"batch": 1, "group": 1, "q_len": 8, "kv_len": 16, "d_k": 2, "d_v": 8},
        *({"batch": 1, "group": 2, "q_len": 3, "kv_len": 4, "d_k": 2, "d_v": 1} | {s: 0} for s in ("batch", "group", "q_len", "kv_len", "d_k", "d_v")),
    ],
    "attention_forward_backward": [
        {"batch": 1, "q_len": 9, "kv_len": 19, "d_k": 3, "d_v": 5},
        {"batch": 2, "q_len": 13, "kv_len": 6, "d_k": 4, "d_v": 9},
        {"batch": 1, "q_len": 8, "kv_len": 16, "d_k": 2, "d_v": 8},
        *({"batch": 1, "q_len": 3, "kv_len": 4, "d_k": 2, "d_v": 1} | {s: 0} for s in ("batch", "q_len", "kv_len", "d_k", "d_v")),
    ],
    "matmul": [
        {"m": 9, "n": 19, "k": 7}, {"m": 8, "n": 16, "k": 6}, {"m": 1, "n": 1, "k": 1}, {"m": 5, "n": 3, "k": 0},
        {"m": 0, "n": 4, "k": 2}, {"m": 4, "n": 0, "k": 2},
    ],
    "rmsnorm": [{"rows": 3, "d": 19}, {"rows": 2, "d": 16}, {"rows": 1, "d": 1}, {"rows": 0, "d": 3}],
}  # fmt: skip


STATES = 80
"""Of longer scripts, which include others, every second state or every third: their parts are held by themselves."""


def awkward(name):
    """Sizes for a kernel: its own row of SIZES, or several tiles and a tail on every long axis, whole tiles, all 1, and one axis of
    length 0 at a time."""
    parameters = load(name, ROOT).parameters
    tails, whole = ({s: long - 2 * k if p in ("n", "d") else 2 for p, sizes in parameters.items() for k, s in enumerate(sizes)} for long in (19, 8))
    return SIZES.get(name, [tails, whole, dict.fromkeys(tails, 1), *({**dict.fromkeys(tails, 2), s: 0} for s in tails)])


VARIANTS = [(name, form, variant) for name in names(ROOT) for form in load(name, ROOT).forms for variant in load(name, ROOT).variants_of(form)]
TIERED = [pytest.param(n, f, v, marks=tier(n, v, f)) for n, f, v in VARIANTS]


@cache
def derived(name, form, variant):
    """((title, kernel), …) from the naive kernel to the last."""
    file, dnf = load(name, ROOT), denoted(name, form)
    v = file.variants[variant]
    for law in v.laws:
        dnf = LAWS[law].apply(dnf)
    naive = lower(dnf, tuple(v.inline))
    steps = apply_script(naive, v.lifts, tiled(v, TINY), file.forms[form])
    return ("naive", naive), *((s.title, s.kernel) for s in steps)


def given(name, form, sizes):
    """The kernel file's own inputs."""
    made = load(name, ROOT).call("inputs", np.random.default_rng(sum(sizes.values())), sizes, form)
    return {k: np.asarray(v, np.float64) for k, v in made.items()}


@dataclass(frozen=True, eq=False)
class Meant:
    """What a normal form means of some inputs, which all states of all variants are held to."""

    dnf: Dnf
    sizes: dict[str, int]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def meant(dnf, sizes, inputs):
    with np.errstate(all="ignore"):
        return Meant(dnf, sizes, inputs, meaning(dnf, inputs, sizes))


@cache
def meant_at(name, form, sizes):
    """Of the kernel file's own inputs at sizes ((name, number), …)."""
    return meant(denoted(name, form), dict(sizes), given(name, form, dict(sizes)))


def assert_means(wanted, title, kernel, *, parallel="ascending"):
    with np.errstate(all="ignore"):
        got = run(kernel, wanted.sizes, wanted.inputs, parallel=parallel)
    for o in wanted.dnf.outputs:
        np.testing.assert_allclose(got.outputs[o], wanted.outputs[o], rtol=1e-10, atol=1e-12, err_msg=f"{o} after {title} at {wanted.sizes}")
    return got


@pytest.mark.parametrize(("name", "form", "variant"), TIERED)
def test_every_lift_keeps_the_meaning(name, form, variant):
    states, last = derived(name, form, variant), None
    wanted = meant_at(name, form, tuple(awkward(name)[0].items()))
    for title, kernel in states[:: 1 + len(states) // STATES]:
        if kernel.body != last:
            assert_means(wanted, title, kernel)
        last = kernel.body


@pytest.mark.parametrize(("name", "form", "variant"), TIERED)
def test_the_result_keeps_the_meaning_at_awkward_sizes(name, form, variant):
    states = derived(name, form, variant)
    for sizes in awkward(name):
        wanted = meant_at(name, form, tuple(sizes.items()))
        for title, kernel in (states[0], states[-1]):
            got = assert_means(wanted, title, kernel)
            assert not got.undefined, f"{title} at {sizes} reads what nobody stored: {got.undefined}"
        assert_means(wanted, *states[-1], parallel="descending")


@pytest.mark.parametrize(("name", "form", "variant"), TIERED)
def test_every_variant_is_parallel_and_all_but_naive_use_lanes_or_teams(name, form, variant):
    kinds = {s.kind for s in statements(derived(name, form, variant)[-1][1].body) if isinstance(s, Loop)}
    assert "parallel" in kinds
    assert kinds & {"lane", "thread"} or variant in ("naive", "published")


@pytest.mark.parametrize("form", load("attention_forward", ROOT).forms)
def test_online_variants_keep_no_scratch_that_grows_with_the_keys(form):
    for variant, workspace in (("online", 0), ("online_tiled", 2)):
        kernel = derived("attention_forward", form, variant)[-1][1]
        held = [a for a in kernel.arrays if a.space == "workspace"]
        assert len(held) == workspace       # the packed keys and values
        assert not any("kv_len" in variables(e) for a in kernel.arrays if a.space == "private" for e in a.shape)


def test_materialised_reads_and_writes_what_was_published():
    """B=2, N=2048, D=64, f64: 6,291,456 bytes read, 69,206,016 written, and n private scores for each row (moa.md 2)."""
    kernel = derived("attention_forward", "full", "materialised")[-1][1]
    assert [a.name for a in kernel.arrays if a.space == "workspace"] == ["weights_normalised"]
    sizes = {"batch": 2, "q_len": 8, "kv_len": 8, "d_k": 4, "d_v": 4}
    touched = run(kernel, sizes, given("attention_forward", "full", sizes)).footprint
    b, n, d = 2, 8, 4
    assert sum(touched[a].read for a in "QKV") == 3 * b * n * d
    assert touched["weights_normalised"].written + touched["out"].written == b * n * n + b * n * d
    assert touched["scores"].written == b * n * n     # over all lives of the row
