"""In: a kernel with lane loops. Out: the same kernel, written so that a compiler without vector types vectorises its lane loops.

For languages whose lanes are plain loops: an exponential becomes a block that a procedure computes (GCC does not vectorise it
inside a loop); a fold over lanes goes through V partials and a tree, in the order of the vector code, so both give the same
bits; a guard that all lanes share stands around the loop; a `select` with arms that may lie outside their arrays becomes two
guarded leaves, where the language evaluates both arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from moapipe.algebra.index import add, constant, is_index, multiply
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, rewrite, substitute, variables, walk
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Body, If, Kernel, Leaf, Loop, Stmt, map_statements, statements
from moapipe.targets.expression import MONOIDS, UNITS, Scope
from moapipe.targets.lane import assuming, inside
from moapipe.targets.target import Unit


def prepare(kernel: Kernel, unit: Unit, strips: frozenset[str], lazy: bool) -> Kernel:
    """Rewrite every lane loop; `strips` are the functions to compute as blocks, `lazy` says whether select spares an arm."""
    work = _Work(kernel, unit.lanes, strips)
    body = kernel.body if lazy else _guarded(kernel.body, Scope({}, {}), work)
    body = map_statements(body, work.lanes)
    return replace(kernel, body=body, arrays=(*kernel.arrays, *work.added.values()))


@dataclass
class _Work:
    kernel: Kernel
    v: int
    strips: frozenset[str]
    added: dict[str, Array] = field(default_factory=dict)
    loops: int = 0

    def temporary(self, stem: str, extent: int) -> str:
        """A local array of `extent` elements; the same one for every use of this stem and extent."""
        taken = {a.name for a in self.kernel.arrays}
        name = f"{stem}{extent}"
        while name in taken:
            name += "_"
        self.added[name] = Array(name, (Num(extent),), "register")
        return name

    def fresh(self) -> str:
        """A loop variable that the kernel does not use."""
        used = {s.var for s in statements(self.kernel.body) if isinstance(s, Loop)} | set(self.kernel.sizes)
        self.loops += 1
        while f"q{self.loops}" in used:
            self.loops += 1
        return f"q{self.loops}"

    def lanes(self, s: Stmt) -> Body:
        """A lane loop over leaves, as one lane loop a leaf, each in a form that vectorises."""
        if not (isinstance(s, Loop) and s.kind == "lane" and all(isinstance(x, Assign | Accumulate) for x in s.body)):
            return (s,)
        extent = constant(s.hi)
        out: list[Stmt] = []
        if any(s.var not in variables(w) for x in s.body if isinstance(x, Assign | Accumulate) for w in x.where):
            return tuple(q for x in s.body if isinstance(x, Assign | Accumulate) for q in self.outside(x, s))
        if extent is None or not any(self.special(x, s.var) for x in s.body if isinstance(x, Assign | Accumulate)):
            return (s,)
        for leaf in s.body:
            assert isinstance(leaf, Assign | Accumulate)
            out += self.leaf(leaf, s, extent)
        return tuple(out)

    def outside(self, leaf: Leaf, loop: Loop) -> Body:
        """The lane loop of one leaf, inside the guards that are the same for all lanes: in the loop, the compiler would make masks
        of them, and load and store where nothing is to be done."""
        same = tuple(w for w in leaf.where if loop.var not in variables(w))
        inner = self.lanes(replace(loop, body=(replace(leaf, where=tuple(w for w in leaf.where if w not in same)),)))
        for w in reversed(same):
            inner = (If(w, inner),)
        return inner

    def special(self, leaf: Leaf, lane: str) -> bool:
        return self.is_horizontal(leaf, lane) or any(True for _ in self.exponentials(leaf.value, lane))

    def is_horizontal(self, leaf: Leaf, lane: str) -> bool:
        return isinstance(leaf, Accumulate) and lane not in variables(leaf.target) and lane in variables(leaf.value)

    def exponentials(self, e: Scalar, lane: str) -> Iterator[Op]:
        for x in walk(e):
            if isinstance(x, Op) and x.name in self.strips | {"sigmoid"} and lane in variables(x):
                yield x

    def leaf(self, leaf: Leaf, loop: Loop, extent: int) -> Iterator[Stmt]:
        """First what the leaf's exponentials need, then the leaf."""
        leaf = replace(leaf, value=rewrite(leaf.value, _without_sigmoid))
        lane = loop.var
        while found := list(self.exponentials(leaf.value, lane)):
            inner = next(x for x in found if not any(True for a in x.args for _ in self.exponentials(a, lane)))
            argument = Ref(self.temporary("argument", extent), (Var(lane),))
            yield Alloc(argument.array)
            if leaf.where:  # the block is computed in every lane, also where the guards spare the leaf
                yield replace(loop, body=(Assign(argument, Num(0.0), (), leaf.name),))
            yield replace(loop, body=(Assign(argument, inner.args[0], leaf.where, leaf.name),))
            if leaf.value == inner and isinstance(leaf, Assign) and not leaf.where:
                yield replace(loop, body=(replace(leaf, value=Op(inner.name, (argument,))),))
                return
            result = Ref(self.temporary(f"result{sum(x != inner for x in found)}_", extent), (Var(lane),))
            yield Alloc(result.array)
            yield replace(loop, body=(Assign(result, Op(inner.name, (argument,)), (), leaf.name),))
            leaf = replace(leaf, value=_replaced(leaf.value, inner, result))
        if isinstance(leaf, Accumulate) and self.is_horizontal(leaf, lane):
            yield from self.fold(leaf, loop, extent)
        else:
            yield replace(loop, body=(leaf,))

    def fold(self, leaf: Accumulate, loop: Loop, extent: int) -> Iterator[Stmt]:
        """V partials over the lanes, then a tree, then one element: the order of the vector code's `fold_sum`."""
        lane, v = loop.var, self.v
        part = Ref(self.temporary("part", v), (Var(lane),))
        step, over = replace(loop, hi=Num(v)), self.fresh()
        yield Alloc(part.array)
        yield replace(step, body=(Assign(part, Num(UNITS[leaf.monoid]), (), leaf.name),))
        at = {lane: add(multiply(over, v), lane)}
        inner = replace(leaf, target=part, value=substitute(leaf.value, at), where=tuple(substitute(w, at) for w in leaf.where))
        yield Loop(over, Num(0), Num(extent // v), (replace(step, body=(inner,)),))
        half = v // 2
        while half:
            pair = (part, Ref(part.array, (add(lane, half),)))
            yield replace(loop, hi=Num(half), body=(Assign(part, Op(MONOIDS[leaf.monoid], pair), (), leaf.name),))
            half //= 2
        yield Accumulate(leaf.monoid, leaf.target, Ref(part.array, (Num(0),)), (), leaf.name)


def _replaced(e: Scalar, old: Scalar, new: Scalar) -> Scalar:
    return rewrite(e, lambda x: new if x == old else x)


def _without_sigmoid(e: Scalar) -> Scalar:
    """1/(1+e^-u) through e^-|u|, which never overflows: e/(1+e) below zero."""
    match e:
        case Op("sigmoid", (u,)):
            small = Op("exp", (Op("neg", (Op("abs", (u,)),)),))
            return Op("/", (Op("select", (Op("<", (u, Num(0.0))), small, Num(1.0))), Op("+", (Num(1.0), small))))
        case _:
            return e


def is_strip(s: Loop, strips: frozenset[str]) -> bool:
    """A lane loop that only applies a block function to a row of a local array."""
    match s.body:
        case (Assign(_, Op(name, (Ref(),)), ()),) if s.kind == "lane":
            return name in strips
        case _:
            return False


def _guarded(body: Body, scope: Scope, work: _Work) -> Body:
    """Leaves whose `select` over indices might load outside an array, as one leaf for either case."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case Loop():
                out.append(replace(s, body=_guarded(s.body, scope.under(s.var, s.lo, s.hi), work)))
            case If():
                out.append(replace(s, body=_guarded(s.body, scope, work)))
            case Assign() | Accumulate():
                out += _cases(s, scope, work)
            case Alloc():
                out.append(s)
    return tuple(out)


def _cases(leaf: Leaf, scope: Scope, work: _Work) -> Iterator[Leaf]:
    for x in walk(leaf.value):
        if isinstance(x, Op) and x.name == "select" and is_index(x.args[0]) and not _safe(x, scope, work):
            c = x.args[0]
            negative = Op("not", (c,))
            yes, no = (assuming(leaf.value, frozenset((c,)), arm) for arm in (1, 2))
            yield from _cases(replace(leaf, value=yes, where=(*leaf.where, c)), scope, work)
            yield from _cases(replace(leaf, value=no, where=(*leaf.where, negative)), scope, work)
            return
    yield leaf


def _safe(select: Op, scope: Scope, work: _Work) -> bool:
    """Both arms may be loaded whatever the condition says: private arrays, provably inside their last extent."""
    arms = [r for a in select.args[1:] for r in references(a)]
    return all(work.kernel.array(r.array).space in ("private", "register") and inside(r, scope, work.kernel.array(r.array)) for r in arms)
