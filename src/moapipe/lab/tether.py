"""In: a process that works for another. Out: it ends when the other does, however that ends, so that nothing burns CPUs for nobody;
who else works in a repository, and what to do about the lock that a killed run leaves there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

RUN = "MOAPIPE_RUN"
"""Environment variable with the process id of the Snakemake that starts the jobs."""
PR_SET_PDEATHSIG = 1
KILLS = (signal.SIGKILL, signal.SIGTERM)
"""Signals that come from outside: from a user, or because the memory ran out. They say nothing about whom they end."""


def to_parent() -> None:
    """This process is killed as soon as its parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def to_run(environment: Mapping[str, str]) -> None:
    """This process gets SIGTERM as soon as the run that started it has ended; nothing happens where none did. A shell stands between
    the two, and it stays when the run is killed: so the run itself is waited for, which costs nothing."""
    run = environment.get(RUN, "")
    if run.isdigit() and int(run) in _ancestors():
        with contextlib.suppress(OSError):  # it has just ended, or the kernel is too old to tell
            threading.Thread(target=_follow, args=(os.pidfd_open(int(run)),), daemon=True).start()


def _follow(run: int) -> None:
    waiting = select.poll()
    waiting.register(run, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _ancestors() -> Iterator[int]:
    process = os.getppid()
    while process:
        yield process
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def living(folder: Path) -> tuple[int, ...]:
    """Process ids of the other runs that work in `folder`, on this machine."""
    return tuple(int(p.name) for p in sorted(Path("/proc").glob("[0-9]*")) if int(p.name) != os.getpid() and _runs(p, folder))


def _runs(process: Path, folder: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        named = any(w.rpartition(b"/")[2] == b"snakemake" for w in words[:2]) or (b"-m", b"snakemake") in pairwise(words)
        return named and not {b"--unlock", b"-n", b"--dry-run"} & set(words) and (process / "cwd").samefile(folder)
    except OSError:  # it has ended, or is another user's
        return False


def locked(folder: Path) -> bool:
    """Whether a run holds Snakemake's lock of `folder`, or died with it."""
    return any((folder / ".snakemake" / "locks").glob("*"))


def advice(folder: Path) -> str:
    """What to do about the lock."""
    if others := living(folder):
        return f"moapipe: another run works in this folder (process {', '.join(map(str, others))})\n  hint: wait for it, or stop it with Ctrl-C where it was started"
    return ("moapipe: a run holds this folder's lock, and none works here on this machine: it was killed, or it works on another machine\n"
            "  hint: if it was killed: make unlock, then the same command again; nothing that was finished is lost")
