"""In: a derived kernel for a GPU, arrays. Out: its outputs and what it did to memory, computed by this machine's processor.

The very text is compiled behind lab/native/shim.hpp, which runs the threads of a block in turn and counts every access. This is
evidence that the text is right, not that a GPU ran it, and says nothing about speed.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError
from moapipe.lab.buffer import aligned
from moapipe.lab.library import WORK, becoming, filled, function, held, shapes, work_elements
from moapipe.loops.atomic import atomics
from moapipe.loops.fetch import fetches
from moapipe.loops.onf import Kernel
from moapipe.loops.tally import Access
from moapipe.targets.isa import dtype_named

LANGUAGES = ("cuda", "hip")
"""Targets whose text the shim reads."""
SHIM = Path(__file__).parent / "native" / "shim.hpp"
COMMAND = ("g++", "-std=c++17", "-O0", "-w", "-shared", "-fPIC", "-include", str(SHIM))
REAL = {"f32": "float", "f64": "double"}
FOR_COMPILERS = re.compile(r"\A/\*.*?\*/|^#ifndef EMULATED$.*?^#endif$", re.MULTILINE | re.DOTALL)
Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Elements that a buffer's accesses moved, and accesses that raced with another thread's. An atomic is neither load nor store; a fetch
    loads several elements as one."""

    loads: int
    stores: int
    atomics: int
    races: int
    fetches: int


@dataclass(frozen=True)
class Emulation:
    """`traffic` of each input, output, of the workspace (`work`) and of the arrays that teams shared. `outside`: accesses outside all
    buffers. `barriers` that all threads of a block met at, of all blocks together; `divergent`: those that some did not come to. `shuffles`: warp instructions
    that exchanged registers. `misplaced`: fetches whose first element lies at no multiple of their size."""

    outputs: Outputs
    traffic: Mapping[str, Traffic]
    outside: int
    barriers: int
    divergent: int
    launches: int
    shuffles: int
    misplaced: int

    @property
    def faults(self) -> tuple[str, ...]:
        """What no right text does, in words."""
        found = {"accesses outside of all buffers": self.outside, "barriers that some threads do not reach": self.divergent,
                 "fetches of several elements from where none is allowed": self.misplaced}
        found |= {f"races on {name}": x.races for name, x in self.traffic.items()}
        return tuple(f"{n} {what}" for what, n in found.items() if n)


def seen(text: str) -> str:
    """What the shim sees of a text: without its heading, and without what only a GPU's compiler reads."""
    return FOR_COMPILERS.sub("", text)


def miscounted(e: Emulation, kernel: Kernel, sizes: Mapping[str, int], accesses: Mapping[str, Access]) -> list[str]:
    """Buffers whose accesses are not those that the interpreter counts (`accesses`), and atomics that are not the formula's; the workspace
    holds all arrays that are no buffers. Lengths are read as indices, which no count calls an access."""
    out = []
    updates, due_fetches = atomics(kernel, sizes), fetches(kernel, sizes)
    for name, x in e.traffic.items():
        held = [n for n, a in accesses.items() if (a.space in ("workspace", "private") if name == WORK else n == name)]
        loads, stores = (sum(getattr(accesses[n], way) for n in held) for way in ("loads", "stores"))
        if (loads or stores) and (x.loads + x.atomics, x.stores + x.atomics) != (loads, stores):
            out.append(f"{name}: {x.loads + x.atomics} loads and {x.stores + x.atomics} stores, counted {loads} and {stores}")
        if x.fetches != (due := sum(n for a, n in due_fetches.items() if a in (*held, name))):
            out.append(f"{name}: {x.fetches} fetches of several elements, counted {due}")
        if x.atomics != (due := sum(u.updates for u in updates if u.array in (*held, name))):
            out.append(f"{name}: {x.atomics} atomics, counted {due}")
    return out


def compile_text(source: Path, dtype: str, library: Path) -> None:
    """The text as a library. LabError with the compiler's words when it does not compile."""
    command = (*COMMAND, f"-DREAL={REAL[dtype_named(dtype).arithmetic]}", "-x", "c++", str(source), "-o", str(library))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise LabError("no g++", where=source.name, hint="install g++ to run texts for GPUs on the processor") from e
    if done.returncode:
        raise LabError(f"does not compile under the shim: {done.stderr.strip()[:2000]}", where=source.name)


def run(library: Path, manifest: Mapping[str, Any], inputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], threads: int,
        *, descending: bool = False) -> Emulation:
    """Call the kernel on copies of `inputs` with `threads` GPU threads; `descending` runs blocks and threads the other way round."""
    buffers, dtypes = filled(manifest, inputs), held(manifest)
    made = shapes(manifest, "outputs", sizes)
    buffers |= {n: aligned(prod(s), dtypes[n]) for n, s in made.items()}
    work = aligned(work_elements(manifest, sizes, threads), dtypes[WORK])
    shim = ctypes.CDLL(str(library))
    shim.shim_shuffles.restype = ctypes.c_int64
    shim.shim_begin(int(descending))
    for b in (*buffers.values(), work):
        shim.shim_buffer(ctypes.c_void_p(b.ctypes.data), ctypes.c_int64(b.size), ctypes.c_int64(b.itemsize))
    function(library, manifest)(list(buffers.values()), work, [sizes[s] for s in manifest["sizes"]], threads)
    told = np.zeros((len(buffers) + 2, 5), np.int64)
    shim.shim_counts(ctypes.c_void_p(told.ctypes.data))
    rows = told.tolist()
    outside, barriers, divergent, launches, misplaced = rows[-1]
    traffic = {n: Traffic(*row) for n, row in zip((*buffers, WORK), rows, strict=False)}
    given = list(shapes(manifest, "inputs", sizes).items())
    updated = {new: buffers[given[k][0]].reshape(given[k][1]) for k, new in becoming(manifest).items()}
    return Emulation({n: buffers[n].reshape(s) for n, s in made.items()} | updated, traffic | _shared(shim), outside, barriers, divergent, launches,
                     shim.shim_shuffles(), misplaced)


def _shared(shim: ctypes.CDLL) -> dict[str, Traffic]:
    """Traffic of the arrays that teams shared, by the names that the text gives them; added up where several functions have one."""
    shim.shim_shared.restype, shim.shim_shared_array.restype = ctypes.c_int64, ctypes.c_char_p
    out: dict[str, Traffic] = {}
    for k in range(shim.shim_shared()):
        told = (ctypes.c_int64 * 5)()
        name = shim.shim_shared_array(ctypes.c_int64(k), told).decode()
        before = out.get(name, Traffic(0, 0, 0, 0, 0))
        out[name] = Traffic(*(a + b for a, b in zip(told, (before.loads, before.stores, before.atomics, before.races, before.fetches), strict=True)))
    return out
