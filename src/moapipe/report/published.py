"""In: published.yaml, beside this file. Out: what the papers and their published measurements say, as checked records."""

from __future__ import annotations

from pathlib import Path

from moapipe.lab.document import Strict, choose, load

FILE = Path(__file__).with_suffix(".yaml")


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


def read(path: Path = FILE) -> Published:
    """The published figures. ConfigError: a key that nobody reads, or a source that is not listed."""
    found = load(Published, path, path.name)
    for row in found.claims:
        choose(row.source, list(found.sources), "source", f"{path.name}: {row.name}")
    return found
