"""In: a command that speaks the driver's protocol (lab/native/driver.c). Out: a process that measures when told to, and sleeps else.

Children get the CPU mask that this process started with (loading an OpenMP runtime may have shrunk it since), an environment
from which every OpenMP and BLAS setting is scrubbed before ours are set, and they end with this process, however it ends (each asks for that signal when it starts,
and reads the end of its input).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from moapipe.errors import LabError
from moapipe.lab.tether import KILLS
from moapipe.machine.topology import MASK

SCRUBBED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "SLURM_CPU_BIND")
BINDING_FAILED = re.compile(r"Number of places reduced|Invalid value for|OMP: Warning|libnuma: Warning|Affinity not supported")
STARTING_S = 120.0


@dataclass(frozen=True)
class Trouble(Exception):
    """A participant that cannot go on: its status for the record, and one sentence."""

    status: str
    reason: str


def leaked(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that would reach into a measurement; they are taken away and written down."""
    return {k: v for k, v in sorted(environment.items()) if k.startswith(SCRUBBED)}


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the settings that would reach into a measurement."""
    return {k: v for k, v in environment.items() if not k.startswith(SCRUBBED)}


@contextlib.contextmanager
def masked(cpus: Sequence[int]) -> Iterator[None]:
    """This process on the given CPUs for a moment: a child inherits the mask before it loads anything that reads it."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


class Participant:
    """A measuring process. `cpu_seconds` is its CPU time so far, as it last said; it stays when the process ends."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], cpus: Sequence[int]) -> None:
        self.name, self.cpu_seconds = name, 0.0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by end()
        self._text = b""
        with masked(cpus):
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                env={**scrubbed(os.environ), **environment}, start_new_session=True,
            )

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Stop the process and everything it started; nothing happens when it has ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()

    def ready(self, limit_s: float = STARTING_S) -> list[str]:
        """Words of the first line behind `ready CPU`."""
        return self._last(list(self._lines(time.monotonic() + limit_s)))

    def ask(self, command: str, limit_s: float) -> tuple[list[list[str]], list[str]]:
        """Send a command; gives the words of each `sample` line and those behind `done CPU`.

        Raises Trouble: `timed_out` after `limit_s` seconds, `crashed` when the process ended, `refused` when it says `error`.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        found = list(self._lines(time.monotonic() + limit_s))
        return [line.split()[1:] for line in found[:-1] if line.startswith("sample ")], self._last(found)

    def _last(self, found: Sequence[str]) -> list[str]:
        words = found[-1].split()
        self.cpu_seconds = float(words[1])
        return words[2:]

    def _lines(self, deadline: float) -> Iterator[str]:
        """Lines up to the one that ends an answer."""
        while True:
            while b"\n" not in self._text:
                self._read(deadline)
            line, _, self._text = self._text.partition(b"\n")
            text = line.decode(errors="replace")
            if text.startswith("error "):
                raise Trouble("refused", text.removeprefix("error "))
            yield text
            if text.startswith(("done ", "ready ")):
                return

    def _read(self, deadline: float) -> None:
        assert self._process.stdout is not None
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
            self.end()
            raise Trouble("timed_out", "no answer within the time that one call may take")
        got = os.read(self._process.stdout.fileno(), 1 << 16)
        if not got:
            raise self._death()
        self._text += got

    def complaint(self) -> str:
        """What the process wrote to its standard error about binding that failed; empty when it did not."""
        return next((line.strip() for line in self._stderr() if BINDING_FAILED.search(line)), "")

    def _stderr(self) -> list[str]:
        self._errors.seek(0)
        return self._errors.read().splitlines()

    def _death(self) -> Trouble:
        code = self._process.wait()
        said = next((line.strip() for line in reversed(self._stderr()) if line.strip()), "")
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Trouble("crashed", f"the measuring process {how}{': ' + said if said else ''}")


def killed(reason: str) -> bool:
    """Whether a participant crashed because it was killed from outside."""
    return any(f"process ended by {k.name}" in reason for k in KILLS)


def inside(cpus: Sequence[int]) -> tuple[int, ...]:
    """The given CPUs that this process was started with. LabError when there is none."""
    mine = tuple(c for c in cpus if c in MASK)
    if not mine:
        raise LabError(f"none of the CPUs {', '.join(map(str, cpus))} may be used", hint="look at taskset and the control group's CPU set")
    return mine


def path_of(folder: Path, name: str) -> Path:
    """Where an input's raw elements lie for the participants of one case."""
    return folder / f"{name}.bin"
