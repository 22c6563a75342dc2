"""In: a derivation. Out: its files: derivation.md for a mathematician, derivation.json for the page, cost.json, manifest.json, source.

Same kernel, same bytes: everything is sorted, without dates and absolute paths. manifest.json is written last, so where it is,
the rest is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from moapipe.algebra import adjoint
from moapipe.algebra.adjoint import show_written
from moapipe.algebra.dnf import Dnf, Step, dnf_hash
from moapipe.algebra.dnf import show as show_dnf
from moapipe.algebra.laws import LAWS
from moapipe.algebra.ops import OPS
from moapipe.algebra.render import Style, pending_text
from moapipe.algebra.rewrite import RULES, is_reduction
from moapipe.lab import pair
from moapipe.lab.derive import Denotation, Derivation, LawStep, Schedule
from moapipe.lab.file import write_text
from moapipe.loops.account import show_closed
from moapipe.loops.closed import closed_forms
from moapipe.loops.lift import LIFTS
from moapipe.loops.onf import onf_hash, show
from moapipe.loops.onf_json import to_json
from moapipe.targets.isa import element_bytes
from moapipe.targets.table import PAIRS

SCHEMA = 1
STYLES: tuple[Style, ...] = get_args(Style)
EVERY_ELEMENT = "(the ψ-laws of the operators; each is used once, so a second reduction gives the same)"
BACKWARDS = "(reverse mode: definitions from the last to the first; [c] is 1 where c holds, else 0; i′ is a variable that is summed over)"


def write(d: Derivation, directory: Path) -> None:
    """All files of a derivation, each whole or not at all."""
    write_text(directory / d.source.manifest["source"], d.source.text)
    write_text(directory / "derivation.md", markdown(d))
    write_text(directory / "derivation.json", _compact(document(d)))
    write_text(directory / "cost.json", _compact(cost(d)))
    write_text(directory / "manifest.json", json.dumps(d.manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def _compact(data: Any) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


# ------------------------------------------------------------------ cost.json


def cost(d: Derivation) -> dict[str, Any]:
    """What `predict` counts from: the loop nest itself, and the counts as closed forms in the sizes for people."""
    return {
        "schema": SCHEMA, **asdict(d.build), "element_bytes": element_bytes(d.build.dtype), "params": dict(d.schedule.params),
        "dnf_hash": d.denotation.hash, "onf_hash": d.schedule.hash, **_counted(d.schedule),
    }


@lru_cache(maxsize=512)
def _counted(s: Schedule) -> Mapping[str, Any]:
    return {"onf": to_json(s.kernel), "closed_forms": closed_forms(s.kernel).to_json()}


# ------------------------------------------------------------------ derivation.json


def document(d: Derivation) -> dict[str, Any]:
    """The derivation as data; formulas in every style of algebra.render ({style: text}), loop nests as text. Under directives also C
    and Fortran side by side."""
    sides = {"pair": pair.document(d)} if any(d.build.target in p for p in PAIRS) else {}
    return {"schema": SCHEMA, **asdict(d.build), **_denoted(d.denotation), **_scheduled(d.schedule), **sides}


@lru_cache(maxsize=256)
def _denoted(n: Denotation) -> Mapping[str, Any]:
    return {
        "sizes": list(n.dnf.sizes), "outputs": list(n.dnf.outputs),
        "definitions": {s: show_written(n.dnf.name, n.definitions, s).splitlines() for s in STYLES},
        "steps": [_step(s) for s in n.steps],
        "dnf": {"hash": n.hash, "lines": {s: show_dnf(n.dnf, s).splitlines() for s in STYLES}},
    }


def _step(s: Step) -> dict[str, Any]:
    law, source = said(s.law)
    sides = {side: {style: pending_text(p, style) for style in STYLES} for side, p in (("before", s.before), ("after", s.after))}
    return {"definition": s.definition, "law": s.law, "text": law, "source": source, **sides}


def said(law: str) -> tuple[str, str]:
    """The mathematics and the source of a law."""
    if law in LAWS:
        return LAWS[law].text, LAWS[law].source
    return (OPS[law].law, OPS[law].source) if law in OPS else ({**RULES, **adjoint.RULES}[law], "")


@lru_cache(maxsize=512)
def _scheduled(s: Schedule) -> Mapping[str, Any]:
    nests = [show(s.naive), *(show(x.kernel) for x in s.lifts)]
    lifts = [
        {"lift": x.lift, "title": x.title, "text": LIFTS[x.lift].text, "refusal": x.refusal, "edits": edits(before, after), "hash": onf_hash(x.kernel)}
        for x, (before, after) in zip(s.lifts, pairwise(nests), strict=True)
    ]
    return {
        "params": dict(s.params), "laws": [_law(x) for x in s.laws], "naive": {"onf": nests[0], "hash": onf_hash(s.naive)},
        "lifts": lifts, "onf": {"text": show(s.kernel), "hash": s.hash},
    }


def edits(before: str, after: str) -> list[list[Any]]:
    """What a lift did to the text of a loop nest: [first line, line after the last, the lines in their place], from the end backwards,
    so that each holds in the text that the ones before it left. A hundred whole nests would be ten megabytes."""
    old, new = before.splitlines(), after.splitlines()
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [[i1, i2, new[j1:j2]] for tag, i1, i2, j1, j2 in reversed(found) if tag != "equal"]


def edited(before: str, changes: Iterable[Sequence[Any]]) -> str:
    """The text after `edits`."""
    lines = before.splitlines()
    for first, last, new in changes:
        lines[first:last] = new
    return "".join(f"{line}\n" for line in lines)


def _law(x: LawStep) -> dict[str, Any]:
    row = LAWS[x.law]
    sides = {side: {style: changed(x, side, style) for style in STYLES} for side in ("before", "after")}
    return {"law": x.law, "text": row.text, "source": row.source, "hash": dnf_hash(x.after), **sides}


def changed(x: LawStep, side: str, style: Style) -> list[str]:
    """The definitions that a law changed, before or after."""
    here, there = (x.before, x.after) if side == "before" else (x.after, x.before)
    old = set(there.normals)
    return _normals(here, style, [k for k, n in enumerate(here.normals) if n not in old])


def _normals(d: Dnf, style: Style, which: Iterable[int]) -> list[str]:
    lines = show_dnf(d, style).splitlines()[1:]  # the first line is the heading
    return [lines[k] for k in which]


# ------------------------------------------------------------------ derivation.md


def markdown(d: Derivation) -> str:
    """The whole derivation as text to read, from the definitions to the loop nest."""
    b = d.build
    lines = [
        f"# {b.kernel}, {b.form}: {b.variant} in {b.target} for {b.isa}, {b.dtype}", "",
        f"Generated. Normal form `{d.denotation.hash}`, loop nest `{d.schedule.hash}`.", "",
        *_markdown_denotation(d.denotation), *_markdown_schedule(d.schedule),
        "## 6. Source", "", f"`{d.source.manifest['source']}`, {len(d.source.text.splitlines())} lines; its ABI is `manifest.json`.", "",
        *_tiles(d),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _tiles(d: Derivation) -> Iterator[str]:
    for t in d.source.tiles:
        yield f"* register tile `{t.mark}`: {t.rows} × {t.columns} elements, {t.vector} lanes, {t.fma} vector multiply-adds a step, source lines {t.lines[0]}–{t.lines[1]}"


def _changes(before: str, after: str) -> str:
    """The lines that a lift takes away (-) and brings (+), with two lines around them; the whole nest before and after follows
    from derivation.json (`edited`)."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=2, lineterm="")
    return "\n".join(l if not l.startswith("@@") else "…" for l in lines if not l.startswith(("---", "+++"))) or "(nothing changes)"


def fenced(text: str, language: str = "") -> list[str]:
    return [f"```{language}", *text.rstrip("\n").split("\n"), "```", ""]


def _markdown_steps(steps: Sequence[Step]) -> Iterator[str]:
    for name in dict.fromkeys(s.definition for s in steps):
        yield from (f"### {name}", "")
        for k, s in enumerate((s for s in steps if s.definition == name), 1):
            law, source = said(s.law)
            yield from (f"{k}. **{s.law}**: `{law}`{f' ({source})' if source else ''}", "")
            yield from fenced(f"    {pending_text(s.before, 'moa')}\n→   {pending_text(s.after, 'moa')}")


@lru_cache(maxsize=256)
def _markdown_denotation(n: Denotation) -> tuple[str, ...]:
    out = ["## 1. Definitions", "", "In the notation of the Mathematics of Arrays:", "", *fenced(show_written(n.dnf.name, n.definitions, "moa"))]
    reductions = [s for s in n.steps if is_reduction(s.law)]
    out += ["## 2. ψ-reduction", "", f"{len(reductions)} steps {EVERY_ELEMENT}.", "", *_markdown_steps(reductions)]
    if adjoints := [s for s in n.steps if not is_reduction(s.law)]:
        out += ["## Adjoint", "", f"{len(adjoints)} steps {BACKWARDS}.", "", *_markdown_steps(adjoints)]
    out += ["## 3. Denotational normal form", "", f"Hash `{n.hash}`: the same for every variant, language and machine of this form.", ""]
    out += fenced(show_dnf(n.dnf, "moa"))
    out += [line for formula in show_dnf(n.dnf, "latex").splitlines()[1:] for line in ("$$", formula, "$$", "")]
    return tuple(out)


@lru_cache(maxsize=512)
def _markdown_schedule(s: Schedule) -> tuple[str, ...]:
    out = ["## 4. Laws of this variant", ""]
    for x in s.laws:
        row = LAWS[x.law]
        out += [f"**{x.law}**: {row.text}{f' ({row.source})' if row.source else ''}", ""]
        out += fenced("\n".join([*(f"    {l}" for l in changed(x, "before", "moa")), *(f"→   {l}" for l in changed(x, "after", "moa"))]))
    if not s.laws:
        out += ["None: the normal form goes into the loop nest as it is.", ""]
    tiles = ", ".join(f"{k} = {v}" for k, v in sorted(s.params.items()))
    out += ["## 5. Operational normal form", "", f"Tile parameters: {tiles}.", "", "### Naive: one perfect nest for each leaf", "", *fenced(show(s.naive))]
    before = show(s.naive)
    for k, x in enumerate(s.lifts, 1):
        after = show(x.kernel)
        if x.refusal:
            out += [f"### Lift {k}, refused: {x.title}", "", *fenced(x.refusal)]
            continue
        out += [f"### Lift {k}: {x.title}", "", LIFTS[x.lift].text.replace("\n", " "), "", *fenced(_changes(before, after), "diff")]
        before = after
    out += ["### The loop nest", "", f"Hash `{s.hash}`.", "", *fenced(before)]
    out += ["### Counts", "", "As expressions in the sizes; a sum that has no closed form stays a sum.", "", *fenced(show_closed(s.kernel))]
    return tuple(out)
