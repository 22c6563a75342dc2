"""In: the cases of a point. Out: the memory that is free for their buffers, and a folder for their inputs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moapipe.lab.plan import Entry

SHM = Path("/dev/shm")


def free_bytes() -> float:
    """Four fifths of the memory that is free."""
    with Path("/proc/meminfo").open() as lines:
        free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return 0.8 * free


def memory_folder(entries: Sequence[Entry], manifest: Mapping[str, Any]) -> str | None:
    """A folder in memory for the inputs, when they are small against it; otherwise the usual place for temporary files."""
    need = max((x.elements(manifest) * 8 for x in entries), default=0)
    roomy = SHM.is_dir() and os.access(SHM, os.W_OK) and shutil.disk_usage(SHM).free > 4 * need
    return str(SHM) if roomy else None
