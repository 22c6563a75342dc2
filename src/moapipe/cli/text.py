"""The verbs that only make text: derive, show and published. They run on any machine for any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from moapipe.algebra import dnf
from moapipe.algebra.adjoint import show_written
from moapipe.cli import axis
from moapipe.errors import ConfigError
from moapipe.lab import demand, pair, transcript
from moapipe.lab import derive as deriving
from moapipe.lab.derive import Derivation
from moapipe.lab.experiment import machine_file
from moapipe.lab.kernel import names, scan, sizes_at
from moapipe.lab.place import derived, root
from moapipe.loops import account, onf
from moapipe.loops.closed import closed_forms
from moapipe.loops.onf_json import to_json
from moapipe.machine.arrangement import PLACEMENTS
from moapipe.machine.device import Device
from moapipe.machine.placement import derivation, places
from moapipe.machine.sketch import draw
from moapipe.machine.topology import probe
from moapipe.report import figure
from moapipe.report import published as papers
from moapipe.targets.isa import element_bytes
from moapipe.targets.table import target_named

Format = Literal["text", "json", "latex"]
Stage = Literal["definitions", "dnf", "onf", "cost", "source", "pair", "derivation"]
Sizes = Mapping[str, int]


def derive(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
) -> None:
    """Derive one build: derivation.md, derivation.json, cost.json, manifest.json and the source, below results/derive."""
    here = root()
    build = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype)
    transcript.write(deriving.derive(build, here), here / derived(build))
    print(f"derived {build.path()}: {derived(build)}")


def show(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel file's name; with --costs or --topology it may be left out.", show_default=False)] = "",
    form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
    stage: Annotated[Stage, typer.Option(help="What to print.")] = "definitions",
    at: Annotated[str, typer.Option(help="Sizes for --stage cost, B=2,n=2048,d=64. Without: closed forms.", show_default=False)] = "",
    threads: Annotated[int, typer.Option(min=0, help="Threads for --stage cost. 0: one, or on a GPU one for each iteration.")] = 0,
    machine: axis.Machine = "local",
    format: Annotated[Format, typer.Option(help="text, json or latex.")] = "text",
    costs: Annotated[bool, typer.Option("--costs", help="The papers' closed forms, computed from the definitions, with what each assumes.")] = False,
    topology: Annotated[bool, typer.Option("--topology", help="This machine as an array with named axes, and every placement on it.")] = False,
) -> None:
    """Print a stage of a build: its definitions, normal forms, costs, source or whole derivation. With --costs: the papers' closed forms."""
    here = root()
    if topology:
        print(_machine(format))
        return
    if costs:
        print(_claims(kernel, here, format))
        return
    if not kernel:
        raise ConfigError("no kernel is named", where="moapipe show", hint=f"moapipe show KERNEL: {', '.join(names(here))}; or moapipe show --costs")
    build = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype)
    derivation = deriving.derive(build, here)
    if at and stage != "cost":
        raise ConfigError(f"--at has no meaning for {stage}", where="moapipe show", hint="--stage cost counts at given sizes")
    sizes = sizes_at(derivation.denotation.kernel, axis.point(at)) if at else {}
    texts = STAGES[stage](derivation, sizes, Asked(threads, machine_file(machine, here).device))
    if format not in texts:
        raise ConfigError(f"{stage} has no {format} form", where="moapipe show", hint=f"--format {' or '.join(texts)}")
    shown = texts[format]()
    print(shown if isinstance(shown, str) else json.dumps(shown, indent=1, ensure_ascii=False))


def _machine(format: Format) -> str:
    """The topology as this process sees it."""
    top = probe()
    if format == "json":
        return json.dumps(top.to_json(), indent=1, ensure_ascii=False)
    placements = "\n".join(f"{name:<11} CPUs {' '.join(map(str, places(top, name)))}\n            {text}" for name, text in PLACEMENTS.items())
    return f"{draw(top)}\nThe CPUs of threads 0, 1, 2, … by placement:\n{placements}\n\n{derivation(top, 'spread')}"


def _claims(kernel: str, here: Path, format: Format) -> str:
    """The published closed forms of one kernel, or of all."""
    from moapipe.report import claim  # noqa: PLC0415  sympy takes half a second to load, and only this needs it

    rows = [c for c in papers.read().claims if kernel in ("", *(p.kernel for p in c.passes))]
    if not rows:
        raise ConfigError(f"the papers give no closed form for {kernel}", where="moapipe show --costs", hint="moapipe show --costs lists those that they give")
    documents = claim.documents(rows, here)
    return json.dumps(documents, indent=1, ensure_ascii=False) if format == "json" else claim.show(documents)


def published(format: Annotated[Literal["text", "json"], typer.Option(help="text or json.")] = "text") -> None:
    """Print the papers' own measurements: what they predicted, what we predict, what they measured, and which of our predictions hold."""
    found = papers.read()
    rows = figure.rows(found, root())
    print(json.dumps(rows, indent=1, ensure_ascii=False) if format == "json" else figure.text(rows, found.device.name))


# ------------------------------------------------------------------ stages

Texts = dict[str, Callable[[], str | dict[str, Any]]]


@dataclass(frozen=True)
class Asked:
    """What only --stage cost needs: threads (0: as many as there is work for), and the machine's GPU if it has one."""

    threads: int
    device: Device | None


def _definitions(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    name, definitions = d.build.kernel, d.denotation.definitions
    return {
        "text": lambda: show_written(name, definitions),
        "latex": lambda: show_written(name, definitions, "latex"),
        "json": lambda: _named(d, moa=show_written(name, definitions), latex=show_written(name, definitions, "latex")),
    }


def _dnf(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    form = d.denotation.dnf
    return {
        "text": lambda: dnf.show(form, "moa") + f"dnf {d.denotation.hash}\n",
        "latex": lambda: dnf.show(form, "latex"),
        "json": lambda: _named(d, moa=dnf.show(form, "moa"), ascii=dnf.show(form), latex=dnf.show(form, "latex")),
    }


def _onf(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    return {
        "text": lambda: onf.show(d.schedule.kernel) + f"onf {d.schedule.hash}\n",
        "json": lambda: _named(d, text=onf.show(d.schedule.kernel), onf=to_json(d.schedule.kernel)),
    }


def _cost(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    kernel = d.schedule.kernel
    if not sizes:
        return {"text": lambda: account.show_closed(kernel), "json": lambda: _named(d, closed_forms=closed_forms(kernel).to_json())}
    file, form = d.denotation.kernel, d.denotation.form
    counts = account.account(kernel, sizes, element_bytes(d.build.dtype), threads=asked.threads or 1,
                             lower_bound=lambda capacity: float(file.call("lower_bound", sizes, form, capacity)))
    gpu = demand.cost(d, sizes, asked.threads, asked.device) if target_named(d.build.target).device else None
    return {"text": lambda: account.show(counts) + (demand.show(gpu) if gpu else ""), "json": lambda: _named(d, **counts, **({"gpu": gpu} if gpu else {}))}


def _source(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    return {"text": lambda: d.source.text, "json": lambda: _named(d, source=d.source.text, manifest=d.manifest)}


def _pair(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    return {"text": lambda: pair.show(d), "json": lambda: _named(d, **pair.document(d))}


def _derivation(d: Derivation, sizes: Sizes, asked: Asked) -> Texts:
    return {"text": lambda: transcript.markdown(d), "json": lambda: transcript.document(d)}


STAGES: dict[str, Callable[[Derivation, Sizes, Asked], Texts]] = {
    "definitions": _definitions, "dnf": _dnf, "onf": _onf, "cost": _cost, "source": _source, "pair": _pair, "derivation": _derivation,
}


def _named(d: Derivation, **content: Any) -> dict[str, Any]:
    """A document that says whose it is."""
    head = {axis: getattr(d.build, axis) for axis in ("kernel", "form", "variant", "target", "isa", "dtype")}
    return head | {"dnf_hash": d.denotation.hash, "onf_hash": d.schedule.hash} | content
