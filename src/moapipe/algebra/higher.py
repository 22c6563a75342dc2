"""In: shapes, indices, names of scalar functions. Out: the rows of OPS that take functions: pointwise, red, scan, •f, f•g, Ω.

A fold is over a monoid (MONOIDS), so the right fold of the MoA definition, f red A = (⟨0⟩ ψ A) f (f red (1 ▽ A)), and the left
fold that loops execute agree, and a fold of nothing is the unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from moapipe.algebra.function import FUNCS, MONOIDS
from moapipe.algebra.index import add, constant
from moapipe.algebra.operator import Array, Cell, Data, Evaluate, Index, Operator, Pull, Shaped, Shapes
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Var
from moapipe.algebra.shape import Shape, equal
from moapipe.algebra.structure import S10, ZERO, axis_shape
from moapipe.errors import AlgebraError


def _pointwise_shape(d: Data, s: Shapes) -> Shaped:
    whole = [x for x in s if x]
    out: Shape = whole[0] if whole else ()
    glyph = FUNCS[d.functions[0]].symbol[0]
    for x in whole[1:]:
        equal(Num(len(out)), Num(len(x)), glyph, out, x).check()
    return out, tuple(equal(p, q, glyph, out, x) for x in whole[1:] for p, q in zip(out, x, strict=True))


def _pointwise_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    return Pull(Op(d.functions[0], tuple(Ref(str(k), i if x else ()) for k, x in enumerate(s))))


def _pointwise_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    return FUNCS[d.functions[0]].meaning(*a)


# ------------------------------------------------------------------ folds


def fold_axis(monoid: str, terms: Array) -> Array:
    """The fold of numpy's `terms` over axis 0, in their own dtype."""
    row = MONOIDS[monoid]
    if len(terms) == 0:
        return np.full(terms.shape[1:], row.unit, np.result_type(terms, np.float32))
    return FUNCS[row.function].meaning.reduce(terms, axis=0)  # type: ignore[attr-defined]


def _reduce_shape(d: Data, s: Shapes) -> Shaped:
    return axis_shape("red")(d, s)[0][1:], ()


def _reduce_law(d: Data, s: Shapes, i: Index, var: str) -> Pull:
    return Pull(Fold(d.functions[0], var, ZERO, s[0][0], Ref("0", (Var(var), *i))))


def _reduce_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    return fold_axis(d.functions[0], a[0])


def _scan_law(d: Data, _: Shapes, i: Index, var: str) -> Pull:
    return Pull(Fold(d.functions[0], var, ZERO, add(i[0], 1), Ref("0", (Var(var), *i[1:]))))


def _scan_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    return FUNCS[MONOIDS[d.functions[0]].function].meaning.accumulate(a[0], axis=0)  # type: ignore[attr-defined]


# ------------------------------------------------------------------ products


def _outer_shape(_: Data, s: Shapes) -> Shaped:
    return s[0] + s[1], ()


def _outer_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    k = len(s[0])
    return Pull(Op(d.functions[0], (Ref("0", i[:k]), Ref("1", i[k:]))))


def _outer_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    return FUNCS[d.functions[0]].meaning(a[0].reshape(a[0].shape + (1,) * a[1].ndim), a[1])


def _inner_shape(_: Data, s: Shapes) -> Shaped:
    if not s[0] or not s[1]:
        raise AlgebraError("the inner product needs an axis on each side, and a scalar has none")
    return s[0][:-1] + s[1][1:], (equal(s[0][-1], s[1][0], "•", s[0], s[1]),)


def _inner_law(d: Data, s: Shapes, i: Index, var: str) -> Pull:
    k = len(s[0]) - 1
    body = Op(d.functions[1], (Ref("0", (*i[:k], Var(var))), Ref("1", (Var(var), *i[k:]))))
    return Pull(Fold(d.functions[0], var, ZERO, s[0][-1], body))


def _inner_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    left = np.moveaxis(a[0], -1, 0)
    left = left.reshape(left.shape + (1,) * (a[1].ndim - 1))
    right = a[1].reshape(a[1].shape[:1] + (1,) * (a[0].ndim - 1) + a[1].shape[1:])
    return fold_axis(d.functions[0], FUNCS[d.functions[1]].meaning(left, right))


# ------------------------------------------------------------------ Ω


def cell_shapes(ranks: Sequence[int], shapes: Shapes) -> tuple[list[Shape], list[Shape]]:
    """(frames, cells) of the arguments of Ω: a cell is the last `rank` axes, the frame what stands before."""
    frames, cells = [], []
    for r, s in zip(ranks, shapes, strict=True):
        if not 0 <= r <= len(s):
            raise AlgebraError(f"Ω asks for cells of rank {r} in an array of rank {len(s)}", hint="a cell's rank is at most its array's")
        frames.append(s[: len(s) - r])
        cells.append(s[len(s) - r:])
    return frames, cells


def _ranks(d: Data) -> tuple[int, ...]:
    return tuple(k for k in map(constant, d.vector) if k is not None)


def _omega_shape(d: Data, s: Shapes) -> Shaped:
    frames, _ = cell_shapes(_ranks(d), s)
    if len(frames) == 1:
        return frames[0] + d.cell, ()
    left, right = frames
    m = min(len(left), len(right))
    u, v = left[: len(left) - m], right[: len(right) - m]
    shared = tuple(equal(p, q, "Ω", s[0], s[1]) for p, q in zip(left[len(u):], right[len(v):], strict=True))
    return u + v + left[len(u):] + d.cell, shared


def _omega_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    frames, _cells = cell_shapes(_ranks(d), s)
    if len(frames) == 1:
        n = len(frames[0])
        return Pull(Ref("cell", i[n:]), (i[:n],))
    m = min(map(len, frames))
    u, v = len(frames[0]) - m, len(frames[1]) - m
    shared = i[u + v: u + v + m]
    return Pull(Ref("cell", i[u + v + m:]), (i[:u] + shared, i[u: u + v] + shared))


def _omega_meaning(d: Data, a: list[Array], at: Evaluate, cell: Cell) -> Array:
    frames = [x.shape[: x.ndim - r] for x, r in zip(a, _ranks(d), strict=True)]
    m = min(map(len, frames)) if len(frames) == 2 else 0
    u, x = frames[0][: len(frames[0]) - m], frames[0][len(frames[0]) - m:]
    v = frames[1][: len(frames[1]) - m] if len(frames) == 2 else ()
    parts = []
    for t in product(*map(range, u + v + x)):
        i, j, k = t[: len(u)], t[len(u): len(u) + len(v)], t[len(u) + len(v):]
        parts.append(cell(*(array[p + k] for array, p in zip(a, (i, j), strict=False))))
    shape = u + v + x + tuple(at(e) for e in d.cell)
    return np.array(parts).reshape(shape) if parts else np.zeros(shape, np.result_type(*a))


HIGHER = (
    Operator("pointwise", (1, 2, 3), ("", "", "", ""), _pointwise_shape, _pointwise_law, _pointwise_meaning,
             "i ψ (A f B) = (i ψ A) f (i ψ B); a scalar extends to every index", S10),
    Operator("reduce", (1,), ("{f} red {r}", "{f} red {r}", r"{f}\,\mathrm{{red}}\, {r}", '<mrow>{f}<mspace width="0.3em"/><mi>red</mi><mspace width="0.3em"/>{r}</mrow>'),
             _reduce_shape, _reduce_law, _reduce_meaning, "i ψ (f red A) = fold f over 0 ≤ l < (ρA)[0] of (⟨l⟩ ++ i) ψ A", S10, True),
    Operator("scan", (1,), ("{f} scan {r}", "{f} scan {r}", r"{f}\,\mathrm{{scan}}\, {r}", '<mrow>{f}<mspace width="0.3em"/><mi>scan</mi><mspace width="0.3em"/>{r}</mrow>'),
             axis_shape("scan"), _scan_law, _scan_meaning, "(⟨i⟩ ++ j) ψ (f scan A) = fold f over 0 ≤ l ≤ i of (⟨l⟩ ++ j) ψ A", S10, True),
    Operator("outer", (2,), ("{l} •{f} {r}", "{l} outer[{f}] {r}", r"{l} \mathbin{{\bullet_{{{f}}}}} {r}", "<mrow>{l}<mo>•</mo>{f}{r}</mrow>"),
             _outer_shape, _outer_law, _outer_meaning, "(i ++ j) ψ (A •f B) = (i ψ A) f (j ψ B)", S10),
    Operator("inner", (2,), ("{l} {f}•{g} {r}", "{l} {f}.{g} {r}", r"{l} \mathbin{{{f} \bullet {g}}} {r}", "<mrow>{l}<mrow>{f}<mo>•</mo>{g}</mrow>{r}</mrow>"),
             _inner_shape, _inner_law, _inner_meaning,
             "(i ++ j) ψ (A f•g B) = fold f over l of ((i ++ ⟨l⟩) ψ A) g ((⟨l⟩ ++ j) ψ B)", S10, True),
    Operator("omega", (1, 2), ("{l} {b}Ω{v} {r}", "{l} {b} omega {v} {r}", r"{l}{b}\,\Omega_{{{v}}}\, {r}", "<mrow>{l}{b}<msub><mo>Ω</mo>{v}</msub>{r}</mrow>"),
             _omega_shape, _omega_law, _omega_meaning,
             "(i ++ j ++ k ++ c) ψ (A f Ω⟨σ τ⟩ B) = c ψ (((i ++ k) ψ A) f ((j ++ k) ψ B)); (i ++ c) ψ (f Ω⟨σ⟩ A) = c ψ (f (i ψ A))", S10),
)
