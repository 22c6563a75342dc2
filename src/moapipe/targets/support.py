"""In: C text and what it is written for. Out: the types and the support functions that it uses, written for its vector width.

Every function is ours, in GNU C vector extensions, right for any width; where GCC 12 has no good code for one (max, min, sqrt,
non-temporal stores), the x86 rows name the instruction. Compilers of other machines get the portable form.
"""

from __future__ import annotations

import re

from moapipe.targets.polynomial import EXPONENTIALS, horner
from moapipe.targets.target import Unit
from moapipe.targets.transpose import block

FUNCTIONS: dict[str, str] = {
    "floor_div": "static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }",
    "floor_mod": "static inline int64_t floor_mod(int64_t a, int64_t b) { const int64_t r = a % b; return r < 0 ? r + b : r; }",
    "min_index": "static inline int64_t min_index(int64_t a, int64_t b) { return a < b ? a : b; }",
    "max_index": "static inline int64_t max_index(int64_t a, int64_t b) { return a > b ? a : b; }",
    "max_real": "static inline real max_real(real a, real b) { return a > b ? a : b; }",
    "min_real": "static inline real min_real(real a, real b) { return a < b ? a : b; }",
    "exp2_real": """static inline real exp2_real(real t) {
    t = t > @MOST ? @MOST : t;
    const real r = t + @ROUND, f = t - (r - @ROUND), p = @POLY(f);
    @INT a, b;
    memcpy(&a, &p, sizeof a);
    memcpy(&b, &r, sizeof b);
    a += (@INT)((u@INT)b << @SHIFT);
    real y;
    memcpy(&y, &a, sizeof y);
    return t < @LEAST ? 0 : y;
}""",
    "exp_real": """static inline real exp_real(real x) {
    const real t = x * @LOG2E, r = t + @ROUND, n = r - @ROUND;
    const real f = ((x - n * @HIGH) - n * @LOW) * @LOG2E, p = @POLY(f);
    @INT a, b;
    memcpy(&a, &p, sizeof a);
    memcpy(&b, &r, sizeof b);
    a += (@INT)((u@INT)b << @SHIFT);
    real y;
    memcpy(&y, &a, sizeof y);
    return t < @LEAST ? 0 : x > @TOP ? INFINITY : y;
}""",
    "sigmoid_real": """static inline real sigmoid_real(real u) {
    const real e = exp_real(-FABS(u));
    return (u < 0 ? e : 1) / (1 + e);
}""",
    "splat": "static inline vec splat(real a) { return a - (vec){0}; }",
    "load": "static inline vec load(const real *p) { return *(const vec_u *)p; }",
    "store": "static inline void store(real *p, vec v) { *(vec_u *)p = v; }",
    "select": "static inline vec select(mask m, vec a, vec b) { return (vec)(((mask)a & m) | ((mask)b & ~m)); }",
    "flag": "static inline mask flag(int c) { return (mask){0} - (@INT)(c != 0); }",
    "below": """static inline mask below(int64_t limit) {
    const mask number = {@LANES};
    return number < (mask){0} + (@INT)(limit < 0 ? 0 : limit > @V ? @V : limit);
}""",
    "vmax": """static inline vec vmax(vec a, vec b) {@MAX
    return select(a > b, a, b);
}""",
    "vmin": """static inline vec vmin(vec a, vec b) {@MIN
    return select(a < b, a, b);
}""",
    "vabs": "static inline vec vabs(vec a) { return (vec)((mask)a & ~(mask)splat(-0.0@F)); }",
    "vsqrt": """static inline vec vsqrt(vec a) {@SQRT
    for (int u = 0; u < @V; u++) a[u] = SQRT(a[u]);
    return a;
}""",
    "vexp2": """static inline vec vexp2(vec t) {
    t = vmin(splat(@MOST), t);
    const vec r = t + @ROUND, f = t - (r - @ROUND), p = @POLY(f);
    const vec y = (vec)((mask)p + ((mask)r << @SHIFT));
    return (vec)((mask)y & ~(t < @LEAST));
}""",
    "vexp": """static inline vec vexp(vec x) {
    const vec t = x * @LOG2E, r = t + @ROUND, n = r - @ROUND;
    const vec f = ((x - n * @HIGH) - n * @LOW) * @LOG2E, p = @POLY(f);
    const vec y = (vec)((mask)p + ((mask)r << @SHIFT));
    return select(x > @TOP, splat(INFINITY), (vec)((mask)y & ~(t < @LEAST)));
}""",
    "vsigmoid": """static inline vec vsigmoid(vec u) {
    const vec e = vexp(-vabs(u));
    return select(u < 0, e, splat(1)) / (1 + e);
}""",
    "fold_sum": "static inline real fold_sum(vec a) {@TREE(a + b)\n    return a[0];\n}",
    "fold_product": "static inline real fold_product(vec a) {@TREE(a * b)\n    return a[0];\n}",
    "fold_max": "static inline real fold_max(vec a) {@TREE(vmax(a, b))\n    return a[0];\n}",
    "fold_min": "static inline real fold_min(vec a) {@TREE(vmin(a, b))\n    return a[0];\n}",
    "stream": """/* Past the caches; what is not aligned to a whole vector takes the ordinary way. */
static inline void stream(real *p, vec v) {
#ifdef __x86_64__
    if (((uintptr_t)p & (sizeof v - 1)) == 0) { @STREAM(p, v); return; }
#endif
    store(p, v);
}""",
    "fence": """static inline void fence(void) {
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}""",
}
"""name → C text; @WORDS are filled in for the dtype and the vector width."""

MATH = {"FABS": "fabs", "SQRT": "sqrt", "LOG": "log", "LOG2": "log2", "FLOOR": "floor"}
TYPES = ("real", "vec", "vec_u", "mask")
KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return",
    "short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof main",
    "int32_t int64_t uint32_t uint64_t uintptr_t memcpy INFINITY NAN omp_get_thread_num",
    "fabs sqrt log log2 exp exp2 floor max min abs fabsf sqrtf logf log2f expf exp2f floorf j0 j1 jn y0 y1 yn gamma signgam index row pick",
)
RESERVED = frozenset((*(w for line in KEYWORDS for w in line.split()), *FUNCTIONS, *MATH, *TYPES))


def helpers(body: str, unit: Unit) -> str:
    """Includes, types and the functions that `body` calls, callees first."""
    wanted: dict[str, str] = {}
    _collect(body, unit, wanted)
    functions = [wanted[n] for n in FUNCTIONS if n in wanted]
    order = sorted(functions, key=lambda t: list(wanted.values()).index(t))
    blocks = sorted(set(re.findall(r"\btranspose(_scaled)?_(\d+)\(", body)))
    order += [block(int(edge), bool(scaled), unit.size) for scaled, edge in blocks]
    bits = 8 * unit.size
    head = ["#include <math.h>", "#include <stdint.h>", "#include <string.h>", "#ifdef _OPENMP", "#include <omp.h>", "#else",
            "#define omp_get_thread_num() 0", "#endif", "",
            f"typedef {'float' if unit.size == 4 else 'double'} real;",
            f"typedef real vec __attribute__((vector_size({unit.isa.vector_bytes})));",
            f"typedef real vec_u __attribute__((vector_size({unit.isa.vector_bytes}), aligned({unit.size}), may_alias));",
            f"typedef int{bits}_t mask __attribute__((vector_size({unit.isa.vector_bytes})));"]
    everything = body + "".join(functions)
    head += [f"#define {n} {f}{'f' if unit.size == 4 else ''}" for n, f in MATH.items() if n in everything and re.search(rf"\b{n}\b", everything)]
    return "\n".join([*head, "", *order, ""])


def _collect(body: str, unit: Unit, wanted: dict[str, str]) -> None:
    called = set(re.findall(r"(\w+)\(", body))
    for name, form in FUNCTIONS.items():
        if name in called and name not in wanted:
            function = fill(form, unit)
            _collect(re.sub(rf"\b{name}\(", "", function), unit, wanted)
            wanted[name] = function


def fill(form: str, unit: Unit) -> str:
    """The text for one dtype and vector width."""
    e, f, v = EXPONENTIALS[unit.dtype], "f" if unit.size == 4 else "", unit.lanes
    wide = {64: "512", 32: "256", 16: ""}[unit.isa.vector_bytes]
    kind = "ps" if unit.size == 4 else "pd"
    words = {
        "@ROUND": e.round + f, "@MOST": f"{e.most}.0{f}", "@LEAST": f"{e.least}.0{f}", "@SHIFT": str(e.shift), "@HIGH": e.high + f,
        "@LOW": e.low + f, "@TOP": e.top + f, "@LOG2E": e.log2e + f, "@POLY(f)": horner(unit.dtype, "f", f"{{0}}{f}"),
        "u@INT": f"uint{8 * unit.size}_t", "@INT": f"int{8 * unit.size}_t", "@LANES": ", ".join(map(str, range(v))),
        "@V": str(v), "@F": f, "@STREAM": f"__builtin_ia32_movnt{kind}{wide}",
        "@MAX": _x86(unit, f"max{kind}", 2), "@MIN": _x86(unit, f"min{kind}", 2), "@SQRT": _x86(unit, f"sqrt{kind}", 1),
    }
    form = re.sub(r"@TREE\((.*)\)\n", lambda m: _tree(m.group(1), v), form)
    for word, by in words.items():
        form = form.replace(word, by)
    return form


def _x86(unit: Unit, instruction: str, operands: int) -> str:
    """The instruction by name, where it exists: max and min are exactly `a > b ? a : b` there (b when either is NaN)."""
    if unit.isa.name not in ("avx512", "avx2"):
        return ""
    asm = f'v{instruction} %2, %1, %0" : "=v"(r) : "v"(a), "v"(b)' if operands == 2 else f'v{instruction} %1, %0" : "=v"(r) : "v"(a)'
    return f'\n#ifdef __x86_64__\n    vec r;\n    __asm__("{asm});\n    return r;\n#endif'


def _tree(step: str, v: int) -> str:
    """log2 V steps; each adds the lane whose number differs in one bit."""
    out, half = "\n    vec b;", v // 2
    while half:
        out += f"\n    b = __builtin_shuffle(a, (mask){{{', '.join(str(i ^ half) for i in range(v))}}}), a = {step};"
        half //= 2
    return out + "\n"
