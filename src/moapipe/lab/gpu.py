"""In: device binaries with their manifests, arrays. Out: their outputs, or the driver's protocol: calls on a GPU timed by its own events.

cupy is imported by functions that need a device, in processes of their own, and nowhere else: a machine without one loses nothing.
What a process measures: a call is all its launches, between two events of one stream; before each call the last-level cache is
overwritten, so every call starts cold. Memory comes from a pool that is filled before anything is timed.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from moapipe.errors import LabError
from moapipe.lab import tether
from moapipe.lab.buffer import DTYPES, PATTERNS, tensor
from moapipe.lab.launch import Launch, launches
from moapipe.lab.library import WORK, Function, becoming, held, shapes, work_elements
from moapipe.machine.device import Device

WIDEST = 16         # bytes of the widest access, which buffers begin at multiples of
GUARD = 32          # elements before and behind a buffer that nobody may write
FLUSH = 4           # times the last-level cache that is overwritten before each call
ASKED_S = 60.0
PROBE = "import json, sys; from moapipe.lab.gpu import found; json.dump(found(), sys.stdout)"
BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}
"""PyTorch's own ways to attention on a GPU (torch.nn.attention.SDPBackend); `math` is its unfused one."""
INSTALL = "pip install -e '.[gpu]' -c constraints.txt, on a machine with an NVIDIA driver"


# ------------------------------------------------------------------ is there one


def found() -> dict[str, str]:
    """The device of this process: `name`, `arch` as nvcc names it, driver and cupy; or `missing`, in words."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as e:
        return {"missing": f"cupy cannot be imported ({e})"}
    try:
        runtime = cupy.cuda.runtime
        if runtime.getDeviceCount() == 0:
            return {"missing": "no GPU"}
        name = runtime.getDeviceProperties(0)["name"]
        return {"name": name.decode() if isinstance(name, bytes) else str(name), "arch": f"sm_{cupy.cuda.Device(0).compute_capability}",
                "driver": str(runtime.driverGetVersion()), "cupy": cupy.__version__}
    except Exception as e:      # whatever the driver says is an answer
        return {"missing": f"no GPU answers: {str(e).splitlines()[0] if str(e) else type(e).__name__}"}


@lru_cache
def here() -> Mapping[str, str]:
    """`found` of a process of its own: a broken driver takes nobody along."""
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, timeout=ASKED_S)
    except subprocess.TimeoutExpired:
        return {"missing": f"the driver does not answer within {ASKED_S:g} s"}
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"missing": (done.stderr.strip().splitlines() or ["the driver ends the process"])[-1]}


def absent(device: Device | None) -> str:
    """Why this machine is not the one whose file describes `device`; empty when it is."""
    if device is None:
        return "the machine's file describes no device"
    got = here()
    if "missing" in got:
        return f"{got['missing']}; {INSTALL}"
    return "" if got["arch"] == device.arch else f"the GPU here is {got['name']} ({got['arch']}), the machine's file describes {device.name} ({device.arch})"


# ------------------------------------------------------------------ calling


@dataclass
class Module:
    """A device binary and what its manifest says, loaded in this process."""

    cupy: Any
    manifest: Mapping[str, Any]
    module: Any
    functions: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, binary: Path, manifest: Mapping[str, Any]) -> Module:
        """LabError when there is no device, or it does not take the binary."""
        if "missing" in (got := found()):
            raise LabError(got["missing"], where=binary.name, hint=INSTALL)
        cupy = importlib.import_module("cupy")
        try:
            return cls(cupy, manifest, cupy.RawModule(path=str(binary)))
        except Exception as e:
            raise LabError(f"the device does not take it: {e}", where=binary.name, hint=f"it is {got['arch']}") from e

    def buffer(self, name: str, x: Any) -> Any:
        """The array of the device that stands for `name`: a tensor of another library as it is (DLPack), anything else copied. So is a
        tensor that begins where a text may not fetch several elements as one; LabError for one that a call writes to, for its owner
        would not see it."""
        if not hasattr(x, "__dlpack__") or isinstance(x, np.ndarray):
            return self.cupy.asarray(x)
        lent = self.cupy.from_dlpack(x)
        if not (beyond := lent.__cuda_array_interface__["data"][0] % WIDEST):
            return lent
        if name in {a["name"] for a in self.manifest["inputs"] if not a.get("becomes")}:
            return lent.copy()
        raise LabError(f"{name} begins {beyond} bytes behind a multiple of {WIDEST}, and the call writes to it", where=f"{self.manifest['kernel']} on the device",
                       hint="give a tensor of its own, not a view into another one: elements are fetched several at a time")

    def start(self, plan: Sequence[Launch], buffers: Mapping[str, Any]) -> None:
        """All launches, in stream order; does not wait."""
        for l in plan:
            if l.function not in self.functions:
                self.functions[l.function] = self.module.get_function(l.function)
            self.functions[l.function]((l.blocks,), (l.block,), (*(buffers[b] for b in l.buffers), *map(np.int64, l.integers)))


def function(binary: Path, manifest: Mapping[str, Any]) -> Function:
    """`f(buffers, work, sizes, threads)` as `library.function`: host arrays are copied to the device and back. LabError when a launch
    fails or an element beside a buffer was written."""
    module = Module.load(binary, manifest)
    names, dtypes = [a["name"] for a in (*manifest["inputs"], *manifest["outputs"])], held(manifest)
    written = {*becoming(manifest), *range(len(manifest["inputs"]), len(names))}

    def call(buffers: Sequence[Any], work: Any, sizes: Sequence[int], threads: int) -> None:
        guarded = [_guarded(module.cupy, b, dtypes[n]) for n, b in zip((*names, WORK), (*buffers, work), strict=True)]
        at = dict(zip(manifest["sizes"], sizes, strict=True))
        try:
            module.start(launches(manifest, at, threads), {n: g[GUARD : g.size - GUARD] for n, g in zip((*names, WORK), guarded, strict=True)})
            back = [module.cupy.asnumpy(g) for g in guarded]
        except Exception as e:
            raise LabError(f"the launch fails: {str(e).splitlines()[0] if str(e) else type(e).__name__}", where=binary.name) from e
        for k, (name, bits) in enumerate(zip((*names, WORK), back, strict=True)):
            if (np.concatenate([bits[:GUARD], bits[bits.size - GUARD :]]) != PATTERNS[dtypes[name]]).any():
                raise LabError(f"{name}: elements beside its buffer were written", where=binary.name)
            if k in written:
                buffers[k][:] = bits[GUARD : bits.size - GUARD].view(buffers[k].dtype)

    return call


def _guarded(cupy: Any, x: Any, dtype: str) -> Any:
    """As bit patterns, for a device takes addresses, and cupy need not know the dtype."""
    host = np.full(x.size + 2 * GUARD, PATTERNS[dtype])
    host[GUARD : host.size - GUARD].view(DTYPES[dtype])[:] = x
    return cupy.asarray(host)


# ------------------------------------------------------------------ the driver's protocol


@dataclass
class Served:
    """What a measuring process is told to call, and what it overwrites before each call."""

    prepare: Callable[[Served, list[str], int], str]
    call: Callable[[], Any] = lambda: None
    flush: Callable[[], Any] = lambda: None
    event: Callable[[], Any] = lambda: None
    elapsed: Callable[[Any, Any], float] = lambda a, b: 0.0

    def seconds(self, calls: int) -> float:
        """All calls, each from a cold cache, by the device's own events."""
        total = 0.0
        for _ in range(calls):
            self.flush()
            first, last = self.event(), self.event()
            first.record()
            self.call()
            last.record()
            last.synchronize()
            total += self.elapsed(first, last)
        return total


def serve(served: Served, lines: Any, answers: Any) -> None:
    """Obey commands until the input ends; whatever is refused is an answer and ends the process."""
    for line in lines:
        try:
            print(f"done {time.process_time():.9f} {_obeyed(served, line.split(), lines, answers)}".rstrip(), file=answers, flush=True)
        except Exception as e:
            print(f"error {type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}", file=answers, flush=True)
            return


def _obeyed(served: Served, words: Sequence[str], lines: Any, answers: Any) -> str:
    match words:
        case ["memory", *_]:
            return ""
        case ["placed"]:
            return "1 1 -"          # memory nodes are no matter of a device
        case ["prepare", *counts]:
            return served.prepare(served, [next(lines) for _ in range(_rows(counts))], int(counts[-1]))
        case ["warm", seconds]:
            begin, times = time.monotonic(), list[float]()
            while len(times) < 2 or time.monotonic() - begin < float(seconds):
                times.append(served.seconds(1))
            return f"{len(times)} {min(times):.9g}"
        case ["turn", calls, samples]:
            served.seconds(1)
            for _ in range(int(samples)):
                begin, cpu = time.monotonic(), time.process_time()
                taken = served.seconds(int(calls))
                print(f"sample {begin:.9f} {taken:.9g} {time.process_time() - cpu:.9g} 0 0 0 1 1 0 - - 1", file=answers)
            return ""
        case _:
            raise ValueError(f"unknown command: {' '.join(words)}")


def _rows(counts: Sequence[str]) -> int:
    """Lines behind `prepare INPUTS [OUTPUTS WORK SIZES THREADS]`; THREADS is the number of GPU threads."""
    n = list(map(int, counts))
    return n[0] if len(n) == 1 else n[0] + n[1] + n[3]


def kernel(binary: Path, manifest: Mapping[str, Any], cache_bytes: int) -> Served:
    """A process that measures a device binary."""
    module = Module.load(binary, manifest)
    cupy, bits = module.cupy, {n: PATTERNS[dtype].dtype for n, dtype in held(manifest).items()}
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)

    def prepare(served: Served, rows: list[str], threads: int) -> str:
        given = [r.split(" ", 2) for r in rows]
        sizes = dict(zip(manifest["sizes"], [int(r[1]) for r in given if r[0] == "size"], strict=True))
        rows = zip([a["name"] for a in manifest["inputs"]], [r for r in given if r[0] == "input"], strict=True)
        buffers = {n: module.buffer(n, np.fromfile(r[2].rstrip("\n"), bits[n], int(r[1]))) for n, r in rows}
        buffers |= {n: cupy.empty(prod(s), bits[n]) for n, s in shapes(manifest, "outputs", sizes).items()}
        buffers[WORK] = cupy.empty(work_elements(manifest, sizes, threads), bits[WORK])
        plan = launches(manifest, sizes, threads)
        served.call = lambda: module.start(plan, buffers)
        return ""

    return Served(prepare, flush=_flusher(cupy, cache_bytes), event=cupy.cuda.Event, elapsed=lambda a, b: float(cupy.cuda.get_elapsed_time(a, b)) * 1e-3)


def _flusher(cupy: Any, cache_bytes: int) -> Callable[[], Any]:
    rubbish = cupy.empty(FLUSH * cache_bytes, np.uint8)
    return lambda: rubbish.fill(0)


def torch_call(root: Path, name: str, form: str, backend: str, cache_bytes: int) -> Served:
    """A process that measures PyTorch's own call on the device, with one of its BACKENDS or (empty) the one that it chooses."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise LabError("this PyTorch finds no GPU", hint="install one that is built for CUDA")
    torch.backends.cuda.matmul.allow_tf32 = False       # f32 means f32, for ours and for theirs
    torch.set_grad_enabled(False)
    file = importlib.import_module("moapipe.lab.kernel").load(name, root)
    rubbish = torch.empty(FLUSH * cache_bytes, dtype=torch.uint8, device="cuda")

    def prepare(served: Served, rows: list[str], threads: int) -> str:
        tensors = {}
        for r in rows:
            _, array, dtype, shape, path = r.rstrip("\n").split(" ", 4)
            extents = [int(s) for s in shape.split("x")] if shape != "-" else []
            tensors[array] = tensor(torch, np.fromfile(path, DTYPES[dtype], prod(extents)).reshape(extents), dtype).cuda()
        called, call = file.call("baseline", torch, tensors, form)
        served.call = _with_backend(torch, backend, call) if backend else call
        served.call()
        return str(called)

    return Served(prepare, flush=lambda: rubbish.fill_(0), event=lambda: torch.cuda.Event(enable_timing=True), elapsed=lambda a, b: float(a.elapsed_time(b)) * 1e-3)


def _with_backend(torch: Any, backend: str, call: Callable[[], Any]) -> Callable[[], Any]:
    attention = torch.nn.attention

    def through() -> Any:
        with attention.sdpa_kernel([getattr(attention.SDPBackend, BACKENDS[backend])]):
            return call()

    return through


def main(arguments: Sequence[str]) -> None:
    """gpu kernel BINARY MANIFEST CACHE_BYTES, or gpu torch ROOT KERNEL FORM BACKEND|- CACHE_BYTES"""
    tether.to_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr
    try:
        match list(arguments):
            case ["kernel", binary, manifest, cache]:
                served = kernel(Path(binary), json.loads(Path(manifest).read_text()), int(cache))
            case ["torch", root, name, form, backend, cache]:
                served = torch_call(Path(root), name, form, backend.replace("-", ""), int(cache))
            case _:
                raise LabError(f"unknown arguments: {' '.join(arguments)}", hint=str(main.__doc__))
    except LabError as e:
        print(f"error {e.message}", file=answers)
        return
    print(f"ready {time.process_time():.9f} {json.dumps(found())}", file=answers)
    serve(served, iter(sys.stdin), answers)


if __name__ == "__main__":
    main(sys.argv[1:])
