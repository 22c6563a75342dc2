"""In: index expressions. Out: exact formulas in the sizes: rational polynomials over a few kinds of atoms.

An atom is a size or loop variable, ⌊f/g⌋ or ⌈f/g⌉, f mod g, a minimum or maximum, a written sum, or Iverson's bracket of a
condition. Atoms are equal when their text is; text is Python that sympy reads too. Variables are non-negative integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

from moapipe.algebra.index import affine, expression
from moapipe.algebra.index import evaluate as whole
from moapipe.algebra.scalar import Num, Op, Scalar, Var, shared, text, variables
from moapipe.errors import LiftError

Rational = int | Fraction
Monomial = tuple["Atom", ...]
Memo = dict[tuple[str, tuple[int, ...]], Rational]


@dataclass(frozen=True, eq=False)
class Atom(ABC):
    """One factor of a monomial; compares by its text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    @abstractmethod
    def text(self) -> str:
        """Canonical text, which it is compared by."""

    @property
    @abstractmethod
    def free(self) -> frozenset[str]:
        """Names of the free variables."""

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(self.free))

    @cached_property
    def never_negative(self) -> bool:
        return True

    def value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        """The number that it is; each value of its free variables is worked out once."""
        key = (self.text, tuple([at[v] for v in self._names]))
        if key not in memo:
            memo[key] = self._value(at, memo)
        return memo[key]

    @abstractmethod
    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        """The number, worked out."""


@dataclass(frozen=True, eq=False)
class Size(Atom):
    """A symbolic size or a loop variable."""

    name: str

    @cached_property
    def text(self) -> str:
        return self.name

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset((self.name,))

    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        return at[self.name]


@dataclass(frozen=True, eq=False)
class Quotient(Atom):
    """⌊of/by⌋ (`floor`), ⌈of/by⌉ (`ceiling`) or of mod by (`Mod`)."""

    kind: Literal["floor", "ceiling", "Mod"]
    of: Formula
    by: Formula

    @cached_property
    def text(self) -> str:
        if self.kind == "Mod":
            return f"Mod({self.of}, {self.by})"
        a, b = (str(x) if len(x.terms) <= 1 else f"({x})" for x in (self.of, self.by))
        return f"{self.kind}({a}/{b})"

    @cached_property
    def free(self) -> frozenset[str]:
        return self.of.free | self.by.free

    @cached_property
    def never_negative(self) -> bool:
        return self.kind == "Mod" or (self.of.never_negative and self.by.never_negative)

    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        a, b = self.of.value(at, memo), self.by.value(at, memo)
        return a % b if self.kind == "Mod" else a // b if self.kind == "floor" else -(-a // b)


@dataclass(frozen=True, eq=False)
class Extreme(Atom):
    """The least (`Min`) or the largest (`Max`) of several formulas."""

    kind: Literal["Min", "Max"]
    args: tuple[Formula, ...]

    @cached_property
    def text(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.args))})"

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset().union(*(a.free for a in self.args))

    @cached_property
    def never_negative(self) -> bool:
        return (all if self.kind == "Min" else any)(a.never_negative for a in self.args)

    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        return (min if self.kind == "Min" else max)(a.value(at, memo) for a in self.args)


@dataclass(frozen=True, eq=False)
class Series(Atom):
    """Σ body for lo <= var < hi, written: nothing is summed where hi <= lo."""

    body: Formula
    var: str
    lo: Formula
    hi: Formula

    @cached_property
    def text(self) -> str:
        body, limits = self._limits()
        return f"Sum({body}, {', '.join(limits)})"

    def _limits(self) -> tuple[str, list[str]]:
        """Sums straight inside of sums are one, innermost limits first."""
        own = f"({self.var}, {self.lo}, {self.hi - ONE})"
        inside = self._only()
        if inside is None:
            return str(self.body), [own]
        body, limits = inside._limits()
        return body, [*limits, own]

    def _only(self) -> Series | None:
        (monomial, factor), *more = self.body.terms.items()
        alone = not more and factor == 1 and len(monomial) == 1
        return monomial[0] if alone and isinstance(monomial[0], Series) else None

    @cached_property
    def free(self) -> frozenset[str]:
        return (self.body.free - {self.var}) | self.lo.free | self.hi.free

    @cached_property
    def never_negative(self) -> bool:
        return self.body.never_negative

    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        span = range(int(self.lo.value(at, memo)), int(self.hi.value(at, memo)))
        return sum((self.body.value({**at, self.var: k}, memo) for k in span), 0)


@dataclass(frozen=True, eq=False)
class Bracket(Atom):
    """Iverson's bracket: 1 where the condition holds, else 0."""

    condition: Scalar

    @cached_property
    def text(self) -> str:
        return f"Piecewise((1, {_said(self.condition)}), (0, True))"

    @cached_property
    def free(self) -> frozenset[str]:
        return variables(self.condition)

    def _value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        return whole(self.condition, at)


def _said(c: Scalar) -> str:
    match c:
        case Op("<" | "<=" as name, (a, b)):
            return f"{symbolic(a)} {name} {symbolic(b)}"
        case Op("==", (a, b)):
            return f"Eq({symbolic(a)}, {symbolic(b)})"
        case Op("not", (a,)):
            return f"~({_said(a)})"
        case Op("and" | "or" as name, (a, b)):
            return f"({_said(a)}) {'&' if name == 'and' else '|'} ({_said(b)})"
        case _:
            raise LiftError(f"{text(c)} is no condition over indices")


@dataclass(frozen=True, eq=False)
class Formula:
    """Σ coefficient · monomial; a monomial is a sorted tuple of atoms, a repeated one a power."""

    terms: Mapping[Monomial, Rational] = field(default_factory=dict)

    def __add__(self, other: Formula) -> Formula:
        out = dict(self.terms)
        for m, c in other.terms.items():
            out[m] = out.get(m, 0) + c
        return _formula(out)

    def __sub__(self, other: Formula) -> Formula:
        return self + other * number(-1)

    def __mul__(self, other: Formula) -> Formula:
        out: dict[Monomial, Rational] = {}
        for a, p in self.terms.items():
            for b, q in other.terms.items():
                m = tuple(sorted(a + b, key=_rank)) if a and b else a or b
                out[m] = out.get(m, 0) + p * q
        return _formula(out)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(str(self))

    @cached_property
    def constant(self) -> Rational | None:
        """The number, where it is one."""
        return 0 if not self.terms else self.terms[()] if set(self.terms) == {()} else None

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset().union(*(a.free for m in self.terms for a in m))

    @cached_property
    def never_negative(self) -> bool:
        """True only where it is sure: no atom can be below 0, and nothing is subtracted but a ⌊f/g⌋ of a ⌈f/g⌉."""
        return all(all(a.never_negative for a in m) and (c > 0 or self._ceiling(m) + c >= 0) for m, c in self.terms.items())

    def _ceiling(self, m: Monomial) -> Rational:
        """How often ⌈f/g⌉ is in it, where `m` is ⌊f/g⌋."""
        match m:
            case (Quotient("floor", of, by),):
                return self.terms.get((Quotient("ceiling", of, by),), 0)
        return 0

    def value(self, at: Mapping[str, int], memo: Memo) -> Rational:
        out: Rational = 0
        for m, c in self.terms.items():
            for a in m:
                c = c and c * a.value(at, memo)
            out += c
        return out

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        order = sorted(self.terms, key=lambda m: (-len(m), self.terms[m] < 0, [_rank(a) for a in m]))
        first = next((m for m in order if self.terms[m] > 0), None)
        order = [first, *(m for m in order if m is not first)] if first is not None else order
        out = "".join(f" - {_term(m, -self.terms[m])}" if self.terms[m] < 0 else f" + {_term(m, self.terms[m])}" for m in order)
        return f"-{out[3:]}" if out.startswith(" - ") else out[3:] or "0"


def _formula(terms: Mapping[Monomial, Rational]) -> Formula:
    return Formula({m: c.numerator if c.denominator == 1 else c for m, c in terms.items() if c})


def _rank(a: Atom) -> tuple[bool, str]:
    return not isinstance(a, Size), a.text


def _term(m: Monomial, c: Rational) -> str:
    powers = {a: m.count(a) for a in m}
    parts = [a.text if n == 1 else f"{a.text}**{n}" for a, n in powers.items()]
    shown = "*".join([str(c.numerator)] * (c.numerator != 1 or not parts) + parts)
    return shown if c.denominator == 1 else f"{shown}/{c.denominator}"


def number(x: Rational) -> Formula:
    return _formula({(): x})


def atom(a: Atom) -> Formula:
    return Formula({(a,): 1})


ZERO, ONE = number(0), number(1)


def product(factors: Iterable[Formula]) -> Formula:
    out = ONE
    for f in factors:
        out *= f
    return out


def extreme(kind: Literal["Min", "Max"], args: Iterable[Formula]) -> Formula:
    """Without those that another one is always as extreme as."""
    kept: list[Formula] = []
    for a in (p for f in args for p in _operands(kind, f)):
        if not any(_beyond(kind, b, a) for b in kept):
            kept = [*(b for b in kept if not _beyond(kind, a, b)), a]
    return kept[0] if len(kept) == 1 else atom(Extreme(kind, tuple(sorted(kept, key=lambda f: (f.constant is None, str(f))))))


def _operands(kind: str, f: Formula) -> tuple[Formula, ...]:
    for m, c in f.terms.items():
        if len(f.terms) == c == len(m) == 1 and isinstance(m[0], Extreme) and m[0].kind == kind:
            return m[0].args
    return (f,)


def _beyond(kind: str, a: Formula, b: Formula) -> bool:
    return (a - b if kind == "Max" else b - a).never_negative


@shared
def symbolic(e: Scalar) -> Formula:
    """An index expression as a formula. Raises LiftError for anything else."""
    match e:
        case Num(v):
            return number(int(v))
        case Var(name):
            return atom(Size(name))
        case Op("//" | "%" as name, (a, b)):
            return _quotient(name, a, b)
        case Op("+" | "-" | "*" | "min" | "max" as name, (a, b)):
            x, y = symbolic(a), symbolic(b)
            match name:
                case "+":
                    return x + y
                case "-":
                    return x - y
                case "*":
                    return x * y
                case _:
                    return extreme("Min" if name == "min" else "Max", (x, y))
        case _:
            raise LiftError(f"{text(e)} is no expression over indices")


def _quotient(name: str, a: Scalar, b: Scalar) -> Formula:
    f = b.value if isinstance(b, Num) else 0
    form = affine(a)
    up = name == "//" and f > 1 and form.get(1, 0) == f - 1
    over = symbolic(expression({k: v for k, v in form.items() if k != 1}) if up else a)
    return atom(Quotient("Mod" if name == "%" else "ceiling" if up else "floor", over, symbolic(b)))


def given(condition: Scalar) -> Formula:
    """[condition]; 1 or 0 where both sides are numbers."""
    if not variables(condition):
        return number(whole(condition, {}))
    return atom(Bracket(condition))
