"""In: nothing. Out: the record of the Fortran target: free form, plain constant loops, OpenMP, `bind(c)`.

Directives keep register tiles in registers: `unroll 1` and `vector` leave a lane loop to the vectoriser, however short (GCC 12
would peel it to scalars first), `unroll N` expands a loop over rows whatever its size. Array indices are reversed and zero-based,
so the buffers are those of C. Exponentials are blocks with EQUIVALENCEd reals and integers, which GCC vectorises (a scalar TRANSFER it does not). Names get prefixes: Fortran ignores case.
"""

from __future__ import annotations

import re
from math import inf, isnan

from moapipe.errors import TargetError
from moapipe.loops.onf import Kernel, Kind
from moapipe.targets.c import GNU, SCHEDULES
from moapipe.targets.polynomial import EXPONENTIALS
from moapipe.targets.strip import prepare as strip_lanes
from moapipe.targets.target import ATOM, LEVELS, Call, Entry, Local, Parameter, Target, Text, Unit, indent

WIDTH = 120
"""Lines are wrapped here; the standard allows 132 characters."""
STRIPS = {"exp2": "call exp2_{0}({1}, {2})", "exp": "call exp_{0}({1}, {2})"}
SCALAR = {
    "/": "{0} / {1}", "max": "max({0}, {1})", "min": "min({0}, {1})", "abs": "abs({0})", "sqrt": "sqrt({0})", "reciprocal": "(1 / ({0}))",
    "exp": "exp_real({0})", "exp2": "exp2_real({0})", "log": "log({0})", "log2": "log2_real({0})", "floor": "real(floor({0}, ik), rk)", "sigmoid": "sigmoid_real({0})",
    "select": "merge({1}, {2}, {0})",
}
BLOCKS = {
    "transpose": "call transpose_{0}({1}, {2}, {3}, {4})", "scaled transpose": "call transpose_scaled_{0}({1}, {2}, {3}, {4}, {5})",
}
INTEGER = {
    "//": "floor_div({0}, {1})", "%": "modulo({0}, {1})", "quotient": "({0} / {1})", "remainder": "mod({0}, {1})",
    "min": "min({0}, {1})", "max": "max({0}, {1})", "floor": "floor({0}, ik)",
}
SIGNS = {s: s for s in ("+", "-", "*", "/", "<", "<=", "==")} | {"and": ".and.", "or": ".or.", "not": ".not. "}


STAYING = ("-fno-move-loop-invariants",)
"""The exponential's constants stay in its loop, as operands from memory. GCC 12 holds them in vector registers around all of an
iteration instead, where a register tile that comes later finds one too few and stores an accumulator in every step."""
PEELED = 16
"""GCC peels loops of at most so many steps to scalars before it vectorises."""


def hints(kind: Kind, extent: int) -> tuple[str, ...]:
    """Directives before a loop: vectorise lanes, however short; expand rows, whatever they hold."""
    if kind == "unroll":
        return (f"!GCC$ unroll {extent}",)
    return ("!GCC$ unroll 1", "!GCC$ vector") if extent <= PEELED else ("!GCC$ vector",)


def literal(v: float, unit: Unit) -> Text:
    """The shortest decimal that reads back as the same number."""
    if isnan(v):
        raise TargetError("NaN is no literal", hint="a definition must not contain NaN")
    if v in (inf, -inf):
        return Text("infinity") if v > 0 else Text("-infinity", LEVELS["neg"])
    return Text(f"{v!r}_rk", ATOM if v >= 0 else LEVELS["neg"])


def dimensions(extents: tuple[str, ...]) -> str:
    """Explicit shape, first index fastest; a rank-0 array is one element."""
    last = [str(int(e) - 1) if e.isdigit() else f"{e} - 1" for e in reversed(extents)]
    return ", ".join(f"0:{e}" for e in last or ["0"])


def parameter(p: Parameter) -> str:
    return f"real(rk), intent({'inout' if p.written else 'in'}) :: {p.name}({dimensions(p.extents)})"


def declaration(l: Local) -> str:
    return f"real(rk) :: {l.name}({dimensions(tuple(map(str, l.extents)))})"


def integers(names: tuple[str, ...], value: bool = False) -> tuple[str, ...]:
    return (f"integer(ik){', value' if value else ''} :: {', '.join(names)}",) if names else ()


def procedure(c: Call, unit: Unit) -> tuple[str, ...]:
    p = c.procedure
    head = ", ".join([*(a.name for a in p.arrays), *p.integers])
    lines = (*integers(p.integers, value=True), *map(parameter, p.arrays), *map(declaration, p.locals), *integers(p.indices), *p.lines)
    return (f"subroutine {p.name}({head})", *indent(lines), "end subroutine")


def nest(c: Call) -> tuple[str, ...]:
    lines: tuple[str, ...] = (f"call {c.procedure.name}({', '.join(c.arguments)})",)
    for name, lo, hi in reversed(c.loops):
        lines = (f"do {name} = {lo}, {hi}", *indent(lines), "end do")
    return lines


def region(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """Serial calls as they are; parallel loops in one region, a barrier after each."""
    if not calls[0].loops:
        return tuple(line for c in calls for line in nest(c))
    private = any(c.private for c in calls)
    inner: list[str] = ["own = at_own + omp_get_thread_num() * own_size"] if private else []
    for c in calls:
        collapse = f" collapse({len(c.loops)})" if len(c.loops) > 1 else ""
        inner += [f"!$omp do{collapse} schedule({SCHEDULES[c.schedule]})", *nest(c), "!$omp end do"]
    head = f"!$omp parallel num_threads(int(threads)){' private(own)' if private else ''}"
    return (head, *indent(tuple(inner)), "!$omp end parallel")


def entry(e: Entry) -> tuple[str, ...]:
    names = (*e.inputs, *e.outputs, "work", *e.sizes, "threads")
    own = ("own",) if e.private or any(n == "own_size" for n, _ in e.constants) else ()
    lines = [*integers((*e.sizes, "threads"), value=True)]
    read_only = [n for n in e.inputs if n not in e.updated]
    lines += [f"real(rk), intent(in) :: {', '.join(f'{n}(0:*)' for n in read_only)}"] if read_only else []
    lines += [f"real(rk), intent(inout) :: {', '.join(f'{n}(0:*)' for n in (*(n for n in e.inputs if n in e.updated), *e.outputs, 'work'))}"]
    lines += integers((*e.indices, *(n for n, _ in e.constants), *own))
    lines += [f"{n} = {v}" for n, v in e.constants] + (["own = at_own"] if e.private else [])
    return (f'subroutine {e.symbol}({", ".join(names)}) bind(c, name="{e.symbol}")', *indent((*lines, *e.lines)), "end subroutine")


def file(symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    """One module: kinds, the support procedures that the text uses, the text; long lines wrapped."""
    body = "\n".join(lines)
    used = support(body, unit)
    uses = ["use, intrinsic :: iso_c_binding"] + (["use omp_lib, only: omp_get_thread_num"] if "omp_get_thread_num" in body else [])
    kinds = {"f32": ("c_float", "c_int32_t", "2139095040"), "f64": ("c_double", "c_int64_t", "9218868437227405312")}[unit.dtype]
    head = [f"! {symbol}: {unit.dtype} for {unit.isa.name}, vectors of {unit.lanes}", f"module m_{symbol}"]
    head += indent((*uses, "implicit none", "private"))
    head += indent((f"public :: {symbol}", f"integer, parameter :: rk = {kinds[0]}, ik = c_int64_t, bk = {kinds[1]}"))
    if "infinity" in "\n".join((*used, body)):
        head += indent((f"real(rk), parameter :: infinity = transfer({kinds[2]}_bk, 1.0_rk)",))
    head += indent(interface(unit)) if "log2_real" in body else ()
    text = [*head, "contains", "", *used, *lines, "end module"]
    return "\n".join(w for l in text for w in wrapped(l)) + "\n"


def interface(unit: Unit) -> tuple[str, ...]:
    name = "log2f" if unit.dtype == "f32" else "log2"
    return ("interface", f'    pure function log2_real(x) bind(c, name="{name}") result(y)', "        import :: rk",
            "        real(rk), value :: x", "        real(rk) :: y", "    end function", "end interface")


def support(body: str, unit: Unit) -> tuple[str, ...]:
    """floor_div, scalar functions and blocks of exponentials, as far as they are called."""
    out: list[str] = []
    if "floor_div(" in body:
        out += ["pure function floor_div(a, b) result(q)", "    integer(ik), value :: a, b", "    integer(ik) :: q",
                "    q = (a - modulo(a, b)) / b", "end function", ""]
    for name in ("exp2", "exp"):
        if f"{name}_real(" in body or (name == "exp" and "sigmoid_real(" in body):
            out += [*_scalar(name, unit), ""]
        for n in sorted({int(m) for m in re.findall(rf"call {name}_(\d+)\(", body)}):
            out += [*_block(name, n, unit), ""]
    if "sigmoid_real(" in body:
        out += ["pure function sigmoid_real(u) result(y)", "    real(rk), value :: u", "    real(rk) :: y, e", "    e = exp_real(-abs(u))",
                "    y = merge(e, 1.0_rk, u < 0) / (1 + e)", "end function", ""]
    for scaled, edge in sorted(set(re.findall(r"call transpose(_scaled)?_(\d+)\(", body))):
        out += [*_transposing(int(edge), bool(scaled)), ""]
    return tuple(out)


def number(hexadecimal: str) -> str:
    """A hexadecimal constant as the decimal that reads back as the same number."""
    return f"{float.fromhex(hexadecimal)!r}_rk"


def _steps(name: str, unit: Unit, r: str, x: str) -> list[str]:
    """r = t rounded by adding the magic number, f = the fraction, q = the polynomial."""
    e = EXPONENTIALS[unit.dtype]
    first, *rest = e.coefficients
    if name == "exp2":
        lines = [f"t = merge({e.most}.0_rk, {x}, {x} > {e.most}.0_rk)", f"{r} = t + {number(e.round)}",
                 f"f = t - ({r} - {number(e.round)})"]
    else:
        log2e = number(e.log2e)
        lines = [f"t = {x} * {log2e}", f"{r} = t + {number(e.round)}", f"f = {r} - {number(e.round)}",
                 f"f = (({x} - f * {number(e.high)}) - f * {number(e.low)}) * {log2e}"]
    return [*lines, f"q = {number(first)}", *(f"q = q * f + {number(c)}" for c in rest)]


def _last(name: str, unit: Unit, y: str, q: str, x: str) -> list[str]:
    """Below the least exponent 0, above the largest infinity."""
    e = EXPONENTIALS[unit.dtype]
    if name == "exp2":
        return [f"{y} = merge(0.0_rk, {q}, {x} < {e.least}.0_rk)"]
    return [f"{y} = merge(0.0_rk, {q}, {x} * {number(e.log2e)} < {e.least}.0_rk)", f"{y} = merge(infinity, {y}, {x} > {number(e.top)})"]


def _scalar(name: str, unit: Unit) -> tuple[str, ...]:
    e = EXPONENTIALS[unit.dtype]
    lines = ["real(rk), value :: x", "real(rk) :: y, t, f, q, r", *_steps(name, unit, "r", "x"),
             f"q = transfer(transfer(q, 1_bk) + shiftl(transfer(r, 1_bk), {e.shift}), 1.0_rk)", *_last(name, unit, "y", "q", "x")]
    return (f"pure function {name}_real(x) result(y)", *indent(tuple(lines)), "end function")


def _block(name: str, n: int, unit: Unit) -> tuple[str, ...]:
    e = EXPONENTIALS[unit.dtype]
    loop = (*hints("lane", n), f"do j = 1, {n}")  # short loops would be unrolled first, and stay scalar
    lines = [f"real(rk), intent(in) :: x({n})", f"real(rk), intent(out) :: y({n})", f"real(rk) :: qs({n}), rs({n}), t, f, q",
             f"integer(bk) :: qi({n}), ri({n}), j", "equivalence(qs, qi)", "equivalence(rs, ri)",
             *loop, *indent((*_steps(name, unit, "rs(j)", "x(j)"), "qs(j) = q")), "end do",
             *loop, f"    qi(j) = qi(j) + shiftl(ri(j), {e.shift})", "end do",
             *loop, *indent(tuple(_last(name, unit, "y(j)", "qs(j)", "x(j)"))), "end do"]
    return (f"subroutine {name}_{n}(x, y)", *indent(tuple(lines)), "end subroutine")


def _transposing(edge: int, scaled: bool) -> tuple[str, ...]:
    """A block of edge × edge: the vectoriser makes rounds of shuffles of a loop that stores to `edge` neighbours in turn."""
    name, factor = (f"transpose_scaled_{edge}", "factor") if scaled else (f"transpose_{edge}", "")
    loop = f"do j = 0, {edge - 1}"
    lines = ["integer(ik), value :: xs, ys", *(["real(rk), value :: factor"] if scaled else []), "real(rk), intent(in) :: x(0:*)",
             "real(rk), intent(inout) :: y(0:*)", f"real(rk) :: block(0:{edge - 1}, 0:{edge - 1})", "integer(ik) :: i, j",
             *hints("lane", edge), loop, *(f"    block({i}, j) = {f'{factor} * ' if scaled else ''}x(j + {i} * xs)" for i in range(edge)), "end do",
             loop, *indent((*hints("lane", edge), f"do i = 0, {edge - 1}", "    y(i + j * ys) = block(i, j)", "end do")), "end do"]
    return (f"subroutine {name}({'factor, ' if scaled else ''}x, xs, y, ys)", *indent(tuple(lines)), "end subroutine")


def wrapped(line: str) -> list[str]:
    """The line in pieces of at most WIDTH characters, broken at blanks, continued with &."""
    out, pad = [], " " * (len(line) - len(line.lstrip()) + 4)
    sentinel = f"{line.lstrip()[:5]}& " if line.lstrip().startswith("!$") else ""
    while len(line) > WIDTH:
        cut = line.rfind(" ", len(pad), WIDTH - 2)
        if cut < 0:
            raise TargetError(f"cannot wrap {line.strip()[:60]}…", hint="names of arrays, sizes or loops are too long for Fortran")
        out.append(line[:cut] + " &")
        line = pad + sentinel + line[cut + 1:]
    return [*out, line]


def prepare(kernel: Kernel, unit: Unit) -> Kernel:
    return strip_lanes(kernel, unit, frozenset(STRIPS), lazy=False)


FORTRAN = Target(
    name="fortran", source="kernel.f90", lanes="loops", indexing="nested", lazy=False, strips=STRIPS, fold_case=True,
    prefixes={"array": "a_", "size": "s_", "loop": "v_"}, reserved=frozenset(), signs=SIGNS, scalar=SCALAR, vector=BLOCKS, integer=INTEGER,
    narrow="{0}_ik", cast="real({0}, rk)", element="{0}({1})", exclusive=False, address="{0}", comment="! {0}", assign="{0} = {1}",
    atomic=("!$omp atomic", "{0} = {0} + ({1})"),
    loop=("do {0} = {1}, {2}", "end do"), stride="do {0} = {1}, {2}, {3}", branch=("if ({0}) then", "else", "end if"), hints=hints,
    storage={"given": "{0}", "workspace": "work({1})", "private": "work(own + {1})"}, prepare=prepare, literal=literal,
    procedure=procedure, region=region, entry=entry, file=file, compiler="gfortran",
    flags=("-std=gnu", "-ffp-contract=fast", "-fno-tree-loop-distribute-patterns", *STAYING, *GNU),
)
