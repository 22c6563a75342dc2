"""In: this machine, its C compiler. Out: calibration.json, the rates that predictions divide by, with how they were measured.

The loops are compiled with the same vector functions and flags as generated kernels, run in a process of their own on the same
CPUs, and the peak loop's listing is checked: full vectors, fused multiply-adds, no memory. Best of as many rounds as it takes
until the two best agree: others can only make a rate worse. What never agrees is named in the result.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab import locality
from moapipe.lab.experiment import machine_file, resolve_isa
from moapipe.lab.file import write_json
from moapipe.lab.participant import scrubbed
from moapipe.lab.place import calibrated
from moapipe.lab.runtime import settings
from moapipe.machine.placement import cpus
from moapipe.machine.rate import LEVELS, MEASURED, Bandwidth, Calibration, Rates
from moapipe.machine.topology import Topology, probe
from moapipe.targets.isa import ARITHMETIC, CACHES, Isa, isa_named, tile_parameters
from moapipe.targets.support import helpers
from moapipe.targets.table import flags
from moapipe.targets.target import Unit

LIMIT_S = 300.0
LEAST_MEMORY, MOST_MEMORY = 256 << 20, 1 << 30    # bytes a thread works on beyond the caches
FAR = 32  # times a thread's half share of the last cache: of four times as much, a quarter still comes from the cache (12 % at eight times)


def calibrate(machine: str, root: Path) -> Calibration:
    """Measure this machine and write results/calibrate/<machine>/calibration.json. Takes under a minute on a few cores.

    LabError when there is no C compiler, or when the peak loop is not what it should be.
    """
    file, top = machine_file(machine, root), probe()
    isa = isa_named(resolve_isa("auto", file))
    command = building.find(file, "c", machine).command
    seen: dict[str, dict[int, Seen]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ARITHMETIC:
            program = compile_loops(command, isa, dtype, Path(folder))
            seen[dtype] = {t: run(program, top, t, bandwidths=dtype == "f64") for t in thread_counts(top.cores)}
    result = replace(_calibration(machine, isa, top, command, seen), locality=locality.measure(top, root, machine))
    write_json(root / calibrated(machine), result.to_json())
    return result


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4, … and all cores."""
    return tuple(sorted({1 << k for k in range(cores.bit_length()) if 1 << k <= cores} | {cores}))


# ------------------------------------------------------------------ the loops


def arguments(isa: Isa, dtype: str) -> tuple[str, ...]:
    """The compiler's flags for the loops: the target's own, enough accumulators to hide the multiply-add's latency, and the
    register tile of generated kernels, whose panels of A fill an eighth of L2."""
    tile = tile_parameters(isa.name, dtype)
    shape = {"ACCUMULATORS": isa.registers * 3 // 4, "MR": tile["MR"], "NV": tile["NV"], "TILE_BYTES": CACHES.l2 // 8}
    return (*flags("c", isa.name, dtype), *(f"-D{name}={value}" for name, value in shape.items()))


def text(isa: Isa, dtype: str) -> str:
    """The loops in C, behind the vector types and functions that generated kernels use."""
    loops = files("moapipe.lab").joinpath("native", "calibrate.c").read_text()
    return f"{helpers(loops, Unit(isa, dtype))}\n{loops}"


def compile_loops(command: str, isa: Isa, dtype: str, folder: Path) -> Path:
    """The calibration program for one element type. LabError with the compiler's words when it does not compile."""
    source, listing, program = (folder / f"calibrate_{dtype}{end}" for end in (".c", ".s", ""))
    source.write_text(text(isa, dtype))
    for line in ([command, *arguments(isa, dtype), "-S", str(source), "-o", str(listing)],
                 [command, "-fopenmp", str(listing), "-o", str(program), "-lm"]):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"the calibration loops do not compile:\n{done.stderr.strip()}", where=shlex.join(line))
    check_peak(listing.read_text(), isa, dtype)
    return program


def check_peak(listing: str, isa: Isa, dtype: str) -> None:
    """The peak loop must be fused multiply-adds on full registers, or the ceiling is too low and every fraction of it too high."""
    if isa.name not in ("avx512", "avx2"):
        return
    register, kind = {"avx512": "zmm", "avx2": "ymm"}[isa.name], {"f32": "ps", "f64": "pd"}[dtype]
    body = re.search(r"^fma_loop[\w.]*:(.*?)\.cfi_endproc", listing, re.MULTILINE | re.DOTALL)
    found = re.findall(rf"vfn?madd\d+{kind}\s[^\n]*%{register}", body[1]) if body else []
    want = isa.registers * 3 // 4
    if len(found) < want:
        raise LabError(f"the peak loop has {len(found)} multiply-adds on {register} registers, expected {want}", where="calibrate.c: fma_loop",
                       hint="the compiler did not vectorise it; try another one")


def working_sets(top: Topology, threads: int) -> tuple[int, int, int, int]:
    """Bytes a thread works on, so that they lie in L1, L2, L3 and memory: half a cache's share; 0 where there is no such cache."""
    shares = []
    for level in LEVELS[:-1]:
        cache = top.cache(level)
        shares.append(cache.bytes // top.sharers(level, cpus(top, threads)) // 2 if cache else 0)
    last = next((s for s in reversed(shares) if s), 1 << 20)
    beyond = min(MOST_MEMORY, max(LEAST_MEMORY, FAR * last), top.memory_bytes // (8 * threads))
    return (*shares, beyond)  # type: ignore[return-value]


@dataclass(frozen=True)
class Seen:
    """Figures by name, and the names of those whose two best rounds did not agree: something else kept the machine busy."""

    figures: Mapping[str, float]
    unstable: tuple[str, ...]


def run(program: Path, top: Topology, threads: int, *, bandwidths: bool) -> Seen:
    """The figures at a number of threads, one on each of the first cores. LabError when the program fails or hangs."""
    sets = working_sets(top, threads) if bandwidths else (0, 0, 0, 0)
    env = {**scrubbed(os.environ), **settings(threads, cpus(top, threads))}
    line = [str(program), str(threads), *map(str, sets)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired as e:
        raise LabError(f"calibration took more than {LIMIT_S:g} s", hint="something else keeps the machine busy; see `moapipe doctor`") from e
    except subprocess.CalledProcessError as e:
        raise LabError(f"calibration ended with {e.returncode}: {e.stderr.strip()}") from e
    rows = [l.split() for l in done.stdout.splitlines()]
    return Seen({name: float(value) for name, value in rows if name != "unstable"}, tuple(value for name, value in rows if name == "unstable"))


# ------------------------------------------------------------------ the record


def _calibration(machine: str, isa: Isa, top: Topology, command: str, runs: Mapping[str, Mapping[int, Seen]]) -> Calibration:
    seen = {dtype: {t: found.figures for t, found in x.items()} for dtype, x in runs.items()}
    shaky = [f"{dtype} {name} at {t} threads" for dtype, x in runs.items() for t, found in x.items() for name in found.unstable]
    f64 = seen["f64"]
    caches = [c for c in top.caches if c.level in LEVELS]
    present = [level for level in LEVELS if all(f"{level}_read" in found for found in f64.values())]
    return Calibration(
        machine=machine, isa=isa.name, topology=top.line(), clock=max(found["clock"] for x in seen.values() for found in x.values()),
        lanes={dtype: isa.lanes(dtype) for dtype in seen}, capacity={c.level: c.bytes for c in caches},
        sharers={c.level: {t: float(top.sharers(c.level, cpus(top, t))) for t in f64} for c in caches},
        rates={dtype: rates(isa, dtype, x) for dtype, x in seen.items()},
        bandwidth={level: Bandwidth(*({t: found[f"{level}_{w}"] for t, found in f64.items()} for w in MEASURED)) for level in present},
        region={t: found["region"] for t, found in f64.items()},
        provenance={"compiler": building.version(command), "command": shlex.join([command, *arguments(isa, "f64")]), "unstable": ", ".join(shaky)},
    )


SHALLOW, DEEP = 32, 256        # steps of a register tile, as in calibrate.c
SHORT, LONG = 64, 256        # of a fold


def rates(isa: Isa, dtype: str, found: Mapping[int, Mapping[str, float]]) -> Rates:
    """Rates by number of threads. A tile of k steps takes start + k·step on one thread; two depths give both."""
    tile, step, start = tile_parameters(isa.name, dtype), {}, {}
    for t, figures in found.items():
        shallow, deep = (t / figures[name] for name in ("shallow", "deep"))
        step[t] = (deep - shallow) / (DEEP - SHALLOW)
        start[t] = max(0.0, shallow - SHALLOW * step[t])
    chain, ahead = waits(found, "chain")
    size = tile["MR"] * tile["W"]
    plain = {name: {t: figures[name] for t, figures in found.items()} for name in ("fma", "vector", "exp")}
    return Rates(**plain, tile={t: t * size / s for t, s in step.items()}, start=start, chain=chain, link=waits(found, "link")[0],
                 ahead=ahead, fold={t: t / figures["lanes"] for t, figures in found.items()})


def waits(found: Mapping[int, Mapping[str, float]], name: str) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of a step that waits for the last one, and steps of a fold that the processor does beside the next: k steps take
    (k - ahead)·seconds. By number of threads."""
    step, ahead = {}, {}
    for t, figures in found.items():
        brief, long = (t / figures[f"{depth}_{name}"] for depth in ("short", "long"))
        step[t] = (long - brief) / (LONG - SHORT)
        ahead[t] = max(0.0, SHORT - brief / step[t])
    return step, ahead


def lines(c: Calibration) -> Iterable[str]:
    """The figures for people, at the largest number of threads."""
    t = max(c.region)
    yield f"{c.topology}; {c.isa}, {c.clock / 1e9:.2f} GHz, {t} threads"
    for dtype, r in c.rates.items():
        yield f"{dtype}  {2 * r.fma[t] / 1e9:8.1f} Gflop/s fma   {r.vector[t] / 1e9:7.1f} G/s vector operations   {r.exp[t] / 1e9:6.2f} G/s exp2"
        yield f"     {2 * r.tile[t] / 1e9:8.1f} Gflop/s in register tiles, {r.start[t] * 1e9:.1f} ns between two"
        yield f"     {r.chain[t] * 1e9:.2f} ns from a multiply-add to the next that needs it, {r.link[t] * 1e9:.2f} ns for additions, {r.ahead[t]:.0f} steps ahead, {r.fold[t] * 1e9:.2f} ns to fold a vector"
    for level, b in c.bandwidth.items():
        yield f"{level:6}  read {b.read[t] / 1e9:7.1f}   copy {b.copy[t] / 1e9:7.1f}   streaming copy {b.stream[t] / 1e9:7.1f}   a line a page {b.column[t] / 1e9:7.1f} GB/s"
    yield f"parallel region {c.region[t] * 1e6:.2f} µs"
    known = c.locality
    if known.clock:
        yield "clock  " + ", ".join(f"{v / 1e9:.2f} GHz with {n} thread{'s' * (n > 1)}" for n, v in sorted(known.clock.items()))
    for way, rate in known.bandwidth.items():
        yield f"threads on memory node {way.replace('/', ', pages on ')}: {rate / 1e9:.1f} GB/s, {known.latency[way] * 1e9:.0f} ns"
    if known.barrier:
        text, worst = max(known.barrier.items(), key=lambda x: x[1])
        yield f"{len(known.barrier)} barriers, the slowest {worst * 1e3:.2f} ms: {text}"
    if shaky := c.provenance.get("unstable"):
        yield f"not to be trusted, for something else kept the machine busy: {shaky}; calibrate again when it is quiet"
