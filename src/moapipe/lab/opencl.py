"""In: texts for OpenCL with their manifests, arrays. Out: their outputs, computed by this machine's processor, and what was reported.

Two devices that share no code. PoCL compiles a text and runs its blocks on all cores: evidence for numbers, at any size, but weak
for synchronisation (it runs more in order than the text asks for). Oclgrind interprets it and reports races, accesses outside of
buffers, reads of what nobody wrote and barriers that not all threads reach: evidence for what is safe, at small sizes. Neither is a
GPU.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError
from moapipe.lab import errand
from moapipe.lab.buffer import DTYPES, aligned
from moapipe.lab.device import Device
from moapipe.lab.errand import LOG, Answer, Errand
from moapipe.lab.launch import launches
from moapipe.lab.library import becoming, shapes, work_elements

WORK = "work"


@dataclass(frozen=True, slots=True)
class Runtime:
    """An OpenCL implementation: its platform's name, its library (relative to the program's folder when it comes with a program),
    what it must see, options of its compiler, whether it knows which elements nobody wrote, the Debian package that brings it."""

    platform: str
    program: str
    library: str
    environment: Mapping[str, str]
    options: str
    tracks: bool
    package: str

    @property
    def place(self) -> str:
        """The library to load; empty when it is not installed."""
        if not self.program:
            return self.library
        found = shutil.which(self.program)
        here = Path(found).resolve().parent / self.library if found else None
        return str(here.resolve()) if here and here.is_file() else ""


RUNTIMES = {
    "pocl": Runtime("Portable Computing Language", "", "libOpenCL.so.1", {}, "-cl-std=CL1.2", False, "pocl-opencl-icd ocl-icd-libopencl1"),
    "oclgrind": Runtime("Oclgrind", "oclgrind", "../lib/oclgrind/liboclgrind-rt.so", {
        "OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNIFORM_WRITES": "1", "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_MAX_ERRORS": "1000", "OCLGRIND_CHECK_API": "1"},
        "-cl-std=CL1.2 -cl-opt-disable", True, "oclgrind"),      # it does not know all that an optimiser writes
}


def missing(runtime: str) -> str:
    """Why the runtime cannot be used here, in a sentence; empty when it can."""
    row = RUNTIMES[runtime]
    try:
        if not row.place:
            raise LabError(f"no {row.program}")
        Device(row.place, row.platform)
    except LabError as e:
        return f"{e.message}: apt install {row.package}"
    return ""


def run(errands: Sequence[Errand], runtime: str, timeout: float = 3600, limits: Mapping[str, str] | None = None) -> list[Answer]:
    """Texts with their manifests, on one runtime, with other `limits` in its environment than usual. LabError when it is not installed or
    time is up."""
    row = RUNTIMES[runtime]
    if not row.place:
        raise LabError(f"no {row.program}", where=runtime, hint=f"Debian: apt install {row.package}")
    return errand.run(errands, "moapipe.lab.opencl", runtime, {**row.environment, **(limits or {})}, timeout)


# ------------------------------------------------------------------ inside the process


def perform(runtime: str, job: Errand) -> dict[str, NDArray[Any]]:
    """The launches of the manifest, in order, on copies of the inputs."""
    row = RUNTIMES[runtime]
    os.environ["OCLGRIND_LOG"] = os.environ[LOG]          # a context opens it when it is made
    device = Device(row.place, row.platform)
    device.compile(job.program, row.options)
    dtype, updated = job.manifest["dtype"], becoming(job.manifest)
    given, made = shapes(job.manifest, "inputs", job.sizes), shapes(job.manifest, "outputs", job.sizes)
    buffers = {}
    for k, name in enumerate(given):
        values = np.ascontiguousarray(job.inputs[name], DTYPES[dtype])
        buffers[name] = device.buffer(values, written=k in updated)
    for name, elements in {**{n: prod(s) for n, s in made.items()}, WORK: work_elements(job.manifest, job.sizes, job.threads)}.items():
        buffers[name] = device.buffer(aligned(elements, dtype), defined=not row.tracks)
    for l in launches(job.manifest, job.sizes, job.threads):
        device.launch(l.function, l.blocks, l.block, [buffers[n] for n in l.buffers], list(l.integers))
    out = {}
    for name, new in {**{n: n for n in made}, **{list(given)[k]: new for k, new in updated.items()}}.items():
        out[new] = np.empty({**given, **made}[name], DTYPES[dtype])
        device.read(buffers[name], out[new])
    return out


if __name__ == "__main__":
    errand.serve(perform)
