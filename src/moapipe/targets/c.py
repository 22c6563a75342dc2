"""In: nothing. Out: the record of the C target: GNU C with vector extensions and OpenMP, no intrinsics, no libm in vector code."""

from __future__ import annotations

import re
from math import inf, isnan

from moapipe.errors import TargetError
from moapipe.loops.onf import Kernel, Schedule
from moapipe.targets.support import RESERVED, helpers
from moapipe.targets.target import ATOM, LEVELS, Call, Entry, Local, Parameter, Target, Text, Unit, indent

SCALAR = {
    "/": "{0} / {1}", "max": "max_real({0}, {1})", "min": "min_real({0}, {1})", "abs": "FABS({0})", "sqrt": "SQRT({0})",
    "reciprocal": "(1 / ({0}))", "exp": "exp_real({0})", "exp2": "exp2_real({0})", "log": "LOG({0})", "log2": "LOG2({0})", "floor": "FLOOR({0})",
    "sigmoid": "sigmoid_real({0})", "select": "({0} ? {1} : {2})",
}
VECTOR = {
    "splat": "splat({0})", "load": "load({0})", "store": "store({0}, {1});", "stream": "stream({0}, {1});",
    "prefetch": "__builtin_prefetch({0});",
    "transpose": "transpose_{0}({1}, {2}, {3}, {4});", "scaled transpose": "transpose_scaled_{0}({1}, {2}, {3}, {4}, {5});",
    "select": "select({0}, {1}, {2})", "below": "below({0})", "flag": "flag({0})", "not": "~{0}", "and": "({0} & {1})", "or": "({0} | {1})",
    "max": "vmax({0}, {1})", "min": "vmin({0}, {1})", "abs": "vabs({0})", "sqrt": "vsqrt({0})", "reciprocal": "(1 / ({0}))",
    "exp": "vexp({0})", "exp2": "vexp2({0})", "sigmoid": "vsigmoid({0})",
    "fold sum": "fold_sum({0})", "fold product": "fold_product({0})", "fold max": "fold_max({0})", "fold min": "fold_min({0})",
}
INTEGER = {
    "//": "floor_div({0}, {1})", "%": "floor_mod({0}, {1})", "quotient": "({0} / {1})", "remainder": "({0} % {1})",
    "min": "min_index({0}, {1})", "max": "max_index({0}, {1})", "floor": "(int64_t)FLOOR({0})",
}
SIGNS = {s: s for s in ("+", "-", "*", "/", "<", "<=", "==")} | {"and": "&&", "or": "||", "not": "!"}
GNU = ("-O3", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-ipa-icf", "-g1")
"""Flags of both GNU languages. Equal procedures are not merged (icf): the assembler gate finds each tile by the lines of its own. Nothing here reassociates, flushes subnormal numbers or changes the process's floating-point mode;
-g1 changes no instruction, its line numbers let the assembler gate find the tiles."""


SCHEDULES: dict[Schedule, str] = {"static": "static", "paired": "static", "dynamic": "dynamic"}
"""A region's schedule in OpenMP's words; the emitter has put paired iterations into their order."""


def literal(v: float, unit: Unit) -> Text:
    """The shortest decimal that reads back as the same number."""
    if isnan(v):
        raise TargetError("NaN is no literal", hint="a definition must not contain NaN")
    if v in (inf, -inf):
        return Text("INFINITY") if v > 0 else Text("-INFINITY", LEVELS["neg"])
    return Text(repr(v) + ("f" if unit.size == 4 else ""), ATOM if v >= 0 else LEVELS["neg"])


def parameter(p: Parameter) -> str:
    return f"{'' if p.written else 'const '}real *restrict {p.name}"


def declaration(l: Local, unit: Unit) -> str:
    match l.kind:
        case "vector":
            return f"vec {l.name};"
        case "array":
            size = 1
            for e in l.extents:
                size *= e
            return f"real {l.name}[{size}];"
        case "scalar":
            return f"real {l.name};"
        case "index":
            return f"int64_t {l.name};"
        case "limit":
            return f"int{8 * unit.size}_t {l.name};"


def declarations(locals: tuple[Local, ...], unit: Unit) -> tuple[str, ...]:
    """One line a row of named vectors, so that a register tile reads as a matrix."""
    rows: dict[str, list[str]] = {}
    for l in locals:
        row = re.sub(r"_\d+$", "", l.name) if l.kind == "vector" else l.name
        rows.setdefault(row if l.kind == "vector" else f"{l.kind} {l.name}", []).append(declaration(l, unit))
    return tuple(v[0][:-1] + "".join(", " + w[4:-1] for w in v[1:]) + ";" for v in rows.values())


def procedure(c: Call, unit: Unit) -> tuple[str, ...]:
    p = c.procedure
    head = ", ".join([*map(parameter, p.arrays), *(f"int64_t {n}" for n in p.integers)])
    return (f"static __attribute__((noinline)) void {p.name}({head}) {{", *indent((*declarations(p.locals, unit), *p.lines)), "}")


def nest(c: Call) -> tuple[str, ...]:
    lines: tuple[str, ...] = (f"{c.procedure.name}({', '.join(c.arguments)});",)
    for name, lo, hi in reversed(c.loops):
        lines = (f"for (int64_t {name} = {lo}; {name} < {hi}; {name}++)", *indent(lines))
    return lines


def region(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """Serial calls as they are; parallel loops in one region, a barrier after each."""
    if not calls[0].loops:
        return tuple(line for c in calls for line in nest(c))
    inner: list[str] = []
    if any(c.private for c in calls):
        inner.append("real *const own = work + at_own + omp_get_thread_num() * own_size;")
    for i, c in enumerate(calls):
        collapse = f" collapse({len(c.loops)})" if len(c.loops) > 1 else ""
        wait = " nowait" if c.streams or i == len(calls) - 1 else ""
        inner += [f"#pragma omp for{collapse} schedule({SCHEDULES[c.schedule]}){wait}", *nest(c)]
        inner += ["fence();"] if c.streams else []
        inner += ["#pragma omp barrier"] if c.streams and i < len(calls) - 1 else []
    return ("#pragma omp parallel num_threads((int)threads)", "{", *indent(tuple(inner)), "}")


def entry(e: Entry) -> tuple[str, ...]:
    arguments = [f"{'' if n in e.updated else 'const '}real *restrict {n}" for n in e.inputs] + [f"real *restrict {n}" for n in (*e.outputs, "work")]
    arguments += [f"int64_t {n}" for n in (*e.sizes, "threads")]
    lines = [f"const int64_t {n} = {v};" for n, v in e.constants]
    if e.private:
        lines.append("real *const own = work + at_own;")
    return (f"void {e.symbol}({', '.join(arguments)}) {{", *indent((*lines, "(void)work, (void)threads;", *e.lines)), "}")


def file(symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    """Types and the support functions that the text uses (and no other), then the text."""
    body = "\n".join(lines)
    return f"/* {symbol}: {unit.dtype} for {unit.isa.name}, vectors of {unit.lanes} */\n{helpers(body, unit)}\n{body}\n"


def prepare(kernel: Kernel, unit: Unit) -> Kernel:
    """C takes every loop nest as it is."""
    return kernel


C = Target(
    name="c", source="kernel.c", lanes="vectors", indexing="flat", lazy=True, strips={}, fold_case=False,
    prefixes={"array": "", "size": "", "loop": ""}, reserved=RESERVED, signs=SIGNS, scalar=SCALAR, vector=VECTOR, integer=INTEGER,
    narrow="{0}", cast="((real)({0}))", element="{0}[{1}]", exclusive=True, address="&{0}", comment="/* {0} */", assign="{0} = {1};",
    atomic=("#pragma omp atomic", "{0} += {1};"),
    loop=("for (int64_t {0} = {1}; {0} < {2}; {0}++) {{", "}}"), stride="for (int64_t {0} = {1}; {0} < {2}; {0} += {3}) {{",
    branch=("if ({0}) {{", "}} else {{", "}}"), hints=lambda kind, extent: (),
    storage={"given": "{0}", "workspace": "work + {1}", "private": "own + {1}"}, prepare=prepare, literal=literal,
    procedure=procedure, region=region, entry=entry, file=file,
    compiler="gcc", flags=("-std=gnu17", "-ffp-contract=fast", *GNU),
)
