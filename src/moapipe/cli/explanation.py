"""The verb that says why some cases are slow: arrangements of threads and pages, and builds of one kernel on a GPU: explain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import xarray as xr

from moapipe.lab import record
from moapipe.lab.experiment import BUILD_AXES, machine_file
from moapipe.lab.file import read_json
from moapipe.lab.place import root
from moapipe.report import contrast, metrics
from moapipe.report import explain as explaining

Dataset = Annotated[Path, typer.Argument(metavar="DATASET", help="A dataset.nc, or a record.nc.")]


def explain(dataset: Dataset) -> None:
    """For each penalty above 2×: memory locality, serialisation, spinning at barriers, quota, neighbours or frequency, and what decided it.

    Then how far times differ within a process, between launches and between nodes, and what the canaries beside the launches met.

    Where hardware counters of a GPU lie beside the records: for every two builds at the same sizes, which of transactions, atomics, stalls
    and instructions accounts for the time between them, and which does not.
    """
    ds = record.read(dataset)
    for line in (*explaining.lines(explaining.explain(ds)), explaining.scatter(ds), explaining.canaries(ds), *_counters(dataset.parent, ds)):
        if line:
            print(line)


def _counters(folder: Path, ds: xr.Dataset) -> Iterator[str]:
    """The contrasts of every counters.json at or below the dataset's folder."""
    seconds = _medians(ds)
    for path in sorted(folder.rglob("counters.json")):
        known = [(c, seconds.get((*(c[a] for a in BUILD_AXES), c["label"]))) for c in read_json(path)["cases"]]
        cases = [contrast.counted(c, s) for c, s in known if c["launches"] and s is not None]
        machine = str(ds["machine"].values[0]) if ds.sizes["case"] else "local"
        yield from contrast.lines(contrast.contrasts(cases, machine_file(machine, root()).device))
        yield from (f"no counters of {c['variant']}/{c['target']} {c['label']}: {c['reason']}" for c, _ in known if c["reason"])


def _medians(ds: xr.Dataset) -> dict[tuple[str, ...], float]:
    """Median seconds of the valid samples of each measured case, by build and sizes."""
    rows = metrics.frame(ds)
    names = [*BUILD_AXES, "label"]
    return {tuple(map(str, r[:-1])): float(r[-1]) for r in rows[[*names, "median_seconds"]].itertuples(index=False) if np.isfinite(r[-1])}
