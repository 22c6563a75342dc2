"""In: the words in which languages for GPUs differ. Out: what their records share: a parallel loop as a grid of threads, its launch.

Parallel loops become a grid-stride loop over all their iterations, or, where they hold thread loops, one block of threads for each
iteration, which its number tells; lanes and unrolled loops stay plain loops; register arrays are
local arrays. Memory holds `stored` elements, of the caller's arrays also `narrow` ones. `threads` is the number of GPU threads; launches run in order, which is the barrier.
Procedures count in 32 bits, which halves what inner loops spend on indices; so no array may have more than ELEMENTS, which whoever
launches asks (lab/launch.py). What lies around them, numbers of iterations and places in the workspace, has 64.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

from moapipe.algebra.index import ceil_div, multiply
from moapipe.algebra.scalar import Num, Scalar, Var
from moapipe.loops.onf import Kernel, Loop, map_statements
from moapipe.loops.team import crossed, regions
from moapipe.targets.c import INTEGER as WIDE
from moapipe.targets.c import declaration
from moapipe.targets.target import Call, Launch, Parameter, Unit, indent

BLOCK = 128
"""Threads of a block."""
ELEMENTS = 2**31 - 2**24
"""The most of an array: every index fits in 32 bits, also in the part of a last tile that lies past the end."""
SCALAR = {
    "/": "{0} / {1}", "max": "max_real({0}, {1})", "min": "min_real({0}, {1})", "abs": "FABS({0})", "sqrt": "SQRT({0})",
    "reciprocal": "(1 / ({0}))", "exp": "EXP({0})", "exp2": "EXP2({0})", "log": "LOG({0})", "log2": "LOG2({0})", "floor": "FLOOR({0})",
    "sigmoid": "sigmoid_real({0})", "select": "({0} ? {1} : {2})", "blend": "blend_real({0}, {1}, {2})",
}
INTEGER = {**WIDE, "floor": "(integer)FLOOR({0})"}
"""One integer of 64 bits in a bound would make all of it 64 bits wide."""
MATH = ("fabs", "sqrt", "exp", "exp2", "log", "log2", "floor")
WORDS = frozenset(("work", "own", "floor_div", "floor_mod", "min_index", "max_index"))
LOCAL_NAMES = frozenset(("EXP", "EXP2", "thread", "item", "rest", "integer"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """What stands before a small function (`inline`), a procedure (`function`), the function that is launched (`grid`; `crowd`, with
    the size of the team, where teams run it) and a pointer to the device's memory (`space`); how a pointer says that nothing else
    points there; the number of this thread in the grid, and of its team. A team's array {0} of {1} elements is declared as `shared`
    in the function that is launched, and `lent` to the procedure."""

    inline: str
    function: str
    grid: str
    space: str
    restrict: str
    thread: str
    crowd: str
    team: str
    shared: str
    lent: str

    def parameter(self, p: Parameter) -> str:
        return f"{self.space}{'' if p.written else 'const '}{'narrow' if p.narrow else 'stored'} *{self.restrict} {p.name}"


COUNTERS = """typedef int32_t integer;
#define floor_div(a, b) ((a) / (b) - ((a) % (b) < 0))
#define floor_mod(a, b) (((a) % (b) + (b)) % (b))
#define min_index(a, b) ((a) < (b) ? (a) : (b))
#define max_index(a, b) ((a) > (b) ? (a) : (b))
"""
"""Functions on integers, of 32 bits in procedures and of 64 around them."""


def indices(inline: str) -> str:
    """The same on 64 bits alone."""
    return f"""{inline} int64_t floor_div(int64_t a, int64_t b) {{ return a / b - (a % b < 0); }}
{inline} int64_t floor_mod(int64_t a, int64_t b) {{ const int64_t r = a % b; return r < 0 ? r + b : r; }}
{inline} int64_t min_index(int64_t a, int64_t b) {{ return a < b ? a : b; }}
{inline} int64_t max_index(int64_t a, int64_t b) {{ return a > b ? a : b; }}
"""


def support(inline: str) -> str:
    """The functions on elements that texts call; `inline` stands before each."""
    return f"""{inline} real max_real(real a, real b) {{ return a > b ? a : b; }}
{inline} real min_real(real a, real b) {{ return a < b ? a : b; }}
{inline} real blend_real(int c, real a, real b) {{ return c ? a : b; }}
{inline} real sigmoid_real(real u) {{ const real e = EXP(-FABS(u)); return (u < 0 ? e : 1) / (1 + e); }}
"""


ACROSS = {"sum": "v + w", "product": "v * w", "max": "max_real(v, w)", "min": "min_real(v, w)"}
"""How a lane adds its neighbour's value w to its own."""


def across(function: str, body: str) -> tuple[str, ...]:
    """The folds over lanes that a text calls: neighbours exchange half the lanes apart, then a quarter, … and one."""
    return tuple(f"{function} real {m}_lanes(real v, int lanes) {{ for (int by = lanes / 2; by > 0; by /= 2) "
                 f"{{ const real w = SHUFFLE(v, by, lanes); v = {form}; }} return v; }}" for m, form in ACROSS.items() if f"{m}_lanes(" in body)


def unshuffled(kernel: Kernel, unit: Unit) -> Kernel:
    """For a language whose lanes cannot read each other's registers: what they would read lies in shared memory, and barriers follow."""
    moved = set().union(*(crossed((r,)) for r in regions(kernel.body)))
    body = map_statements(kernel.body, lambda s: (replace(s, kind="serial"),) if isinstance(s, Loop) and s.kind == "warp" else (s,))
    return replace(kernel, arrays=tuple(replace(a, space="shared") if a.name in moved else a for a in kernel.arrays), body=body)


def captured(c: Call) -> tuple[str, ...]:
    """The integers that the call's bounds and arguments name, in order of appearance."""
    told = " ".join([*(b for _, lo, hi in c.loops for b in (lo, hi)), *c.arguments, *(("at_own", "own_size") if c.private else ())])
    skip = {*WORDS, *(p.name for p in c.procedure.arrays), *(s.name for s in c.procedure.shared), *(n for n, _, _ in c.loops)}
    return tuple(dict.fromkeys(w for w in re.findall(r"[A-Za-z_]\w*", told) if w not in skip))


def given(c: Call) -> tuple[Parameter, ...]:
    """The caller's own buffers among the arguments; the others lie in the workspace."""
    return tuple(p for p, a in zip(c.procedure.arrays, c.arguments, strict=False) if p.name == a)


def launch(c: Call) -> Launch:
    """A team for each iteration, or all GPU threads for parallel loops, or one for serial statements."""
    threads: Scalar = multiply(c.trips, c.team) if c.team else Var("threads") if c.loops else Num(1)
    block = c.team or (BLOCK if c.loops else 1)
    blocks = c.trips if c.team else ceil_div(threads, block)
    return Launch(f"{c.procedure.name}_grid", blocks, block, (*(p.name for p in given(c)), "work"), captured(c), threads)


def procedure(d: Dialect, c: Call, unit: Unit) -> tuple[str, ...]:
    """The body as a device function, and the grid-stride loop over its iterations as a kernel."""
    p = c.procedure
    head = ", ".join([*map(d.parameter, p.arrays), *(d.lent.format(s.name) for s in p.shared), *(f"integer {n}" for n in p.integers)])
    body = (*(declaration(l, unit) for l in p.locals), *p.lines)
    grid = ", ".join([*map(d.parameter, given(c)), f"{d.space}stored *work", *(f"int64_t {n}" for n in captured(c)), "int64_t threads"])
    lines = [f"const int64_t thread = {d.thread};", "if (thread >= threads) return;", "(void)work;"]
    if c.team:
        lines = [*(d.shared.format(s.name, prod(s.extents)) for s in p.shared), f"const int64_t item = {d.team};", "(void)work, (void)threads;"]
    if c.private:
        lines.append(f"{d.space}stored *const own = work + at_own + thread * own_size;")
    return (f"{d.function} {p.name}({head}) {{", *indent(body), "}", "",
            f"{d.crowd.format(c.team) if c.team else d.grid} {p.name}_grid({grid}) {{", *indent((*lines, *iterations(c))), "}")


def trips(c: Call) -> str:
    return " * ".join(f"max_index({hi} - ({lo}), 0)" for _, lo, hi in c.loops) or "1"


def iterations(c: Call) -> tuple[str, ...]:
    """Every so-manieth of them for a thread; the one whose number it has for a team."""
    return numbered(c) if c.team else (f"for (int64_t item = thread; item < {trips(c)}; item += threads) {{", *indent(numbered(c)), "}")


def numbered(c: Call) -> tuple[str, ...]:
    """The iteration of number `item`."""
    split: list[str] = []
    for name, lo, hi in reversed(c.loops):
        split += [f"const int64_t {name} = {lo} + rest % ({hi} - ({lo}));", f"rest /= {hi} - ({lo});"]
    return (*(("int64_t rest = item;", *split) if split else ()), f"{c.procedure.name}({', '.join(c.arguments)});")
