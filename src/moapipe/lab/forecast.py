"""In: the loop nests of a group's builds, the calibration, the experiment's points. Out: prediction.json, frozen before measuring.

Counts and traffic are taken at every point from the loop nest in cost.json; nothing is compiled or run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from moapipe.lab import experiment, kernel
from moapipe.lab.experiment import Build, Case, Experiment, Group, Point
from moapipe.lab.file import read_json, write_json
from moapipe.lab.place import calibrated, derived, predicted
from moapipe.lab.variable import YARDSTICK
from moapipe.lab.yardstick import STORES, at_elements, nest
from moapipe.loops import lockstep
from moapipe.loops.cost import count, regions
from moapipe.loops.lockstep import launches
from moapipe.loops.onf import Kernel
from moapipe.loops.onf_json import from_json
from moapipe.loops.tally import Counts
from moapipe.loops.traffic import Reuse, Traffic
from moapipe.loops.warp import SECTOR_BYTES
from moapipe.machine import topology
from moapipe.machine.device import Device, occupancy
from moapipe.machine.penalty import ceiling, placed
from moapipe.machine.predict import Prediction, predict
from moapipe.machine.rate import LEVELS, Calibration, at
from moapipe.machine.seating import Arranged, arrange, settled
from moapipe.machine.topology import Topology
from moapipe.targets.isa import dtype_named, element_bytes
from moapipe.targets.simt import BLOCK

SCHEMA = 1


def forecast(e: Experiment, group: Group) -> Path:
    """Predict every case of a group that is to be measured, and write prediction.json; its cases carry the names of the dataset.

    RecordError when a build is not derived or the machine is not calibrated.
    """
    calibration = Calibration.from_json(read_json(e.root / calibrated(e.file.machine)))
    top = calibration.locality.topology or topology.probe()
    cases = [c for c in experiment.cases(e, group, partial(settled, top=top)) if not c.reason and not arrange(c.point.arrangement, top).reason]
    nests = {b: from_json(read_json(e.root / derived(b) / "cost.json")["onf"]) for b in dict.fromkeys(c.build for c in cases)}
    rows = [*_predictions(e, group, cases, nests, calibration, top)]
    if nests:
        rows += _yardsticks(e, group, read_json(e.root / derived(next(iter(nests))) / "manifest.json"), calibration, top)
    path = e.root / predicted(e, group)
    document = {"schema": SCHEMA, "experiment": e.name, "machine": e.file.machine, "group": group.path(), "cases": rows}
    write_json(path, {**document, "prediction_hash": digest(document)})
    return path


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a prediction's content."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a prediction.json, each with `prediction_hash`, as `record.collect` takes them. RecordError when it is missing or damaged."""
    document = read_json(path)
    return [{**row, "prediction_hash": document["prediction_hash"]} for row in document["cases"]]


def _predictions(e: Experiment, group: Group, cases: list[Case], nests: Mapping[Build, Kernel], c: Calibration, top: Topology) -> Iterator[dict[str, Any]]:
    """C and Fortran of one loop nest share its numbers."""
    file, size, held = kernel.load(group.kernel, e.root), element_bytes(group.dtype), dtype_named(group.dtype).bytes
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for case in cases:
        point, nest = case.point, nests[case.build]
        device = e.machine.device if case.build.target in experiment.LAUNCHED else None
        key = (case.build.variant, device is not None, point.label, point.arrangement)
        if key not in known:
            known[key] = _numbers(nest, point, size, c, top, group.dtype) if device is None else _on_device(nest, point, size, device, group.dtype)
        bounds = {level: held * file.call("lower_bound", point.sizes, group.form, bytes_ // held) for level, bytes_ in c.capacity.items()}
        yield {
            **{axis: getattr(case.build, axis) for axis in experiment.BUILD_AXES}, "machine": e.file.machine, "label": point.label, **asdict(point.arrangement),
            "useful_flops": int(file.call("useful_flops", point.sizes, group.form)),
            "lower_bound_bytes": {level: float(b) for level, b in bounds.items() if math.isfinite(b)}, **known[key],
        }


def _yardsticks(e: Experiment, group: Group, manifest: Mapping[str, Any], c: Calibration, top: Topology) -> Iterator[dict[str, Any]]:
    """What only moves data does none of the group's work, and its bound is what it moves."""
    points = [p for p in experiment.points(e, group.kernel, partial(settled, top=top)) if not arrange(p.arrangement, top).reason]
    for point, way in product(points, e.file.kernels[group.kernel].yardsticks):
        numbers = _numbers(nest(way), at_elements(way, point, manifest), element_bytes(group.dtype), c, top, group.dtype)
        least = float(numbers["footprint_read_bytes"] + numbers["footprint_written_bytes"])
        yield {
            "kernel": group.kernel, "form": group.form, "variant": way, "target": YARDSTICK, "isa": e.isa, "dtype": group.dtype, "machine": e.file.machine,
            "label": point.label, **asdict(point.arrangement), "useful_flops": 0, "lower_bound_bytes": dict.fromkeys(c.capacity, least), **numbers, "stores": STORES[way],
        }


def _numbers(nest: Kernel, point: Point, size: int, c: Calibration, top: Topology, dtype: str) -> dict[str, Any]:
    """Threads that share cores do the work of as many as there are cores, and wait for each other at every barrier."""
    arranged = arrange(point.arrangement, top)
    cores = min(point.threads, len(arranged.places))
    counts = count(nest, point.sizes, size, threads=cores)
    streamed = frozenset(a.name for a in nest.arrays if a.stream)
    whole, kept = past(nest, point, size, c, arranged, top)
    parts = regions(nest) if len(counts.regions) > 1 else ()
    result = predict(counts, whole, c, dtype, streamed=streamed, alone=[past(part, point, size, c, arranged, top)[0] for part in parts], kept=kept)
    result = placed(result, counts.barriers, arranged, top, c.locality)
    told = {"regions": counts.barriers, "penalty_ceiling": ceiling(top, c.locality), "stores": "stream" if streamed else "plain"}
    return {**_times(result), **_totals(counts), **_ceilings(c, dtype, cores), **told, "traffic_bytes": dict(result.traffic), "bandwidth": dict(result.bandwidth)}


def _on_device(nest: Kernel, point: Point, size: int, device: Device, dtype: str) -> dict[str, Any]:
    """A GPU's time is at least that of its operations and that of its bytes past the last-level cache, at its data sheet's rates; the
    bytes are the middle of the bounds of loops.lockstep."""
    counts = count(nest, point.sizes, size)
    at_once = device.multiprocessors * occupancy(device, BLOCK).blocks
    found = launches(nest, point.sizes, size, lockstep.Device(device.cache_bytes, device.parts, SECTOR_BYTES, at_once))
    moved = round(sum(sum(x.read) + sum(x.written) for x in found) / 2)
    peak = device.peak_flops[dtype_named(dtype).arithmetic]  # type: ignore[index]
    compute, memory = counts.flops / peak, moved / device.bandwidth
    times = Prediction(max(compute, memory), compute, memory, 0.0, "L2", {"L2": moved}, {"L2": device.bandwidth})
    told = {"regions": counts.barriers, "penalty_ceiling": 1.0, "stores": "plain", "peak_flops": peak}
    return {**_times(times), **_totals(counts), **told, "traffic_bytes": dict(times.traffic), "bandwidth": dict(times.bandwidth)}


def past(
    nest: Kernel, point: Point, size: int, c: Calibration, arranged: Arranged, top: Topology,
) -> tuple[dict[str, dict[str, Traffic]], frozenset[str]]:
    """Traffic past every cache of the machine, by array, of a first call; and the caches that hold all of it until the next call."""
    cores = min(point.threads, len(arranged.places))
    out: dict[str, dict[str, Traffic]] = {}
    reuses: dict[int, Reuse] = {}
    kept, last = set(), max(c.capacity, key=LEVELS.index)      # the last cache is cut in slices that hash their addresses
    for level, capacity in c.capacity.items():
        sharers = top.sharers(level, arranged.places) if c.locality.topology else round(at(c.sharers[level], cores))
        reuse = reuses.setdefault(sharers, Reuse(nest, point.sizes, size, threads=cores, sharers=sharers))
        out[level] = reuse.past(capacity, indexed=level != last)
        if reuse.stays(capacity):
            kept.add(level)
    return out, frozenset(kept)


def _times(p: Prediction) -> dict[str, Any]:
    return {
        "predicted_seconds": p.seconds, "predicted_compute_seconds": p.compute, "predicted_memory_seconds": p.memory,
        "predicted_overhead_seconds": p.overhead, "parts": p.parts,
    }


def _totals(counts: Counts) -> dict[str, int]:
    names = ("flops", "exps", "loaded_bytes", "stored_bytes", "footprint_read_bytes", "footprint_written_bytes", "private_bytes")
    return {name: getattr(counts, name) for name in names}


def _ceilings(c: Calibration, dtype: str, threads: int) -> dict[str, float]:
    """What the dataset shows counts against."""
    rates = c.rates[dtype]
    return {"peak_flops": 2 * at(rates.fma, threads), "exp_rate": at(rates.exp, threads)}
