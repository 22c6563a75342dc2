"""In: a build. Out: validation.json: every case with its error, bound and PyTorch's own error, and whether the build may be timed.

The build is checked as it is, and once more with deliberately tiny tiles, so that every edge of every tile is reached. Nothing
that fails here is ever timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np

from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab import gpu
from moapipe.lab.derive import derive
from moapipe.lab.experiment import LAUNCHED, Build, Compiler, machine_file
from moapipe.lab.file import read_json, write_json, write_text
from moapipe.lab.kernel import KernelFile, load
from moapipe.lab.library import narrow
from moapipe.lab.oracle import Error, Truth, compare, truth
from moapipe.lab.place import built, derived, validated
from moapipe.lab.scenario import Level, Scenario, scenarios
from moapipe.lab.worker import LIMIT_S, Task, Worker

SCHEMA = 1
GPU_THREADS = (130, 8192)  # more than a block, and more than there are iterations
FAILURES = 3  # a build stops being checked after so many failed cases: it is wrong
Status = Literal["validated", "build_failed", "gate_failed", "validation_failed"]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """One case: the scenario's label, which tiles, the largest error of its outputs, and what is wrong (empty: it passed)."""

    case: str
    tiles: Literal["usual", "tiny"]
    errors: tuple[Error, ...]
    reason: str

    @property
    def worst(self) -> Error | None:
        return max(self.errors, key=lambda e: e.ratio, default=None)


@dataclass(frozen=True)
class Validation:
    """validation.json. `device` is the GPU that ran it, empty for the processor. `error`, `error_bound` and `baseline_error` are of the output that comes closest to its bound, among
    those that PyTorch computes too when all are right."""

    build: Build
    machine: str
    status: Status
    reason: str
    level: Level
    source_sha256: str
    library_sha256: str
    baseline: str
    cases: tuple[Checked, ...]
    device: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "validated"

    @property
    def worst(self) -> Error | None:
        found = [e for c in self.cases for e in c.errors]
        wrong = [e for e in found if e.ratio > 1]
        compared = [e for e in found if e.baseline is not None]
        return max(wrong or compared or found, key=lambda e: (e.ratio, e.error), default=None)

    def document(self) -> dict[str, Any]:
        w = self.worst
        return {
            "schema": SCHEMA, **asdict(self.build), "machine": self.machine, "status": self.status, "passed": self.passed, "reason": self.reason,
            "level": self.level, "source_sha256": self.source_sha256, "library_sha256": self.library_sha256, "baseline": self.baseline, "device": self.device,
            "error": _number(w and w.error), "error_bound": _number(w and w.bound), "baseline_error": _number(w and w.baseline),
            "cases": [_case(c) for c in self.cases],
        }


def _number(v: float | None) -> float | None:
    """JSON has no infinity: what is not finite is null, and the reason says so."""
    return v if v is not None and isfinite(v) else None


def _case(c: Checked) -> dict[str, Any]:
    rows = [{**asdict(e), **{k: _number(getattr(e, k)) for k in ("error", "bound", "ratio", "baseline")}, "place": list(e.place)} for e in c.errors]
    return {"case": c.case, "tiles": c.tiles, "passed": not c.reason, "reason": c.reason, "errors": rows}


def validate(b: Build, root: Path, machine: str = "local", level: Level = "fast") -> Validation:
    """Check a build and write its validation.json. A wrong kernel is a result, not an exception: see `status` and `reason`.
    RecordError when there is no build.json."""
    record = building.read(root / built(b, machine) / "build.json")
    if record.status != "built":
        result = Validation(b, machine, record.status, record.reason, level, record.source_sha256, "", "", ())
    elif reason := _unable(record, root):
        result = Validation(b, machine, "validation_failed", reason, level, record.source_sha256, "", "", ())
    else:
        result = check(b, root, machine, level, record)
    write_json(root / validated(b, machine), result.document())
    return result


def _unable(record: building.Built, root: Path) -> str:
    """Why nothing here can run the build; empty when something can."""
    if record.library:
        return ""
    if record.build.target not in LAUNCHED:
        return f"{record.build.target} builds do not run on this machine; `moapipe emulate` says what is known of them"
    return gpu.absent(machine_file(record.machine, root).device)


def require(v: Validation) -> Validation:
    """The validation, or LabError with its reason when the build failed."""
    if not v.passed:
        raise LabError(v.reason, where=v.build.path(), hint="nothing of this build is timed; every case stands in validation.json")
    return v


def check(b: Build, root: Path, machine: str, level: Level, record: building.Built) -> Validation:
    """Run every scenario, with the usual tiles and with tiny ones."""
    kernel = load(b.kernel, root)
    manifest = read_json(root / derived(b) / "manifest.json")
    device = machine_file(machine, root).device if b.target in LAUNCHED else None
    ours, digest = building.binary_of(record, device.arch) if device else (Path(record.library), record.library_sha256)
    stages = [("usual", root / ours, manifest)]
    cases: list[Checked] = []
    reason = "the derived source changed after it was built" if _stale(root, b, manifest, record) else ""
    try:
        stages += _tiny(b, root, machine, manifest)
    except LabError as e:
        reason = reason or f"tiny tiles: {e.message}"
    for tiles, library, its in stages if not reason else ():
        found = scenarios(kernel, b.variant, its["params"], level, tiny=tiles == "tiny")
        cases += run_cases(kernel, b, library, its, tuple(replace(s, threads=GPU_THREADS) for s in found) if device else found, tiles)
        reason = reason or next((f"{c.case}{' (tiny tiles)' * (tiles == 'tiny')}: {c.reason}" for c in cases if c.reason), "")
    return Validation(b, machine, "validation_failed" if reason else "validated", reason, level, record.source_sha256, digest, _name(kernel, b), tuple(cases),
                      gpu.here().get("name", "") if device else "")


def _stale(root: Path, b: Build, manifest: Mapping[str, Any], record: building.Built) -> bool:
    return building.sha256(root / derived(b) / manifest["source"]) != record.source_sha256


def _name(kernel: KernelFile, b: Build) -> str:
    s = Scenario(tuple((size, 2) for size in kernel.sizes), "plain", 0)
    return truth(kernel, b.form, b.dtype, s).baseline_name


def _tiny(b: Build, root: Path, machine: str, usual: Mapping[str, Any]) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """The same build with tiny tiles, compiled without the gate and quickly; nothing when the variant has no tiles."""
    d = derive(b, root, tiny=True)
    if d.manifest["onf_hash"] == usual["onf_hash"]:
        return
    folder = validated(b, machine).parent / "tiny"
    source = folder / d.manifest["source"]
    write_text(root / source, d.source.text)
    found = building.find(machine_file(machine, root), b.target, machine)
    quick = Compiler(command=found.command, flags=(*found.flags, *([] if b.target in LAUNCHED else ["-O1"])), package=found.package)
    made = building.require(building.compile_source(b, d.manifest, root, source, folder, machine, quick, gated=False))
    device = machine_file(machine, root).device if b.target in LAUNCHED else None
    library = folder / next(c["file"] for c in made.device if c["arch"] == device.arch) if device else Path(made.library)
    yield "tiny", root / library, d.manifest


# ------------------------------------------------------------------ cases


def run_cases(
    kernel: KernelFile, b: Build, library: Path, manifest: Mapping[str, Any], found: tuple[Scenario, ...], tiles: Literal["usual", "tiny"] = "usual",
    limit_s: float = LIMIT_S,
) -> list[Checked]:
    """Every scenario in one worker; a kernel that ends or blocks its process ends the list, FAILURES failures do too."""
    out: list[Checked] = []
    with Worker(library, manifest, limit_s) as worker:
        for s in found:
            try:
                out.append(replace(one(kernel, b, manifest, worker, s), tiles=tiles))
            except LabError as e:
                out.append(Checked(s.label, tiles, (), e.message))
                break
            if sum(bool(c.reason) for c in out) >= FAILURES:
                break
    return out


def one(kernel: KernelFile, b: Build, manifest: Mapping[str, Any], worker: Worker, s: Scenario) -> Checked:
    """One scenario through the worker, compared with the truth: once for all numbers of threads, whose results must be the same, or
    for each of them where the variant does not promise that."""
    t = truth(kernel, b.form, b.dtype, s, narrow(manifest))
    inputs = tuple(np.ascontiguousarray(t.inputs[a["name"]]).ravel() for a in manifest["inputs"])
    calls = (s.threads,) if kernel.variant(b.variant).deterministic else tuple((n,) for n in s.threads)
    replies = [worker.run(Task(inputs, dict(s.sizes), threads)) for threads in calls]
    found = [compare(t, n, v.reshape(t.outputs[n].shape)) for reply in replies for n, v in reply.outputs.items()]
    errors = tuple(max((e for e in found if e.output == n), key=lambda e: (e.wrong, e.ratio)) for n in dict.fromkeys(e.output for e in found))
    return Checked(s.label, "usual", errors, _reason(t, tuple(f for reply in replies for f in reply.faults), errors))


def _reason(t: Truth, faults: tuple[str, ...], errors: tuple[Error, ...]) -> str:
    wrong = [
        f"{e.output}{list(e.place)} and {e.wrong - 1} more elements are beyond the bound: error "
        f"{'not a number' if e.error == inf else f'{e.error:.2g}'}, bound {e.bound:.2g} (relative to the largest {e.output})"
        for e in errors if e.wrong
    ]
    return "; ".join([*faults, *wrong])
