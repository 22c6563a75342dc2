"""In: on its standard input, pickled: a library with its manifest, then tasks. Out: on its standard output, a pickled reply to each.

The candidate kernel runs here, in a process of its own, so that a fault or a hang is one clear message in the parent. Buffers are
guarded: NaN everywhere at first, canaries around, a protected page behind.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError, MachineError, MoapipeError
from moapipe.lab import gpu, tether
from moapipe.lab.buffer import PATTERNS, Guarded, guarded
from moapipe.lab.library import WORK, becoming, function, held, shapes, work_elements

LIMIT_S = 60.0  # a task that takes longer hangs: tasks are small
TURNS = 60  # looks at the worker while LIMIT_S passes
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SUBNORMAL = {"f32": np.float32(1e-42), "f64": np.float64(1e-320)}


@dataclass(frozen=True)
class Task:
    """One call: flat inputs in the manifest's order, the sizes, and every number of threads to call it with."""

    inputs: tuple[NDArray[Any], ...]
    sizes: Mapping[str, int]
    threads: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """Outputs of the first call, and what was wrong, as sentences."""

    outputs: Mapping[str, NDArray[Any]]
    faults: tuple[str, ...]


class Worker:
    """The parent's end: `with Worker(library, manifest) as w: w.run(task)`."""

    def __init__(self, library: Path, manifest: Mapping[str, Any], limit_s: float = LIMIT_S) -> None:
        self.start, self.limit_s = (str(library), dict(manifest)), limit_s

    def __enter__(self) -> Worker:
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_DYNAMIC": "false"}
        command = [sys.executable, "-c", "from moapipe.lab.worker import serve; serve()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._send(self.start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def run(self, task: Task) -> Reply:
        """LabError when the kernel ends the process, hangs, or cannot be loaded; MachineError when the process was killed."""
        hung = threading.Event()
        try:
            with self._guarded(hung):
                self._send(task)
                assert self.process.stdout is not None
                reply = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as e:
            raise self._death(hung.is_set()) from e
        if isinstance(reply, LabError):
            raise reply
        assert isinstance(reply, Reply)
        return reply

    @contextmanager
    def _guarded(self, hung: threading.Event) -> Iterator[None]:
        """A worker that hangs in here is ended, and that is noted."""
        answered = threading.Event()
        guard = threading.Thread(target=self._guard, args=(answered, hung))
        guard.start()
        try:
            yield
        finally:
            answered.set()
            guard.join()

    def _guard(self, answered: threading.Event, hung: threading.Event) -> None:
        """End a worker that has worked on its task for the limit, or has slept through as many turns. The clock does not count: it goes
        on while others have the processors, and while this process and its worker are both stopped."""
        begin = last = self._used_s()
        asleep = 0
        while not answered.wait(self.limit_s / TURNS):
            used = self._used_s()
            asleep = 0 if used > last else asleep + 1
            last = used
            if used - begin > self.limit_s or asleep >= TURNS:
                hung.set()
                self.process.kill()
                return

    def _used_s(self) -> float:
        """Processor time of all of the worker's threads, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def _send(self, x: object) -> None:
        assert self.process.stdin is not None
        pickle.dump(x, self.process.stdin, protocol=5)
        self.process.stdin.flush()

    def _death(self, hung: bool) -> MoapipeError:
        code = self.process.wait()
        if hung:
            return LabError(f"the kernel hangs: no answer within {self.limit_s:g} s of its own time")
        if -code in tether.KILLS:
            return MachineError(f"the kernel's process was killed ({signal.Signals(-code).name})", hint="try again; with more memory or fewer jobs at once (CORES=1) if the memory ran out")
        if code < 0:
            name = signal.Signals(-code).name
            what = " (it reads or writes outside its buffers)" if name in ("SIGSEGV", "SIGBUS") else ""
            return LabError(f"the kernel ended its process by {name}{what}")
        return LabError(f"the kernel's process ended with status {code}")


# ------------------------------------------------------------------ the worker's end


def serve() -> None:
    """Answer tasks until the input ends. What the kernel prints goes to standard error."""
    tether.to_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    library, manifest = pickle.load(sys.stdin.buffer)
    try:
        load = gpu.function if "launches" in manifest else function
        call = load(Path(library), manifest)
    except LabError as e:
        _answer(answers, e)
        return
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _answer(answers, _perform(call, manifest, task))
        except LabError as e:       # a launch that fails
            _answer(answers, e)


def _answer(answers: Any, x: object) -> None:
    pickle.dump(x, answers, protocol=5)
    answers.flush()


def _perform(call: Any, manifest: Mapping[str, Any], task: Task) -> Reply:
    first: dict[str, NDArray[Any]] = {}
    faults: list[str] = []
    for threads in task.threads:
        outputs, seen = _once(call, manifest, task, threads)
        faults += [f"{s} ({threads} threads)" for s in seen]
        for name, value in outputs.items():
            known = first.setdefault(name, value)
            if known.tobytes() != value.tobytes():
                differ = int(np.count_nonzero(np.not_equal(*(v.view(f"u{v.itemsize}") for v in (known, value)))))
                faults.append(f"{differ} elements of {name} differ between {task.threads[0]} and {threads} threads")
        if faults:
            break
    return Reply(first, tuple(faults))


def _once(call: Any, manifest: Mapping[str, Any], task: Task, threads: int) -> tuple[dict[str, NDArray[Any]], list[str]]:
    dtypes = held(manifest)
    names = [a["name"] for a in (*manifest["inputs"], *manifest["outputs"])]
    counts = [x.size for x in task.inputs] + [prod(s) for s in shapes(manifest, "outputs", task.sizes).values()]
    buffers = [guarded(n, dtypes[name]) for name, n in zip(names, counts, strict=True)]
    work = guarded(work_elements(manifest, task.sizes, threads), dtypes[WORK])
    for b, x in zip(buffers, task.inputs, strict=False):
        b.data[:] = x
    updated = becoming(manifest)
    before = {k: b.data.tobytes() for k, b in enumerate(buffers[: len(task.inputs)]) if k not in updated}
    call([b.data for b in buffers], work.data, [task.sizes[s] for s in manifest["sizes"]], threads)
    faults = _faults(dict(zip(names, buffers, strict=True)), work, len(task.inputs), before)
    if SUBNORMAL[dtypes[WORK]] * SUBNORMAL[dtypes[WORK]].dtype.type(1) == 0:
        faults.append("the process's floating-point mode was changed: subnormal numbers vanish")
    made = updated | {k: names[k] for k in range(len(task.inputs), len(names))}
    return {n: buffers[k].data.copy() for k, n in made.items()}, faults


def _faults(buffers: Mapping[str, Guarded], work: Guarded, inputs: int, before: Mapping[int, bytes]) -> list[str]:
    out = [f"{name}: {said}" for name, b in {**buffers, "workspace": work}.items() if (said := b.trespassed())]
    for k, (name, b) in enumerate(buffers.items()):
        if k in before and b.data.tobytes() != before[k]:
            out.append(f"{name}: an input was changed")
    for name, b in list(buffers.items())[inputs:]:
        pattern = PATTERNS[b.dtype]
        if left := int(np.count_nonzero(b.data.view(pattern.dtype) == pattern)):
            out.append(f"{name}: {left} elements were never written")
    return out
