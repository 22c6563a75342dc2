"""In: directive texts with their manifests, arrays. Out: their outputs, computed by this machine's processor.

Two ways. `fallback`: GCC's compilers, which run target regions on the host's threads and ignore how buffers are mapped: evidence that
the text is taken, and for numbers. `offload`: clang's x86_64 device, which has a memory of its own as far as the mapping goes:
evidence that every buffer reaches the device and comes back. Neither is a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from moapipe.errors import LabError
from moapipe.lab import errand, library
from moapipe.lab.build import located
from moapipe.lab.errand import Answer, Errand
from moapipe.targets.table import TARGETS, target_named

Way = Literal["fallback", "offload"]
NATIVE = Path(__file__).parent / "native" / "initial.c"


@dataclass(frozen=True, slots=True)
class Route:
    """The compiler families that go this way, the flags that they need for it, the Debian packages that bring them."""

    compilers: tuple[str, ...]
    flags: tuple[str, ...]
    package: str


ROUTES: dict[Way, Route] = {
    "fallback": Route(("gcc", "gfortran"), ("-foffload=disable",), "gcc gfortran"),
    "offload": Route(("clang",), ("-fopenmp-targets=x86_64-pc-linux-gnu", str(NATIVE)), "clang-19 clang-tools-19 libomp-19-dev llvm-19"),
}


def compiler(target: str, way: Way) -> tuple[str, tuple[str, ...]]:
    """The command and the flags with which a target goes this way; an empty command when it never does."""
    return next(((c, (*flags, *ROUTES[way].flags)) for c, flags in target_named(target).compilers if c in ROUTES[way].compilers), ("", ()))


def missing(target: str, way: Way) -> str:
    """Why a target cannot go this way here, in a sentence; empty when it can."""
    command, _ = compiler(target, way)
    if not command:
        return f"no compiler of {target} goes the way {way}"
    return "" if located(command) else f"no {command}: apt install {ROUTES[way].package}"


def targets(way: Way) -> tuple[str, ...]:
    """The targets that some compiler takes this way."""
    return tuple(t for t, row in TARGETS.items() if row.offloads and compiler(t, way)[0])


POISON = {"MALLOC_PERTURB_": "1"}
"""The C library fills what it hands out, the device's memory among it, with numbers of the order of 1e303 (1e38 in f32)."""


def environment(command: str) -> dict[str, str]:
    """What a compiler and what it made must see: clang's own tools and runtime, and that falling back to the host is an error."""
    found = located(command)
    here = Path(found).resolve().parent if found else Path()
    if command not in ROUTES["offload"].compilers:
        return {}
    return {"PATH": f"{here}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(here.parent / "lib"), "OMP_TARGET_OFFLOAD": "MANDATORY"}


def compile_text(target: str, way: Way, source: Path, made: Path, *more: str) -> None:
    """The text as a library, with `more` flags. LabError with the compiler's words when it does not compile."""
    command, flags = compiler(target, way)
    if why := missing(target, way):
        raise LabError(why, where=target)
    words = (located(command), *flags, *more, "-shared", "-fPIC", *(["-J", str(made.parent)] if command == "gfortran" else []), str(source), "-o", str(made), "-lm")
    done = subprocess.run(words, env={"PATH": "/usr/bin:/bin", **environment(command)}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{command} refuses the text: {done.stderr.strip()[:2000]}", where=target)


def run(errands: Sequence[Errand], way: Way, timeout: float = 3600) -> list[Answer]:
    """Libraries of one way, each with its manifest."""
    (command, *_) = ROUTES[way].compilers
    return errand.run(errands, "moapipe.lab.offload", way, {**environment(command), **POISON}, timeout)


def perform(way: str, e: Errand) -> Mapping[str, NDArray[Any]]:
    """Call the library; what claims to be a device must be one."""
    if way == "offload" and ctypes.CDLL(e.program).moa_initial_device():
        raise LabError("target regions run on the host", where="offload", hint="the device's plugin was not found")
    return library.run(Path(e.program), e.manifest, e.inputs, e.sizes, e.threads)


if __name__ == "__main__":
    errand.serve(perform)
