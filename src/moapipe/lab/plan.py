"""In: an experiment, a bench group, and what earlier stages left. Out: every case of the group: what is to be measured, what is not and why.

Nothing is planned to be timed unless its validation passed on the very library that would run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from moapipe.lab.demand import enough
from moapipe.lab.experiment import LAUNCHED, PROTOCOL, Build, Experiment, Group, Point, asked, cases, points
from moapipe.lab.file import read_json, sha256
from moapipe.lab.gpu import BACKENDS
from moapipe.lab.library import WORK, held, shapes, work_elements
from moapipe.lab.place import built, derived, predicted, validated
from moapipe.lab.runtime import missing
from moapipe.lab.variable import BASELINE, KEY, YARDSTICK, fill
from moapipe.lab.yardstick import at_elements, compiled, moving
from moapipe.loops.cost import count
from moapipe.loops.onf_json import from_json
from moapipe.machine.rate import Way
from moapipe.machine.seating import Arranged, arrange, settled
from moapipe.machine.topology import Topology
from moapipe.targets.isa import dtype_named, element_bytes

ROOM = 0.8      # of the device's memory, for one case
FAILED = ("build_failed", "gate_failed", "validation_failed")


@dataclass(frozen=True)
class Library:
    """A built kernel, or a yardstick, that may be timed; `path` is a device binary where a GPU runs it."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def device(self) -> bool:
        return self.manifest.get("target") in LAUNCHED


@dataclass(frozen=True)
class Entry:
    """One case. `values` are its identity in the record, `label` the run axes; `library` is None for PyTorch, which `backend` tells which
    way to go on a GPU (None: on the processor). `gpu_threads` run a device binary.

    `prediction` is its row of prediction.json, None where it has none. `status` is empty for what is to be measured, else a row of
    STATUSES with its `reason`.
    """

    name: str
    values: Mapping[str, Any]
    point: Point
    arranged: Arranged
    library: Library | None = None
    status: str = ""
    reason: str = ""
    gpu_threads: int = 0
    backend: str | None = None
    prediction: Mapping[str, Any] | None = None

    def elements(self, manifest: Mapping[str, Any]) -> int:
        """Elements that a process of this case holds in the host's memory; PyTorch holds its last output beside the new one."""
        own = manifest if self.library is None else self.library.manifest
        inputs, outputs = (sum(prod(s) for s in shapes(own, kind, self.point.sizes).values()) for kind in ("inputs", "outputs"))
        if self.library is None or self.library.device:
            return inputs + 2 * outputs
        return inputs + outputs + work_elements(own, self.point.sizes, self.point.threads)


@dataclass(frozen=True)
class Plan:
    """Every case of a group in a fixed order. `manifest` is that of some build of the group (its inputs are the group's), None
    when there is none; `key` is a digest of all that a measurement depends on."""

    group: Group
    entries: tuple[Entry, ...]
    manifest: Mapping[str, Any] | None
    compilers: Mapping[str, str]
    key: str


def plan(e: Experiment, group: Group, top: Topology) -> Plan:
    """The group's cases. RecordError when the prediction, which must be frozen before, is missing."""
    frozen = read_json(e.root / predicted(e, group))
    prediction = str(frozen["prediction_hash"])
    settle = partial(settled, top=top)
    every = cases(e, group, settle)
    stages = {b: _stage(e, b) for b in dict.fromkeys(c.build for c in every)}
    manifests = [s.manifest for s in stages.values() if s.manifest is not None]
    entries: list[Entry] = []
    for point in points(e, group.kernel, settle):
        for case in (c for c in every if c.point == point):
            entries.append(_entry(e, case.build, point, case.reason, prediction, stages[case.build], top))
        if e.file.baseline:
            ours = _baseline(e, group, point, prediction, stages.values(), top)
            entries += _on_device(ours) if any(b.target in LAUNCHED and not r for b, r in asked(e, group)) else [ours]
        if manifests:
            entries += [_yardstick(e, group, point, prediction, way, manifests[0], top) for way in e.file.kernels[group.kernel].yardsticks]
    rows = {tuple(row.get(k, fill(k)) for k in KEY): row for row in frozen["cases"]}
    entries = [replace(x, prediction=rows.get(tuple(x.values.get(k, fill(k)) for k in KEY))) for x in entries]
    compilers = {b.target: s.compiler for b, s in stages.items() if s.compiler}
    return Plan(group, tuple(entries), manifests[0] if manifests else None, compilers, _key(e, entries, stages))


@dataclass(frozen=True)
class Stage:
    """What the earlier stages left of one build."""

    manifest: Mapping[str, Any] | None
    library: Library | None
    source_sha256: str
    library_sha256: str
    compiler: str
    baseline: str
    status: str
    reason: str


def _stage(e: Experiment, b: Build) -> Stage:
    machine = e.file.machine
    manifest_path, build_path, validation_path = e.root / derived(b) / "manifest.json", e.root / built(b, machine) / "build.json", e.root / validated(b, machine)
    manifest = read_json(manifest_path) if manifest_path.is_file() else None
    if manifest is None or not build_path.is_file() or not validation_path.is_file():
        lost = next(name for name, p in (("derived", manifest_path), ("built", build_path), ("validated", validation_path)) if not p.is_file())
        return Stage(manifest, None, "", "", "", "", "not_run", f"it was not {lost}")
    record, validation = read_json(build_path), read_json(validation_path)
    status, reason = "", ""
    if validation["status"] in FAILED or not validation["passed"]:
        status, reason = validation["status"] if validation["status"] in FAILED else "validation_failed", validation["reason"]
    elif not (file := _runs(e, b, record)) or sha256(e.root / file) != validation["library_sha256"]:
        status, reason = "not_run", "the library is not the one that was validated"
    elif validation["source_sha256"] != sha256(e.root / derived(b) / manifest["source"]):
        status, reason = "not_run", "the derived source changed after it was validated"
    library = None if status else Library(e.root / _runs(e, b, record), manifest)
    return Stage(manifest, library, validation["source_sha256"], validation["library_sha256"], record["compiler"].get("version", ""),
                 validation.get("baseline", ""), status, reason)


def _runs(e: Experiment, b: Build, record: Mapping[str, Any]) -> str:
    """The file that runs: a library, or the binary of the machine's device; empty when there is none."""
    arch = e.machine.device.arch if e.machine.device and b.target in LAUNCHED else ""
    return next((str(built(b, e.file.machine) / c["file"]) for c in record.get("device", ()) if c["arch"] == arch), str(record["library"]))


def _entry(e: Experiment, b: Build, point: Point, refusal: str, prediction: str, stage: Stage, top: Topology) -> Entry:
    values = _values(e, b.variant, b.target, b.isa, point, prediction) | {"kernel": b.kernel, "form": b.form, "dtype": b.dtype}
    if stage.manifest is not None:
        values |= {name: stage.manifest[name] for name in ("dnf_hash", "onf_hash")} | {"source_hash": stage.source_sha256}
    arranged = arrange(point.arrangement, top)
    refusal = refusal or arranged.reason or missing(arranged)
    threads = 0
    if stage.library is not None and stage.library.device and not refusal:
        threads, refusal = _threads(e, b, point, stage.library.manifest)
    status, reason = ("refused", refusal) if refusal else (stage.status, stage.reason)
    return Entry(f"{b.variant}/{b.target}", values, point, arranged, stage.library, status, reason or ("no reason was recorded" if status else ""), threads)


def _threads(e: Experiment, b: Build, point: Point, manifest: Mapping[str, Any]) -> tuple[int, str]:
    """GPU threads, one for each iteration, and why the device has no room for what they need (empty: it has)."""
    assert e.machine.device is not None
    nest = from_json(read_json(e.root / derived(b) / "cost.json")["onf"])
    threads = enough(count(nest, point.sizes, element_bytes(b.dtype)))
    elements = {n: prod(s) for kind in ("inputs", "outputs") for n, s in shapes(manifest, kind, point.sizes).items()}
    elements[WORK] = work_elements(manifest, point.sizes, threads)
    need = sum(n * dtype_named(held(manifest)[name]).bytes for name, n in elements.items())
    room = e.machine.device.memory_bytes * ROOM
    return threads, "" if need <= room else f"it needs {need / 2**30:.1f} GiB on the device, which has {room / 2**30:.1f} GiB for it"


def _on_device(entry: Entry) -> list[Entry]:
    """PyTorch on the GPU: as it chooses, and for attention by each of its own ways, in turn."""
    name = str(entry.values["variant"])
    ways = BACKENDS if name.startswith("scaled_dot_product_attention") else {}
    return [replace(entry, backend=""), *(replace(entry, name=f"{entry.name}/{way}", backend=way, values={**entry.values, "variant": f"{name}/{way}"}) for way in ways)]


def _baseline(e: Experiment, group: Group, point: Point, prediction: str, stages: Any, top: Topology) -> Entry:
    name = next((s.baseline for s in stages if s.baseline), BASELINE)
    values = _values(e, name, BASELINE, "native", point, prediction) | {"kernel": group.kernel, "form": group.form, "dtype": group.dtype}
    arranged = arrange(point.arrangement, top)
    reason = arranged.reason or missing(arranged) or _not_pytorchs(point) or ("" if any(s.manifest for s in stages) else "nothing is derived, so nobody knows the inputs")
    return Entry(BASELINE, values, point, arranged, None, "refused" if reason else "", reason)


def _yardstick(e: Experiment, group: Group, point: Point, prediction: str, way: Way, manifest: Mapping[str, Any], top: Topology) -> Entry:
    values = _values(e, way, YARDSTICK, e.isa, point, prediction) | {"kernel": group.kernel, "form": group.form, "dtype": group.dtype}
    library = Library(compiled(e.root, e.file.machine, e.isa, group.dtype), moving(way, manifest))
    arranged = arrange(point.arrangement, top)
    reason = arranged.reason or missing(arranged)
    return Entry(f"{way}/{YARDSTICK}", values, at_elements(way, point, manifest), arranged, library, "refused" if reason else "", reason)


def _values(e: Experiment, variant: str, target: str, isa: str, point: Point, prediction: str) -> dict[str, Any]:
    return {"variant": variant, "target": target, "isa": isa, "machine": e.file.machine, "label": point.label, "prediction_hash": prediction} | asdict(point.arrangement)


def _not_pytorchs(point: Point) -> str:
    """PyTorch brings an OpenMP runtime of its own."""
    asked = point.arrangement
    return f"PyTorch has its own OpenMP runtime, not {asked.runtime}" if asked.runtime != "libgomp" else ""


def _key(e: Experiment, entries: list[Entry], stages: Mapping[Build, Stage]) -> str:
    f = e.file
    seen = {
        "protocol": PROTOCOL, "launches": f.launches, "samples": f.samples, "time_box_s": f.time_box_s, "interval": f.interval, "seed": f.seed,
        "cases": [[dict(x.values), dict(x.point.sizes), x.status, x.reason] for x in entries],
        "libraries": {b.path(): s.library_sha256 for b, s in stages.items()},
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def fitting(entries: tuple[Entry, ...], manifest: Mapping[str, Any], free_bytes: float) -> Iterator[tuple[Entry, str]]:
    """Entries of one point that are held in memory at once, the smallest first, each with the reason why it is refused or ''."""
    taken = 0.0
    for x in sorted(entries, key=lambda x: x.elements(manifest)):
        need = float(x.elements(manifest) * element_bytes(str(x.values["dtype"])))
        fits = taken + need <= free_bytes
        taken += need if fits else 0.0
        yield x, "" if fits else f"it needs {need / 2**30:.1f} GiB, and {max(0.0, free_bytes - taken) / 2**30:.1f} GiB are free beside the others"
