"""In: programs with manifests and arrays, a module that can run one. Out: their outputs and what was said, from a process of its own.

A kernel gone wild may take its process along, and runtimes read their environment once: so errands run elsewhere. The module is
called as `python -m MODULE NAME FOLDER 0 1 2 …` and hands its function to `serve`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError

LOG = "ERRAND_LOG"
"""Environment variable with the file into which a runtime's words about this errand may be written."""


@dataclass(frozen=True, eq=False)
class Errand:
    """A program (a text, or the path of a library), its manifest, inputs by name, sizes, and the number of threads."""

    program: str
    manifest: Mapping[str, Any]
    inputs: Mapping[str, NDArray[Any]]
    sizes: Mapping[str, int]
    threads: int


@dataclass(frozen=True, eq=False)
class Answer:
    """Outputs by name, among them the inputs that are updated in place; what was reported, or why there are no outputs."""

    outputs: Mapping[str, NDArray[Any]]
    report: str


Perform = Callable[[str, Errand], Mapping[str, NDArray[Any]]]


def run(errands: Sequence[Errand], module: str, name: str, environment: Mapping[str, str], timeout: float) -> list[Answer]:
    """Every errand in one process; one that ends the process answers with its words, and the next ones run in another process.
    LabError when time is up."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for k, e in enumerate(errands):
            document = {"program": e.program, "manifest": dict(e.manifest), "sizes": dict(e.sizes), "threads": e.threads}
            (folder / f"{k}.json").write_text(json.dumps(document))
            np.savez(folder / f"{k}.in.npz", **e.inputs)
        words: dict[int, str] = {}
        while left := [k for k in range(len(errands)) if not (folder / f"{k}.out.npz").is_file() and k not in words]:
            said = _process([sys.executable, "-m", module, name, str(folder), *map(str, left)], environment, timeout, name)
            first = next((k for k in left if not (folder / f"{k}.out.npz").is_file()), None)
            words |= {first: said} if first is not None else {}
        return [_answer(folder, k, words.get(k, "")) for k in range(len(errands))]


def _process(command: Sequence[str], environment: Mapping[str, str], timeout: float, name: str) -> str:
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise LabError(f"no answer within {timeout:g} s", where=name, hint="ask for smaller sizes") from e
    return f"ended with {done.returncode}: {done.stderr.strip()[-2000:]}"


def _answer(folder: Path, k: int, words: str) -> Answer:
    log = folder / f"{k}.log"
    report = log.read_text(errors="replace").strip() if log.is_file() else ""
    if words:
        return Answer({}, f"{report}\n{words}".strip())
    with np.load(folder / f"{k}.out.npz") as found:
        return Answer(dict(found), report)


def serve(perform: Perform) -> None:
    """The process's side. Outputs appear whole."""
    name, folder, numbers = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    for k in numbers:
        os.environ[LOG] = str(folder / f"{k}.log")
        d = json.loads((folder / f"{k}.json").read_text())
        with np.load(folder / f"{k}.in.npz") as inputs:
            made = perform(name, Errand(d["program"], d["manifest"], dict(inputs), d["sizes"], d["threads"]))
        np.savez(folder / f"{k}.part.npz", **made)
        os.replace(folder / f"{k}.part.npz", folder / f"{k}.out.npz")
