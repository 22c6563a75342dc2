"""In: a case, the inputs of its kernel file. Out: files of raw elements, and the command with which a participant makes its buffers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moapipe.lab import kernel as kernels
from moapipe.lab.buffer import DTYPES
from moapipe.lab.experiment import Experiment, Group, Point
from moapipe.lab.file import write_bytes
from moapipe.lab.library import held, shapes, work_elements
from moapipe.lab.plan import Entry
from moapipe.lab.variable import YARDSTICK


def preparation(x: Entry, manifest: Mapping[str, Any], folder: Path) -> str:
    """The `prepare` command of a kernel or of PyTorch."""
    own = x.library.manifest if x.library else manifest
    inputs, outputs = (shapes(own, kind, x.point.sizes) for kind in ("inputs", "outputs"))
    if x.library is None:
        rows = [f"input {name} {held(own)[name]} {'x'.join(map(str, shape)) or '-'} {_file(folder, name)}" for name, shape in inputs.items()]
        return "\n".join([f"prepare {len(inputs)}", *rows])
    sizes = [x.point.sizes[s] for s in own["sizes"]]
    work = work_elements(own, x.point.sizes, x.gpu_threads or x.point.threads)
    return "\n".join([
        f"prepare {len(inputs)} {len(outputs)} {work} {len(sizes)}" + f" {x.gpu_threads}" * bool(x.gpu_threads),
        *(f"input {int(np.prod(shape))} {'-' if x.values['target'] == YARDSTICK else _file(folder, name)}" for name, shape in inputs.items()),
        *(f"output {int(np.prod(shape))}" for shape in outputs.values()),
        *(f"size {v}" for v in sizes),
    ])


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.bin"


def write_inputs(e: Experiment, group: Group, point: Point, manifest: Mapping[str, Any], folder: Path) -> None:
    """The kernel file's own inputs as the group's buffers hold them, the same for all participants and launches."""
    kernel = kernels.load(group.kernel, e.root)
    seed = random.Random(f"{e.file.seed} {point.label}").getrandbits(64)
    made = kernel.call("inputs", np.random.default_rng(seed), dict(point.sizes), group.form)
    for a in manifest["inputs"]:
        write_bytes(_file(folder, a["name"]), np.ascontiguousarray(made[a["name"]], DTYPES[held(manifest)[a["name"]]]).tobytes())
