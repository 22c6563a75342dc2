"""In: the body of a parallel loop (or a run of serial statements). Out: it as one procedure in one language.

Loops of kind `serial` (and parallel ones further in, which the outer one has already spread over the threads) are loops;
`unroll` and `lane` loops become text and vectors where the language has vectors, else constant loops.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import assert_never

from moapipe.algebra.index import constant, simplify
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, substitute, text, variables
from moapipe.errors import TargetError
from moapipe.loops.onf import CHIP, Accumulate, Alloc, Array, Assign, Body, If, Leaf, Loop, read, written
from moapipe.loops.team import crew
from moapipe.loops.wide import wide
from moapipe.targets.expression import MONOIDS, UNITS, Scope, Writer, vector_name
from moapipe.targets.lane import assuming, conditions, everywhere, plan
from moapipe.targets.strip import is_strip
from moapipe.targets.target import Local, Text
from moapipe.targets.tile import comments, shape
from moapipe.targets.transpose import Transpose, transposition, whole

EXPANDED = 4
"""A lane loop of at most so many vectors is written out; a longer one without registers is a loop over vectors."""


class Walker:
    """Writes statements; collects lines and local variables of one procedure. `marks` numbers the tiles of the whole file; `barriers`
    are the thread loops that the team waits in front of."""

    def __init__(self, writer: Writer, marks: list[tuple[str, int, int, int]], barriers: frozenset[int] = frozenset()) -> None:
        self.writer, self.target, self.unit, self.marks, self.barriers = writer, writer.target, writer.unit, marks, barriers
        self.shared: dict[str, Local] = {}
        self.lines: list[str] = []
        self.locals: dict[str, Local] = {}
        self.indices: dict[str, None] = {}
        self.temporaries = 0
        self.lane = ""      # the innermost loop of the thread nest that is being written
        self.run = 0        # the line where the statements of the innermost open loop go on

    # -------------------------------------------------------------- text

    def line(self, depth: int, form: str, *parts: str) -> None:
        self.lines.append("    " * depth + form.format(*parts))

    def assign(self, depth: int, place: str, value: str) -> None:
        self.line(depth, self.target.assign, place, value)

    def local(self, kind: str, name: str, extents: tuple[int, ...] = ()) -> str:
        self.locals[name] = Local(kind, name, extents)  # type: ignore[arg-type]
        return name

    def fresh(self, kind: str, stem: str) -> str:
        self.temporaries += 1
        return self.local(kind, f"{stem}_{self.temporaries}")

    # -------------------------------------------------------------- statements

    def body(self, body: Body, scope: Scope, depth: int) -> None:
        for s in body:
            match s:
                case Loop():
                    self.loop(s, scope, depth)
                case If():
                    self.line(depth, self.target.branch[0], self.writer.index(s.condition, scope).text)
                    self.body(s.body, scope, depth + 1)
                    self.line(depth, self.target.branch[2])
                case Alloc():
                    self.alloc(self.writer.arrays[s.array])
                case Assign() | Accumulate():
                    self.leaf(s, scope, depth)
                case _:
                    assert_never(s)

    def alloc(self, a: Array) -> None:
        """Registers become local variables, shared arrays the team's; private ones already have their place in the workspace."""
        if a.space not in CHIP:
            return
        extents = tuple(self._extent(a, e) for e in self.writer.own(a.shape, a.name))
        name = self.writer.names["a:" + a.name]
        if a.space == "shared":
            self.shared[name] = Local("array", name, extents)
            return
        if self.target.lanes == "loops":
            self.local("array", name, extents)
            return
        if extents[-1] % self.unit.lanes:
            raise TargetError(f"the last extent of register array {a.name} is {extents[-1]}, no multiple of V = {self.unit.lanes}",
                              where=self.writer.kernel.name, hint="make the tile's width a multiple of V")
        for at in product(*(range(e) for e in extents[:-1]), range(extents[-1] // self.unit.lanes)):
            self.local("vector", vector_name(name, at))

    def _extent(self, a: Array, e: Scalar) -> int:
        if (n := constant(e)) is None:
            raise TargetError(f"{a.space} array {a.name} has extent {text(e)}, which is no number", where=self.writer.kernel.name)
        return n

    def crew(self, s: Loop, scope: Scope, depth: int) -> None:
        """A thread nest: one thread an iteration, which it tells from its number; the others of the team do nothing here."""
        c, team = crew(s), self.target.team
        assert team is not None
        if id(s) in self.barriers:
            self.line(depth, team.barrier)
        number: Scalar = Var("thread")
        self.line(depth, self.target.branch[0], self.writer.index(Op("<", (number, Num(c.threads))), scope).text)
        step, told, start = c.threads, {}, len(self.lines)
        for l, extent in zip(c.loops, c.extents, strict=True):
            rest, step = number if l is s else Op("%", (number, Num(step))), step // extent
            told[self.writer.names["v:" + l.var]] = self.writer.index(Op("//", (rest, Num(step))), scope).text
            scope = scope.under(l.var, l.lo, l.hi)
        self.lane = c.loops[-1].var
        self.body(c.body, scope, depth + 1)
        used = set(re.findall(r"\w+", "\n".join(self.lines[start:])))
        self.lines[start:start] = ["    " * (depth + 1) + team.constant.format(name, e) for name, e in told.items() if name in used]
        self.line(depth, self.target.branch[2])

    def loop(self, s: Loop, scope: Scope, depth: int) -> None:
        vectors = self.target.lanes == "vectors"
        if is_strip(s, frozenset(self.target.strips)):
            self.strip(s, scope, depth)
            return
        if s.kind == "unroll" and vectors:
            lo, hi = self.bounds(s, scope)
            for i in range(lo, hi):
                self.body(s.body, scope.knowing(s.var, Num(i)), depth)
        elif s.kind == "thread":
            self.crew(s, scope, depth)
        elif s.kind == "warp":
            self.across(s, scope, depth)
        elif s.kind == "vector":
            self.together(s, scope, depth)
        elif s.kind == "lane" and vectors and not scope.lane:
            self.lane_loop(s, scope, depth)
        elif "transpose" in self.target.vector and not scope.lane and (t := transposition(s, self.writer.arrays, self.unit.lanes)):
            self.transpose(t, scope, depth)
        else:
            self.plain_loop(s, scope, depth)

    def across(self, s: Loop, scope: Scope, depth: int) -> None:
        """A fold over the lanes of a warp: each gives its own term, and all get the result."""
        (leaf,), team = s.body, self.target.team
        assert isinstance(leaf, Accumulate) and team is not None
        own = self.writer.value(substitute(leaf.value, {s.var: Var(self.lane)}), scope)
        place, _ = self.writer.place(leaf.target, scope)
        folded = Text(team.across.format(leaf.monoid, own.text, self.bounds(s, scope)[1]))
        self.assign(depth, place, self.writer.apply(MONOIDS[leaf.monoid], (Text(place), folded)).text)

    def together(self, s: Loop, scope: Scope, depth: int) -> None:
        """Elements that are fetched as one where all are there and the first lies at a multiple of their number, else one by one."""
        w, team = wide(s, self.writer.arrays), self.target.team
        assert team is not None
        guard: Scalar = reduce(lambda a, b: Op("and", (a, b)), w.whole) if w.whole else Op("<", (Num(0), Num(1)))
        self.line(depth, self.target.branch[0], self.writer.index(guard, scope).text)
        self.line(depth + 1, team.fetch, self.target.address.format(self.writer.place(w.first, scope)[0]))
        for i in range(w.width):
            place, _ = self.writer.place(w.leaf.target, scope.knowing(s.var, Num(i)))
            self.assign(depth + 1, place, team.element.format(i))
        if w.whole:
            self.line(depth, self.target.branch[1])
            self.plain_loop(s, scope, depth + 1)
        self.line(depth, self.target.branch[2])

    def strip(self, s: Loop, scope: Scope, depth: int) -> None:
        """A block of exponentials: one call, from the first element of the argument to the first of the result."""
        (leaf,), first = s.body, scope.knowing(s.var, Num(0))
        assert isinstance(leaf, Assign) and isinstance(leaf.value, Op)
        places = [self.writer.place(r, first)[0] for r in (leaf.value.args[0], leaf.target) if isinstance(r, Ref)]
        self.line(depth, self.target.strips[leaf.value.name], str(self.bounds(s, scope)[1]), *places)

    def transpose(self, t: Transpose, scope: Scope, depth: int) -> None:
        """Whole blocks by shuffles; the columns left over in a row of blocks, then the rows left over, element by element."""
        row, column = (self.writer.names["v:" + s.var] for s in (t.rows, t.columns))
        self.indices |= dict.fromkeys((row, column))
        ends = [whole(s, t.edge) for s in (t.rows, t.columns)]
        inner = scope.under(t.rows.var, t.rows.lo, t.rows.hi).under(t.columns.var, t.columns.lo, t.columns.hi)
        head = self.target.stride
        self.line(depth, head, row, self.writer.index(t.rows.lo, scope).text, self.limit(ends[0], scope), str(t.edge))
        self.line(depth + 1, head, column, self.writer.index(t.columns.lo, scope).text, self.limit(ends[1], scope), str(t.edge))
        places = [self.target.address.format(self.writer.place(r, inner)[0]) for r in (t.source, t.leaf.target)]
        steps = [self.writer.argument(d, inner) for d in (t.source_step, t.target_step)]
        factor = [] if t.factor is None else [self.writer.value(t.factor, inner).text]
        form = self.target.vector["transpose" if t.factor is None else "scaled transpose"]
        self.line(depth + 2, form, str(t.edge), *factor, places[0], steps[0], places[1], steps[1])
        self.line(depth + 1, self.target.loop[1])
        edge = Loop("lane", Num(0), Num(t.edge), (self.shifted(t),))
        if simplify(ends[1]) != simplify(t.columns.hi):
            self.plain_loop(replace(t.columns, lo=ends[1], body=(edge,)), inner, depth + 1)
        self.line(depth, self.target.loop[1])
        if simplify(ends[0]) != simplify(t.rows.hi):
            self.plain_loop(replace(t.rows, lo=ends[0], body=(replace(t.columns, body=(t.leaf,)),)), scope, depth)

    def shifted(self, t: Transpose) -> Leaf:
        """The copy at row + lane."""
        at = {t.rows.var: Op("+", (Var(t.rows.var), Var("lane")))}
        target = substitute(t.leaf.target, at)
        assert isinstance(target, Ref)
        return replace(t.leaf, target=target, value=substitute(t.leaf.value, at))

    def bounds(self, s: Loop, scope: Scope) -> tuple[int, int]:
        lo, hi = (constant(simplify(substitute(e, scope.known))) for e in (s.lo, s.hi))
        if lo is None or hi is None:
            raise TargetError(f"{s.kind} loop {s.var} has bounds {text(s.lo)}, {text(s.hi)}, which are no numbers",
                              where=self.writer.kernel.name, hint="split the axis by a constant first")
        return lo, hi

    def plain_loop(self, s: Loop, scope: Scope, depth: int) -> None:
        name = self.writer.names["v:" + s.var]
        self.indices[name] = None
        marks = comments(s.mark, len(self.marks)) if s.mark else ("", "")
        if s.mark:
            self.line(depth, self.target.comment, marks[0])
            self.marks.append((s.mark, *shape(s, self.unit.lanes)))
        lo, hi = (simplify(substitute(e, scope.known)) for e in (s.lo, s.hi))
        for hint in self.hints(s, scope):
            self.line(depth, hint)
        self.line(depth, self.target.loop[0], name, self.writer.index(lo, scope).text, self.end(hi, scope, depth))
        self.run = len(self.lines)
        inner = scope.under(s.var, lo, hi)
        self.body(s.body, replace(inner, known={k: v for k, v in inner.known.items() if k != s.var}), depth + 1)
        self.line(depth, self.target.loop[1])
        self.run = len(self.lines)
        if s.mark:
            self.line(depth, self.target.comment, marks[1])

    def hints(self, s: Loop, scope: Scope) -> tuple[str, ...]:
        """What the language says to the compiler before a loop of constant extent; registers have no number that a loop could count."""
        kept = s.kind == "vector" and any(self.writer.arrays[a].space == "register" for a in written(s.body))
        return self.target.hints("unroll" if kept else s.kind, self.bounds(s, scope)[1]) if s.kind in ("lane", "unroll", "vector") else ()

    def end(self, hi: Scalar, scope: Scope, depth: int) -> str:
        """The bound of a loop; on a GPU, where compilers reckon it anew in every step, a constant if it is read from memory."""
        if self.target.team is None or not references(hi):
            return self.limit(hi, scope)
        self.temporaries += 1
        self.line(depth, self.target.team.constant, f"end_{self.temporaries}", self.limit(hi, scope))
        return f"end_{self.temporaries}"

    def limit(self, hi: Scalar, scope: Scope) -> str:
        """The bound as the language's loop header wants it: C exclusive, Fortran the last value."""
        return self.writer.index(hi if self.target.exclusive else Op("-", (hi, Num(1))), scope).text

    # -------------------------------------------------------------- lanes

    def lane_loop(self, s: Loop, scope: Scope, depth: int) -> None:
        """V lanes at a time: written out when short or when registers are involved, else a loop that steps by V."""
        lo, hi = self.bounds(s, scope)
        v = self.unit.lanes
        if (hi - lo) % v or lo:
            raise TargetError(f"lane loop {s.var} runs {lo}..{hi}, no multiple of V = {v}", where=self.writer.kernel.name,
                              hint="lanes are cut into whole vectors; split the axis by a multiple of V")
        inner = replace(scope.under(s.var, Num(lo), Num(hi)), lane=s.var)
        registers = any(self.writer.arrays[x].space == "register" for x in read(s.body) | written(s.body))
        fold = self.horizontal(s, inner)
        part = self.begin_fold(fold, depth) if fold else ""
        if (hi - lo) // v <= EXPANDED or registers:
            for base in range(lo, hi, v):
                at = replace(inner.knowing(s.var, Num(base)), base=Num(base))
                self.fold_step(fold, part, at, depth) if fold else self.body(s.body, at, depth)
        else:
            name = self.writer.names["v:" + s.var]
            self.line(depth, self.target.stride, name, str(lo), str(hi), str(v))
            at = replace(inner, base=Var(s.var))
            self.fold_step(fold, part, at, depth + 1) if fold else self.body(s.body, at, depth + 1)
            self.line(depth, self.target.loop[1])
        if fold:
            self.end_fold(fold, part, scope, depth)

    def horizontal(self, s: Loop, scope: Scope) -> Accumulate | None:
        """The one leaf of this lane loop, when it folds over the lanes and can be a vector statement."""
        match s.body:
            case (Accumulate() as leaf,) if s.var not in variables(leaf.target) and all(s.var in variables(w) for w in leaf.where):
                return leaf if plan(leaf, scope, self.writer.arrays, self.target) == "vector" else None
            case _:
                return None

    def begin_fold(self, leaf: Accumulate, depth: int) -> str:
        part = self.fresh("vector", "part")
        unit = self.target.literal(UNITS[leaf.monoid], self.unit)
        self.assign(depth, part, self.writer.splat(unit))
        return part

    def fold_step(self, leaf: Accumulate, part: str, scope: Scope, depth: int) -> None:
        value = self.masked(leaf, self.writer.value(leaf.value, scope), self.target.literal(UNITS[leaf.monoid], self.unit), scope)
        self.assign(depth, part, self.writer.apply(MONOIDS[leaf.monoid], (Text(part, vector=True), value)).text)

    def end_fold(self, leaf: Accumulate, part: str, scope: Scope, depth: int) -> None:
        place, _ = self.writer.place(leaf.target, scope)
        total = Text(self.target.vector["fold " + leaf.monoid].format(part))
        self.assign(depth, place, self.writer.apply(MONOIDS[leaf.monoid], (Text(place), total)).text)

    def masked(self, leaf: Leaf, value: Text, other: Text, scope: Scope) -> Text:
        """`value` in the lanes where the leaf's guards hold, `other` in the rest."""
        for w in leaf.where:
            if scope.lane in variables(w):
                mask = self.writer.condition(w, scope).text
                value = Text(self.target.vector["select"].format(mask, self.writer.splat(value), self.writer.splat(other)), vector=True)
        return value

    # -------------------------------------------------------------- leaves

    def leaf(self, s: Leaf, scope: Scope, depth: int) -> None:
        """One statement under those of its guards that are the same for all lanes."""
        uniform = [w for w in s.where if not scope.lane or scope.lane not in variables(w)]
        if uniform:
            guard = uniform[0]
            for w in uniform[1:]:
                guard = Op("and", (guard, w))
            self.line(depth, self.target.branch[0], self.writer.condition(guard, replace(scope, lane="")).text)
            self.leaf(replace(s, where=tuple(w for w in s.where if w not in uniform)), scope, depth + 1)
            self.line(depth, self.target.branch[2])
        elif scope.lane:
            self.vector_leaf(s, scope, depth)
        else:
            self.scalar_leaf(s, scope, depth)

    def scalar_leaf(self, s: Leaf, scope: Scope, depth: int) -> None:
        place, _ = self.writer.place(s.target, scope)
        value = self.writer.value(s.value, scope)
        if isinstance(s, Accumulate) and s.atomic:
            for form in self.target.atomic:
                self.line(depth, form, place, value.text)
        else:
            self.assign(depth, place, self.combined(s, Text(place), value).text)

    def combined(self, s: Leaf, old: Text, value: Text) -> Text:
        return self.writer.apply(MONOIDS[s.monoid], (old, value)) if isinstance(s, Accumulate) else value

    def vector_leaf(self, s: Leaf, scope: Scope, depth: int) -> None:
        match plan(s, scope, self.writer.arrays, self.target):
            case "vector":
                self.vector_statement(s, scope, depth)
            case "scalar":
                self.lane_by_lane(s, scope, depth)
            case "split":
                atoms = tuple(conditions(s, scope.lane))
                worst = everywhere(atoms[0], scope.lane, scope.base, self.unit.lanes)
                for a in atoms[1:]:
                    worst = Op("and", (worst, everywhere(a, scope.lane, scope.base, self.unit.lanes)))
                self.line(depth, self.target.branch[0], self.writer.index(worst, scope).text)
                clean = replace(s, where=(), value=assuming(s.value, frozenset(atoms)))
                self.vector_statement(clean, scope, depth + 1)
                self.line(depth, self.target.branch[1])
                self.lane_by_lane(s, scope, depth + 1)
                self.line(depth, self.target.branch[2])

    def vector_statement(self, s: Leaf, scope: Scope, depth: int) -> None:
        value = self.writer.value(s.value, scope)
        if scope.lane not in variables(s.target):
            assert isinstance(s, Accumulate)
            unit = self.target.literal(UNITS[s.monoid], self.unit)
            folded = Text(self.target.vector["fold " + s.monoid].format(self.masked(s, value, unit, scope).text))
            place, _ = self.writer.place(s.target, scope)
            self.assign(depth, place, self.writer.apply(MONOIDS[s.monoid], (Text(place), folded)).text)
            return
        where, _ = self.writer.place(s.target, scope)
        for r in s.ahead if "prefetch" in self.target.vector else ():
            self.ask(depth, self.writer.place(r, scope)[0])
        old = self.writer.load(s.target, scope)
        new = self.masked(s, self.combined(s, old, value), old, scope)
        array = self.writer.arrays[s.target.array]
        if array.space == "register":
            self.assign(depth, where, self.writer.splat(new))
        else:
            self.line(depth, self.target.vector["stream" if array.stream else "store"], where, self.writer.splat(new))

    def ask(self, depth: int, place: str) -> None:
        """Ask for a line once: the rows of a tile read the same one."""
        words = "    " * depth + self.target.vector["prefetch"].format(place)
        if words not in self.lines[self.run :]:
            self.lines.append(words)

    def lane_by_lane(self, s: Leaf, scope: Scope, depth: int) -> None:
        """A scalar loop over the V lanes: for what has no vector form, and for lanes that a guard spares."""
        lane = self.writer.names["v:lane"]
        spot = simplify(Op("+", (scope.base, Var("lane"))))
        self.line(depth, self.target.loop[0], lane, "0", str(self.unit.lanes))
        self.leaf(s, replace(scope.knowing(scope.lane, spot), lane=""), depth + 1)
        self.line(depth, self.target.loop[1])
