"""In: one experiment's results on one machine. Out: an immutable, checksummed folder that holds and explains all of it.

    <experiment>-<machine>-<UTC>-<hash8>/     UTC: when the dataset was made; hash8: of MANIFEST.sha256, so of every byte
      index.html           the page: opens from disk, without network
      evidence.html        what is known of texts for GPUs without one, and which ran on one (evidence.json: as data)
      published.html       what the papers claim and measured, beside what our kernels come to
      archive.json         what the list of archives says about this one
      data/                dataset.nc; cases.csv (one row a case, with metrics); samples.csv (every raw sample with its verdict)
      charts/ table.txt environment.json calibration.json
      config/ kernels/     what was asked for, and the definitions
      derivations/…/       a folder a build: derivation as JSON, Markdown and page, costs, manifest, source
      builds/…/ validations/…/ predictions/…/ counters/…/
      MANIFEST.sha256      `sha256sum -c MANIFEST.sha256` checks it without this program

It is put together beside its place and renamed when whole. The same content is never archived twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from moapipe.errors import RecordError
from moapipe.lab import record
from moapipe.lab.experiment import BUILD_AXES, GROUP_AXES, Build
from moapipe.lab.file import sha256, write_json, write_text
from moapipe.lab.variable import BESIDE
from moapipe.lab.verdict import VERDICTS
from moapipe.report import metrics, site, table
from moapipe.report.metrics import frame

MANIFEST = "MANIFEST.sha256"
MAKING = ".making-"
BINARIES = (".so", ".o", ".a", ".dylib")  # made again from the source and the recorded command; never part of an archive
READ_ONLY = 0o444


@dataclass(frozen=True)
class Material:
    """Where one experiment's results lie: `root` is the repository, `config` the experiment's own YAML files."""

    root: Path
    experiment: str
    machine: str
    config: tuple[Path, ...] = ()

    @property
    def here(self) -> Path:
        return self.root / "results" / self.experiment / self.machine


def make(material: Material) -> Path:
    """Make the archive and return its folder; if an archive of the same content exists, that one.

    Raises RecordError when the dataset is missing or damaged, the disk is full, or an equal archive exists but is damaged. On any
    failure nothing half-made is left; what a killed run left is removed by the next one.
    """
    archives = material.root / "results" / "archives"
    ds = metrics.enrich(record.read(material.here / "dataset.nc"))
    _sweep(archives)
    with _workplace(archives) as work:
        _gather(material, ds, work)
        site.write_published(work, material.root)
        site.write_evidence(work)
        site.write_pages(work, ds)
        digest = _seal(work)
        name = f"{material.experiment}-{material.machine}-{_stamp(ds)}-{digest[:8]}"
        found = _publish(work, archives / name)
    site.write_index(archives)
    return found


def _stamp(ds: xr.Dataset) -> str:
    return datetime.fromisoformat(str(ds.attrs["created"])).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


# ------------------------------------------------------------------ whole or not at all


@contextmanager
def _workplace(archives: Path) -> Iterator[Path]:
    """A folder beside the archives, gone afterwards unless it was published; OSErrors become one clear RecordError."""
    work = archives / f"{MAKING}{socket.gethostname()}-{os.getpid()}"
    try:
        work.mkdir(parents=True)
        yield work
    except OSError as e:
        raise RecordError(
            f"cannot make the archive: {e.strerror or e}", where=str(e.filename or archives), hint="free some space; no half-made archive is left"
        ) from e
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(archives: Path) -> None:
    """Remove what killed runs on this host left behind."""
    for left in archives.glob(f"{MAKING}{socket.gethostname()}-*"):
        process = left.name.rpartition("-")[2]
        if process.isdigit() and int(process) != os.getpid() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _seal(work: Path) -> str:
    """Write the manifest, make every file read-only, return the manifest's hash."""
    lines = [f"{sha256(path)}  {path.relative_to(work).as_posix()}\n" for path in _files(work)]
    write_text(work / MANIFEST, "".join(lines))
    for path in _files(work):
        path.chmod(READ_ONLY)
    return sha256(work / MANIFEST)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def _publish(work: Path, place: Path) -> Path:
    if place.exists():
        if problems := verify(place):
            raise RecordError(f"an archive of this content exists but is damaged: {problems[0]}", where=str(place), hint="move it away")
        return place
    work.rename(place)
    return place


# ------------------------------------------------------------------ content


def _gather(material: Material, ds: xr.Dataset, work: Path) -> None:
    """Copy and write everything but the pages and the manifest."""
    results = material.root / "results"
    for build in builds(ds):
        path = build.path()
        _copy(results / "derive" / path, work / "derivations" / path)
        _copy(results / "build" / path / material.machine, work / "builds" / path)
        _copy(results / "validate" / path / material.machine, work / "validations" / path)
    for group in sorted(set(zip(*(ds[a].values.tolist() for a in GROUP_AXES), strict=True))):
        _copy(material.here / "predict" / Path(*group), work / "predictions" / Path(*group))
        _copy(material.here / "bench" / Path(*group) / "counters.json", work / "counters" / Path(*group) / "counters.json")
    for kernel in sorted(set(ds["kernel"].values.tolist())):
        for suffix in ("py", "yaml"):
            _copy(material.root / "kernels" / f"{kernel}.{suffix}", work / "kernels" / f"{kernel}.{suffix}")
    for asked in material.config:
        _copy(asked, work / "config" / asked.name)
    _copy(material.here / "charts", work / "charts")
    _copy(material.here / "evidence.json", work / "evidence.json")
    _copy(results / "calibrate" / material.machine / "calibration.json", work / "calibration.json")
    _copy(material.here / "dataset.nc", work / "data" / "dataset.nc")
    write_text(work / "table.txt", table.text(ds))
    write_text(work / "data" / "cases.csv", frame(ds).to_csv(index=False, lineterminator="\n"))
    write_text(work / "data" / "samples.csv", samples(ds).to_csv(index=False, lineterminator="\n"))
    write_json(work / "environment.json", environment(ds))
    write_json(work / "archive.json", summary(ds))


def _copy(source: Path, target: Path) -> None:
    """A file or a folder without binaries and hidden files; what does not exist is left out, and the page says so."""
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            inner = path.relative_to(source)
            if path.is_file() and path.suffix not in BINARIES and not any(part.startswith(".") for part in inner.parts):
                _copy(path, target / inner)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def builds(ds: xr.Dataset) -> list[Build]:
    """The builds that have a case, PyTorch's aside."""
    rows = zip(*(ds[a].values.tolist() for a in BUILD_AXES), strict=True)
    return [b for b in sorted({Build(*row) for row in rows}) if b.target not in BESIDE]


def samples(ds: xr.Dataset) -> pd.DataFrame:
    """Every sample that was taken, one row each: case, host, launch, sample, seconds (s), calls, verdict and what it was made from."""
    names = {row.code: name for name, row in VERDICTS.items()}
    kept = ["seconds", "calls", "verdict", "cpu_seconds", "involuntary_switches", "other_cpu_seconds"]
    dims = ("case", *metrics.SAMPLED)
    case, node, launch, sample = metrics.taken(ds).transpose(*dims).values.nonzero()
    columns = {k: ds[k].transpose(*dims).values[case, node, launch, sample] for k in kept}
    where = {"case": case, "host": ds["host"].values[case, node], "launch": launch, "sample": sample}
    return pd.DataFrame(where | columns | {"verdict": [names[code] for code in columns["verdict"].tolist()]})


def environment(ds: xr.Dataset) -> dict[str, Any]:
    """Where it was measured, from the record; with what the archive was made: Python and every installed package."""
    packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}, key=str.lower)
    measured = {k: _parsed(v) for k, v in ds.attrs.items()}
    return {"measured": measured, "archived": {"python": platform.python_version(), "system": platform.system(), "packages": packages}}


def _parsed(value: Any) -> Any:
    """An attribute; JSON text becomes what it says."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.item() if isinstance(value, np.generic) else value


def summary(ds: xr.Dataset) -> dict[str, Any]:
    """What the list of archives shows: experiment, host, time, counts, and how well the predictions held."""
    rows = frame(ds)
    return {
        **{k: str(ds.attrs.get(k, "")) for k in ("experiment", "host", "topology", "created", "moapipe_version", "protocol")},
        "machines": sorted(set(rows["machine"])),
        "kernels": sorted(set(rows["kernel"])),
        "cases": len(rows),
        "measured": int((rows["status"] == "measured").sum()),
        "samples": int(rows["taken_samples"].sum()),
        "valid_samples": int(rows["valid_samples"].sum()),
        "accuracy": table.accuracy(rows),
    }


# ------------------------------------------------------------------ verification


def verify(folder: Path) -> list[str]:
    """What is wrong with an archive: `changed`, `missing` or `extra` files, a damaged manifest. Empty when nothing is."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return [f"missing: {MANIFEST} (is {folder} an archive?)"]
    content = manifest.read_bytes()
    expected, problems = _expected(content)
    if folder.resolve().name.rpartition("-")[2] != (due := hashlib.sha256(content).hexdigest()[:8]):
        problems.append(f"changed: {MANIFEST}, or the folder's name, whose end should be its hash: -{due}")
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    problems += [f"missing: {name}" for name in sorted(set(expected) - set(present))]
    problems += [f"extra: {name}" for name in sorted(set(present) - set(expected) - {MANIFEST})]
    for name in sorted(set(expected) & set(present)):
        path = present[name]
        if path.is_symlink() or not path.is_file() or sha256(path) != expected[name]:
            problems.append(f"changed: {name}")
    return problems


def _expected(content: bytes) -> tuple[dict[str, str], list[str]]:
    """Hash by name, and the lines that are not `hash, two spaces, name`."""
    hashes: dict[str, str] = {}
    problems = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) == 64 and set(digest) <= set("0123456789abcdef") and name:
            hashes[name] = digest
        else:
            problems.append(f"changed: {MANIFEST}, line {number} is not a checksum")
    return hashes, problems
