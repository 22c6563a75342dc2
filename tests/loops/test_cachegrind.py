"""Modelled line traffic against valgrind's cachegrind, which feeds a set-associative cache with what the compiled AVX2 code touches.

It stands in for the hardware counters that a virtual machine hides. Cachegrind knows nothing of our arrays: registers, spills and
the code's own scalars are in its numbers, and so are conflicts between lines of one set.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest

from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.library import shapes, work_elements
from moapipe.loops.traffic import Reuse

ROOT = Path(__file__).resolve().parents[2]
LINE, WAYS = 64, 8
SIZES = {
    "attention_forward": {"batch": 1, "q_len": 96, "kv_len": 192, "d_k": 64, "d_v": 64},
    "matmul": {"m": 96, "n": 136, "k": 160},
    "rmsnorm": {"rows": 64, "d": 256},
}
CASES = [("attention_forward", "full", "materialised"), ("attention_forward", "full", "row_scratch"), ("attention_forward", "causal", "online_tiled"),
         ("matmul", "nn", "naive"), ("matmul", "nn", "tiled"), ("rmsnorm", "forward", "row")]  # fmt: skip
CAPACITIES = [8 << 10, 32 << 10, 128 << 10]


def avx2() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and "avx2" in cpu.read_text()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("valgrind") or not shutil.which("gcc"), reason="needs valgrind and gcc"),
    pytest.mark.skipif(not avx2(), reason="needs a processor with AVX2"),
]


@dataclass(frozen=True)
class Program:
    """A compiled program that calls one kernel once, from a cold cache, and the kernel's loop nest."""

    binary: Path
    symbol: str
    reuse: Reuse

    def fetched(self, capacity: int) -> int:
        """Bytes that the kernel's own functions miss in a first-level cache of that capacity."""
        out = self.binary.with_suffix(f".{capacity}")
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--D1={capacity},{WAYS},{LINE}", f"--LL={4 << 20},16,{LINE}",
                   f"--cachegrind-out-file={out}", str(self.binary)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return LINE * misses(out.read_text(), self.symbol)


def misses(text: str, symbol: str) -> int:
    """First-level data misses, reading and writing, of all functions whose name begins with the symbol."""
    events: list[str] = []
    total, inside = 0, False
    for line in text.splitlines():
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("fn="):
            inside = line[3:].startswith(symbol)
        elif inside and line[:1].isdigit():
            counts = dict(zip(events, map(int, line.split()[1:]), strict=True))
            total += counts["D1mr"] + counts["D1mw"]
    return total


def fetches(reuse: Reuse, capacity: int) -> int:
    """Bytes that the model fetches: a cache that allocates on writes."""
    return sum(t.read + t.allocated for t in reuse.past(capacity).values())


def driver(symbol: str, elements: list[int], numbers: list[int]) -> str:
    """C that fills the buffers, walks over other memory until nothing of them is cached, and calls the kernel with one thread."""
    fill = "".join(f"    double *b{k} = aligned_alloc(64, {-(-8 * max(n, 1) // 64) * 64});\n    for (long i = 0; i < {n}; i++) b{k}[i] = 0.5 + i % 7;\n"
                   for k, n in enumerate(elements))  # fmt: skip
    call = ", ".join([f"b{k}" for k in range(len(elements))] + [f"(int64_t){n}" for n in (*numbers, 1)])
    return (f"#include <stdint.h>\n#include <stdlib.h>\nvoid {symbol}();\nint main(void) {{\n{fill}"
            f"    volatile char *cold = malloc(1 << 23);\n    for (long i = 0; i < 1 << 23; i += 64) cold[i] = 1;\n"
            f"    {symbol}({call});\n    return 0;\n}}\n")  # fmt: skip


def compiled(case: tuple[str, str, str], sizes: dict[str, int], folder: Path) -> Program:
    """The C of a variant for AVX2 with a program around it."""
    derivation = derive(Build(*case, "c", "avx2", "f64"), ROOT)
    manifest = derivation.manifest
    made = [s for kind in ("inputs", "outputs") for s in shapes(manifest, kind, sizes).values()]
    elements = [prod(s) for s in made] + [work_elements(manifest, sizes, 1)]
    (folder / "kernel.c").write_text(derivation.source.text)
    (folder / "main.c").write_text(driver(manifest["symbol"], elements, [sizes[s] for s in manifest["sizes"]]))
    command = ["gcc", "-std=gnu11", "-O3", "-mavx2", "-mfma", "-fno-math-errno", "-w", "kernel.c", "main.c", "-o", "program", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return Program(folder / "program", manifest["symbol"], Reuse(derivation.schedule.kernel, sizes, 8, LINE))


@pytest.fixture(scope="module")
def program(request, tmp_path_factory) -> Program:
    return compiled(request.param, SIZES[request.param[0]], tmp_path_factory.mktemp(request.param[2]))


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("program", CASES, ids=" ".join, indirect=True)
def test_the_model_fetches_what_cachegrind_counts(program, capacity):
    """Within a quarter at the same capacity, and between it at twice and at half: the factor that docs/cost_model.md states is for
    working sets that just fit, or just do not."""
    model = fetches(program.reuse, capacity)
    assert 0.8 <= model / program.fetched(capacity) <= 1.25
    assert program.fetched(2 * capacity) <= 1.25 * model and model <= 2.5 * program.fetched(capacity // 2)


def test_lines_that_fall_into_few_sets_are_what_the_model_cannot_know(tmp_path):
    """Rows of 1024 bytes put a column of B into 4 of 64 sets: it fits 32 KiB, and does not stay."""
    p = compiled(("matmul", "nn", "naive"), {"m": 96, "n": 128, "k": 160}, tmp_path)
    assert p.fetched(32 << 10) > 7 * fetches(p.reuse, 32 << 10)
