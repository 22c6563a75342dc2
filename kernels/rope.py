"""Rotary position embedding: every pair of features of a row is turned by the angle of its position, z = (x₀·c − x₁·s, x₁·c + x₀·s).

Su et al. 2021 (arXiv:2104.09864). The tables c = cos and s = sin of position × frequency are inputs, as in Llama's codes. The form
says which features are a pair: `half_split` (i, i + pairs), `interleaved` (2i, 2i + 1); a row of features is then ⟨2 pairs⟩ or
⟨pairs 2⟩, the same buffer. Index variables: b over batch, t over positions, r over the two of a pair, p over pairs.
"""

import numpy as np

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions, Expr

SIZES = ("batch", "seq", "pairs")
PARAMETERS = {"B": ("batch",), "n": ("seq",), "d": ("pairs",)}
FORMS = {"half_split": {"interleaved": False}, "interleaved": {"interleaved": True}}
LEADING = "batch"


def rotate(x: Expr, cos: Expr, sin: Expr) -> Expr:
    """The pairs x ⟨2 pairs⟩ of one position turned by its angles, ⟨pairs⟩ each."""
    a, b = moa.psi(0, x), moa.psi(1, x)
    first, second = (moa.reshape([1, *y.shape], y) for y in (a * cos - b * sin, b * cos + a * sin))
    return moa.catenate(first, second)


def turned(x: Expr, tables: Expr, interleaved: bool) -> Expr:
    """x ⟨… seq 2 pairs⟩, or ⟨… seq pairs 2⟩, turned by the tables ⟨seq 2 pairs⟩ of cos and sin."""

    def row(cell: Expr, table: Expr) -> Expr:
        made = rotate(moa.transpose(cell) if interleaved else cell, moa.psi(0, table), moa.psi(1, table))
        return moa.transpose(made) if interleaved else made

    return moa.omega(lambda one, table: moa.omega(row, (2, 2), one, table), (3, 3), x, tables)


def definitions(form: str) -> Definitions:
    """X and Z are ⟨batch seq 2 pairs⟩ or ⟨batch seq pairs 2⟩, tables ⟨seq 2 pairs⟩: cos, then sin of each position."""
    interleaved = FORMS[form]["interleaved"]
    pair = ("pairs", 2) if interleaved else (2, "pairs")
    X, tables = moa.array("X", "batch", "seq", *pair), moa.array("tables", "seq", 2, "pairs")
    Z = Definition("Z", ("b", "t", "p", "r") if interleaved else ("b", "t", "r", "p"), turned(X, tables, interleaved))
    return Definitions(SIZES, (X, tables), (Z,), ("Z",))


def tables(seq, pairs, start=0, base=10000.0):
    """cos and sin of (start + t)·base^(−i/pairs), ⟨seq 2 pairs⟩."""
    angle = np.arange(start, start + seq)[:, None] * base ** (-np.arange(pairs) / max(pairs, 1))
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def inputs(rng, sizes, form):
    b, n, p = (sizes[s] for s in SIZES)
    return {"X": rng.standard_normal((b, n, p, 2) if FORMS[form]["interleaved"] else (b, n, 2, p)), "tables": tables(n, p)}


def apply(xp, x, table, interleaved):
    """The plain formula; x ⟨… seq 2 pairs⟩ or ⟨… seq pairs 2⟩."""
    axis = -1 if interleaved else -2
    a, b, c, s = x.take(0, axis), x.take(1, axis), table[:, 0], table[:, 1]
    return xp.stack([a * c - b * s, b * c + a * s], axis)


def reference(xp, x, form):
    return {"Z": apply(xp, x["X"], x["tables"], FORMS[form]["interleaved"])}


def baseline(torch, x, form):
    """PyTorch eager, as models write it."""
    axis = -1 if FORMS[form]["interleaved"] else -2
    c, s = x["tables"][:, 0], x["tables"][:, 1]

    def run():
        a, b = x["X"].select(axis, 0), x["X"].select(axis, 1)
        return {"Z": torch.stack([a * c - b * s, b * c + a * s], axis)}

    return "mul, sub, add, stack", run


def error_bound(eps, x, out, form):
    """Two products and a sum: docs/validation.md."""
    size = apply(np, abs(x["X"]), abs(x["tables"]) * np.array([1.0, -1.0])[:, None], FORMS[form]["interleaved"])
    other = apply(np, abs(x["X"]), abs(x["tables"]), FORMS[form]["interleaved"])
    return {"Z": eps * np.maximum(abs(size), abs(other))}


def useful_flops(sizes, form):
    return 6 * sizes["batch"] * sizes["seq"] * sizes["pairs"]


def lower_bound(sizes, form, capacity):
    """Elements past any cache: X, Z and the tables once."""
    return 4 * sizes["batch"] * sizes["seq"] * sizes["pairs"] + 2 * sizes["seq"] * sizes["pairs"]
