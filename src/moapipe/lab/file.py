"""In: the content of a file. Out: that file, whole or not at all.

A file is written beside its place, forced to the disk, and renamed over it, so that a reader, a crash or a full disk
never sees half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from moapipe.errors import RecordError


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` at once; on failure the old file is untouched and nothing is left beside it.

    Raises RecordError when the disk is full, the place cannot be written, or what is there is no plain file: a rename would take a
    device's place.
    """
    if os.path.exists(path) and not os.path.isfile(path):     # unlike those of Path, they are false where one may not look
        raise RecordError("cannot write: what is there is no file", where=str(path), hint="name a file, or a place where there is nothing yet")
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
        _sync_directory(path.parent)
    except OSError as e:
        raise RecordError(f"cannot write: {e.strerror or e}", where=str(path),
                          hint="make room, or let the folder be a link to where there is some; no half-written file is left") from e
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _umask() -> int:
    """The process's file mode mask (reading it means setting it: there is no other call)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_directory(folder: Path) -> None:
    """Make a rename survive a power cut; file systems that cannot sync a folder are left to themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """UTF-8 text, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, document: Any) -> None:
    """Sorted, indented JSON with a final newline: same document, same bytes. NaN is refused (JSON has none)."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The document in `path`. Raises RecordError when it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except OSError as e:
        raise RecordError(f"cannot read: {e.strerror or e}", where=str(path), hint="run the stage that makes it") from e
    except ValueError as e:
        raise RecordError(f"is damaged: {e}", where=str(path), hint="delete it and run its stage again") from e


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
