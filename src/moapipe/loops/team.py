"""In: loop nests. Out: what a team of threads needs to know: how many there are, where they wait for each other, what each owns.

A parallel loop with `thread` loops inside is run by teams: one iteration by one team, one iteration of the directly nested thread
loops by one thread (CUDA: a block, OpenCL: a work-group). Everything between the parallel loop and its thread loops (serial loops,
conditions) is the same for all threads of a team, so a barrier in front of a thread loop is met by all of them or by none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2, prod

from moapipe.algebra.index import constant
from moapipe.algebra.scalar import Num, Ref, Scalar, Var, references, text, variables
from moapipe.errors import LiftError
from moapipe.loops.legal import all_atomic, own_block
from moapipe.loops.onf import (
    Accumulate,
    Alloc,
    Body,
    If,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    expressions,
    leaves,
    read,
    rename_variables,
    statements,
    written,
)

WARP = 32
"""Threads that run in step, and can read each other's registers."""


@dataclass(frozen=True, slots=True)
class Crew:
    """One thread nest: the statement that it begins with, its loops outermost first, what each thread does, and the serial loops
    of the team around it."""

    first: Loop
    loops: tuple[Loop, ...]
    body: Body
    around: tuple[Loop, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(constant(l.hi) or 0 for l in self.loops)

    @property
    def threads(self) -> int:
        return prod(self.extents)


def crew(s: Loop, around: tuple[Loop, ...] = ()) -> Crew:
    """The directly nested thread loops from `s` inwards."""
    loops, body = [s], s.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "thread":
        loops.append(body[0])
        body = body[0].body
    return Crew(s, tuple(loops), body, around)


def crews(body: Body, around: tuple[Loop, ...] = ()) -> Iterator[Crew]:
    """Every thread nest of a team's body, in the order of the text."""
    for s in body:
        if isinstance(s, Loop) and s.kind == "thread":
            yield crew(s, around)
        elif isinstance(s, Loop | If):
            yield from crews(s.body, (*around, s) if isinstance(s, Loop) else around)


def threads(body: Body) -> int:
    """The size of the team: that of its largest thread nest; 0 where there is none, and one thread runs an iteration."""
    return max((c.threads for c in crews(body)), default=0)


def collapsed(s: Stmt) -> tuple[tuple[Loop, ...], Body]:
    """The directly nested parallel loops from `s` inwards whose bounds do not depend on each other, and what they enclose: what one
    iteration is, whoever runs it."""
    assert isinstance(s, Loop)
    nest, body = [s], s.body
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].kind == "parallel":
        inner = body[0]
        if (variables(inner.lo) | variables(inner.hi)) & {l.var for l in nest}:
            break
        nest.append(inner)
        body = inner.body
    return tuple(nest), body


# ------------------------------------------------------------------ barriers


def barriers(body: Body) -> frozenset[int]:
    """Ids of the thread loops in an iteration (`collapsed`) in front of which the team must wait: since the last wait, on some path, another thread may have
    touched an element that is touched there, and one of the two accesses stores. All others are dropped."""
    found: set[int] = set()
    _placed(body, (), (), found)
    return frozenset(found)


def waits(k: Kernel) -> tuple[tuple[tuple[Loop, ...], tuple[Scalar, ...]], ...]:
    """(loops, conditions) around every barrier, in the order of the text: each team waits once whenever they come to it."""
    out: list[tuple[tuple[Loop, ...], tuple[Scalar, ...]]] = []

    def go(body: Body, loops: tuple[Loop, ...], conditions: tuple[Scalar, ...], found: frozenset[int] | None) -> None:
        for s in body:
            if isinstance(s, Loop) and s.kind == "thread":
                out.extend([(loops, conditions)] if found and id(s) in found else [])
            elif isinstance(s, Loop) and s.kind == "parallel" and found is None:
                nest, inner = collapsed(s)
                go(inner, (*loops, *nest), conditions, barriers(inner))
            elif isinstance(s, Loop):
                go(s.body, (*loops, s), conditions, found)
            elif isinstance(s, If):
                go(s.body, loops, (*conditions, s.condition), found)

    go(k.body, (), (), None)
    return tuple(out)


def _placed(body: Body, pending: tuple[Crew, ...], around: tuple[Loop, ...], found: set[int]) -> tuple[Crew, ...]:
    """`pending`: thread nests since the last barrier before and (returned) after the body."""
    for s in body:
        match s:
            case Loop(kind="thread"):
                mine = crew(s, around)
                if id(s) in found or any(depend(p, mine) for p in pending):
                    found.add(id(s))
                    pending = ()
                pending = _joined(pending, (mine,))
            case Loop():
                pending = _around(s, pending, (*around, s), found)
            case If():
                pending = _joined(pending, _placed(s.body, pending, around, found))
            case _:
                pass
    return pending


def _around(s: Loop, pending: tuple[Crew, ...], around: tuple[Loop, ...], found: set[int]) -> tuple[Crew, ...]:
    """A serial loop: its end comes before its beginning too. Barriers are only ever added, so this ends."""
    before, known = pending, (-1, -1)
    while known != (len(found), len(pending)):
        known = len(found), len(pending)
        pending = _joined(before, _placed(s.body, pending, around, found))
    return pending


def _joined(a: tuple[Crew, ...], b: tuple[Crew, ...]) -> tuple[Crew, ...]:
    return (*a, *(x for x in b if not any(x.first is y.first for y in a)))


def depend(a: Crew, b: Crew) -> bool:
    """Another thread may touch in `b` what one touches in `a`, and one of them stores it. Where every element is touched by the thread
    of the same number alone, nobody needs to wait."""
    own = {s.array for c in (a, b) for s in statements(c.body) if isinstance(s, Alloc)} | crossed(a.body) | crossed(b.body)
    shared = (written(a.body) & (read(b.body) | written(b.body))) | (read(a.body) & written(b.body))
    return any(not _same_thread(a, b, x) for x in sorted(shared - own) if not all_atomic((*a.body, *b.body), x))


def _same_thread(a: Crew, b: Crew, array: str) -> bool:
    if a.extents != b.extents:
        return False
    return all(own_block(x, y, array) for x, y in zip(_turned(a), _turned(b), strict=True))


def _turned(c: Crew) -> tuple[Loop, ...]:
    """The thread nest from each of its loops on, these named by their place, and with the team's serial loops inside: whatever their
    iteration, it is the same thread."""
    out: list[Loop] = []
    body = rename_variables(c.body, {l.var: f"thread {i}" for i, l in enumerate(c.loops)})
    for l in reversed((*(replace(l, var=f"thread {i}") for i, l in enumerate(c.loops)), *c.around)):
        out.insert(0, replace(l, body=body))
        body = (out[0],)
    return tuple(out[: len(c.loops)])


# ------------------------------------------------------------------ lanes of a warp


def crossed(body: Body) -> set[str]:
    """Registers that lanes read of their neighbours, in `warp` loops. Their exchange is a wait of its own."""
    found = [(s.var, r) for s in statements(body) if isinstance(s, Loop) and s.kind == "warp" for e in expressions(s.body) for r in references(e)]
    return {r.array for var, r in found if var in variables(r)}


def shuffles(k: Kernel) -> tuple[tuple[tuple[Loop, ...], tuple[Scalar, ...], int], ...]:
    """(loops, conditions, instructions of the team's warps) for every fold over lanes: each halves the distance between them."""
    return tuple((tuple(l for l in loops if l.kind not in ("thread", "warp")), conditions,
                  -(-prod(constant(l.hi) or 0 for l in loops if l.kind == "thread") // WARP) * int(log2(constant(loops[-1].hi) or 1)))
                 for _, loops, conditions in leaves(k.body) if loops and loops[-1].kind == "warp")


def _check_lanes(k: Kernel, c: Crew, team: int) -> None:
    """LiftError unless every fold over lanes in a thread nest is one that all lanes of a warp come to, over registers, into registers."""
    threads, last = {l.var for l in c.loops}, c.loops[-1]
    for leaf, loops, conditions in leaves(c.body):
        warp = next((l for l in loops if l.kind == "warp"), None)
        if warp is None:
            continue
        n = constant(warp.hi) or 0
        diverge = [e for l in loops for e in (l.lo, l.hi) if variables(e) & threads] + [e for e in (*conditions, *leaf.where) if variables(e) & threads]
        own = [r for r in references(leaf.value) if warp.var in variables(r)]
        if warp.lo != Num(0) or n not in (2, 4, 8, 16, WARP) or last.hi != warp.hi:
            why = f"{warp.var} has {text(warp.hi)} lanes, and {last.var} {text(last.hi)}: both must be 2, 4, …, {WARP}"
        elif diverge or (c.threads % WARP and c.threads != team):
            why = f"some lanes of a warp would not come to the fold over {warp.var}"
        elif not _folds(leaf, loops, warp) or last.var in variables(leaf.value):
            why = f"{leaf.name} is no fold over {warp.var} alone, whose terms are the same for all lanes"
        elif any(k.array(r.array).space != "register" for r in (leaf.target, *own)):
            why = f"{leaf.name} folds {', '.join(r.array for r in own)} into {leaf.target.array}, not registers into a register"
        else:
            continue
        raise LiftError(why, where=f"{k.name}: {leaf.name}", hint="bind the innermost thread loop and the fold to as many lanes; place what they hold in registers")


def _folds(leaf: Leaf, loops: tuple[Loop, ...], warp: Loop) -> bool:
    return isinstance(leaf, Accumulate) and not leaf.atomic and loops[-1] is warp and warp.body == (leaf,) and warp.var not in variables(leaf.target)


# ------------------------------------------------------------------ what a thread owns


def owned(k: Kernel) -> dict[str, int]:
    """{register array that is allocated outside of thread loops: how many of its leading indices are the thread's number}."""
    spaces = {a.name: a.space for a in k.arrays}
    outside: dict[str, int] = {}
    for region in regions(k.body):
        inside = {s.array for c in crews((region,)) for s in statements(c.body) if isinstance(s, Alloc)}
        for c in crews((region,)):
            for x in (read(c.body) | written(c.body)) - inside:
                if spaces.get(x) == "register":
                    outside[x] = len(c.loops)
    return outside


def regions(body: Body) -> Iterator[Loop]:
    """The outermost parallel loops that teams run."""
    for s in body:
        if isinstance(s, Loop) and s.kind == "parallel":
            if threads((s,)):
                yield s
        elif isinstance(s, Loop | If):
            yield from regions(s.body)


def check(k: Kernel) -> None:
    """LiftError where a kernel with thread loops is none that teams can run: a statement that no thread runs, thread loops that are
    not directly nested or not inside a parallel loop, a register that another thread would touch, private memory."""
    teams = tuple(regions(k.body))
    every = sum(isinstance(s, Loop) and s.kind == "thread" for s in statements(k.body))
    if sum(len(c.loops) for r in teams for c in crews((r,))) != every:
        raise LiftError("a thread loop stands outside of a parallel loop, or in another one with something between", where=k.name,
                        hint="bind directly nested loops, inside the parallel one")
    for r in teams:
        idle = {leaf.name for leaf, loops, _ in leaves((r,)) if not any(l.kind == "thread" for l in loops)}
        if idle:
            raise LiftError(f"no thread is told to run {', '.join(sorted(idle))}", where=k.name, hint=f"bind a loop around it, inside {r.var}, to threads")
        for c in crews((r,)):
            _check_lanes(k, c, threads((r,)))
            for a in (k.array(x) for x in sorted(read(c.body) | written(c.body))):
                if a.space == "private":
                    raise LiftError(f"{a.name} is private memory, and a team has none", where=k.name, hint="place it: shared or register")
    for name, rank in owned(k).items():
        owners(k, name, rank)


def owners(k: Kernel, array: str, rank: int) -> None:
    """LiftError unless every thread touches its own part of a register array only: the indices of the threads lead, as they are."""
    shape = k.array(array).shape[:rank]
    for r in regions(k.body):
        for c in crews((r,)):
            lanes = tuple(s.var for s in statements(c.body) if isinstance(s, Loop) and s.kind == "warp")
            for e in expressions(c.body):
                for x in references(e):
                    if x.array == array and not _owns(x, c, shape, lanes):
                        raise LiftError(f"{text(x)} is not the thread's own part of {array}, whose owners are {', '.join(l.var for l in c.loops)}",
                                        where=f"{k.name}: {array}", hint="block and layout put the thread's indices first; or place it shared")


def _owns(x: Ref, c: Crew, shape: tuple[Scalar, ...], lanes: tuple[str, ...]) -> bool:
    """The thread's own part, or that of a neighbour in its warp."""
    *outer, mine = (Var(l.var) for l in c.loops)
    owner = x.index[: len(shape)]
    return shape == tuple(l.hi for l in c.loops) and owner[:-1] == tuple(outer) and owner[-1] in (mine, *map(Var, lanes))
