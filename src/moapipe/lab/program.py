"""In: the name of a native source of this package (lab/native/*.c). Out: the program, compiled once for a machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab.experiment import machine_file

NATIVE = Path(__file__).resolve().parent / "native"
SHOWN = 8  # lines of a compiler's complaint that a message shows


def program(name: str, root: Path, machine: str = "local", flags: Sequence[str] = ("-O2",), defines: Sequence[str] = ()) -> Path:
    """The compiled `lab/native/<name>.c`; a name that ends in .so gives a library. Compiled again only when a source, the command
    or the compiler's version changed. LabError when the compiler is missing or refuses."""
    compiler = building.find(machine_file(machine, root), "c", machine)
    source = NATIVE / f"{Path(name).stem}.c"
    shared = ("-shared", "-fPIC") if name.endswith(".so") else ("-fopenmp",)
    command = (compiler.command, "-std=gnu11", "-Wall", *flags, *(f"-D{d}" for d in defines), *shared)
    seen = [building.version(compiler.command), *command, *(f.read_text() for f in (source, *sorted(NATIVE.glob("*.h"))))]
    digest = hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]
    made = root / "results" / "native" / machine / f"{Path(name).stem}-{digest}{Path(name).suffix}"
    if not made.is_file():
        _compile((*command, str(source)), made)
    return made


def generated(stem: str, text: str, root: Path, machine: str, flags: Sequence[str]) -> Path:
    """The library of a C text that was made, with a compiler's flags for generated kernels; kept and made again as `program` does."""
    command = (building.find(machine_file(machine, root), "c", machine).command, *flags, "-shared")
    digest = hashlib.sha256("\n".join([building.version(command[0]), *command, text]).encode()).hexdigest()[:16]
    made = root / "results" / "native" / machine / f"{stem}-{digest}.so"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / f"{stem}.c"
            source.write_text(text)
            _compile((*command, str(source)), made)
    return made


def _compile(command: Sequence[str], made: Path) -> None:
    """Compile beside its place and rename: two jobs that compile at once do not see each other's half."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".compile-") as work:
        out = Path(work) / made.name
        done = subprocess.run([*command, "-o", str(out), "-ldl", "-lm"], capture_output=True, text=True, check=False)
        if done.returncode:
            shown = "\n    ".join(done.stderr.strip().splitlines()[:SHOWN])
            raise LabError(f"{command[0]} refuses {Path(command[-1]).name}: {shown}", hint="`moapipe doctor` looks at the compiler")
        os.replace(out, made)


def listing(program_source: str, root: Path, machine: str, flags: Sequence[str], defines: Sequence[str] = ()) -> str:
    """The assembler listing that the same command gives."""
    compiler = building.find(machine_file(machine, root), "c", machine)
    command = [compiler.command, "-std=gnu11", *flags, *(f"-D{d}" for d in defines), "-fopenmp", "-S", str(NATIVE / f"{program_source}.c"), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{command[0]} refuses {program_source}.c: {done.stderr.strip()}")
    return done.stdout
