"""The verb that looks at this machine: doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from moapipe.cli import axis
from moapipe.cli.measurement import say
from moapipe.lab.doctor import examine, report
from moapipe.lab.lock import alone
from moapipe.lab.place import root
from moapipe.lab.rehearsal import rehearse

Clean = Annotated[bool, typer.Option("--clean", help="Then measure something known 20 times, alone on the machine: every run must be valid.")]


def doctor(machine: axis.Machine = "local", clean: Clean = False) -> None:
    """Compilers, flags, instruction set, topology, CPU mask, quota, wait policy, PyTorch; and what is wrong, with what to do about it."""
    findings = examine(root(), machine)
    print(report(findings))
    bad = any(f.severity == "wrong" for f in findings)
    if clean and not bad:
        with alone(f"doctor {machine}", say):
            found = rehearse(root(), machine)
        print(found)
        bad = found.valid < found.runs
    if bad:
        raise typer.Exit(1)
