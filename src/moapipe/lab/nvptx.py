"""In: builds with directives, a compiler's way to a GPU by NVIDIA. Out: whether the PTX that it makes keeps what the loop nest promises.

Nothing runs, and nothing here says that anything ran. A launch of the nest must be a kernel, and its iterations must go to the lanes of
warps; atomic instructions are there exactly where the nest has atomic sums; a function keeps no more in local memory than the small
private arrays of the nest.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path

from moapipe.algebra.index import constant
from moapipe.errors import LabError
from moapipe.lab import binary, offload
from moapipe.lab.derive import Derivation, derive, promises
from moapipe.lab.experiment import Build
from moapipe.lab.trial import Evidence, concluded
from moapipe.loops.onf import Alloc, Body, If, Kernel, Loop
from moapipe.targets.directive import small
from moapipe.targets.emit import sort_of
from moapipe.targets.isa import element_bytes

LISTINGS: Mapping[offload.Way, str] = {"gcc_nvptx": "*.mkoffload.s", "clang_nvptx": "*-openmp-nvptx64-*.s"}
"""What -save-temps calls the PTX of the text itself, without libraries."""
FUNCTION = re.compile(r"^[^\n/;]*\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$.]+)[^{;]*(?:;|\{(.*?)^\})", re.MULTILINE | re.DOTALL)
LANES = re.compile(r"%laneid|%tid\.x")
DEPOT = re.compile(r"\.local\s*\.align\s+\d+\s+\.b8\s+([\w$%]+)\[(\d+)\]")
FRAME = re.compile(r"sub\.u64\s+%frame, %sspprev, (\d+)")
LAUNCHER = "$impl"
"""GCC's function that starts a region's threads; its frame holds what the region is given, once a team."""
BORROWED = "%simtstack_ar"
"""GCC's own stack of a lane."""
ROUNDED = 16
"""Frames are whole numbers of so many bytes."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function in PTX: whether it is a kernel, whether it asks for its lane, bytes a thread that it keeps in local memory."""

    name: str
    kernel: bool
    lanes: bool
    local_bytes: int


def functions(listing: str) -> tuple[Function, ...]:
    """Those that a listing defines."""
    bare = binary.COMMENT.sub("", listing)
    return tuple(Function(name, kind == "entry", bool(LANES.search(body)), local(name, body)) for kind, name, body in FUNCTION.findall(bare) if body)


def local(name: str, body: str) -> int:
    """Bytes of the arrays that a function keeps in local memory; GCC's OpenMP has them on a stack of its own."""
    arrays = sum(int(size) for array, size in DEPOT.findall(body) if array != BORROWED)
    return arrays + (0 if name.endswith(LAUNCHER) else sum(map(int, FRAME.findall(body))))


@dataclass(frozen=True, slots=True)
class Promise:
    """What a loop nest promises of any directive text: how many `launches` it has, how many of those are `parallel`, whether anything is
    `atomic`, bytes of its `small` private arrays."""

    launches: int
    parallel: int
    atomic: bool
    small: int


def promise(kernel: Kernel, size: int) -> Promise:
    """`size`: bytes of an element."""
    found = list(launches(kernel.body))
    extents = (prod(constant(n) or 0 for n in a.shape) for a in kernel.arrays if small(a))
    arrays = size * sum(n for n in extents if n > 1)            # one element is a register
    return Promise(len(found), sum(found), promises(kernel, size)["atomic"], -(-arrays // ROUNDED) * ROUNDED)


def launches(body: Body) -> Iterator[bool]:
    """Whether it is parallel, for each launch that the nest has in its text."""
    for sort, run in groupby((s for s in body if not isinstance(s, Alloc)), key=sort_of):
        if sort == "serial":
            yield False
            continue
        for s in run:
            assert isinstance(s, Loop | If)
            yield from (True,) if sort == "region" else launches(s.body)


def broken(p: Promise, listing: str) -> tuple[str, ...]:
    """What a listing does not keep, in words."""
    found, counts = functions(listing), binary.counts(listing, "ptx")
    kernels, spread = sum(f.kernel for f in found), sum(f.lanes for f in found)
    out = [f"{f.name} keeps {f.local_bytes} bytes a thread in local memory where the loop nest has {p.small}" for f in found if f.local_bytes > p.small]
    if kernels != p.launches:
        out.append(f"{kernels} kernels where the loop nest has {p.launches} launches")
    if spread < p.parallel:
        out.append(f"{spread} functions go by the lanes of a warp where the loop nest has {p.parallel} parallel loops: the others leave all lanes but one idle")
    if p.atomic != bool(counts["atomic"]):
        out.append(f"{counts['atomic']} atomic instructions where the loop nest has {'some' if p.atomic else 'none'}")
    return tuple(out)


def told(p: Promise, listing: str) -> str:
    """What a listing holds, in words."""
    found, counts = functions(listing), binary.counts(listing, "ptx")
    swaps = f", {counts['compare and swap']} of them in compare-and-swap loops" if counts["compare and swap"] else ""
    return f"kernels: {p.launches}; atomic instructions: {counts['atomic']}{swaps}; bytes of local memory a thread: {max((f.local_bytes for f in found), default=0)}"


def examine(builds: Sequence[Build], root: Path, way: offload.Way) -> list[Evidence]:
    """What the compiler of a way makes of each build, held to its nest."""
    return [_examined(derive(b, root), way) for b in builds]


def _examined(d: Derivation, way: offload.Way) -> Evidence:
    p = promise(d.schedule.kernel, element_bytes(d.build.dtype))
    try:
        listing = compiled(d, d.source.text, way)
    except LabError as e:
        return Evidence(way, "failed", e.message)
    return concluded(way, broken(p, listing), f"{offload.GPU}: {told(p, listing)}")


def compiled(d: Derivation, text: str, way: offload.Way) -> str:
    """The PTX of a text, empty when nothing in it is for a GPU. LabError when it does not compile."""
    with tempfile.TemporaryDirectory(prefix="moapipe-") as folder:
        source, made = Path(folder) / d.manifest["source"], Path(folder) / "kernel.so"
        source.write_text(text)
        offload.compile_text(d.build.target, way, source, made)
        return "".join(p.read_text() for p in Path(folder).glob(LISTINGS[way]))
