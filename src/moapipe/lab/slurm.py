"""In: this host, and Slurm's controller where there is one. Out: whether this is a login node, on which nothing is measured."""

from __future__ import annotations

import platform
import shutil
import subprocess

from moapipe.errors import LabError

PATIENCE_S = 20.0


def nodes() -> frozenset[str]:
    """Names and host names of every node that the controller knows; empty without Slurm, or when no controller answers.

    Slurm's programs in PATH prove nothing: they are installed on many machines that belong to no cluster.
    """
    if shutil.which("sinfo") is None:
        return frozenset()
    try:
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%N %n"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(done.stdout.split()) if done.returncode == 0 else frozenset()


def measurable(known: frozenset[str] | None = None, host: str = "") -> None:
    """LabError when this host is none of its cluster's nodes. A shell inside an allocation may still be on the login node, so
    SLURM_JOB_ID proves nothing either."""
    known, host = nodes() if known is None else known, host or platform.node()
    if known and not {host, host.partition(".")[0]} & known:
        raise LabError(f"{host} is a login node (a Slurm controller answers, and this host is none of its {len(known)} nodes): nothing is measured here",
                       hint="submit it: `snakemake --profile anvil` or delta; or start `srun --exclusive … --pty bash` and measure there")
