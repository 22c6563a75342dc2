"""In: an operational normal form, a language, an instruction set, a dtype. Out: the source text and its part of the manifest.

One walker for every language. The entry point holds the serial loops around parallel ones; each parallel loop's body, and
each run of serial statements, is a procedure of its own. Consecutive parallel loops share one parallel region.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from itertools import groupby
from typing import Literal

from moapipe.algebra.index import add, maximum, multiply, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Scalar, Var, text
from moapipe.errors import TargetError
from moapipe.loops.onf import CHIP, Alloc, Array, Body, If, Kernel, Loop, Stmt, read, statements, written
from moapipe.loops.soundness import verify
from moapipe.loops.team import barriers, collapsed, threads
from moapipe.targets.contract import check
from moapipe.targets.expression import Scope, Writer
from moapipe.targets.isa import isa_named
from moapipe.targets.procedure import Walker
from moapipe.targets.table import taking
from moapipe.targets.target import Call, Entry, Launch, Parameter, Procedure, Source, Target, Tile, Unit
from moapipe.targets.tile import comments
from moapipe.targets.workspace import Workspace, workspace

ROOT = Scope({}, {})
OWN = ("threads", "work", "own", "own_size", "at_own", "lane", "turn")
Sort = Literal["region", "nest", "serial"]


def emit(kernel: Kernel, target: str, isa: str, dtype: str) -> Source:
    """Write `kernel` as C, Fortran or CUDA for one instruction set and dtype.

    Raises TargetError when the loop nest breaks the contract of the ONF (a lane loop that is no multiple of V, a lane that is
    not unit-stride, a private array that a caller cannot size, a register array with indices that are no constants), and for a dtype
    that the language does not take.
    """
    verify(kernel)
    row, unit = taking(target, dtype), Unit(isa_named(isa), dtype)
    prepared = row.prepare(kernel, unit)
    for k in (kernel, prepared) if row.team and prepared is not kernel else (kernel,):
        check(k, unit, row.team)
    if row.team is None and threads(kernel.body):
        raise TargetError("its iterations are run by teams of threads", where=kernel.name, hint=f"{target} has none: name the targets of the variant")
    return _Emitter(prepared, row, unit).source(kernel)


def elements(a: Array) -> Scalar:
    """How many elements an array has."""
    out: Scalar = Num(1)
    for n in a.shape:
        out = multiply(out, n)
    return out


def symbol(kernel: Kernel) -> str:
    """The name of the kernel's function in every language."""
    return f"moa_{kernel.name}"


def identifiers(kernel: Kernel, target: Target) -> dict[str, str]:
    """{"a:name" | "v:name": identifier} for arrays and for sizes and loop variables, unique in the language's own sense of case."""
    taken = set(target.reserved) | set(OWN)
    out: dict[str, str] = {}
    loops = dict.fromkeys(s.var for s in statements(kernel.body) if isinstance(s, Loop))
    wanted = [("a", a.name, "array") for a in kernel.arrays] + [("v", s, "size") for s in kernel.sizes] + [("v", v, "loop") for v in loops]
    for sort, name, prefix in wanted:
        word = target.prefixes[prefix] + re.sub(r"\W", "_", name)
        while (word.lower() if target.fold_case else word) in taken:
            word += "_"
        taken.add(word.lower() if target.fold_case else word)
        out[f"{sort}:{name}"] = word
    return out | {"v:threads": "threads", "v:lane": "lane", "v:turn": "turn", "v:thread": target.team.thread if target.team else ""}


class _Emitter:
    """Collects procedures while it walks the entry point's body."""

    def __init__(self, kernel: Kernel, target: Target, unit: Unit) -> None:
        self.kernel, self.target, self.unit = kernel, target, unit
        self.names = identifiers(kernel, target)
        self.space: Workspace = workspace(kernel, unit.size)
        self.writer = Writer(kernel, target, unit, self.names)
        self.calls: list[Call] = []
        self.launches: list[dict[str, object]] = []
        self.marks: list[tuple[str, int, int, int]] = []
        self.indices: dict[str, None] = {}
        self.alone = False       # serial statements use private arrays: those of the first thread's slice

    # -------------------------------------------------------------- the file

    def source(self, original: Kernel) -> Source:
        lines = self.host(self.kernel.body, ROOT, (), 0, self.launches)
        parts: list[str] = []
        for c in self.calls:
            parts += [*self.target.procedure(c, self.unit), ""]
        parts += self.target.entry(self.entry(tuple(lines)))
        written_text = self.target.file(symbol(original), self.unit, tuple(parts))
        tiles = self.tiles(written_text)
        return Source(written_text, tiles, self.manifest(original, tiles))

    def manifest(self, k: Kernel, tiles: tuple[Tile, ...]) -> dict[str, object]:
        def rows(space: str) -> list[dict[str, object]]:
            return [{"name": a.name, "shape": [text(s) for s in a.shape], **({"becomes": a.becomes} if a.becomes else {}),
                     **({"dtype": self.unit.dtype} if a.narrow else {})} for a in k.arrays if a.space == space]

        return {
            "symbol": symbol(k), "source": self.target.source, "sizes": list(k.sizes), "inputs": rows("input"), "outputs": rows("output"),
            "workspace": self.space.manifest(),
            "tiles": [asdict(t) | {"lines": list(t.lines)} for t in tiles],
            **({"launches": self.launches} if self.target.launch else {}),
        }

    def tiles(self, source: str) -> tuple[Tile, ...]:
        """Tiles with the source lines between their comments."""
        out = []
        lines = {l.strip(): i for i, l in enumerate(source.split("\n"), 1)}
        for number, (mark, rows, columns, fma) in enumerate(self.marks):
            first, last = (lines[self.target.comment.format(form)] for form in comments(mark, number))
            out.append(Tile(mark, rows, columns, self.unit.lanes, fma, (first + 1, last - 1)))
        return tuple(out)

    # -------------------------------------------------------------- the entry point

    def entry(self, lines: tuple[str, ...]) -> Entry:
        def given(space: str) -> tuple[str, ...]:
            return tuple(self.names["a:" + a.name] for a in self.kernel.arrays if a.space == space)

        constants = [("at_" + self.names["a:" + s.array.name], self.written(s.offset)) for s in self.space.slots]
        constants += [("at_own", self.written(self.space.shared)), ("own_size", self.written(self.space.slice))]
        used = set(re.findall(r"\w+", "\n".join(lines)))
        kept = tuple((n, e) for n, e in constants if (self.alone and n == "at_own") or n in used)
        sizes = tuple(self.names["v:" + s] for s in self.kernel.sizes)
        updated, narrow = (frozenset(self.names["a:" + a.name] for a in self.kernel.arrays if getattr(a, mark)) for mark in ("becomes", "narrow"))
        extents = {self.names["a:" + a.name]: self.written(elements(a)) for a in self.kernel.arrays if a.space in ("input", "output")}
        extents["work"] = self.written(self.space.elements)
        return Entry(symbol(self.kernel), given("input"), given("output"), sizes, kept, tuple(self.indices), self.alone, lines, updated, extents, narrow)

    def written(self, e: Scalar) -> str:
        return self.writer.index(simplify(e), ROOT).text

    def host(self, body: Body, scope: Scope, loops: tuple[Loop, ...], depth: int, rows: list[dict[str, object]]) -> list[str]:
        """Lines of the entry point for statements that are not inside a parallel loop; `rows` gets the launches among them."""
        out: list[str] = []
        pad = "    " * depth
        for sort, run in groupby((s for s in body if not self.global_alloc(s)), key=sort_of):
            group = tuple(run)
            if sort == "nest":
                for s in group:
                    out += self.around(s, scope, loops, depth, rows)
                continue
            nests = map(collapsed, group) if sort == "region" else [((), group)]
            calls = tuple(self.call(inner, loops, nest) for nest, inner in nests)
            out += [pad + l for l in self.target.region(calls)]
            rows += [self.launched(self.target.launch(c)) for c in calls] if self.target.launch else []
        return out

    def around(self, s: Stmt, scope: Scope, loops: tuple[Loop, ...], depth: int, rows: list[dict[str, object]]) -> list[str]:
        """A serial loop or a condition around parallel loops."""
        pad = "    " * depth
        inner: list[dict[str, object]] = []
        match s:
            case Loop():
                name = self.names["v:" + s.var]
                self.indices[name] = None
                rows.append({"for": s.var, "from": text(s.lo), "to": text(s.hi), "body": inner})
                head, foot, loops = self.target.loop[0].format(name, self.written(s.lo), self.bound(s)), self.target.loop[1].format(), (*loops, s)
            case If():
                rows.append({"if": text(s.condition), "body": inner})
                head, foot = self.target.branch[0].format(self.written(s.condition)), self.target.branch[2].format()
            case _:
                raise AssertionError(s)
        return [pad + head, *self.host(s.body, scope, loops, depth + 1, inner), pad + foot]

    def launched(self, l: Launch) -> dict[str, object]:
        """A launch as the manifest tells it: buffers by name, numbers as index expressions."""
        meaning = {self.names[k]: k.partition(":")[2] for k in self.names}
        meaning |= {"at_" + self.names["a:" + s.array.name]: text(simplify(s.offset)) for s in self.space.slots}
        meaning |= {"at_own": text(simplify(self.space.shared)), "own_size": text(simplify(self.space.slice))}
        return {"launch": l.function, "blocks": text(l.blocks), "block": l.block, "buffers": [meaning.get(b, b) for b in l.buffers],
                "integers": [*(meaning[n] for n in l.integers), text(l.threads)]}

    def bound(self, s: Loop) -> str:
        return self.written(s.hi if self.target.exclusive else Op("-", (s.hi, Num(1))))

    def global_alloc(self, s: Stmt) -> bool:
        """An array that begins to live out here belongs to the procedures that use it."""
        return isinstance(s, Alloc)

    # -------------------------------------------------------------- procedures

    def call(self, body: Body, around: tuple[Loop, ...], nest: tuple[Loop, ...]) -> Call:
        """Write `body` as a procedure; the call names what it uses, in the kernel's order."""
        walker = Walker(self.writer, self.marks, barriers(body) if nest else frozenset())
        scope = ROOT
        for l in (*around, *nest):
            scope = scope.under(l.var, l.lo, l.hi)
        mine, stored = read(body) | written(body), written(body)
        for a in self.kernel.arrays:
            if a.space in CHIP and a.name in mine:
                walker.alloc(a)
        walker.body(body, scope, 0)
        used = [a for a in self.kernel.arrays if a.space not in CHIP and a.name in mine]
        parameters = tuple(Parameter(self.names["a:" + a.name], self.extents(a), a.name in stored, a.narrow) for a in used)
        lines = tuple(walker.lines)
        everything = "\n".join([*lines, *(e for p in parameters for e in p.extents)])
        passed = [self.names["v:" + n] for n in (*self.kernel.sizes, *(l.var for l in (*around, *nest)))]
        words = set(re.findall(r"\w+", everything))
        integers = tuple(n for n in passed if n in words)
        p = Procedure(f"{symbol(self.kernel)}_{len(self.calls) + 1}", parameters, integers, tuple(walker.locals.values()),
                      tuple(walker.indices), lines, tuple(walker.shared.values()))
        dealt, spelled = self.dealt(nest)
        self.indices |= {self.names["v:" + l.var]: None for l in dealt}
        bounds = tuple((self.names["v:" + l.var], self.written(l.lo), self.bound(l)) for l in dealt)
        arguments = (*(self.address(a) for a in used), *walker.shared, *(spelled.get(n, n) for n in integers))
        streams = any(a.stream and a.name in stored for a in used)
        private = any(a.space == "private" for a in used)
        self.alone |= private and not nest
        trips = extent(nest)
        self.calls.append(Call(p, bounds, nest[-1].schedule if nest else "static", arguments, streams, private, trips, threads(body) if nest else 0))
        return self.calls[-1]

    def dealt(self, nest: tuple[Loop, ...]) -> tuple[tuple[Loop, ...], dict[str, str]]:
        """The parallel loops as they are written, and what stands for a loop variable in the call: a paired loop counts turns,
        the even ones from its first iteration upwards, the odd ones from its last downwards."""
        if not nest or nest[-1].schedule != "paired":
            return nest, {}
        last, turn = nest[-1], Var("turn")
        half = Op("//", (turn, Num(2)))
        back = Op("*", (Op("%", (turn, Num(2))), subtract(subtract(last.hi, 1), Op("*", (Num(2), half)))))
        number = add(half, back)
        return (*nest[:-1], replace(last, var="turn")), {self.names["v:" + last.var]: self.written(number)}

    def extents(self, a: Array) -> tuple[str, ...]:
        return tuple(self.written(s) for s in a.shape)

    def address(self, a: Array) -> str:
        name = self.names["a:" + a.name]
        form = self.target.storage[a.space if a.space in ("workspace", "private") else "given"]
        return form.format(name, f"at_{name}")


def extent(nest: tuple[Loop, ...]) -> Scalar:
    """How many iterations the loops have together."""
    out: Scalar = Num(1)
    for l in nest:
        out = multiply(out, l.hi if l.lo == Num(0) else maximum(subtract(l.hi, l.lo), 0))
    return out


def sort_of(s: Stmt) -> Sort:
    match s:
        case Loop(kind="parallel"):
            return "region"
        case Loop() | If() if any(isinstance(x, Loop) and x.kind == "parallel" for x in statements(s.body)):
            return "nest"
        case _:
            return "serial"
