"""In: the tables OPS, FUNCS, MONOIDS, LAWS. Out: docs/notation.md, what every sign means (python -m moapipe.algebra.notation)."""

from __future__ import annotations

from moapipe.algebra.adjoint import RULES as ADJOINT
from moapipe.algebra.function import FUNCS, MONOIDS
from moapipe.algebra.laws import LAWS, ONLINE_SOFTMAX
from moapipe.algebra.ops import OPS
from moapipe.algebra.rewrite import RULES

_OPENING = """# Notation

*Written by `python -m moapipe.algebra.notation` from the tables OPS, FUNCS, MONOIDS and LAWS; change the row, not the page.*

An array `A` has a shape vector `ρA`, a rank `δA = τ(ρA)` and `τA = π(ρA)` elements (π: product, 1 for the empty vector).
A scalar has the empty shape `⟨⟩ = Θ`. Indices start at 0; `i` is a full index of `A` where `0 ≤* i <* ρA` (the star: in every
component). `⟨i⟩ ψ A` is the element or subarray at an index; `++` joins vectors. A definition `C ≡ …` is reduced to one scalar
at a symbolic full index `i`: `i ψ C ≡ …` with nothing left but elements of arrays, scalar functions and folds. That is the
denotational normal form. Reduction is directed by the outermost operator, so each row below is one rewriting rule.

`γ(i; s)` is the offset of index `i` in a row-major array of shape `s`, by Horner's rule; `γ'(m; s)` its inverse.

In text the three styles say the same: MoA glyphs `⟨i p⟩ψA`, ASCII `A[i, p]`, LaTeX `A_{i,p}`. A fold over a monoid with
`lo ≤ l < hi` is `+ red[lo ≤ l < hi] (…)`, in ASCII `sum(lo <= l < hi: …)`. Inside Ω's braces `⍺` is the left cell, `⍵` the right
or only one; a prime marks the cells of an enclosing Ω.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_OPENING, "\n## Operators\n\n| name | MoA | ASCII | LaTeX | ψ-law | source |\n|---|---|---|---|---|---|\n"]
    fields = {"v": "v", "f": "f", "g": "g", "l": "A", "r": "A", "b": "{f}"}
    for o in OPS.values():
        both = fields | ({"r": "B"} if o.arity == (2,) else {})
        if o.name == "omega":
            both = {**fields, "l": "", "v": "⟨σ⟩"}
        if o.name == "pointwise":
            parts.append(_row(o.name, "A f B", "A f B", "A f B", o.law, o.source))
        else:
            parts.append(_row(o.name, *(f"`{t.format(**both).strip()}`" for t in o.template[:3]), o.law, o.source))
    parts += [_row(name, "", "", "", law, "") for name, law in RULES.items()]
    parts.append("\n## Scalar functions\n\n| name | MoA | ASCII | LaTeX | domain | adjoint |\n|---|---|---|---|---|---|\n")
    for f in FUNCS.values():
        args = "abc"[: f.arity]
        domain = "" if f.domain[0] < 0 else f"a ≥ {f.domain[0]:g}"
        parts.append(_row(f"`{f.name}`", *(f"`{t.format(*args, l=args[0], r=args[-1])}`" for t in f.template[:3]), domain, _adjoint(f.adjoint)))
    parts.append("\n`//` rounds down and `%` has the sign of its right side. `sigmoid` goes through e^−|a|. `select(c, a, b)` evaluates one branch only.\n"
                 "The adjoint says what reaches a, b, c of the cotangent t of the value v; — is nothing.\n"
                 "\n## Monoids: what may fold\n\n| name | function | unit | adjoint of a term x |\n|---|---|---|---|\n")
    parts += [_row(m.name, f"`{m.function}`", f"{m.unit:g}".replace("inf", "∞").replace("-", "−"), f"`{m.adjoint}`") for m in MONOIDS.values()]
    parts.append("\nOthers are refused: − and ÷ are not associative, so their right fold (the MoA definition) is no fold of a loop.\n"
                 "\n## Laws that a variant may name\n\n| name | identity | source |\n|---|---|---|\n")
    parts += [_row(law.name, law.text, law.source) for law in LAWS.values()]
    parts.append(_row(ONLINE_SOFTMAX.name + " (the lift `online`)", ONLINE_SOFTMAX.text, ONLINE_SOFTMAX.source))
    parts.append("\n## Laws of adjoints\n\nReverse mode over the normal form (`algebra/tape.py`); dA is the cotangent of A.\n\n| name | law |\n|---|---|\n")
    parts += [_row(name, law) for name, law in ADJOINT.items()]
    return "".join(parts)


def _adjoint(rows: tuple[str, ...]) -> str:
    return ", ".join(f"`{r}`" if r else "—" for r in rows)


def _row(*cells: str) -> str:
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |\n"


if __name__ == "__main__":
    print(page(), end="")
