"""In: a build's names. Out: its derivation: definitions, ψ-reduction, laws, lifts, operational normal form, source, manifest.

Pure text work: any machine derives for any other. What builds share is made once: the normal form of a (kernel, form), the
loop nest of a (kernel, form, variant, isa, dtype), which every language is written from.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import lcm, prod
from pathlib import Path
from typing import Any

from moapipe.algebra.adjoint import Adjoint, denote
from moapipe.algebra.dnf import Dnf, dnf_hash
from moapipe.algebra.expr import Definitions
from moapipe.algebra.index import evaluate, parse
from moapipe.algebra.laws import LAWS
from moapipe.algebra.rewrite import Step
from moapipe.algebra.scalar import variables
from moapipe.errors import ConfigError, MoapipeError
from moapipe.lab.document import choose, suggestion
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import KernelFile, Variant, load
from moapipe.loops import team
from moapipe.loops.lift import LiftStep, apply_script
from moapipe.loops.onf import Accumulate, Alloc, Kernel, onf_hash, statements
from moapipe.loops.share import lower
from moapipe.loops.wide import vectors
from moapipe.targets.emit import emit
from moapipe.targets.isa import dtype_named, element_bytes, tile_parameters
from moapipe.targets.table import taking
from moapipe.targets.target import Source

SCHEMA = 1  # of manifest.json


@dataclass(frozen=True, eq=False)
class Denotation:
    """What every variant, language and machine of a kernel and form shares: the definitions and their normal form, with its hash."""

    kernel: KernelFile
    form: str
    definitions: Definitions | Adjoint
    steps: tuple[Step, ...]
    dnf: Dnf
    hash: str


@dataclass(frozen=True)
class LawStep:
    """A row of LAWS as a variant used it: the definitions before and after; their meaning is the same."""

    law: str
    before: Dnf
    after: Dnf


@dataclass(frozen=True, eq=False)
class Schedule:
    """One operational normal form: the laws, the naive loop nest, every lift, the result with its hash, and the tile parameters."""

    params: Mapping[str, int]
    laws: tuple[LawStep, ...]
    naive: Kernel
    lifts: tuple[LiftStep, ...]
    hash: str

    @property
    def kernel(self) -> Kernel:
        return self.lifts[-1].kernel if self.lifts else self.naive


@dataclass(frozen=True)
class Derivation:
    """Everything that a build is made from."""

    build: Build
    denotation: Denotation
    schedule: Schedule
    source: Source

    @property
    def manifest(self) -> dict[str, Any]:
        """The ABI (docs/architecture.md, frozen text 2)."""
        return {
            "schema": SCHEMA, **asdict(self.build), "dnf_hash": self.denotation.hash, "onf_hash": self.schedule.hash,
            "params": dict(self.schedule.params), **self.source.manifest,
            **({"promises": promises(self.schedule.kernel, element_bytes(self.build.dtype))} if "launches" in self.source.manifest else {}),
        }


def promises(kernel: Kernel, size: int) -> dict[str, Any]:
    """What a loop nest promises of compiled code for a GPU: whether anything is `atomic`, whether a team waits (`barrier`), whether lanes
    exchange registers (`shuffle`), loops that fetch whole values of 16 bytes as one (`vector`), bytes of `shared` memory of the largest team; and that registers are registers, which needs no word."""
    arrays = {a.name: a for a in kernel.arrays if a.space == "shared"}
    regions = tuple(team.regions(kernel.body))
    used = [{s.array for s in statements((r,)) if isinstance(s, Alloc)} & set(arrays) for r in regions]
    return {
        "atomic": any(isinstance(s, Accumulate) and s.atomic for s in statements(kernel.body)), "barrier": any(team.barriers((r,)) for r in regions),
        "shuffle": bool(team.shuffles(kernel)), "vector": vectors(kernel),
        "shared": max((sum(size * prod(evaluate(e, {}) for e in arrays[a].shape) for a in each) for each in used), default=0),
    }


def derive(build: Build, root: Path, *, tiny: bool = False) -> Derivation:
    """The derivation of a build; `tiny` asks for deliberately small tiles, which validation uses to reach every edge.

    ConfigError for a name that does not exist or a target that the variant is not written for; AlgebraError, LiftError and
    TargetError say at which definition, lift or statement the line broke.
    """
    kernel = load(build.kernel, root)
    kernel.form(build.form)
    variant = kernel.variant(build.variant)
    choose(build.target, variant.targets, "target", f"kernels/{build.kernel}.yaml: {build.variant}")
    choose(build.variant, kernel.variants_of(build.form), f"variant for the form {build.form}", f"kernels/{build.kernel}.yaml")
    try:
        taking(build.target, build.dtype)
        with _uncollected():
            stage = _schedule(kernel, build.form, build.variant, build.isa, build.dtype, tiny)
            return Derivation(build, _denotation(kernel, build.form), stage, emit(stage.kernel, build.target, build.isa, build.dtype))
    except MoapipeError as e:
        e.where = f"{build.path()}{': ' + e.where if e.where else ''}"
        raise


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: a derivation makes a million small trees, all acyclic and most of them kept."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def denotation(kernel: str, form: str, root: Path) -> Denotation:
    """The definitions of a kernel and form, and their normal form."""
    file = load(kernel, root)
    file.form(form)
    return _denotation(file, form)


@lru_cache(maxsize=256)
def _denotation(kernel: KernelFile, form: str) -> Denotation:
    definitions = kernel.call("definitions", form)
    if not isinstance(definitions, Definitions | Adjoint):
        raise ConfigError(f"definitions gives {type(definitions).__name__}", where=kernel.where, hint="it must give Definitions, or an Adjoint of some")
    dnf, steps = denote(kernel.name, definitions)
    return Denotation(kernel, form, definitions, steps, dnf, dnf_hash(dnf))


@lru_cache(maxsize=1024)
def _schedule(kernel: KernelFile, form: str, name: str, isa: str, dtype: str, tiny: bool) -> Schedule:
    variant, start = kernel.variant(name), _denotation(kernel, form).dnf
    params = parameters(variant, isa, dtype, tiny, f"kernels/{kernel.name}.yaml: {name}")
    laws: list[LawStep] = []
    after = start
    for law in variant.laws:
        choose(law, list(LAWS), "law", f"kernels/{kernel.name}.yaml: {name}")
        before, after = after, LAWS[law].apply(after)
        laws.append(LawStep(law, before, after))
    naive = lower(after, tuple(variant.inline))
    held = dtype_named(dtype)
    lifts = apply_script(naive, (*variant.lifts, *([{"narrow": {}}] if held.arithmetic != held.name else [])), params, kernel.form(form))
    return Schedule(params, tuple(laws), naive, lifts, onf_hash(lifts[-1].kernel if lifts else naive))


# ------------------------------------------------------------------ tile parameters


def parameters(variant: Variant, isa: str, dtype: str, tiny: bool = False, where: str = "") -> dict[str, int]:
    """The tile parameters of a variant: the rule of targets.isa (or `tiny_tiles`), then the variant's own `params` in the order of
    the file, each an expression in what stands before it; with `tiny`, the variant's `tiny` instead where it has the name."""
    out = dict(tiny_tiles(isa, dtype) if tiny else tile_parameters(isa, dtype))
    own = {**variant.params, **variant.tiny} if tiny else variant.params
    for name, expression in own.items():
        e = parse(str(expression))
        if loose := sorted(variables(e) - set(out)):
            raise ConfigError(f"params: {name} = {expression} needs {loose[0]}", where=where, hint=suggestion(loose[0], list(out)))
        out[name] = evaluate(e, out)
    return out


def tiny_tiles(isa: str, dtype: str) -> dict[str, int]:
    """Tile parameters as small as the rules of the ONF allow: register tiles of 2×V, row blocks of 4, key blocks that both divide.

    Every size beyond a handful then meets several blocks and a tail on every axis.
    """
    usual = tile_parameters(isa, dtype)
    v, mr = usual["V"], 2
    return {**usual, "NV": 1, "W": v, "MR": mr, "Br": 2 * mr, "Bq": 4 * mr, "Bc": lcm(v, 4 * mr), "KC": 3, "MC": 2 * mr, "NC": v}
