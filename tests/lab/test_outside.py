"""What the machine does to a job (a full disk, a process that is killed) is no result: nothing is written down, and the same command tries again."""

import os
import signal
from pathlib import Path

import pytest
from tests.lab.test_bench import GROUP, Repository, outcomes, went_through

from moapipe.errors import MachineError
from moapipe.lab import bench as benching
from moapipe.lab import build as building
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.file import write_json, write_text
from moapipe.lab.place import built, derived, root
from moapipe.lab.record import Canary
from moapipe.lab.worker import Task, Worker

ROW = Build("rmsnorm", "forward", "row", "c", "avx2", "f64")
COMPILERS = {
    "the disk is full": ("echo 'kernel.c:9: fatal error: error writing to kernel.s: No space left on device' >&2; exit 1", "cannot write: No space left"),
    "its program is killed": ("echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1", "was killed"),
    "nvcc's program is killed": ("echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2; exit 1", "was killed"),
    "clang's program is killed": ("echo 'clang: error: unable to execute command: Killed' >&2; exit 1", "was killed"),
    "it is killed": ("kill -9 $$", "was killed"),
    "it is terminated": ("kill $$", "was killed"),
}


@pytest.mark.parametrize("what", COMPILERS)
def test_a_compiler_that_the_machine_failed_is_no_failed_build(what: str, tmp_path: Path) -> None:
    act, says = COMPILERS[what]
    (tmp_path / "kernels").symlink_to(root() / "kernels")
    (tmp_path / "gcc").write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && exec gcc --version\n{act}\n")
    (tmp_path / "gcc").chmod(0o755)
    write_text(tmp_path / "config/machines/local.yaml", f"compilers: {{c: {{command: {tmp_path / 'gcc'}}}}}\n")
    d = derive(ROW, tmp_path)
    write_text(tmp_path / derived(ROW) / d.source.manifest["source"], d.source.text)
    write_json(tmp_path / derived(ROW) / "manifest.json", d.manifest)
    with pytest.raises(MachineError, match=says):
        building.build(ROW, tmp_path)
    assert not list((tmp_path / built(ROW, "local")).iterdir())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_judges_no_kernel(how: signal.Signals) -> None:
    with Worker(Path("none.so"), {}) as worker:
        os.kill(worker.process.pid, how)
        with pytest.raises(MachineError, match=how.name):
            worker.run(Task((), {}, (1,)))


def test_a_participant_that_was_killed_is_measured_again_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path)
    monkeypatch.setattr(benching, "alone", lambda *_: benching.nullcontext())
    monkeypatch.setattr(benching.canary, "send", lambda *_: (Canary(), 0.0))
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "valid")
    repository.build("killed")
    e, said = repository.experiment(variants=["killed"], n=(40, 60), box=0.15), []
    first = outcomes(benching.bench(e, GROUP, said.append))
    assert first["killed", "n=60", 1] == ("crashed", "the measuring process ended by SIGKILL") and went_through(first["killed", "n=40", 1][0])
    said.clear()
    assert outcomes(benching.bench(e, GROUP, said.append)) == first
    assert any("n=60" in line for line in said) and not any("n=40" in line or "stands" in line for line in said)
