"""In: nothing. Out: the record of the OpenCL C target: the texts for GPUs of `simt`, kernels only.

OpenCL 1.2, which every driver takes. It has no floating-point atomics, so a sum is a loop of compare-and-exchange; its first read
is one too, for a plain read would race with other updates. Whoever launches reads `launches` in the manifest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moapipe.targets.cuda import CUDA
from moapipe.targets.isa import ARITHMETIC
from moapipe.targets.simt import COUNTERS, LOCAL_NAMES, MATH, Dialect, procedure, support, unshuffled
from moapipe.targets.support import RESERVED
from moapipe.targets.target import Entry, Team, Unit

DIALECT = Dialect(
    inline="static inline", function="static void", grid="__kernel void", space="__global ", restrict="restrict", thread="get_global_id(0)",
    crowd="__kernel __attribute__((reqd_work_group_size({0}, 1, 1))) void", team="get_group_id(0)", shared="__local real {0}[{1}];",
    lent="__local real *restrict {0}",
)
KEYWORDS = "kernel global local constant private half bool uchar ushort uint ulong read_only write_only read_write pipe vec_step event_t"
ATOMIC = """static void atomic_add_real(volatile __global real *at, real v) {
    volatile __global bits *const p = (volatile __global bits *)at;
    bits now = exchange(p, 0, 0), was;
    do was = now, now = exchange(p, was, as_bits(as_real(was) + v)); while (now != was);
}
"""


def entry(e: Entry) -> tuple[str, ...]:
    return ()


def file(symbol: str, unit: Unit, lines: tuple[str, ...]) -> str:
    real, bits, exchange = ("float", "uint", "atomic_cmpxchg") if unit.size == 4 else ("double", "ulong", "atom_cmpxchg")
    body = "\n".join(lines)
    shared = "atomic_add_real" in body
    extensions = ["cl_khr_fp64", *(["cl_khr_int64_base_atomics"] if shared else [])] if unit.size == 8 else []
    head = [f"/* {symbol}: {unit.dtype} for OpenCL C, tiles of {unit.isa.name} */",
            *(f"#pragma OPENCL EXTENSION {e} : enable" for e in extensions),
            f"typedef int int32_t;\ntypedef long int64_t;\ntypedef {real} real;\ntypedef real stored;", *(f"#define {f.upper()} {f}" for f in MATH), "", COUNTERS, support(DIALECT.inline)]
    if "whole got" in body:
        head += [f"typedef {real}{unit.lanes} whole;", ""]
    if shared:
        head += [f"typedef {bits} bits;", f"#define as_bits as_{bits}", f"#define as_real as_{real}", f"#define exchange {exchange}", ATOMIC]
    return "\n".join([*head, body]) + "\n"


OPENCL = replace(
    CUDA, name="opencl", source="kernel.cl", reserved=RESERVED | LOCAL_NAMES | set(KEYWORDS.split()) | {"bits", "exchange", "whole", "got"},
    atomic=("atomic_add_real(&{0}, {1});",), procedure=partial(procedure, DIALECT), entry=entry, prepare=unshuffled,
    team=Team("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);", "get_local_id(0)", "const integer {0} = {1};", fetch="const whole got = *(const __global whole *){0};", element="got.s{0}"), file=file, compiler="clang",
    flags=("-O2", "-x", "cl", "-cl-std=CL1.2", "-target", "spir64-unknown-unknown", "-Xclang", "-finclude-default-header", "-emit-llvm"),
    device=("kernel.bc", "-c"), architectures=(), listing=None, dtypes=ARITHMETIC,
)
