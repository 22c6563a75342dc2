"""In: Snakemake's command line and its events. Out: where to start when a cluster's profile is not found; with `--logger moapipe`,
how much of a run is left.

Snakemake loads its logger plugins before it looks for profiles, and where it finds none it says neither which folder it should have
been started in nor what is in the way. So that is looked at here, when this module is loaded.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from logging import LogRecord
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

ROOT = Path(__file__).resolve().parents[2]
PROFILE = re.compile(r"(profile|config)(\.v\d+\+)?\.yaml")


def asked(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The profiles that a command line names, or the environment."""
    named = False
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == "--profile" or word.startswith("--profile="):
            named = True
            yield word.partition("=")[2] or following
    if not named and "SNAKEMAKE_PROFILE" in environment:
        yield environment["SNAKEMAKE_PROFILE"]


def holds_profile(place: Path) -> bool:
    """Whether Snakemake finds a profile at this path: the path of one, or a folder with one."""
    return place.is_file() or (place.is_dir() and any(PROFILE.fullmatch(f.name) for f in place.iterdir()))


def advice(name: str, here: Path, root: Path, elsewhere: Sequence[Path]) -> str:
    """Where to start for profile `name` of the repository `root`, from folder `here`; empty when Snakemake finds it, here or in the
    user's and the site's folders, or when it is none of ours."""
    if not holds_profile(root / "profiles" / name):
        return ""
    if holds_profile(here / name) or (not (here / name).exists() and any(holds_profile(p / name) for p in elsewhere)):
        return ""
    blocked = f"{here / name} is in the way: it holds no profile, and Snakemake looks no further" if (here / name).exists() else f"{here} has no {name}"
    mend = f"move it away (git checkout {name} brings the link back)" if here.samefile(root) else f"cd {root} && snakemake --profile {name} …"
    return (f"moapipe: the profile {name} is not found: {blocked}\n  hint: {mend}\n  or, from anywhere: "
            f"snakemake --directory {root} --snakefile {root}/Snakefile --profile {root}/profiles/{name} …")


def folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where Snakemake looks after the working directory."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return tuple(Path(p) / "snakemake" for p in (home, *environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")))


class LogHandler(LogHandlerBase):
    """After every job: how many are done, and how long the rest takes at the pace so far."""

    def __post_init__(self) -> None:
        self.begun = time.monotonic()

    def emit(self, record: LogRecord) -> None:
        if getattr(record, "event", None) == LogEvent.PROGRESS:
            done, total = record.done, record.total  # type: ignore[attr-defined]
            left = (time.monotonic() - self.begun) / max(1, done) * (total - done)
            print(f"{done} of {total} jobs are done, about {left / 60:.0f} min left at this pace", file=sys.stderr, flush=True)

    writes_to_stream = False
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False


for found in filter(None, (advice(name, Path.cwd(), ROOT, folders(os.environ)) for name in asked(sys.argv, os.environ))):
    print(found, file=sys.stderr)
