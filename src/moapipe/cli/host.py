"""The verb that looks at this machine: doctor."""

from __future__ import annotations

import typer

from moapipe.cli import axis
from moapipe.lab.doctor import examine, report
from moapipe.lab.place import root


def doctor(machine: axis.Machine = "local") -> None:
    """Compilers, flags, instruction set, topology, CPU mask, quota, wait policy, PyTorch; and what is wrong, with what to do about it."""
    findings = examine(root(), machine)
    print(report(findings))
    if any(f.severity == "wrong" for f in findings):
        raise typer.Exit(1)
