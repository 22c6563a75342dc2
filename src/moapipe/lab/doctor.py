"""In: this machine. Out: findings in words that a person can act on: what is there, and what stands in the way of a run.

Each row of CHECKS looks at one thing and never raises for what it finds. `wrong` means that the smoke run cannot work.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from moapipe.errors import MoapipeError
from moapipe.lab import binary, evidence, gpu, module, slurm
from moapipe.lab import build as building
from moapipe.lab.experiment import MachineFile, machine_file, resolve_isa
from moapipe.machine import topology
from moapipe.machine.quota import cpu_quota
from moapipe.targets.isa import ARITHMETIC, isa_named
from moapipe.targets.table import TARGETS, flags

Severity = Literal["fine", "notice", "wrong"]
REQUIRED = ("c", "fortran")  # targets of the smoke experiment
SETTINGS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
SPACE = 1 << 30  # bytes free that a run should find
BUSY = 0.3  # CPUs that others use, from which on samples are judged invalid
PROBES = {
    "c": ("probe.c", "#include <omp.h>\nint main(void) { double s = 0; \n#pragma omp parallel for reduction(+:s)\n"
                     "for (int i = 0; i < 8; ++i) s += i * 0.5;\nreturn s == 14.0 && omp_get_max_threads() > 0 ? 0 : 1; }\n"),
    "fortran": ("probe.f90", "program probe\n use omp_lib\n use iso_fortran_env, only: real64\n implicit none\n integer :: i\n real(real64) :: s\n"
                             " s = 0\n !$omp parallel do reduction(+:s)\n do i = 0, 7\n  s = s + i * 0.5_real64\n end do\n"
                             " if (s /= 14.0_real64 .or. omp_get_max_threads() < 1) error stop 1\nend program\n"),
}
TORCH = (
    "import json, re, torch; found = re.search(r'\\bBLAS_INFO=(\\w+)', torch.__config__.show()); "
    "x = torch.ones(1, 1, 4, 4); torch.nn.functional.scaled_dot_product_attention(x, x, x); "
    "print(json.dumps({'version': torch.__version__, 'blas': found[1] if found else 'unknown', 'threads': torch.get_num_threads(), "
    "'capability': torch.backends.cpu.get_cpu_capability()}))"
)


@dataclass(frozen=True)
class Finding:
    """One thing looked at: its topic, what was found, how bad it is, and what to do about it (empty when it is fine)."""

    topic: str
    text: str
    severity: Severity = "fine"
    advice: str = ""


@dataclass(frozen=True)
class Place:
    """What the checks look at: the repository, and the machine's file by its name."""

    root: Path
    name: str
    machine: MachineFile


def examine(root: Path, machine: str = "local") -> tuple[Finding, ...]:
    """Every finding, in the order of CHECKS. ConfigError when the machine's file is not there or not right."""
    place = Place(root, machine, machine_file(machine, root))
    return tuple(finding for check in CHECKS for finding in check(place))


def report(findings: Sequence[Finding]) -> str:
    """The findings as text: one line each, advice below it, and the sum of it all at the end."""
    width = max(len(f.topic) for f in findings)
    lines = []
    for f in findings:
        lines.append(f"{_mark(f.severity)} {f.topic:<{width}}  {f.text}")
        if f.advice:
            lines.append(f"  {'':<{width}}  → {f.advice}")
    wrong, notices = (sum(f.severity == s for f in findings) for s in ("wrong", "notice"))
    said = f"; {notices} notice{'s' * (notices > 1)} (marked !)" if notices else ""
    trouble = f"{wrong} thing{'s' * (wrong > 1)} must be mended before a run can work (marked ✗)"
    lines.append(f"\n{trouble if wrong else 'Ready for `make run`'}{said}.")
    return "\n".join(lines)


def _mark(severity: Severity) -> str:
    match severity:
        case "fine":
            return "✓"
        case "notice":
            return "!"
        case "wrong":
            return "✗"
        case _:
            assert_never(severity)


# ------------------------------------------------------------------ checks


def _python(place: Place) -> Iterator[Finding]:
    inside = sys.prefix != sys.base_prefix
    yield Finding("Python", f"{sys.version.split()[0]}{'' if inside else ', outside a virtual environment'}",
                  "fine" if inside else "notice", "" if inside else "versions may differ from constraints.txt; `make setup` makes .venv")


def _isa(place: Place) -> Iterator[Finding]:
    here, asked = topology.native_isa(), resolve_isa("auto", place.machine)
    row = isa_named(asked)
    text = f"{asked}, vectors of {row.vector_bytes} bytes, {row.registers} registers"
    if here == asked or isa_named(here).vector_bytes > row.vector_bytes:
        yield Finding("instruction set", text)
    else:
        yield Finding("instruction set", f"{text}, but this processor has {here}", "wrong", f"set isa: auto in config/machines/{place.name}.yaml")


def _modules(place: Place) -> Iterator[Finding]:
    """What follows is looked at with the machine's modules loaded."""
    if not place.machine.modules:
        return
    text = " ".join(place.machine.modules)
    try:
        os.environ.update(module.loaded(place.machine.modules))
    except MoapipeError as e:
        yield Finding("modules", e.message, "wrong", e.hint)
    else:
        yield Finding("modules", f"{text}; loaded for what follows")


def _compilers(place: Place) -> Iterator[Finding]:
    isa = resolve_isa("auto", place.machine)
    for target in REQUIRED:
        try:
            compiler = building.find(place.machine, target, place.name)
        except MoapipeError as e:
            yield Finding(f"compiler of {target}", e.message, "wrong", e.hint)
            continue
        complaint = module.another(compiler) or _compiles([compiler.command, *flags(target, isa, ARITHMETIC[0]), *compiler.flags], target)
        said = building.version(compiler.command)
        if complaint:
            yield Finding(f"compiler of {target}", f"{said}: {complaint}", "wrong",
                          f"install a working {compiler.command} (Debian: apt install {compiler.package or compiler.command} libc6-dev), "
                          f"or name another one in config/machines/{place.name}.yaml")
        else:
            yield Finding(f"compiler of {target}", f"{said}; compiles and runs OpenMP with this machine's flags")


def _compiles(command: Sequence[str], target: str) -> str:
    """What goes wrong when a small OpenMP program is compiled and run; empty when nothing does."""
    name, source = PROBES[target]
    with tempfile.TemporaryDirectory(prefix="moapipe-") as folder:
        (Path(folder) / name).write_text(source)
        made = subprocess.run([*command, name, "-fopenmp", "-o", "probe"], cwd=folder, capture_output=True, text=True, check=False)
        if made.returncode:
            return (made.stderr.strip().splitlines() or ["it fails without a word"])[0]
        ran = subprocess.run(["./probe"], cwd=folder, capture_output=True, text=True, check=False)
        return f"its programs end with {ran.returncode}" if ran.returncode else ""


def _gpu(place: Place) -> Iterator[Finding]:
    """Compilers of texts for GPUs, what runs those on the processor, the GPU that the machine's file describes. Nothing here is needed by
    anything else, so what is missing is a notice; a described GPU that is not here is wrong."""
    for target, row in TARGETS.items():
        if row.device:
            found = shutil.which(place.machine.compilers[target].command if target in place.machine.compilers else row.compiler)  # type: ignore[index]
            yield _there(f"compiler of {target}", found, f"texts for {target} are written, not compiled: registers, spills and instructions stay unknown",
                         f"install {row.compiler}, or name another command in config/machines/{place.name}.yaml")
    yield _there("cuobjdump", binary.disassembler(), "promises of CUDA texts are checked in PTX, not in the code that runs",
                 "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    for name, way in evidence.WAYS.items():
        barred = {t: why for t in way.targets if (why := way.missing(t))}
        loss = f"{'; '.join(dict.fromkeys(barred.values()))}: no evidence of this kind for {', '.join(barred)} ({way.text})"
        yield Finding(name, loss, "notice", "the rest of the evidence is made without it") if barred else Finding(name, f"{', '.join(way.targets)}: {way.text}")
    device = place.machine.device
    if device is None:
        yield Finding("GPU", f"config/machines/{place.name}.yaml describes none: texts for GPUs are compiled and emulated, never measured")
    elif why := gpu.absent(device):
        yield Finding("GPU", why, "wrong", "nothing can be measured on a GPU here; everything else works: take another machine file, or --machine local")
    else:
        yield Finding("GPU", f"{gpu.here()['name']}, {gpu.here()['arch']}, driver {gpu.here()['driver']}, cupy {gpu.here()['cupy']}")
        yield _there("ncu", shutil.which("ncu"), "no hardware counters: times are measured, what accounts for them is not", "install Nsight Compute")


def _there(topic: str, found: str | None, loss: str, advice: str) -> Finding:
    return Finding(topic, "found") if found else Finding(topic, f"not here: {loss}", "notice", advice)


def _topology(place: Place) -> Iterator[Finding]:
    try:
        found = topology.probe()
    except MoapipeError as e:
        yield Finding("topology", e.message, "wrong", e.hint)
    else:
        yield Finding("topology", found.line())


def _cpus(place: Place) -> Iterator[Finding]:
    allowed, present = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"may use {len(allowed)} of {present} CPUs: {','.join(map(str, allowed))}"
    if len(allowed) == 1 and present > 1:
        yield Finding("CPU mask", text, "notice", "this shell is bound to one CPU: start again without taskset, or under srun with "
                                                  "--cpu-bind=none or -c; cases with more threads are refused")
    else:
        yield Finding("CPU mask", text)
    quota = cpu_quota()
    if quota is not None and quota < len(allowed):
        yield Finding("CPU quota", f"a control group allows {quota:g} CPUs' worth of time", "notice",
                      "threads are stopped when it is used up; such samples are judged `throttled`. Ask for a larger quota")


def _settings(place: Place) -> Iterator[Finding]:
    found = {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)}
    policy = found.get("OMP_WAIT_POLICY", "unset (libgomp spins, then sleeps)")
    yield Finding("wait policy", f"OMP_WAIT_POLICY {policy}; measuring processes get their own")
    if found:
        yield Finding("environment", " ".join(f"{k}={v}" for k, v in found.items()), "notice", "measuring processes do not see these; unset them to be sure")


def _torch(place: Place) -> Iterator[Finding]:
    """In a process of its own: loading PyTorch may shrink the CPU mask that children inherit."""
    done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
        yield Finding("PyTorch", last, "wrong", "run `make setup` again; it installs the pinned version")
        return
    d = json.loads(done.stdout.splitlines()[-1])
    yield Finding("PyTorch", f"{d['version']}, BLAS {d['blas']}, {d['capability']}, {d['threads']} threads")


def _programs(place: Place) -> Iterator[Finding]:
    for program, package, loss in (("lstopo-no-graphics", "hwloc-nox", "caches and memory nodes are read from /sys instead"),
                                   ("numactl", "numactl", "memory stays where the first thread touches it")):
        there = shutil.which(program) or (program.startswith("lstopo") and shutil.which("lstopo"))
        yield Finding(program, "found") if there else Finding(program, f"not in PATH: {loss}", "notice", f"Debian: apt install {package}")


def _space(place: Place) -> Iterator[Finding]:
    free = shutil.disk_usage(place.root).free
    yield Finding("disk", f"{free / (1 << 30):.1f} GiB free", "fine" if free > SPACE else "notice",
                  "" if free > SPACE else "a run writes tens of megabytes; a full disk loses no finished result, but stops the run")


def _load(place: Place) -> Iterator[Finding]:
    load = os.getloadavg()[0]
    yield Finding("load", f"{load:.2f} CPUs busy over the last minute", "fine" if load < BUSY else "notice",
                  "" if load < BUSY else "samples with neighbours are judged invalid; measure when the machine is quiet")


def _profiles(place: Place) -> Iterator[Finding]:
    """A profile is found by its name where the repository's root has a link of that name."""
    for folder in sorted(p for p in (place.root / "profiles").glob("*") if p.name != "default"):
        link, back = place.root / folder.name, f"git checkout {folder.name}, or ln -s profiles/{folder.name} {folder.name}"
        if not link.exists():
            yield Finding("profile", f"{folder.name} has no link at the repository's root", "notice", f"{back}; then `snakemake --profile {folder.name}` works")
        elif not link.samefile(folder):
            yield Finding("profile", f"./{folder.name} hides profiles/{folder.name}: Snakemake looks there and no further", "notice", f"move it away; {back}")
        else:
            yield Finding("profile", f"`snakemake --profile {folder.name}`, in {place.root}")


def _slurm(place: Place) -> Iterator[Finding]:
    known = slurm.nodes()
    if not known:
        yield Finding("Slurm", "no controller answers; jobs run on this machine")
        return
    try:
        slurm.measurable(known)
    except MoapipeError as e:
        yield Finding("Slurm", e.message, "notice", e.hint)
    else:
        yield Finding("Slurm", f"{len(known)} node names; this host is one of them")


def _cluster(place: Place) -> Iterator[Finding]:
    """Accounts and the place of results, on the machine of a cluster."""
    c = place.machine.cluster
    if c is None:
        return
    for use, variable in c.accounts.items():
        there = os.environ.get(variable)
        yield Finding(f"account for {use}", f"{variable}={there}" if there else f"{variable} is not set", "fine" if there else "notice",
                      "" if there else f"export {variable}=…; `{c.balance}` lists yours")
    scratch, results = os.environ.get(c.scratch.variable), place.root / "results"
    if scratch and not results.resolve().is_relative_to(Path(scratch).resolve()):
        yield Finding("results", f"{results} is not below ${c.scratch.variable}", "notice",
                      f"mkdir -p ${c.scratch.variable}/moapipe-results && ln -s ${c.scratch.variable}/moapipe-results results")
    if c.scratch.days:
        yield Finding("results", f"${c.scratch.variable} is emptied after {c.scratch.days} days: copy archives away")


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    _python, _isa, _modules, _compilers, _gpu, _topology, _cpus, _settings, _torch, _programs, _space, _load, _profiles, _slurm, _cluster,
)
