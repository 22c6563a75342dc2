"""The words of the command line: one option an axis, named as in the YAML, the paths and the dataset, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moapipe.errors import ConfigError
from moapipe.lab import experiment, kernel
from moapipe.lab.experiment import Build, Experiment, Group
from moapipe.lab.kernel import KernelFile
from moapipe.targets.isa import DTYPES

Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel file's name, kernels/KERNEL.py.", show_default=False)]
Form = Annotated[str, typer.Option(help="What changes the mathematics, a row of the kernel's FORMS. Default: its first.", show_default=False)]
Variant = Annotated[str, typer.Option(help="A block of kernels/KERNEL.yaml. Default: its first.", show_default=False)]
Target = Annotated[str, typer.Option(help=f"The language: {', '.join(kernel.TARGETS)}.")]
Isa = Annotated[str, typer.Option(help="The instruction set: auto (this machine's), or a row of ISAS.")]
Dtype = Annotated[str, typer.Option(help=f"The element type: {', '.join(DTYPES)}.")]
Machine = Annotated[str, typer.Option(help="config/machines/MACHINE.yaml.")]
ExperimentName = Annotated[str, typer.Option("--experiment", help="The experiment, config/NAME.yaml.")]
OnMachine = Annotated[str, typer.Option("--machine", help="config/machines/MACHINE.yaml instead of the experiment's own.", show_default=False)]
Node = Annotated[int, typer.Option(min=0, help="Which of the experiment's `nodes`, counted from 0: each has a record of its own.")]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Write a bad result down, with its reason, and end with 0: the dataset then says why nothing was timed."),
]


def build_of(file: KernelFile, root: Path, form: str, variant: str, target: str, isa: str, dtype: str, machine: str = "local") -> Build:
    """The build that the options name; an empty form or variant is the kernel file's first. ConfigError for a name that is not there."""
    form = form or next(iter(file.forms))
    file.form(form)
    variant = variant or next(iter(file.variants_of(form, target) or file.variants))
    file.variant(variant)
    for word, known, what in ((target, kernel.TARGETS, "target"), (dtype, tuple(DTYPES), "dtype")):
        kernel.choose(word, known, what, "the command line")
    if isa == "auto":
        isa = experiment.resolve_isa(isa, experiment.machine_file(machine, root))
    return Build(file.name, form, variant, target, isa, dtype)


def group_of(e: Experiment, kernel: str, form: str, dtype: str) -> Group:
    """The bench group that the options name. ConfigError unless the experiment has it."""
    group, known = Group(kernel, form, dtype), experiment.groups(e)
    if group not in known:
        raise ConfigError(f"no group {group.path()}", where=e.where, hint=f"its groups: {', '.join(g.path() for g in known)}")
    return group


def point(text: str) -> dict[str, int]:
    """`B=2,n=2048,d=64` as {"B": 2, "n": 2048, "d": 64}. ConfigError for anything else, for a name that stands twice and for a size that
    nothing has."""
    out: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.strip().isdecimal():
            raise ConfigError(f"{part!r} is no size", where="--at", hint="write --at B=2,n=2048,d=64")
        if int(value) > experiment.LARGEST:
            raise ConfigError(f"{part!r} is larger than {experiment.LARGEST}", where="--at", hint="--stage cost without --at gives closed forms for all sizes")
        if name.strip() in out:
            raise ConfigError(f"{name.strip()} stands twice", where="--at", hint="keep one of the two")
        out[name.strip()] = int(value)
    return out
