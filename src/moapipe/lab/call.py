"""In: a kernel's name, a stage, a user's arrays. Out: the outputs of that stage: reference, dnf, onf, or the compiled C or Fortran.

Shapes give the sizes. Leading axes (batch, heads, …) are collapsed into the size that the kernel file names LEADING, and
restored in the outputs; where the size GROUP follows it, the last leading axis counts that many times as many heads. Scalars that the kernel file has a default for may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moapipe.algebra.dnf import Dnf, infer_sizes, meaning
from moapipe.algebra.scalar import Var, text
from moapipe.errors import ConfigError, LabError
from moapipe.lab import build as building
from moapipe.lab.buffer import DTYPES
from moapipe.lab.derive import Derivation, denotation, derive
from moapipe.lab.document import choose
from moapipe.lab.experiment import Build, machine_file, resolve_isa
from moapipe.lab.file import read_json, sha256, write_bytes
from moapipe.lab.kernel import KernelFile, load
from moapipe.lab.library import run as run_library
from moapipe.lab.place import built, derived
from moapipe.lab.place import root as find_root
from moapipe.lab.transcript import write
from moapipe.loops.interpret import run as interpret
from moapipe.targets.isa import ARITHMETIC

STAGES = ("reference", "dnf", "onf", "c", "fortran")
MOST_THREADS = 1024         # as the measuring driver; an OpenMP runtime asked for far more ends the process
Arrays = dict[str, NDArray[Any]]


def call(
    kernel: str, inputs: Mapping[str, Any] | None = None, /, *, target: str = "reference", variant: str = "", form: str = "", dtype: str = "",
    isa: str = "auto", threads: int = 1, machine: str = "local", root: Path | None = None, **arrays: Any,
) -> Arrays:
    """Run a stage of a kernel on arrays, given as a mapping, by name, or both: `call("attention_forward", Q=q, K=k, V=v, target="c")`.

    `form` defaults to the kernel's first, `variant` to its first that has the target, `dtype` to f32 for float32 arrays and f64
    otherwise. Outputs keep the leading axes of the inputs; `reference` and `dnf` keep their precision too.
    ConfigError for names, LabError for shapes that do not conform, for a build that fails and for a number of threads that no runtime takes.
    """
    place = root or find_root()
    file = load(kernel, place)
    choose(target, STAGES, "stage", kernel)
    if not 1 <= threads <= MOST_THREADS:
        raise LabError(f"{threads} threads", where=kernel, hint=f"1 to {MOST_THREADS}; more than the machine has CPUs are slower")
    form = form or next(iter(file.forms))
    file.form(form)
    given = _numbers({**(inputs or {}), **arrays}, kernel)
    start = denotation(kernel, form, place).dnf
    flat, leading = collapse(file, start, given)
    flat, sizes = complete(file, start, flat)
    dtype = dtype or _dtype(flat)
    choose(dtype, list(ARITHMETIC), "dtype", kernel)
    match target:
        case "reference":
            out = file.call("reference", np, flat, form)
            file.gives("reference", out, start.outputs)
        case "dnf":
            made = meaning(start, flat, sizes)
            out = {o: made[o] for o in start.outputs}
        case _:
            language = "c" if target == "onf" else target
            build = Build(kernel, form, variant or _first(file, form, language), language, resolve_isa(isa, machine_file(machine, place)), dtype)
            typed = {k: np.asarray(v, DTYPES[dtype]) for k, v in flat.items()}
            d = derive(build, place)
            out = interpret(d.schedule.kernel, sizes, typed, threads=threads).outputs if target == "onf" else _compiled(d, place, machine, typed, sizes, threads)
    return {name: restore(value, leading, start, name, file) for name, value in out.items()}


def _numbers(given: Mapping[str, Any], kernel: str) -> Arrays:
    """A caller's arrays. LabError for what is no array of real numbers: a cast would drop imaginary parts, and read text and dates."""
    out = {k: np.asarray(v) for k, v in given.items()}
    if wrong := next((k for k, v in out.items() if v.dtype.kind not in "biuf"), None):
        raise LabError(f"{wrong} holds {out[wrong].dtype}, no real numbers", where=kernel, hint="give float32 or float64; for complex numbers, their parts one by one")
    return out


def _first(file: KernelFile, form: str, target: str) -> str:
    for name in file.variants_of(form, target):
        return name
    raise ConfigError(f"no variant of {file.name} is written for {form} in {target}", where=f"kernels/{file.name}.yaml")


def _dtype(inputs: Mapping[str, NDArray[Any]]) -> str:
    return "f32" if all(v.dtype == np.float32 for v in inputs.values() if v.ndim) else "f64"


def _compiled(d: Derivation, root: Path, machine: str, inputs: Arrays, sizes: Mapping[str, int], threads: int) -> Arrays:
    """Derive and build where what is there is missing or older than the kernel, then call the library."""
    folder = built(d.build, machine)
    write(d, root / derived(d.build))
    source = root / derived(d.build) / d.manifest["source"]
    record = root / folder / "build.json"
    library = root / folder / "kernel.so"
    fresh = record.is_file() and library.is_file() and read_json(record)["source_sha256"] == sha256(source)
    if not fresh:
        building.require(building.build(d.build, root, machine))
    return run_library(library, d.manifest, inputs, sizes, threads)


# ------------------------------------------------------------------ shapes


@dataclass(frozen=True)
class Leading:
    """A caller's axes in place of LEADING, and of LEADING and GROUP together (as many, the last one a multiple)."""

    alone: tuple[int, ...]
    grouped: tuple[int, ...]

    @property
    def group(self) -> int:
        return self.grouped[-1] // self.alone[-1] if self.alone and self.alone[-1] else 1


def collapse(file: KernelFile, dnf: Dnf, given: Mapping[str, NDArray[Any]]) -> tuple[Arrays, Leading | None]:
    """Inputs with their leading axes collapsed into the size LEADING, and those axes (None: no input has the size).

    LabError for an input that the kernel does not have, a wrong rank, leading axes that differ between inputs, and heads that do
    not divide into groups.
    """
    shapes = dict(dnf.inputs)
    found: dict[str, tuple[int, ...]] = {}
    for name, value in given.items():
        choose(name, list(shapes), f"input of {file.name}", "inputs")
        shape, behind = shapes[name], _behind(file, shapes[name])
        if behind and value.ndim < len(shape) - behind:
            raise LabError(f"{name} has shape {value.shape}", where=file.name, hint=f"it needs {_shape(shape)}, with any axes in place of {_leading(file)}")
        if behind:
            found[name] = value.shape[: value.ndim - len(shape) + behind]
        elif value.ndim != len(shape):
            raise LabError(f"{name} has shape {value.shape}", where=file.name, hint=f"it needs {_shape(shape) if shape else 'a single number'}")
    leading = _agreed(file, found, {name: _behind(file, shapes[name]) for name in found})
    if leading is None:
        return dict(given), None
    front = {1: (prod(leading.alone),), 2: (prod(leading.alone), leading.group)}
    return {n: v.reshape(*front[_behind(file, shapes[n])], *v.shape[len(found[n]) :]) if n in found else v for n, v in given.items()}, leading


def _leading(file: KernelFile) -> str:
    return str(getattr(file.module, "LEADING", ""))


def _behind(file: KernelFile, shape: tuple[Any, ...]) -> int:
    """How many axes of a shape a caller's leading axes stand for: 1 for LEADING, 2 for LEADING and GROUP, else 0."""
    if not shape or shape[0] != Var(_leading(file)):
        return 0
    return 2 if len(shape) > 1 and shape[1] == Var(str(getattr(file.module, "GROUP", ""))) else 1


def _agreed(file: KernelFile, found: Mapping[str, tuple[int, ...]], behind: Mapping[str, int]) -> Leading | None:
    """The leading axes that all inputs have; those with groups may have a multiple of heads."""
    alone, grouped = (dict.fromkeys(s for n, s in found.items() if behind[n] == k) for k in (1, 2))
    if len(alone) > 1 or len(grouped) > 1 or (alone and grouped and next(iter(alone))[:-1] != next(iter(grouped))[:-1]):
        raise LabError(f"leading axes differ: {', '.join(f'{n} {s}' for n, s in found.items())}", where=file.name, hint="give all the same batch and head axes")
    if not found:
        return None
    out = Leading(next(iter(alone or grouped)), next(iter(grouped or alone)))
    if len(out.alone) != len(out.grouped) or (out.alone and out.group * out.alone[-1] != out.grouped[-1]):
        few, many = (dict.fromkeys(n for n in found if behind[n] == k) for k in (1, 2))
        raise LabError(f"{out.grouped[-1] if out.grouped else 0} heads of {', '.join(many)} cannot share {out.alone[-1] if out.alone else 0} of {', '.join(few)}",
                       where=file.name, hint="each key-value head serves as many query heads as the others: their number must be a multiple")
    return out


def complete(file: KernelFile, dnf: Dnf, given: Arrays) -> tuple[Arrays, dict[str, int]]:
    """The inputs with defaults for the scalars that are missing, in the kernel's order, and the sizes. LabError when shapes disagree."""
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, shape in dnf.inputs:
        for extent, n in zip(shape, given[name].shape if name in given else (), strict=name in given):
            if isinstance(extent, Var) and sizes.setdefault(extent.name, n) != n:
                raise LabError(
                    f"shapes do not conform: {extent.name} is {sizes[extent.name]} in {owner[extent.name]} and {n} in {name}", where=file.name,
                    hint=f"shapes are {', '.join(f'{a} {_shape(s)}' for a, s in dnf.inputs if s)}",
                )
            if isinstance(extent, Var):
                owner.setdefault(extent.name, name)
    if missing := [n for n, s in dnf.inputs if s and n not in given]:
        raise LabError(f"input {', '.join(missing)} is missing", where=file.name, hint=f"inputs are {', '.join(n for n, _ in dnf.inputs)}")
    defaults = file.call("defaults", sizes) if hasattr(file.module, "defaults") else {}
    full = {**{k: np.asarray(v, np.float64) for k, v in defaults.items()}, **given}
    if missing := [n for n, _ in dnf.inputs if n not in full]:
        raise LabError(f"scalar {', '.join(missing)} is missing", where=file.name, hint=f"inputs are {', '.join(n for n, _ in dnf.inputs)}")
    ordered = {n: full[n] for n, _ in dnf.inputs}
    return ordered, {**sizes, **infer_sizes(dnf, ordered)}


def restore(value: NDArray[Any], leading: Leading | None, dnf: Dnf, name: str, file: KernelFile) -> NDArray[Any]:
    """An output with the leading axes of the inputs in place of LEADING."""
    behind = _behind(file, tuple(e for _, e in dnf.normal(name).axes))
    if leading is None or not behind:
        return value
    return value.reshape((leading.alone if behind == 1 else leading.grouped) + value.shape[behind:])


def _shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(map(text, shape)) + ")"


def call_file(kernel: str, source: Path, out: Path, **options: Any) -> Arrays:
    """`call` on the arrays of an .npz file, its outputs written to another (whole or not at all)."""
    hint = "write it with numpy.savez(path, Q=…, K=…)"
    try:
        with source.open("rb") as content:
            data = np.load(content)
            if not isinstance(data, np.lib.npyio.NpzFile):
                raise LabError("holds one array without a name", where=str(source), hint=hint)
            with data:
                given = {k: data[k] for k in data.files}
    except ValueError as e:
        raise LabError("cannot read arrays: it is no archive of arrays of numbers", where=str(source), hint=hint) from e
    except (OSError, EOFError, BadZipFile) as e:
        raise LabError(f"cannot read arrays: {e}", where=str(source), hint=hint) from e
    made = call(kernel, given, **options)
    write_arrays(out, made)
    return made


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An .npz file, whole or not at all."""
    content = BytesIO()
    np.savez(content, **arrays)
    write_bytes(path, content.getvalue())
