"""In: a leaf inside a lane loop. Out: whether V lanes of it can be one vector statement, and on which condition.

A vector statement touches all V lanes, also those that a guard or a `select` would have spared. That is harmless where every
touched element is provably inside an array that only this thread writes; otherwise the vector form runs only when all lanes
take part, and a scalar loop over the lanes runs when not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal

from moapipe.algebra.index import affine, extreme, is_index, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, children, references, rewrite, substitute, variables
from moapipe.loops.onf import Accumulate, Array, Leaf
from moapipe.targets.expression import COMPARISONS, JUNCTIONS, Scope, nonnegative, unit_stride
from moapipe.targets.target import Target

Plan = Literal["vector", "split", "scalar"]
PLAIN = frozenset(("+", "-", "*", "/", "neg", "select")) | COMPARISONS | JUNCTIONS


def plan(leaf: Leaf, scope: Scope, arrays: Mapping[str, Array], target: Target) -> Plan:
    """`vector`: one statement, masked where it has guards. `split`: a vector statement where every guard holds in all lanes,
    else a scalar loop. `scalar`: always a scalar loop."""
    lane = scope.lane
    touched = [r for e in (leaf.target, leaf.value) for r in references(e) if lane in variables(r)]
    atoms = [c for c in conditions(leaf, lane) if is_index(c)]
    fits = (
        all(unit_stride(r, lane) for r in touched)
        and all(_maskable(c, lane) for c in atoms)
        and all(not _varies(w, lane) or is_index(w) for w in leaf.where)
        and _vectorises(leaf.value, lane, target)
        and (lane in variables(leaf.target) or (isinstance(leaf, Accumulate) and lane in variables(leaf.value)))
    )
    if not fits:
        return "scalar"
    if not atoms or _harmless(leaf, touched, scope, arrays):
        return "vector"
    return "split" if all(_conjunctive(c) for c in atoms) else "scalar"


def conditions(leaf: Leaf, lane: str) -> Iterator[Scalar]:
    """The guards and `select` conditions that differ from lane to lane."""
    for w in leaf.where:
        if _varies(w, lane):
            yield w
    yield from _selects(leaf.value, lane)


def _selects(e: Scalar, lane: str) -> Iterator[Scalar]:
    if isinstance(e, Op) and e.name == "select" and _varies(e.args[0], lane):
        yield e.args[0]
    for c in children(e):
        yield from _selects(c, lane)


def _varies(e: Scalar, lane: str) -> bool:
    return lane in variables(e)


def _maskable(c: Scalar, lane: str) -> bool:
    match c:
        case Op("and" | "or" | "not", args):
            return all(_maskable(a, lane) for a in args)
        case Op("<" | "<=" | "==", (a, b)):
            form = affine(subtract(b, a))
            return all(k == Var(lane) or lane not in variables(k) for k in form if k != 1) and form.get(Var(lane), 0) in (-1, 0, 1)
        case _:
            return False


def _vectorises(e: Scalar, lane: str, target: Target) -> bool:
    """Every part that differs from lane to lane has a vector form."""
    match e:
        case _ if not _varies(e, lane) or isinstance(e, Ref):
            return True
        case Op("select", (c, a, b)):
            return (is_index(c) or _vectorises(c, lane, target)) and _vectorises(a, lane, target) and _vectorises(b, lane, target)
        case Op(name, args) if not is_index(e):
            return (name in PLAIN or name in target.vector) and all(_vectorises(a, lane, target) for a in args)
        case _:
            return False


def _harmless(leaf: Leaf, touched: list[Ref], scope: Scope, arrays: Mapping[str, Array]) -> bool:
    """Lanes that a guard spares may be loaded and stored back: inside their arrays, and no other thread's business."""
    spared = any(_varies(w, scope.lane) for w in leaf.where)
    own = not spared or scope.lane not in variables(leaf.target) or arrays[leaf.target.array].space in ("private", "register")
    return own and all(inside(r, scope, arrays[r.array]) for r in touched)


def inside(r: Ref, scope: Scope, array: Array) -> bool:
    """The last index stays below its extent for every iteration of the loops around, guards or not."""
    if array.space == "register":
        return True
    known = {k: v for k, v in scope.known.items() if k != scope.lane}
    last, extent = substitute(r.index[-1], known), array.shape[-1]
    return any(nonnegative(subtract(subtract(extent, 1), _largest(last, ranges))) for ranges in _choices(scope))


def _largest(e: Scalar, ranges: Mapping[str, tuple[Scalar, Scalar]]) -> Scalar:
    """Innermost loops first: their bounds may name the variables of outer ones."""
    for var in reversed(list(ranges)):
        e = extreme(e, {var: ranges[var]}, largest=True)
    return e


def _choices(scope: Scope) -> Iterator[dict[str, tuple[Scalar, Scalar]]]:
    """The ranges of the loops around, with each upper bound min(a, b, …) replaced by each of its arguments in turn."""
    names = list(scope.ranges)
    options = [[(lo, h) for h in _arguments(hi)] for lo, hi in scope.ranges.values()]
    for pick in product(*options):
        yield dict(zip(names, pick, strict=True))


def _arguments(hi: Scalar) -> list[Scalar]:
    match hi:
        case Op("min", args):
            return [x for a in args for x in _arguments(a)]
        case _:
            return [hi]


def _conjunctive(c: Scalar) -> bool:
    match c:
        case Op("and", (a, b)):
            return _conjunctive(a) and _conjunctive(b)
        case Op("<" | "<=", _):
            return True
        case _:
            return False


def everywhere(c: Scalar, lane: str, base: Scalar, lanes: int) -> Scalar:
    """`c` for all lanes at once: each comparison at its worst lane of base <= lane < base + lanes."""
    match c:
        case Op("and", (a, b)):
            return Op("and", (everywhere(a, lane, base, lanes), everywhere(b, lane, base, lanes)))
        case Op(name, (a, b)):
            worst = Num(lanes - 1) if affine(subtract(b, a)).get(Var(lane), 0) < 0 else Num(0)
            at = {lane: simplify(Op("+", (base, worst)))}
            return Op(name, (simplify(substitute(a, at)), simplify(substitute(b, at))))
        case _:
            return c


def assuming(e: Scalar, conditions: frozenset[Scalar], arm: int = 1) -> Scalar:
    """`e` where the conditions hold (arm 1) or all fail (arm 2): their `select`s are decided."""
    return rewrite(e, lambda x: x.args[arm] if isinstance(x, Op) and x.name == "select" and x.args[0] in conditions else x)
