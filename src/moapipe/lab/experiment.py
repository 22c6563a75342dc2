"""In: config/<experiment>.yaml and config/machines/<machine>.yaml. Out: the frozen lists of builds, groups, cases and refusals.

Build axes (BUILD_AXES) need a text or a binary of their own and are path segments; sizes and threads are run axes, loops
inside one job. The Snakefile imports this module, so nothing heavy is imported here and no kernel file is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from moapipe.errors import ConfigError
from moapipe.lab.cluster import Cluster
from moapipe.lab.document import Strict, choose, load
from moapipe.lab.kernel import TARGETS, KernelFile, TargetName, engine_digest, scan, sizes_at, variant_digest
from moapipe.machine import rate
from moapipe.machine.arrangement import (
    ALL,
    EACH_NODE,
    EACH_NUMA,
    MEMORIES,
    NODE,
    NUMA,
    PLACEMENTS,
    RUNTIMES,
    WAIT_POLICIES,
    Arrangement,
    Sweep,
)
from moapipe.machine.device import Device
from moapipe.machine.rate import Way
from moapipe.machine.topology import native_isa
from moapipe.targets.isa import ARITHMETIC, DTYPES, ISAS
from moapipe.targets.table import takers

BUILD_AXES = ("kernel", "form", "variant", "target", "isa", "dtype")
GROUP_AXES = ("kernel", "form", "dtype")
HOST_TARGETS = ("c", "fortran")
LAUNCHED = ("cuda",)
"""Targets whose device binaries a machine with a device measures (lab/gpu.py)."""
RATES = rate.SCHEMA  # of calibration.json: a machine is calibrated again when predictions divide by something new
PROTOCOL = "4"  # raise when the way of measuring changes: records of two protocols never join, and what was measured is measured again
LARGEST = 1 << 40
"""Above this a size is a slip of the hand, and products of a few of them would not fit 64 bits."""
Size = Annotated[int, Field(ge=0, le=LARGEST)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
DtypeName = Literal["f32", "f64", "bf16"]
Settle = Callable[[Arrangement], Iterable[Arrangement]]


@dataclass(frozen=True, order=True)
class Build:
    """One text and one binary."""

    kernel: str
    form: str
    variant: str
    target: str
    isa: str
    dtype: str

    def path(self) -> str:
        """`kernel/form/variant/target/isa/dtype`: the place of its files below every stage's folder."""
        return "/".join(astuple(self))

    @classmethod
    def of(cls, path: str) -> Build:
        """The build at a path. ConfigError when it has not six segments."""
        parts = path.strip("/").split("/")
        if len(parts) != len(BUILD_AXES):
            raise ConfigError(f"{path!r} names no build", hint=f"a build is {'/'.join(BUILD_AXES)}")
        return cls(*parts)


@dataclass(frozen=True, order=True)
class Group:
    """What one bench job measures in turn: all variants and languages of one kernel, form and dtype, and PyTorch."""

    kernel: str
    form: str
    dtype: str

    def path(self) -> str:
        return "/".join(astuple(self))


@dataclass(frozen=True)
class Point:
    """One set of run axes: `at` holds the size parameters in the kernel's order, `sizes` the kernel's sizes, `arrangement` how threads
    and pages lie."""

    at: Mapping[str, int]
    sizes: Mapping[str, int]
    arrangement: Arrangement

    @property
    def threads(self) -> int:
        return self.arrangement.threads

    @property
    def label(self) -> str:
        """The sizes as text, `B=8 d=64 n=1024`, sorted."""
        return " ".join(f"{k}={v}" for k, v in sorted(self.at.items()))


@dataclass(frozen=True)
class Case:
    """One build at one point; `reason` is empty, or says why the case is refused (it is then recorded, never run)."""

    build: Build
    point: Point
    reason: str = ""


# ------------------------------------------------------------------ the files


class Work(Strict):
    """What an experiment asks of one kernel. Forms and variants that are not named are all that there are; nothing is named twice.

    `at` is a list of grids: each maps size parameters to one value or a list, and stands for all combinations.
    `limits` keeps slow or large variants from large sizes: {variant: {parameter: largest value}}; what lies beyond is refused
    with that reason, in the record. `yardsticks`: what only moves data beside the builds, to say what the memory gives at that
    moment: `read` as many elements as the inputs have, `copy` the largest input, `stream` copy it past the caches.
    """

    forms: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    targets: tuple[TargetName, ...] = Field(default=("c", "fortran"), min_length=1)
    dtypes: tuple[DtypeName, ...] = Field(default=ARITHMETIC, min_length=1)
    at: tuple[dict[str, Size | Sizes], ...] = Field(min_length=1)
    limits: dict[str, dict[str, Size]] = Field(default={})
    yardsticks: tuple[Way, ...] = ()


class ExperimentFile(Strict):
    """config/<name>.yaml. Times in seconds.

    isa        `auto` (what the machine has) or a row of ISAS       machine    config/machines/<name>.yaml
    threads    run axis; `all` is as many as the placement has places here
    placements, memories, wait_policies, runtimes, believed_cpus   the other run axes of machine/arrangement.py; `each_numa` and
               `each_node` stand for every memory node of the machine
    cores, threads_per_core   instead of threads: cores are held, threads are cores × threads_per_core
    nodes      jobs that measure a group, on a cluster each on a node to itself
    launches   least number of processes a case is measured in          samples   least number of samples in each
    time_box_s most time for one case in all launches; sampling also ends when the median's 95 % interval is under `interval`
    baseline   whether PyTorch is measured beside the builds
    """

    about: str = ""
    machine: str = "local"
    isa: str = "auto"
    threads: tuple[PositiveInt | Literal["all"], ...] = Field(default=(1,), min_length=1)
    cores: tuple[PositiveInt, ...] = ()
    threads_per_core: tuple[PositiveFloat, ...] = ()
    placements: tuple[str, ...] = Field(default=("compact",), min_length=1)
    memories: tuple[str, ...] = Field(default=("owner",), min_length=1)
    wait_policies: tuple[str, ...] = Field(default=("short",), min_length=1)
    runtimes: tuple[str, ...] = Field(default=("libgomp",), min_length=1)
    believed_cpus: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    nodes: PositiveInt = 1
    launches: Annotated[int, Field(ge=3)] = 3
    samples: Annotated[int, Field(ge=20)] = 20
    time_box_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    interval: Annotated[float, Field(gt=0, lt=1)] = 0.02
    baseline: bool = True
    seed: int = 0
    kernels: dict[str, Work] = Field(min_length=1)

    def sweep(self) -> Sweep:
        """The run axes beside the sizes."""
        threads = tuple(ALL if t == "all" else int(t) for t in self.threads)
        return Sweep(threads, self.cores, self.threads_per_core, self.placements, self.memories, self.wait_policies, self.runtimes, self.believed_cpus)


class Compiler(Strict):
    """One compiler: `command` is looked up in PATH; `flags` come after the target's own; `package` is what the message names when it
    is missing; `version` is what `--version` must say (empty: anything); `modules` are loaded instead of the machine's."""

    command: str
    flags: tuple[str, ...] = ()
    package: str = ""
    version: str = ""
    modules: tuple[str, ...] = ()


class MachineFile(Strict):
    """config/machines/<name>.yaml: what cannot be probed. `isa` overrides what /proc/cpuinfo says; `modules` are environment
    modules, loaded in this order before anything is compiled or run; `device` is the GPU that jobs for one get; `cluster` is there
    when jobs go through Slurm."""

    about: str = ""
    isa: str = "auto"
    modules: tuple[str, ...] = ()
    compilers: dict[TargetName, Compiler]
    device: Device | None = None
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment with its names resolved; `kernels` are scanned, not run."""

    name: str
    file: ExperimentFile
    machine: MachineFile
    isa: str
    kernels: Mapping[str, KernelFile]
    root: Path

    @property
    def where(self) -> str:
        return f"config/{self.name}.yaml"


# ------------------------------------------------------------------ reading


def read(name: str, root: Path, machine: str = "") -> Experiment:
    """The experiment `config/<name>.yaml` (a path to a YAML file below `root` is its name too), on `machine` when one is named instead
    of its own. ConfigError teaches."""
    name = Path(name).stem
    where = f"config/{name}.yaml"
    file = load(ExperimentFile, root / "config" / f"{name}.yaml", where)
    file = file.model_copy(update={"machine": machine or file.machine})
    on = machine_file(file.machine, root)
    _check_sweep(file, where)
    kernels = {k: scan(k, root) for k in file.kernels}
    for k, work in file.kernels.items():
        _check_work(kernels[k], work, f"{where}: kernels.{k}")
    return Experiment(name, file, on, resolve_isa(file.isa, on, where), kernels, root)


def machine_file(name: str, root: Path) -> MachineFile:
    """config/machines/<name>.yaml. ConfigError: not there, not right, or a cluster whose instruction set would be the login node's."""
    where = f"config/machines/{name}.yaml"
    if not name or Path(name).name != name:
        raise ConfigError(f"{name!r} is no name of a machine", where="config/machines/", hint="one word: that of a file there, without .yaml")
    file = load(MachineFile, root / where, where)
    if file.cluster is not None:
        file.cluster.check(where)
        if file.isa == "auto":
            raise ConfigError("isa: auto on a cluster is the login node's", where=where, hint=f"name that of its compute nodes: {', '.join(ISAS)}")
    return file


def resolve_isa(name: str, machine: MachineFile, where: str = "isa") -> str:
    """`auto` as the machine file's instruction set, or as this processor's; any other name checked against ISAS."""
    if name == "auto":
        name = machine.isa if machine.isa != "auto" else native_isa()
    return choose(name, list(ISAS), "instruction set", where)


def _check_sweep(file: ExperimentFile, where: str) -> None:
    """Names of arrangements; whether a machine has what they ask for is seen on the machine."""
    if bool(file.cores) != bool(file.threads_per_core):
        raise ConfigError("cores and threads_per_core belong together", where=where, hint="name both, or threads alone")
    checks = ((file.placements, PLACEMENTS, (NUMA, EACH_NUMA), "placement"), (file.memories, MEMORIES, (NODE, EACH_NODE), "memory"),
              (file.wait_policies, WAIT_POLICIES, (), "wait policy"), (file.runtimes, RUNTIMES, (), "OpenMP runtime"))
    for asked, known, more, what in checks:
        for name in asked:
            if not (more and name.startswith(more)):
                choose(name, [*known, *more], what, where)


def _check_work(kernel: KernelFile, work: Work, where: str) -> None:
    for key in ("forms", "variants", "targets", "dtypes", "yardsticks"):
        named = getattr(work, key)
        if again := next((x for i, x in enumerate(named) if x in named[:i]), None):
            raise ConfigError(f"{key}: {again} is named twice", where=where, hint="one measurement of a case belongs in a dataset")
    if work.yardsticks and (narrow := [d for d in work.dtypes if d not in ARITHMETIC]):
        raise ConfigError(f"yardsticks move no {narrow[0]}", where=where, hint=f"they move {', '.join(ARITHMETIC)}")
    for form in work.forms:
        choose(form, list(kernel.forms), f"form of {kernel.name}", where)
    for variant in (*work.variants, *work.limits):
        choose(variant, list(kernel.variants), f"variant of {kernel.name}", where)
    for grid in work.at:
        for key in grid:
            choose(key, (*kernel.parameters, *kernel.sizes), f"size parameter of {kernel.name}", where)
        if missing := [p for p, sizes in kernel.parameters.items() if p not in grid and not set(sizes) <= set(grid)]:
            raise ConfigError(f"at: {', '.join(missing)} not set", where=where, hint=f"{kernel.name} needs {', '.join(kernel.parameters)}")
    for limits in work.limits.values():
        for key in limits:
            choose(key, (*kernel.parameters, *kernel.sizes), f"size parameter of {kernel.name}", where)


# ------------------------------------------------------------------ what follows


def groups(e: Experiment) -> tuple[Group, ...]:
    """Every bench group in the order of the file."""
    return tuple(
        Group(k, form, dtype)
        for k, work in e.file.kernels.items()
        for form, dtype in product(work.forms or e.kernels[k].forms, work.dtypes)
    )


def asked(e: Experiment, g: Group) -> Iterator[tuple[Build, str]]:
    """Every build that the experiment asks of a group, with the reason why it is refused (empty: it is built)."""
    kernel, work = e.kernels[g.kernel], e.file.kernels[g.kernel]
    written = kernel.variants_of(g.form)
    for variant, target in product([v for v in work.variants if v in written] if work.variants else written, work.targets):
        build = Build(g.kernel, g.form, variant, target, e.isa, g.dtype)
        named = variant in work.variants
        if target in kernel.variant(variant).targets:
            yield build, _unheld(target, g.dtype) or _unmeasured(target, e.machine)
        elif named:
            yield build, f"{variant} of {g.kernel} is not written for {target}"


def _unheld(target: str, dtype: str) -> str:
    return "" if target in takers(dtype) else f"{target} holds no numbers in {dtype}; {', '.join(takers(dtype))} can"


def _unmeasured(target: str, machine: MachineFile) -> str:
    if target in HOST_TARGETS or (target in LAUNCHED and machine.device is not None):
        return ""
    return f"{target} builds are compiled and emulated, not measured, {'here' if target in LAUNCHED else 'anywhere yet'}: evidence.json says what there is"


def texts(e: Experiment) -> tuple[Build, ...]:
    """Builds of texts for GPUs, whether this machine can run them or not: they are derived, compiled and emulated."""
    return tuple(b for g in groups(e) for b, _ in asked(e, g)
                 if b.target not in HOST_TARGETS and b.target in takers(b.dtype) and b.target in e.kernels[b.kernel].variant(b.variant).targets)


def builds(e: Experiment, group: Group | None = None) -> tuple[Build, ...]:
    """Builds to derive, compile, validate and measure, of one group or of all."""
    return tuple(b for g in ([group] if group else groups(e)) for b, reason in asked(e, g) if not reason)


def points(e: Experiment, kernel: str, settle: Settle | None = None) -> tuple[Point, ...]:
    """Every set of run axes of a kernel: grids in the order of the file, arrangements innermost, repeats dropped. As the file asks for
    them, or as a machine settles them (machine.seating.settled)."""
    file = e.kernels[kernel]
    out: dict[tuple[object, ...], Point] = {}
    for grid in e.file.kernels[kernel].at:
        lists = [v if isinstance(v, tuple) else (v,) for v in grid.values()]
        for values, arrangement in product(product(*lists), arrangements(e, settle)):
            at = dict(sorted(zip(grid, values, strict=True)))
            out.setdefault((*at.items(), arrangement), Point(at, sizes_at(file, at), arrangement))
    return tuple(out.values())


def arrangements(e: Experiment, settle: Settle | None = None) -> tuple[Arrangement, ...]:
    """How threads and pages are asked to lie; settled on a machine where it is known."""
    asked = e.file.sweep().arrangements()
    return asked if settle is None else tuple(dict.fromkeys(s for a in asked for s in settle(a)))


def cases(e: Experiment, group: Group, settle: Settle | None = None) -> tuple[Case, ...]:
    """Every build of a group at every point, refused ones with their reason."""
    limits = e.file.kernels[group.kernel].limits
    return tuple(
        Case(build, point, reason or _beyond(limits.get(build.variant, {}), build, point, e))
        for point in points(e, group.kernel, settle)
        for build, reason in asked(e, group)
    )


def _beyond(limits: Mapping[str, int], build: Build, point: Point, e: Experiment) -> str:
    for key, largest in limits.items():
        value = {**point.sizes, **point.at}.get(key, 0)
        if value > largest:
            return f"{e.name} limits {build.variant} to {key} <= {largest}"
    return ""


def derive_digest(e: Experiment, build: Build) -> str:
    """What reruns of a derivation follow: the meaning of the kernel file, of the variant's block, and of the engine's code."""
    return variant_digest(e.kernels[build.kernel], build.variant) + engine_digest()


def run_digest(e: Experiment, group: Group) -> str:
    """What reruns of a prediction and of a measurement follow: every case of the group with its reason, and how it is sampled."""
    f = e.file
    yardsticks = e.file.kernels[group.kernel].yardsticks
    seen = repr((cases(e, group), f.launches, f.samples, f.time_box_s, f.interval, f.baseline, f.seed, yardsticks))
    return hashlib.sha256(seen.encode()).hexdigest()[:16]


def all_builds(root: Path, isa: str, kernels: tuple[str, ...], targets: tuple[str, ...] = TARGETS, dtypes: tuple[str, ...] = tuple(DTYPES)) -> tuple[Build, ...]:
    """Every (kernel, form, variant, target, dtype) that exists, for one instruction set."""
    out: list[Build] = []
    for name in kernels:
        kernel = scan(name, root)
        for form, target, dtype in product(kernel.forms, targets, dtypes):
            for variant in kernel.variants_of(form, target) if target in takers(dtype) else ():
                out.append(Build(name, form, variant, target, isa, dtype))
    return tuple(out)
