"""Text in every style: complete, balanced, well-formed; the trace of a kernel, step by step; the notation page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import reduce_definitions, show
from moapipe.algebra.expr import Definition, Definitions
from moapipe.algebra.function import FUNCS, STYLES
from moapipe.algebra.notation import page
from moapipe.algebra.ops import OPS
from moapipe.algebra.render import expr_text, pending_text, scalar_text, show_definitions
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var

A, B, V = moa.array("A", "n", "m"), moa.array("B_2", "m", "n"), moa.array("V", "n")
EVERYTHING = [
    moa.psi(0, A), moa.iota("n"), moa.iota(("n", 2)), moa.reshape(("m", "n"), A), moa.ravel(A), moa.take((1, -1), A), moa.drop("n", V),
    moa.catenate(A, A), moa.reverse(V), moa.rotate(-1, V), moa.transpose(A), A + 1.5, moa.reduce("max", A), moa.scan("+", A),
    moa.outer("<=", V, V), moa.inner("+", "*", A, B), moa.omega(lambda r: moa.omega(lambda s, t: s - t, (0, 0), r, r), 1, A), A * (A + 1) / -A,
]
FORMULAS: list[tuple[Scalar, str, str, str]] = [
    (Op("*", (Op("+", (Var("a"), Num(1))), Var("b"))), "(a + 1) × b", "(a + 1) * b", r"\left(a + 1\right) \times b"),
    (Op("-", (Var("a"), Op("-", (Var("b"), Var("c"))))), "a − (b − c)", "a - (b - c)", r"a - \left(b - c\right)"),
    (Op("-", (Op("-", (Var("a"), Var("b"))), Var("c"))), "a − b − c", "a - b - c", "a - b - c"),
    (Op("/", (Op("+", (Var("a"), Var("b"))), Var("c"))), "(a + b) ÷ c", "(a + b) / c", r"\frac{a + b}{c}"),
    (Op("neg", (Op("+", (Var("a"), Num(2))),)), "−(a + 2)", "-(a + 2)", r"-\left(a + 2\right)"),
    (Num(float("-inf")), "−∞", "-inf", r"-\infty"),
    (Op("exp2", (Op("-", (Ref("S", (Var("i"), Var("k"))), Ref("z", ()))),)), "exp2(⟨i k⟩ψS − z)", "exp2(S[i, k] - z)",
     r"\operatorname{exp2}\left(S_{i,k} - z\right)"),
    (Fold("sum", "p", Num(0), Var("n"), Op("*", (Ref("A", (Var("p"),)), Var("c")))), "+ red[0 ≤ p < n] (⟨p⟩ψA × c)", "sum(0 <= p < n: A[p] * c)",
     r"\sum_{0 \le p < n} A_{p} \times c"),
    (Op("-", (Op("neg", (Fold("sum", "p", Num(0), Var("n"), Ref("A", (Var("p"),))),)), Fold("max", "p", Num(0), Var("n"), Ref("A", (Var("p"),))))),
     "−(+ red[0 ≤ p < n] (⟨p⟩ψA)) − (⌈ red[0 ≤ p < n] (⟨p⟩ψA))", "-sum(0 <= p < n: A[p]) - max(0 <= p < n: A[p])", r"-\left(\sum_{0 \le p < n} A_{p}\right) - \left(\max_{0 \le p < n} A_{p}\right)"),
    (Op("max", (Ref("q_x", (Op("+", (Var("i"), Num(1))),)), Num(0))), "⟨(i + 1)⟩ψq_x ⌈ 0", "max(q_x[i + 1], 0)", r"\max\left(\mathit{q\_x}_{i + 1}, 0\right)"),
]


def test_everything_is_every_operator() -> None:
    assert {n.operator for e in EVERYTHING for n in moa.nodes(e) if isinstance(n, moa.Apply)} == set(OPS)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("e", EVERYTHING, ids=lambda e: expr_text(e, "ascii"))
def test_operators_are_written_in_every_style(e: moa.Expr, style: str) -> None:
    s = expr_text(e, style)
    assert s and "{r}" not in s and "{v}" not in s
    check_form(s, style)


def test_words_in_mathml_keep_their_distance() -> None:
    """MathML trims the blanks of a text: words want spaces of their own."""
    assert "<mspace" in expr_text(moa.reduce("sum", moa.array("A", "n")), "mathml")


def test_iota_counts_to_a_scalar_and_the_odometer_through_a_vector() -> None:
    """ι n has the shape ⟨n⟩, ι ⟨n⟩ the shape ⟨n 1⟩: what is written is what is meant."""
    assert [expr_text(moa.iota("n"), s) for s in STYLES[:3]] == ["ι n", "iota n", r"\iota\, n"]
    assert expr_text(moa.iota("n + 1")) == "ι (n + 1)" and expr_text(moa.iota(["n"])) == "ι ⟨n⟩"


def check_form(s: str, style: str) -> None:
    for opening, closing in ("()", "[]", "⟨⟩"):
        assert s.count(opening) == s.count(closing)
    match style:
        case "latex":
            depth = 0
            for k, c in enumerate(s):
                if c in "{}" and s[k - 1] != "\\":
                    depth += 1 if c == "{" else -1
                assert depth >= 0
            assert depth == 0 and s.isascii()
            assert s.count(r"\left") == s.count(r"\right")
        case "mathml":
            ElementTree.fromstring(f"<math>{s}</math>")
        case "ascii":
            assert s.isascii()


@pytest.mark.parametrize(("e", "moa_text", "ascii_text", "latex_text"), FORMULAS)
def test_formulas(e: Scalar, moa_text: str, ascii_text: str, latex_text: str) -> None:
    assert [scalar_text(e, "moa"), scalar_text(e, "ascii"), scalar_text(e, "latex")] == [moa_text, ascii_text, latex_text]
    check_form(scalar_text(e, "mathml"), "mathml")


@pytest.mark.parametrize("name", FUNCS)
def test_functions_are_written_in_every_style(name: str) -> None:
    for style in STYLES:
        check_form(scalar_text(Op(name, tuple(map(Var, "abc"[: FUNCS[name].arity]))), style), style)


def product() -> Definitions:
    return Definitions(("n", "m"), (A, B), (Definition("C_x", ("i", "j"), moa.inner("+", "*", A, moa.transpose(A), index="p")),), ("C_x",))


@pytest.mark.parametrize("style", STYLES)
def test_kernels_are_written_in_every_style(style: str) -> None:
    dnf, steps = reduce_definitions("product", product())
    for s in (show_definitions("product", product(), style), show(dnf, style)):
        for line in s.splitlines():
            check_form(line, style)
    for step in steps:
        check_form(pending_text(step.before, style), style)
        check_form(pending_text(step.after, style), style)


def test_a_trace_reads_like_a_derivation() -> None:
    dnf, steps = reduce_definitions("product", product())
    assert [(s.definition, s.law, pending_text(s.before), pending_text(s.after)) for s in steps] == [
        ("C_x", "inner", "⟨i j⟩ ψ (A +•× (⟨1 0⟩ ⍉ A))", "+ red[0 ≤ p < m] (⟨i p⟩ψA × (⟨p j⟩ ψ (⟨1 0⟩ ⍉ A)))"),
        ("C_x", "transpose", "⟨p j⟩ ψ (⟨1 0⟩ ⍉ A)", "⟨j p⟩ψA"),
    ]
    assert show(dnf, "moa").splitlines() == [
        "product(n, m): A ⟨n m⟩, B_2 ⟨m n⟩ → C_x", "⟨i j⟩ψC_x ≡ + red[0 ≤ p < m] (⟨i p⟩ψA × ⟨j p⟩ψA)    0 ≤* ⟨i j⟩ <* ⟨n n⟩"]


def test_the_published_worked_examples() -> None:
    """The 1994 compiler's A = B # (⟨1 2⟩ ▽ C), and the correspondence example (2 △ Φ A) × (1 ▽ Φ A) on ρA = ⟨3 5 4⟩."""
    b, c, a = moa.array("B", 2, 4), moa.array("C", 4, 6), moa.array("A", 3, 5, 4)
    joined = Definitions((), (b, c), (Definition("A", ("i", "j"), moa.catenate(b, moa.drop((1, 2), c))),), ("A",))
    assert scalar_text(reduce_definitions("x", joined)[0].normals[0].value) == "select(i < 2, B[i, j], C[i - 1, j + 2])"
    assert [e.value for _, e in reduce_definitions("x", joined)[0].normals[0].axes] == [5, 4]
    flipped = Definitions((), (a,), (Definition("X", ("i", "j", "k"), moa.take(2, moa.reverse(a)) * moa.drop(1, moa.reverse(a))),), ("X",))
    assert scalar_text(reduce_definitions("x", flipped)[0].normals[0].value) == "A[2 - i, j, k] * A[1 - i, j, k]"


def test_the_notation_page_is_up_to_date() -> None:
    """Regenerate: python -m moapipe.algebra.notation > docs/notation.md"""
    assert (Path(__file__).resolve().parents[2] / "docs" / "notation.md").read_text() == page()
