"""The folder for inputs: it goes with its job, however that ends, and a job that lives keeps its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moapipe.lab import room

HOLD = """
import sys, tempfile, time
from pathlib import Path
from moapipe.lab import room
room.SHM = Path(sys.argv[1])
with room.inputs_folder([], {}) as folder:
    (folder / "x.bin").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the memory and for the place of temporary files."""
    monkeypatch.setattr(room, "SHM", tmp_path)
    monkeypatch.setattr(room.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(memory: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(memory)], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(memory)})
    process.folder = Path(process.stdout.readline().strip())
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_folder_goes_with_its_job(memory: Path) -> None:
    with pytest.raises(ValueError, match="x"), room.inputs_folder([], {}) as folder:
        assert folder.is_dir() and folder.parent == memory
        raise ValueError("x")
    assert not list(memory.iterdir())


def test_a_job_that_lives_keeps_its_folder_and_a_killed_ones_goes(holder, memory: Path) -> None:
    with room.inputs_folder([], {}) as folder:
        assert folder != holder.folder and (holder.folder / "x.bin").is_file()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert holder.folder.is_dir()
    with room.inputs_folder([], {}) as folder:
        assert list(memory.iterdir()) == [folder]
