"""In: a derived source and its manifest, a machine's compilers. Out: kernel.so, kernel.s and build.json; for a GPU, a device binary and
a listing for each of its architectures.

The listing is made first and assembled afterwards, so what the assembler gate reads is what runs. Commands are recorded as a
shell would take them in the repository's root; a failure is recorded with its reason, and nothing of it runs.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from moapipe.errors import LabError, MachineError
from moapipe.lab import binary
from moapipe.lab.binary import Code
from moapipe.lab.experiment import Build, Compiler, MachineFile, machine_file
from moapipe.lab.file import read_json, sha256, write_json, write_text
from moapipe.lab.place import built, derived
from moapipe.lab.tether import KILLS
from moapipe.machine.device import Device
from moapipe.targets.directive import ALONE
from moapipe.targets.listing import check, tiles_of
from moapipe.targets.table import flags, target_named
from moapipe.targets.target import Target

SCHEMA = 1
PACKAGES = {"gcc": "gcc", "gfortran": "gfortran", "nvcc": "nvidia-cuda-toolkit", "hipcc": "hipcc", "clang": "clang-19"}
SHOWN = 12  # lines of a compiler's complaint that a message shows
KILLED = ("{0} signal", "died due to signal {1} ", "unable to execute command: {0}")
"""How gcc, nvcc and clang say that a signal, by name or number, ended one of their programs."""
PREFIX = "-ffile-prefix-map=$PWD=."  # no absolute path in the debug lines, whoever compiles

Status = Literal["built", "build_failed", "gate_failed"]


@dataclass(frozen=True)
class Built:
    """build.json: what was compiled, by what, how, and what the assembler gate saw. `library` is empty unless status is built
    and the target runs on this machine's processor; `device` holds a `binary.Code` for each architecture of a GPU."""

    build: Build
    machine: str
    status: Status
    reason: str
    compiler: Mapping[str, str]
    commands: tuple[str, ...]
    source_sha256: str
    library: str
    library_sha256: str
    tiles: tuple[Mapping[str, Any], ...]
    device: tuple[Mapping[str, Any], ...] = ()

    def document(self) -> dict[str, Any]:
        flat = {k: v for k, v in asdict(self).items() if k != "build"}
        return {"schema": SCHEMA, **asdict(self.build), **flat, "commands": list(self.commands), "tiles": [dict(t) for t in self.tiles], "device": [dict(c) for c in self.device]}


def read(path: Path) -> Built:
    """A build.json from disk. RecordError when it is missing or damaged."""
    d = read_json(path)
    build = Build(*(d[k] for k in ("kernel", "form", "variant", "target", "isa", "dtype")))
    rest = {k: d[k] for k in ("machine", "status", "reason", "compiler", "source_sha256", "library", "library_sha256")}
    return Built(build=build, commands=tuple(d["commands"]), tiles=tuple(d["tiles"]), device=tuple(d["device"]), **rest)


def build(b: Build, root: Path, machine: str = "local") -> Built:
    """Compile a derived build for a machine and write its files below results/build. Never raises for a compiler's refusal or a
    failing gate: both are in the result's status and in build.json. LabError when the compiler is missing or nothing is derived.
    """
    folder, source = built(b, machine), derived(b)
    if not (root / source / "manifest.json").is_file():
        raise LabError("nothing is derived", where=b.path(), hint="run `moapipe derive` first")
    manifest = read_json(root / source / "manifest.json")
    here = machine_file(machine, root)
    compiler = find(here, b.target, machine)
    result = compile_source(b, manifest, root, source / manifest["source"], folder, machine, compiler, device=here.device)
    write_json(root / folder / "build.json", result.document())
    return result


def unbuilt(b: Build, root: Path, machine: str, reason: str) -> Built:
    """The record of a build that could not even be tried (no compiler): build.json with status build_failed and the reason."""
    manifest = read_json(root / derived(b) / "manifest.json")
    source = sha256(root / derived(b) / manifest["source"])
    result = Built(b, machine, "build_failed", reason, {"command": "", "version": ""}, (), source, "", "", ())
    write_json(root / built(b, machine) / "build.json", result.document())
    return result


def binary_of(record: Built, arch: str) -> tuple[Path, str]:
    """The device binary of an architecture, below the root, and its digest. LabError when the build has none."""
    for code in record.device:
        if code["arch"] == arch:
            return built(record.build, record.machine) / code["file"], code["sha256"]
    raise LabError(f"no binary for {arch}", where=record.build.path(), hint=f"it is compiled for {', '.join(c['arch'] for c in record.device) or 'no GPU'}")


def require(result: Built) -> Built:
    """The build, or LabError with its reason when it failed."""
    if result.status != "built":
        raise LabError(result.reason, where=result.build.path(), hint=f"command: {result.commands[0] if result.commands else ''}")
    return result


# ------------------------------------------------------------------ compiler


def find(machine: MachineFile, target: str, name: str = "local") -> Compiler:
    """The machine's compiler of a target. LabError that says what to install or to load when it is missing."""
    row = machine.compilers.get(target)  # type: ignore[call-overload]
    compiler = row or Compiler(command=target_named(target).compiler)
    if not (found := located(compiler.command)):
        package = compiler.package or PACKAGES.get(compiler.command, compiler.command)
        modules = f"`module load {' '.join(machine.modules)}`" if machine.modules else "a compiler module"
        raise LabError(
            f"{compiler.command} is not in PATH", where=f"config/machines/{name}.yaml: compilers.{target}",
            hint=f"install it (Debian: apt install {package}), load {modules}, or name another command there",
        )
    return compiler if shutil.which(compiler.command) else compiler.model_copy(update={"command": Path(found).name})


def located(command: str) -> str:
    """Where a command lies; where only versions of it do (clang-19), the newest. Empty when there is none."""
    if found := shutil.which(command):
        return found
    versions = [p for d in os.get_exec_path() for p in Path(d).glob(f"{command}-*") if re.fullmatch(rf"{re.escape(command)}-\d+", p.name)]
    return str(max(versions, key=lambda p: int(p.name.rpartition("-")[2]))) if versions else ""


@lru_cache
def version(command: str) -> str:
    """First line of `command --version` (nvcc: the line with its release)."""
    out = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((l for l in out if "release" in l), out[0] if out else "unknown")


def commands(b: Build, manifest: Mapping[str, Any], compiler: Compiler, source: Path, folder: Path) -> tuple[tuple[str, ...], ...]:
    """Argument lists in order: text to listing, listing to library; for a GPU: text to a device binary."""
    row = target_named(b.target)
    if row.device:
        return tuple(told for arch, flag in row.architectures or (("", ""),) for told in _for_device(row, compiler, source, folder, arch, flag))
    modules = ("-J", str(folder)) if b.target == "fortran" or "gfortran" in compiler.command else ()
    listing, library = str(folder / "kernel.s"), str(folder / "kernel.so")
    if row.offloads:
        name = re.sub(r"-\d+$", "", Path(compiler.command).name)
        theirs = dict(row.compilers).get(name, row.flags)
        alone = () if any(f.startswith("-foffload") for f in compiler.flags) else ALONE.get(name, ())   # the machine's file asks for a GPU itself
        return ((compiler.command, *theirs, *alone, *compiler.flags, *modules, "-shared", "-fPIC", str(source), "-o", library, "-lm"),)
    given = (compiler.command, *flags(b.target, b.isa, b.dtype), *compiler.flags)
    return (
        (*given, PREFIX, *modules, "-S", str(source), "-o", listing),
        (compiler.command, "-shared", "-fopenmp", *compiler.flags, listing, "-o", library, "-lm"),
    )


def _for_device(row: Target, compiler: Compiler, source: Path, folder: Path, arch: str, flag: str) -> Iterator[tuple[str, ...]]:
    """Text to a device binary, and to a listing: by cuobjdump from the binary itself, else by the compiler."""
    assert row.device is not None
    seen = ("env", *row.environment) if row.environment else ()
    given = (*seen, compiler.command, *row.flags, *filter(None, (flag,)), *compiler.flags)
    made = folder / _named(row.device[0], arch)
    yield (*given, row.device[1], str(source), "-o", str(made))
    if row.listing and not _dumped(row):
        yield (*given, *row.listing[1], str(source), "-o", str(folder / f"kernel.{arch}.{row.listing[0]}"))


def _named(file: str, arch: str) -> str:
    """`kernel.sm_90.cubin`: the file of one architecture."""
    stem, _, ending = file.partition(".")
    return f"{stem}.{arch}.{ending}" if arch else file


def _dumped(row: Target) -> bool:
    return row.name == "cuda" and bool(binary.disassembler())


def shown(arguments: Sequence[str]) -> str:
    """A command as a shell takes it; $PWD stays a variable."""
    return " ".join(a if "$PWD" in a else shlex.quote(a) for a in arguments)


def compile_source(
    b: Build, manifest: Mapping[str, Any], root: Path, source: Path, folder: Path, machine: str, compiler: Compiler, *, gated: bool = True,
    device: Device | None = None,
) -> Built:
    """Compile `source` into `folder` (both relative to `root`); every file appears whole or not at all. `gated` runs the gate, which also
    asks whether a `device` of the architecture can start its blocks."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for old in {root / folder / "build.json", *(root / folder).glob("kernel.*")} - {root / source}:
        old.unlink(missing_ok=True)
    told = commands(b, manifest, compiler, source, folder)
    with tempfile.TemporaryDirectory(dir=root / folder, prefix=".compile-") as scratch:
        work = Path(scratch).relative_to(root)
        complaint, said = _run(commands(b, manifest, compiler, source, work), root)
        tiles, failed = _gate(manifest, b, root / work) if gated and not complaint else ((), "")
        codes = _codes(target_named(b.target), manifest, root / work, said, device) if not complaint else ()
        failed = failed or (next((f"{c.arch}: {problem}" for c in codes for problem in c.broken), "") if gated else "")
        status: Status = "build_failed" if complaint else "gate_failed" if failed else "built"
        for made in sorted((root / work).glob("kernel.*")):
            if not (complaint or (failed and made.suffix == ".so")):
                os.replace(made, root / folder / made.name)
    library = folder / "kernel.so"
    runs = status == "built" and (root / library).is_file()
    return Built(
        b, machine, status, complaint or failed, {"command": compiler.command, "version": version(compiler.command)},
        tuple(map(shown, told)), sha256(root / source), str(library) if runs else "", sha256(root / library) if runs else "", tiles, tuple(map(asdict, codes)),
    )


def _run(todo: Sequence[Sequence[str]], root: Path) -> tuple[str, tuple[str, ...]]:
    """Run commands in `root`; the complaint of the first that fails, and what each said."""
    said: list[str] = []
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}      # complaints are read: they must be in English
    for arguments in todo:
        real = [a.replace("$PWD", str(root)) for a in arguments]
        done = subprocess.run(real, cwd=root, env=environment, capture_output=True, text=True, check=False)
        said.append(done.stderr)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            command = next(a for a in arguments if a != "env" and "=" not in a)
            _blame_machine(command, done.returncode, "\n".join(lines))
            return f"{command} refuses the source: " + "\n    ".join(lines[:SHOWN] or [f"exit status {done.returncode}, no message"]), ()
    return "", tuple(said)


def _blame_machine(command: str, status: int, said: str) -> None:
    """MachineError when a compiler failed for want of space, or because it or one of its programs was killed."""
    if os.strerror(errno.ENOSPC) in said:
        raise MachineError(f"{command} cannot write: {os.strerror(errno.ENOSPC)}", hint="free some space below results/ or in the folder for temporary files")
    words = [w.format(signal.strsignal(k), int(k)) for k in KILLS for w in KILLED]
    if -status in KILLS or any(w in said for w in words):
        raise MachineError(f"{command} was killed", hint="try again; with more memory or fewer jobs at once (CORES=1) if the memory ran out")


def _codes(row: Target, manifest: Mapping[str, Any], folder: Path, said: Sequence[str], device: Device | None) -> tuple[Code, ...]:
    """What was compiled for each architecture of a GPU, held to the promises of the loop nest and to what the device has."""
    return tuple(_code(row, manifest, folder, arch, "\n".join(said), device if device and device.arch == arch else None) for arch, _ in row.architectures)


def _code(row: Target, manifest: Mapping[str, Any], folder: Path, arch: str, said: str, device: Device | None) -> Code:
    assert row.device is not None and row.listing is not None
    made, dialect = folder / _named(row.device[0], arch), row.listing[0]
    if _dumped(row):
        dialect = "sass"
        write_text(folder / f"kernel.{arch}.sass", binary.disassembled(made))
    listing = (folder / f"kernel.{arch}.{dialect}").read_text()
    functions = binary.from_metadata(listing) if dialect == "gcn" else binary.from_ptxas(said, arch)
    found = binary.counts(listing, dialect)
    broken = binary.broken(manifest["promises"], functions, found)
    return Code(arch, made.name, sha256(made), dialect, functions, found, (*broken, *(binary.oversized(device, manifest, functions) if device else ())))


def _gate(manifest: Mapping[str, Any], b: Build, folder: Path) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Reports of the assembler gate, and the first failure as a sentence."""
    listing = folder / "kernel.s"
    if not listing.is_file():
        return (), ""
    reports = check(listing.read_text(), tiles_of(manifest), b.isa, b.dtype)
    bad = [f"register tile {r.mark} (source lines {r.lines[0]}-{r.lines[1]}): {r.problem}; {r.hint}" for r in reports if not r.good]
    return tuple(asdict(r) for r in reports), bad[0] if bad else ""
