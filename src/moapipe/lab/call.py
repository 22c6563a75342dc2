"""In: a kernel's name, a stage, a user's arrays. Out: the outputs of that stage: reference, dnf, onf, or the compiled C or Fortran.

Shapes give the sizes. Leading axes (batch, heads, …) are collapsed into the size that the kernel file names LEADING, and
restored in the outputs. Scalars that the kernel file has a default for may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

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

STAGES = ("reference", "dnf", "onf", "c", "fortran")
Arrays = dict[str, NDArray[Any]]


def call(
    kernel: str, inputs: Mapping[str, Any] | None = None, /, *, target: str = "reference", variant: str = "", form: str = "", dtype: str = "",
    isa: str = "auto", threads: int = 1, machine: str = "local", root: Path | None = None, **arrays: Any,
) -> Arrays:
    """Run a stage of a kernel on arrays, given as a mapping, by name, or both: `call("attention_forward", Q=q, K=k, V=v, target="c")`.

    `form` defaults to the kernel's first, `variant` to its first that has the target, `dtype` to f32 for float32 arrays and f64
    otherwise. Outputs keep the leading axes of the inputs; `reference` and `dnf` keep their precision too.
    ConfigError for names, LabError for shapes that do not conform and for a build that fails.
    """
    place = root or find_root()
    file = load(kernel, place)
    choose(target, STAGES, "stage", kernel)
    form = form or next(iter(file.forms))
    file.form(form)
    given = {k: np.asarray(v) for k, v in {**(inputs or {}), **arrays}.items()}
    start = denotation(kernel, form, place).dnf
    flat, leading = collapse(file, start, given)
    flat, sizes = complete(file, start, flat)
    dtype = dtype or _dtype(flat)
    choose(dtype, list(DTYPES), "dtype", kernel)
    match target:
        case "reference":
            out = file.call("reference", np, flat, form)
        case "dnf":
            made = meaning(start, flat, sizes)
            out = {o: made[o] for o in start.outputs}
        case _:
            language = "c" if target == "onf" else target
            build = Build(kernel, form, variant or _first(file, language), language, resolve_isa(isa, machine_file(machine, place)), dtype)
            typed = {k: np.asarray(v, DTYPES[dtype]) for k, v in flat.items()}
            d = derive(build, place)
            out = interpret(d.schedule.kernel, sizes, typed, threads=threads).outputs if target == "onf" else _compiled(d, place, machine, typed, sizes, threads)
    return {name: restore(value, leading, start, name, file) for name, value in out.items()}


def _first(file: KernelFile, target: str) -> str:
    for name, variant in file.variants.items():
        if target in variant.targets:
            return name
    raise ConfigError(f"no variant of {file.name} is written for {target}", where=f"kernels/{file.name}.yaml")


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


def collapse(file: KernelFile, dnf: Dnf, given: Mapping[str, NDArray[Any]]) -> tuple[Arrays, tuple[int, ...] | None]:
    """Inputs with their leading axes collapsed into the size LEADING, and those axes (None: nothing was collapsed).

    LabError for an input that the kernel does not have, a wrong rank, and leading axes that differ between inputs.
    """
    shapes = dict(dnf.inputs)
    for name in given:
        choose(name, list(shapes), f"input of {file.name}", "inputs")
    leading = getattr(file.module, "LEADING", "")
    found: dict[str, tuple[int, ...]] = {}
    out: Arrays = {}
    for name, value in given.items():
        shape = shapes[name]
        if shape and shape[0] == Var(leading):
            if value.ndim < len(shape) - 1:
                raise LabError(f"{name} has shape {value.shape}", where=file.name, hint=f"it needs {_shape(shape)}, with any axes in place of {leading}")
            found[name] = value.shape[: value.ndim - len(shape) + 1]
            value = value.reshape(prod(found[name]), *value.shape[len(found[name]) :])
        elif value.ndim != len(shape):
            raise LabError(f"{name} has shape {value.shape}", where=file.name, hint=f"it needs {_shape(shape) if shape else 'a single number'}")
        out[name] = value
    if len(set(found.values())) > 1:
        raise LabError(f"leading axes differ: {', '.join(f'{n} {s}' for n, s in found.items())}", where=file.name, hint="give all the same batch and head axes")
    return out, next(iter(found.values()), None)


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


def restore(value: NDArray[Any], leading: tuple[int, ...] | None, dnf: Dnf, name: str, file: KernelFile) -> NDArray[Any]:
    """An output with the leading axes of the inputs in place of LEADING."""
    first = dnf.normal(name).axes[:1]
    if leading is None or not first or first[0][1] != Var(getattr(file.module, "LEADING", "")):
        return value
    return value.reshape(*leading, *value.shape[1:])


def _shape(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join(map(text, shape)) + ")"


def call_file(kernel: str, source: Path, out: Path, **options: Any) -> Arrays:
    """`call` on the arrays of an .npz file, its outputs written to another (whole or not at all)."""
    try:
        with np.load(source) as data:
            given = {k: data[k] for k in data.files}
    except (OSError, ValueError) as e:
        raise LabError(f"cannot read arrays: {e}", where=str(source), hint="write it with numpy.savez(path, Q=…, K=…)") from e
    made = call(kernel, given, **options)
    write_arrays(out, made)
    return made


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An .npz file, whole or not at all."""
    content = BytesIO()
    np.savez(content, **arrays)
    write_bytes(path, content.getvalue())
