"""In: the words of a directive model. Out: records of C and Fortran whose parallel loops run on a device, from the same loop nests.

The entry point has the ABI of the host languages. A data region names every buffer with its extent, so a caller whose buffers lie on
the device already pays for no transfer; each parallel loop is one tightly nested construct in it. Several parallel loops are one over
the numbers of their iterations: GCC leaves 31 of a warp's 32 lanes idle under `simd collapse`. Where threads own scratch, the
construct is a loop over threads with their iterations in it, as in the texts for GPUs: no directive model numbers its threads.
Scratch of constant size becomes local variables. Procedures receive arrays of explicit shape, `restrict` and `const` or `intent`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from moapipe.algebra.index import constant
from moapipe.loops.onf import Array, Kernel
from moapipe.targets import c as host
from moapipe.targets import fortran
from moapipe.targets.c import C
from moapipe.targets.fortran import FORTRAN
from moapipe.targets.simt import MATH, SCALAR, indices, iterations, numbered, support, trips
from moapipe.targets.target import Call, Entry, Target, Unit, indent

LOCAL = 64
"""Scratch of at most so many elements becomes local variables."""


@dataclass(frozen=True, slots=True)
class Model:
    """A directive model. `loops`: the construct of a parallel loop, {0} is the language's word for a loop; `serial`: the construct of one
    thread; `data`: the region in which buffers lie on the device; `clauses`: how a buffer gets there; `routine`: what makes a procedure
    callable there, and what ends that in C; `atomic`; `c`, `fortran`: flags of each compiler, by name, the usual one first."""

    name: str
    loops: str
    serial: str
    data: str
    clauses: Mapping[str, str]
    routine: tuple[str, str]
    atomic: str
    c: Mapping[str, tuple[str, ...]]
    fortran: Mapping[str, tuple[str, ...]]


GCC = ("-O3", "-finline-limit=100000")
"""On nvptx GCC keeps constant arrays in registers only where it unrolls their loops (-O3) in a function that it has put into its caller."""
GFORTRAN = (*GCC, "-std=gnu", "-fno-frontend-optimize")
"""gfortran 12 stops with an internal error where the bound of a loop under a directive calls one function twice, and it finds that."""
ALONE = {"gcc": ("-foffload=disable",), "gfortran": ("-foffload=disable",)}
"""For this machine's processor and no GPU, whatever is installed beside the compiler."""
OMP = Model(
    name="omp_target", loops="omp target teams distribute parallel {0} simd", serial="omp target", data="omp target data",
    clauses={"read": "map(to: {0})", "updated": "map(tofrom: {0})", "made": "map(from: {0})", "scratch": "map(alloc: {0})"},
    routine=("omp declare target", "omp end declare target"), atomic="omp atomic",
    c={"gcc": (*GCC, "-std=gnu17", "-fopenmp"), "clang": ("-O2", "-fopenmp", "-Wno-pass-failed"), "nvc": ("-O3", "-mp=gpu")},
    fortran={"gfortran": (*GFORTRAN, "-fopenmp"), "nvfortran": ("-O3", "-mp=gpu")},
)
"""`simd`: on nvptx GCC puts lanes of a warp there and nowhere else; to the others it is a hint."""
ACC = Model(
    name="openacc", loops="acc parallel loop gang vector default(present)", serial="acc serial default(present)",
    data="acc data", clauses={"read": "copyin({0})", "updated": "copy({0})", "made": "copyout({0})", "scratch": "create({0})"},
    routine=("acc routine seq", ""), atomic="acc atomic update",
    c={"gcc": (*GCC, "-std=gnu17", "-fopenacc"), "nvc": ("-O3", "-acc=gpu")},
    fortran={"gfortran": (*GFORTRAN, "-fopenacc"), "nvfortran": ("-O3", "-acc=gpu")},
)


def moved(m: Model, e: Entry, form: str) -> str:
    """The data region's clauses; `form` names a buffer {0} of {1} elements."""
    ways = {"read": [n for n in e.inputs if n not in e.updated], "updated": [n for n in e.inputs if n in e.updated], "made": e.outputs, "scratch": ["work"]}
    return " ".join(m.clauses[way].format(", ".join(form.format(n, e.extents[n]) for n in names)) for way, names in ways.items() if names)


def small(a: Array) -> bool:
    extents = [constant(n) for n in a.shape]
    return a.space == "private" and None not in extents and prod(n or 0 for n in extents) <= LOCAL


def prepare(kernel: Kernel, unit: Unit) -> Kernel:
    """Scratch of constant size as local variables of its procedure."""
    return replace(kernel, arrays=tuple(replace(a, space="register") if small(a) else a for a in kernel.arrays))


def called(name: str, lines: Iterable[str]) -> bool:
    return any(re.search(rf"\b{name}\(", l) for l in lines)


# ------------------------------------------------------------------ C


def c_routine(m: Model, lines: tuple[str, ...]) -> tuple[str, ...]:
    return (f"#pragma {m.routine[0]}", *lines, *([f"#pragma {m.routine[1]}"] if m.routine[1] else []))


def c_procedure(m: Model, c: Call, unit: Unit) -> tuple[str, ...]:
    head, *rest = host.procedure(c, unit)
    return c_routine(m, (head.replace("__attribute__((noinline)) ", ""), *rest))     # whether to inline there is the compiler's choice


def c_region(m: Model, calls: tuple[Call, ...]) -> tuple[str, ...]:
    out: list[str] = []
    for c in calls:
        if not c.loops:
            own = ("real *const own = work + at_own;",) if c.private else ()
            out += [f"#pragma {m.serial}", "{", *indent((*own, *host.nest(c))), "}"]
        elif c.private:
            own = ("real *const own = work + at_own + thread * own_size;",)
            out += [f"#pragma {m.loops.format('for')}", "for (int64_t thread = 0; thread < threads; thread++) {", *indent((*own, *iterations(c))), "}"]
        elif len(c.loops) > 1:
            out += [f"#pragma {m.loops.format('for')}", f"for (int64_t item = 0; item < {trips(c)}; item++) {{", *indent(numbered(c)), "}"]
        else:
            out += [f"#pragma {m.loops.format('for')}", *host.nest(c)]
    return tuple(out)


def c_entry(m: Model, e: Entry) -> tuple[str, ...]:
    data = (f"#pragma {m.data} {moved(m, e, '{0}[0:{1}]')}", "{", *indent(e.lines), "}")
    return host.entry(replace(e, private=False, lines=data))


def c_file(m: Model, symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    suffix = "f" if unit.size == 4 else ""
    functions = [l for l in (indices("static inline") + support("static inline")).splitlines() if called(l.partition("(")[0].split()[-1], lines)]
    head = [f"/* {symbol}: {unit.dtype} for C with {m.name}, tiles of {unit.isa.name} */", "#include <math.h>", "#include <stdint.h>", "",
            f"typedef {'float' if unit.size == 4 else 'double'} real;",
            *(f"#define {f.upper()} {f}{suffix}" for f in MATH if called(f.upper(), (*functions, *lines))), ""]
    for line in functions:
        head += (*c_routine(m, (line,)), "")
    return "\n".join([*head, *lines]) + "\n"


# ------------------------------------------------------------------ Fortran

FUNCTIONS = {
    **FORTRAN.scalar, "exp": "exp({0})", "exp2": "(2.0_rk ** ({0}))", "log2": "(log({0}) * 1.4426950408889634_rk)", "sigmoid": "sigmoid({0})",
}
SUPPORT = {
    "floor_div": ("pure function floor_div(a, b) result(q)", "    !${0}", "    integer(ik), value :: a, b", "    integer(ik) :: q",
                  "    q = (a - modulo(a, b)) / b", "end function", ""),
    "sigmoid": ("pure function sigmoid(u) result(y)", "    !${0}", "    real(rk), value :: u", "    real(rk) :: y, e", "    e = exp(-abs(u))",
                "    y = merge(e, 1.0_rk, u < 0) / (1 + e)", "end function", ""),
}


def ended(directive: str) -> str:
    """The directive that ends a region: its words without clauses."""
    model, *words = directive.split()
    return " ".join((model, "end", *(w for w in words if "(" not in w)))


def fortran_procedure(m: Model, c: Call, unit: Unit) -> tuple[str, ...]:
    head, *rest = fortran.procedure(c, unit)
    return (head, f"    !${m.routine[0]}", *rest)


def fortran_region(m: Model, calls: tuple[Call, ...]) -> tuple[str, ...]:
    out: list[str] = []
    for c in calls:
        if not c.loops:
            own, scoped = (("own = at_own",), " private(own)") if c.private else ((), "")
            out += [f"!${m.serial}{scoped}", *indent((*own, *fortran.nest(c))), f"!${ended(m.serial)}"]
            continue
        numbers = ("rest", *(n for n, _, _ in c.loops))
        last = " * ".join(f"max({hi} - ({lo}) + 1, 0_ik)" for _, lo, hi in c.loops) + " - 1"
        if c.private:
            scoped = f" private({', '.join(('own', 'item', *numbers))})"
            inner = ("own = at_own + thread * own_size", f"do item = thread, {last}, threads", *indent(fortran_numbered(c)), "end do")
            out += [f"!${m.loops.format('do')}{scoped}", "do thread = 0, threads - 1", *indent(inner), "end do"]
        elif len(c.loops) > 1:
            out += [f"!${m.loops.format('do')} private({', '.join(numbers)})", f"do item = 0, {last}", *indent(fortran_numbered(c)), "end do"]
        else:
            out += [f"!${m.loops.format('do')}", *fortran.nest(c)]
    return tuple(out)


def fortran_numbered(c: Call) -> tuple[str, ...]:
    """The iteration of number `item`."""
    split: list[str] = ["rest = item"]
    for name, lo, hi in reversed(c.loops):
        split += [f"{name} = {lo} + mod(rest, {hi} - ({lo}) + 1)", f"rest = rest / ({hi} - ({lo}) + 1)"]
    return (*split, f"call {c.procedure.name}({', '.join(c.arguments)})")


def fortran_entry(m: Model, e: Entry) -> tuple[str, ...]:
    names = (*e.inputs, *e.outputs, "work", *e.sizes, "threads")
    text = "\n".join(e.lines)
    working = tuple(n for n in ("own", "thread", "item", "rest") if f"{n} = " in text)
    lines = [*fortran.integers((*e.sizes, "threads"), value=True)]
    for n in (*e.inputs, *e.outputs, "work"):
        intent = "in" if n in e.inputs and n not in e.updated else "inout"
        lines.append(f"real(rk), intent({intent}) :: {n}({fortran.dimensions((e.extents[n],))})")
    lines += fortran.integers((*e.indices, *(n for n, _ in e.constants), *working))
    lines += [f"{n} = {v}" for n, v in e.constants]
    lines += [f"!${m.data} {moved(m, e, '{0}')}", *indent(e.lines), f"!${ended(m.data)}"]
    return (f'subroutine {e.symbol}({", ".join(names)}) bind(c, name="{e.symbol}")', *indent(tuple(lines)), "end subroutine")


def fortran_file(m: Model, symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    kinds = {"f32": ("c_float", "c_int32_t", "2139095040"), "f64": ("c_double", "c_int64_t", "9218868437227405312")}[unit.dtype]
    head = [f"! {symbol}: {unit.dtype} for Fortran with {m.name}, tiles of {unit.isa.name}", f"module m_{symbol}"]
    head += indent(("use, intrinsic :: iso_c_binding", "implicit none", "private", f"public :: {symbol}", f"integer, parameter :: rk = {kinds[0]}, ik = c_int64_t"))
    if any("infinity" in l for l in lines):
        head += indent((f"real(rk), parameter :: infinity = transfer({kinds[2]}_{kinds[1]}, 1.0_rk)",))
    functions = [l.format(m.routine[0]) for name, text in SUPPORT.items() if called(name, lines) for l in text]
    text = [*head, "contains", "", *functions, *lines, "end module"]
    return "\n".join(w for l in text for w in fortran.wrapped(l)) + "\n"


# ------------------------------------------------------------------ the records


def record(m: Model, base: Target) -> Target:
    return replace(base, name=f"{base.name}_{m.name}", lanes="loops", strips={}, vector={}, prepare=prepare, hints=lambda kind, extent: ())


def in_c(m: Model) -> Target:
    return replace(
        record(m, C), reserved=C.reserved | {f.upper() for f in MATH} | {"thread", "item", "rest"}, scalar=SCALAR, atomic=(f"#pragma {m.atomic}", "{0} += {1};"),
        procedure=partial(c_procedure, m), region=partial(c_region, m), entry=partial(c_entry, m), file=partial(c_file, m),
        compiler=next(iter(m.c)), flags=next(iter(m.c.values())), compilers=tuple(m.c.items()),
    )


def in_fortran(m: Model) -> Target:
    return replace(
        record(m, FORTRAN), reserved=frozenset(("thread", "item", "rest")), scalar=FUNCTIONS, atomic=(f"!${m.atomic}", "{0} = {0} + ({1})"),
        procedure=partial(fortran_procedure, m), region=partial(fortran_region, m), entry=partial(fortran_entry, m), file=partial(fortran_file, m),
        compiler=next(iter(m.fortran)), flags=next(iter(m.fortran.values())), compilers=tuple(m.fortran.items()),
    )


DIRECTIVES = (in_c(OMP), in_fortran(OMP), in_c(ACC), in_fortran(ACC))
