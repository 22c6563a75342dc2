"""The verbs that make or run a compiled library: build, validate, emulate, call."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from moapipe.cli import axis
from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab import call as calling
from moapipe.lab import evidence, experiment, module
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
    experiment_name: Annotated[str, typer.Option("--experiment", help="All texts of this experiment's group, into its emulation.json.", show_default=False)] = "",
    machine: axis.OnMachine = "", keep_going: axis.KeepGoing = False,
) -> None:
    """Run a text for a GPU on this machine's processor, in every way that is installed, and say what each showed.

    A wrong number, a race, a miscount or a planted fault that nothing reports is a bad result: exit code 1, or 0 with --keep-going.
    """
    here = root()
    if experiment_name:
        e = experiment.read(experiment_name, here, machine)
        rows = evidence.emulate(e, axis.group_of(e, kernel, form, dtype))["texts"]
    else:
        b = axis.build_of(scan(kernel, here), here, form, variant, target, isa, dtype, machine or "local")
        rows = [{**asdict(b), "evidence": [asdict(x) for x in evidence.shown([b], here)[0]]}]
    said = [(f"{x['kind']} {x['status']}: {'/'.join(r[a] for a in experiment.BUILD_AXES)}: {x['detail']}", x["status"]) for r in rows for x in r["evidence"]]
    for line, _ in said:
        print(line)
    if wrong := [line for line, status in said if status == "failed"]:
        bad(f"emulation failed: {wrong[0]}", keep_going)


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
