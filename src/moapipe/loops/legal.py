"""In: loop nests. Out: the questions that lifts ask before they act: who touches what, which iterations are independent,
which conditions always hold, what a value is past the edge of an axis.

Everything here is conservative: "yes" is proved, "no" may only mean that it could not be proved. Inputs, outputs and
workspace are taken not to overlap (the manifest says so).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from moapipe.algebra.index import Affine, Atom, add, affine, combine, constant, expression, floor_div, is_entry, maximum, minimum, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, memoised, references, variables
from moapipe.loops.onf import Accumulate, Body, Leaf, Loop, allocated, leaves, read, written

UNIT: dict[str, float] = {"sum": 0.0, "product": 1.0, "max": -inf, "min": inf}


@dataclass(frozen=True, slots=True)
class Access:
    """One reference to an array: by which leaf, inside which loops (outermost first), and whether it stores."""

    ref: Ref
    leaf: Leaf
    loops: tuple[Loop, ...]
    store: bool


def accesses(body: Body, array: str | None = None) -> Iterator[Access]:
    """Every array reference in program order; an accumulation's target counts once, as a store."""
    for leaf, loops, conditions in leaves(body, array or ""):
        for e in (*conditions, *leaf.where, leaf.value):
            for r in references(e):
                if array is None or r.array == array:
                    yield Access(r, leaf, loops, False)
        if array is None or leaf.target.array == array:
            yield Access(leaf.target, leaf, loops, True)


def clash(p: Body, q: Body) -> bool:
    """True unless the order of `p` and `q` is immaterial: neither writes what the other touches."""
    return bool(read(p) & written(q) or written(p) & (read(q) | written(q)))


# ------------------------------------------------------------------ bounds


def hull(loop: Loop, inside: frozenset[str] = frozenset()) -> tuple[Scalar, Scalar]:
    """A range that contains the loop's: constant where one side of its min or max is constant, else free of the loop
    variables `inside` where one side is."""
    return (_simplest(loop.lo, "max", inside), _simplest(loop.hi, "min", inside)) if inside else _constant_hull(loop)


@memoised
def _constant_hull(loop: Loop) -> tuple[Scalar, Scalar]:
    return _simplest(loop.lo, "max", frozenset()), _simplest(loop.hi, "min", frozenset())


def _simplest(e: Scalar, name: str, inside: frozenset[str]) -> Scalar:
    sides = _alternatives(e, name)
    free = [a for a in sides if not variables(a) & inside]
    return next((a for a in sides if constant(a) is not None), free[0] if inside and free else e)


def _alternatives(e: Scalar, name: str) -> tuple[Scalar, ...]:
    """The arguments of a nested min (max), or the expression itself."""
    match e:
        case Op(f, (a, b)) if f == name:
            return _alternatives(a, name) + _alternatives(b, name)
        case _:
            return (e,)


def is_natural(e: Scalar) -> bool:
    """The expression is seen to be non-negative; sizes and loop variables are."""
    match e:
        case Num(v):
            return v >= 0
        case Var():
            return True
        case Op("max", (a, b)):
            return is_natural(a) or is_natural(b)
        case Op("+" | "*" | "//" | "min", (a, b)):
            return is_natural(a) and is_natural(b)
        case _:
            return is_entry(e)


def span(form: Affine, inner: Mapping[str, Loop]) -> tuple[int, int] | None:
    """Least and largest value of the part of `form` in constants and `inner` variables; None when a range is symbolic."""
    least = most = form.get(1, 0)
    for atom, c in form.items():
        if isinstance(atom, Var) and atom.name in inner:
            lo, hi = (constant(e) for e in hull(inner[atom.name]))
            lo = 0 if lo is None and is_natural(inner[atom.name].lo) else lo
            if lo is None or hi is None:
                return None
            ends = (c * lo, c * max(lo, hi - 1))
            least, most = least + min(ends), most + max(ends)
        elif atom != 1 and variables(atom) & set(inner):
            return None
    return least, most


def always(atom: Scalar, loops: Sequence[Loop]) -> bool:
    """The comparison is proved to hold for every iteration of `loops` and all non-negative sizes."""
    match atom:
        case Op("<" | "<=" as name, (a, b)):
            return _below(affine(subtract(a, b)), tuple(loops), -1 if name == "<" else 0)
        case _:
            return False


def least(a: Scalar, b: Scalar) -> Scalar:
    """min(a, b), decided where it can be proved."""
    return a if always(Op("<=", (a, b)), ()) else b if always(Op("<=", (b, a)), ()) else minimum(a, b)


def greatest(a: Scalar, b: Scalar) -> Scalar:
    """max(a, b), decided where it can be proved."""
    return b if always(Op("<=", (a, b)), ()) else a if always(Op("<=", (b, a)), ()) else maximum(a, b)


def never(atom: Scalar, loops: Sequence[Loop]) -> bool:
    """The comparison is proved to fail for every iteration."""
    return always(negation(atom), loops)


def negation(atom: Scalar) -> Scalar:
    match atom:
        case Op("<", (a, b)):
            return Op("<=", (b, a))
        case Op("<=", (a, b)):
            return Op("<", (b, a))
        case _:
            return Op("not", (atom,))


def _below(form: Affine, loops: tuple[Loop, ...], limit: int) -> bool:
    """form <= limit is proved; loop variables go to the end of their range, innermost first."""
    atoms = {k.name: k for k in form if isinstance(k, Var)}
    for i in reversed(range(len(loops))):
        if atom := atoms.get(loops[i].var):
            c = form[atom]
            rest = {k: v for k, v in form.items() if k is not atom}
            ends = [subtract(e, 1) for e in _last(loops[i])] if c > 0 else list(_alternatives(loops[i].lo, "max"))
            return any(_below(combine(rest, {k: c * v for k, v in affine(e).items()}), loops[:i], limit) for e in ends)
    return _relaxed(form, limit)


def _last(loop: Loop) -> tuple[Scalar, ...]:
    """Upper bounds of a loop that runs at all: with lo >= 0, hi = max(y, 0)//f means hi = y//f."""
    out = _alternatives(loop.hi, "min")
    if (constant(loop.lo) or 0) < 0 or constant(loop.lo) is None:
        return out
    return tuple(_unclamped(e) for e in out)


def _unclamped(e: Scalar) -> Scalar:
    match e:
        case Op("max", (y, Num(0))):
            return y
        case Op("//", (Op("max", (y, Num(0))), f)):
            return Op("//", (y, f))
        case _:
            return e


def _relaxed(form: Affine, limit: int) -> bool:
    """form <= limit from: sizes are non-negative, f·⌊x/f⌋ <= x <= f·⌊x/f⌋ + f - 1, min <= each argument <= max."""
    for atom, c in form.items():
        rest = {k: v for k, v in form.items() if k != atom}
        if c < 0 and not isinstance(atom, int | Var) and is_natural(atom) and _relaxed(rest, limit):
            return True
        if (larger := _larger_quotient(atom, c, rest)) is not None:
            return _relaxed({k: v for k, v in rest.items() if k != larger}, limit)
        match atom:
            case Op("//", (x, Num(f))) if isinstance(f, int) and f > 0 and c % f == 0:
                bound = affine(x) if c > 0 else combine(affine(x), {1: f - 1}, -1)
                return _relaxed(combine(rest, {k: v * (c // f) for k, v in bound.items()}), limit)
            case Op("min" | "max" as name, args) if (c > 0) == (name == "min"):
                return any(_relaxed(combine(rest, {k: v * c for k, v in affine(a).items()}), limit) for a in args)
            case _:
                pass
    return all(c < 0 and not isinstance(k, int) and is_natural(k) for k, c in form.items() if k != 1) and form.get(1, 0) <= limit


def _larger_quotient(atom: Atom, c: int, rest: Affine) -> Atom | None:
    """In c·(x // f) - c·(y // f) with y - x >= 0: the second term's atom; the two together are at most 0."""
    match atom:
        case Op("//", (x, f)) if c > 0:
            for other, d in rest.items():
                match other:
                    case Op("//", (y, g)) if f == g and d == -c and (constant(subtract(y, x)) or 0) > 0:
                        return other
                    case _:
                        pass
    return None


def first_true(atom: Scalar, var: str) -> tuple[Scalar | None, Scalar | None]:
    """(lo, hi) such that the comparison a < b, affine in `var` with any coefficient, holds for lo <= var < hi.

    The side that the comparison does not bound is None. The numerator of a rounded-down upper bound is kept
    non-negative, so that truncating and flooring division agree.
    """
    match atom:
        case Op("<" | "<=" as name, (a, b)):
            form = affine(subtract(a, b))
            c = form.pop(Var(var), 0)
            slack = expression({k: -v for k, v in combine(form, {1: 1 if name == "<" else 0}).items()})  # c·var <= slack
        case _:
            return None, None
    if c == 0 or any(var in variables(k) for k in form if k != 1):
        return None, None
    if c > 0:
        return None, floor_div(greatest(add(slack, c), Num(0)), c)
    return floor_div(greatest(subtract(-c - 1, slack), Num(0)), -c), None


# ------------------------------------------------------------------ independence of iterations


def own_block(a: Loop, b: Loop, array: str) -> bool:
    """Iteration v of loop `a` and of loop `b` (same variable) touches only elements of `array` that no other iteration
    touches: along some dimension all accesses are c·v + (what is fixed) + (a part inside one stride of |c|) + (a multiple of
    |c|·n, where v < n): then the index modulo |c|·n tells v. A single iteration, or a first one that alone does anything, has no other."""
    touched = [x for s in (a, b) for x in accesses((s,), array)]
    if constant(subtract(a.hi, a.lo)) == 1 or all(_alone(x.leaf, a) for x in touched):
        return True
    return any(_separates(a, touched, d) for d in range(len(touched[0].ref.index)))


def _alone(leaf: Leaf, loop: Loop) -> bool:
    """Only the loop's first iteration does anything."""
    return Op("<", (Var(loop.var), Num(1))) in leaf.where


def _separates(loop: Loop, touched: Sequence[Access], dim: int) -> bool:
    if all(x.ref.index[dim] == Var(loop.var) for x in touched):
        return True
    stride = affine(touched[0].ref.index[dim]).get(Var(loop.var), 0)
    turns = constant(loop.hi) if constant(loop.lo) == 0 else None
    around = abs(stride) * turns if turns else 0
    base: Affine | None = None
    low, high = 0, 0
    for n, x in enumerate(touched):
        inner = {l.var: l for l in x.loops if l.var != loop.var}
        form: Affine = {k: v for k, v in affine(x.ref.index[dim]).items() if k == 1 or not (variables(k) & set(inner) and around and v % around == 0)}
        if any(loop.var in variables(k) for k in form if k != 1 and k != Var(loop.var)):
            return False
        part = span({k: v for k, v in form.items() if k != Var(loop.var)}, inner)
        fixed: Affine = {k: v for k, v in form.items() if k != 1 and not variables(k) & set(inner)}
        if part is None or (base is not None and fixed != base):
            return False
        base, low, high = fixed, part[0] if n == 0 else min(low, part[0]), part[1] if n == 0 else max(high, part[1])
    return stride != 0 and base is not None and base.get(Var(loop.var), 0) == stride and high - low < abs(stride)


def carried(loop: Loop) -> tuple[str, ...]:
    """Arrays that outlive an iteration, are written in the loop, are not split among its iterations and not only updated
    atomically there: races and folds."""
    local = allocated(loop.body)
    return tuple(sorted(x for x in written(loop.body) - local if not own_block(loop, loop, x) and not all_atomic(loop.body, x)))


def all_atomic(body: Body, array: str) -> bool:
    """Every access to the array is an atomic update."""
    return all(x.store and isinstance(x.leaf, Accumulate) and x.leaf.atomic for x in accesses(body, array))


def permutable(bottom: Body, loops: Sequence[Loop]) -> str:
    """Why the loops around the leaves `bottom` may not be interchanged freely, or "" when they may.

    A fold's terms may come in any order (its monoid commutes, up to rounding); an assignment must not read what the
    nest writes at another place, and must not overwrite an element that an earlier iteration stored.
    """
    stored = written(bottom)
    for leaf, _, _ in leaves(bottom):
        reads = [r for e in (leaf.value, *leaf.where) for r in references(e)]
        if any(r.array in stored and r != leaf.target for r in reads):
            return f"{leaf.name} reads {sorted(stored & {r.array for r in reads})} while writing it"
        loose = [l.var for l in loops if not any(l.var in variables(i) for i in leaf.target.index) and not _alone(leaf, l)]
        if loose and not (isinstance(leaf, Accumulate) and leaf.target.array not in {r.array for r in reads}):
            return f"{leaf.name} stores {leaf.target.array} again for every {', '.join(loose)}"
    return ""


# ------------------------------------------------------------------ values past an edge

Beyond = float | Literal["finite", "below", "above", "unknown"]
"""A number; or finite; or finite or -inf ("below"); or finite or inf ("above"); or anything."""


def beyond(e: Scalar, arrays: Mapping[str, Beyond], false: frozenset[Scalar]) -> Beyond:
    """The value of `e` where the comparisons in `false` do not hold, given what each array holds there.

    Arrays that are not in the mapping are unknown. Temporaries are taken to be finite where the definitions allow it:
    an infinite score or value would break 0·x = 0, as it does in the definitions themselves (IEEE 754, 0·∞ = NaN).
    """
    match e:
        case Num(v):
            return float(v)
        case Var():
            return "finite"
        case Ref(array, _):
            return arrays.get(array, "unknown")
        case Op("select", (c, x, y)):
            return _beyond_select(c, x, y, arrays, false)
        case Op(name, args):
            return _beyond_op(name, [beyond(a, arrays, false) for a in args])
        case _:
            return "unknown"


def _beyond_select(c: Scalar, x: Scalar, y: Scalar, arrays: Mapping[str, Beyond], false: frozenset[Scalar]) -> Beyond:
    if set(conjuncts(c)) & false:
        return beyond(y, arrays, false)
    a, b = beyond(x, arrays, false), beyond(y, arrays, false)
    match c, y:
        case Op("==", (z, Num(v))), _ if v == -inf and z == y and _is_finite(a) and b in ("below", "finite"):
            return "finite"  # select(m == -inf, finite, m)
        case Op("==", (z, Num(v))), _ if v == -inf and z == y and a == inf and b == "below":
            return "above"  # select(m == -inf, inf, m)
        case Op("==", (t, Num(0))), Op("/", (w, same)) if t == same and beyond(w, arrays, false) == 0.0 and _is_finite(beyond(t, arrays, false)):
            return _join(a, 0.0)  # select(t == 0, a, 0/t)
        case Op("==", (t, Num(0))), Op("/", (w, same)) if t == same and _is_finite(beyond(w, arrays, false)) and _is_finite(beyond(t, arrays, false)):
            return _join(a, "finite")  # select(t == 0, a, w/t)
        case _:
            return _join(a, b)


def conjuncts(c: Scalar) -> tuple[Scalar, ...]:
    """The atoms of a conjunction."""
    match c:
        case Op("and", (a, b)):
            return conjuncts(a) + conjuncts(b)
        case _:
            return (c,)


def _is_finite(v: Beyond) -> bool:
    return v == "finite" or (isinstance(v, float) and abs(v) < inf)


def _join(a: Beyond, b: Beyond) -> Beyond:
    if a == b:
        return a
    if _is_finite(a) and _is_finite(b):
        return "finite"
    for name, end in (("below", -inf), ("above", inf)):
        if all(v in (name, end) or _is_finite(v) for v in (a, b)):
            return name  # type: ignore[return-value]
    return "unknown"


def _beyond_op(name: str, args: list[Beyond]) -> Beyond:
    match name, args:
        case "*", [a, b] if 0.0 in (a, b) and _is_finite(a) and _is_finite(b):
            return 0.0
        case "*", [a, b] if isinstance(a, float) and isinstance(b, float) and a == -inf and b > 0:
            return -inf
        case ("+" | "-"), [a, b] if a == -inf and (_is_finite(b) or (name == "-" and b == "above")):
            return -inf
        case "-", [a, b] if b in ("above", inf) and (_is_finite(a) or a == "below"):
            return "below"
        case "+", [a, b] if b == -inf and _is_finite(a):
            return -inf
        case ("+" | "-"), ["below", b] if _is_finite(b) or (name == "+" and b == "below"):
            return "below"
        case "*", [a, "below"] if isinstance(a, float) and 0 < a < inf:
            return "below"
        case ("log" | "log2"), [a] if _is_finite(a) or a == "below":
            return "below"  # of what is not negative: else the definition is no number either
        case ("exp" | "exp2"), [a] if a == -inf:
            return 0.0
        case ("exp" | "exp2"), ["below"]:
            return "finite"
        case ("+" | "-" | "*" | "neg" | "exp" | "exp2" | "max" | "min"), _ if all(map(_is_finite, args)):
            return "finite"
        case "max", [a, b] if "unknown" not in (a, b) and inf not in (a, b):
            return "finite" if _is_finite(a) or _is_finite(b) else "below"
        case _:
            return "unknown"


def fold_beyond(monoid: str, value: Beyond, start: Beyond) -> Beyond:
    """What a fold of such values holds when it started at `start`."""
    if value == UNIT[monoid]:
        return start
    return _join(start, value) if monoid in ("max", "min") else ("finite" if _is_finite(value) and _is_finite(start) else "unknown")
