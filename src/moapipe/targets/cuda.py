"""In: nothing. Out: the record of the CUDA target: the same procedures as C, their parallel loops spread over a grid of threads.

Parallel loops become a grid-stride loop over all their iterations; lanes and unrolled loops stay plain loops; register arrays
are local arrays. Memory holds `stored` elements and launches are a macro, so that the same text runs on a processor under a shim
(lab/native/shim.hpp). The ABI is that of C with device pointers, `threads` the number of GPU threads; the entry point only launches,
in stream order, and does not wait.
"""

from __future__ import annotations

import re
from functools import partial

from moapipe.loops.onf import Kernel
from moapipe.targets.c import INTEGER, SIGNS, declaration, literal
from moapipe.targets.support import RESERVED
from moapipe.targets.target import Call, Entry, Parameter, Target, Unit, indent

BLOCK = 128
"""Threads of a block."""
SCALAR = {
    "/": "{0} / {1}", "max": "max_real({0}, {1})", "min": "min_real({0}, {1})", "abs": "FABS({0})", "sqrt": "SQRT({0})",
    "reciprocal": "(1 / ({0}))", "exp": "EXP({0})", "exp2": "EXP2({0})", "log": "LOG({0})", "log2": "LOG2({0})", "floor": "FLOOR({0})",
    "sigmoid": "sigmoid_real({0})", "select": "({0} ? {1} : {2})",
}
MATH = ("fabs", "sqrt", "exp", "exp2", "log", "log2", "floor")
INLINE = "static __host__ __device__ inline"
SUPPORT = f"""{INLINE} int64_t floor_div(int64_t a, int64_t b) {{ return a / b - (a % b < 0); }}
{INLINE} int64_t floor_mod(int64_t a, int64_t b) {{ const int64_t r = a % b; return r < 0 ? r + b : r; }}
{INLINE} int64_t min_index(int64_t a, int64_t b) {{ return a < b ? a : b; }}
{INLINE} int64_t max_index(int64_t a, int64_t b) {{ return a > b ? a : b; }}
{INLINE} real max_real(real a, real b) {{ return a > b ? a : b; }}
{INLINE} real min_real(real a, real b) {{ return a < b ? a : b; }}
{INLINE} real sigmoid_real(real u) {{ const real e = EXP(-FABS(u)); return (u < 0 ? e : 1) / (1 + e); }}
"""
WORDS = frozenset(("work", "own", "floor_div", "floor_mod", "min_index", "max_index"))
KEYWORDS = "class new delete template this private public operator namespace using bool true false"
RESERVED_HERE = RESERVED | set(KEYWORDS.split()) | {"EXP", "EXP2", "thread", "item", "rest", "blockIdx", "blockDim", "threadIdx", "gridDim"}


def parameter(p: Parameter) -> str:
    return f"{'' if p.written else 'const '}stored *__restrict__ {p.name}"


def captured(c: Call) -> tuple[str, ...]:
    """The integers that the call's bounds and arguments name, in order of appearance."""
    told = " ".join([*(b for _, lo, hi in c.loops for b in (lo, hi)), *c.arguments, *(("at_own", "own_size") if c.private else ())])
    skip = {*WORDS, *(p.name for p in c.procedure.arrays), *(n for n, _, _ in c.loops)}
    return tuple(dict.fromkeys(w for w in re.findall(r"[A-Za-z_]\w*", told) if w not in skip))


def given(c: Call) -> tuple[Parameter, ...]:
    """The caller's own buffers among the arguments; the others lie in the workspace."""
    return tuple(p for p, a in zip(c.procedure.arrays, c.arguments, strict=False) if p.name == a)


def procedure(c: Call, unit: Unit) -> tuple[str, ...]:
    """The body as a device function, and the grid-stride loop over its iterations as a kernel."""
    p = c.procedure
    head = ", ".join([*map(parameter, p.arrays), *(f"int64_t {n}" for n in p.integers)])
    body = (*(declaration(l, unit) for l in p.locals), *p.lines)
    grid = ", ".join([*map(parameter, given(c)), "stored *work", *(f"int64_t {n}" for n in captured(c)), "int64_t threads"])
    lines = ["const int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;", "if (thread >= threads) return;", "(void)work;"]
    if c.private:
        lines.append("stored *const own = work + at_own + thread * own_size;")
    return (f"static __device__ void {p.name}({head}) {{", *indent(body), "}", "",
            f"static __global__ void {p.name}_grid({grid}) {{", *indent((*lines, *_iterations(c))), "}")


def _iterations(c: Call) -> tuple[str, ...]:
    count = " * ".join(f"max_index({hi} - ({lo}), 0)" for _, lo, hi in c.loops) or "1"
    split: list[str] = []
    for name, lo, hi in reversed(c.loops):
        split += [f"const int64_t {name} = {lo} + rest % ({hi} - ({lo}));", f"rest /= {hi} - ({lo});"]
    inner = (*(("int64_t rest = item;", *split) if split else ()), f"{c.procedure.name}({', '.join(c.arguments)});")
    return (f"for (int64_t item = thread; item < {count}; item += threads) {{", *indent(inner), "}")


def region(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """One launch a call: kernels of one stream run in order, which is the barrier."""
    out = []
    for c in calls:
        arguments = ", ".join([*(p.name for p in given(c)), "work", *captured(c), "threads" if c.loops else "1"])
        blocks = f"(unsigned)((threads + {BLOCK - 1}) / {BLOCK}), {BLOCK}" if c.loops else "1, 1"
        out.append(f"LAUNCH({c.procedure.name}_grid, {blocks}, {arguments});")
    return tuple(out)


def entry(e: Entry) -> tuple[str, ...]:
    arguments = [f"{'' if n in e.updated else 'const '}stored *__restrict__ {n}" for n in e.inputs] + [f"stored *__restrict__ {n}" for n in (*e.outputs, "work")]
    arguments += [f"int64_t {n}" for n in (*e.sizes, "threads")]
    lines = (*(f"const int64_t {n} = {v};" for n, v in e.constants), *e.lines)
    return (f'extern "C" void {e.symbol}({", ".join(arguments)}) {{', *indent(lines), "}")


def file(language: str, runtime: tuple[str, ...], symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    """`runtime` are the headers of the language's own compiler."""
    suffix = "f" if unit.size == 4 else ""
    head = [f"/* {symbol}: {unit.dtype} for {language}, tiles of {unit.isa.name} */", "#include <math.h>", "#include <stdint.h>", "",
            f"typedef {'float' if unit.size == 4 else 'double'} real;", "#ifndef EMULATED", *(f"#include <{h}>" for h in runtime), "typedef real stored;",
            "#define LAUNCH(grid, blocks, threads, ...) grid<<<blocks, threads>>>(__VA_ARGS__)", "#endif", "",
            *(f"#define {f.upper()} {f}{suffix}" for f in MATH), "", SUPPORT]
    return "\n".join([*head, *lines]) + "\n"


def prepare(kernel: Kernel, unit: Unit) -> Kernel:
    return kernel


CUDA = Target(
    name="cuda", source="kernel.cu", lanes="loops", indexing="flat", lazy=True, strips={}, fold_case=False,
    prefixes={"array": "", "size": "", "loop": ""}, reserved=RESERVED_HERE, signs=SIGNS, scalar=SCALAR, vector={}, integer=INTEGER,
    narrow="{0}", cast="((real)({0}))", element="{0}[{1}]", exclusive=True, address="&{0}", comment="/* {0} */", assign="{0} = {1};",
    atomic=("atomicAdd(&{0}, {1});",),
    loop=("for (int64_t {0} = {1}; {0} < {2}; {0}++) {{", "}}"), stride="for (int64_t {0} = {1}; {0} < {2}; {0} += {3}) {{",
    branch=("if ({0}) {{", "}} else {{", "}}"), hints=lambda kind, extent: ("#pragma unroll",),
    storage={"given": "{0}", "workspace": "work + {1}", "private": "own + {1}"}, prepare=prepare, literal=literal,
    procedure=procedure, region=region, entry=entry, file=partial(file, "CUDA", ()), compiler="nvcc",
    flags=("-O3", "-std=c++17", "-arch=sm_80"), device=("kernel.cubin", "-cubin"),
)
