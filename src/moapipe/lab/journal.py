"""In: what a measuring job has finished. Out: journal.json beside its record, from which a stopped job goes on, a falsely failed one
finds all there, and one on a noisy machine measures again only the points that noise spoilt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

from moapipe.lab.file import read_json, write_json
from moapipe.lab.record import Canary, Sample


@dataclass
class Journal:
    """`launches`: {"launch/arrangement": {entry's index: {samples, status, reason, canaries}}}; `sights`, written before a launch's first
    sample: {"launch/arrangement": {entry's index: [drift, seconds]}}; `key` digests all that they depend on."""

    path: Path
    key: str
    launches: dict[str, dict[str, Any]] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    sights: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, key: str) -> Journal:
        """What is there of the same key; empty otherwise. RecordError when it is damaged."""
        found = read_json(path) if path.is_file() else {}
        return cls(path, key, found["launches"], found["libraries"], found["sights"]) if found.get("key") == key else cls(path, key)

    def write(self) -> None:
        write_json(self.path, {"key": self.key, "launches": self.launches, "libraries": self.libraries, "sights": self.sights})

    def lacks(self, launch: str, entries: Collection[int]) -> bool:
        """Whether a launch has nothing of these entries."""
        return not any(str(i) in self.launches.get(launch, {}) for i in entries)

    def forget(self, entries: Collection[int]) -> None:
        """Take these entries out of every launch: they are measured again."""
        for rows in self.launches.values():
            for i in entries:
                rows.pop(str(i), None)


def plain(x: Sample | Canary) -> list[Any]:
    """A sample's or a canary's values as JSON, which knows no NaN."""
    return [None if isinstance(v, float) and isnan(v) else v for v in asdict(x).values()]


def known(values: Sequence[Any]) -> list[Any]:
    """The values that `plain` was given."""
    return [float("nan") if v is None else v for v in values]
