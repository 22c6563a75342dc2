"""In: published.yaml, beside this file. Out: what the papers and their published measurements say, as checked records."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moapipe.lab.document import Strict, choose, load

FILE = Path(__file__).with_suffix(".yaml")


class Pass(Strict):
    """One call: a kernel and a form of it. `gradients`: with the backward pass in the same call, for these inputs, derived for it."""

    kernel: str
    form: str
    gradients: tuple[str, ...] = ()


class Claim(Strict):
    """A published closed form. `text` as printed, `claim` as an index expression in B, N and feature sizes, in elements;
    `letters` write the kernel's sizes in those; `also` are other passes, each by itself, whose form it may be instead. `note`: what is known of a form that does not come out."""

    name: str
    text: str
    claim: str
    passes: tuple[Pass, ...]
    also: tuple[Pass, ...] = ()
    letters: dict[str, str]
    source: str
    note: str = ""


class Device(Strict):
    """The processor that the figures were measured on, as `loops.lockstep.Device` takes it."""

    name: str
    cache_bytes: int
    parts: int
    sector_bytes: int
    blocks: int


Quantity = Literal["updates", "written", "read", "moved", "cold"]


class Figure(Strict):
    """A published measurement: of which build at which sizes, what was counted (`quantity`: a row of QUANTITIES; `launch`: only that
    of one definition, or for `cold` the definitions of one launch, which needs no variant), what the papers predicted and what was measured. It is held if our prediction is `within` that share of it
    (0: equal), or, without, if our bounds contain it. With `over` it is the ratio of this figure to another one, of the same name."""

    name: str
    kernel: str
    form: str
    variant: str = ""
    at: dict[str, int]
    quantity: Quantity
    launch: str | tuple[str, ...] = ""
    over: str = ""
    published: float | None = None
    measured: float
    within: float | None = None
    dtype: Literal["f32", "f64"] = "f64"
    job: int
    note: str = ""


class Published(Strict):
    """The whole file."""

    sources: dict[str, str]
    claims: tuple[Claim, ...]
    device: Device
    figures: tuple[Figure, ...]


def read(path: Path = FILE) -> Published:
    """The published figures. ConfigError: a key that nobody reads, or a source or figure that is not listed."""
    found = load(Published, path, path.name)
    for row in found.claims:
        choose(row.source, list(found.sources), "source", f"{path.name}: {row.name}")
    names = [f.name for f in found.figures]
    for figure in found.figures:
        if figure.over:
            choose(figure.over, names, "figure", f"{path.name}: {figure.name}")
    return found
