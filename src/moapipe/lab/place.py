"""In: builds, groups, machines. Out: where their files lie, always relative to the repository's root."""

from __future__ import annotations

from pathlib import Path

from moapipe.errors import ConfigError
from moapipe.lab.experiment import Build, Experiment, Group


def root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` (default: the working directory) that has kernels/ and config/, else the folder of
    this checkout. ConfigError when there is neither."""
    here = (start or Path.cwd()).resolve()
    checkout = Path(__file__).resolve().parents[3]
    for folder in (here, *here.parents, checkout):
        if (folder / "kernels").is_dir() and (folder / "config").is_dir():
            return folder
    raise ConfigError("no kernels/ and config/ here or above", where=str(here), hint="change into the repository")


def derived(build: Build) -> Path:
    """derivation.md, derivation.json, cost.json, manifest.json and the source of a build."""
    return Path("results/derive") / build.path()


def built(build: Build, machine: str) -> Path:
    """The library, its listing and build.json."""
    return Path("results/build") / build.path() / machine


def validated(build: Build, machine: str) -> Path:
    """validation.json."""
    return Path("results/validate") / build.path() / machine / "validation.json"


def calibrated(machine: str) -> Path:
    """calibration.json."""
    return Path("results/calibrate") / machine / "calibration.json"


def folder(e: Experiment) -> Path:
    """dataset.nc, table.txt, charts/ and archive.txt of an experiment on its machine, and what its groups have."""
    return Path("results") / e.name / e.file.machine


def emulated(e: Experiment, group: Group) -> Path:
    """emulation.json."""
    return folder(e) / "emulate" / group.path() / "emulation.json"


def predicted(e: Experiment, group: Group) -> Path:
    """prediction.json."""
    return folder(e) / "predict" / group.path() / "prediction.json"


def recorded(e: Experiment, group: Group, node: int = 0) -> Path:
    """record.nc of a group, of the first node or of a further one."""
    return folder(e) / "bench" / group.path() / (f"node{node}" if node else "") / "record.nc"
