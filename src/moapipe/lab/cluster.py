"""In: the `cluster` block of config/machines/<name>.yaml. Out: what Slurm is asked for a job of each kind, and what that is charged.

Only what cannot be probed from a login node stands there: partitions, accounts, limits, charges. How many cores and memory nodes
a compute node really has is probed inside the job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from moapipe.errors import ConfigError
from moapipe.lab.document import Strict, choose

Kind = Literal["prepare", "measure", "measure_gpu"]
MEASURING = ("calibrate", "bench")  # stages that want a node to themselves
UNSET = "account-not-set"


class Partition(Strict):
    """One partition, a node of it: cores, GPUs, memory that one job may ask for (MB), and the longest job in hours. A job is
    charged `factor` service units an hour for each of its GPUs where the node has some, for each of its cores elsewhere."""

    cores: PositiveInt
    memory_mb: PositiveInt
    hours: PositiveFloat
    gpus: int = Field(default=0, ge=0)
    factor: PositiveFloat = 1.0


class Request(Strict):
    """What a job of a kind asks for: one memory flag (a core's or the job's, in MB), `minutes` (of a measuring job: what it needs
    beyond its time boxes), a whole node or not, and further sbatch flags that the site wants."""

    partition: str
    account: str
    cores: PositiveInt
    minutes: PositiveInt
    memory_mb_per_core: int = Field(default=0, ge=0)
    memory_mb: int = Field(default=0, ge=0)
    exclusive: bool = False
    constraint: str = ""
    flags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_memory(self) -> Request:
        if bool(self.memory_mb) == bool(self.memory_mb_per_core):
            raise ValueError("set one of memory_mb and memory_mb_per_core: Slurm refuses or ignores two, and none means a gigabyte")
        return self


class Scratch(Strict):
    """Where results belong on this cluster: the variable that names the place, and after how many days it is emptied (0: never)."""

    variable: str
    days: int = Field(default=0, ge=0)


class Cluster(Strict):
    """known_by   a variable that the site sets on every node, and its value here
    accounts   whose time is used -> the variable in which the user names the account; `balance` is the command that lists them
    """

    known_by: dict[str, str] = Field(min_length=1)
    accounts: dict[str, str] = Field(min_length=1)
    balance: str
    scratch: Scratch
    partitions: dict[str, Partition] = Field(min_length=1)
    requests: dict[Kind, Request] = Field(min_length=2)

    def check(self, where: str) -> None:
        """ConfigError for a request that names no partition or account, or asks for more than its partition gives."""
        for kind, r in self.requests.items():
            here = f"{where}: cluster.requests.{kind}"
            p = self.partitions[choose(r.partition, list(self.partitions), "partition", here)]
            choose(r.account, list(self.accounts), "account", here)
            memory = r.memory_mb or r.memory_mb_per_core * r.cores
            if r.cores > p.cores or memory > p.memory_mb or r.minutes > 60 * p.hours:
                raise ConfigError(f"{r.cores} cores, {memory} MB, {r.minutes} min are more than a job in {r.partition} may have", where=here,
                                  hint=f"at most {p.cores} cores, {p.memory_mb} MB, {p.hours:g} h")

    def elsewhere(self, environment: Mapping[str, str]) -> str:
        """The name that this machine gives itself when it is not this cluster's; empty when it is, or does not say."""
        names = {k: environment[k] for k in self.known_by if k in environment}
        return "" if any(self.known_by[k] == v for k, v in names.items()) else " ".join(f"{k}={v}" for k, v in names.items())


@dataclass(frozen=True)
class Ask:
    """What one job asks for, with its minutes."""

    cluster: Cluster
    kind: Kind
    minutes: int

    @property
    def request(self) -> Request:
        return self.cluster.requests[self.kind]

    @property
    def partition(self) -> Partition:
        return self.cluster.partitions[self.request.partition]

    @property
    def account(self) -> str:
        """The user's account, or UNSET."""
        return os.environ.get(self.cluster.accounts[self.request.account]) or UNSET

    @property
    def node_hours(self) -> float:
        """At most, as a share of a node; a job that has a node to itself takes all of it."""
        r, p = self.request, self.partition
        return self.minutes / 60 * (1.0 if r.exclusive else r.cores / p.cores)

    @property
    def units(self) -> float:
        """Service units, at most."""
        return self.node_hours * (self.partition.gpus or self.partition.cores) * self.partition.factor

    def resources(self) -> dict[str, str | int]:
        """The same as the resources that Snakemake's Slurm executor reads, so that what is submitted is what the preview counts. Memory for a core is text, because Snakemake adds numbers
        up when it packs jobs into one; the other memory resource is 0, or the executor's default would come beside it."""
        r = self.request
        memory: dict[str, str | int] = {"mem_mb": r.memory_mb, "mem_mb_per_cpu": 0} if r.memory_mb else {"mem_mb": 0, "mem_mb_per_cpu": str(r.memory_mb_per_core)}
        more = {"constraint": r.constraint} if r.constraint else {}
        flags = (*(["--exclusive"] if r.exclusive else []), *r.flags)
        extra = {"slurm_extra": " ".join(flags)} if flags else {}
        return {"slurm_account": self.account, "slurm_partition": r.partition, "runtime": self.minutes, "cpus_per_task": r.cores, **memory, **more, **extra}
