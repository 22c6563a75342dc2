"""The verb that says why some arrangements of threads and pages are slow: explain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moapipe.lab import record
from moapipe.report import explain as explaining

Dataset = Annotated[Path, typer.Argument(metavar="DATASET", help="A dataset.nc, or a record.nc.")]


def explain(dataset: Dataset) -> None:
    """For each penalty above 2×: memory locality, serialisation, spinning at barriers, quota, neighbours or frequency, and what decided it."""
    for line in explaining.lines(explaining.explain(record.read(dataset))):
        print(line)
