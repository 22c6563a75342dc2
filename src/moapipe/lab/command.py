"""In: a case that is to be measured. Out: the command of the process that measures it, by the driver's protocol: the driver, a process for
PyTorch, or one that has a GPU.
"""

from __future__ import annotations

import sys

from moapipe.lab.experiment import BUILD_AXES, Build, Experiment, Group
from moapipe.lab.place import derived
from moapipe.lab.plan import Entry
from moapipe.lab.program import program

PYTHON = (sys.executable, "-m")


def command(x: Entry, e: Experiment, group: Group) -> list[str]:
    """Programs of ours are compiled when they are not there. LabError without a compiler for them."""
    machine, device, threads = e.file.machine, e.machine.device, str(x.arranged.asked.threads)
    if x.library is None and x.backend is None:
        return [*PYTHON, "moapipe.lab.baseline", str(program("probe.so", e.root, machine)), str(e.root), group.kernel, group.form, threads]
    if x.library is not None and not x.library.device:
        return [str(program("driver", e.root, machine)), str(x.library.path), x.library.manifest["symbol"], x.library.manifest["dtype"], threads]
    assert device is not None, "what runs on a device is planned where there is one"
    if x.library is None:
        return [*PYTHON, "moapipe.lab.gpu", "torch", str(e.root), group.kernel, group.form, x.backend or "-", str(device.cache_bytes)]
    manifest = e.root / derived(Build(*(x.values[a] for a in BUILD_AXES))) / "manifest.json"
    return [*PYTHON, "moapipe.lab.gpu", "kernel", str(x.library.path), str(manifest), str(device.cache_bytes)]
