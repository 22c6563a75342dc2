"""In: a build's folder in an archive. Out: what its derivation page shows: formulas in every notation, loop nests with what each
lift changed, counts, highlighted source, build and validation.

Formulas come as MathML from derivation.json; one that is not well-formed XML is shown in MoA glyphs instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from moapipe.algebra.rewrite import is_reduction
from moapipe.lab.experiment import BUILD_AXES, Build
from moapipe.lab.file import read_json
from moapipe.lab.transcript import edited

LEXERS = {".c": "c", ".f90": "fortran", ".cu": "cuda", ".hip": "cuda", ".cl": "c", ".h": "c"}
STRETCHY = re.compile(r"<mo>([(){}⟨⟩])</mo>(?!<mtable)")  # brackets that would grow with every nesting; those of cases may
CONTEXT = 3  # lines of a loop nest that are shown around a change
NOTATIONS = (("mathml", "mathematics"), ("moa", "MoA"), ("ascii", "ASCII"), ("latex", "LaTeX"))


@dataclass(frozen=True)
class Chapter:
    """Everything on one page; a part that the folder lacks is None."""

    build: Build
    derivation: Mapping[str, Any] | None
    counts: Mapping[str, Any] | None
    manifest: Mapping[str, Any] | None
    source_name: str
    source: str
    compiled: Mapping[str, Any] | None
    validation: Mapping[str, Any] | None
    files: tuple[str, ...]


def read(archive: Path, build: Build) -> Chapter:
    """The page of one build. Raises RecordError for damaged JSON."""
    here = archive / "derivations" / build.path()
    manifest = _document(here / "manifest.json")
    name = str(manifest["source"]) if manifest else ""
    source = coloured((here / name).read_text(), Path(name).suffix) if name and (here / name).is_file() else ""
    cost = _document(here / "cost.json")
    compiled, validation = (_document(archive / kind / build.path() / f"{file}.json") for kind, file in (("builds", "build"), ("validations", "validation")))
    files = tuple(sorted(p.name for p in here.iterdir())) if here.is_dir() else ()
    derivation = _document(here / "derivation.json")
    return Chapter(build, derivation, cost and cost.get("closed_forms"), manifest, name, source, compiled, validation, files)


def _document(path: Path) -> Any:
    return read_json(path) if path.is_file() else None


def told(document: Mapping[str, Any], *apart: str) -> dict[str, Any]:
    """What a stage's JSON says beyond the build's own names; `apart` is shown elsewhere."""
    return {k: v for k, v in document.items() if k not in (*BUILD_AXES, "schema", *apart) and v not in ("", None, [])}


def checks(validation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each output of each validation case: case, tiles, output, error, bound, ratio, PyTorch's own error, verdict."""
    return [
        {"case": c["case"], "tiles": c["tiles"], "output": e["output"], "error": e["error"], "bound": e["bound"], "error / bound": e["ratio"],
         "PyTorch's own error": e["baseline"], "": "passed" if c["passed"] else c["reason"]}
        for c in validation.get("cases", []) for e in c["errors"] or [dict.fromkeys(("output", "error", "bound", "ratio", "baseline"))]
    ]  # fmt: skip


def shown(value: Any) -> str:
    """A JSON leaf as text; floats with three digits."""
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case _:
            return str(value)


# ------------------------------------------------------------------ formulas


def formula(styles: Mapping[str, str]) -> str:
    """One formula as HTML, once for each notation; the page shows one of them."""
    drawn = mathml(styles.get("mathml", "")) or f'<code class="mathml">{escape(styles.get("moa", ""))}</code>'
    return drawn + "".join(f'<code class="{name}">{escape(styles[name])}</code>' for name, _ in NOTATIONS[1:] if name in styles)


def mathml(markup: str) -> str:
    """`markup` inside a math element, empty where it is not well-formed."""
    level = STRETCHY.sub(r'<mo stretchy="false">\1</mo>', markup)
    whole = f'<math class="mathml" display="block">{level}</math>'
    try:
        ElementTree.fromstring(whole)
    except ElementTree.ParseError:
        return ""
    return whole if markup else ""


def formulas(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Formulas given as lists of lines a notation; line k of each notation is the same formula."""
    count = max((len(v) for v in lines.values()), default=0)
    return [formula({name: v[k] for name, v in lines.items() if k < len(v)}) for k in range(count)]


Steps = list[tuple[str, list[dict[str, Any]]]]
"""By definition, in order: its name, and its steps with `before` and `after` as HTML."""


def steps(document: Mapping[str, Any]) -> tuple[Steps, Steps]:
    """ψ-reduction, and what makes a gradient: nothing where there is none."""
    reduction: dict[str, list[dict[str, Any]]] = {}
    adjoint: dict[str, list[dict[str, Any]]] = {}
    for step in document["steps"]:
        sides = {side: formula(step[side]) for side in ("before", "after")}
        (reduction if is_reduction(step["law"]) else adjoint).setdefault(step["definition"], []).append({**step, **sides})
    return list(reduction.items()), list(adjoint.items())


# ------------------------------------------------------------------ loop nests


def nest(text: str) -> str:
    """A loop nest as HTML."""
    return "\n".join(map(_nest_line, text.splitlines()))


def changes(before: str, after: str) -> str:
    """What a lift made of a loop nest, as HTML: new lines marked, gone lines struck out, a few lines around, the rest left out."""
    old, new = before.splitlines(), after.splitlines()
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT)
    parts = []
    for group in groups:
        lines = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += map(_nest_line, new[j1:j2])
            else:
                lines += [f"<del>{_nest_line(line)}</del>" for line in old[i1:i2]] + [f"<ins>{_nest_line(line)}</ins>" for line in new[j1:j2]]
        parts.append("\n".join(lines))
    return "\n<i>  ⋯</i>\n".join(parts)


def _nest_line(line: str) -> str:
    """The definition that a leaf belongs to, after `#`, is set back."""
    code, mark, name = line.rpartition("    # ")
    return f"{escape(code)}<i>    # {escape(name)}</i>" if mark else escape(line)


def lifts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every lift with its loop nest as HTML, changes marked against the one before."""
    out, before = [], document["naive"]["onf"]
    for lift in document["lifts"]:
        after = edited(before, lift["edits"])
        out.append({**lift, "html": changes(before, after)})
        before = after
    return out


# ------------------------------------------------------------------ source


def coloured(source: str, suffix: str) -> str:
    """Source text as highlighted HTML lines with numbers; plain where the language is unknown."""
    try:
        lexer = get_lexer_by_name(LEXERS.get(suffix, "text"))
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return str(highlight(source, lexer, HtmlFormatter(nowrap=True)))
