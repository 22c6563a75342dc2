"""In: a build of a text for GPUs. Out: emulation.json: what each way of running it on this machine's processor showed.

No GPU is asked here, and none is claimed. A way that is not installed is written down as missing, with what to install: a table of
evidence says what there is, and never more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from moapipe.errors import LabError
from moapipe.lab import emulation, offload, opencl, trial
from moapipe.lab.derive import Derivation, derive
from moapipe.lab.emulation import Emulation
from moapipe.lab.experiment import Build
from moapipe.lab.file import read_json, write_json
from moapipe.lab.kernel import load
from moapipe.lab.oracle import Truth, compare, truth
from moapipe.lab.place import built, emulated, validated
from moapipe.lab.scenario import Scenario
from moapipe.lab.trial import Extent
from moapipe.loops.atomic import atomics
from moapipe.loops.interpret import Run, run

SCHEMA = 1
Status = Literal["passed", "failed", "missing"]
SMALL = tuple(Extent(5, tiny, (7,)) for tiny in (True, False))
"""The shim runs both texts, with tiny tiles and with the usual ones, in both orders of threads."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one way showed: with which numbers it passed, what is wrong, or what is missing."""

    kind: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Way:
    """A way to run texts of `targets` without a GPU: what it can show, why it cannot be gone here (empty: it can), the trial of a build."""

    targets: tuple[str, ...]
    text: str
    missing: Callable[[], str]
    trial: Callable[[Build, Path], tuple[bool, str]]


def emulate(b: Build, root: Path, machine: str = "local") -> dict[str, Any]:
    """Go every way that is there for the build's language, and write its emulation.json. ConfigError where there is no way at all."""
    found = [_gone(name, way, b, root) for name, way in WAYS.items() if b.target in way.targets]
    if not found:
        raise LabError(f"nothing runs texts of {b.target} on the processor", where=b.path(), hint=f"those of {', '.join(sorted(LANGUAGES))}")
    document = {"schema": SCHEMA, **asdict(b), "machine": machine, "evidence": [asdict(e) for e in found]}
    write_json(root / emulated(b, machine), document)
    return document


def failed(document: Mapping[str, Any]) -> list[str]:
    """What failed, in words; what is missing did not fail."""
    return [f"{e['kind']}: {e['detail']}" for e in document["evidence"] if e["status"] == "failed"]


def _gone(name: str, way: Way, b: Build, root: Path) -> Evidence:
    if why := way.missing():
        return Evidence(name, "missing", why)
    try:
        passed, detail = way.trial(b, root)
    except LabError as e:
        return Evidence(name, "failed", e.message)
    return Evidence(name, "passed" if passed else "failed", detail)


# ------------------------------------------------------------------ under the shim


def _shim(b: Build, root: Path) -> tuple[bool, str]:
    """Right numbers, no race, no access outside of buffers, no divergent barrier, and the accesses of the interpreter, exactly."""
    kernel = load(b.kernel, root)
    wrong: list[str] = []
    said: list[str] = []
    for extent in SMALL:
        d, s = derive(b, root, tiny=extent.tiny), trial.scenario(kernel, extent)
        t = truth(kernel, b.form, b.dtype, s)
        got = _emulated(d, t, s)
        ran = run(d.schedule.kernel, dict(s.sizes), {k: np.asarray(v, np.float64) for k, v in t.inputs.items()}, threads=s.threads[0])
        errors = [compare(t, n, v.reshape(t.outputs[n].shape)) for g in got for n, v in g.outputs.items()]
        wrong += [f"{e.output}{list(e.place)} and {e.wrong - 1} more are beyond the bound" for e in errors if e.wrong]
        wrong += [f for g in got for f in (*_faults(g), *_miscounted(d, g, ran, s))]
        moved = sum(x.loads + x.stores + x.atomics for x in got[0].traffic.values())
        tiles = "tiny" if extent.tiny else "usual"
        said.append(f"{tiles} tiles, {s.label}, threads {s.threads[0]}: {moved:,} accesses and {sum(x.atomics for x in got[0].traffic.values()):,} atomics as counted, "
                    f"0 faults, {got[0].barriers} barriers, {max((e.ratio for e in errors), default=0.0):.2g} of the error bound")
    return not wrong, "; ".join(dict.fromkeys(wrong))[:2000] if wrong else "; ".join(said)


def _emulated(d: Derivation, t: Truth, s: Scenario) -> list[Emulation]:
    with tempfile.TemporaryDirectory(prefix="moapipe-") as folder:
        source, library = Path(folder) / d.manifest["source"], Path(folder) / "kernel.so"
        source.write_text(d.source.text)
        emulation.compile_text(source, d.build.dtype, library)
        return [emulation.run(library, d.manifest, t.inputs, dict(s.sizes), s.threads[0], descending=down) for down in (False, True)]


def _faults(g: Emulation) -> list[str]:
    found = {"accesses outside of all buffers": g.outside, "barriers that some threads do not reach": g.divergent}
    found |= {f"races on {name}": x.races for name, x in g.traffic.items()}
    return [f"{n} {what}" for what, n in found.items() if n]


def _miscounted(d: Derivation, g: Emulation, ran: Run, s: Scenario) -> list[str]:
    """Buffers whose accesses are not those that the interpreter counts, and atomics that are not the formula's; the workspace holds all
    arrays that are no buffers. Lengths are read as indices, which no count calls an access."""
    out = []
    updates = atomics(d.schedule.kernel, dict(s.sizes))
    for name, x in g.traffic.items():
        held = [n for n, a in ran.accesses.items() if (a.space in ("workspace", "private") if name == emulation.WORK else n == name)]
        loads, stores = (sum(getattr(ran.accesses[n], way) for n in held) for way in ("loads", "stores"))
        if (loads or stores) and (x.loads + x.atomics, x.stores + x.atomics) != (loads, stores):
            out.append(f"{name}: {x.loads + x.atomics} loads and {x.stores + x.atomics} stores, counted {loads} and {stores}")
        if x.atomics != (due := sum(u.updates for u in updates if u.array in (*held, name))):
            out.append(f"{name}: {x.atomics} atomics, counted {due}")
    return out


def _shim_missing() -> str:
    return "" if shutil.which("g++") else "no g++: apt install g++"


# ------------------------------------------------------------------ the ways


def _tried(kind: trial.Kind, b: Build, root: Path) -> tuple[bool, str]:
    (found,) = trial.examine([b], root, kind)
    return found.passed, found.detail


WAYS: dict[str, Way] = {
    "shim": Way(emulation.LANGUAGES, "the very text under a shim: numbers, races, bounds, divergence, counts", _shim_missing, _shim),
    "oclgrind": Way(("opencl",), "interpreted by Oclgrind: numbers, races, bounds, divergence, reads of what nobody wrote",
                    partial(opencl.missing, "oclgrind"), partial(_tried, "oclgrind")),
    "pocl": Way(("opencl",), "compiled and run by PoCL: numbers at larger sizes", partial(opencl.missing, "pocl"), partial(_tried, "pocl")),
    "fallback": Way(offload.targets("fallback"), "directives on the host's threads, by GCC: the text is taken, numbers",
                    partial(offload.absent, "fallback"), partial(_tried, "fallback")),
    "offload": Way(offload.targets("offload"), "directives on clang's x86_64 device: numbers, and every buffer mapped there and back",
                   partial(offload.absent, "offload"), partial(_tried, "offload")),
}
LANGUAGES = frozenset(t for way in WAYS.values() for t in way.targets)


def gather(builds: Sequence[Build], root: Path, machine: str) -> list[dict[str, Any]]:
    """One row a build: its axes, and by kind what is known of it: the ways, `compiled`, `gpu`. What nobody tried is `untried`."""
    return [{**asdict(b), **_row(b, root, machine)} for b in builds]


def _row(b: Build, root: Path, machine: str) -> dict[str, Any]:
    from_ways = {name: _cell("untried" if b.target in way.targets else "none") for name, way in WAYS.items()}
    if (path := root / emulated(b, machine)).is_file():
        from_ways |= {e["kind"]: _cell(e["status"], e["detail"]) for e in read_json(path)["evidence"]}
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
