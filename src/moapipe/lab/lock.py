"""In: who wants to measure. Out: the machine to itself: at most one measuring job at a time, whoever started it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab.slurm import measurable

PLACE = Path("/tmp/moapipe-measures.lock")   # the same for all users and jobs of a machine, whatever their TMPDIR
LIMIT_S = 4 * 3600.0
REMIND_S = 60.0
POLL_S = 0.5


@contextlib.contextmanager
def alone(what: str, say: Callable[[str], None] = print, *, place: Path = PLACE, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Hold the machine's lock. Waits with a message while another job measures; LabError after `limit_s` seconds, and at once
    on a login node.

    The operating system frees the lock when its holder dies, however it dies.
    """
    measurable()
    handle = _open(place)
    try:
        _wait(handle, place, say, limit_s)
        with contextlib.suppress(OSError):      # another user's file can be locked, but not written
            place.write_text(f"{what}, process {os.getpid()}\n")
        yield
    finally:
        os.close(handle)


def _open(place: Path) -> int:
    """Existing files are opened for reading: that is enough for a lock, and allowed to every user."""
    try:
        return os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise LabError(f"cannot open the machine's lock: {e.strerror}", where=str(place)) from e
    try:
        handle = os.open(place, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(handle, 0o666)
    except OSError as e:
        raise LabError(f"cannot make the machine's lock: {e.strerror}", where=str(place)) from e
    return handle


def _wait(handle: int, place: Path, say: Callable[[str], None], limit_s: float) -> None:
    begin = said = time.monotonic()
    first = True
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            now = time.monotonic()
        if now - begin > limit_s:
            raise LabError(f"another job has measured for more than {limit_s:.0f} s: {_holder(place)}", where=str(place),
                           hint="wait for it, or end it; the lock is freed when it ends")
        if first or now - said > REMIND_S:
            say(f"waiting for the machine: {_holder(place)} measures")
            first, said = False, now
        time.sleep(min(POLL_S, limit_s))


def _holder(place: Path) -> str:
    try:
        return place.read_text().strip() or "another job"
    except OSError:
        return "another job"
