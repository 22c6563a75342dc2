"""In: the driver's commands on standard input. Out: PyTorch's own call of a kernel file, timed by the driver's protocol.

Runs in a process of its own, bound like a kernel's, looked at by the same probe. Inputs are PyTorch's own tensors, copied in
by its own threads. One line is JSON more than the driver's: `ready CPU {library versions}`; `input` lines name their array and shape.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from moapipe.lab import kernel as kernels
from moapipe.lab import tether
from moapipe.lab.buffer import DTYPES, tensor


@dataclass
class Served:
    """The kernel file's baseline and what it runs on; `call` is empty until the first `prepare`."""

    torch: Any
    probe: Any
    file: kernels.KernelFile
    form: str
    threads: int
    touchers: int                               # of the input tensors' pages
    tensors: tuple[Any, ...] = ()
    call: Callable[[], Any] | None = None


def main(arguments: Sequence[str]) -> None:
    """baseline PROBE ROOT KERNEL FORM THREADS"""
    probe_path, root, name, form, threads = arguments
    tether.to_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr
    import torch  # noqa: PLC0415  the process's settings must stand before it loads

    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    probe = ctypes.CDLL(probe_path)
    probe.probe_after.argtypes = (ctypes.c_double,) * 3
    probe.probe_memory.argtypes = (ctypes.c_char_p,) * 2
    probe.probe_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    probe.probe_placed.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    probe.probe_settle.restype = ctypes.c_double
    served = Served(torch, probe, kernels.load(name, Path(root)), form, int(threads), int(threads))
    print(f"ready {time.process_time():.9f} {json.dumps(about(torch))}", file=answers)
    for line in sys.stdin:
        try:
            print(f"done {_obeyed(served, line.split(), line.strip())}", file=answers)
        except Exception as e:      # whatever PyTorch refuses is an answer, not a traceback
            print(f"error {type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}", file=answers)
            return


def _obeyed(served: Served, words: Sequence[str], line: str) -> str:
    """What stands behind `done` when a command was carried out: the process's CPU seconds, and what the command gives."""
    match words:
        case ["memory", policy, touchers, nodes]:
            served.touchers = 1 if touchers == "one" else served.threads
            if served.probe.probe_memory(policy.encode(), nodes.encode()):
                raise ValueError(f"the kernel refuses memory by {policy} on nodes {nodes}")
            return f"{time.process_time():.9f}"
        case ["placed"]:
            for tensor in served.tensors:
                served.probe.probe_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size())
            text = ctypes.create_string_buffer(1 << 13)
            count = served.probe.probe_placed(text, len(text))
            return f"{time.process_time():.9f} {count} -1 {text.value.decode()}"
        case ["prepare", count, *_]:
            name = prepare(served, int(count))
            return f"{time.process_time():.9f} {name}"
        case ["warm", seconds]:
            calls, fastest = warm(served, float(seconds))
            return f"{served.probe.probe_settle():.9f} {calls} {fastest:.9g}"
        case ["turn", calls, samples]:
            turn(served, int(calls), int(samples))
            return f"{served.probe.probe_settle():.9f}"
        case _:
            raise ValueError(f"unknown command: {line}")


def about(torch: Any) -> dict[str, str]:
    """What PyTorch says of itself: version, BLAS, threads, vector capability."""
    shown = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", shown)
    library = next((line.strip(" -") for line in shown.splitlines() if "Math Kernel Library" in line), "")
    return {"torch": torch.__version__, "blas": blas[1] if blas else "unknown", "blas_library": library, "threads": str(torch.get_num_threads()),
            "capability": torch.backends.cpu.get_cpu_capability(), "numpy": np.__version__}


def prepare(served: Served, inputs: int) -> str:
    """Read the `input` lines, make the tensors and the call; gives the call's name. Outputs and sizes are PyTorch's own affair."""
    served.call, served.tensors = None, ()
    served.torch.set_num_threads(served.touchers)
    tensors = {}
    for _ in range(inputs):
        _, name, dtype, shape, path = sys.stdin.readline().rstrip("\n").split(" ", 4)
        extents = [int(s) for s in shape.split("x")] if shape != "-" else []
        raw = tensor(served.torch, np.fromfile(path, DTYPES[dtype], prod(extents)).reshape(extents), dtype)
        tensors[name] = served.torch.empty(extents, dtype=raw.dtype)
        tensors[name].copy_(raw)
    served.tensors = tuple(tensors.values())
    served.torch.set_num_threads(served.threads)
    name, call = served.file.call("baseline", served.torch, tensors, served.form)
    served.call = call
    gc.collect()
    gc.disable()
    return str(name)


def warm(served: Served, seconds: float) -> tuple[int, float]:
    """Call until `seconds` have passed, at least twice; gives the calls and the fastest of them in seconds."""
    assert served.call is not None
    begin, fastest, calls = time.monotonic(), float("inf"), 0
    while calls < 2 or time.monotonic() - begin < seconds:
        t = time.monotonic()
        served.call()
        fastest = min(fastest, time.monotonic() - t)
        calls += 1
    return calls, fastest


def turn(served: Served, calls: int, samples: int) -> None:
    """One call untimed, then `samples` samples of `calls` calls; the probe prints their lines."""
    call, probe, half = served.call, served.probe, calls // 2
    assert call is not None
    call()
    for _ in range(samples):
        probe.probe_before()
        cpu, start, seconds = time.process_time(), time.monotonic(), 0.0
        begin = start
        if half:
            for _ in range(half):
                call()
            seconds = time.monotonic() - begin
            probe.probe_middle()
            begin = time.monotonic()
        for _ in range(calls - half):
            call()
        seconds += time.monotonic() - begin
        probe.probe_after(start, seconds, time.process_time() - cpu)

if __name__ == "__main__":
    main(sys.argv[1:])
