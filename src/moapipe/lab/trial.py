"""In: builds of texts for GPUs. Out: evidence for each, made on this machine's processor; no GPU is asked, and none is claimed.

A trial derives, runs, and compares with the oracle of validation under validation's bounds. What each kind can see stands with the
module that makes it: `emulation` (the shim), `opencl`, `offload`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from moapipe.errors import LabError
from moapipe.lab import emulation, offload, opencl
from moapipe.lab.derive import Derivation, derive
from moapipe.lab.emulation import Emulation
from moapipe.lab.errand import Answer, Errand
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import KernelFile, load
from moapipe.lab.library import narrow
from moapipe.lab.oracle import Truth, compare, truth
from moapipe.lab.scenario import Scenario
from moapipe.loops.atomic import uncontended
from moapipe.loops.interpret import run
from moapipe.loops.onf import Kernel
from moapipe.loops.wide import widths

Kind = Literal["shim", "oclgrind", "pocl", "fallback", "offload"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Status = Literal["passed", "failed", "missing"]
FEW = frozenset(("B", "G", "heads"))
"""Parameters that are counts of equal things."""
LONGER = 32
"""How many lengths are tried until workers meet in every atomic sum: tiny tiles are of 8 elements at most."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one way showed: with which numbers it passed, what is wrong, or what is missing."""

    kind: str
    status: Status
    detail: str

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a trial is: the least length of an axis (each next one is one longer; `scenario` may need more), whether tiles are tiny,
    numbers of threads. `whole`: lengths are multiples of what a text fetches as one, if it does."""

    length: int
    tiny: bool
    threads: tuple[int, ...]
    whole: bool = False


EXTENTS: dict[Kind, tuple[Extent, ...]] = {
    "shim": (Extent(5, True, (7,)), Extent(5, False, (7,)), Extent(4, True, (7,), whole=True)), "oclgrind": (Extent(4, True, (3, 200), whole=True),), "pocl": (Extent(48, False, (300,)),),
    "fallback": (Extent(20, True, (1, 30)),), "offload": (Extent(20, True, (30,)),),
}
"""The shim runs both texts, with tiny tiles and with the usual ones, in both orders of threads; the third is for texts that fetch several
elements as one."""


def scenario(kernel: KernelFile, extent: Extent, nest: Kernel) -> Scenario:
    """One case with axes of different lengths, so that none stands in for another; of counts of equal things there are few. With tiny
    tiles it is as long as it takes for several workers to meet in every atomic sum. Where elements are fetched as one, lengths are
    multiples of their number (`whole`), else all odd or all even. LabError for a sum in which none seem to meet."""
    few = [s for p, sizes in kernel.parameters.items() if p in FEW for s in sizes]
    wide = max(widths(nest), default=1)
    step, apart = (wide, 1) if extent.whole else (1, min(wide, 2))
    for longer in range(LONGER):
        lengths = {s: (-(-extent.length // step) + (longer + k) * apart) * step for k, s in enumerate(s for s in kernel.sizes if s not in few)} | {s: 2 + k for k, s in enumerate(few)}
        alone = uncontended(nest, lengths, max(extent.threads)) if extent.tiny else frozenset()
        if not alone:
            return Scenario(tuple((s, lengths[s]) for s in kernel.sizes), "plain", 1, extent.threads)
    raise LabError(f"nobody shares an element of {', '.join(sorted(alone))} up to {lengths}", where=nest.name, hint="a sum whose elements have one owner needs no lift `atomic`")


def stage(b: Build, root: Path, extent: Extent) -> tuple[Derivation, Scenario, Truth]:
    """What a trial needs: the text, its case, and what is right. No PyTorch."""
    kernel = load(b.kernel, root)
    d = derive(b, root, tiny=extent.tiny)
    s = scenario(kernel, extent, d.schedule.kernel)
    return d, s, truth(kernel, b.form, b.dtype, s, narrow(d.manifest), beside=False)


def missing(target: str, kind: Kind) -> str:
    """Why there can be no evidence of this kind for a target here, in a sentence; empty when there can."""
    match kind:
        case "shim":
            wrong = "" if target in emulation.LANGUAGES else f"the shim reads {', '.join(emulation.LANGUAGES)}, not {target}"
            return wrong or ("" if shutil.which("g++") else "no g++: apt install g++")
        case "oclgrind" | "pocl":
            return opencl.missing(kind) if target == "opencl" else f"{kind} reads opencl, not {target}"
        case "fallback" | "offload":
            return offload.missing(target, kind)


def examine(builds: Sequence[Build], root: Path, kind: Kind) -> list[Evidence]:
    """Evidence of one kind for builds, in their order. LabError when what makes it is not installed (see `missing`)."""
    return _under_shim(builds, root) if kind == "shim" else _elsewhere(builds, root, kind)


def beyond(t: Truth, outputs: emulation.Outputs) -> list[str]:
    """Outputs that are beyond their bound, in words."""
    errors = [compare(t, n, v.reshape(t.outputs[n].shape)) for n, v in outputs.items()]
    return [f"{e.output}{list(e.place)} and {e.wrong - 1} more are beyond the bound" for e in errors if e.wrong]


def worst(t: Truth, outputs: Sequence[emulation.Outputs]) -> float:
    """The largest error over its bound."""
    return max((compare(t, n, v.reshape(t.outputs[n].shape)).ratio for each in outputs for n, v in each.items()), default=0.0)


def concluded(kind: str, wrong: Sequence[str], said: str) -> Evidence:
    return Evidence(kind, "failed" if wrong else "passed", "; ".join(dict.fromkeys(wrong))[:2000] if wrong else said)


# ------------------------------------------------------------------ under the shim


def _under_shim(builds: Sequence[Build], root: Path) -> list[Evidence]:
    """Right numbers, no race, no access outside of buffers, no divergent barrier, and the accesses of the interpreter, exactly. Two
    languages whose texts are the same for the shim are run once."""
    known: dict[tuple[str, ...], Evidence] = {}
    out = []
    for b in builds:
        key = (b.kernel, b.form, b.dtype, *(emulation.seen(derive(b, root, tiny=e.tiny).source.text) for e in EXTENTS["shim"]))
        if key not in known:
            try:
                known[key] = _emulated(b, root)
            except LabError as e:
                known[key] = Evidence("shim", "failed", e.message)
        out.append(known[key])
    return out


def _emulated(b: Build, root: Path) -> Evidence:
    wrong: list[str] = []
    said: list[str] = []
    for extent in EXTENTS["shim"]:
        d, s, t = stage(b, root, extent)
        if extent.whole and not widths(d.schedule.kernel):
            continue
        got = shimmed(d, d.source.text, t, s)
        ran = run(d.schedule.kernel, dict(s.sizes), {k: np.asarray(v, np.float64) for k, v in t.inputs.items()}, threads=s.threads[0])
        wrong += [f for g in got for f in (*beyond(t, g.outputs), *g.faults, *emulation.miscounted(g, d.schedule.kernel, dict(s.sizes), ran.accesses))]
        said.append(f"{'tiny' if extent.tiny else 'usual'} tiles, {s.label}, threads {s.threads[0]}: {_moved(got[0])}, {worst(t, [g.outputs for g in got]):.2g} of the error bound")
    return concluded("shim", wrong, "; ".join(said))


def _moved(g: Emulation) -> str:
    moved, atomics = sum(x.loads + x.stores + x.atomics for x in g.traffic.values()), sum(x.atomics for x in g.traffic.values())
    return f"{moved:,} accesses and {atomics:,} atomics as counted, 0 faults, {g.barriers} barriers"


def shimmed(d: Derivation, text: str, t: Truth, s: Scenario, *, both: bool = True) -> list[Emulation]:
    """A text run under the shim, threads in ascending order, and in descending order too."""
    with tempfile.TemporaryDirectory(prefix="moapipe-") as folder:
        source, library = Path(folder) / d.manifest["source"], Path(folder) / "kernel.so"
        source.write_text(text)
        emulation.compile_text(source, d.build.dtype, library)
        return [emulation.run(library, d.manifest, t.inputs, dict(s.sizes), s.threads[0], descending=down) for down in ((False, True) if both else (False,))]


# ------------------------------------------------------------------ in processes of their own


def _elsewhere(builds: Sequence[Build], root: Path, kind: Kind) -> list[Evidence]:
    with tempfile.TemporaryDirectory() as scratch:
        (extent,), errands, refused = EXTENTS[kind], {}, {}
        for k, b in enumerate(builds):
            try:
                errands[k] = prepared(b, root, kind, extent, Path(scratch) / str(k))
            except LabError as e:
                refused[k] = Evidence(kind, "failed", e.message)
        todo = [e for each in errands.values() for e in each]
        answers = iter(opencl.run(todo, kind) if kind in ("oclgrind", "pocl") else offload.run(todo, kind) if todo else ())
        return [refused[k] if k in refused else judged(b, root, kind, extent, [next(answers) for _ in errands[k]]) for k, b in enumerate(builds)]


def prepared(b: Build, root: Path, kind: Kind, extent: Extent, folder: Path) -> list[Errand]:
    """One errand for each number of threads. LabError when the text does not compile."""
    d, s, t = stage(b, root, extent)
    program = str(compiled(d, d.source.text, kind, folder)) if kind in ("fallback", "offload") else d.source.text
    return [Errand(program, d.manifest, t.inputs, dict(s.sizes), threads) for threads in s.threads]


def compiled(d: Derivation, text: str, way: offload.Way, folder: Path) -> Path:
    """A text with directives as a library, in a new folder. LabError when it does not compile."""
    folder.mkdir()
    (folder / d.manifest["source"]).write_text(text)
    offload.compile_text(d.build.target, way, folder / d.manifest["source"], folder / "kernel.so")
    return folder / "kernel.so"


def judged(b: Build, root: Path, kind: Kind, extent: Extent, answers: Sequence[Answer]) -> Evidence:
    """Nothing is reported and every output is within validation's bound, for every number of threads."""
    _, s, t = stage(b, root, extent)
    wrong = [w for a in answers for w in ([a.report] if a.report else []) + beyond(t, a.outputs)]
    wrong += [f"no {n}" for n in t.outputs if any(n not in a.outputs for a in answers)]
    return concluded(kind, wrong, f"{s.label}; threads {', '.join(map(str, s.threads))}: no report, {worst(t, [a.outputs for a in answers]):.2g} of the error bound")
