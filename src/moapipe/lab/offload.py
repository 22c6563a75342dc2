"""In: directive texts with their manifests, arrays. Out: their outputs, computed by this machine's processor; or a library for a GPU.

Two ways to run. `fallback`: GCC's compilers, which run target regions on the host's threads and ignore how buffers are mapped: evidence
that the text is taken, and for numbers. `offload`: clang's x86_64 device, which has a memory of its own as far as the mapping goes:
evidence that every buffer reaches the device and comes back. Neither is a GPU. Two ways only compile, for one by NVIDIA, each by the
compiler that it is named after; what came out is read by `nvptx`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from moapipe.errors import LabError
from moapipe.lab import errand, library
from moapipe.lab.build import located
from moapipe.lab.errand import Answer, Errand
from moapipe.targets.directive import ALONE
from moapipe.targets.table import TARGETS, target_named

Way = Literal["fallback", "offload", "gcc_nvptx", "clang_nvptx"]
NATIVE = Path(__file__).parent / "native" / "initial.c"


@dataclass(frozen=True, slots=True)
class Route:
    """The compilers that go this way and the flags that they need for it, the Debian packages that bring them, the file that such a
    compiler must have beside it, a program that it calls and that another package brings."""

    compilers: Mapping[str, tuple[str, ...]]
    package: str
    part: str = ""
    program: str = ""


CLANG = "clang-19 clang-tools-19 libomp-19-dev llvm-19"
GPU = "sm_80"
"""The newest that GCC 12 knows."""
GCC = ("-foffload=nvptx-none", "-save-temps=obj")
ROUTES: dict[Way, Route] = {
    "fallback": Route(ALONE, "gcc gfortran"),
    "offload": Route({"clang": ("-fopenmp-targets=x86_64-pc-linux-gnu", str(NATIVE))}, CLANG),
    "gcc_nvptx": Route({"gcc": (*GCC, f"-foffload-options=nvptx-none=-misa={GPU} -lm"), "gfortran": (*GCC, f"-foffload-options=nvptx-none=-misa={GPU} -lgfortran -lm")},
                       "gcc-offload-nvptx", "accel/nvptx-none/mkoffload"),
    "clang_nvptx": Route({"clang": ("-fopenmp-targets=nvptx64-nvidia-cuda", "-Xopenmp-target", f"-march={GPU}", "-save-temps=obj")},
                         CLANG, f"libomptarget-nvptx-{GPU}.bc", "ptxas"),
}
RUNS: tuple[Way, ...] = ("fallback", "offload")
"""Those that run here."""


def compiler(target: str, way: Way) -> tuple[str, tuple[str, ...]]:
    """The command and the flags with which a target goes this way; an empty command when it never does."""
    route = ROUTES[way].compilers
    return next(((c, (*flags, *route[c])) for c, flags in target_named(target).compilers if c in route), ("", ()))


def missing(target: str, way: Way) -> str:
    """Why a target cannot go this way here, in a sentence; empty when it can."""
    (command, _), route = compiler(target, way), ROUTES[way]
    if not command:
        return f"no compiler of {target} goes the way {way}"
    if not located(command):
        return f"no {command}: apt install {route.package}"
    if not beside(located(command), route.part):
        return f"{command} cannot compile for it: apt install {route.package}"
    return "" if not route.program or shutil.which(route.program) else f"no {route.program}: the CUDA toolkit brings it"


@lru_cache
def beside(command: str, part: str) -> bool:
    """Whether a compiler has a part of its own; it answers with a path for what is there, with the name for what is not."""
    said = subprocess.run([command, f"-print-file-name={part}"], capture_output=True, text=True, check=False).stdout.strip() if part else ""
    return not part or (said != part and Path(said).exists())


def targets(way: Way) -> tuple[str, ...]:
    """The targets that some compiler takes this way."""
    return tuple(t for t, row in TARGETS.items() if row.offloads and compiler(t, way)[0])


POISON = {"MALLOC_PERTURB_": "1"}
"""The C library fills what it hands out, the device's memory among it, with numbers of the order of 1e303 (1e38 in f32)."""


def environment(command: str) -> dict[str, str]:
    """What a compiler and what it made must see: clang's own tools and runtime, and that falling back to the host is an error."""
    found = located(command)
    here = Path(found).resolve().parent if found else Path()
    if command in ALONE:
        return {}
    libraries = str(here.parent / "lib")
    return {"PATH": f"{here}:/usr/bin:/bin", "LIBRARY_PATH": libraries, "LD_LIBRARY_PATH": libraries, "OMP_TARGET_OFFLOAD": "MANDATORY"}


def compile_text(target: str, way: Way, source: Path, made: Path, *more: str) -> None:
    """The text as a library, with `more` flags. LabError with the compiler's words when it does not compile."""
    command, flags = compiler(target, way)
    if why := missing(target, way):
        raise LabError(why, where=target)
    words = (located(command), *flags, *more, "-shared", "-fPIC", *(["-J", str(made.parent)] if command == "gfortran" else []), str(source), "-o", str(made), "-lm")
    seen = {"PATH": "/usr/bin:/bin", **environment(command)}
    if assembler := shutil.which("ptxas"):      # clang needs it; GCC has it check what it made
        seen["PATH"] += os.pathsep + str(Path(assembler).parent)
    done = subprocess.run(words, cwd=made.parent, env=seen, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{command} refuses the text: {done.stderr.strip()[:2000]}", where=target)


def run(errands: Sequence[Errand], way: Way, timeout: float = 3600) -> list[Answer]:
    """Libraries of one way, each with its manifest."""
    command = next(iter(ROUTES[way].compilers))
    return errand.run(errands, "moapipe.lab.offload", way, {**environment(command), **POISON}, timeout)


def perform(way: str, e: Errand) -> Mapping[str, NDArray[Any]]:
    """Call the library; what claims to be a device must be one."""
    if way == "offload" and ctypes.CDLL(e.program).moa_initial_device():
        raise LabError("target regions run on the host", where="offload", hint="the device's plugin was not found")
    return library.run(Path(e.program), e.manifest, e.inputs, e.sizes, e.threads)


if __name__ == "__main__":
    errand.serve(perform)
