"""In: what a GPU's compiler says and lists. Out: what each function takes, what its instructions are, and which promises of the loop
nest they break.

Three dialects are read, by the listing that is there: SASS (cuobjdump, best: what runs), PTX (where cuobjdump is missing), AMD's
assembler. A listing says what a compiler made; that a GPU ran it, it does not say.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moapipe.errors import LabError
from moapipe.machine.device import Device, unfit

WHEEL = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
"""Where the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm put their programs."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is launched: registers of a thread, bytes of its stack (local memory) and of those what is spilt, bytes of
    shared memory of a block."""

    name: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Code:
    """What was compiled for one architecture. `counts`: instructions in the listing by the classes of CLASSES; `broken`: promises that
    it does not keep, in words."""

    arch: str
    file: str
    sha256: str
    dialect: str
    functions: tuple[Function, ...]
    counts: Mapping[str, int]
    broken: tuple[str, ...]


CLASSES: Mapping[str, Mapping[str, str]] = {
    "sass": {"atomic": r"\b(RED|REDG|ATOM|ATOMG)\.", "compare and swap": r"\bATOMG?\.[^;]*CAS", "barrier": r"\bBAR\.", "shuffle": r"\bSHFL\.",
             "local": r"\b(LDL|STL)\b", "global": r"\b(LDG|STG|LD|ST)\.E", "vector": r"\b(LDG|STG|LD|ST)\.E\S*\.128\b", "shared": r"\b(LDS|STS)\b"},
    "ptx": {"atomic": r"\b(atom|red)\.(?!shared)", "compare and swap": r"\batom\.(global\.)?cas", "barrier": r"\b(bar|barrier)\.sync", "shuffle": r"\bshfl\.",
            "local": r"\b(ld|st)\.local\b", "global": r"\b(ld|st)\.global\b", "vector": r"\b(ld|st)\.global\S*\.v[24]\b", "shared": r"\b(ld|st)\.shared\b"},
    "gcn": {"atomic": r"\b(global|flat)_atomic_", "compare and swap": r"_atomic_cmpswap", "barrier": r"\bs_barrier\b", "shuffle": r"\bds_(bpermute|swizzle)",
            "local": r"\b(scratch|buffer)_(load|store)_", "global": r"\b(global|flat)_(load|store)_", "vector": r"\b(global|flat)_(load|store)_dwordx4\b",
            "shared": r"\bds_(read|write)_?"},
}  # fmt: skip
"""Classes of instructions by dialect. A vector access moves 16 bytes a lane."""
COMMENT = re.compile(r"//.*|/\*.*?\*/")


def counts(listing: str, dialect: str) -> dict[str, int]:
    """Instructions of each class."""
    bare = [COMMENT.sub("", line) for line in listing.splitlines()]
    return {name: sum(bool(re.search(form, line)) for line in bare) for name, form in CLASSES[dialect].items()}


# ------------------------------------------------------------------ what functions take


ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def from_ptxas(said: str, arch: str) -> tuple[Function, ...]:
    """What `ptxas -v` says of every entry function of one architecture."""
    found: list[Function] = []
    name, stack = "", (0, 0)
    for line in said.splitlines():
        if m := ENTRY.search(line):
            name, stack = m[1] if m[2] == arch else "", (0, 0)
        elif name and (m := STACK.search(line)):
            stack = (int(m[1]), max(int(m[2]), int(m[3])))
        elif name and (m := USED.search(line)):
            found.append(Function(plain(name), int(m[1]), *stack, int(m[2] or 0)))
            name = ""
    return tuple(sorted(found, key=lambda f: f.name))


METADATA = re.compile(r"^\.amdgpu_metadata$(.*?)^\.end_amdgpu_metadata$|^---$(.*?)^\.\.\.$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^    \.(\w+): +(\S+)$", re.MULTILINE)


def from_metadata(listing: str) -> tuple[Function, ...]:
    """The kernels that the metadata of an AMD listing describes; a spilt register is four bytes of each lane."""
    block = METADATA.search(listing)
    found = []
    for part in re.split(r"^  - ", (block[1] or block[2]) if block else "", flags=re.MULTILINE)[1:]:
        row = dict(FIELD.findall("    " + part))
        if "vgpr_count" in row:
            found.append(Function(plain(row["name"]), int(row["vgpr_count"]), int(row["private_segment_fixed_size"]), 4 * int(row["vgpr_spill_count"]),
                                  int(row["group_segment_fixed_size"])))
    return tuple(sorted(found, key=lambda f: f.name))


def plain(symbol: str) -> str:
    """A function's own name in a mangled symbol without namespaces."""
    m = re.match(r"_ZL?(\d+)(\w+)", symbol)
    return m[2][: int(m[1])] if m else symbol


# ------------------------------------------------------------------ promises


def broken(promises: Mapping[str, Any], functions: Iterable[Function], found: Mapping[str, int]) -> tuple[str, ...]:
    """What the loop nest promised and the compiled code does not keep. `promises`: whether anything is `atomic`, whether teams wait for
    each other (`barrier`), whether lanes exchange registers (`shuffle`), loops that fetch 16 bytes as one (`vector`), bytes of `shared` memory of the largest team."""
    out = []
    for what, wanted in (("atomic", promises["atomic"]), ("barrier", promises["barrier"]), ("shuffle", promises["shuffle"])):
        if wanted != bool(found[what]):
            out.append(f"{found[what]} {what} instructions where the loop nest has {'some' if wanted else 'none'}")
    if found["vector"] < promises["vector"]:
        out.append(f"{found['vector']} accesses of 16 bytes where the loop nest has {promises['vector']} loops that fetch so much as one")
    if found["compare and swap"]:
        out.append(f"{found['compare and swap']} compare-and-swap loops: an atomic update that the hardware does not do by itself")
    for f in functions:
        if f.stack_bytes or f.spill_bytes:
            out.append(f"{f.name} keeps {f.stack_bytes} bytes a thread in local memory, {f.spill_bytes} of them spilt registers")
    largest = max((f.shared_bytes for f in functions), default=0)
    if largest != promises["shared"]:
        out.append(f"{largest} bytes of shared memory where the loop nest has {promises['shared']}")
    return tuple(out)


def oversized(device: Device, manifest: Mapping[str, Any], functions: Iterable[Function]) -> tuple[str, ...]:
    """Functions whose blocks the device cannot start, and why."""
    blocks = dict(_blocks(manifest["launches"]))
    found = ((f.name, unfit(device, blocks[f.name], f.registers, f.shared_bytes)) for f in functions if f.name in blocks)
    return tuple(f"{name}: {why}" for name, why in found if why)


def _blocks(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for row in rows:
        if "launch" in row:
            yield row["launch"], row["block"]
        yield from _blocks(row.get("body", ()))


def disassembler() -> str:
    """cuobjdump, from the PATH or from its package; empty when there is none. It needs nvdisasm beside it."""
    path = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=str(WHEEL))
    return path if path and (shutil.which("nvdisasm") or shutil.which("nvdisasm", path=str(Path(path).parent))) else ""


def disassembled(made: Path) -> str:
    """The SASS of a device binary. LabError with cuobjdump's words when it cannot be read."""
    program = Path(disassembler())
    done = subprocess.run([str(program), "-sass", made.name], cwd=made.parent, capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), str(program.parent)])})  # fmt: skip
    if done.returncode:
        raise LabError(f"cuobjdump cannot read {made.name}: {done.stderr.strip() or done.stdout.strip()}", hint="its package must not be older than nvcc")
    return done.stdout
