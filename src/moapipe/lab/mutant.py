"""In: builds of texts for GPUs. Out: faults planted in each, and whether the checks that passed the text find them.

A check that reports nothing is worth what it would have reported. A mutant is a text with one kind of fault in all the places where it
can be: the shim must report it for CUDA and HIP, Oclgrind for OpenCL, in the words that belong to the fault; under directives, a buffer
that is not mapped must give wrong numbers on clang's device. Tests plant single faults.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab import emulation, offload, opencl, trial
from moapipe.lab.derive import Derivation
from moapipe.lab.errand import Errand
from moapipe.lab.experiment import Build
from moapipe.lab.trial import EXTENTS, Evidence, Kind
from moapipe.loops.wide import widths
from moapipe.targets import cuda
from moapipe.targets import opencl as kernels
from moapipe.targets.simt import Dialect
from moapipe.targets.table import target_named

DIALECTS: Mapping[str, Dialect] = {"cuda": cuda.DIALECT, "hip": cuda.DIALECT, "opencl": kernels.DIALECT}
DEVICES = offload.targets("offload")
SIGNS: Mapping[str, Mapping[str, str]] = {
    "shim": {"race": "races on", "divergence": "barriers that some threads", "bounds": "outside of all buffers", "undefined": "beyond the bound",
             "misplaced": "from where none is allowed"},
    "oclgrind": {"race": "data race", "divergence": "divergence", "bounds": "Invalid", "undefined": "Uninitialized", "misplaced": "not aligned"},
    "offload": {"lost": "beyond the bound"},
}
"""What each finder says of a fault. A number that nobody wrote is NaN under the shim, and no right one on the device."""
PLACE, VALUE, NAME, NUMBER = r"(.+?\])", r"(.*)", r"(\w+)", r"(\d+)"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kind of fault: its sign, how a derivation's text gets it, in which languages, and whether it shows at odd lengths alone."""

    sign: str
    plant: Callable[[Derivation, str], str]
    targets: tuple[str, ...] = tuple(DIALECTS)
    odd: bool = False


def pattern(template: str, *groups: str) -> str:
    """A regular expression for a template with {0}, {1}, …, each of which the next of `groups` stands for."""
    return re.sub(r"\\\{(\d)\\\}", lambda m: groups[int(m[1])], re.escape(template))


def _without_barriers(d: Derivation, text: str) -> str:
    team = target_named(d.build.target).team
    return text.replace(team.barrier, ";") if team else text


def _some_barriers(d: Derivation, text: str) -> str:
    team = target_named(d.build.target).team
    return text.replace(team.barrier, f"if ({team.thread} < 1) {team.barrier}") if team else text


def _short(d: Derivation, text: str) -> str:
    shared = DIALECTS[d.build.target].shared
    return re.sub(pattern(shared, NAME, NUMBER), lambda m: shared.format(m[1], max(1, int(m[2]) // 2)), text)


def _plain_sums(d: Derivation, text: str) -> str:
    (atomic,) = target_named(d.build.target).atomic
    return re.sub(f"^(\\s*){pattern(atomic, PLACE, VALUE)}$", r"\1\2 = \2 + \3;", text, flags=re.MULTILINE)


def _overlapping(d: Derivation, text: str) -> str:
    return text.replace("item += threads", "item += 1")


def _further_on(d: Derivation, text: str) -> str:
    names = [o["name"] for o in d.manifest["outputs"]] + [i["name"] for i in d.manifest["inputs"] if "becomes" in i]
    return re.sub(rf"\b({'|'.join(names)})(_?)\[", r"\1\2[1 + ", text)


def _unbegun(d: Derivation, text: str) -> str:
    return re.sub(r"^(\s*)\S.* = (?:-INFINITY|0\.0f?);$", r"\1;", text, flags=re.MULTILINE)


def _misplaced(d: Derivation, text: str) -> str:
    return re.sub(r"(got = .*?)(&.*\])", r"\1(1 + \2)", text)


def _unaligned(d: Derivation, text: str) -> str:
    width = max(widths(d.schedule.kernel), default=0)
    return re.sub(rf"if \(\(?\w+ % {width}\)? == 0 && ", "if (", text) if width else text


def _kept_there(d: Derivation, text: str) -> str:
    return text.replace("map(from: ", "map(alloc: ").replace("map(tofrom: ", "map(to: ")


def _kept_here(d: Derivation, text: str) -> str:
    return text.replace("map(to: ", "map(alloc: ").replace("map(tofrom: ", "map(from: ")


MUTANTS: Mapping[str, Mutant] = {
    "no barrier": Mutant("race", _without_barriers), "barriers that one thread meets": Mutant("divergence", _some_barriers),
    "shared arrays of half the size": Mutant("bounds", _short), "plain sums for atomic ones": Mutant("race", _plain_sums),
    "iterations that several threads take": Mutant("race", _overlapping), "outputs one element further on": Mutant("bounds", _further_on),
    "sums that nobody begins": Mutant("undefined", _unbegun), "elements fetched as one, one further on": Mutant("misplaced", _misplaced),
    "rows of any length fetched as one": Mutant("misplaced", _unaligned, ("cuda", "hip"), odd=True), "outputs that do not come back": Mutant("lost", _kept_there, DEVICES),
    "inputs that do not reach the device": Mutant("lost", _kept_here, DEVICES),
}


def planted(d: Derivation) -> Iterator[tuple[str, str]]:
    """The faults that a text can have, each with the text that has it."""
    for name, mutant in MUTANTS.items():
        text = mutant.plant(d, d.source.text) if d.build.target in mutant.targets else d.source.text
        if text != d.source.text:
            yield name, text


def finder(target: str) -> Kind:
    """What looks for faults in texts of a target."""
    return "offload" if target in DEVICES else "oclgrind" if target == "opencl" else "shim"


def examine(builds: Sequence[Build], root: Path) -> list[Evidence]:
    """Whether every fault that can be planted in a build is found, in the order of the builds. LabError when what looks for it is missing."""
    found: dict[Build, Evidence] = {}
    for kind, look in FINDERS.items():
        mine = [b for b in builds if finder(b.target) == kind]
        found |= dict(zip(mine, look(mine, root) if mine else (), strict=True))
    return [found[b] for b in builds]


def _by_the_shim(builds: Sequence[Build], root: Path) -> list[Evidence]:
    known: dict[tuple[str, ...], Evidence] = {}
    out = []
    for b in builds:
        odd, whole = (trial.stage(b, root, EXTENTS["shim"][k]) for k in (0, 2))
        d = whole[0]
        key = (b.kernel, b.form, b.dtype, emulation.seen(d.source.text))
        if key not in known:
            reports = {}
            for name, text in planted(d):
                _, s, t = odd if MUTANTS[name].odd else whole
                try:
                    (got,) = trial.shimmed(d, text, t, s, both=False)
                    reports[name] = "; ".join((*got.faults, *trial.beyond(t, got.outputs)))
                except LabError as e:
                    reports[name] = e.message
            known[key] = _concluded(reports, "shim")
        out.append(known[key])
    return out


def _by_oclgrind(builds: Sequence[Build], root: Path) -> list[Evidence]:
    errands, names = [], []
    for b in builds:
        d, s, t = trial.stage(b, root, *EXTENTS["oclgrind"])
        texts = dict(planted(d))
        names.append(tuple(texts))
        errands += [Errand(text, d.manifest, t.inputs, dict(s.sizes), max(s.threads)) for text in texts.values()]
    answers = iter(opencl.run(errands, "oclgrind"))
    return [_concluded({n: next(answers).report for n in each}, "oclgrind") for each in names]


def _by_the_device(builds: Sequence[Build], root: Path) -> list[Evidence]:
    stages = [trial.stage(b, root, *EXTENTS["offload"]) for b in builds]
    with tempfile.TemporaryDirectory(prefix="moapipe-") as scratch:
        errands, names = [], []
        for k, (d, s, t) in enumerate(stages):
            texts = dict(planted(d))
            names.append(tuple(texts))
            for n, text in enumerate(texts.values()):
                made = trial.compiled(d, text, "offload", Path(scratch) / f"{k}.{n}")
                errands.append(Errand(str(made), d.manifest, t.inputs, dict(s.sizes), max(s.threads)))
        answers = iter(offload.run(errands, "offload"))
        found = [{n: next(answers) for n in each} for each in names]
    return [_concluded({n: "; ".join((a.report, *trial.beyond(t, a.outputs))) for n, a in each.items()}, "offload") for each, (_, _, t) in zip(found, stages, strict=True)]


def _concluded(reports: Mapping[str, str], by: Kind) -> Evidence:
    lost = [f"{n}: not found ({report or 'nothing is reported'})" for n, report in reports.items() if SIGNS[by][MUTANTS[n].sign] not in report]
    return trial.concluded("mutants", lost, f"{len(reports)} of {len(reports)} planted faults found: {', '.join(reports)}")


FINDERS: Mapping[Kind, Callable[[Sequence[Build], Path], list[Evidence]]] = {"shim": _by_the_shim, "oclgrind": _by_oclgrind, "offload": _by_the_device}
