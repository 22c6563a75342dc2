"""In: builds of texts for GPUs. Out: evidence for each, made on this machine's processor; no GPU is asked, and none is claimed.

A trial derives, runs, and compares with the oracle of validation under validation's bounds. What each kind can see stands with the
module that makes it: `opencl`, `offload`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moapipe.errors import LabError
from moapipe.lab import offload, opencl
from moapipe.lab.derive import derive
from moapipe.lab.errand import Answer, Errand
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import KernelFile, load
from moapipe.lab.oracle import compare, truth
from moapipe.lab.scenario import Scenario

Kind = Literal["oclgrind", "pocl", "fallback", "offload"]
FEW = frozenset(("B", "G", "heads"))
"""Parameters that are counts of equal things."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a trial showed of a build: `passed`, and in `detail` the numbers that it passed with, or what is wrong."""

    kind: Kind
    target: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a trial is: the least length of an axis (each next one is one longer), whether tiles are tiny, numbers of threads."""

    length: int
    tiny: bool
    threads: tuple[int, ...]


EXTENTS: dict[Kind, Extent] = {
    "oclgrind": Extent(4, True, (3, 200)), "pocl": Extent(48, False, (300,)), "fallback": Extent(20, True, (1, 30)), "offload": Extent(20, True, (30,)),
}


def scenario(kernel: KernelFile, extent: Extent) -> Scenario:
    """One case with axes of different lengths, so that none stands in for another."""
    few = {s for p, sizes in kernel.parameters.items() if p in FEW for s in sizes}
    sizes = tuple((s, (2 if s in few else extent.length) + k) for k, s in enumerate(kernel.sizes))
    return Scenario(sizes, "plain", 1, extent.threads)


def missing(target: str, kind: Kind) -> str:
    """Why there can be no evidence of this kind for a target here, in a sentence; empty when there can."""
    match kind:
        case "oclgrind" | "pocl":
            return opencl.missing(kind) if target == "opencl" else f"{kind} reads opencl, not {target}"
        case "fallback" | "offload":
            return offload.missing(target, kind)


def examine(builds: Sequence[Build], root: Path, kind: Kind) -> list[Evidence]:
    """Evidence of one kind for builds, in their order. LabError when what makes it is not installed (see `missing`)."""
    with tempfile.TemporaryDirectory() as scratch:
        extent, errands, refused = EXTENTS[kind], {}, {}
        for k, b in enumerate(builds):
            try:
                errands[k] = prepared(b, root, kind, extent, Path(scratch) / str(k))
            except LabError as e:
                refused[k] = Evidence(kind, b.target, False, e.message)
        todo = [e for each in errands.values() for e in each]
        answers = iter(opencl.run(todo, kind) if kind in ("oclgrind", "pocl") else offload.run(todo, kind) if todo else ())
        return [refused[k] if k in refused else judged(b, root, kind, [next(answers) for _ in errands[k]]) for k, b in enumerate(builds)]


def prepared(b: Build, root: Path, kind: Kind, extent: Extent, folder: Path) -> list[Errand]:
    """One errand for each number of threads. LabError when the text does not compile."""
    kernel, d = load(b.kernel, root), derive(b, root, tiny=extent.tiny)
    s, program = scenario(kernel, extent), d.source.text
    if kind in ("fallback", "offload"):
        folder.mkdir()
        (folder / d.manifest["source"]).write_text(program)
        program = str(folder / "kernel.so")
        offload.compile_text(b.target, kind, folder / d.manifest["source"], Path(program))
    inputs = truth(kernel, b.form, b.dtype, s).inputs
    return [Errand(program, d.manifest, inputs, dict(s.sizes), threads) for threads in s.threads]


def judged(b: Build, root: Path, kind: Kind, answers: Sequence[Answer]) -> Evidence:
    """Nothing is reported and every output is within validation's bound, for every number of threads."""
    kernel = load(b.kernel, root)
    s = scenario(kernel, EXTENTS[kind])
    t = truth(kernel, b.form, b.dtype, s)
    reports = [a.report for a in answers if a.report]
    errors = [compare(t, n, v.reshape(t.outputs[n].shape)) for a in answers for n, v in a.outputs.items()]
    wrong = [f"{e.output}{list(e.place)} and {e.wrong - 1} more are beyond the bound" for e in errors if e.wrong]
    lost = [n for n in t.outputs if any(n not in a.outputs for a in answers)]
    if reports or wrong or lost:
        return Evidence(kind, b.target, False, "\n".join([*reports, *wrong, *(f"no {n}" for n in lost)])[:2000])
    worst = max((e.ratio for e in errors), default=0.0)
    return Evidence(kind, b.target, True, f"{s.label}; threads {', '.join(map(str, s.threads))}: no report, {worst:.2g} of the error bound")
