"""In: the name of an instruction set and a dtype. Out: its row (registers, vector width, flags) and the tile sizes that follow.

Everything that depends on the machine's vector unit is decided here: lifts, emitters, compiler flags and the assembler gate
read these rows, and variants (`kernels/*.yaml`) name the numbers of `tile_parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from moapipe.errors import TargetError


@dataclass(frozen=True, slots=True)
class Dtype:
    """How a build holds numbers: `bytes` of an element of the caller's arrays; `arithmetic`, the dtype of values, registers, and all memory
    of the kernel's own. Where elements are narrower than values, the lift `narrow` says which arrays hold them."""

    name: str
    bytes: int
    arithmetic: str


DTYPES: dict[str, Dtype] = {d.name: d for d in (Dtype("f32", 4, "f32"), Dtype("f64", 8, "f64"), Dtype("bf16", 2, "f32"))}
ARITHMETIC = tuple(name for name, d in DTYPES.items() if d.arithmetic == name)
"""Those that values have, which every language knows; a record of `targets` names the others that it takes."""


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set as a vector machine.

    vector_bytes  width of one vector register        registers  architectural vector registers
    fma           multiply-add is one instruction     latency    cycles from operand to result of a multiply-add
    throughput    multiply-adds started in a cycle    march      `-march=` value; empty = the compiler's baseline
    wide          flags that make the compiler use the whole width in plain loops
    """

    name: str
    vector_bytes: int
    registers: int
    fma: bool
    latency: int
    throughput: int
    march: str = ""
    wide: tuple[str, ...] = ()

    def lanes(self, dtype: str) -> int:
        """V, the elements of one vector."""
        return self.vector_bytes // element_bytes(dtype)


ISAS: dict[str, Isa] = {
    "avx512": Isa("avx512", 64, 32, True, 4, 2, "x86-64-v4", ("-mprefer-vector-width=512",)),
    "avx2": Isa("avx2", 32, 16, True, 4, 2, "x86-64-v3"),
    "neon": Isa("neon", 16, 32, True, 4, 4, "armv8-a"),
    "plain": Isa("plain", 16, 16, False, 4, 2),
}


@dataclass(frozen=True, slots=True)
class Caches:
    """Capacities in bytes of one core's first two levels of data cache."""

    l1: int = 48 * 1024
    l2: int = 1024 * 1024


CACHES = Caches()
ROWS, COLUMNS, DEPTH, BLOCK = (8, 6, 4), 256, 64, 512      # choices of MR; most key columns; KC is a multiple of DEPTH; most of NC


def isa_named(name: str) -> Isa:
    """The row; TargetError when there is none."""
    if name not in ISAS:
        raise TargetError(f"no instruction set {name!r}", hint=f"choose one of {', '.join(ISAS)}")
    return ISAS[name]


def dtype_named(name: str) -> Dtype:
    """The row; TargetError when there is none."""
    if name not in DTYPES:
        raise TargetError(f"no dtype {name!r}", hint=f"choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def element_bytes(dtype: str) -> int:
    """Bytes of one value, as registers and a kernel's own memory hold it; TargetError for an unknown dtype."""
    return DTYPES[dtype_named(dtype).arithmetic].bytes


def tile_parameters(isa: str, dtype: str, caches: Caches = CACHES) -> dict[str, int]:
    """The one rule from vector width, registers and caches to tile sizes, in elements.

    V       lanes of a vector            NV  vectors side by side in a register tile      W = NV·V  its columns
    MR      its rows, 8, 6 or 4: the most whose MR·NV accumulators leave NV registers for a row of B and one for an element of A
            (three without FMA: the product needs a place, and GCC one more to move it); never fewer than latency·throughput
            accumulators, which hide the multiply-add's latency (Low et al., TOMS 43(2), 2016, eq. 2). Twelve rows would fit
            AVX-512 and were slower by 1 to 3 % in nearly all kernels, languages and dtypes that we timed (not in causal attention
            in f64): (MR + NV) loads a step are already fewer than the multiply-adds, and eight rows leave less of a power of
            two over
    Br, Bc  query rows and key columns of an attention tile: Br = 4·MR; Bc the largest multiple of W and Bq, at most 256, whose
            Br×Bc scores leave a third of L1 to what streams past them. Usual lengths are powers of two: a Bc that divides them
            leaves no short tile at the end
    Bq      query rows that see a tile of keys and values, which L2 holds, before the next one is fetched: 4·Br
    KC      depth of a matmul panel: a KC×W panel of B and an MR×KC panel of A fill L1 together
    MC      rows of a packed block of A: multiple of Br, an eighth of L2
    NC      columns of B that a packed block of A is used for: the multiple of W up to 512. That many make packing A cheap; fewer
            columns than a matrix has leave each thread columns of its own, whose panels of B it has packed itself
    """
    row, size = isa_named(isa), element_bytes(dtype)
    v = row.lanes(dtype)
    nv = 2
    w = nv * v
    spare = nv + (1 if row.fma else 3)
    mr = next(r for r in ROWS if r * nv <= row.registers - spare)
    br = 4 * mr
    bq = 4 * br
    bc = max(lcm(w, bq), min(COLUMNS, caches.l1 * 2 // 3 // (br * size)) // lcm(w, bq) * lcm(w, bq))
    kc = max(DEPTH, caches.l1 // ((mr + w) * size) // DEPTH * DEPTH)
    mc = max(br, caches.l2 // 8 // (kc * size) // br * br)
    nc = BLOCK // w * w
    return {"V": v, "NV": nv, "W": w, "MR": mr, "Br": br, "Bq": bq, "Bc": bc, "KC": kc, "MC": mc, "NC": nc}
