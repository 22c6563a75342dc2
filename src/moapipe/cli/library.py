"""The verbs that make or run a compiled library: build, validate, emulate, call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moapipe.cli import axis
from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab import call as calling
from moapipe.lab import evidence, module
from moapipe.lab import validate as validating
from moapipe.lab.experiment import machine_file
from moapipe.lab.kernel import scan
from moapipe.lab.place import built, root, validated
from moapipe.lab.scenario import Level


def build(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
    machine: axis.Machine = "local", keep_going: axis.KeepGoing = False,
) -> None:
    """Compile what `derive` wrote, and check every register tile in the assembler listing: kernel.so, kernel.s, build.json.

    A compiler's refusal and a failing check are bad results: exit code 1, or 0 with --keep-going. So is, with it, a missing compiler.
    """
    here = root()
    module.enter(machine_file(machine, here), machine, [target])
    b = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype, machine)
    try:
        result = building.build(b, here, machine)
    except LabError as error:
        if not keep_going:
            raise
        result = building.unbuilt(b, here, machine, str(error))
    if result.status == "built":
        print(f"built {b.path()}: {built(b, machine)}")
        return
    bad(f"{result.status.replace('_', ' ')}: {b.path()}: {result.reason}", keep_going)


def validate(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "c", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
    machine: axis.Machine = "local", keep_going: axis.KeepGoing = False,
    level: Annotated[Level, typer.Option(help="fast: what every build goes through before it is timed; full: the whole matrix of sizes.")] = "fast",
) -> None:
    """Check a build against extended precision, on awkward sizes and hostile inputs: validation.json.

    A wrong result is a bad result: exit code 1, or 0 with --keep-going. Nothing that failed is ever timed.
    """
    here = root()
    module.enter(machine_file(machine, here), machine, [target])
    b = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype, machine)
    result = validating.validate(b, here, machine, level)
    if result.passed:
        worst = result.worst
        said = f"; worst error {worst.error:.2g}, bound {worst.bound:.2g}" if worst else ""
        print(f"validated {b.path()}: {len(result.cases)} cases{said}: {validated(b, machine)}")
        return
    bad(f"{result.status.replace('_', ' ')}: {b.path()}: {result.reason}", keep_going)


def emulate(
    kernel: axis.Kernel, form: axis.Form = "", variant: axis.Variant = "", target: axis.Target = "cuda", isa: axis.Isa = "auto", dtype: axis.Dtype = "f64",
    machine: axis.Machine = "local", keep_going: axis.KeepGoing = False,
) -> None:
    """Run a text for a GPU on this machine's processor, in every way that is installed: emulation.json.

    A wrong number, a race or a miscount is a bad result: exit code 1, or 0 with --keep-going. What is not installed is written down.
    """
    here = root()
    b = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype, machine)
    document = evidence.emulate(b, here, machine)
    for e in document["evidence"]:
        print(f"{e['kind']} {e['status']}: {b.path()}: {e['detail']}")
    if wrong := evidence.failed(document):
        bad(f"emulation failed: {b.path()}: {wrong[0]}", keep_going)


def call(
    kernel: axis.Kernel,
    input: Annotated[Path, typer.Option(help="An .npz file with one array for each input; shapes give the sizes.", show_default=False)],
    output: Annotated[Path, typer.Option(help="Where the outputs go, as .npz.", show_default=False)],
    form: axis.Form = "",
    variant: axis.Variant = "",
    target: Annotated[str, typer.Option(help="The stage that runs: reference, dnf, onf, c, fortran.")] = "c",
    isa: axis.Isa = "auto",
    dtype: Annotated[str, typer.Option(help="f32 or f64. Default: that of the arrays.", show_default=False)] = "",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    machine: axis.Machine = "local",
) -> None:
    """Run any stage of a kernel on your own arrays; from Python: moapipe.lab.call.call("attention_forward", Q=q, K=k, V=v, target="c")."""
    module.enter(machine_file(machine, root()), machine, [target])
    made = calling.call_file(kernel, input, output, target=target, variant=variant, form=form, dtype=dtype, isa=isa, threads=threads, machine=machine)
    print(f"{output}: {', '.join(f'{name} {value.dtype}{list(value.shape)}' for name, value in made.items())}")


def bad(message: str, keep_going: bool) -> None:
    """A bad result that is written down: one message, exit code 1 unless the caller goes on."""
    print(message, file=sys.stderr)
    if not keep_going:
        raise typer.Exit(1)
