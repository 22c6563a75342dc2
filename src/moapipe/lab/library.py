"""In: a built library and its manifest, arrays. Out: the function of the ABI, called on them (docs/architecture.md, frozen text 2)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.algebra.index import evaluate, parse
from moapipe.errors import LabError
from moapipe.lab.buffer import aligned
from moapipe.targets.isa import dtype_named

WORK = "work"
Function = Callable[[Sequence[NDArray[Any]], NDArray[Any], Sequence[int], int], None]


def function(library: Path, manifest: Mapping[str, Any]) -> Function:
    """`f(buffers, work, sizes, threads)`: buffers are inputs, then outputs, flat and 64-byte aligned. LabError when it cannot load."""
    try:
        f = getattr(ctypes.CDLL(str(library)), manifest["symbol"])
    except (OSError, AttributeError) as e:
        raise LabError(f"cannot load: {e}", where=library.name, hint="build it again on this machine") from e
    count = len(manifest["inputs"]) + len(manifest["outputs"]) + 1
    f.argtypes = (*(ctypes.c_void_p,) * count, *(ctypes.c_int64,) * (len(manifest["sizes"]) + 1))
    f.restype = None

    def call(buffers: Sequence[NDArray[Any]], work: NDArray[Any], sizes: Sequence[int], threads: int) -> None:
        f(*(b.ctypes.data for b in (*buffers, work)), *sizes, threads)

    return call


def shapes(manifest: Mapping[str, Any], kind: str, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Numbers for the shapes of the manifest's `inputs` or `outputs`."""
    return {a["name"]: tuple(evaluate(parse(s), sizes) for s in a["shape"]) for a in manifest[kind]}


def held(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The dtype in which each buffer holds its elements, by name: inputs, outputs, and `work`, which holds values."""
    own = dtype_named(manifest["dtype"]).arithmetic
    return {a["name"]: a.get("dtype", own) for a in (*manifest["inputs"], *manifest["outputs"])} | {WORK: own}


def narrow(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Inputs and outputs, and what inputs become, whose elements are narrower than values."""
    return frozenset(n for a in (*manifest["inputs"], *manifest["outputs"]) if "dtype" in a for n in (a["name"], a.get("becomes", a["name"])))


def becoming(manifest: Mapping[str, Any]) -> dict[int, str]:
    """Place of an input that is updated in place -> name of the output that it is afterwards."""
    return {k: a["becomes"] for k, a in enumerate(manifest["inputs"]) if a.get("becomes")}


def work_elements(manifest: Mapping[str, Any], sizes: Mapping[str, int], threads: int) -> int:
    """Elements of the workspace buffer."""
    return evaluate(parse(manifest["workspace"]["elements"]), {**sizes, "threads": threads})


def filled(manifest: Mapping[str, Any], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Flat aligned copies of the inputs, by name, each in the dtype that its buffer holds."""
    dtypes, out = held(manifest), {}
    for name in (a["name"] for a in manifest["inputs"]):
        value = np.asarray(inputs[name])
        out[name] = aligned(value.size, dtypes[name])
        out[name][:] = value.ravel()
    return out


def run(library: Path, manifest: Mapping[str, Any], inputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], threads: int) -> dict[str, NDArray[Any]]:
    """Call the kernel on copies of `inputs` (shapes as in the manifest) and return its outputs in the build's dtype, among them
    the inputs that it updates in place, by the names of what they become."""
    buffers, dtypes = filled(manifest, inputs), held(manifest)
    made = {n: (aligned(prod(s), dtypes[n]), s) for n, s in shapes(manifest, "outputs", sizes).items()}
    work = aligned(work_elements(manifest, sizes, threads), dtypes[WORK])
    function(library, manifest)([*buffers.values(), *(b for b, _ in made.values())], work, [sizes[s] for s in manifest["sizes"]], threads)
    given = list(shapes(manifest, "inputs", sizes).values())
    updated = {new: (buffers[manifest["inputs"][k]["name"]], given[k]) for k, new in becoming(manifest).items()}
    return {n: b.reshape(s) for n, (b, s) in {**updated, **made}.items()}
