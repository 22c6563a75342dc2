"""In: an arrangement. Out: the environment variables of a measuring process; what the machine lacks is a LabError that says so.

The one place that decides what a kernel sees: `lab.participant` scrubs every inherited OpenMP and BLAS setting and sets these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab.program import program
from moapipe.machine.arrangement import WAIT_POLICIES
from moapipe.machine.seating import Arranged

FOLDERS = ("/usr/lib/llvm-*/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/opt/*/lib")
GNU_NAME = "libgomp.so.1"      # what kernels are linked with; LLVM's runtime has its entry points too


def settings(threads: int, places: Sequence[int], *, bound: bool = True, wait_policy: str = "short") -> dict[str, str]:
    """The OpenMP settings of a measuring process, the same for kernels and for PyTorch: one thread a place in the order of the
    placement, or threads that the operating system puts where it likes on the process's CPUs."""
    where = {"OMP_PROC_BIND": "close", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in places)} if bound else {"OMP_PROC_BIND": "false"}
    return {"OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false", "OMP_MAX_ACTIVE_LEVELS": "1", **where, **WAIT_POLICIES[wait_policy]}


def environment(arranged: Arranged, root: Path, machine: str) -> dict[str, str]:
    """All variables that are set for an arrangement. LabError when its runtime is not on this machine."""
    asked = arranged.asked
    out = settings(asked.threads, arranged.places, bound=arranged.bound, wait_policy=asked.wait_policy)
    if asked.runtime == "libomp":
        out["LD_LIBRARY_PATH"] = os.pathsep.join([str(_in_place_of_gnu(root, machine)), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    if asked.believed_cpus:
        out |= {"LD_PRELOAD": str(program("believe.so", root, machine)), "BELIEVED_CPUS": str(asked.believed_cpus)}
    return out


def missing(arranged: Arranged) -> str:
    """Why the arrangement's OpenMP runtime cannot be had here; empty when it can."""
    if arranged.asked.runtime == "libomp" and next(_libomp(), None) is None:
        return "LLVM's OpenMP runtime libomp is not installed here"
    return ""


def _libomp() -> Iterator[Path]:
    for pattern in FOLDERS:
        yield from sorted(p for name in ("libomp.so", "libomp.so.5") for p in Path("/").glob(f"{pattern.lstrip('/')}/{name}"))


def _in_place_of_gnu(root: Path, machine: str) -> Path:
    """A folder that holds LLVM's runtime under the name of GNU's, so that a process loads it instead, and never both."""
    found = next(_libomp(), None)
    if found is None:
        raise LabError("LLVM's OpenMP runtime libomp is not installed here", hint="Debian: apt install libomp5-19; or measure with libgomp alone")
    folder = root / "results" / "native" / machine / "libomp"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / GNU_NAME
    if not link.is_symlink() or link.readlink() != found:
        fresh = folder / f".{GNU_NAME}-{os.getpid()}"
        fresh.symlink_to(found)
        fresh.replace(link)
    return folder.resolve()
