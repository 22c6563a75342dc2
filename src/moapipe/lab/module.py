"""In: the environment modules that a machine's file names, and its compilers' versions. Out: this process started anew with the
modules loaded and the versions checked, or one clear message.

A module that does not load is silent in many set-ups: the shell goes on, with the system's compiler. So every name is looked up in
LOADEDMODULES afterwards, and the compiler is asked for its version.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from moapipe.errors import LabError
from moapipe.lab import build as building
from moapipe.lab.experiment import Compiler, MachineFile

MARK = "MOAPIPE_MODULES"    # what is loaded already
SCRIPT = r"""
for init in "" "${LMOD_PKG:-}/init/bash" "${MODULESHOME:-}/init/bash" /etc/profile.d/{lmod,z00_lmod,modules}.sh /usr/share/{lmod/lmod,modules}/init/bash; do
    type module >/dev/null 2>&1 && break
    [ -r "$init" ] && . "$init"
done
type module >/dev/null 2>&1 || { echo "there is no module command" >&2; exit 1; }
module reset >/dev/null 2>&1 || module purge >&2
for name in "$@"; do module load "$name" >&2; done
env -0
"""


def loaded(names: Sequence[str]) -> dict[str, str]:
    """The environment with the modules loaded in this order, after a reset to what the site gives everybody. LabError names the one
    that is missing, with the module system's own words."""
    done = subprocess.run(["bash", "-c", SCRIPT, "modules", *names], capture_output=True, text=True, check=False)
    rows = (row.partition("=") for row in done.stdout.split("\0") if "=" in row)
    found = {name: value for name, _, value in rows}
    here = found.get("LOADEDMODULES", "").split(":")
    missing = [n for n in names if not any(h == n or h.startswith(f"{n}/") for h in here)]
    if done.returncode or missing:
        said = "\n    ".join(done.stderr.strip().splitlines()[-6:])
        raise LabError(f"modules not loaded: {', '.join(missing or names)}" + (f"\n    {said}" if said else ""),
                       hint=f"`module spider {(missing or list(names))[0]}` finds the site's name for it; it stands in the machine's file, `modules`")
    return {**found, MARK: " ".join(names)}


def enter(machine: MachineFile, name: str, targets: Sequence[str]) -> None:
    """Return in a process that has the modules which the targets' compilers need, and compilers of the versions that the machine's file
    asks for. The process is started anew for it: a loader reads its paths once. LabError as `loaded`, or for another version."""
    rows = {t: machine.compilers[t] for t in targets if t in machine.compilers}  # type: ignore[index]
    names = next((r.modules for r in rows.values() if r.modules), machine.modules)
    if names and os.environ.get(MARK) != " ".join(names):
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, loaded(names))
    for target, row in rows.items():
        if row.version:
            building.find(machine, target, name)
        if found := another(row):
            raise LabError(found, where=f"config/machines/{name}.yaml: compilers.{target}",
                           hint=f"modules loaded: {' '.join(names) or 'none'}; the version stands beside the command in the machine's file")


def another(row: Compiler) -> str:
    """What is wrong with a compiler's version, `expected gcc 11.2.0, found …`; empty when it is the one that the machine's file names."""
    if not row.version or re.search(rf"(?<![\d.]){re.escape(row.version)}(?!\d)", said := building.version(row.command)):
        return ""
    return f"expected {row.command} {row.version}, found {said}"
