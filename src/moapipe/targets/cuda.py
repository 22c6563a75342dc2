"""In: nothing. Out: the record of the CUDA target: the texts for GPUs of `simt`, with an entry point that launches them.

Memory holds `stored` elements, or `narrow` ones, which are values when they are read, and launches are a macro, so that the same text runs on a processor under a shim
(lab/native/shim.hpp), and so are the arrays of a team. The ABI is that of C with device pointers; the entry point only launches, in stream order, and does not wait.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from moapipe.loops.onf import Kernel
from moapipe.targets.c import SIGNS, literal
from moapipe.targets.isa import ARITHMETIC
from moapipe.targets.simt import (
    ACROSS,
    BLOCK,
    COUNTERS,
    INTEGER,
    LOCAL_NAMES,
    MATH,
    SCALAR,
    Dialect,
    across,
    captured,
    given,
    launch,
    procedure,
    support,
    trips,
)
from moapipe.targets.support import RESERVED
from moapipe.targets.target import Call, Entry, Target, Team, Unit, indent

DIALECT = Dialect(
    inline="static __host__ __device__ inline", function="static __device__ void", grid='extern "C" __global__ void', space="", restrict="__restrict__",
    thread="blockIdx.x * (int64_t)blockDim.x + threadIdx.x", crowd='extern "C" __global__ void __launch_bounds__({0})', team="blockIdx.x",
    shared="SHARED({0}, {1});", lent="LENT({0})",
)
CROWDED = replace(DIALECT, crowd='extern "C" __global__ void __launch_bounds__({0}, 1)')
"""Where elements are narrow or values wide: ptxas otherwise keeps a block of 256 threads to 64 registers on sm_90, and spills what does not fit."""
PAIRED = replace(DIALECT, crowd='extern "C" __global__ void __launch_bounds__({0}, 2)')
"""Where several elements are fetched as one, and threads are few enough to have 128 registers with two blocks at a time: ptxas otherwise
keeps a matmul's block to 40 on sm_80, and spills, or takes so many for attention in f64 that one block is alone."""
KEPT = 64
"""Of those, as many may be for arrays: kv_owner in f64 has 112 and spills where it may not be alone."""
FETCH = "together("
KEYWORDS = "class new delete template this private public operator namespace using bool true false"
RESERVED_HERE = RESERVED | LOCAL_NAMES | set(KEYWORDS.split()) | {"blockIdx", "blockDim", "threadIdx", "gridDim"} | {f"{m}_lanes" for m in ACROSS} | {"stored", "narrow", "whole", "together", "got"}
SHUFFLE = ("#if defined(__HIP__)", "#define SHUFFLE(v, by, lanes) __shfl_xor(v, by, lanes)", "#elif !defined(EMULATED)",
           "#define SHUFFLE(v, by, lanes) __shfl_xor_sync(0xffffffffu, v, by, lanes)", "#endif")

WHOLE = """template <class T> struct __align__({0} * sizeof(T)) whole {{ T at[{0}]; }};
template <class T> static __device__ inline whole<T> together(const T *first) {{ return *reinterpret_cast<const whole<T> *>(first); }}"""
"""What V elements are that are fetched as one."""
NARROW = {"bf16": ("cuda_bf16.h", "struct narrow { __nv_bfloat16 held; __device__ operator real() const { return __bfloat162float(held); } "
                                  "__device__ narrow &operator=(real v) { held = __float2bfloat16_rn(v); return *this; } };")}
"""Elements that are narrower than values, by dtype: the header that knows them, and their type in the text."""


def region(calls: tuple[Call, ...]) -> tuple[str, ...]:
    """One launch a call: kernels of one stream run in order, which is the barrier."""
    out = []
    for c in calls:
        arguments = ", ".join([*(p.name for p in given(c)), "work", *captured(c), "threads" if c.loops else "1"])
        blocks = f"(threads + {BLOCK - 1}) / {BLOCK}, {BLOCK}" if c.loops else "1, 1"
        out.append(f"LAUNCH({c.procedure.name}_grid, {f'{trips(c)}, {c.team}' if c.team else blocks}, {arguments});")
    return tuple(out)


def entry(e: Entry) -> tuple[str, ...]:
    kind = {n: "narrow" if n in e.narrow else "stored" for n in (*e.inputs, *e.outputs, "work")}
    arguments = [f"{'const ' if n in e.inputs and n not in e.updated else ''}{k} *__restrict__ {n}" for n, k in kind.items()]
    arguments += [f"int64_t {n}" for n in (*e.sizes, "threads")]
    lines = (*(f"const int64_t {n} = {v};" for n, v in e.constants), *e.lines)
    return (f'extern "C" void {e.symbol}({", ".join(arguments)}) {{', *indent(lines), "}")


def file(language: str, runtime: tuple[str, ...], symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    """`runtime` are the headers of the language's own compiler."""
    suffix = "f" if unit.size == 4 else ""
    folds = across("static __device__ inline", "\n".join(lines))
    header, narrow = ((word,) for word in NARROW[unit.dtype]) if unit.dtype in NARROW else ((), ())
    head = [f"/* {symbol}: {unit.dtype} for {language}, tiles of {unit.isa.name} */", "#include <math.h>", "#include <stdint.h>", "",
            f"typedef {'float' if unit.size == 4 else 'double'} real;", "#ifndef EMULATED", *(f"#include <{h}>" for h in (*runtime, *header)), "typedef real stored;", *narrow,
            "#define LAUNCH(grid, blocks, threads, ...) if ((blocks) > 0) grid<<<(unsigned)(blocks), threads>>>(__VA_ARGS__)",
            "#define SHARED(name, size) __shared__ real name[size]", "#define LENT(name) real *__restrict__ name",
            *(WHOLE.format(unit.lanes).split("\n") if any(FETCH in l for l in lines) else ()), "#endif", *(SHUFFLE if folds else ()), "",
            *(f"#define {f.upper()} {f}{suffix}" for f in MATH), "", COUNTERS, support(DIALECT.inline), *folds, *([""] if folds else [])]
    return "\n".join([*head, *lines]) + "\n"


def written(c: Call, unit: Unit) -> tuple[str, ...]:
    fetches = any(FETCH in l for l in c.procedure.lines)
    kept = sum(prod(l.extents) for l in c.procedure.locals if l.kind == "array") * unit.size // 4
    paired = fetches and c.team <= 256 and kept <= KEPT
    return procedure(PAIRED if paired else CROWDED if fetches or unit.dtype in NARROW or unit.size == 8 else DIALECT, c, unit)


def prepare(kernel: Kernel, unit: Unit) -> Kernel:
    return kernel


CUDA = Target(
    name="cuda", source="kernel.cu", lanes="loops", indexing="flat", lazy=True, strips={}, fold_case=False,
    prefixes={"array": "", "size": "", "loop": ""}, reserved=RESERVED_HERE, signs=SIGNS, scalar=SCALAR, vector={}, integer=INTEGER,
    narrow="{0}", cast="((real)({0}))", element="{0}[{1}]", exclusive=True, address="&{0}", comment="/* {0} */", assign="{0} = {1};",
    atomic=("atomicAdd(&{0}, {1});",),
    loop=("for (integer {0} = {1}; {0} < {2}; {0}++) {{", "}}"), stride="for (integer {0} = {1}; {0} < {2}; {0} += {3}) {{",
    branch=("if ({0}) {{", "}} else {{", "}}"), hints=lambda kind, extent: ("#pragma unroll 1" if kind == "vector" else "#pragma unroll",),
    storage={"given": "{0}", "workspace": "work + {1}", "private": "own + {1}"}, prepare=prepare, literal=literal,
    procedure=written, region=region, launch=launch, team=Team("__syncthreads();", "threadIdx.x", "const integer {0} = {1};", "{0}_lanes({1}, {2})", "const auto got = together({0});", "got.at[{0}]"),
    entry=entry, file=partial(file, "CUDA", ()), compiler="nvcc",
    flags=("-O3", "-std=c++17", "-Xptxas=-v"), device=("kernel.cubin", "-cubin"), architectures=(("sm_80", "-arch=sm_80"), ("sm_90", "-arch=sm_90")),
    listing=("ptx", ("-ptx",)), dtypes=(*ARITHMETIC, *NARROW),
)
