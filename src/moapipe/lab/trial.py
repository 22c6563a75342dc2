"""In: builds of a text for GPUs. Out: evidence for each, made on this machine's processor; no GPU is asked, and none is claimed.

A trial derives, runs, and compares with the oracle of validation under validation's bounds. What each kind can see stands with the
program that makes it: `opencl`, `emulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moapipe.lab import opencl
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import KernelFile, load
from moapipe.lab.oracle import compare, truth
from moapipe.lab.scenario import Scenario

Kind = Literal["oclgrind", "pocl"]
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
    """How large a trial is: the least length of an axis (each next one is one longer), whether tiles are tiny, numbers of GPU threads."""

    length: int
    tiny: bool
    threads: tuple[int, ...]


EXTENTS: dict[Kind, Extent] = {"oclgrind": Extent(4, True, (3, 200)), "pocl": Extent(48, False, (300,))}


def scenario(kernel: KernelFile, extent: Extent) -> Scenario:
    """One case with axes of different lengths, so that none stands in for another."""
    few = {s for p, sizes in kernel.parameters.items() if p in FEW for s in sizes}
    sizes = tuple((s, (2 if s in few else extent.length) + k) for k, s in enumerate(kernel.sizes))
    return Scenario(sizes, "plain", 1, extent.threads)


def examine(builds: Sequence[Build], root: Path, runtime: Kind) -> list[Evidence]:
    """Evidence of one kind for builds of the target `opencl`, in their order. LabError when the runtime is not installed."""
    extent = EXTENTS[runtime]
    jobs, owners = [], []
    for b in builds:
        kernel, d = load(b.kernel, root), derive(b, root, tiny=extent.tiny)
        s = scenario(kernel, extent)
        inputs = truth(kernel, b.form, b.dtype, s).inputs
        for threads in s.threads:
            jobs.append(opencl.Job(d.source.text, d.manifest, inputs, dict(s.sizes), threads))
            owners.append(b)
    answers = opencl.run(jobs, runtime)
    return [judged(b, root, runtime, [a for a, o in zip(answers, owners, strict=True) if o is b]) for b in builds]


def judged(b: Build, root: Path, runtime: Kind, answers: Sequence[opencl.Answer]) -> Evidence:
    """Nothing is reported and every output is within validation's bound, for every number of threads."""
    kernel = load(b.kernel, root)
    s = scenario(kernel, EXTENTS[runtime])
    t = truth(kernel, b.form, b.dtype, s)
    reports = [a.report for a in answers if a.report]
    errors = [compare(t, n, v.reshape(t.outputs[n].shape)) for a in answers for n, v in a.outputs.items()]
    wrong = [f"{e.output}{list(e.place)} and {e.wrong - 1} more are beyond the bound" for e in errors if e.wrong]
    lost = [n for n in t.outputs if any(n not in a.outputs for a in answers)]
    if reports or wrong or lost:
        return Evidence(runtime, b.target, False, "\n".join([*reports, *wrong, *(f"no {n}" for n in lost)])[:2000])
    worst = max((e.ratio for e in errors), default=0.0)
    return Evidence(runtime, b.target, True, f"{s.label}; threads {', '.join(map(str, s.threads))}: no report, {worst:.2g} of the error bound")
