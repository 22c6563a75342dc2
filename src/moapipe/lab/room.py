"""In: the cases of a point. Out: the memory that is free for their buffers, and a folder for their inputs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moapipe.lab.plan import Entry

SHM = Path("/dev/shm")
INPUTS = "moapipe-inputs-"


def free_bytes() -> float:
    """Four fifths of the memory that is free."""
    with Path("/proc/meminfo").open() as lines:
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return 0.8 * free


@contextlib.contextmanager
def inputs_folder(entries: Sequence[Entry], manifest: Mapping[str, Any]) -> Iterator[Path]:
    """A folder for the inputs of these cases: in memory, when they are small against it; otherwise where temporary files go.

    It goes with the context. What killed jobs left is taken away first, for it fills the memory: a folder in use is locked, and the
    operating system frees a lock when its holder dies, however it dies.
    """
    need = max((x.elements(manifest) * 8 for x in entries), default=0)
    roomy = SHM.is_dir() and os.access(SHM, os.W_OK) and shutil.disk_usage(SHM).free > 4 * need
    for left in (p for place in {SHM, Path(tempfile.gettempdir())} for p in place.glob(f"{INPUTS}*")):
        _clear(left)
    made = Path(tempfile.mkdtemp(prefix="moapipe-new-", dir=SHM if roomy else None))
    handle = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        made = made.rename(made.with_name(made.name.replace("moapipe-new-", INPUTS)))   # nobody sees it without its lock
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def _clear(left: Path) -> None:
    """Take a folder away unless its holder lives, or another user made it."""
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
        finally:
            os.close(handle)
