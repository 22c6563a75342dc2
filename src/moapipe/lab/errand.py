"""In: programs with manifests and arrays, a module that can run one. Out: their outputs and what was said, from a process of its own.

A kernel gone wild may take its process along, runtimes read their environment once, and some fall silent after so many reports, of
whichever program: so errands run elsewhere, each in a process that knows of no other. The module is called as `python -m MODULE NAME
FOLDER COUNT` and hands its function to `serve`, which forks for every errand: what all of them import is imported once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError
from moapipe.lab import tether

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
    """Every errand in a process of its own, one after the other; one that ends its process answers with its words. LabError when time is
    up, or when the module itself does not start."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for k, e in enumerate(errands):
            document = {"program": e.program, "manifest": dict(e.manifest), "sizes": dict(e.sizes), "threads": e.threads}
            (folder / f"{k}.json").write_text(json.dumps(document))
            np.savez(folder / f"{k}.in.npz", **e.inputs)
        _start([sys.executable, "-m", module, name, str(folder), str(len(errands))], environment, timeout, name)
        return [_answer(folder, k) for k in range(len(errands))]


def _start(command: Sequence[str], environment: Mapping[str, str], timeout: float, name: str) -> None:
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise LabError(f"no answer within {timeout:g} s", where=name, hint="ask for smaller sizes") from e
    if done.returncode:
        raise LabError(f"ended with {done.returncode}: {done.stderr.strip()[-2000:]}", where=name)


def _answer(folder: Path, k: int) -> Answer:
    report, words = (_told(folder / f"{k}.{part}") for part in ("log", "words"))
    made = folder / f"{k}.out.npz"
    if not made.is_file():
        return Answer({}, f"{report}\n{words}".strip())
    with np.load(made) as found:
        return Answer(dict(found), report)


def _told(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def serve(perform: Perform) -> None:
    """The process's side: a child for every errand."""
    tether.to_parent()
    name, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    for k in range(count):
        child = get_context("fork").Process(target=_errand, args=(perform, name, folder, k))
        child.start()
        child.join()
        if child.exitcode:
            said = _told(folder / f"{k}.said")
            (folder / f"{k}.words").write_text(f"ended with {child.exitcode}: {said[-2000:]}")


def _errand(perform: Perform, name: str, folder: Path, k: int) -> None:
    """The child's side. Outputs appear whole; what the child says goes into a file."""
    tether.to_parent()
    said = os.open(folder / f"{k}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ[LOG] = str(folder / f"{k}.log")
    d = json.loads((folder / f"{k}.json").read_text())
    with np.load(folder / f"{k}.in.npz") as inputs:
        made = perform(name, Errand(d["program"], d["manifest"], dict(inputs), d["sizes"], d["threads"]))
    np.savez(folder / f"{k}.part.npz", **made)
    os.replace(folder / f"{k}.part.npz", folder / f"{k}.out.npz")
