"""In: the texts for GPUs of a group. Out: emulation.json: what each way of running or compiling them on this machine showed.

No GPU is asked here, and none is claimed. A way that is not installed is written down as missing, with what to install: a table of
evidence says what there is, and never more. All texts of a group go one way together: they share their truths, their derivations, and
the process that interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moapipe.errors import LabError
from moapipe.lab import emulation, mutant, nvptx, offload, trial
from moapipe.lab.experiment import BUILD_AXES, Build, Experiment, Group, groups, texts
from moapipe.lab.file import read_json, write_json
from moapipe.lab.place import built, emulated, validated
from moapipe.lab.trial import Evidence, Kind

SCHEMA = 2


@dataclass(frozen=True)
class Way:
    """A way to learn of texts of `targets` without a GPU: what it can show, why a text of one of them cannot go it here (empty: it can), and what
    it shows of builds."""

    targets: tuple[str, ...]
    text: str
    missing: Callable[[str], str]
    examine: Callable[[Sequence[Build], Path], list[Evidence]]


def emulate(e: Experiment, group: Group) -> dict[str, Any]:
    """Every way that is there for every text of a group: its emulation.json, written."""
    chosen = [b for b in texts(e) if Group(b.kernel, b.form, b.dtype) == group]
    rows = [{**asdict(b), "evidence": [asdict(x) for x in found]} for b, found in zip(chosen, shown(chosen, e.root), strict=True)]
    document = {"schema": SCHEMA, "group": group.path(), "machine": e.file.machine, "texts": rows}
    write_json(e.root / emulated(e, group), document)
    return document


def shown(builds: Sequence[Build], root: Path) -> list[list[Evidence]]:
    """For each build what the ways show that its language can go. LabError for a language that has none."""
    for b in builds:
        if b.target not in LANGUAGES:
            raise LabError(f"nothing runs texts of {b.target} on the processor", where=b.path(), hint=f"those of {', '.join(sorted(LANGUAGES))}")
    found: dict[Build, list[Evidence]] = {b: [] for b in builds}
    for name, way in WAYS.items():
        barred = {t: way.missing(t) for t in way.targets if any(b.target == t for b in builds)}
        able = [b for b in builds if barred.get(b.target) == ""]
        seen = dict(zip(able, way.examine(able, root), strict=True)) if able else {}
        for b in builds:
            if b.target in barred:
                found[b].append(seen.get(b) or Evidence(name, "missing", barred[b.target]))
    return list(found.values())


# ------------------------------------------------------------------ the ways


def _way(kind: Kind, targets: tuple[str, ...], text: str) -> Way:
    return Way(targets, text, partial(trial.missing, kind=kind), partial(trial.examine, kind=kind))


def _compiled_for(way: offload.Way, text: str) -> Way:
    return Way(offload.targets(way), text, partial(offload.missing, way=way), partial(nvptx.examine, way=way))


def _unfindable(target: str) -> str:
    """Why nothing would find a fault in a text of the target here."""
    return trial.missing(target, mutant.finder(target))


WAYS: dict[str, Way] = {
    "shim": _way("shim", emulation.LANGUAGES, "the very text under a shim: numbers, races, bounds, divergence, counts"),
    "oclgrind": _way("oclgrind", ("opencl",), "interpreted by Oclgrind: numbers, races, bounds, divergence, reads of what nobody wrote"),
    "pocl": _way("pocl", ("opencl",), "compiled and run by PoCL: numbers at larger sizes"),
    "fallback": _way("fallback", offload.targets("fallback"), "directives on the host's threads, by GCC: the text is taken, numbers"),
    "offload": _way("offload", offload.targets("offload"), "directives on clang's x86_64 device: numbers, and every buffer mapped there and back"),
    "gcc_nvptx": _compiled_for("gcc_nvptx", "directives compiled by GCC for a GPU by NVIDIA: kernels, lanes, atomics and local memory as the nest promises; not run"),
    "clang_nvptx": _compiled_for("clang_nvptx", "directives compiled by clang for a GPU by NVIDIA: the same; not run"),
    "mutants": Way((*emulation.LANGUAGES, "opencl", *mutant.DEVICES),
                   "faults planted in the text (barriers, bounds, atomics, ownership, beginnings; lost mappings), each reported by the shim, Oclgrind or the device's numbers",
                   _unfindable, mutant.examine),
}
LANGUAGES = frozenset(t for way in WAYS.values() for t in way.targets)


def gather(e: Experiment) -> list[dict[str, Any]]:
    """One row a text: its axes, and by kind what is known of it: the ways, `compiled`, `gpu`. What nobody tried is `untried`."""
    tried = {Build(*(row[a] for a in BUILD_AXES)): row["evidence"] for g in groups(e) for row in _tried(e, g)}
    return [{**asdict(b), **_row(b, tried.get(b, ()), e.root, e.file.machine)} for b in texts(e)]


def _tried(e: Experiment, group: Group) -> list[dict[str, Any]]:
    path = e.root / emulated(e, group)
    return list(read_json(path)["texts"]) if path.is_file() else []


def _row(b: Build, tried: Iterable[Mapping[str, Any]], root: Path, machine: str) -> dict[str, Any]:
    from_ways = {name: _cell("untried" if b.target in way.targets else "none") for name, way in WAYS.items()}
    from_ways |= {x["kind"]: _cell(x["status"], x["detail"]) for x in tried}
    return {**from_ways, "compiled": _compiled(b, root, machine), "gpu": _on_gpu(b, root, machine)}


def _cell(status: str, detail: str = "", **more: Any) -> dict[str, Any]:
    return {"status": status, "detail": detail, **more}


def _compiled(b: Build, root: Path, machine: str) -> dict[str, Any]:
    """By architecture: the most registers, bytes of spills and of shared memory of its functions."""
    path = root / built(b, machine) / "build.json"
    if not path.is_file():
        return _cell("untried")
    record = read_json(path)
    codes = [{"arch": c["arch"], **{k: max((f[k] for f in c["functions"]), default=0) for k in ("registers", "spill_bytes", "stack_bytes", "shared_bytes")},
              "listing": c["dialect"], "atomic": c["counts"]["atomic"]} for c in record.get("device", ())]  # fmt: skip
    status = {"built": "passed", "gate_failed": "failed"}.get(record["status"], "failed" if record["compiler"]["version"] else "missing")
    said = "; ".join(f"{c['arch']}: {c['registers']} registers, {c['spill_bytes']} B spilt, {c['shared_bytes']} B shared ({c['listing']})" for c in codes)
    return _cell(status, record["reason"] or said or "compiled", codes=codes)


def _on_gpu(b: Build, root: Path, machine: str) -> dict[str, Any]:
    """What a validation says that ran on a device; nothing else is evidence of that."""
    path = root / validated(b, machine)
    record = read_json(path) if path.is_file() else {}
    if not record.get("device"):
        return _cell("no", "not run on a GPU")
    return _cell("passed" if record["passed"] else "failed", f"{record['device']}: {record['reason'] or str(len(record['cases'])) + ' cases right'}")
