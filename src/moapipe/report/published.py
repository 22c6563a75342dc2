"""In: config/published.yaml. Out: what the papers and their published measurements say, as checked records."""

from __future__ import annotations

from pathlib import Path

from moapipe.lab.document import Strict, choose, load

FILE = Path("config/published.yaml")


class Pass(Strict):
    """One call: a kernel and a form of it."""

    kernel: str
    form: str


class Claim(Strict):
    """A published closed form. `text` as printed, `claim` as an index expression in B, N and feature sizes, in elements;
    `letters` write the kernel's sizes in those."""

    name: str
    text: str
    claim: str
    passes: tuple[Pass, ...]
    letters: dict[str, str]
    source: str


class Published(Strict):
    """The whole file."""

    sources: dict[str, str]
    claims: tuple[Claim, ...]


def read(root: Path) -> Published:
    """The published figures. ConfigError: a key that nobody reads, or a source that is not listed."""
    found = load(Published, root / FILE, FILE.as_posix())
    for row in found.claims:
        choose(row.source, list(found.sources), "source", f"{FILE.as_posix()}: {row.name}")
    return found
