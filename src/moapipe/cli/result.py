"""The verbs that turn records into results: collect, chart, archive, evidence, table, bars, join."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from moapipe.cli import axis
from moapipe.errors import RecordError
from moapipe.lab import experiment, forecast, record
from moapipe.lab.evidence import gather
from moapipe.lab.experiment import Experiment
from moapipe.lab.file import read_json, write_json, write_text
from moapipe.lab.place import folder, predicted, recorded, root, validated
from moapipe.report import accuracy, bar, charts
from moapipe.report import archive as archiving
from moapipe.report import evidence as proof
from moapipe.report import table as tables
from moapipe.report.explain import mark
from moapipe.report.metrics import status

FAILURES = ("build_failed", "gate_failed", "validation_failed", "crashed")


def collect(experiment_name: axis.ExperimentName = "config/smoke.yaml", machine: axis.OnMachine = "") -> None:
    """Join the experiment's records, predictions and validations: dataset.nc, and table.txt beside it."""
    e = experiment.read(experiment_name, root(), machine)
    place = e.root / folder(e)
    groups = experiment.groups(e)
    predictions = [row for g in groups for row in forecast.read(e.root / predicted(e, g))]
    validations = [read_json(e.root / validated(b, e.file.machine)) for b in experiment.builds(e)]
    records = [record.read(e.root / recorded(e, g, node)) for g in groups for node in range(e.file.nodes)]
    data = mark(record.collect(records, predictions, validations))
    record.write(data, place / "dataset.nc")
    tables.write_table(place / "dataset.nc", place / "table.txt")
    print(f"collected {data.sizes['case']} cases: {folder(e) / 'dataset.nc'}")


def chart(experiment_name: axis.ExperimentName = "config/smoke.yaml", machine: axis.OnMachine = "") -> None:
    """Draw every chart of the experiment's dataset as JSON and SVG, all of them or none."""
    e = experiment.read(experiment_name, root(), machine)
    place = e.root / folder(e)
    record.read(place / "dataset.nc")       # before anything is made beside it: without it there may be no such folder
    with tempfile.TemporaryDirectory(prefix=".charts-", dir=place) as work:
        written = charts.write_all(place / "dataset.nc", Path(work) / "charts")
        shutil.rmtree(place / "charts", ignore_errors=True)
        (Path(work) / "charts").rename(place / "charts")
    print(f"drew {len(written)} files: {folder(e) / 'charts'}")


def archive(
    experiment_name: axis.ExperimentName = "config/smoke.yaml",
    machine: axis.OnMachine = "",
    verify: Annotated[Path | None, typer.Option(help="An archive's folder: check every file against its manifest, and make nothing.", show_default=False)] = None,
) -> None:
    """Pack the experiment into results/archives, with a page that opens offline; or --verify an archive that is there."""
    if verify is not None:
        _verify(verify)
        return
    e = experiment.read(experiment_name, root(), machine)
    config = (e.root / e.where, e.root / "config" / "machines" / f"{e.file.machine}.yaml")
    made = archiving.make(archiving.Material(e.root, e.name, e.file.machine, config))
    write_text(e.root / folder(e) / "archive.txt", f"{made.relative_to(e.root).as_posix()}\n")
    print(f"archived: {made.relative_to(e.root)}")


def _verify(place: Path) -> None:
    problems = archiving.verify(place)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{place}: {len(problems)} problem{'s' * (len(problems) > 1)}; this is not what was archived", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{place}: every file is as it was archived")


Named = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The experiment, config/NAME.yaml.")]


def evidence(
    experiment_name: Named = "config/evidence.yaml", machine: axis.OnMachine = "",
    format: Annotated[Literal["text", "json"], typer.Option(help="text or json.")] = "text", keep_going: axis.KeepGoing = False,
) -> None:
    """Print what is known of the experiment's texts for GPUs: emulated, compiled, run on one or not; writes evidence.json.

    Exit code 1 when something speaks against a build.
    """
    e = experiment.read(experiment_name, root(), machine)
    rows = gather(e)
    found = proof.document(rows, e.name, e.file.machine)
    write_json(e.root / folder(e) / "evidence.json", found)
    print(json.dumps(found, indent=1, ensure_ascii=False) if format == "json" else proof.text(found), end="")
    if proof.failures(rows) and not keep_going:
        raise typer.Exit(1)


def table(experiment_name: Named = "config/smoke.yaml", machine: axis.OnMachine = "") -> None:
    """Print the experiment's table, the reason of every case without a time, and the path of its page.

    Exit code 1 when a build, its check or its validation failed: such a run is not a good run, however much of it was measured.
    """
    e = experiment.read(experiment_name, root(), machine)
    dataset = e.root / folder(e) / "dataset.nc"
    tables.print_table(dataset)
    print(f"\npage: {page(e)}")
    if failed := sum(s in FAILURES for s in status(record.read(dataset))):
        print(f"moapipe: {failed} cases failed before or while they were measured; the reasons are above", file=sys.stderr)
        raise typer.Exit(1)


def bars(experiment_name: Named = "config/bars.yaml", machine: axis.OnMachine = "") -> None:
    """Compare the experiment's ratios with the floors of report.bar, and every variant's predictions with what was measured.

    Exit code 1 when a floor, or the median error of a variant's predictions, is missed.
    """
    e = experiment.read(experiment_name, root(), machine)
    ds = record.read(e.root / folder(e) / "dataset.nc")
    rows, errors = bar.judge(ds), accuracy.errors(ds)
    print(bar.text(rows, errors))
    if False in (*(row.met for row in rows), *errors["met"]):
        raise typer.Exit(1)


Datasets = Annotated[list[Path], typer.Argument(metavar="DATASET…", help="Files dataset.nc, of results or of archives (data/dataset.nc).")]
Into = Annotated[Path, typer.Option("--out", help="The file to write.")]


def join(datasets: Datasets, out: Into = Path("dataset.nc")) -> None:
    """Put the cases of several datasets into one, the machine as a coordinate; what was not measured somewhere keeps its reason.

    The very same cases, measured on several nodes of a machine, become the nodes of one; a measurement may stand in one of them only.
    """
    data = mark(record.join([record.read(path) for path in datasets]))
    record.write(data, out)
    machines = sorted(set(data["machine"].values.tolist()))
    print(f"joined {data.sizes['case']} cases of {', '.join(machines)}: {out}")


def page(e: Experiment) -> Path:
    """The page of the experiment's newest archive, as an absolute path. RecordError when there is none."""
    pointer = e.root / folder(e) / "archive.txt"
    if not pointer.is_file():
        raise RecordError("nothing is archived", where=str(folder(e)), hint=f"run `moapipe archive --experiment {e.where}`")
    return e.root / pointer.read_text().strip() / "index.html"
