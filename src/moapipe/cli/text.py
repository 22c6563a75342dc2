"""The verbs that only make text: derive and show. They run on any machine for any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from moapipe.algebra import dnf
from moapipe.algebra.render import show_definitions
from moapipe.cli import axis
from moapipe.errors import ConfigError
from moapipe.lab import derive as deriving
from moapipe.lab.derive import Derivation
from moapipe.lab.kernel import scan, sizes_at
from moapipe.lab.place import root
from moapipe.loops import onf
from moapipe.loops.closed import closed_forms
from moapipe.loops.cost import count
from moapipe.loops.onf_json import to_json
from moapipe.loops.traffic import Reuse
from moapipe.targets.isa import CACHES, element_bytes

Format = Literal["text", "json", "latex"]
Stage = Literal["definitions", "dnf", "onf", "cost", "source", "derivation"]
Sizes = Mapping[str, int]


def derive(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
) -> None:
    """Derive one build: derivation.md, derivation.json, cost.json, manifest.json and the source, below results/derive."""
    here = root()
    build = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype)
    folder = deriving.write(deriving.derive(build, here), here)
    print(f"derived {build.path()}: {folder}")


def show(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
    stage: Annotated[Stage, typer.Option(help="What to print.")] = "definitions",
    at: Annotated[str, typer.Option(help="Sizes for --stage cost, B=2,n=2048,d=64. Without: closed forms.", show_default=False)] = "",
    threads: Annotated[int, typer.Option(min=1, help="Threads for --stage cost.")] = 1,
    format: Annotated[Format, typer.Option(help="text, json or latex.")] = "text",
) -> None:
    """Print a stage of a build: its definitions, normal forms, costs, source or whole derivation."""
    here = root()
    build = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype)
    derivation = deriving.derive(build, here)
    if at and stage != "cost":
        raise ConfigError(f"--at has no meaning for {stage}", where="moapipe show", hint="--stage cost counts at given sizes")
    sizes = sizes_at(derivation.denotation.kernel, axis.point(at)) if at else {}
    texts = STAGES[stage](derivation, sizes, threads)
    if format not in texts:
        raise ConfigError(f"{stage} has no {format} form", where="moapipe show", hint=f"--format {' or '.join(texts)}")
    shown = texts[format]()
    print(shown if isinstance(shown, str) else json.dumps(shown, indent=1, ensure_ascii=False))


# ------------------------------------------------------------------ stages

Texts = dict[str, Callable[[], str | dict[str, Any]]]


def _definitions(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    name, definitions = d.build.kernel, d.denotation.definitions
    return {
        "text": lambda: show_definitions(name, definitions),
        "latex": lambda: show_definitions(name, definitions, "latex"),
        "json": lambda: _named(d, moa=show_definitions(name, definitions), latex=show_definitions(name, definitions, "latex")),
    }


def _dnf(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    form = d.denotation.dnf
    return {
        "text": lambda: dnf.show(form, "moa") + f"dnf {d.denotation.hash}\n",
        "latex": lambda: dnf.show(form, "latex"),
        "json": lambda: _named(d, moa=dnf.show(form, "moa"), ascii=dnf.show(form), latex=dnf.show(form, "latex")),
    }


def _onf(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    return {
        "text": lambda: onf.show(d.schedule.kernel) + f"onf {d.schedule.hash}\n",
        "json": lambda: _named(d, text=onf.show(d.schedule.kernel), onf=to_json(d.schedule.kernel)),
    }


def _cost(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    if not sizes:
        return {"text": lambda: _lines(closed_forms(d.schedule.kernel).to_json()), "json": lambda: _named(d, closed_forms=closed_forms(d.schedule.kernel).to_json())}
    return {"text": lambda: _lines(_counts(d, sizes, threads)), "json": lambda: _named(d, **_counts(d, sizes, threads))}


def _counts(d: Derivation, sizes: Sizes, threads: int) -> dict[str, Any]:
    """The three counts as whole numbers: accesses and footprint in elements and bytes, traffic in bytes past each nominal capacity."""
    size, kernel = element_bytes(d.build.dtype), d.schedule.kernel
    document = count(kernel, sizes, size, threads=threads).to_json()
    reuse = Reuse(kernel, sizes, size, threads=threads)
    levels = {"L1": CACHES.l1, "L2": CACHES.l2, "L3": CACHES.l3}
    document["traffic"] = {level: {"capacity_bytes": capacity, "arrays": _traffic(reuse, capacity)} for level, capacity in levels.items()}
    return document


def _traffic(reuse: Reuse, capacity: int) -> dict[str, dict[str, int]]:
    return {name: {"read_bytes": t.read, "allocated_bytes": t.allocated, "written_bytes": t.written} for name, t in reuse.past(capacity).items()}


def _source(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    return {"text": lambda: d.source.text, "json": lambda: _named(d, source=d.source.text, manifest=d.manifest)}


def _derivation(d: Derivation, sizes: Sizes, threads: int) -> Texts:
    return {"text": lambda: deriving.markdown(d), "json": lambda: deriving.document(d)}


STAGES: dict[str, Callable[[Derivation, Sizes, int], Texts]] = {
    "definitions": _definitions, "dnf": _dnf, "onf": _onf, "cost": _cost, "source": _source, "derivation": _derivation,
}


def _named(d: Derivation, **content: Any) -> dict[str, Any]:
    """A document that says whose it is."""
    head = {axis: getattr(d.build, axis) for axis in ("kernel", "form", "variant", "target", "isa", "dtype")}
    return head | {"dnf_hash": d.denotation.hash, "onf_hash": d.schedule.hash} | content


def _lines(document: Mapping[str, Any], depth: int = 0) -> str:
    """Nested mappings as indented lines; thousands are grouped."""
    out = []
    for key, value in document.items():
        match value:
            case dict():
                out += [f"{'  ' * depth}{key}", _lines(value, depth + 1)]
            case list() | tuple() if value and isinstance(value[0], dict):
                out += [f"{'  ' * depth}{key} {i}\n{_lines(v, depth + 1)}" for i, v in enumerate(value)]
            case int():
                out.append(f"{'  ' * depth}{key:<{max(1, 30 - 2 * depth)}} {value:>22,}")
            case _:
                out.append(f"{'  ' * depth}{key:<{max(1, 30 - 2 * depth)}} {value}")
    return "\n".join(filter(None, out))
