"""In: a dataset's netCDF bytes. Out: the same with a digest behind them, and back: the decoder crashes or hangs on damaged ones."""

from __future__ import annotations

import hashlib

from moapipe.errors import RecordError

AGAIN = "delete it and run its stage again"
HDF5 = b"\x89HDF\r\n\x1a\n"
SEAL = b"\nmoapipe sha256 "                    # with 64 hex digits behind the netCDF data, where HDF5 never looks
SEAL_BYTES = len(SEAL) + 64


def _end_of_file(content: bytes | memoryview) -> int:
    """The length that an HDF5 file of superblock 2 or 3 says it has; what follows is padding. 0 when it is no such file."""
    header = bytes(content[:36])
    return int.from_bytes(header[28:36], "little") if header[:8] == HDF5 and header[8:9] in (b"\2", b"\3") else 0


def sealed(encoded: bytes | memoryview) -> bytes:
    """What goes to disk."""
    content = bytes(encoded[: _end_of_file(encoded)])
    return content + SEAL + hashlib.sha256(content).hexdigest().encode()


def unsealed(content: bytes, where: str) -> bytes:
    """The netCDF bytes, their length and digest checked. Files of others have no seal. RecordError."""
    if not content.startswith(HDF5[: len(content)]):
        raise RecordError("is no netCDF4 file, or its beginning is damaged", where=where, hint=f"name a record.nc or a dataset.nc; if it is one, {AGAIN}")
    end = _end_of_file(content)
    if not end or len(content) < end:
        raise RecordError(f"is cut short: expected {end or 'a netCDF4 header'} bytes, found {len(content)}", where=where, hint=AGAIN)
    data, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    if not seal.startswith(SEAL) and len(content) == end:
        return content
    if seal != SEAL + hashlib.sha256(data).hexdigest().encode():
        raise RecordError("is damaged: its bytes do not have the digest that they were written with", where=where, hint=AGAIN)
    return data
