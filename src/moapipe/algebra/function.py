"""In: nothing. Out: FUNCS, one row a scalar function, and MONOIDS, one row a function that may fold.

A row says how many arguments a function has, what it means (numpy), where it is defined, and how each style writes it.
Templates: {l} and {r} are a left and a right operand, in brackets when they bind weaker; {0} {1} {2} are bare arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np

STYLES = ("moa", "ascii", "latex", "mathml")
CALL = 9


@dataclass(frozen=True, slots=True)
class Func:
    """A scalar function.

    `level` is how tightly its written form binds (9: it brings its own brackets). `domain` is the closed interval of every
    argument on which it is a real number. `symbol` is what stands in MoA's higher operators, as `+` in `+ red`. `adjoint` says
    for each argument what reaches it of the cotangent t of the value, in the arguments a, b, c and the value v; nothing where
    the text is empty. Every text is linear in t.
    """

    name: str
    arity: int
    meaning: Callable[..., Any]
    symbol: tuple[str, str, str, str]
    template: tuple[str, str, str, str]
    level: int
    domain: tuple[float, float] = (-inf, inf)
    adjoint: tuple[str, ...] = ()

    @property
    def glyph(self) -> str:
        return self.template[0]

    @property
    def ascii(self) -> str:
        return self.template[1]

    @property
    def latex(self) -> str:
        return self.template[2]


@dataclass(frozen=True, slots=True)
class Monoid:
    """A fold: the function, its unit (the value of an empty fold), and what a reordering may use. All are associative.

    `adjoint` is what reaches the term x of the cotangent t of the fold v; `others` is the product of the other terms, `ties` how
    many terms equal v.
    """

    name: str
    function: str
    unit: float
    commutative: bool
    latex: str
    adjoint: str


def sigmoid(u: Any) -> Any:
    """σ(u) = 1/(1+e^−u) through e = exp(−|u|) ≤ 1, so that nothing overflows: 1/(1+e) for u ≥ 0, else e/(1+e)."""
    e = np.exp(-np.abs(u))
    return np.where(np.greater_equal(u, 0), 1 / (1 + e), e / (1 + e))


def escape(s: str) -> str:
    """Text inside MathML."""
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _literal(s: str) -> str:
    """Text that str.format leaves alone."""
    return s.replace("{", "{{").replace("}", "}}")


def _infix(name: str, meaning: Callable[..., Any], level: int, glyph: str = "", latex: str = "") -> Func:
    g, x = glyph or name, latex or glyph or name
    template = (f"{{l}} {g} {{r}}", f"{{l}} {name} {{r}}", f"{{l}} {_literal(x)} {{r}}", f"<mrow>{{l}}<mo>{escape(g)}</mo>{{r}}</mrow>")
    return Func(name, 2, meaning, (g, name, x, f"<mo>{escape(g)}</mo>"), template, level)


def _call(name: str, arity: int, meaning: Callable[..., Any], latex: str, domain: tuple[float, float] = (-inf, inf)) -> Func:
    args = ", ".join(f"{{{i}}}" for i in range(arity))
    math = "<mo>,</mo>".join(f"{{{i}}}" for i in range(arity))
    plain = f"{name}({args})"
    template = (plain, plain, f"{_literal(latex)}\\left({args}\\right)", f"<mrow><mi>{name}</mi><mo>(</mo>{math}<mo>)</mo></mrow>")
    return Func(name, arity, meaning, (name, name, latex, f"<mi>{name}</mi>"), template, CALL, domain)


def _special(name: str, arity: int, meaning: Callable[..., Any], symbol: tuple[str, str, str, str], template: tuple[str, str, str, str],
             level: int = CALL, domain: tuple[float, float] = (-inf, inf)) -> Func:
    return Func(name, arity, meaning, symbol, template, level, domain)


_CASES = (r"\begin{{cases}} {1} & \text{{if }} {0} \\ {2} & \text{{otherwise}} \end{{cases}}",
          "<mrow><mo>{{</mo><mtable><mtr><mtd>{1}</mtd><mtd><mtext>if </mtext>{0}</mtd></mtr>"
          "<mtr><mtd>{2}</mtd><mtd><mtext>otherwise</mtext></mtd></mtr></mtable></mrow>")

_ROWS = (
    _infix("+", np.add, 5),
    _infix("-", np.subtract, 5, "−", "-"),
    _infix("*", np.multiply, 6, "×", r"\times"),
    _special("/", 2, np.true_divide, ("÷", "/", r"\div", "<mo>÷</mo>"),
             ("{l} ÷ {r}", "{l} / {r}", r"\frac{{{0}}}{{{1}}}", "<mfrac><mrow>{0}</mrow><mrow>{1}</mrow></mfrac>"), 6),
    _special("floor", 1, np.floor, ("⌊", "floor", r"\lfloor", "<mo>⌊</mo>"),
             ("⌊{r}", "floor({0})", r"\left\lfloor {0} \right\rfloor", "<mrow><mo>⌊</mo>{0}<mo>⌋</mo></mrow>"), 7),
    _infix("//", np.floor_divide, 6, "⌊÷⌋", r"\mathbin{/\!/}"),
    _infix("%", np.mod, 6, "mod", r"\bmod"),
    _special("neg", 1, np.negative, ("−", "neg", "-", "<mo>−</mo>"), ("−{r}", "-{r}", "-{r}", "<mrow><mo>−</mo>{r}</mrow>"), 7),
    _special("min", 2, np.minimum, ("⌊", "min", r"\lfloor", "<mo>⌊</mo>"),
             ("{l} ⌊ {r}", "min({0}, {1})", r"\min\left({0}, {1}\right)", "<mrow><mi>min</mi><mo>(</mo>{0}<mo>,</mo>{1}<mo>)</mo></mrow>"), 4),
    _special("max", 2, np.maximum, ("⌈", "max", r"\lceil", "<mo>⌈</mo>"),
             ("{l} ⌈ {r}", "max({0}, {1})", r"\max\left({0}, {1}\right)", "<mrow><mi>max</mi><mo>(</mo>{0}<mo>,</mo>{1}<mo>)</mo></mrow>"), 4),
    _special("abs", 1, np.abs, ("|", "abs", "|", "<mo>|</mo>"),
             ("|{0}|", "abs({0})", r"\left|{0}\right|", "<mrow><mo>|</mo>{0}<mo>|</mo></mrow>")),
    _call("exp", 1, np.exp, r"\exp"),
    _call("exp2", 1, np.exp2, r"\operatorname{exp2}"),
    _call("log", 1, np.log, r"\ln", (0.0, inf)),
    _call("log2", 1, np.log2, r"\log_2", (0.0, inf)),
    _special("sqrt", 1, np.sqrt, ("√", "sqrt", r"\sqrt{}", "<mo>√</mo>"),
             ("√({0})", "sqrt({0})", r"\sqrt{{{0}}}", "<msqrt>{0}</msqrt>"), CALL, (0.0, inf)),
    _special("reciprocal", 1, lambda u: np.true_divide(1, u), ("÷", "reciprocal", r"\div", "<mo>÷</mo>"),
             ("1 ÷ {r}", "1 / {r}", r"\frac{{1}}{{{0}}}", "<mfrac><mn>1</mn><mrow>{0}</mrow></mfrac>"), 6),
    _call("sigmoid", 1, sigmoid, r"\sigma"),
    _special("select", 3, np.where, ("select", "select", r"\mathrm{select}", "<mi>select</mi>"),
             ("select({0}, {1}, {2})", "select({0}, {1}, {2})", *_CASES)),
    _infix("<", np.less, 3),
    _infix("<=", np.less_equal, 3, "≤", r"\le"),
    _infix("==", np.equal, 3, "=", "="),
    _infix("and", np.logical_and, 2, "∧", r"\land"),
    _infix("or", np.logical_or, 1, "∨", r"\lor"),
    _special("not", 1, np.logical_not, ("¬", "not", r"\lnot", "<mo>¬</mo>"), ("¬{r}", "not {r}", r"\lnot {r}", "<mrow><mo>¬</mo>{r}</mrow>"), 7),
)

ADJOINTS: dict[str, tuple[str, ...]] = {
    "+": ("t", "t"), "-": ("t", "-t"), "*": ("t * b", "t * a"), "/": ("t / b", "-(t * v) / b"), "%": ("t", "-(t * (a // b))"), "neg": ("-t",),
    "min": ("select(a == b, 0.5 * t, select(a < b, t, 0))", "select(a == b, 0.5 * t, select(a < b, 0, t))"),
    "max": ("select(a == b, 0.5 * t, select(a < b, 0, t))", "select(a == b, 0.5 * t, select(a < b, t, 0))"),
    "abs": ("select(a == 0, 0, select(a < 0, -t, t))",), "exp": ("t * v",), "exp2": (f"{log(2)!r} * t * v",), "log": ("t / a",),
    "log2": (f"t / ({log(2)!r} * a)",), "sqrt": ("0.5 * t / v",), "reciprocal": ("-(t * v * v)",), "sigmoid": ("t * v * (1 - v)",),
    "select": ("", "select(a, t, 0)", "select(a, 0, t)"),
}
"""Functions that are not here are constant almost everywhere: floors and comparisons pass nothing."""

FUNCS: dict[str, Func] = {f.name: replace(f, adjoint=ADJOINTS.get(f.name, ("",) * f.arity)) for f in _ROWS}

MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", "+", 0.0, True, r"\sum", "t"),
        Monoid("product", "*", 1.0, True, r"\prod", "t * others"),
        Monoid("max", "max", -inf, True, r"\max", "select(x == v, t / ties, 0)"),
        Monoid("min", "min", inf, True, r"\min", "select(x == v, t / ties, 0)"),
    )
}
