"""In: shapes and indices. Out: the rows of OPS that move elements about: ψ ι ρ̂ rav △ ▽ # Φ θ ⍉. None of them computes.

Each row's three functions stand above it: shape rule, ψ-law, meaning by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moapipe.algebra.index import add, constant, gamma_inverse, gamma_row, multiply, simplify, subtract
from moapipe.algebra.operator import Array, Cell, Data, Evaluate, Index, Operator, Pull, Shaped, Shapes
from moapipe.algebra.scalar import Num, Op, Ref, Scalar
from moapipe.algebra.shape import Constraint, Shape, below, equal, nonnegative, rank, same, within
from moapipe.errors import AlgebraError

S10, S11 = "Mullin & Thibault 1994, CSC-94-05", "Svenningsson & Mullin 2014"
ZERO = Num(0)


# ------------------------------------------------------------------ ψ, ι


def _psi_shape(d: Data, s: Shapes) -> Shaped:
    rank("ψ", d.vector, s[0])
    pairs = zip(d.vector, s[0], strict=False)
    limits: tuple[Constraint, ...] = tuple(c for i, e in pairs for c in (nonnegative(i, "ψ"), below(i, e, "ψ", d.vector, s[0])))
    return s[0][len(d.vector):], limits


def _psi_law(d: Data, _: Shapes, i: Index, __: str) -> Pull:
    return Pull(Ref("0", (*d.vector, *i)))


def _psi_meaning(d: Data, a: list[Array], at: Evaluate, _: Cell) -> Array:
    return a[0][tuple(at(v) for v in d.vector)]


def _iota_shape(d: Data, _: Shapes) -> Shaped:
    return d.vector, (nonnegative(d.vector[0], "ι"),)


def _iota_law(_: Data, __: Shapes, i: Index, ___: str) -> Pull:
    return Pull(i[0])


def _iota_meaning(d: Data, _: list[Array], at: Evaluate, __: Cell) -> Array:
    return np.arange(at(d.vector[0]))


def _odometer_shape(d: Data, _: Shapes) -> Shaped:
    return (*d.vector, Num(len(d.vector))), tuple(nonnegative(v, "ι") for v in d.vector)


def _odometer_law(_: Data, __: Shapes, i: Index, ___: str) -> Pull:
    *digits, component = i
    if (k := constant(component)) is not None and digits:
        return Pull(digits[k])
    value: Scalar = digits[-1] if digits else ZERO
    for n in reversed(range(len(digits) - 1)):
        value = Op("select", (Op("==", (component, Num(n))), digits[n], value))
    return Pull(value)


def _odometer_meaning(d: Data, _: list[Array], at: Evaluate, __: Cell) -> Array:
    return np.moveaxis(np.indices(tuple(at(v) for v in d.vector), dtype=np.int64), 0, -1)


# ------------------------------------------------------------------ ρ̂, rav


def count(s: Sequence[Scalar]) -> Scalar:
    """τ: the number of elements of a shape."""
    out: Scalar = Num(1)
    for e in s:
        out = multiply(out, e)
    return out


def refold(i: Index, new: Sequence[Scalar], old: Sequence[Scalar]) -> Index:
    """γ'(γ(i; new); old), with equal leading and trailing axes passed through unchanged."""
    k = 0
    while k < min(len(new), len(old)) and same(new[k], old[k]):
        k += 1
    t = 0
    while t < min(len(new), len(old)) - k and same(new[len(new) - 1 - t], old[len(old) - 1 - t]):
        t += 1
    middle = gamma_inverse(gamma_row(i[k: len(new) - t], new[k: len(new) - t]), old[k: len(old) - t])
    return (*i[:k], *middle, *i[len(new) - t:])


def _reshape_shape(d: Data, s: Shapes) -> Shaped:
    return d.vector, (*(nonnegative(v, "ρ̂") for v in d.vector), equal(count(d.vector), count(s[0]), "ρ̂", d.vector, s[0]))


def _reshape_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    return Pull(Ref("0", refold(i, d.vector, s[0])))


def _reshape_meaning(d: Data, a: list[Array], at: Evaluate, _: Cell) -> Array:
    return np.reshape(a[0], tuple(at(v) for v in d.vector))


def _ravel_shape(_: Data, s: Shapes) -> Shaped:
    return (count(s[0]),), ()


def _ravel_law(_: Data, s: Shapes, i: Index, __: str) -> Pull:
    return Pull(Ref("0", refold(i, (count(s[0]),), s[0])))


def _ravel_meaning(_: Data, a: list[Array], __: Evaluate, ___: Cell) -> Array:
    return np.ravel(a[0])


# ------------------------------------------------------------------ △, ▽


def _positive(u: Scalar, glyph: str) -> bool:
    """The known sign of an amount; an amount that may have either sign is refused."""
    if nonnegative(u, glyph).holds():
        return True
    if nonnegative(multiply(-1, u), glyph).holds():
        return False
    raise AlgebraError(f"the sign of {glyph}'s amount is not known for all sizes", hint="sizes are at least 0; take or drop by an amount of one sign")


def _magnitudes(d: Data, s: Shapes, glyph: str) -> tuple[Shape, tuple[Constraint, ...]]:
    rank(glyph, d.vector, s[0])
    sizes = tuple(simplify(u) if _positive(u, glyph) else multiply(-1, u) for u in d.vector)
    return sizes, tuple(within(u, e, glyph, d.vector, s[0]) for u, e in zip(sizes, s[0], strict=False))


def _shifted(i: Index, shift: Sequence[Scalar]) -> Index:
    return (*(add(a, b) for a, b in zip(i, shift, strict=False)), *i[len(shift):])


def _take_shape(d: Data, s: Shapes) -> Shaped:
    sizes, limits = _magnitudes(d, s, "△")
    return (*sizes, *s[0][len(sizes):]), limits


def _take_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    shift = [ZERO if _positive(u, "△") else add(e, u) for u, e in zip(d.vector, s[0], strict=False)]
    return Pull(Ref("0", _shifted(i, shift)))


def _take_meaning(d: Data, a: list[Array], at: Evaluate, _: Cell) -> Array:
    amounts = [(at(u), n) for u, n in zip(d.vector, a[0].shape, strict=False)]
    return a[0][tuple(slice(0, u) if u >= 0 else slice(n + u, n) for u, n in amounts)]


def _drop_shape(d: Data, s: Shapes) -> Shaped:
    sizes, limits = _magnitudes(d, s, "▽")
    return (*(subtract(e, u) for u, e in zip(sizes, s[0], strict=False)), *s[0][len(sizes):]), limits


def _drop_law(d: Data, _: Shapes, i: Index, __: str) -> Pull:
    return Pull(Ref("0", _shifted(i, [u if _positive(u, "▽") else ZERO for u in d.vector])))


def _drop_meaning(d: Data, a: list[Array], at: Evaluate, _: Cell) -> Array:
    amounts = [(at(u), n) for u, n in zip(d.vector, a[0].shape, strict=False)]
    return a[0][tuple(slice(u, n) if u >= 0 else slice(0, n + u) for u, n in amounts)]


# ------------------------------------------------------------------ #, Φ, θ, ⍉


def _catenate_shape(_: Data, s: Shapes) -> Shaped:
    left, right = s
    if not left or len(left) != len(right):
        equal(Num(len(left)), Num(len(right)), "#", left, right).check()
        raise AlgebraError("# joins arrays along axis 0, and a scalar has none", hint="reshape the scalar to ⟨1⟩ first")
    return (add(left[0], right[0]), *left[1:]), tuple(equal(x, y, "#", left, right) for x, y in zip(left[1:], right[1:], strict=True))


def _catenate_law(_: Data, s: Shapes, i: Index, __: str) -> Pull:
    n = s[0][0]
    return Pull(Op("select", (Op("<", (i[0], n)), Ref("0", i), Ref("1", (subtract(i[0], n), *i[1:])))))


def _catenate_meaning(_: Data, a: list[Array], __: Evaluate, ___: Cell) -> Array:
    return np.concatenate(a, axis=0)


def axis_shape(glyph: str) -> Callable[[Data, Shapes], Shaped]:
    """The shape rule of an operator that needs an axis 0 and keeps the shape."""

    def rule(_: Data, s: Shapes) -> Shaped:
        if not s[0]:
            raise AlgebraError(f"{glyph} needs an axis 0, and a scalar has none")
        return s[0], ()

    return rule


def _reverse_law(_: Data, s: Shapes, i: Index, __: str) -> Pull:
    return Pull(Ref("0", (subtract(subtract(s[0][0], 1), i[0]), *i[1:])))


def _reverse_meaning(_: Data, a: list[Array], __: Evaluate, ___: Cell) -> Array:
    return np.flip(a[0], axis=0)


def _rotate_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    return Pull(Ref("0", (simplify(Op("%", (add(i[0], d.vector[0]), s[0][0]))), *i[1:])))


def _rotate_meaning(d: Data, a: list[Array], at: Evaluate, _: Cell) -> Array:
    return np.roll(a[0], -at(d.vector[0]), axis=0)


def _permutation(d: Data, n: int) -> tuple[int, ...]:
    v = tuple(k for k in map(constant, d.vector) if k is not None)
    if sorted(v) != list(range(n)):
        raise AlgebraError(f"⍉ needs a permutation of 0..{n - 1}, not {v}", hint="v[k] says which axis of the result axis k becomes")
    return v


def grade_up(v: Sequence[int]) -> tuple[int, ...]:
    """gu v, the permutation that sorts v."""
    return tuple(sorted(range(len(v)), key=lambda k: v[k]))


def _transpose_shape(d: Data, s: Shapes) -> Shaped:
    return tuple(s[0][k] for k in grade_up(_permutation(d, len(s[0])))), ()


def _transpose_law(d: Data, s: Shapes, i: Index, _: str) -> Pull:
    return Pull(Ref("0", tuple(i[k] for k in _permutation(d, len(s[0])))))


def _transpose_meaning(d: Data, a: list[Array], _: Evaluate, __: Cell) -> Array:
    return np.transpose(a[0], np.argsort(_permutation(d, a[0].ndim)))


def _dyadic(glyph: str, word: str, latex: str) -> tuple[str, str, str, str]:
    return (f"{{v}} {glyph} {{r}}", f"{{v}} {word} {{r}}", f"{{v}} \\mathbin{{{{{latex}}}}} {{r}}", f"<mrow>{{v}}<mo>{glyph}</mo>{{r}}</mrow>")


def _monadic(glyph: str, word: str, latex: str) -> tuple[str, str, str, str]:
    return (f"{glyph} {{r}}", f"{word} {{r}}", f"{latex}\\, {{r}}", f"<mrow><mo>{glyph}</mo>{{r}}</mrow>")


STRUCTURE = (
    Operator("psi", (1,), _dyadic("ψ", "psi", r"\psi"), _psi_shape, _psi_law, _psi_meaning, "i ψ (p ψ A) = (p ++ i) ψ A;  Θ ψ A = A", S10),
    Operator("iota", (0,), ("ι {v}", "iota {v}", r"\iota\, {v}", "<mrow><mo>ι</mo>{v}</mrow>"), _iota_shape, _iota_law, _iota_meaning,
             "⟨i⟩ ψ (ι n) = i", S10),
    Operator("odometer", (0,), ("ι {v}", "iota {v}", r"\iota\, {v}", "<mrow><mo>ι</mo>{v}</mrow>"), _odometer_shape, _odometer_law,
             _odometer_meaning, "i ψ (ι v) = i for a full index i into v, ρ(ι v) = v ++ ⟨τv⟩", S10),
    Operator("reshape", (1,), _dyadic("ρ̂", "reshape", r"\hat\rho"), _reshape_shape, _reshape_law, _reshape_meaning,
             "i ψ (s ρ̂ A) = γ'(γ(i; s); ρA) ψ A, πs = τA", S10),
    Operator("ravel", (1,), _monadic("rav", "ravel", r"\mathrm{{rav}}"), _ravel_shape, _ravel_law, _ravel_meaning,
             "⟨m⟩ ψ (rav A) = γ'(m; ρA) ψ A", S10),
    Operator("take", (1,), _dyadic("△", "take", r"\triangle"), _take_shape, _take_law, _take_meaning,
             "i ψ (u △ A) = (i + j) ψ A, j = 0 where u ≥ 0, else ρA + u", S10),
    Operator("drop", (1,), _dyadic("▽", "drop", r"\triangledown"), _drop_shape, _drop_law, _drop_meaning,
             "i ψ (u ▽ A) = (i + j) ψ A, j = u where u > 0, else 0", S10),
    Operator("catenate", (2,), ("{l} # {r}", "{l} cat {r}", r"{l} \mathbin{{\#}} {r}", "<mrow>{l}<mo>#</mo>{r}</mrow>"), _catenate_shape, _catenate_law,
             _catenate_meaning, "(⟨i⟩ ++ j) ψ (A # B) = (⟨i⟩ ++ j) ψ A where i < (ρA)[0], else (⟨i − (ρA)[0]⟩ ++ j) ψ B", S10),
    Operator("reverse", (1,), _monadic("Φ", "reverse", r"\Phi"), axis_shape("Φ"), _reverse_law, _reverse_meaning,
             "(⟨i⟩ ++ j) ψ (Φ A) = (⟨(ρA)[0] − 1 − i⟩ ++ j) ψ A", S11),
    Operator("rotate", (1,), _dyadic("θ", "rotate", r"\theta"), axis_shape("θ"), _rotate_law, _rotate_meaning,
             "(⟨i⟩ ++ j) ψ (σ θ A) = (⟨(i + σ) mod (ρA)[0]⟩ ++ j) ψ A", S10),
    Operator("transpose", (1,), _dyadic("⍉", "transpose", r"\oslash"), _transpose_shape, _transpose_law, _transpose_meaning,
             "i ψ (v ⍉ A) = j ψ A with j[k] = i[v[k]];  ρ(v ⍉ A) = (ρA)[gu v]", S10),
)
