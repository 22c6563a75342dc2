"""The machine's lock: one at a time, waits with a message, ends with a clear error, is free when its holder dies."""

import os
import signal
import subprocess
import sys

import pytest

from moapipe.errors import LabError
from moapipe.lab.lock import alone

HOLD = """
import sys, time
from pathlib import Path
from moapipe.lab.lock import alone
with alone("another bench", place=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_job_waits_with_a_message_and_gives_up_with_a_reason(holder, tmp_path):
    said = []
    with pytest.raises(LabError, match=r"another bench, process \d+"), alone("mine", said.append, place=tmp_path / "lock", limit_s=0.1):
        pytest.fail("two jobs measure at once")
    assert len(said) == 1
    assert said[0].startswith(f"waiting for the machine: another bench, process {holder.pid}")


def test_a_killed_holder_frees_the_machine(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with alone("mine", place=tmp_path / "lock", limit_s=5):
        assert (tmp_path / "lock").read_text().startswith("mine, process")


def test_a_job_that_failed_frees_the_machine(tmp_path):
    with pytest.raises(ValueError, match="x"), alone("first", place=tmp_path / "lock"):
        raise ValueError("x")
    with alone("second", place=tmp_path / "lock", limit_s=0.1):
        pass


def test_a_place_that_cannot_be_is_a_clear_error(tmp_path):
    with pytest.raises(LabError, match="cannot make the machine's lock"), alone("mine", place=tmp_path / "none" / "lock"):
        pass


def test_children_do_not_inherit_the_lock(tmp_path):
    with alone("mine", place=tmp_path / "lock"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with alone("mine again", place=tmp_path / "lock", limit_s=0.1):
            pass
    finally:
        child.kill()
        child.wait()
