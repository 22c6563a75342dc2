"""Gated MLP (SwiGLU), forward: F = (SiLU(U)·V)·Wd with U = X·Wg the gate and V = X·Wu, SiLU(u) = u·σ(u). Saves U only.

Shazeer 2020 (arXiv:2002.05202). The gate's weights are Wg, the other half's Wu: arrays of their own, so no order of halves has to
be known. Index variables: t over rows (tokens), c over the d features, f over the d_ff features between, o over the d features.
"""

import numpy as np

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions

SIZES = ("rows", "d", "d_ff")
PARAMETERS = {"n": ("rows",), "d": ("d",), "ff": ("d_ff",)}
FORMS = {"forward": {"save": False}, "forward_save": {"save": True}}
LEADING = "rows"


def definitions(form: str) -> Definitions:
    """X is ⟨rows d⟩, Wg and Wu ⟨d d_ff⟩, Wd ⟨d_ff d⟩; F ⟨rows d⟩ and, when it is saved, U ⟨rows d_ff⟩."""
    X, Wg, Wu = moa.array("X", "rows", "d"), moa.array("Wg", "d", "d_ff"), moa.array("Wu", "d", "d_ff")
    Wd = moa.array("Wd", "d_ff", "d")
    U = Definition("U", ("t", "f"), moa.inner("+", "*", X, Wg, index="c"))
    V = Definition("V", ("t", "f"), moa.inner("+", "*", X, Wu, index="c"))
    H = Definition("H", ("t", "f"), U.array * moa.sigmoid(U.array) * V.array)
    F = Definition("F", ("t", "o"), moa.inner("+", "*", H.array, Wd, index="f"))
    return Definitions(SIZES, (X, Wg, Wu, Wd), (U, V, H, F), ("F", "U") if FORMS[form]["save"] else ("F",))


def inputs(rng, sizes, form):
    """Normal rows; weights such that U, V and F are of the size of X."""
    n, d, f = (sizes[s] for s in SIZES)
    shapes = {"X": (n, d), "Wg": (d, f), "Wu": (d, f), "Wd": (f, d)}
    return {k: rng.standard_normal(s) * (1 if k == "X" else max(s[0], 1) ** -0.5) for k, s in shapes.items()}


STRESS = {f"gates of ±{top}": lambda x, form, top=top: {**x, "Wg": x["Wg"] * (top / max(abs(x["X"] @ x["Wg"]).max(initial=0), 1e-9))} for top in (100, 800)}


def silu(xp, u):
    """u·σ(u) through exp(−|u|) ≤ 1."""
    e = xp.exp(-abs(u))
    return u * xp.where(u >= 0, 1 / (1 + e), e / (1 + e))


def reference(xp, x, form):
    U = x["X"] @ x["Wg"]
    made = {"F": (silu(xp, U) * (x["X"] @ x["Wu"])) @ x["Wd"]}
    return {**made, **({"U": U} if FORMS[form]["save"] else {})}


def baseline(torch, x, form):
    """PyTorch eager: three products, silu and the product of the halves."""
    act, save = torch.nn.functional.silu, FORMS[form]["save"]

    def run():
        U = x["X"] @ x["Wg"]
        return {"F": (act(U) * (x["X"] @ x["Wu"])) @ x["Wd"], **({"U": U} if save else {})}

    return "mm, silu, mul", run


def halves_error(eps, x):
    """(U, V, the largest errors of U, V, SiLU(U) and H): docs/validation.md."""
    u, d, tiny = eps / 2, x["X"].shape[1], 2.0 ** (-126 if eps > 1e-10 else -1022)
    U, V = (x["X"] @ x[w] for w in ("Wg", "Wu"))
    eu, ev = (u * (d + 1) * (abs(x["X"]) @ abs(x[w])) for w in ("Wg", "Wu"))
    s = abs(silu(np, U))
    es = 1.1 * eu + 9 * u * s + tiny * (1 + abs(U))
    return U, V, eu, ev, es, es * (abs(V) + ev) + s * ev + 2 * u * s * abs(V)


def error_bound(eps, x, out, form):
    U, V, eu, _, _, eh = halves_error(eps, x)
    H = abs(silu(np, U) * V)
    made = {"F": (eh + eps / 2 * (H.shape[1] + 1) * (H + eh)) @ abs(x["Wd"])}
    return {**made, **({"U": eu} if FORMS[form]["save"] else {})}


def useful_flops(sizes, form):
    return 6 * sizes["rows"] * sizes["d"] * sizes["d_ff"]


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or three products of 2mnk/√M − 2M each (Smith et al. 2017)."""
    n, d, f = (sizes[s] for s in SIZES)
    once = 2 * n * d + 3 * d * f + (n * f if FORMS[form]["save"] else 0)
    return max(once, 6 * n * d * f / capacity**0.5 - 6 * capacity)
