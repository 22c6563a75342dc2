"""In: one loop nest as text of C and as text of Fortran. Out: their statements side by side, whether the structure is the same, and what
differs in how the two languages say it.

Structure is read off the texts, not off the nest that they were written from: procedures, directives, loops, conditions, calls and
statements with their depth. What differs is read off the two records, as far as the nest uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from moapipe.algebra.scalar import Op, Ref, Scalar
from moapipe.loops.onf import Accumulate, Kernel, expressions, leaves
from moapipe.targets.expression import MONOIDS
from moapipe.targets.target import Target

Kind = Literal["procedure", "directive", "loop", "condition", "otherwise", "call", "statement"]
GRAMMARS: dict[str, tuple[tuple[Kind, str], ...]] = {
    "c": (("procedure", r"(?:static .*)?void \w+\("), ("directive", r"#pragma (?!.*(?:declare target|routine))"), ("loop", r"for \("), ("condition", r"if \("),
          ("otherwise", r"\} else \{"), ("statement", r".*? [-+*/]?= "), ("call", r"\w+\(.*\);")),
    "f90": (("procedure", r"subroutine \w+\("), ("directive", r"!\$(?!.*(?:declare target|routine)|\w+ end)"), ("loop", r"do \w+ = "), ("condition", r"if \("),
                ("otherwise", r"else"), ("call", r"call "), ("statement", r"[^:]*? = ")),
}
"""How a line begins that is part of the structure, by the ending of the source's name; all others declare, close or explain."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a text that is part of its structure: its number from 1, depth, kind and words."""

    number: int
    depth: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that the two languages say in different ways."""

    what: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Lines that stand for each other, None where one has no partner; `same` when every line has one of its kind and depth."""

    rows: tuple[tuple[Line | None, Line | None], ...]
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        return bool(self.rows) and all(a and b for a, b in self.rows)


def structure(text: str, symbol: str, grammar: str) -> tuple[Line, ...]:
    """The structural lines of the kernel's procedures, the entry point last; continued lines are one."""
    out: list[Line] = []
    inside = False
    for number, line in _joined(text):
        word = line.strip()
        found = next((kind for kind, form in GRAMMARS[grammar] if re.match(form, word)), None)
        if found == "procedure":
            inside = re.search(rf"\b{symbol}(_\d+)?\(", word) is not None
        if found and inside:
            out.append(Line(number, (len(line) - len(line.lstrip())) // 4, found, word))
    return tuple(out)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    begun, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        more = re.sub(r"^\s*(!\$\w+& )?", "", line) if begun else line
        begun, start = begun + more.removesuffix("&"), start or number
        if not line.endswith(" &"):
            yield start, begun
            begun, start = "", 0


def compare(kernel: Kernel, left: tuple[Target, str], right: tuple[Target, str], symbol: str) -> Comparison:
    """Two texts of one loop nest, each with the record that wrote it."""
    sides = [structure(text, symbol, target.source.rpartition(".")[2]) for target, text in (left, right)]
    keys = [[(l.kind, l.depth) for l in side] for side in sides]
    rows: list[tuple[Line | None, Line | None]] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            rows += zip(sides[0][i1:i2], sides[1][j1:j2], strict=True)
        else:
            rows += [(l, None) for l in sides[0][i1:i2]] + [(None, l) for l in sides[1][j1:j2]]
    return Comparison(tuple(rows), tuple(differences(kernel, left[0], right[0])))


# ------------------------------------------------------------------ what differs


def differences(kernel: Kernel, left: Target, right: Target) -> Iterator[Difference]:
    """Templates and properties of the two records that differ, of those that the loop nest uses."""
    for what, of in PROPERTIES.items():
        if of(left) != of(right):
            yield Difference(what, of(left), of(right))
    if any(isinstance(l, Accumulate) and l.atomic for l, _, _ in leaves(kernel.body)):
        yield Difference("atomic sum", *("; ".join(t.atomic).format("x", "y") for t in (left, right)))
    for name in sorted(used(kernel)):
        for both, words in ((left.scalar, right.scalar), name), ((left.integer, right.integer), f"{name} of integers"), ((left.signs, right.signs), name):
            a, b = (side.get(name) for side in both)
            if a and b and a != b:
                yield Difference(words, a.format("x", "y", "z"), b.format("x", "y", "z"))


def used(kernel: Kernel) -> frozenset[str]:
    """Functions and signs of the nest's expressions, and those of its folds."""
    out = {MONOIDS[l.monoid] for l, _, _ in leaves(kernel.body) if isinstance(l, Accumulate)}
    todo: list[Scalar] = list(expressions(kernel.body))
    while todo:
        match todo.pop():
            case Op(name, args):
                out.add(name)
                todo += args
            case Ref(_, index):
                todo += index
            case _:
                pass
    return frozenset(out)


PROPERTIES: dict[str, Callable[[Target], str]] = {
    "index of an element": lambda t: "one offset, row-major" if t.indexing == "flat" else "all indices, innermost first",
    "array of a procedure": lambda t: "a pointer, restrict; const where it is only read" if t.indexing == "flat" else "explicit shape; intent(in) where it is only read",
    "counter of a loop": lambda t: "declared in the loop" if t.exclusive else "declared in the procedure, private by clause",
    "select": lambda t: "evaluates the arm that it chooses" if t.lazy else "may evaluate both arms",
    "loop": lambda t: t.loop[0].format("i", "lo", "hi" if t.exclusive else "hi - 1"),
    "integer as a number": lambda t: t.cast.format("i"),
    "names": lambda t: "as in the definitions" if not any(t.prefixes.values()) else f"prefixes {' '.join(t.prefixes.values())}",
    "compilers": lambda t: "; ".join(" ".join((name, *flags)) for name, flags in t.compilers) or " ".join((t.compiler, *t.flags)),
}
