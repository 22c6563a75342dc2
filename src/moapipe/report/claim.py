"""In: normal forms and a published closed form. Out: the assumptions under which the form comes out of the definitions, or that none do.

A closed form counts array elements that are moved. From the definitions come the arrays (inputs, outputs, definitions between
them) and their sizes. Assumed are: which arrays between stay on chip, whether what is off chip is moved once or twice, whether
arrays that grow with neither tokens nor batch (weights), that have no feature axis (statistics) or that only go into an array which
is updated in place (appended) are counted, whether the passes are one call. An assumption is *consistent* when it treats arrays of one
size alike, or all sums of one size (what a product makes, and has to put somewhere) and all arrays of it that are made element by
element (which can be made where they are read); all of them are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import sympy as sp

from moapipe.algebra.adjoint import adjoint, denote
from moapipe.algebra.dnf import Dnf
from moapipe.algebra.index import parse
from moapipe.algebra.scalar import Fold, Num, Op, Scalar, Var, references, text, walk
from moapipe.errors import AlgebraError
from moapipe.lab.derive import denotation
from moapipe.lab.kernel import names
from moapipe.report.published import Claim, Pass

TOKENS = ("N",)
"""The letters that tokens are counted by."""
BATCH = "B"
WEIGHTS, STATISTICS, APPENDED = "weights", "statistics", "appended"
KINDS = (WEIGHTS, STATISTICS, APPENDED)
"""What may be left out, by name."""
Role = Literal["given", "made", "between"]


@dataclass(frozen=True)
class Item:
    """An array of one or more passes. Inputs (`given`) and outputs (`made`) are moved; no assumption keeps them on chip. `kind`:
    what it may be left out as: a parameter (rank 0), one of KINDS, or data. `summed`: each element is a sum."""

    name: str
    size: sp.Expr
    role: Role
    kind: str
    summed: bool = False

    @property
    def moved(self) -> bool:
        return self.role != "between"


@dataclass(frozen=True)
class Group:
    """Arrays of one size that lie between: all of them, the sums, or the others; and how many of them are off chip."""

    size: sp.Expr
    which: Literal["arrays", "sums", "arrays made element by element"]
    names: tuple[str, ...]
    off: int

    @property
    def consistent(self) -> bool:
        return self.off == len(self.names)

    @property
    def text(self) -> str:
        return f"{self.off} of the {len(self.names)} {self.which} of size {written(self.size)}"


@dataclass(frozen=True)
class Scheme:
    """An assumption: the passes and their arrays (as one call: one of each name), what is left out, how often what lies between and
    is off chip is moved, and which arrays are off chip: a group for every size of which there are any."""

    passes: tuple[str, ...]
    items: tuple[Item, ...]
    joint: bool
    excluded: tuple[str, ...]
    times: int
    off: tuple[Group, ...]

    @property
    def consistent(self) -> bool:
        return all(g.consistent for g in self.off)

    @property
    def weight(self) -> tuple[int, ...]:
        """Less is simpler."""
        told_apart = sum(g.which != "arrays" for g in self.off)
        return (not self.consistent, told_apart, len(self.off), len(self.excluded), self.times, not self.joint)


@dataclass(frozen=True)
class Answer:
    """What becomes of a claim. `compulsory`: every input and output once, nothing left out; `one_by_one`: of each pass. `scheme` is the simplest assumption
    that gives the claimed form, for all passes; `other` the simplest for some of them only, looked for where there is no
    consistent one."""

    claim: Claim
    claimed: sp.Expr
    compulsory: sp.Expr
    one_by_one: sp.Expr
    items: tuple[Item, ...]
    scheme: Scheme | None
    other: Scheme | None

    @property
    def verdict(self) -> str:
        if self.scheme is None:
            return "no assumption gives it"
        return "comes out" if self.scheme.consistent else "no consistent assumption gives it"


def judge(claim: Claim, passes: Sequence[tuple[str, Dnf]], also: Sequence[tuple[str, Dnf]] = ()) -> Answer:
    """Try every assumption. `passes` are (name, normal form) in the order of the claim's own, and so are those that it names `also`.
    AlgebraError for a size that is no formula."""
    claimed = sp.expand(_formula(parse(claim.claim)))
    letters = {name: _formula(parse(e)) for name, e in claim.letters.items()}
    arrays = [(name, _items(dnf, letters)) for name, dnf in passes]
    whole = _joined([items for _, items in arrays])
    best = min(_schemes(claimed, arrays), key=lambda s: s.weight, default=None)
    other = None
    if best is None or not best.consistent:
        parts = [*(part for k in range(1, len(arrays)) for part in combinations(arrays, k)), *(((name, _items(dnf, letters)),) for name, dnf in also)]
        other = min((s for part in parts for s in _schemes(claimed, part) if s.consistent), key=lambda s: s.weight, default=None)
    one_by_one = _moved((x for _, items in arrays for x in items), ())
    return Answer(claim, claimed, _moved(whole, ()), one_by_one, whole, best, other)


# ------------------------------------------------------------------ arrays


def _items(dnf: Dnf, letters: Mapping[str, sp.Expr]) -> tuple[Item, ...]:
    """Every array of a normal form with its number of elements in the papers' letters; an output in the place of an input is that input."""
    updated = {output for output, _ in dnf.updates}
    shapes = {**dict(dnf.inputs), **{n.name: tuple(e for _, e in n.axes) for n in dnf.normals if n.name not in updated}}
    roles: dict[str, Role] = {**{n.name: "between" for n in dnf.normals}, **dict.fromkeys(dnf.outputs, "made")}
    summed = {n.name for n in dnf.normals if any(isinstance(e, Fold) for e in walk(n.value))}
    readers = {name: {n.name for n in dnf.normals if any(r.array == name for r in references(n.value))} for name, _ in dnf.inputs}
    kept = {place for _, place in dnf.updates}
    out = []
    for name, shape in shapes.items():
        size = sp.expand(sp.prod([_formula(e, letters) for e in shape]))
        appended = name not in kept and bool(readers.get(name)) and readers[name] <= updated
        out.append(Item(name, size, roles.get(name, "given"), APPENDED if appended else _kind(size, len(shape)), name in summed))
    return tuple(out)


def _kind(size: sp.Expr, rank: int) -> str:
    letters = {s.name for s in size.free_symbols}
    if not rank:
        return "parameter"
    if not letters & {BATCH, *TOKENS}:
        return WEIGHTS
    grows = sp.Poly(size, *(sp.Symbol(t, positive=True, integer=True) for t in TOKENS)).total_degree()
    return STATISTICS if grows <= 1 and letters <= {BATCH, *TOKENS} else "data"


def _joined(parts: Iterable[tuple[Item, ...]]) -> tuple[Item, ...]:
    """The arrays of several passes as one call: one of each name; what one pass makes for another lies between."""
    out: dict[str, Item] = {}
    for items in parts:
        for x in items:
            role = x.role if x.name not in out else {"made": "between"}.get(out[x.name].role, out[x.name].role)
            out[x.name] = replace(x, role=role, summed=x.summed or (x.name in out and out[x.name].summed))
    return tuple(out.values())


def _formula(e: Scalar, letters: Mapping[str, sp.Expr] | None = None) -> sp.Expr:
    match e:
        case Num(int() as v):
            return sp.Integer(v)
        case Var(name):
            return (letters or {}).get(name, sp.Symbol(name, positive=True, integer=True))
        case Op("+" | "-" | "*" | "//" | "min" | "max" as name, (a, b)):
            x, y = _formula(a, letters), _formula(b, letters)
            return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: sp.floor(x / y),
                    "min": lambda: sp.Min(x, y), "max": lambda: sp.Max(x, y)}[name]()
        case _:
            raise AlgebraError(f"{text(e)} is no size", hint="sizes are formulas of names and whole numbers")


# ------------------------------------------------------------------ assumptions


def _schemes(claimed: sp.Expr, arrays: Sequence[tuple[str, tuple[Item, ...]]]) -> Iterator[Scheme]:
    names = tuple(name for name, _ in arrays)
    as_one = _joined(items for _, items in arrays)
    one_by_one = tuple(x for _, items in arrays for x in items)
    for joint, items in ((True, as_one), (False, one_by_one))[: 1 + (len(arrays) > 1)]:
        kinds = [kind for kind in KINDS if any(x.kind == kind for x in items)]
        for excluded in (c for k in range(len(kinds) + 1) for c in combinations(kinds, k)):
            rest = sp.expand(claimed - _moved(items, excluded))
            for times in (1, 2):
                off = _off_chip(rest, [x for x in items if not x.moved and x.kind not in ("parameter", *excluded)], times)
                if off is not None and (off or times == 1):
                    yield Scheme(names, items, joint, excluded, times, off)


def _moved(items: Iterable[Item], excluded: tuple[str, ...]) -> sp.Expr:
    return sp.expand(sum((x.size for x in items if x.moved and x.kind not in ("parameter", *excluded)), sp.Integer(0)))


def _off_chip(rest: sp.Expr, between: Sequence[Item], times: int) -> tuple[Group, ...] | None:
    """Which arrays of each size must be off chip so that `times` times their elements are `rest`; None where no number is."""
    have: dict[sp.Expr, list[Item]] = {}
    for x in between:
        have.setdefault(x.size, []).append(x)
    terms = {sp.Mul(*powers): c for c, powers in ((t.as_coeff_Mul()[0], (t.as_coeff_Mul()[1],)) for t in sp.Add.make_args(rest)) if c}
    out = []
    for size, c in terms.items():
        if c < 0 or c % times or c // times > len(have.get(size, ())):
            return None
        groups = _groups(size, have[size], int(c // times))
        out.append(next((g for g in groups if g.consistent), groups[0]))
    return tuple(sorted(out, key=lambda g: str(g.size)))


def _groups(size: sp.Expr, items: Sequence[Item], off: int) -> tuple[Group, ...]:
    """All arrays of a size, its sums, and those that are none."""
    names = [tuple(x.name for x in items if keep(x)) for keep in (lambda x: True, lambda x: x.summed, lambda x: not x.summed)]
    return Group(size, "arrays", names[0], off), Group(size, "sums", names[1], off), Group(size, "arrays made element by element", names[2], off)


# ------------------------------------------------------------------ for readers


def documents(claims: Iterable[Claim], root: Path) -> list[dict[str, Any]]:
    """The answer to each claim whose kernels `root` has, from their definitions there, as plain data."""
    here = set(names(root))
    mine = [c for c in claims if here.issuperset(p.kernel for p in c.passes)]
    return [document(judge(c, *([(f"{p.kernel} {p.form}", normal(p, root)) for p in passes] for passes in (c.passes, c.also)))) for c in mine]


def normal(p: Pass, root: Path) -> Dnf:
    """The normal form of a pass; with gradients, that of forward and backward in one, derived here."""
    found = denotation(p.kernel, p.form, root)
    if not p.gradients:
        return found.dnf
    outputs = found.dnf.outputs
    return denote(p.kernel, adjoint(found.definitions, of=outputs, wrt=p.gradients, outputs=outputs))[0]


def written(e: sp.Expr) -> str:
    """A formula as the papers write it."""
    return str(e).replace("**", "^").replace("*", "·")


def document(a: Answer) -> dict[str, Any]:
    """An answer as plain data: what is claimed, from which arrays it comes out, which stay on chip, what is left out."""
    s = a.scheme if a.scheme and a.scheme.consistent else None
    off = {name for g in s.off for name in g.names} if s else set()
    items = s.items if s else a.items
    kept = [x for x in items if s and x.kind not in ("parameter", *s.excluded)]
    return {
        "name": a.claim.name, "published": a.claim.text, "claimed": written(a.claimed), "source": a.claim.source, "verdict": a.verdict,
        "because": _because(a), "passes": [f"{p.kernel} {p.form}{' and its gradients' * bool(p.gradients)}" for p in a.claim.passes], "compulsory": written(a.compulsory),
        "computed": written(_computed(kept, off, s.times)) if s else "",
        "moved": [x.name for x in kept if x.moved], "off_chip": [x.name for x in kept if not x.moved and x.name in off],
        "on_chip": [x.name for x in kept if not x.moved and x.name not in off],
        "left_out": {kind: names for kind in ("parameter", *(s.excluded if s else ())) if (names := list(dict.fromkeys(x.name for x in items if x.kind == kind)))},
    }


def _computed(kept: Iterable[Item], off: set[str], times: int) -> sp.Expr:
    """The sum over the arrays that an answer lists."""
    sizes = (x.size if x.moved else x.size * times if x.name in off else sp.Integer(0) for x in kept)
    return sp.expand(sum(sizes, sp.Integer(0)))


def _because(a: Answer) -> str:
    """One sentence: the assumption, or why there is none."""
    s = a.scheme
    if s is not None and s.consistent:
        return _assumption(s)
    if s is not None:
        picked = ", ".join(g.text for g in s.off)
        why = f"the sum comes out only if {picked} are moved {_times(s.times)} and the others are not{_nearest(s, a.claimed)}"
    else:
        moved = _moved(a.items, KINDS)
        why = f"inputs and outputs without {', '.join(KINDS)} are {written(moved)}; {written(sp.expand(a.claimed - moved))} is left"
    if a.one_by_one != a.compulsory:
        why += f"; each pass by itself, with everything, moves {written(a.one_by_one)}"
    if a.other is not None:
        why += f". It is the form of {' and '.join(a.other.passes)} alone: {_assumption(a.other)}"
    return f"{why}. {a.claim.note}" if a.claim.note else why


def _nearest(s: Scheme, claimed: sp.Expr) -> str:
    """What the form would be with all sums of the sizes of which it takes some arrays and leaves others."""
    items = {x.name: x for x in s.items}
    sums = {g.size: [n for n, x in items.items() if not x.moved and x.summed and x.size == g.size] for g in s.off if not g.consistent}
    more = sum((s.times * g.size * (len(sums[g.size]) - g.off) for g in s.off if g.size in sums), sp.Integer(0))
    return "; with all sums of " + " and ".join(f"that size, {' '.join(names)}," for names in sums.values()) + f" it is {written(sp.expand(claimed + more))}"


def _assumption(s: Scheme) -> str:
    parts = ["inputs and outputs once"]
    if len(s.passes) > 1:
        parts.append("the passes are one call" if s.joint else "each pass by itself")
    parts += [f"all {g.which} of size {written(g.size)} between are moved {_times(s.times)}" for g in s.off]
    parts.append("everything else between stays on chip")
    if s.excluded:
        parts.append(f"{' and '.join(s.excluded)} are not counted")
    return "; ".join(parts)


def _times(n: int) -> str:
    return {1: "once", 2: "twice, out and in"}[n]


def show(documents: Iterable[Mapping[str, Any]]) -> str:
    """The answers as text, a paragraph each."""
    lines: list[str] = []
    for d in documents:
        lines += [f"{d['name']}: {d['published']}    ({d['source']})", f"  {d['verdict']}: {d['because']}"]
        rows = {"from": " + ".join(d["moved"] + d["off_chip"]), "on chip": " ".join(d["on_chip"])}
        rows |= {f"{kind} left out": " ".join(names) for kind, names in d["left_out"].items()}
        rows |= {"claimed": d["claimed"], "computed": d["computed"], "lower bound": f"{d['compulsory']}, compulsory: every input and output once", "definitions": ", ".join(d["passes"])}
        lines += [f"  {what + ':':22} {value}" for what, value in rows.items() if value] + [""]
    return "\n".join(lines).rstrip() + "\n"
